//! One call as one step: how long it took and how it went.

use std::fmt;
use std::time::Duration;

use super::logger::within_error_limit;
use super::{ProcessLogger, Refused};
use crate::event::{StepStatus, Text};

/// The result of a call, and of logging it.
///
/// The two are apart, because a full queue must not turn a booking that worked into one that
/// failed.
#[derive(Debug)]
#[must_use = "it holds what the call returned, and the step if that was refused"]
pub struct Called<T, E> {
    /// The return value of the call.
    pub output: Result<T, E>,
    /// Whether the step was accepted.
    pub logged: Result<(), Refused>,
}

impl ProcessLogger {
    /// Awaits `work` and logs one step: SUCCESS, or FAILURE with the error as its message.
    ///
    /// The one-shot context set before goes onto that step; the time is measured on the clock of
    /// the process. When the call is canceled, no step is logged and the context is still there.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tidegate_core::env::Env;
    /// # use tidegate_logger::{Event, EventSink, ProcessTemplate, Refused};
    /// # #[derive(Debug)]
    /// # struct Sink;
    /// # impl EventSink for Sink { fn log(&self, _: Event) -> Result<(), Refused> { Ok(()) } }
    /// # let env = Env::system();
    /// # let template = ProcessTemplate::new(Arc::new(Sink), env.clock.clone(), env.entropy.fork("p"));
    /// # async fn check_kennel() -> Result<u32, String> { Ok(7) }
    /// # async fn example(template: ProcessTemplate) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut booking = template.for_process("CreateBooking");
    /// booking.target_system("KENNEL");
    /// let called = booking.call("KennelChecked", check_kennel()).await;
    /// called.logged?;
    /// assert_eq!(called.output?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call<T, E: fmt::Display>(
        &mut self,
        step: impl Into<Text>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Called<T, E> {
        let started = self.clock.elapsed();
        let output = work.await;
        self.log_call(step.into(), started, output)
    }

    /// The same for a call that does not await.
    pub fn call_blocking<T, E: fmt::Display>(
        &mut self,
        step: impl Into<Text>,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Called<T, E> {
        let started = self.clock.elapsed();
        let output = work();
        self.log_call(step.into(), started, output)
    }

    fn log_call<T, E: fmt::Display>(
        &mut self,
        step: Text,
        started: Duration,
        output: Result<T, E>,
    ) -> Called<T, E> {
        let took = self.clock.elapsed().saturating_sub(started);
        self.execution_time_ms(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let (status, details) = match &output {
            Ok(_) => (StepStatus::Success, format!("{step} succeeded")),
            Err(error) => {
                let message = error.to_string();
                let details = format!("{step} failed: {message}");
                self.error_message(within_error_limit(Text::Owned(message)));
                (StepStatus::Failure, details)
            }
        };
        let sequence = self.next_sequence();
        let logged = self.log_step(sequence, step, status, details, None);
        Called { output, logged }
    }
}
