//! Loopback ports that a service keeps from one start to the next.
//!
//! A killed server comes back at its old address, so its clients only see an outage. Ports are taken
//! below the range from which outgoing connections draw. Otherwise a client could sit on the port by
//! chance just when the server wants it back.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// The ports noted in `file` by the last start.
pub(crate) fn noted(file: &Path, count: usize) -> Option<Vec<u16>> {
    let text = fs::read_to_string(file).ok()?;
    let ports: Option<Vec<u16>> = text
        .split_whitespace()
        .map(|port| port.parse().ok())
        .collect();
    ports.filter(|ports| ports.len() == count)
}

/// `count` free ports: the noted ones while they are free, else new ones, noted.
pub(crate) fn reserve(file: &Path, count: usize) -> Result<Vec<u16>> {
    if let Some(ports) =
        noted(file, count).filter(|ports| ports.iter().all(|port| hold(*port).is_some()))
    {
        return Ok(ports);
    }
    let ports = free(count)?;
    let text: Vec<String> = ports.iter().map(u16::to_string).collect();
    fs::write(file, text.join(" ")).context("could not note the ports")?;
    Ok(ports)
}

fn free(count: usize) -> Result<Vec<u16>> {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    // Two checkouts that start at once begin at different places; the walk settles the rest.
    let start = u16::try_from(nanos.wrapping_add(std::process::id()) % u32::from(COUNT))?;
    let mut held = Vec::new();
    for step in 0..COUNT {
        if held.len() == count {
            break;
        }
        held.extend(hold(FIRST + (start + step) % COUNT));
    }
    if held.len() < count {
        bail!(
            "no {count} free ports between {FIRST} and {}",
            FIRST + COUNT
        );
    }
    // All were held at once, so they are different ports.
    held.iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect()
}

fn hold(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_kept_until_somebody_else_takes_one() {
        let file = std::env::temp_dir().join(format!("xtask-ports-{}", std::process::id()));
        let first = reserve(&file, 2).unwrap();
        assert_ne!(first[0], first[1]);
        assert_eq!(reserve(&file, 2).unwrap(), first);
        let taken = hold(first[1]).unwrap();
        let second = reserve(&file, 2).unwrap();
        assert!(!second.contains(&first[1]));
        drop(taken);
        fs::remove_file(&file).unwrap();
    }
}
