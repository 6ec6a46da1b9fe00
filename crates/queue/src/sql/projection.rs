//! Positions of projections, as far as both databases say it with the same words.

use sqlx::AssertSqlSafe;
use tidegate_store::{Store, StoreTx, sqlx};

use super::leadership;
use crate::QueueError;
use crate::port::{Leadership, LogEvent, LogPage};

/// The last position there is.
pub(super) const HEAD: &str = "SELECT coalesce((SELECT position + count - 1 FROM tidegate_sequence
    ORDER BY position DESC LIMIT 1), 0)";
pub(super) const POSITION: &str =
    "SELECT coalesce((SELECT position FROM event_projection WHERE name = $1), 0)";
pub(super) const POSITIONS: &str = "SELECT name, position FROM event_projection ORDER BY name";
pub(super) const REBUILDS: &str =
    "SELECT coalesce((SELECT rebuilds FROM event_projection WHERE name = $1), 0)";
pub(super) const HAS_REMOVED: &str = "SELECT EXISTS (SELECT 1 FROM tidegate_posting
    WHERE component = 'queue' AND from_place = 'delivered' AND to_place IS NULL)";

/// The page of these events, which are all from above `after` up to `limit` positions further.
pub(super) fn page(events: Vec<LogEvent>, after: i64, limit: i64, head: i64) -> LogPage {
    LogPage {
        events,
        last: after.saturating_add(limit).min(head).max(after),
        head,
    }
}

/// Puts a table that was rebuilt in the place of the old one. The names were checked when the projection was
/// built.
pub(super) fn swap_table(table: &str) -> String {
    format!("DROP TABLE IF EXISTS {table}; ALTER TABLE {table}__rebuild RENAME TO {table}")
}

pub(super) async fn forget(
    store: &Store,
    leadership: Option<&Leadership>,
    names: &[String],
    tables: &[String],
) -> Result<bool, QueueError> {
    // What is dropped may be what the next owner of the leadership is building.
    let tx = match leadership {
        Some(leadership) => leadership::begin(store, leadership).await?,
        None => Some(store.begin_own().await?),
    };
    let Some(mut tx) = tx else {
        return Ok(false);
    };
    let (doing, limit) = ("forget a projection", tx.limit());
    for table in tables {
        // The names were checked when the projection was built.
        let sql = AssertSqlSafe(format!("DROP TABLE IF EXISTS {table}__rebuild"));
        let query = sqlx::raw_sql(sql);
        match &mut tx {
            StoreTx::Postgres(tx) => {
                limit.run(doing, query.execute(tx.connection())).await?;
            }
            StoreTx::Sqlite(tx) => {
                limit.run(doing, query.execute(tx.connection())).await?;
            }
        }
    }
    for name in names {
        let sql = "DELETE FROM event_projection WHERE name = $1";
        match &mut tx {
            StoreTx::Postgres(tx) => {
                let query = sqlx::query(sql).bind(name).execute(tx.connection());
                limit.run(doing, query).await?;
            }
            StoreTx::Sqlite(tx) => {
                let query = sqlx::query(sql).bind(name).execute(tx.connection());
                limit.run(doing, query).await?;
            }
        }
    }
    tx.commit().await?;
    Ok(true)
}
