//! The registry of handlers, clean-up, and what operators do.

use std::time::Duration;

use sqlx::{Row, SqliteConnection};
use tidegate_core::EventId;
use tidegate_core::books::{Place, postings};
use tidegate_store::{posting, span_ms, sqlx};

use super::super::COMPONENT;
use super::super::columns::{REMOVED_AT_ONCE, REMOVING, canceled_errors, place_of, unsigned};
use super::super::decode::{OwnColumns, event_id};
use super::claim::{OPEN, release};
use super::{SqliteQueue, json};
use crate::QueueError;
use crate::port::{Cleaned, Lane, Registry, first_token};

impl SqliteQueue {
    pub(super) async fn clean_up(
        &self,
        retention: Option<Duration>,
    ) -> Result<Cleaned, QueueError> {
        let now = self.sqlite.now_ms();
        let states = self
            .sqlite
            .write("clean up handler states", move |connection| {
                Box::pin(clean_states(connection, now))
            })
            .await?;
        let mut events = 0;
        if let Some(retention) = retention {
            let before = now - span_ms(retention);
            let until = now + span_ms(REMOVING);
            loop {
                let round = self.sqlite.write("remove old events", move |connection| {
                    Box::pin(remove_old(connection, before))
                });
                let round = round.await?;
                events += round;
                if round == 0 || self.sqlite.now_ms() >= until {
                    break;
                }
            }
        }
        let postings = posting::fold(&self.store, COMPONENT, unsigned(now)).await?;
        // So that the file itself is never far behind its journal. The next time will do as well.
        if let Err(error) = self.sqlite.checkpoint().await {
            tracing::debug!(%error, "could not checkpoint; the journal stays");
        }
        Ok(Cleaned {
            states,
            events,
            postings,
        })
    }
}

pub(super) async fn register(
    connection: &mut SqliteConnection,
    handlers: Vec<(String, String)>,
    now: i64,
) -> Result<(), sqlx::Error> {
    let done = sqlx::query(
        "INSERT INTO event_handler (type, handler_id, registered_at)
         SELECT value ->> 0, value ->> 1, ?2 FROM json_each(?1)
         WHERE true ON CONFLICT DO NOTHING",
    )
    .bind(json(&handlers))
    .bind(now)
    .execute(&mut *connection)
    .await?;
    bump(connection, done.rows_affected() > 0).await
}

pub(super) async fn unregister(
    connection: &mut SqliteConnection,
    type_name: String,
    handler: String,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query("DELETE FROM event_handler WHERE type = ? AND handler_id = ?")
        .bind(type_name)
        .bind(handler)
        .execute(&mut *connection)
        .await?;
    let was_there = done.rows_affected() > 0;
    bump(connection, was_there).await?;
    Ok(was_there)
}

async fn bump(connection: &mut SqliteConnection, is_changed: bool) -> Result<(), sqlx::Error> {
    if is_changed {
        sqlx::query("UPDATE tidegate_queue SET registry = registry + 1 WHERE name = 'queue'")
            .execute(connection)
            .await?;
    }
    Ok(())
}

pub(super) async fn read_registry(
    connection: &mut SqliteConnection,
) -> Result<Registry, sqlx::Error> {
    let version: i64 =
        sqlx::query_scalar("SELECT registry FROM tidegate_queue WHERE name = 'queue'")
            .fetch_one(&mut *connection)
            .await?;
    let rows: Vec<(String, String)> = sqlx::query_as("SELECT type, handler_id FROM event_handler")
        .fetch_all(connection)
        .await?;
    let mut registry = Registry {
        version: unsigned(version),
        ..Registry::default()
    };
    for (type_name, handler) in rows {
        registry
            .handlers
            .entry(type_name)
            .or_default()
            .insert(handler);
    }
    Ok(registry)
}

