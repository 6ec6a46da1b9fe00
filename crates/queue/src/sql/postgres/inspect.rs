//! What can be seen from outside: listings, places, numbers, the recount.

use sqlx::{AssertSqlSafe, PgConnection};
use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::super::columns::place_of;
use super::super::decode::{QueueRow, sighting};
use super::super::stats::{StatsFacts, unwanted};
use super::uuid;
use crate::port::{
    EventFilter, HandlerState, ListedEvent, QueueLocation, QueueRecount, QueueStats, QueueStatus,
};
use crate::recount::Count;

/// Numbers that one step of a recount covers.
const COUNTED_AT_ONCE: i64 = 50_000;

/// The events that batches hold, as `i`. A batch goes on listing what left it, even what retention has
/// removed since; each event is looked up by itself, since there are few of them beside all events.
const IN_BATCHES: &str = "tidegate_batch b
    CROSS JOIN LATERAL unnest(tidegate_remaining(b.ids)) i(id)
    CROSS JOIN LATERAL (SELECT 1 FROM tidegate_event e WHERE e.id = i.id OFFSET 0) there";

const QUEUE_COLUMNS: &str = "SELECT id, event_id, type, key, payload::text AS payload,
    headers::text AS headers, status, attempts, (extract(epoch FROM created_at) * 1000)::int8,
    (extract(epoch FROM next_attempt_at) * 1000)::int8, locked_by,
    (extract(epoch FROM locked_until) * 1000)::int8, NULL::int8, NULL::int8, '[]'
    FROM event_queue";
const LOG_COLUMNS: &str = "SELECT id, event_id, type, key, payload::text AS payload,
    headers::text AS headers, status, attempts, (extract(epoch FROM created_at) * 1000)::int8,
    NULL::int8, NULL::text, NULL::int8, (extract(epoch FROM finalized_at) * 1000)::int8,
    position, errors::text FROM event_log";

pub(super) async fn list(
    connection: &mut PgConnection,
    filter: EventFilter,
) -> Result<Vec<ListedEvent>, sqlx::Error> {
    let columns = match filter.status {
        Some(QueueStatus::Completed | QueueStatus::CompletedWithErrors) => LOG_COLUMNS,
        Some(QueueStatus::Pending | QueueStatus::Processing) | None => QUEUE_COLUMNS,
    };
    let sql = format!(
        "{columns} WHERE ($1::text IS NULL OR status = $1)
         AND ($2::text IS NULL OR type = $2) AND id > $3 ORDER BY id LIMIT $4"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(filter.status.map(QueueStatus::as_str))
        .bind(filter.type_name)
        .bind(filter.after)
        .bind(i64::from(filter.limit))
        .fetch_all(connection)
        .await?;
    rows.iter().map(QueueRow::listed).collect()
}

pub(super) async fn show(
    connection: &mut PgConnection,
    id: i64,
) -> Result<Option<ListedEvent>, sqlx::Error> {
    for columns in [QUEUE_COLUMNS, LOG_COLUMNS] {
        let row = sqlx::query(AssertSqlSafe(format!("{columns} WHERE id = $1")))
            .bind(id)
            .fetch_optional(&mut *connection)
            .await?;
        if let Some(row) = row {
            let mut shown = row.listed()?;
            shown.states = states(connection, id).await?;
            return Ok(Some(shown));
        }
    }
    Ok(None)
}

async fn states(connection: &mut PgConnection, id: i64) -> Result<Vec<HandlerState>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT handler_id, result, attempts, error FROM event_handler_state WHERE id = $1
         ORDER BY handler_id",
    )
    .bind(id)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| row.handler_state(0)).collect()
}

pub(super) async fn find(
    connection: &mut PgConnection,
    event: EventId,
) -> Result<Option<QueueLocation>, sqlx::Error> {
    let ids: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM tidegate_event WHERE event_id = $1 ORDER BY id")
            .bind(uuid(event))
            .fetch_all(&mut *connection)
            .await?;
    let mut found = None;
    for id in &ids {
        let sighting = sight(connection, *id).await?;
        let is_open = sighting.as_ref().is_some_and(|seen| !seen.is_finalized());
        found = sighting.or(found);
        if is_open {
            break;
        }
    }
    Ok(found.map(|seen| seen.among(&ids)))
}

