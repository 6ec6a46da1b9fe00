//! A logger with a thread of its own, for applications that do not run tasks.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use tidegate_core::env::Env;
use tidegate_core::{Classify, FailureClass, Shutdown, ShutdownTrigger};

use crate::api::Api;
use crate::config::LoggerConfig;
use crate::engine::LossCallback;
use crate::logger::Logger;
use crate::spill::SpillError;
use crate::task::LoggerReport;

/// Why a logger could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The spill directory cannot be used.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The operating system has no runtime to give: no file descriptors, for instance.
    #[error("could not create the runtime of the event logger")]
    Runtime(#[source] io::Error),
    /// The operating system has no thread to give.
    #[error("could not start the thread of the event logger")]
    Thread(#[source] io::Error),
}

impl Classify for StartError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Spill(error) => error.class(),
            Self::Runtime(_) | Self::Thread(_) => FailureClass::System,
        }
    }
}

/// A logger that runs on a thread of its own. Dropping it drains it as
/// [`shutdown`](Self::shutdown) does.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_logger::{Event, LoggerConfig, RunningLogger};
/// # use tidegate_logger::{ApiAnswer, Api, EventOutcome, LoggerId, Payload, Sending};
/// # #[derive(Debug)] struct Sink;
/// # impl Api for Sink { fn send_from<'a>(&'a self, _: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
/// #     Box::pin(async move { ApiAnswer::PerEvent(vec![EventOutcome::Stored; batch.len()]) }) } }
/// let logger = RunningLogger::start(LoggerConfig::builder().build()?, Arc::new(Sink), None)?;
/// logger.log(Event::step("CreateBooking", "BookingCreated", "Booking BK-1 created"))?;
/// assert_eq!(logger.shutdown().account.delivered, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RunningLogger {
    logger: Logger,
    stop: Option<ShutdownTrigger>,
    thread: Option<std::thread::JoinHandle<LoggerReport>>,
}

impl RunningLogger {
    /// Opens a logger and runs it. The calls of an HTTP API run there too.
    ///
    /// # Errors
    /// The spill directory cannot be used, or the operating system has no thread or no runtime to
    /// give. Nothing runs then.
    #[expect(
        clippy::disallowed_methods,
        reason = "an application without tasks gets a thread"
    )]
    pub fn start(
        config: LoggerConfig,
        api: Arc<dyn Api>,
        on_loss: Option<LossCallback>,
    ) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let (logger, task) = Logger::open(config, api, Env::system(), on_loss)?;
        let (stop, stopped) = Shutdown::new();
        let thread = std::thread::Builder::new()
            .name("eventlog".to_owned())
            .spawn(move || runtime.block_on(task.run(stopped.requested())));
        Ok(Self {
            logger,
            stop: Some(stop),
            thread: Some(thread.map_err(StartError::Thread)?),
        })
    }

    /// Drains and stops the logger and says how it ended. Returns within the shutdown timeout and a
    /// moment.
    ///
    /// # Panics
    /// When the logger's own thread did, which is a bug.
    #[must_use]
    pub fn shutdown(mut self) -> LoggerReport {
        self.stop_and_join().expect("the logger ends with a report")
    }

    fn stop_and_join(&mut self) -> Option<LoggerReport> {
        drop(self.stop.take());
        self.thread.take()?.join().ok()
    }
}

impl Deref for RunningLogger {
    type Target = Logger;

    fn deref(&self) -> &Logger {
        &self.logger
    }
}

impl Drop for RunningLogger {
    fn drop(&mut self) {
        drop(self.stop_and_join());
    }
}
