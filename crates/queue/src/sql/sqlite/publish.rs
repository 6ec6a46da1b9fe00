//! Adding events.

use serde::Serialize;
use sqlx::SqliteConnection;
use tidegate_core::EventId;
use tidegate_core::books::{Place, postings};
use tidegate_store::sql::SqlConnection;
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::json;
use crate::event::{NewEvent, headers_text};

#[derive(Serialize)]
struct Row<'a> {
    i: EventId,
    t: &'a str,
    k: Option<&'a str>,
    p: &'a str,
    h: Option<String>,
}

pub(super) async fn insert(
    db: &mut SqliteConnection,
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
    let sql = "INSERT INTO tidegate_event (event_id, created_at, type, key, payload, headers)
         SELECT value ->> 'i', ?2, value ->> 't', value ->> 'k', value ->> 'p', value ->> 'h'
         FROM json_each(?1) WHERE true RETURNING id";
    let mut ids: Vec<i64> = db.fetch_all(sql, &[&json(&rows), &now]).await?;
    // Numbers are given out in the order of the list.
    ids.sort_unstable();
    let written = postings(events.iter().map(|e| e.event_id), None, Some(Place::Queued));
    posting::write_sqlite(db, COMPONENT, &written).await?;
    Ok(ids)
}
