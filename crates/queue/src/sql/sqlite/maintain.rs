//! The registry of handlers, clean-up, and what operators do, on SQLite.

use sqlx::{AssertSqlSafe, SqliteConnection};
use tidegate_core::EventId;
use tidegate_core::books::{Place, postings};
use tidegate_store::sql::{OwnColumns, SqlConnection, SqlList, event_id};
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::super::columns::{REMOVED_AT_ONCE, canceled, errors_text, place_of};
use super::super::maintain::{MaintainStatements, read_registry, removal_postings};
use super::claim::{OPEN, release};
use super::json;
use crate::port::{Lane, first_token};

impl MaintainStatements for SqliteConnection {
    async fn register(
        &mut self,
        handlers: Vec<(String, String)>,
        now: i64,
    ) -> Result<(), sqlx::Error> {
        let sql = "INSERT INTO event_handler (type, handler_id, registered_at)
         SELECT value ->> 0, value ->> 1, ?2 FROM json_each(?1)
         WHERE true ON CONFLICT DO NOTHING";
        let added = self.execute(sql, &[&json(&handlers), &now]).await?;
        bump(self, added > 0).await
    }

    async fn unregister(
        &mut self,
        type_name: String,
        handler: String,
    ) -> Result<bool, sqlx::Error> {
        let sql = "DELETE FROM event_handler WHERE type = ? AND handler_id = ?";
        let was_there = self.execute(sql, &[&type_name, &handler]).await? > 0;
        bump(self, was_there).await?;
        Ok(was_there)
    }

    async fn clean_states(&mut self, now: i64) -> Result<u64, sqlx::Error> {
        // Those of events with errors stay: giving such an event back asks only who failed.
        let sql = "DELETE FROM tidegate_handler_state
         WHERE id IN (SELECT id FROM tidegate_log WHERE NOT is_failed)";
        let states = self.execute(sql, &[]).await?;
        let sql = "UPDATE tidegate_queue SET states_cleaned_until = ? WHERE name = 'queue'";
        self.execute(sql, &[&now]).await?;
        // No claim comes upon these any more.
        let sql = "DELETE FROM tidegate_canceled
         WHERE id <= (SELECT cursor FROM tidegate_queue WHERE name = 'queue')";
        self.execute(sql, &[]).await?;
        Ok(states)
    }

    async fn remove_old(&mut self, age_ms: i64, now: i64) -> Result<u64, sqlx::Error> {
        let before = now - age_ms;
        let sql = "SELECT id FROM (
             SELECT id, sum(count) OVER (ORDER BY id) - count AS events_before FROM (
                 SELECT b.id, s.count FROM tidegate_log_batch b
                 JOIN tidegate_sequence s ON s.batch = b.id
                 WHERE b.finalized_at < ?1 AND s.position + s.count - 1 <=
                     coalesce((SELECT min(position) FROM event_projection), 9223372036854775807)
                 ORDER BY b.id LIMIT ?2))
         WHERE events_before < ?2";
        let groups: Vec<i64> = self.fetch_all(sql, &[&before, &REMOVED_AT_ONCE]).await?;
        let sql =
            "SELECT l.id, e.event_id, l.is_failed FROM tidegate_log_batch b, json_each(b.ids) i
         JOIN tidegate_log l ON l.id = i.value AND l.batch = b.id
         JOIN tidegate_event e ON e.id = l.id
         WHERE b.id IN (SELECT value FROM json_each(?))";
        let rows: Vec<(i64, String, bool)> = self.fetch_all(sql, &[&SqlList(&groups)]).await?;
        let ids: Vec<i64> = rows.iter().map(|(id, ..)| *id).collect();
        let removed = rows
            .iter()
            .map(|(_, event, is_failed)| Ok((event_id(event)?, *is_failed)));
        let removed: Vec<(EventId, bool)> = removed.collect::<Result<_, sqlx::Error>>()?;
        for sql in [
            "DELETE FROM tidegate_handler_state WHERE id IN (SELECT value FROM json_each(?))",
            "DELETE FROM tidegate_log WHERE id IN (SELECT value FROM json_each(?))",
            "DELETE FROM tidegate_event WHERE id IN (SELECT value FROM json_each(?))",
        ] {
            self.execute(sql, &[&SqlList(&ids)]).await?;
        }
        // Who published an id twice has it twice, and what guards one of the two guards the other.
        let named: Vec<&str> = rows.iter().map(|(_, event, _)| event.as_str()).collect();
        let sql = "DELETE FROM event_inbox WHERE event_id IN (
             SELECT j.value FROM json_each(?) j
             WHERE NOT EXISTS (SELECT 1 FROM tidegate_event e WHERE e.event_id = j.value))";
        self.execute(sql, &[&json(&named)]).await?;
        for sql in [
            "DELETE FROM tidegate_log_batch WHERE id IN (SELECT value FROM json_each(?))
         AND id <> (SELECT batch FROM tidegate_sequence ORDER BY position DESC LIMIT 1)",
            "DELETE FROM tidegate_sequence WHERE batch IN (SELECT value FROM json_each(?))
         AND batch <> (SELECT batch FROM tidegate_sequence ORDER BY position DESC LIMIT 1)",
        ] {
            self.execute(sql, &[&SqlList(&groups)]).await?;
        }
        posting::write_sqlite(self, COMPONENT, &removal_postings(&removed)).await?;
        Ok(removed.len() as u64)
    }

    async fn redrive(&mut self, id: i64, now: i64) -> Result<bool, sqlx::Error> {
        let sql = "DELETE FROM tidegate_log WHERE id = ? AND is_failed RETURNING attempts";
        let attempts: Option<i64> = self.fetch_optional(sql, &[&id]).await?;
        let Some(attempts) = attempts else {
            return hasten(self, id, now).await;
        };
        let sql = "DELETE FROM tidegate_handler_state WHERE id = ? AND result <> 'SUCCESS'";
        self.execute(sql, &[&id]).await?;
        let sql = "SELECT handler_id FROM tidegate_handler_state WHERE id = ?";
        let done: Vec<String> = self.fetch_all(sql, &[&id]).await?;
        let sql = "SELECT event_id, type, key FROM tidegate_event WHERE id = ?";
        let row = self.one_row(sql, &[&id]).await?;
        let type_name = row.shown(1)?.unwrap_or_default();
        let registry = read_registry(self).await?;
        let wanted = registry
            .of(&type_name)
            .filter(|h| !done.iter().any(|d| d == h));
        let lane = Lane::new(&type_name, wanted);
        let key = row.shown(2)?;
        // One with a key waits for its turn, like another.
        let sql =
        "INSERT INTO tidegate_event_row (id, lane, key, place, attempts, token, due_at, updated_at)
         VALUES (?1, ?2, ?3, 'queued', ?4, ?7, ?6, ?5)";
        self.execute(
            sql,
            &[
                &id,
                &lane.to_string(),
                &key,
                &attempts,
                &now,
                &key.is_none().then_some(now),
                &first_token(now),
            ],
        )
        .await?;
        let event_id = row.event_id(0)?;
        let written = postings([event_id], Some(Place::DeadLettered), Some(Place::Queued));
        posting::write_sqlite(self, COMPONENT, &written).await?;
        release(self, key.as_slice(), now).await?;
        Ok(true)
    }

    async fn cancel(&mut self, id: i64, now: i64) -> Result<bool, sqlx::Error> {
        let sql =
            "DELETE FROM tidegate_event_row WHERE id = ? AND (locked_by IS NULL OR due_at < ?)
         RETURNING place, attempts, key";
        let row: Option<(String, i64, Option<String>)> =
            self.fetch_optional(sql, &[&id, &now]).await?;
        let row = match row {
            Some((place, attempts, key)) => Some((place_of(&place), attempts, key)),
            None => abandoned(self, id, now).await?,
        };
        let (place, attempts, key) = match row {
            Some(row) => row,
            None => {
                let sql = "INSERT INTO tidegate_canceled SELECT id FROM event_queue
                 WHERE id = ? AND status = 'PENDING'";
                if self.execute(sql, &[&id]).await? == 0 {
                    return Ok(false);
                }
                (Place::Queued, 0, None)
            }
        };
        let sql = "SELECT event_id FROM tidegate_event WHERE id = ?";
        let text: String = self.fetch_one(sql, &[&id]).await?;
        let event = (id, event_id(&text)?);
        finish_failed(
            self,
            event,
            place,
            attempts,
            &errors_text(&[canceled()]),
            now,
        )
        .await?;
        release(self, key.as_slice(), now).await?;
        Ok(true)
    }
}

