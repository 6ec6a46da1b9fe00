//! Which names mean this machine.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a `Host` header, with or without a port, names the loopback interface.
pub(super) fn is_loopback(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return false;
        };
        let is_ours = address
            .parse::<Ipv6Addr>()
            .is_ok_and(|a| a.to_canonical().is_loopback());
        return is_ours && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let (name, port) = host
        .split_once(':')
        .map_or((host, None), |(n, p)| (n, Some(p)));
    let is_ours = name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback());
    is_ours && port.is_none_or(is_port)
}

/// Whether an `Origin` header names a page of the loopback interface.
pub(super) fn is_loopback_origin(origin: &str) -> bool {
    let host = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(is_loopback)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in [
            "localhost",
            "LocalHost:1",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.255.0.9:65535",
            "[::1]",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:80:80",
            "127.0.0.1:",
            "127.0.0.1:+80",
            "127.0.0.1:65536",
            "127.1",
            "0177.0.0.1",
            "2130706433",
            "0.0.0.0",
            "128.0.0.1",
            "::1",
            "[::1",
            "[::1]x",
            "[::2]",
            "user@127.0.0.1",
            "localhost/",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn an_origin_has_a_scheme_of_the_web() {
        for origin in [
            "http://localhost:8080",
            "https://127.0.0.1",
            "http://[::1]:1",
        ] {
            assert!(is_loopback_origin(origin), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "file://",
            "ftp://localhost",
        ] {
            assert!(!is_loopback_origin(origin), "{origin}");
        }
    }
}
