//! The order of finalized events, and how far projections have read it.

use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};
use tidegate_store::{lease, sqlx};

use super::super::columns::unsigned;
use super::{SqliteQueue, event_id, json, lease_of};
use crate::QueueError;
use crate::event::headers_of;
use crate::port::{LogEvent, LogPage, Turn};
use crate::tx::Tx;

const HEAD: &str = "SELECT coalesce((SELECT position + count - 1 FROM tidegate_sequence
    ORDER BY position DESC LIMIT 1), 0)";

impl SqliteQueue {
    pub(super) async fn give_positions(&self, limit: u32) -> Result<u64, QueueError> {
        let count = self
            .sqlite
            .write("give positions", move |connection| {
                Box::pin(async move {
                    // Groups are numbered in the order of commits, so what has its position is a
                    // prefix of them.
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
                    .bind(i64::from(limit))
                    .execute(connection)
                    .await?;
                    Ok(done.rows_affected())
                })
            })
            .await?;
        Ok(count)
    }

    pub(super) async fn read_positions(
        &self,
        after: i64,
        limit: u32,
    ) -> Result<LogPage, QueueError> {
        let page = self
            .sqlite
            .read("read the log", move |connection| {
                Box::pin(read(connection, after, i64::from(limit)))
            })
            .await?;
        Ok(page)
    }

    pub(super) async fn has_removed_events(&self) -> Result<bool, QueueError> {
        let has_removed = self
            .sqlite
            .read("look for what was removed", |connection| {
                Box::pin(async move {
                    sqlx::query_scalar(
                        "SELECT EXISTS (SELECT 1 FROM tidegate_posting
                         WHERE component = 'queue' AND from_place = 'delivered'
                           AND to_place IS NULL)",
                    )
                    .fetch_one(connection)
                    .await
                })
            })
            .await?;
        Ok(has_removed)
    }

    pub(super) async fn position_of(&self, name: &str) -> Result<i64, QueueError> {
        let name = name.to_owned();
        let position: Option<i64> = self
            .sqlite
            .read("read a projection's position", move |connection| {
                Box::pin(async move {
                    sqlx::query_scalar("SELECT position FROM event_projection WHERE name = ?")
                        .bind(name)
                        .fetch_optional(connection)
                        .await
                })
            })
            .await?;
        Ok(position.unwrap_or(0))
    }

    pub(super) async fn positions(&self) -> Result<Vec<(String, i64)>, QueueError> {
        let rows = self
            .sqlite
            .read("read the projections", |connection| {
                Box::pin(async move {
                    sqlx::query_as("SELECT name, position FROM event_projection ORDER BY name")
                        .fetch_all(connection)
                        .await
                })
            })
            .await?;
        Ok(rows)
    }

    pub(super) async fn rebuilds_of(&self, name: &str) -> Result<u64, QueueError> {
        let name = name.to_owned();
        let rebuilds: Option<i64> = self
            .sqlite
            .read("count rebuilds", move |connection| {
                Box::pin(async move {
                    sqlx::query_scalar("SELECT rebuilds FROM event_projection WHERE name = ?")
                        .bind(name)
                        .fetch_optional(connection)
                        .await
                })
            })
            .await?;
        Ok(unsigned(rebuilds.unwrap_or(0)))
    }

    pub(super) async fn note(
        &self,
        of: &str,
        name: &str,
        position: i64,
    ) -> Result<bool, QueueError> {
        let (of, name, now) = (of.to_owned(), name.to_owned(), self.sqlite.now_ms());
        let is_there = self
            .sqlite
            .write("note a position", move |connection| {
                Box::pin(async move {
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
                })
            })
            .await?;
        Ok(is_there)
    }

    pub(super) async fn forget(
        &self,
        turn: Option<&Turn>,
        names: &[String],
        tables: &[String],
    ) -> Result<bool, QueueError> {
        let doing = "forget a projection";
        let mut tx = self.store.begin_own().await?;
        // What is dropped may be what the next owner of the turn is building.
        if let Some(turn) = turn
            && !lease::holds(&mut tx, &lease_of(turn)).await?
        {
            tx.rollback().await?;
            return Ok(false);
        }
        let limit = tx.limit();
        let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
        for table in tables {
            // The names were checked when the projection was built.
            let sql = format!("DROP TABLE IF EXISTS {table}__rebuild");
            let query = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection);
            limit.run(doing, query).await?;
        }
        for name in names {
            let query = sqlx::query("DELETE FROM event_projection WHERE name = ?1")
                .bind(name)
                .execute(&mut *connection);
            limit.run(doing, query).await?;
        }
        tx.commit().await?;
        Ok(true)
    }

    pub(super) async fn advance_in(
        &self,
        tx: Tx,
        turn: &Turn,
        name: &str,
        from: i64,
        to: i64,
    ) -> Result<bool, QueueError> {
        let doing = "move a projection on";
        let now = self.sqlite.now_ms();
        let mut tx = tx.into_sql()?;
        if !lease::holds(&mut tx, &lease_of(turn)).await? {
            tx.rollback().await?;
            return Ok(false);
        }
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

    pub(super) async fn swap_tables(
        &self,
        turn: &Turn,
        name: &str,
        shadow: &str,
        tables: &[String],
        marks: &[String],
    ) -> Result<bool, QueueError> {
        let doing = "swap a projection";
        let now = self.sqlite.now_ms();
        let mut tx = self.store.begin_own().await?;
        if !lease::holds(&mut tx, &lease_of(turn)).await? {
            tx.rollback().await?;
            return Ok(false);
        }
        let limit = tx.limit();
        let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
        for table in tables {
            // The names were checked when the projection was built.
            let sql = format!(
                "DROP TABLE IF EXISTS {table}; ALTER TABLE {table}__rebuild RENAME TO {table}"
            );
            let query = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection);
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
}

async fn read(
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
    let event = |row: &SqliteRow| {
        Ok(LogEvent {
            position: row.try_get(0)?,
            id: row.try_get(1)?,
            event_id: event_id(row.try_get(2)?)?,
            type_name: row.try_get(3)?,
            key: row.try_get(4)?,
            payload: row.try_get(5)?,
            headers: headers_of(row.try_get(6)?),
            created_ms: row.try_get(7)?,
        })
    };
    Ok(LogPage {
        events: rows.iter().map(event).collect::<Result<_, sqlx::Error>>()?,
        last: after.saturating_add(limit).min(head).max(after),
        head,
    })
}
