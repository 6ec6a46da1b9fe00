//! Starts the loan service, by the file that is named or by the one beside this example.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use loans::{LoanService, ServiceError, Terms};
use tidegate_config::{Config, ConfigSource, Inputs, Part, load};
use tidegate_core::env::Env;
use tidegate_server::Exporter;

const BUILT_IN: &str = include_str!("../tidegate.yaml");

#[tokio::main]
async fn main() -> Result<(), ServiceError> {
    tracing_subscriber::fmt()
        .with_ansi(std::io::stdout().is_terminal())
        .init();
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let terms = terms(&environment)?;
    let config = config(environment)?;
    let service =
        LoanService::open(&config, terms, Some(Exporter::install()?), Env::system()).await?;
    tracing::info!("loans on {}", service.url());
    service.run(stop()).await;
    Ok(())
}

fn config(environment: BTreeMap<String, String>) -> Result<Config, ServiceError> {
    let source = match std::env::args().nth(1) {
        Some(name) => ConfigSource {
            text: std::fs::read_to_string(&name)?,
            name,
        },
        None => ConfigSource {
            name: "tidegate.yaml".to_owned(),
            text: BUILT_IN.to_owned(),
        },
    };
    let inputs = Inputs {
        sources: vec![source],
        environment,
        built: Part::ALL.to_vec(),
        ..Inputs::default()
    };
    let (config, _) = load(&inputs).checked()?;
    Ok(config)
}

/// The terms of the house, by `LOANS_APPROVAL_LIMIT_CENTS` and `LOANS_MANUAL_APPROVAL`.
fn terms(environment: &BTreeMap<String, String>) -> Result<Terms, ServiceError> {
    let mut terms = Terms::default();
    if let Some(limit) = environment.get("LOANS_APPROVAL_LIMIT_CENTS") {
        terms.approval_limit_cents = limit.parse()?;
    }
    if let Some(flag) = environment.get("LOANS_MANUAL_APPROVAL") {
        terms.manual_approval = flag.parse()?;
    }
    Ok(terms)
}

/// Completes at Ctrl-C or SIGTERM.
async fn stop() {
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        };
    };
    tokio::select! {
        biased;
        () = terminated => {}
        // Without a signal handler, the process ends the hard way.
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.ok();
        }
    }
}
