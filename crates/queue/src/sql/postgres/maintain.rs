//! The registry of handlers, clean-up, and what operators do.

use std::time::Duration;

use sqlx::types::Uuid;
use sqlx::{PgConnection, Row};
use tidegate_core::EventId;
use tidegate_core::books::{Place, postings};
use tidegate_store::{posting, span_ms, sqlx};

use super::super::COMPONENT;
use super::super::columns::{REMOVED_AT_ONCE, REMOVING, unsigned};
use super::super::decode::OwnColumns;
use super::PostgresQueue;
use crate::QueueError;
use crate::port::{Cleaned, Registry};

/// Cursor rows that are kept; only the newest is read.
const CURSORS_KEPT: i64 = 1_000;

impl PostgresQueue {
    pub(super) async fn clean_up(
        &self,
        retention: Option<Duration>,
    ) -> Result<Cleaned, QueueError> {
        let states = self
            .postgres
            .run("clean up handler states", |connection| {
                Box::pin(clean_states(connection))
            })
            .await?;
        let mut events = 0;
        if let Some(retention) = retention {
            let (age, until) = (span_ms(retention), self.env.clock.elapsed() + REMOVING);
            loop {
                let round = self
                    .postgres
                    .transact("remove old events", move |connection| {
                        Box::pin(remove_old(connection, age))
                    });
                let round = round.await?;
                events += round;
                if round == 0 || self.env.clock.elapsed() >= until {
                    break;
                }
            }
        }
        let now = self.env.clock.now_ms();
        let postings = posting::fold(&self.store, COMPONENT, now).await?;
        Ok(Cleaned {
            states,
            events,
            postings,
        })
    }
}

pub(super) async fn register(
    connection: &mut PgConnection,
    types: Vec<String>,
    names: Vec<String>,
) -> Result<(), sqlx::Error> {
    let register = sqlx::query("SELECT tidegate_register($1, $2)");
    register.bind(types).bind(names).execute(connection).await?;
    Ok(())
}

pub(super) async fn unregister(
    connection: &mut PgConnection,
    type_name: String,
    handler: String,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "WITH gone AS (
             DELETE FROM event_handler WHERE type = $1 AND handler_id = $2
             RETURNING 1)
         UPDATE tidegate_queue SET registry = registry + 1
         WHERE name = 'queue' AND EXISTS (SELECT 1 FROM gone)",
    )
    .bind(type_name)
    .bind(handler)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn redrive(connection: &mut PgConnection, id: i64) -> Result<bool, sqlx::Error> {
    let given = sqlx::query_scalar("SELECT tidegate_give_back($1)").bind(id);
    let is_given: bool = given.fetch_one(&mut *connection).await?;
    Ok(is_given || hasten(connection, id).await?)
}

pub(super) async fn read_registry(connection: &mut PgConnection) -> Result<Registry, sqlx::Error> {
    // The outer join keeps the version when nobody is registered.
    let rows = sqlx::query(
        "SELECT q.registry, h.type, h.handler_id FROM tidegate_queue q
         LEFT JOIN event_handler h ON true WHERE q.name = 'queue'",
    )
    .fetch_all(connection)
    .await?;
    let mut registry = Registry::default();
    for row in rows {
        registry.version = unsigned(row.try_get(0)?);
        let (type_name, handler): (Option<String>, Option<String>) =
            (row.try_get(1)?, row.try_get(2)?);
        if let (Some(type_name), Some(handler)) = (type_name, handler) {
            registry
                .handlers
                .entry(type_name)
                .or_default()
                .insert(handler);
        }
    }
    Ok(registry)
}

