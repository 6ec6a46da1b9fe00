//! The registry of handlers, clean-up, and what operators do, on PostgreSQL.

use sqlx::PgConnection;
use sqlx::postgres::PgRow;
use tidegate_core::EventId;
use tidegate_store::sql::{OwnColumns, SqlConnection, SqlList};
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::super::columns::{REMOVED_AT_ONCE, canceled, errors_text};
use super::super::maintain::{MaintainStatements, removal_postings};

/// Cursor rows that are kept; only the newest is read.
const CURSORS_KEPT: i64 = 1_000;

impl MaintainStatements for PgConnection {
    async fn register(
        &mut self,
        handlers: Vec<(String, String)>,
        _now: i64,
    ) -> Result<(), sqlx::Error> {
        let (types, names): (Vec<String>, Vec<String>) = handlers.into_iter().unzip();
        let sql = "SELECT tidegate_register($1, $2)";
        let register = self.execute(sql, &[&SqlList(&types), &SqlList(&names)]);
        register.await.map(drop)
    }

    async fn unregister(
        &mut self,
        type_name: String,
        handler: String,
    ) -> Result<bool, sqlx::Error> {
        let sql = "WITH gone AS (
             DELETE FROM event_handler WHERE type = $1 AND handler_id = $2
             RETURNING 1)
         UPDATE tidegate_queue SET registry = registry + 1
         WHERE name = 'queue' AND EXISTS (SELECT 1 FROM gone)";
        Ok(self.execute(sql, &[&type_name, &handler]).await? > 0)
    }

    async fn clean_states(&mut self, _now: i64) -> Result<u64, sqlx::Error> {
        // Those of events with errors stay: giving such an event back asks only who failed.
        let sql = "DELETE FROM tidegate_handler_state s USING tidegate_log l
         WHERE l.id = s.id AND NOT l.is_failed";
        let states = self.execute(sql, &[]).await?;
        let sql = "UPDATE tidegate_queue SET states_cleaned_until = clock_timestamp()
         WHERE name = 'queue' AND states_cleaned_until <
             (SELECT max(finalized_at) FROM tidegate_log_batch
              WHERE id > (SELECT max(id) - 100 FROM tidegate_log_batch))";
        self.execute(sql, &[]).await?;
        let sql = "DELETE FROM tidegate_cursor WHERE id <
             (SELECT id - $1 FROM tidegate_cursor ORDER BY id DESC LIMIT 1)";
        self.execute(sql, &[&CURSORS_KEPT]).await?;
        // No claim comes upon these any more: the cursor has passed them, and they are in no gap.
        let sql = "DELETE FROM tidegate_canceled c
         WHERE c.id <= (SELECT position FROM tidegate_cursor ORDER BY id DESC LIMIT 1)
           AND NOT coalesce((SELECT g.last_id >= c.id FROM tidegate_gap g
               WHERE g.first_id <= c.id ORDER BY g.first_id DESC LIMIT 1), false)";
        self.execute(sql, &[]).await?;
        Ok(states)
    }

    async fn remove_old(&mut self, age_ms: i64, _now: i64) -> Result<u64, sqlx::Error> {
        // A statement of its own, so that the next one sees every position that was noted before.
        let sql = "SELECT pg_advisory_xact_lock(tidegate_lock('retention'))";
        self.execute(sql, &[]).await?;
        let sql =
            "WITH last AS (SELECT batch FROM tidegate_sequence ORDER BY position DESC LIMIT 1),
         groups AS MATERIALIZED (
             SELECT c.id, c.ids FROM (
                 SELECT o.id, o.ids, sum(o.count) OVER (ORDER BY o.id) - o.count AS events_before
                 FROM (
                     SELECT b.id, b.ids, s.count FROM tidegate_log_batch b
                     JOIN tidegate_sequence s ON s.batch = b.id
                     WHERE b.finalized_at < clock_timestamp() - $1 * interval '1 millisecond'
                       AND s.position + s.count - 1 <= coalesce(
                           (SELECT min(position) FROM event_projection), 9223372036854775807)
                     ORDER BY b.id LIMIT $2) o) c
             WHERE c.events_before < $2),
         old AS MATERIALIZED (
             SELECT l.id FROM groups g CROSS JOIN LATERAL unnest(g.ids) i(id)
             JOIN tidegate_log l ON l.id = i.id AND l.batch = g.id),
         -- Somebody may give an event back meanwhile: what is removed is what was still in the log.
         gone AS (
             DELETE FROM tidegate_log l USING old WHERE l.id = old.id
             RETURNING l.id, l.is_failed),
         stated AS (DELETE FROM tidegate_handler_state h USING gone WHERE h.id = gone.id),
         grouped AS (
             DELETE FROM tidegate_log_batch b USING groups g
             WHERE b.id = g.id AND b.id <> (SELECT batch FROM last)),
         positioned AS (
             DELETE FROM tidegate_sequence s USING groups g
             WHERE s.batch = g.id AND s.batch <> (SELECT batch FROM last))
         DELETE FROM tidegate_event e USING gone WHERE e.id = gone.id
         RETURNING e.event_id, gone.is_failed";
        let rows = self.rows(sql, &[&age_ms, &REMOVED_AT_ONCE]).await?;
        let removed = rows.iter().map(|row| Ok((row.event_id(0)?, row.get(1)?)));
        let removed: Vec<(EventId, bool)> = removed.collect::<Result<_, sqlx::Error>>()?;
        remove_guards(self, &event_ids(&rows)?).await?;
        posting::write_postgres(self, COMPONENT, &removal_postings(&removed)).await?;
        Ok(rows.len() as u64)
    }

    async fn redrive(&mut self, id: i64, _now: i64) -> Result<bool, sqlx::Error> {
        let sql = "SELECT tidegate_give_back($1)";
        if self.fetch_one(sql, &[&id]).await? {
            return Ok(true);
        }
        // One that waits for its next attempt is due now. One that waits for an earlier event of its key goes
        // on waiting.
        let sql = "UPDATE tidegate_event_row SET due_at = clock_timestamp()
            WHERE id = $1 AND locked_by IS NULL AND due_at > clock_timestamp()
              AND due_at < 'infinity'";
        Ok(self.execute(sql, &[&id]).await? > 0)
    }

    async fn cancel(&mut self, id: i64, _now: i64) -> Result<bool, sqlx::Error> {
        let sql = "SELECT tidegate_cancel($1, $2::jsonb)";
        self.fetch_one(sql, &[&id, &errors_text(&[canceled()])])
            .await
    }
}

