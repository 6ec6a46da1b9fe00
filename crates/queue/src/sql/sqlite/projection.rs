//! The order of finalized events, and how far projections have read it.

use sqlx::{AssertSqlSafe, SqliteConnection};
use tidegate_store::{Store, sqlx};

use super::super::decode::QueueRow;
use super::super::leadership;
use super::super::projection::{HEAD, page, swap_table};
use super::json;
use crate::QueueError;
use crate::port::{Leadership, LogPage};
use crate::tx::Tx;

/// Gives positions, and says to how many groups.
pub(super) async fn sequence(
    connection: &mut SqliteConnection,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    // Groups are numbered in the order of commits, so what has its position is a prefix of them.
    let done = sqlx::query(
        "INSERT INTO tidegate_sequence (batch, position, count)
         SELECT b.id, coalesce((SELECT s.position + s.count
                 FROM tidegate_sequence s ORDER BY s.position DESC LIMIT 1), 1)
             + coalesce(sum(b.n) OVER (ORDER BY b.id
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0), b.n
         FROM (SELECT l.id, json_array_length(l.ids) AS n
               FROM tidegate_log_batch l
               WHERE l.id > coalesce(
                   (SELECT max(s.batch) FROM tidegate_sequence s), 0)
               ORDER BY l.id LIMIT ?) b",
    )
    .bind(limit)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

pub(super) async fn note(
    connection: &mut SqliteConnection,
    of: String,
    name: String,
    position: i64,
    now: i64,
) -> Result<bool, sqlx::Error> {
    let there = "SELECT EXISTS (SELECT 1 FROM event_projection WHERE name = ?)";
    let there = sqlx::query_scalar(there).bind(of);
    let is_there: bool = there.fetch_one(&mut *connection).await?;
    if !is_there {
        return Ok(false);
    }
    sqlx::query(
        "INSERT INTO event_projection AS p (name, position, updated_at)
         VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE
         SET position = excluded.position, updated_at = excluded.updated_at
         WHERE p.position > excluded.position",
    )
    .bind(name)
    .bind(position)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(true)
}

pub(super) async fn advance(
    tx: Tx,
    leadership: &Leadership,
    name: &str,
    (from, to): (i64, i64),
    now: i64,
) -> Result<bool, QueueError> {
    let doing = "move a projection on";
    let Some(mut tx) = leadership::checked(tx.into_sql()?, leadership).await? else {
        return Ok(false);
    };
    let limit = tx.limit();
    let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
    let query = sqlx::query(
        "INSERT INTO event_projection (name, position, updated_at) VALUES (?, 0, ?)
         ON CONFLICT DO NOTHING",
    )
    .bind(name)
    .bind(now)
    .execute(&mut *connection);
    limit.run(doing, query).await?;
    let query = sqlx::query(
        "UPDATE event_projection SET position = ?3, updated_at = ?4
         WHERE name = ?1 AND position = ?2",
    )
    .bind(name)
    .bind(from)
    .bind(to)
    .bind(now)
    .execute(connection);
    let done = limit.run(doing, query).await?;
    if done.rows_affected() == 0 {
        tx.rollback().await?;
        return Ok(false);
    }
    tx.commit().await?;
    Ok(true)
}

pub(super) async fn swap(
    store: &Store,
    leadership: &Leadership,
    (name, shadow): (&str, &str),
    tables: &[String],
    marks: &[String],
    now: i64,
) -> Result<bool, QueueError> {
    let Some(mut tx) = leadership::begin(store, leadership).await? else {
        return Ok(false);
    };
    let doing = "swap a projection";
    let limit = tx.limit();
    let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
    for table in tables {
        let sql = AssertSqlSafe(swap_table(table));
        let query = sqlx::raw_sql(sql).execute(&mut *connection);
        limit.run(doing, query).await?;
    }
    let query = sqlx::query(
        "INSERT INTO event_projection AS p (name, position, updated_at, rebuilds)
         SELECT ?1, position, ?3, 1 FROM event_projection WHERE name = ?2
         ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = ?3,
             rebuilds = p.rebuilds + 1",
    )
    .bind(name)
    .bind(shadow)
    .bind(now)
    .execute(&mut *connection);
    let done = limit.run(doing, query).await?;
    if done.rows_affected() == 0 {
        // What has no position was not built to its end.
        tx.rollback().await?;
        return Ok(false);
    }
    let query = sqlx::query(
        "DELETE FROM event_projection
         WHERE name = ? OR name IN (SELECT value FROM json_each(?))",
    )
    .bind(shadow)
    .bind(json(&marks))
    .execute(connection);
    limit.run(doing, query).await?;
    tx.commit().await?;
    Ok(true)
}

pub(super) async fn read(
    connection: &mut SqliteConnection,
    after: i64,
    limit: i64,
) -> Result<LogPage, sqlx::Error> {
    let head: i64 = sqlx::query_scalar(HEAD).fetch_one(&mut *connection).await?;
    let rows = sqlx::query(
        "SELECT s.position + l.ordinal, e.id, e.event_id, e.type, e.key, e.payload, e.headers,
             e.created_at
         FROM (SELECT batch, position FROM tidegate_sequence
               WHERE position >= coalesce((SELECT max(position) FROM tidegate_sequence
                         WHERE position <= ?1 + 1), 0)
                 AND position <= ?1 + ?2) s
         JOIN tidegate_log_batch b ON b.id = s.batch, json_each(b.ids) i
         JOIN tidegate_log l ON l.id = i.value AND l.batch = s.batch
         JOIN tidegate_event e ON e.id = l.id
         WHERE NOT l.is_failed AND s.position + l.ordinal > ?1
           AND s.position + l.ordinal <= ?1 + ?2
         ORDER BY 1",
    )
    .bind(after)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    let events = rows
        .iter()
        .map(QueueRow::log_event)
        .collect::<Result<_, _>>()?;
    Ok(page(events, after, limit, head))
}
