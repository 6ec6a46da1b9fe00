//! Asks the API whether it has every event that a logger accepted, once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_core::EventId;

use super::failed;
use super::service::SeenEvents;
use crate::report::ErrorReport;

/// Events of one page. The business cases of the demo have far fewer.
const PAGE: usize = 500;
const LIMIT: Duration = Duration::from_secs(10);

/// The events that the API has.
#[derive(Debug, Default)]
pub(super) struct StoredEvents {
    /// All events in its store.
    pub(super) total: i64,
    /// Those of the business cases that were asked for.
    pub(super) seen: SeenEvents,
    /// The id of one event of each business case.
    pub(super) ids: BTreeMap<String, EventId>,
    /// Ids that two events have.
    pub(super) shared_ids: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    total_events: i64,
}

#[derive(Deserialize)]
struct Page {
    events: Vec<StoredCase>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredCase {
    event_id: EventId,
    correlation_id: String,
    #[serde(default)]
    span_id: String,
}

/// Reads the events of these business cases.
pub(super) async fn read(
    client: &reqwest::Client,
    url: &str,
    accepted: &SeenEvents,
) -> Result<StoredEvents, ErrorReport> {
    let stats: Stats = get(client, &format!("{url}/v1/dashboard/stats")).await?;
    let mut stored = StoredEvents {
        total: stats.total_events,
        ..StoredEvents::default()
    };
    let cases: BTreeSet<&String> = accepted.keys().map(|(case, _)| case).collect();
    let mut ids = BTreeSet::new();
    for case in cases {
        let page = format!("{url}/v1/events/correlation/{case}?pageSize={PAGE}");
        let page: Page = get(client, &page).await?;
        for event in page.events {
            stored.shared_ids += u64::from(!ids.insert(event.event_id));
            stored.ids.insert(case.clone(), event.event_id);
            let key = (event.correlation_id, event.span_id);
            *stored.seen.entry(key).or_default() += 1;
        }
    }
    Ok(stored)
}

/// Events that were accepted and are not stored, and stored ones beyond those that were accepted.
pub(super) fn compare(accepted: &SeenEvents, stored: &SeenEvents) -> (u64, u64) {
    let beyond = |these: &SeenEvents, those: &SeenEvents| {
        let counts = these.iter().map(|(key, count)| {
            let other = those.get(key).copied().unwrap_or_default();
            count.saturating_sub(other)
        });
        counts.sum()
    };
    (beyond(accepted, stored), beyond(stored, accepted))
}

async fn get<T: DeserializeOwned>(client: &reqwest::Client, url: &str) -> Result<T, ErrorReport> {
    let asked = async {
        let answer = client.get(url).timeout(LIMIT).send().await?;
        answer.error_for_status()?.json().await
    };
    let answer = asked.await;
    answer.map_err(|error| failed("the Event Log API does not answer", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(counts: &[(&str, u64)]) -> SeenEvents {
        let of = |&(span, count): &(&str, u64)| (("a".to_owned(), span.to_owned()), count);
        counts.iter().map(of).collect()
    }

    #[test]
    fn a_missing_event_and_a_doubled_one_do_not_make_up_for_each_other() {
        let accepted = events(&[("1", 1), ("2", 1), ("3", 2)]);
        assert_eq!(compare(&accepted, &accepted), (0, 0));
        assert_eq!(compare(&accepted, &events(&[("1", 2), ("3", 2)])), (1, 1));
        assert_eq!(
            compare(&accepted, &events(&[("1", 1), ("2", 1), ("3", 1)])),
            (1, 0)
        );
        assert_eq!(compare(&events(&[]), &accepted), (0, 4));
    }
}