fn event_ids(rows: &[PgRow]) -> Result<Vec<EventId>, sqlx::Error> {
    rows.iter().map(|row| row.event_id(0)).collect()
}

/// Removes the guards of events that are gone. Who published an id twice has it twice, and what guards one
/// of the two guards the other.
async fn remove_guards(db: &mut PgConnection, gone: &[EventId]) -> Result<(), sqlx::Error> {
    let sql = "SELECT DISTINCT event_id FROM event_inbox WHERE event_id = ANY ($1)";
    let guarded = event_ids(&db.rows(sql, &[&SqlList(gone)]).await?)?;
    let (Some(first), Some(last)) = (guarded.iter().min(), guarded.iter().max()) else {
        return Ok(());
    };
    // Ids grow with time, so those between the first and the last are few, and found with one look into
    // the index; a look for each would read all of it each time.
    let sql = "SELECT e.event_id FROM tidegate_event e
        JOIN unnest($3::uuid[]) g(id) ON g.id = e.event_id WHERE e.event_id BETWEEN $1 AND $2";
    let twins = db.rows(sql, &[first, last, &SqlList(&guarded)]).await?;
    let twins = event_ids(&twins)?;
    let sql = "DELETE FROM event_inbox WHERE event_id = ANY ($1) AND event_id <> ALL ($2)";
    db.execute(sql, &[&SqlList(&guarded), &SqlList(&twins)])
        .await?;
    Ok(())
}
