//! SIGTERM and Ctrl-C.

use std::sync::Arc;

use tidegate_core::env::Spawn;
use tidegate_server::Health;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::report::{ErrorReport, MessageFormat};

/// SIGTERM and Ctrl-C. From its registration on a signal is kept until it is waited for.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn register() -> Result<Self, ErrorReport> {
        let register = |kind| {
            signal(kind)
                .map_err(|error| ErrorReport::of("internal", "cannot receive signals", &error))
        };
        Ok(Self {
            terminate: register(SignalKind::terminate())?,
            interrupt: register(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Completes at the first signal. The next one ends the process at once: its sender does not want
    /// to wait for the drain.
    pub(crate) async fn stop(
        mut self,
        health: Health,
        spawn: Arc<dyn Spawn>,
        format: MessageFormat,
    ) {
        self.next().await;
        health.drain();
        tracing::info!("draining; a second signal ends the process at once");
        let impatient = async move {
            self.next().await;
            let report = ErrorReport::new("stopped", "ended by a second signal, without draining");
            report.tell(format);
            std::process::exit(1);
        };
        drop(spawn.spawn("second-signal", Box::pin(impatient)));
    }
}
