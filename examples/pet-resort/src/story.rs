//! How the resort logs a process.

use std::ops::{Deref, DerefMut};

use tidegate_logger::{ProcessLogger, Refused, StepStatus, Text};

/// A process logger that never stands in the way of the process.
///
/// A guest goes in and out whether or not the logger had room. A refused event was reported to the
/// loss callback already; here it is only worth a line.
pub(crate) struct Story(pub(crate) ProcessLogger);

impl Story {
    pub(crate) fn begin(&mut self, details: impl Into<Text>) {
        note(self.0.process_start(details));
    }

    pub(crate) fn did(&mut self, sequence: u64, name: &'static str, details: impl Into<Text>) {
        self.step(sequence, name, StepStatus::Success, details);
    }

    pub(crate) fn failed(&mut self, sequence: u64, name: &'static str, details: impl Into<Text>) {
        self.step(sequence, name, StepStatus::Failure, details);
    }

    pub(crate) fn step(
        &mut self,
        sequence: u64,
        name: &'static str,
        status: StepStatus,
        details: impl Into<Text>,
    ) {
        note(self.0.log_step(sequence, name, status, details, None));
    }

    pub(crate) fn ended(&mut self, details: impl Into<Text>, result: &str) {
        note(
            self.0
                .process_end(StepStatus::Success, details, Some(result)),
        );
    }

    pub(crate) fn fell_through(&mut self, details: impl Into<Text>) {
        note(self.0.process_end(StepStatus::Failure, details, None));
    }
}

fn note(logged: Result<(), Refused>) {
    if let Err(refused) = logged {
        tracing::warn!(reason = refused.reason, "an event was not taken");
    }
}

impl Deref for Story {
    type Target = ProcessLogger;

    fn deref(&self) -> &ProcessLogger {
        &self.0
    }
}

impl DerefMut for Story {
    fn deref_mut(&mut self) -> &mut ProcessLogger {
        &mut self.0
    }
}
