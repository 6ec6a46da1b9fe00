//! Listings, places, numbers and the recount, on PostgreSQL.

use sqlx::PgConnection;
use tidegate_core::books::Books;
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::super::inspect::InspectStatements;

/// The events that batches hold, as `i`. A batch goes on listing what left it, even what retention has
/// removed since; each event is looked up by itself, since there are few of them beside all events.
const IN_BATCHES: &str = "tidegate_batch b
    CROSS JOIN LATERAL unnest(tidegate_remaining(b.ids)) i(id)
    CROSS JOIN LATERAL (SELECT 1 FROM tidegate_event e WHERE e.id = i.id OFFSET 0) there";

impl InspectStatements for PgConnection {
    const QUEUE_COLUMNS: &'static str = "SELECT id, event_id, type, key, payload::text AS payload,
    headers::text AS headers, status, attempts, (extract(epoch FROM created_at) * 1000)::int8,
    (extract(epoch FROM next_attempt_at) * 1000)::int8, locked_by,
    (extract(epoch FROM locked_until) * 1000)::int8, NULL::int8, NULL::int8, '[]'
    FROM event_queue";
    const LOG_COLUMNS: &'static str = "SELECT id, event_id, type, key, payload::text AS payload,
    headers::text AS headers, status, attempts, (extract(epoch FROM created_at) * 1000)::int8,
    NULL::int8, NULL::text, NULL::int8, (extract(epoch FROM finalized_at) * 1000)::int8,
    position, errors::text FROM event_log";
    const SERVER_TIME: &'static str = "(extract(epoch FROM clock_timestamp()) * 1000)::int8";
    const IS_PARKED: &'static str = "r.due_at = 'infinity'";
    // Each table is held to the stretch by itself: none of them is read from its beginning.
    const RECOUNT: &'static str = "WITH logged AS MATERIALIZED (
                 SELECT id, batch, ordinal, is_failed FROM tidegate_log WHERE id BETWEEN $1 AND $2),
             -- What the groups list that have their positions or get them yet.
             listed AS MATERIALIZED (
                 SELECT b.id AS batch, i.id, i.n - 1 AS ordinal
                 FROM (SELECT DISTINCT batch FROM logged) d JOIN tidegate_log_batch b ON b.id = d.batch
                 CROSS JOIN LATERAL unnest(b.ids) WITH ORDINALITY i(id, n)
                 WHERE b.id > (SELECT sequenced_below FROM tidegate_queue WHERE name = 'queue')
                    OR EXISTS (SELECT 1 FROM tidegate_sequence s WHERE s.batch = b.id))
             SELECT e.event_id, l.is_failed, r.place, r.locked_by IS NOT NULL,
                 (e.id > (SELECT position FROM tidegate_cursor ORDER BY id DESC LIMIT 1)
                     OR coalesce((SELECT g.last_id >= e.id FROM tidegate_gap g
                         WHERE g.first_id <= e.id ORDER BY g.first_id DESC LIMIT 1), false))
                 AND NOT EXISTS (SELECT 1 FROM tidegate_canceled c WHERE c.id = e.id),
                 coalesce(b.lists, 0), l.id IS NOT NULL AND i.id IS NULL
             FROM tidegate_event e
             LEFT JOIN logged l ON l.id = e.id
             LEFT JOIN listed i ON i.id = l.id AND i.batch = l.batch AND i.ordinal = l.ordinal
             LEFT JOIN tidegate_event_row r ON r.id = e.id AND r.id BETWEEN $1 AND $2
             LEFT JOIN (SELECT i.id, count(*) AS lists FROM tidegate_batch b, unnest(b.ids) i(id)
                        WHERE i.id BETWEEN $1 AND $2 GROUP BY i.id) b ON b.id = e.id
             WHERE e.id BETWEEN $1 AND $2";

    fn oldest() -> String {
        // Each by the first entry of an index, or by what is in flight. Canceled events are looked up one
        // by one: joined, all events might be read for the first one.
        format!(
            "SELECT (extract(epoch FROM e.created_at) * 1000)::int8 FROM tidegate_event e
         WHERE e.id = least(
             (SELECT f.id FROM tidegate_event f
              WHERE f.id > (SELECT c.position FROM tidegate_cursor c ORDER BY c.id DESC LIMIT 1)
                AND (SELECT x.id FROM tidegate_canceled x WHERE x.id = f.id) IS NULL
              ORDER BY f.id LIMIT 1),
             (SELECT min(f.id) FROM tidegate_gap g CROSS JOIN LATERAL (
                  SELECT i.id FROM tidegate_event i WHERE i.id BETWEEN g.first_id AND g.last_id
                    AND (SELECT x.id FROM tidegate_canceled x WHERE x.id = i.id) IS NULL
                  ORDER BY i.id LIMIT 1) f),
             (SELECT min(i.id) FROM {IN_BATCHES}),
             (SELECT min(r.id) FROM tidegate_event_row r))"
        )
    }

    fn in_batches() -> String {
        IN_BATCHES.to_owned()
    }

    async fn counts(&mut self) -> Result<Books, sqlx::Error> {
        posting::counts_postgres(self, COMPONENT).await
    }

    async fn books(&mut self) -> Result<Books, sqlx::Error> {
        posting::books_postgres(self, COMPONENT).await
    }
}
