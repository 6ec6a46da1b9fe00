//! `tidegate run`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::Config;
use tidegate_core::books::Ledger;
use tidegate_core::env::{Env, Spawn};
use tidegate_server::{BindError, Exporter, Health, Limits, Server, ServerConfig, Token};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ConfigFile, Output};
use crate::report::{Exit, Report, print, print_json, say};
use crate::{settings, table};

/// Share of `shutdown-timeout` that requests in flight get; the rest is for closing the books.
const DRAIN_SHARE: f64 = 0.9;

/// Starts what is configured, and returns once a signal came and everything was drained.
pub(crate) async fn run(arguments: &ConfigFile, output: Output) -> Result<Exit, Report> {
    let mut settings = settings::read(arguments)?;
    settings.loaded.require_built(&settings::BUILT);
    let config = settings::checked(settings.loaded)?;
    let env = Env::system();
    let health = Health::new(env.clock.clone());
    let exporter = Exporter::install()
        .map_err(|error| Report::of("internal", "cannot start the metrics", &error))?;
    let server = Server::builder(server_config(&config)?)
        .health(health.clone())
        .metrics(exporter)
        .bind(&env)
        .await
        .map_err(refused)?;
    say(&banner(&server, settings.file.as_deref()));
    let report = server
        .run(stop_signal(health, Arc::clone(&env.spawn)))
        .await;
    tracing::info!(
        connections = report.connections,
        requests = report.requests,
        cut = report.cut,
        "stopped"
    );
    // No part of this program keeps books yet, so the closing ledger has no components.
    let ledger = Ledger::new(Vec::new());
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

fn server_config(config: &Config) -> Result<ServerConfig, Report> {
    let listen = config.text("server.listen").unwrap_or_default();
    let token = config
        .secret("server.token")
        .map(|secret| secret.expose())
        // `${TIDEGATE_TOKEN:-}` without the variable is an empty text: no token.
        .filter(|token| !token.is_empty())
        .map(Token::new)
        .transpose()
        .map_err(|error| Report::of("config.invalid", "`server.token`", &error))?;
    let shutdown = config
        .duration("shutdown-timeout")
        .unwrap_or(Duration::from_secs(30));
    let max_body = config
        .size("server.max-body")
        .and_then(|bytes| usize::try_from(bytes).ok());
    let defaults = Limits::default();
    Ok(ServerConfig {
        listen: resolve(listen)?,
        token,
        read_only: config.flag("server.read-only").unwrap_or(false),
        limits: Limits {
            max_body: max_body.unwrap_or(defaults.max_body),
            drain_timeout: shutdown.mul_f64(DRAIN_SHARE),
            ..defaults
        },
    })
}

/// The first address that a name such as `localhost:8080` stands for.
fn resolve(listen: &str) -> Result<SocketAddr, Report> {
    let unknown = |why: String| {
        Report::new(
            "config.invalid",
            format!("`server.listen` is `{listen}`: {why}"),
        )
        .with_hint("write an address and a port, such as 127.0.0.1:8080")
    };
    let mut found = listen
        .to_socket_addrs()
        .map_err(|error| unknown(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| unknown("the name has no address".to_owned()))
}

fn refused(error: BindError) -> Report {
    match error {
        // error-page: server.exposed
        BindError::TokenMissing { .. } => Report::new("server.exposed", error.to_string())
            .with_hint("see docs/errors/server.exposed.md"),
        // error-page: server.busy-address
        BindError::Listen { .. } => {
            Report::of("server.busy-address", "cannot start the server", &error)
                .with_hint("stop whoever listens there, or set another `server.listen`")
        }
        _ => Report::of("internal", "cannot start the server", &error),
    }
}

fn banner(server: &Server, file: Option<&std::path::Path>) -> String {
    let source = match file {
        Some(file) => file.display().to_string(),
        None => "no tidegate.yaml found, defaults".to_owned(),
    };
    let address = server.local_addr();
    format!(
        "tidegate {} · {source}\n  ✓ server   http://{address}   (health /readyz, metrics \
         /metrics, books /tidegate/ledger, API /openapi.json)\n  try:  tidegate demo     tidegate \
         ledger --url http://{address}",
        env!("CARGO_PKG_VERSION")
    )
}

/// Completes at the first SIGTERM or Ctrl-C. The next one ends the process at once: whoever sends
/// it does not want to wait for the drain.
async fn stop_signal(health: Health, spawn: Arc<dyn Spawn>) {
    wait_for_signal().await;
    health.drain();
    tracing::info!("draining; a second signal ends the process at once");
    let impatient = async {
        wait_for_signal().await;
        say("error[stopped]: ended by a second signal, without draining");
        std::process::exit(1);
    };
    drop(spawn.spawn("second-signal", Box::pin(impatient)));
}

async fn wait_for_signal() {
    match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals cannot be received; only a kill ends this process");
            std::future::pending::<()>().await;
        }
    }
}
