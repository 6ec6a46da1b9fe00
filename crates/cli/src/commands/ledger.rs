//! `tidegate ledger`.

use std::time::Duration;

use tidegate_core::books::Ledger;

use crate::args::{self, Output};
use crate::report::{Exit, Report, print, print_json};
use crate::{settings, table};

/// How long a process on the same machine may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn run(arguments: &args::Ledger, output: Output) -> Result<Exit, Report> {
    let (url, token) = target(arguments)?;
    let ledger = fetch(&url, token.as_deref()).await?;
    match output {
        Output::Json => print_json(&ledger),
        Output::Table => print(&table::ledger(&ledger)),
    }
    Ok(if ledger.balanced {
        Exit::Ok
    } else {
        Exit::Loss
    })
}

/// Where to ask, and with which token: as said on the command line, else as configured.
fn target(arguments: &args::Ledger) -> Result<(String, Option<String>), Report> {
    let config = settings::checked(settings::read(&arguments.file)?.loaded)?;
    let configured = config
        .secret("server.token")
        .map(|secret| secret.expose().to_owned());
    let token = arguments
        .token
        .clone()
        .or(configured)
        .filter(|token| !token.is_empty());
    let url = match &arguments.url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => {
            let listen = config.text("server.listen").unwrap_or_default();
            // A process that listens everywhere also listens here.
            format!(
                "http://{}",
                listen
                    .replace("0.0.0.0", "127.0.0.1")
                    .replace("[::]", "[::1]")
            )
        }
    };
    Ok((url, token))
}

async fn fetch(url: &str, token: Option<&str>) -> Result<Ledger, Report> {
    // error-page: ledger.unreachable
    let unreachable = |why: &str| {
        Report::new("ledger.unreachable", format!("no ledger from {url}: {why}"))
            .with_hint("is `tidegate run` running there? see docs/errors/ledger.unreachable.md")
    };
    let failed = |doing: &str, error: &reqwest::Error| {
        Report::of("ledger.unreachable", &format!("{doing} {url}"), error)
            .with_hint("is `tidegate run` running there? see docs/errors/ledger.unreachable.md")
    };
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let client = reqwest::Client::builder()
        .timeout(TIMEOUT)
        .build()
        .map_err(|error| failed("cannot prepare a request to", &error))?;
    let mut request = client.get(format!("{url}/tidegate/ledger"));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request
        .send()
        .await
        .map_err(|error| failed("cannot reach", &error))?;
    match response.status().as_u16() {
        200 => {}
        401 => return Err(unreachable("the token is missing or wrong (401)")),
        status => return Err(unreachable(&format!("it answered {status}"))),
    }
    response
        .json()
        .await
        .map_err(|error| failed("cannot read the ledger from", &error))
}
