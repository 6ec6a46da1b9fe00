//! `tidegate run`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate_core::Shutdown;
use tidegate_core::env::Env;
use tidegate_server::{Exporter, Health, Server, ServerConfig};

use crate::args::{Output, RunArgs};
use crate::parts::{self, Process};
use crate::report::{ErrorReport, Exit, MessageFormat, print_ledger, say};
use crate::settings;
use crate::signals::Signals;

/// The least time that closing gets, however short `shutdown-timeout` is.
const LEAST_CLOSE: Duration = Duration::from_secs(1);

/// Starts what is configured, and returns once a signal came and everything was drained.
pub(crate) async fn run(
    arguments: &RunArgs,
    output: Output,
    format: MessageFormat,
) -> Result<Exit, ErrorReport> {
    let mut settings = settings::read(&arguments.file)?;
    settings.loaded.require_built(&parts::built());
    let config = settings::checked(settings.loaded, format)?;
    parts::refuse_unhandled(&config)?;
    // From here on a signal means a drain: others can reach us, or read that we run, and may send one.
    let mut signals = Signals::register()?;
    if arguments.until_stdin_ends {
        signals.watch_stdin()?;
    }
    let exporter = Exporter::install()
        .map_err(|error| ErrorReport::of("internal", "cannot start the metrics", &error))?;
    let env = Env::system();
    let (clock, spawn) = (Arc::clone(&env.clock), Arc::clone(&env.spawn));
    let health = Health::new(Arc::clone(&clock));
    let server = ServerConfig::from_config(&config)?;
    let shutdown = config.duration("shutdown-timeout").unwrap_or_default();
    let (builder, address) = Server::builder(server).listen().await?;
    let mut process = Process::open(config, env, address).await?;
    let builder = process.serve(builder.health(health.clone()).metrics(exporter));
    let server = builder.bind(&process.env).await?;
    let (trigger, stop) = Shutdown::new();
    let tasks = process.run(&stop);
    announce(&process, address, settings.file.as_deref(), format);
    let stop_began = Arc::new(OnceLock::new());
    let stopped = {
        let (clock, stop_began) = (Arc::clone(&clock), Arc::clone(&stop_began));
        async move {
            signals.stop(health, spawn, format).await;
            stop_began.get_or_init(|| clock.elapsed());
            trigger.stop();
        }
    };
    let report = server.run(stopped).await;
    tracing::info!(
        connections = report.connections,
        requests = report.requests,
        cut = report.cut,
        "stopped"
    );
    // The requests and the background work stop together, and share the whole time.
    let now = clock.elapsed();
    let passed = now.saturating_sub(stop_began.get().copied().unwrap_or(now));
    let to_close = shutdown.saturating_sub(passed).max(LEAST_CLOSE);
    let ledger = tokio::select! {
        biased;
        ledger = process.end(tasks) => ledger?,
        () = clock.sleep(to_close) => return Err(not_closed()),
    };
    print_ledger(&ledger, output)
}

fn not_closed() -> ErrorReport {
    ErrorReport::new(
        "log.not-closed",
        "not everything was closed in time: the disk, the broker or the database does not answer",
    )
    .with_hint("nothing that was acknowledged is lost; the next start reads the journal")
}

/// Says that we run, and where.
fn announce(process: &Process, address: SocketAddr, file: Option<&Path>, format: MessageFormat) {
    let version = env!("CARGO_PKG_VERSION");
    let source = match file {
        Some(file) => file.display().to_string(),
        None => "no tidegate.yaml found, defaults".to_owned(),
    };
    let parts = process.banner.iter();
    match format {
        MessageFormat::Events => {
            let parts: Vec<String> = parts.map(|(name, at)| format!("{name}: {at}")).collect();
            let parts = parts.join("; ");
            tracing::info!(version, config = source, %address, parts, "listening");
        }
        MessageFormat::Text => {
            let parts: String = parts
                .map(|(name, at)| format!("  ✓ {name:<8} {at}\n"))
                .collect();
            let demo = if cfg!(feature = "demo") {
                "tidegate demo     "
            } else {
                ""
            };
            // Without it the answer would be 401; the token itself is not shown.
            let token = match process.config.secret("server.token") {
                Some(_) => "TIDEGATE_TOKEN=… ",
                None => "",
            };
            say(&format!(
                "tidegate {version} · {source}\n{parts}  ✓ server   http://{address}   \
                 (health /readyz, metrics /metrics, books /tidegate/ledger, API /openapi.json)\n  \
                 try:  {demo}{token}tidegate ledger --url http://{address}"
            ));
        }
    }
}
