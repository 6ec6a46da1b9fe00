//! SIGTERM and Ctrl-C.

use std::io::{self, Read};
use std::sync::Arc;

use tidegate_core::env::Spawn;
use tidegate_server::Health;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::report::{ErrorReport, MessageFormat};

/// SIGTERM and Ctrl-C. From its registration on a signal is kept until it is waited for.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Completes when standard input ends, if that is watched.
    stdin: Option<oneshot::Receiver<()>>,
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
            stdin: None,
        })
    }

    /// Takes the end of standard input for a signal. It is a pipe from the parent process, and ends with
    /// that, however it ends.
    pub(crate) fn watch_stdin(&mut self) -> Result<(), ErrorReport> {
        let (ended, stdin) = oneshot::channel();
        let watch = move || {
            let mut bytes = [0; 64];
            loop {
                match io::stdin().read(&mut bytes) {
                    Ok(1..) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => break,
                }
            }
            ended.send(()).ok();
        };
        let started = std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(watch);
        started
            .map_err(|error| ErrorReport::of("internal", "cannot watch standard input", &error))?;
        self.stdin = Some(stdin);
        Ok(())
    }

    pub(crate) async fn next(&mut self) {
        let stdin = async {
            match &mut self.stdin {
                // It ends once; the next signal must be another one.
                Some(ended) => ended.await.ok(),
                None => std::future::pending().await,
            };
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = stdin => self.stdin = None,
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
