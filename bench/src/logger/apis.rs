//! Event Log APIs in this process.

use std::time::Duration;

use tidegate_core::Code;
use tidegate_logger::{Api, ApiAnswer, ApiFailure, EventOutcome, LoggerId, Payload, Sending};

/// Stores everything at once.
#[derive(Debug)]
pub(super) struct Instantly;

impl Api for Instantly {
    fn send_from<'a>(&'a self, _: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(async move { stored(batch) })
    }
}

/// Answers nobody.
#[derive(Debug)]
pub(super) struct Down;

impl Api for Down {
    fn send_from<'a>(&'a self, _: Option<LoggerId>, _batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(async move {
            ApiAnswer::Failed(ApiFailure {
                code: Code::from_static("connect.refused"),
                message: "nobody listens".to_owned(),
                retry_after: None,
            })
        })
    }
}

/// Stores everything, and answers after this time.
#[derive(Debug)]
pub(super) struct After(pub(super) Duration);

impl Api for After {
    fn send_from<'a>(&'a self, _: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(async move {
            tokio::time::sleep(self.0).await;
            stored(batch)
        })
    }
}

fn stored(batch: &[Payload]) -> ApiAnswer {
    ApiAnswer::PerEvent(vec![EventOutcome::Stored; batch.len()])
}
