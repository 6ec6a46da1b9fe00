//! Every metric of the Event Log API.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_histogram, histogram};

use crate::ingest::PostOutcome;

/// The name under which the API stands in `component`.
const COMPONENT: &str = "eventlog";

/// Names that dashboards depend on.
pub mod names {
    /// Events by their outcome: `stored`, `repeated`, `conflict`, `invalid`.
    pub const EVENTS: &str = "tidegate_eventlog_events_total";
    /// Time of one commit, with everything that was in it.
    pub const COMMIT: &str = "tidegate_eventlog_commit_seconds";
    /// Events of one commit.
    pub const GROUP: &str = "tidegate_eventlog_group_events";
    /// Events that retention removed.
    pub const REMOVED: &str = "tidegate_eventlog_removed_total";
    /// Limits that were hit, by name.
    pub const LIMIT_HITS: &str = "tidegate_eventlog_limit_hits_total";
}

/// A limit that was hit; the names are those of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLogLimit {
    /// `max-batch`.
    MaxBatch,
    /// `rate-limit`.
    RateLimit,
}

impl EventLogLimit {
    fn as_str(self) -> &'static str {
        match self {
            Self::MaxBatch => "max-batch",
            Self::RateLimit => "rate-limit",
        }
    }
}

/// Gives the metrics their help texts.
pub fn describe() {
    describe_counter!(names::EVENTS, "Events that were posted, by outcome.");
    describe_histogram!(names::COMMIT, "Time of one commit of posted events.");
    describe_histogram!(names::GROUP, "Events of one commit.");
    describe_counter!(names::REMOVED, "Events that retention removed.");
    describe_counter!(
        names::LIMIT_HITS,
        "Limits of the Event Log API that were hit."
    );
}

#[expect(clippy::cast_precision_loss, reason = "histograms are approximate")]
pub(crate) fn committed(outcomes: &[PostOutcome], took: Duration) {
    let (mut stored, mut repeated, mut conflict) = (0, 0, 0);
    for outcome in outcomes {
        match outcome {
            PostOutcome::Stored { .. } => stored += 1,
            PostOutcome::Repeated { .. } => repeated += 1,
            PostOutcome::Conflict => conflict += 1,
        }
    }
    for (outcome, count) in [
        ("stored", stored),
        ("repeated", repeated),
        ("conflict", conflict),
    ] {
        if count > 0 {
            events(outcome, count);
        }
    }
    histogram!(names::COMMIT, "component" => COMPONENT).record(took.as_secs_f64());
    histogram!(names::GROUP, "component" => COMPONENT).record(outcomes.len() as f64);
}

pub(crate) fn invalid(count: u64) {
    if count > 0 {
        events("invalid", count);
    }
}

fn events(outcome: &'static str, count: u64) {
    counter!(names::EVENTS, "component" => COMPONENT, "outcome" => outcome).increment(count);
}

pub(crate) fn removed(count: u64) {
    counter!(names::REMOVED, "component" => COMPONENT).increment(count);
}

pub(crate) fn limit_hit(limit: EventLogLimit) {
    counter!(names::LIMIT_HITS, "component" => COMPONENT, "limit" => limit.as_str()).increment(1);
}
