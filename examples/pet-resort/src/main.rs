//! Starts the resort and its event logger, and stops them in that order.

use std::error::Error;
use std::sync::Arc;

use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use pet_resort::{Pace, Probes, Resort, describe, router, serve};
use tidegate_core::env::Env;
use tidegate_logger::{
    Defaults, HttpApi, Logger, LoggerConfig, Loss, LossCallback, ProcessTemplate, RunningLogger,
};

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let variable = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let listen = variable("PET_RESORT_LISTEN", "127.0.0.1:8081");
    let base_url = variable("EVENTLOG_BASE_URL", "http://127.0.0.1:3000");
    let spill = variable("EVENTLOG_SPILLOVER_PATH", "./spillover");
    let recorder = PrometheusBuilder::new().install_recorder()?;
    describe();

    let env = Env::system();
    let config = LoggerConfig::builder()
        .spillover_path(spill)
        .defaults(Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT"))
        .build()?;
    let api = HttpApi::builder(&base_url)
        .application_id("pet-resort-api")
        .build(Arc::clone(&env.clock))?;
    let on_loss: LossCallback = Arc::new(|loss: &Loss<'_>| {
        tracing::error!(reason = %loss.reason, event = ?loss.event, "an event was lost");
    });
    let logger = RunningLogger::start(config, Arc::new(api), Some(on_loss))?;

    let template = ProcessTemplate::new(
        Arc::new(Logger::clone(&logger)),
        Arc::clone(&env.clock),
        env.entropy.fork("processes"),
    );
    let resort = Resort::new(template, env.entropy.fork("traces"), Pace::default());
    let probes = Probes::new(Logger::clone(&logger));
    let app = router(Arc::new(resort))
        .route("/metrics", get(async move || recorder.render()))
        .merge(probes.clone().router());
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = tokio::net::TcpListener::bind(&listen).await?;
        tracing::info!("pet resort on http://{listen}, events to {base_url}");
        let stop = async move {
            signaled().await;
            probes.stop();
        };
        serve(listener, app, stop).await
    })?;
    let report = logger.shutdown();
    tracing::info!(
        delivered = report.account.delivered,
        on_disk = report.account.spilled,
        "closed"
    );
    Ok(())
}

/// Completes at Ctrl-C or SIGTERM. Without a signal handler, the process ends the hard way.
async fn signaled() {
    use tokio::signal::unix::{SignalKind, signal};

    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        tokio::signal::ctrl_c().await.ok();
        return;
    };
    tokio::select! {
        biased;
        _ = terminated.recv() => {}
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.ok();
        }
    }
}
