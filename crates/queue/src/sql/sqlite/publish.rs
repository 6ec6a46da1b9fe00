//! Adding events.

use serde::Serialize;
use sqlx::SqliteConnection;
use tidegate_core::EventId;
use tidegate_core::books::{Place, postings};
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::{SqliteQueue, json};
use crate::event::{NewEvent, headers_text};
use crate::{QueueError, limit};

#[derive(Serialize)]
struct Row<'a> {
    i: EventId,
    t: &'a str,
    k: Option<&'a str>,
    p: &'a str,
    h: Option<String>,
}

impl SqliteQueue {
    pub(super) async fn publish_own(&self, events: &[NewEvent]) -> Result<Vec<i64>, QueueError> {
        limit::check_events(events)?;
        let (events, now) = (events.to_vec(), self.sqlite.now_ms());
        let ids = self
            .sqlite
            .write("publish events", move |connection| {
                Box::pin(async move { insert(connection, &events, now).await })
            })
            .await?;
        Ok(ids)
    }
}

pub(in crate::sql) async fn insert(
    connection: &mut SqliteConnection,
    events: &[NewEvent],
    now: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let rows = events.iter().map(|event| Row {
        i: event.event_id,
        t: &event.type_name,
        k: event.key.as_deref(),
        p: &event.payload,
        h: headers_text(&event.headers),
    });
    let rows: Vec<Row<'_>> = rows.collect();
    let mut ids: Vec<i64> = sqlx::query_scalar(
        "INSERT INTO tidegate_event (event_id, created_at, type, key, payload, headers)
         SELECT value ->> 'i', ?2, value ->> 't', value ->> 'k', value ->> 'p', value ->> 'h'
         FROM json_each(?1) WHERE true RETURNING id",
    )
    .bind(json(&rows))
    .bind(now)
    .fetch_all(&mut *connection)
    .await?;
    // Numbers are given out in the order of the list.
    ids.sort_unstable();
    let written = postings(events.iter().map(|e| e.event_id), None, Some(Place::Queued));
    posting::write_sqlite(connection, COMPONENT, &written).await?;
    Ok(ids)
}