async fn sight(
    connection: &mut PgConnection,
    id: i64,
) -> Result<Option<QueueLocation>, sqlx::Error> {
    let Some(shown) = show(connection, id).await? else {
        return Ok(None);
    };
    let row: Option<String> =
        sqlx::query_scalar("SELECT place FROM tidegate_event_row WHERE id = $1")
            .bind(id)
            .fetch_optional(connection)
            .await?;
    Ok(Some(sighting(shown, row.as_deref())))
}

pub(super) async fn stats(connection: &mut PgConnection) -> Result<QueueStats, sqlx::Error> {
    let books = posting::counts_postgres(connection, COMPONENT).await?;
    let claimed = claimed(connection).await?;
    // Each by the first entry of an index, or by what is in flight. Canceled events are looked up one
    // by one: joined, all events might be read for the first one.
    let sql = format!(
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
    );
    let oldest_ms = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_optional(&mut *connection)
        .await?;
    let (now_ms, handler_states, head): (i64, i64, i64) = sqlx::query_as(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8,
             (SELECT count(*) FROM tidegate_handler_state),
             coalesce((SELECT position + count - 1 FROM tidegate_sequence
                 ORDER BY position DESC LIMIT 1), 0)",
    )
    .fetch_one(&mut *connection)
    .await?;
    let projections = sqlx::query_as("SELECT name, position FROM event_projection")
        .fetch_all(&mut *connection)
        .await?;
    let lanes = unwanted(super::claim::lanes(connection).await?);
    let unwanted = sqlx::query_as(
        "SELECT lane, count(*) FROM tidegate_event_row WHERE lane = ANY ($1) GROUP BY lane",
    )
    .bind(&lanes)
    .fetch_all(&mut *connection)
    .await?;
    let held_up = sqlx::query_scalar(
        "SELECT count(*) FROM tidegate_event_row r WHERE r.due_at = 'infinity'
           AND r.lane <> ALL ($1) AND r.key IN (
               SELECT u.key FROM tidegate_event_row u WHERE u.lane = ANY ($1) AND u.key IS NOT NULL)",
    )
    .bind(lanes)
    .fetch_one(connection)
    .await?;
    let facts = StatsFacts {
        books,
        now_ms,
        claimed,
        oldest_ms,
        handler_states,
        head,
        projections,
        unwanted,
        held_up,
    };
    Ok(facts.stats())
}

/// How many events are claimed, by the place they have in the books.
async fn claimed(connection: &mut PgConnection) -> Result<Vec<(String, i64)>, sqlx::Error> {
    let sql = format!(
        "SELECT 'queued', count(*) FROM {IN_BATCHES}
         UNION ALL
         SELECT r.place, count(*) FROM tidegate_event_row r WHERE r.locked_by IS NOT NULL
         GROUP BY r.place"
    );
    let claimed = sqlx::query_as(AssertSqlSafe(sql));
    claimed.fetch_all(connection).await
}

pub(super) async fn account(connection: &mut PgConnection) -> Result<Account, sqlx::Error> {
    let mut account = posting::counts_postgres(connection, COMPONENT)
        .await?
        .account();
    for (place, count) in claimed(connection).await? {
        crate::account::show_in_flight(&mut account, &place_of(&place), count);
    }
    Ok(account)
}

/// Every event by where the tables say that it is, a stretch of numbers at a time.
pub(super) async fn recount(
    connection: &mut PgConnection,
    now_ms: u64,
) -> Result<QueueRecount, sqlx::Error> {
    let books = posting::books_postgres(connection, COMPONENT).await?;
    let mut count = Count::default();
    let mut last = i64::MIN;
    loop {
        let first: Option<i64> =
            sqlx::query_scalar("SELECT min(id) FROM tidegate_event WHERE id > $1")
                .bind(last)
                .fetch_one(&mut *connection)
                .await?;
        let Some(first) = first else {
            break;
        };
        last = first.saturating_add(COUNTED_AT_ONCE - 1);
        // Each table is held to the stretch by itself: none of them is read from its beginning.
        let rows = sqlx::query(
            "WITH logged AS MATERIALIZED (
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
             WHERE e.id BETWEEN $1 AND $2",
        )
        .bind(first)
        .bind(last)
        .fetch_all(&mut *connection)
        .await?;
        for row in &rows {
            let (event, seen) = row.counted()?;
            count.add(event, &seen);
        }
        count.end_page(now_ms);
    }
    Ok(count.finish(books))
}
