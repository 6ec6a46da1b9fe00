//! The answers that are more than a page of events.

use std::collections::BTreeMap;

use serde::Serialize;
#[cfg(test)]
use tidegate_logger::ProcessStatus;
use tidegate_logger::StepStatus;

use crate::event::StoredEvent;
use crate::page::{EventPage, PageCursor};

/// The events of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchEvents {
    /// The batch.
    pub batch_id: String,
    /// The page.
    #[serde(flatten)]
    pub page: EventPage,
    /// How many correlations it has.
    pub unique_correlation_ids: i64,
    /// Events that succeeded.
    pub success_count: i64,
    /// Events that failed.
    pub failure_count: i64,
}

/// How far the processes of a batch have come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchSummary {
    /// The batch.
    pub batch_id: String,
    /// Its processes: one for each correlation.
    pub total_processes: i64,
    /// Those that ended with success.
    pub completed: i64,
    /// Those that failed and did not end with success.
    pub failed: i64,
    /// The others.
    pub in_progress: i64,
    /// The correlations, as many as a summary lists.
    pub correlation_ids: Vec<String>,
    /// When the first event happened.
    pub started_at: Option<String>,
    /// When the last one did.
    pub last_event_at: Option<String>,
}

/// The life of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountSummary {
    /// The account.
    pub account_id: String,
    /// Its events.
    pub total_events: i64,
    /// Its correlations.
    pub total_processes: i64,
    /// Events that succeeded.
    pub success_count: i64,
    /// Events that failed.
    pub failure_count: i64,
    /// When the first event happened.
    pub first_event_at: Option<String>,
    /// When the last one did.
    pub last_event_at: Option<String>,
    /// The systems that were touched.
    pub systems_involved: Vec<String>,
    /// The last events.
    pub recent_events: Vec<StoredEvent>,
    /// The last events that failed.
    pub recent_errors: Vec<StoredEvent>,
}

/// The events of a correlation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CorrelationEvents {
    /// The correlation.
    pub correlation_id: String,
    /// The account that it is linked to, or that its events name.
    pub account_id: Option<String>,
    /// Whether it is linked.
    pub is_linked: bool,
    /// The page.
    #[serde(flatten)]
    pub page: EventPage,
}

/// The events of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceEvents {
    /// The trace.
    pub trace_id: String,
    /// The page.
    #[serde(flatten)]
    pub page: EventPage,
    /// The systems that were touched.
    pub systems_involved: Vec<String>,
    /// From the first event to the last.
    pub total_duration_ms: i64,
    /// How many events have which outcome.
    pub status_counts: BTreeMap<&'static str, i64>,
    /// The process of the first event.
    pub process_name: Option<String>,
    /// The account of the first event that has one.
    pub account_id: Option<String>,
    /// When the first event happened.
    pub start_time: Option<String>,
    /// When the last one did.
    pub end_time: Option<String>,
}

/// One trace in the list of traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRow {
    /// The trace.
    pub trace_id: String,
    /// Its events.
    pub event_count: i64,
    /// Whether one of them failed.
    pub has_errors: bool,
    /// How it went.
    pub latest_status: &'static str,
    /// From the first event to the last.
    pub duration_ms: i64,
    /// The process of the first event.
    pub process_name: Option<String>,
    /// The account of the first event that has one.
    pub account_id: Option<String>,
    /// When the first event happened.
    pub start_time: Option<String>,
    /// When the last one did.
    pub end_time: Option<String>,
}

/// A page of traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TracePage {
    /// The traces, the newest first.
    pub traces: Vec<TraceRow>,
    /// Traces on all pages.
    pub total_count: i64,
    /// The number of the page.
    pub page: u32,
    /// Traces of a full page.
    pub page_size: u32,
    /// Whether another page follows.
    pub has_more: bool,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<PageCursor>,
}

/// The numbers of the dashboard.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DashboardStats {
    /// Traces.
    pub total_traces: i64,
    /// Accounts.
    pub total_accounts: i64,
    /// Events.
    pub total_events: i64,
    /// The percentage of traces without a failure.
    pub success_rate: f64,
    /// The systems that were touched.
    pub system_names: Vec<String>,
}

/// The facts about a trace that tell how it went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TraceFacts {
    pub(crate) ended_well: bool,
    pub(crate) failed: bool,
    pub(crate) warned: bool,
}

impl TraceFacts {
    /// How a trace went: a good end beats a failure, a failure beats a warning.
    pub(crate) fn latest_status(self) -> StepStatus {
        match self {
            Self {
                ended_well: true, ..
            } => StepStatus::Success,
            Self { failed: true, .. } => StepStatus::Failure,
            Self { warned: true, .. } => StepStatus::Warning,
            Self { .. } => StepStatus::InProgress,
        }
    }

    #[cfg(test)]
    fn of(events: &[(ProcessStatus, StepStatus)]) -> Self {
        let has = |outcome| events.iter().any(|(_, one)| *one == outcome);
        Self {
            ended_well: events.contains(&(ProcessStatus::ProcessEnd, StepStatus::Success)),
            failed: has(StepStatus::Failure),
            warned: has(StepStatus::Warning),
        }
    }
}

/// The percentage of traces without a failure, with two decimals; 100 when there are none.
#[expect(clippy::cast_precision_loss, reason = "a percentage is approximate")]
pub(crate) fn success_rate(traces: i64, failed: i64) -> f64 {
    if traces <= 0 {
        return 100.0;
    }
    let share = (traces - failed) as f64 / traces as f64;
    (share * 10_000.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_end_beats_a_failure_beats_a_warning() {
        use ProcessStatus::{ProcessEnd, ProcessStart, Step};
        use StepStatus::{Failure, InProgress, Success, Warning};
        for (events, expect) in [
            (&[(ProcessStart, InProgress)][..], InProgress),
            (&[(Step, Success)], InProgress),
            (&[(Step, Warning), (Step, Success)], Warning),
            (&[(Step, Warning), (Step, Failure)], Failure),
            (&[(Step, Failure), (ProcessEnd, Failure)], Failure),
            (&[(ProcessEnd, Failure), (ProcessEnd, Success)], Success),
        ] {
            assert_eq!(TraceFacts::of(events).latest_status(), expect, "{events:?}");
        }
    }

    #[test]
    fn the_success_rate_has_two_decimals() {
        assert_eq!(success_rate(0, 0), 100.0);
        assert_eq!(success_rate(3, 1), 66.67);
        assert_eq!(success_rate(4, 4), 0.0);
    }
}
