//! `tidegate ledger`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tidegate_core::books::Ledger;

use crate::args::{self, Output};
use crate::report::{Exit, Report, Voice, print, print_json};
use crate::{settings, table};

/// How long a process on the same machine may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn run(arguments: &args::Ledger, output: Output) -> Result<Exit, Report> {
    let target = Target::of(arguments)?;
    let ledger = target.fetch().await?;
    match output {
        Output::Json => print_json(&ledger)?,
        Output::Table => print(&table::ledger(&ledger))?,
    }
    Ok(if ledger.balanced {
        Exit::Ok
    } else {
        Exit::Loss
    })
}

/// Where to ask, and with which token.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    url: String,
    token: Option<String>,
}

impl Target {
    /// As said on the command line, else as configured.
    ///
    /// The configured token is for the configured address alone: another one may be anybody's.
    fn of(arguments: &args::Ledger) -> Result<Self, Report> {
        let given = arguments.token.clone().filter(|token| !token.is_empty());
        if let Some(url) = &arguments.url {
            return Ok(Self {
                url: url.trim_end_matches('/').to_owned(),
                token: given,
            });
        }
        let loaded = settings::read(&arguments.file)?.loaded;
        let config = settings::checked(loaded, Voice::Text)?;
        let configured = config.secret("server.token").map(|secret| secret.expose());
        let listen = config.text("server.listen").unwrap_or_default();
        Ok(Self {
            url: format!("http://{}", reachable(listen)),
            token: given.or_else(|| configured.map(str::to_owned)),
        })
    }

    async fn fetch(&self) -> Result<Ledger, Report> {
        let shown = tidegate_config::shown_address(&self.url);
        // error-page: ledger.unreachable
        let unreachable = |why: &str| {
            Report::new(
                "ledger.unreachable",
                format!("no ledger from {shown}: {why}"),
            )
            .with_hint("is `tidegate run` running there? see docs/errors/ledger.unreachable.md")
        };
        let failed = |doing: &str, error: reqwest::Error| {
            // The error would repeat the address, with any password in it.
            let error = error.without_url();
            Report::of("ledger.unreachable", &format!("{doing} {shown}"), &error)
                .with_hint("is `tidegate run` running there? see docs/errors/ledger.unreachable.md")
        };
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        // The token goes to the address that was named, and not to where that sends us, nor through
        // a proxy that happens to be set.
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| failed("cannot prepare a request to", error))?;
        let mut request = client.get(format!("{}/tidegate/ledger", self.url));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request
            .send()
            .await
            .map_err(|error| failed("cannot reach", error))?;
        match response.status().as_u16() {
            200 => {}
            401 => return Err(unreachable("the token is missing or wrong (401)")),
            status @ 300..=399 => {
                return Err(unreachable(&format!(
                    "it answered {status}, and redirects are not followed"
                )));
            }
            status => return Err(unreachable(&format!("it answered {status}"))),
        }
        response
            .json()
            .await
            .map_err(|error| failed("cannot read the ledger from", error))
    }
}

/// The address under which a process on this machine that listens on `listen` is reached: one that
/// listens everywhere also listens on loopback.
fn reachable(listen: &str) -> String {
    let Ok(mut address) = listen.parse::<SocketAddr>() else {
        // A name and a port.
        return listen.to_owned();
    };
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_listens_everywhere_is_reached_on_loopback() {
        for (listen, expect) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("10.0.0.0:80", "10.0.0.0:80"),
            ("100.0.0.0:80", "100.0.0.0:80"),
            ("[fe80::]:80", "[fe80::]:80"),
            ("localhost:8080", "localhost:8080"),
        ] {
            assert_eq!(reachable(listen), expect, "{listen}");
        }
    }
}