async fn clean_states(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
    // Those of events with errors stay: giving such an event back asks only who failed.
    let done = sqlx::query(
        "DELETE FROM tidegate_handler_state s USING tidegate_log l
         WHERE l.id = s.id AND NOT l.is_failed",
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "UPDATE tidegate_queue SET states_cleaned_until = clock_timestamp()
         WHERE name = 'queue' AND states_cleaned_until <
             (SELECT max(finalized_at) FROM tidegate_log_batch
              WHERE id > (SELECT max(id) - 100 FROM tidegate_log_batch))",
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM tidegate_cursor WHERE id <
             (SELECT id - $1 FROM tidegate_cursor ORDER BY id DESC LIMIT 1)",
    )
    .bind(CURSORS_KEPT)
    .execute(&mut *connection)
    .await?;
    // No claim comes upon these any more: the cursor has passed them, and they are in no gap.
    sqlx::query(
        "DELETE FROM tidegate_canceled c
         WHERE c.id <= (SELECT position FROM tidegate_cursor ORDER BY id DESC LIMIT 1)
           AND NOT coalesce((SELECT g.last_id >= c.id FROM tidegate_gap g
               WHERE g.first_id <= c.id ORDER BY g.first_id DESC LIMIT 1), false)",
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Removes finalized events that are old enough and behind every projection, with a posting of
/// what was removed from where.
async fn remove_old(connection: &mut PgConnection, age_ms: i64) -> Result<u64, sqlx::Error> {
    // A statement of its own, so that the next one sees every position that was noted before.
    sqlx::query("SELECT pg_advisory_xact_lock(tidegate_lock('retention'))")
        .execute(&mut *connection)
        .await?;
    let rows = sqlx::query(
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
         RETURNING e.event_id, gone.is_failed",
    )
    .bind(age_ms)
    .bind(REMOVED_AT_ONCE)
    .fetch_all(&mut *connection)
    .await?;
    let named = rows.iter().map(|row| row.try_get(0));
    let named: Vec<Uuid> = named.collect::<Result<_, _>>()?;
    remove_guards(connection, named).await?;
    let (mut delivered, mut failed): (Vec<EventId>, Vec<EventId>) = (Vec::new(), Vec::new());
    for row in &rows {
        let is_failed: bool = row.try_get(1)?;
        let gone = if is_failed {
            &mut failed
        } else {
            &mut delivered
        };
        gone.push(row.event_id(0)?);
    }
    let mut written = postings(delivered, Some(Place::Delivered), None);
    written.extend(postings(failed, Some(Place::DeadLettered), None));
    posting::write_postgres(connection, COMPONENT, &written).await?;
    Ok(rows.len() as u64)
}

/// Removes the guards of events that are gone. Who published an id twice has it twice, and what guards one
/// of the two guards the other.
async fn remove_guards(connection: &mut PgConnection, gone: Vec<Uuid>) -> Result<(), sqlx::Error> {
    let guarded = "SELECT DISTINCT event_id FROM event_inbox WHERE event_id = ANY ($1)";
    let guarded: Vec<Uuid> = sqlx::query_scalar(guarded)
        .bind(gone)
        .fetch_all(&mut *connection)
        .await?;
    let (Some(first), Some(last)) = (guarded.iter().min(), guarded.iter().max()) else {
        return Ok(());
    };
    // Ids grow with time, so those between the first and the last are few, and found with one look into
    // the index; a look for each would read all of it each time.
    let twins: Vec<Uuid> = sqlx::query_scalar(
        "SELECT e.event_id FROM tidegate_event e JOIN unnest($3::uuid[]) g(id) ON g.id = e.event_id
         WHERE e.event_id BETWEEN $1 AND $2",
    )
    .bind(*first)
    .bind(*last)
    .bind(&guarded)
    .fetch_all(&mut *connection)
    .await?;
    sqlx::query("DELETE FROM event_inbox WHERE event_id = ANY ($1) AND event_id <> ALL ($2)")
        .bind(&guarded)
        .bind(twins)
        .execute(connection)
        .await?;
    Ok(())
}

/// Makes an event that waits for its next attempt due now. One that waits for an earlier event of its
/// key goes on waiting.
async fn hasten(connection: &mut PgConnection, id: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "UPDATE tidegate_event_row SET due_at = clock_timestamp()
         WHERE id = $1 AND locked_by IS NULL AND due_at > clock_timestamp()
           AND due_at < 'infinity'",
    )
    .bind(id)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}