async fn clean_states(connection: &mut SqliteConnection, now: i64) -> Result<u64, sqlx::Error> {
    // Those of events with errors stay: giving such an event back asks only who failed.
    let done = sqlx::query(
        "DELETE FROM tidegate_handler_state
         WHERE id IN (SELECT id FROM tidegate_log WHERE NOT is_failed)",
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query("UPDATE tidegate_queue SET states_cleaned_until = ? WHERE name = 'queue'")
        .bind(now)
        .execute(&mut *connection)
        .await?;
    // No claim comes upon these any more.
    sqlx::query(
        "DELETE FROM tidegate_canceled
         WHERE id <= (SELECT cursor FROM tidegate_queue WHERE name = 'queue')",
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Removes finalized events that are old enough and behind every projection, with a posting of
/// what was removed from where.
async fn remove_old(connection: &mut SqliteConnection, before: i64) -> Result<u64, sqlx::Error> {
    let groups: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM (
             SELECT id, sum(count) OVER (ORDER BY id) - count AS events_before FROM (
                 SELECT b.id, s.count FROM tidegate_log_batch b
                 JOIN tidegate_sequence s ON s.batch = b.id
                 WHERE b.finalized_at < ?1 AND s.position + s.count - 1 <=
                     coalesce((SELECT min(position) FROM event_projection), 9223372036854775807)
                 ORDER BY b.id LIMIT ?2))
         WHERE events_before < ?2",
    )
    .bind(before)
    .bind(REMOVED_AT_ONCE)
    .fetch_all(&mut *connection)
    .await?;
    let groups = json(&groups);
    let rows: Vec<(i64, String, bool)> = sqlx::query_as(
        "SELECT l.id, e.event_id, l.is_failed FROM tidegate_log_batch b, json_each(b.ids) i
         JOIN tidegate_log l ON l.id = i.value AND l.batch = b.id
         JOIN tidegate_event e ON e.id = l.id
         WHERE b.id IN (SELECT value FROM json_each(?))",
    )
    .bind(&groups)
    .fetch_all(&mut *connection)
    .await?;
    let ids: Vec<i64> = rows.iter().map(|(id, ..)| *id).collect();
    let ids = json(&ids);
    for sql in [
        "DELETE FROM tidegate_handler_state WHERE id IN (SELECT value FROM json_each(?))",
        "DELETE FROM tidegate_log WHERE id IN (SELECT value FROM json_each(?))",
        "DELETE FROM tidegate_event WHERE id IN (SELECT value FROM json_each(?))",
    ] {
        sqlx::query(sql)
            .bind(&ids)
            .execute(&mut *connection)
            .await?;
    }
    // Who published an id twice has it twice, and what guards one of the two guards the other.
    let named: Vec<&str> = rows.iter().map(|(_, event, _)| event.as_str()).collect();
    sqlx::query(
        "DELETE FROM event_inbox WHERE event_id IN (
             SELECT j.value FROM json_each(?) j
             WHERE NOT EXISTS (SELECT 1 FROM tidegate_event e WHERE e.event_id = j.value))",
    )
    .bind(json(&named))
    .execute(&mut *connection)
    .await?;
    for sql in [
        "DELETE FROM tidegate_log_batch WHERE id IN (SELECT value FROM json_each(?))
         AND id <> (SELECT batch FROM tidegate_sequence ORDER BY position DESC LIMIT 1)",
        "DELETE FROM tidegate_sequence WHERE batch IN (SELECT value FROM json_each(?))
         AND batch <> (SELECT batch FROM tidegate_sequence ORDER BY position DESC LIMIT 1)",
    ] {
        sqlx::query(sql)
            .bind(&groups)
            .execute(&mut *connection)
            .await?;
    }
    let of = |is_wanted: bool| -> Result<Vec<EventId>, sqlx::Error> {
        let wanted = rows
            .iter()
            .filter(|(.., is_failed)| *is_failed == is_wanted);
        wanted.map(|(_, id, _)| event_id(id)).collect()
    };
    let mut written = postings(of(false)?, Some(Place::Delivered), None);
    written.extend(postings(of(true)?, Some(Place::DeadLettered), None));
    posting::write_sqlite(connection, COMPONENT, &written).await?;
    Ok(rows.len() as u64)
}

pub(super) async fn redrive(
    connection: &mut SqliteConnection,
    id: i64,
    now: i64,
) -> Result<bool, sqlx::Error> {
    let attempts: Option<i64> = sqlx::query_scalar(
        "DELETE FROM tidegate_log WHERE id = ? AND is_failed RETURNING attempts",
    )
    .bind(id)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(attempts) = attempts else {
        return hasten(connection, id, now).await;
    };
    sqlx::query("DELETE FROM tidegate_handler_state WHERE id = ? AND result <> 'SUCCESS'")
        .bind(id)
        .execute(&mut *connection)
        .await?;
    let done: Vec<String> =
        sqlx::query_scalar("SELECT handler_id FROM tidegate_handler_state WHERE id = ?")
            .bind(id)
            .fetch_all(&mut *connection)
            .await?;
    let row = sqlx::query("SELECT event_id, type, key FROM tidegate_event WHERE id = ?")
        .bind(id)
        .fetch_one(&mut *connection)
        .await?;
    let type_name = row.shown(1)?.unwrap_or_default();
    let registry = read_registry(connection).await?;
    let wanted = registry
        .of(&type_name)
        .filter(|h| !done.iter().any(|d| d == h));
    let lane = Lane::new(&type_name, wanted);
    let key = row.shown(2)?;
    // One with a key waits for its turn, like another.
    sqlx::query(
        "INSERT INTO tidegate_event_row (id, lane, key, place, attempts, token, due_at, updated_at)
         VALUES (?1, ?2, ?3, 'queued', ?4, ?7, ?6, ?5)",
    )
    .bind(id)
    .bind(lane.to_string())
    .bind(&key)
    .bind(attempts)
    .bind(now)
    .bind(key.is_none().then_some(now))
    .bind(first_token(now))
    .execute(&mut *connection)
    .await?;
    let event_id = row.event_id(0)?;
    let written = postings([event_id], Some(Place::DeadLettered), Some(Place::Queued));
    posting::write_sqlite(connection, COMPONENT, &written).await?;
    release(connection, key.as_slice(), now).await?;
    Ok(true)
}

/// Makes an event that waits for its next attempt due now. One that waits for an earlier event of its
/// key goes on waiting.
async fn hasten(connection: &mut SqliteConnection, id: i64, now: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "UPDATE tidegate_event_row SET due_at = ?2, updated_at = ?2
         WHERE id = ?1 AND locked_by IS NULL AND due_at > ?2",
    )
    .bind(id)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn cancel(
    connection: &mut SqliteConnection,
    id: i64,
    now: i64,
) -> Result<bool, sqlx::Error> {
    let row: Option<(String, i64, Option<String>)> = sqlx::query_as(
        "DELETE FROM tidegate_event_row WHERE id = ? AND (locked_by IS NULL OR due_at < ?)
         RETURNING place, attempts, key",
    )
    .bind(id)
    .bind(now)
    .fetch_optional(&mut *connection)
    .await?;
    let row = match row {
        Some((place, attempts, key)) => Some((place_of(&place), attempts, key)),
        None => abandoned(connection, id, now).await?,
    };
    let (place, attempts, key) = match row {
        Some(row) => row,
        None => {
            let waits = sqlx::query(
                "INSERT INTO tidegate_canceled SELECT id FROM event_queue
                 WHERE id = ? AND status = 'PENDING'",
            )
            .bind(id)
            .execute(&mut *connection)
            .await?;
            if waits.rows_affected() == 0 {
                return Ok(false);
            }
            (Place::Queued, 0, None)
        }
    };
    let text: String = sqlx::query_scalar("SELECT event_id FROM tidegate_event WHERE id = ?")
        .bind(id)
        .fetch_one(&mut *connection)
        .await?;
    let event = (id, event_id(&text)?);
    finish_failed(connection, event, place, attempts, &canceled_errors(), now).await?;
    release(connection, key.as_slice(), now).await?;
    Ok(true)
}

/// Where an event is, how often it was claimed and its key, where its batch's lease is over: it is nobody's,
/// and once it is in the log it has left the batch.
async fn abandoned(
    connection: &mut SqliteConnection,
    id: i64,
    now: i64,
) -> Result<Option<(Place, i64, Option<String>)>, sqlx::Error> {
    let sql = format!(
        "SELECT b.attempts, e.key FROM tidegate_batch b, json_each(b.ids) i
         JOIN tidegate_event e ON e.id = i.value
         WHERE i.value = ? AND b.locked_until < ? AND {OPEN}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id)
        .bind(now)
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let key = row.shown(1)?;
    Ok(Some((Place::Queued, row.try_get(0)?, key)))
}

/// Ends one event with these errors, in a group of its own.
pub(super) async fn finish_failed(
    connection: &mut SqliteConnection,
    (id, event_id): (i64, EventId),
    from: Place,
    attempts: i64,
    errors: &str,
    now: i64,
) -> Result<(), sqlx::Error> {
    let batch: i64 = sqlx::query_scalar(
        "INSERT INTO tidegate_log_batch (finalized_at, ids) VALUES (?, ?) RETURNING id",
    )
    .bind(now)
    .bind(json(&[id]))
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO tidegate_log (id, batch, ordinal, attempts, is_failed, errors)
         VALUES (?, ?, 0, ?, true, ?)",
    )
    .bind(id)
    .bind(batch)
    .bind(attempts)
    .bind(errors)
    .execute(&mut *connection)
    .await?;
    let written = postings([event_id], Some(from), Some(Place::DeadLettered));
    posting::write_sqlite(connection, COMPONENT, &written).await
}
