//! Listings, places, numbers and the recount, on SQLite.

use sqlx::SqliteConnection;
use tidegate_core::books::Books;
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::super::inspect::InspectStatements;
use super::claim::UNFINISHED;

/// The events that batches list, as `i`, without those that retention has removed since.
const IN_BATCHES: &str =
    "tidegate_batch b, json_each(b.ids) i JOIN tidegate_event there ON there.id = i.value";

impl InspectStatements for SqliteConnection {
    const QUEUE_COLUMNS: &'static str =
        "SELECT id, event_id, type, key, payload, headers, status, attempts,
    created_at, next_attempt_at, locked_by, locked_until, NULL, NULL, '[]' FROM event_queue";
    const LOG_COLUMNS: &'static str =
        "SELECT id, event_id, type, key, payload, headers, status, attempts,
    created_at, NULL, NULL, NULL, finalized_at, position, errors FROM event_log";
    const SERVER_TIME: &'static str = "NULL";
    const IS_PARKED: &'static str = "r.due_at IS NULL";
    // The groups list events that have their positions or get them yet. Those follow the last one that has.
    const RECOUNT: &'static str = "WITH listed AS MATERIALIZED (
                 SELECT b.id AS batch, i.value AS id, i.key AS ordinal
                 FROM tidegate_log_batch b, json_each(b.ids) i
                 WHERE b.id IN (SELECT batch FROM tidegate_log WHERE id BETWEEN ?1 AND ?2)
                   AND (b.id > coalesce((SELECT max(s.batch) FROM tidegate_sequence s), 0)
                        OR b.id IN (SELECT s.batch FROM tidegate_sequence s)))
             SELECT e.event_id, l.is_failed, r.place, r.locked_by IS NOT NULL,
                 e.id > (SELECT cursor FROM tidegate_queue WHERE name = 'queue')
                     AND e.id NOT IN (SELECT id FROM tidegate_canceled),
                 coalesce(b.lists, 0), l.id IS NOT NULL AND i.id IS NULL
             FROM tidegate_event e
             LEFT JOIN tidegate_log l ON l.id = e.id
             LEFT JOIN listed i ON i.id = l.id AND i.batch = l.batch AND i.ordinal = l.ordinal
             LEFT JOIN tidegate_event_row r ON r.id = e.id
             LEFT JOIN (SELECT i.value AS id, count(*) AS lists
                        FROM tidegate_batch b, json_each(b.ids) i
                        WHERE i.value BETWEEN ?1 AND ?2 GROUP BY i.value) b ON b.id = e.id
             WHERE e.id BETWEEN ?1 AND ?2";

    fn oldest() -> String {
        // Each by the first entry of an index, or by what is in flight.
        format!(
            "SELECT e.created_at FROM tidegate_event e WHERE e.id = (SELECT min(id) FROM (
             SELECT * FROM (
                 SELECT f.id FROM tidegate_event f
                 WHERE f.id > (SELECT q.cursor FROM tidegate_queue q WHERE q.name = 'queue')
                   AND NOT EXISTS (SELECT 1 FROM tidegate_canceled x WHERE x.id = f.id)
                 ORDER BY f.id LIMIT 1)
             UNION ALL
             SELECT i.value FROM {IN_BATCHES} WHERE {UNFINISHED}
             UNION ALL
             SELECT min(r.id) FROM tidegate_event_row r))"
        )
    }

    fn in_batches() -> String {
        format!("{IN_BATCHES} WHERE {UNFINISHED}")
    }

    async fn counts(&mut self) -> Result<Books, sqlx::Error> {
        posting::counts_sqlite(self, COMPONENT).await
    }

    async fn books(&mut self) -> Result<Books, sqlx::Error> {
        posting::books_sqlite(self, COMPONENT).await
    }
}