async fn bump(db: &mut SqliteConnection, is_changed: bool) -> Result<(), sqlx::Error> {
    if is_changed {
        let sql = "UPDATE tidegate_queue SET registry = registry + 1 WHERE name = 'queue'";
        db.execute(sql, &[]).await?;
    }
    Ok(())
}

/// Makes an event that waits for its next attempt due now. One that waits for an earlier event of its
/// key goes on waiting.
async fn hasten(db: &mut SqliteConnection, id: i64, now: i64) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE tidegate_event_row SET due_at = ?2, updated_at = ?2
         WHERE id = ?1 AND locked_by IS NULL AND due_at > ?2";
    Ok(db.execute(sql, &[&id, &now]).await? > 0)
}

/// Where an event is, how often it was claimed and its key, where its batch's lease is over: it is nobody's,
/// and once it is in the log it has left the batch.
async fn abandoned(
    db: &mut SqliteConnection,
    id: i64,
    now: i64,
) -> Result<Option<(Place, i64, Option<String>)>, sqlx::Error> {
    let sql = format!(
        "SELECT b.attempts, e.key FROM tidegate_batch b, json_each(b.ids) i
         JOIN tidegate_event e ON e.id = i.value
         WHERE i.value = ? AND b.locked_until < ? AND {OPEN}"
    );
    let row = db.first_row(AssertSqlSafe(sql), &[&id, &now]).await?;
    let found = row.map(|row| Ok((Place::Queued, row.get(0)?, row.shown(1)?)));
    found.transpose()
}

/// Ends one event with these errors, in a group of its own.
pub(super) async fn finish_failed(
    db: &mut SqliteConnection,
    (id, event_id): (i64, EventId),
    from: Place,
    attempts: i64,
    errors: &str,
    now: i64,
) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO tidegate_log_batch (finalized_at, ids) VALUES (?, ?) RETURNING id";
    let batch: i64 = db.fetch_one(sql, &[&now, &SqlList(&[id])]).await?;
    let sql = "INSERT INTO tidegate_log (id, batch, ordinal, attempts, is_failed, errors)
         VALUES (?, ?, 0, ?, true, ?)";
    db.execute(sql, &[&id, &batch, &attempts, &errors]).await?;
    let written = postings([event_id], Some(from), Some(Place::DeadLettered));
    posting::write_sqlite(db, COMPONENT, &written).await
}
