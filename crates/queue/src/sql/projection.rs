//! Positions of projections, as far as both databases say it with the same words.

use sqlx::AssertSqlSafe;
use tidegate_store::sql::SqlConnection;
use tidegate_store::sqlx;

use super::decode::QueueRow;
use crate::port::LogPage;

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

/// The statements of projections.
pub(super) trait ProjectionStatements: SqlConnection {
    /// The completed events above position `$1` and up to `$2` positions further.
    const READ_LOG: &'static str;
    /// How long a swap waits for those who read the tables.
    const SWAP_PATIENCE: Option<&'static str>;

    fn note_position(
        &mut self,
        of: String,
        name: String,
        position: i64,
        now: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    fn advance(
        &mut self,
        name: &str,
        positions: (i64, i64),
        now: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    fn swap_positions(
        &mut self,
        name: &str,
        shadow: &str,
        marks: &[String],
        now: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
}

pub(super) async fn read_log<C: ProjectionStatements>(
    db: &mut C,
    after: i64,
    limit: i64,
) -> Result<LogPage, sqlx::Error> {
    let head: i64 = db.fetch_one(HEAD, &[]).await?;
    let rows = db.rows(C::READ_LOG, &[&after, &limit]).await?;
    let events = rows.iter().map(QueueRow::log_event);
    Ok(LogPage {
        events: events.collect::<Result<_, _>>()?,
        last: after.saturating_add(limit).min(head).max(after),
        head,
    })
}

/// Puts tables that were rebuilt in the place of the old ones. The names were checked when the projection was
/// built.
pub(super) async fn swap_tables<C: ProjectionStatements>(
    db: &mut C,
    tables: &[String],
) -> Result<(), sqlx::Error> {
    if let Some(sql) = C::SWAP_PATIENCE {
        db.execute_raw(sql).await?;
    }
    for table in tables {
        let sql =
            format!("DROP TABLE IF EXISTS {table}; ALTER TABLE {table}__rebuild RENAME TO {table}");
        db.execute_raw(AssertSqlSafe(sql)).await?;
    }
    Ok(())
}

pub(super) async fn forget<C: SqlConnection>(
    db: &mut C,
    names: &[String],
    tables: &[String],
) -> Result<(), sqlx::Error> {
    for table in tables {
        // The names were checked when the projection was built.
        let sql = format!("DROP TABLE IF EXISTS {table}__rebuild");
        db.execute_raw(AssertSqlSafe(sql)).await?;
    }
    for name in names {
        let sql = "DELETE FROM event_projection WHERE name = $1";
        db.execute(sql, &[name]).await?;
    }
    Ok(())
}
