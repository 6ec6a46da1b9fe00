//! What can be seen from outside: listings, places, numbers, the recount.

use sqlx::{AssertSqlSafe, SqliteConnection};
use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::super::columns::place_of;
use super::super::decode::{QueueRow, sighting};
use super::super::stats::{StatsFacts, unwanted};
use super::claim::UNFINISHED;
use super::json;
use crate::port::{
    EventFilter, HandlerState, ListedEvent, QueueLocation, QueueRecount, QueueStats, QueueStatus,
};
use crate::recount::Count;

/// Numbers that one step of a recount covers.
const COUNTED_AT_ONCE: i64 = 50_000;

/// The events that batches list, as `i`, without those that retention has removed since.
const IN_BATCHES: &str =
    "tidegate_batch b, json_each(b.ids) i JOIN tidegate_event there ON there.id = i.value";

const QUEUE_COLUMNS: &str = "SELECT id, event_id, type, key, payload, headers, status, attempts,
    created_at, next_attempt_at, locked_by, locked_until, NULL, NULL, '[]' FROM event_queue";
const LOG_COLUMNS: &str = "SELECT id, event_id, type, key, payload, headers, status, attempts,
    created_at, NULL, NULL, NULL, finalized_at, position, errors FROM event_log";

pub(super) async fn list(
    connection: &mut SqliteConnection,
    filter: EventFilter,
) -> Result<Vec<ListedEvent>, sqlx::Error> {
    let columns = match filter.status {
        Some(QueueStatus::Completed | QueueStatus::CompletedWithErrors) => LOG_COLUMNS,
        Some(QueueStatus::Pending | QueueStatus::Processing) | None => QUEUE_COLUMNS,
    };
    let sql = format!(
        "{columns} WHERE (?1 IS NULL OR status = ?1)
         AND (?2 IS NULL OR type = ?2) AND id > ?3 ORDER BY id LIMIT ?4"
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
    connection: &mut SqliteConnection,
    id: i64,
) -> Result<Option<ListedEvent>, sqlx::Error> {
    for columns in [QUEUE_COLUMNS, LOG_COLUMNS] {
        let row = sqlx::query(AssertSqlSafe(format!("{columns} WHERE id = ?")))
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

async fn states(
    connection: &mut SqliteConnection,
    id: i64,
) -> Result<Vec<HandlerState>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT handler_id, result, attempts, error FROM event_handler_state WHERE id = ?
         ORDER BY handler_id",
    )
    .bind(id)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| row.handler_state(0)).collect()
}

pub(super) async fn find(
    connection: &mut SqliteConnection,
    event: EventId,
) -> Result<Option<QueueLocation>, sqlx::Error> {
    let ids: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM tidegate_event WHERE event_id = ? ORDER BY id")
            .bind(event.to_string())
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
    connection: &mut SqliteConnection,
    id: i64,
) -> Result<Option<QueueLocation>, sqlx::Error> {
    let Some(shown) = show(connection, id).await? else {
        return Ok(None);
    };
    let row: Option<String> =
        sqlx::query_scalar("SELECT place FROM tidegate_event_row WHERE id = ?")
            .bind(id)
            .fetch_optional(connection)
            .await?;
    Ok(Some(sighting(shown, row.as_deref())))
}

pub(super) async fn stats(
    connection: &mut SqliteConnection,
    now: i64,
) -> Result<QueueStats, sqlx::Error> {
    let books = posting::counts_sqlite(connection, COMPONENT).await?;
    let claimed = claimed(connection).await?;
    // Each by the first entry of an index, or by what is in flight.
    let sql = format!(
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
    );
    let oldest_ms = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_optional(&mut *connection)
        .await?;
    let (handler_states, head): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM tidegate_handler_state),
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
        "SELECT lane, count(*) FROM tidegate_event_row
         WHERE lane IN (SELECT value FROM json_each(?)) GROUP BY lane",
    )
    .bind(json(&lanes))
    .fetch_all(&mut *connection)
    .await?;
    let held_up = sqlx::query_scalar(
        "SELECT count(*) FROM tidegate_event_row r WHERE r.due_at IS NULL
           AND r.lane NOT IN (SELECT value FROM json_each(?1)) AND r.key IN (
               SELECT u.key FROM tidegate_event_row u
               WHERE u.lane IN (SELECT value FROM json_each(?1)) AND u.key IS NOT NULL)",
    )
    .bind(json(&lanes))
    .fetch_one(connection)
    .await?;
    let facts = StatsFacts {
        books,
        now_ms: now,
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
async fn claimed(connection: &mut SqliteConnection) -> Result<Vec<(String, i64)>, sqlx::Error> {
    let sql = format!(
        "SELECT 'queued', count(*) FROM {IN_BATCHES} WHERE {UNFINISHED}
         UNION ALL
         SELECT r.place, count(*) FROM tidegate_event_row r WHERE r.locked_by IS NOT NULL
         GROUP BY r.place"
    );
    sqlx::query_as(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await
}

pub(super) async fn account(connection: &mut SqliteConnection) -> Result<Account, sqlx::Error> {
    let mut account = posting::counts_sqlite(connection, COMPONENT)
        .await?
        .account();
    for (place, count) in claimed(connection).await? {
        crate::account::show_in_flight(&mut account, &place_of(&place), count);
    }
    Ok(account)
}

/// Every event by where the tables say that it is, a stretch of numbers at a time.
pub(super) async fn recount(
    connection: &mut SqliteConnection,
    now_ms: u64,
) -> Result<QueueRecount, sqlx::Error> {
    let books = posting::books_sqlite(connection, COMPONENT).await?;
    let mut count = Count::default();
    let mut last = i64::MIN;
    loop {
        let first: Option<i64> =
            sqlx::query_scalar("SELECT min(id) FROM tidegate_event WHERE id > ?")
                .bind(last)
                .fetch_one(&mut *connection)
                .await?;
        let Some(first) = first else {
            break;
        };
        last = first.saturating_add(COUNTED_AT_ONCE - 1);
        let rows = sqlx::query(
            // What the groups list that have their positions or get them yet. Those follow the last
            // one that has.
            "WITH listed AS MATERIALIZED (
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
             WHERE e.id BETWEEN ?1 AND ?2",
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
