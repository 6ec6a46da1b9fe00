//! The order of finalized events, and how far projections have read it.

use std::sync::PoisonError;

use sqlx::{AssertSqlSafe, PgConnection, Row};
use tidegate_store::{Store, StoreError, sqlx};

use super::super::decode::QueueRow;
use super::super::leadership;
use super::super::projection::{HEAD, page, swap_table};
use super::{OUR_TABLES, PostgresQueue};
use crate::QueueError;
use crate::port::{Leadership, LogPage};
use crate::tx::Tx;

/// How long a swap waits for those who read the table: everybody who begins to read it meanwhile waits behind
/// the swap. It is tried again.
const SWAP_PATIENCE: &str = "SET LOCAL lock_timeout = '500ms'";

/// Below which group everything has its position or was rolled back.
///
/// The number moves in two steps: a look notes the highest group it sees, and a horizon that every
/// transaction is below that may still bring a lower one. Once all of those have ended, a later look
/// has seen every group up to that number.
///
/// The horizon is a transaction id that was given out after the look. Whoever takes the number of a
/// group has its own id by then; the highest group that the look saw was committed, so all numbers
/// below were taken before it, and by transactions whose ids are older than the look. The xmax of the
/// look's snapshot is no horizon: it follows the last transaction that ended, and those that run may be
/// above it.
#[derive(Debug, Default)]
pub(super) struct GroupHorizon {
    is_loaded: bool,
    below: i64,
    noted: Option<(i64, i64)>,
    /// How often it was begun anew: a look that was under way meanwhile tells nothing.
    begun: u64,
}

impl GroupHorizon {
    /// Forgets what is known, because the tables have gone back.
    pub(super) fn begin_anew(&mut self) {
        *self = Self {
            begun: self.begun + 1,
            ..Self::default()
        };
    }

    /// A look began from here. It is below what is known where the tables have gone back: what was noted
    /// is then of transactions that never were.
    fn load(&mut self, below: i64) {
        if below < self.below {
            self.noted = None;
        }
        self.is_loaded = true;
        self.below = below;
    }

    fn look(&mut self, look: &HorizonSample) {
        match (self.noted, look.after) {
            (Some((horizon, highest)), _) if look.oldest >= horizon => {
                self.below = self.below.max(highest);
                self.noted = None;
            }
            (None, Some(after)) => self.noted = Some((after, look.highest)),
            (Some(_), _) | (None, None) => {}
        }
    }
}

/// What a look found.
#[derive(Debug, Clone, Copy)]
struct HorizonSample {
    /// Every transaction below had ended.
    oldest: i64,
    /// The highest group that was there.
    highest: i64,
    /// A transaction id that was given out after it, where one was asked for.
    after: Option<i64>,
}

impl PostgresQueue {
    pub(super) async fn give_positions(&self, limit: u32) -> Result<u64, QueueError> {
        let (is_loaded, below, is_noted, begun) = {
            let known = self
                .sequencer
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let is_noted = known.noted.is_some();
            (known.is_loaded, known.below, is_noted, known.begun)
        };
        let (count, look, loaded) = self
            .postgres
            .transact("give positions", move |connection| {
                Box::pin(async move {
                    let below = is_loaded.then_some(below);
                    sequence(connection, i64::from(limit), below, !is_noted).await
                })
            })
            .await?;
        let moved = {
            let mut known = self
                .sequencer
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if known.begun != begun {
                return Ok(count);
            }
            known.load(loaded);
            let before = known.below;
            // A full round may have left some out.
            if count < u64::from(limit) {
                known.look(&look);
            }
            (known.below > before).then_some(known.below)
        };
        if let Some(below) = moved {
            self.postgres
                .run("note what has its position", move |connection| {
                    Box::pin(async move {
                        sqlx::query(
                            "UPDATE tidegate_queue SET sequenced_below = $1
                             WHERE name = 'queue' AND sequenced_below < $1 - 1000",
                        )
                        .bind(below)
                        .execute(connection)
                        .await
                    })
                })
                .await?;
        }
        Ok(count)
    }
}

pub(super) async fn note(
    connection: &mut PgConnection,
    of: String,
    name: String,
    position: i64,
) -> Result<bool, sqlx::Error> {
    hold_retention(connection).await?;
    // By the lock whoever forgets the projection waits, and takes the mark away too.
    sqlx::query_scalar(
        "WITH there AS MATERIALIZED (
             SELECT 1 FROM event_projection WHERE name = $3 FOR KEY SHARE),
         noted AS (
             INSERT INTO event_projection AS p (name, position)
             SELECT $1, $2 FROM there ON CONFLICT (name) DO UPDATE
             SET position = excluded.position, updated_at = now()
             WHERE p.position > excluded.position)
         SELECT EXISTS (SELECT 1 FROM there)",
    )
    .bind(name)
    .bind(position)
    .bind(of)
    .fetch_one(connection)
    .await
}

pub(super) async fn swap(
    store: &Store,
    leadership: &Leadership,
    (name, shadow): (&str, &str),
    tables: &[String],
    marks: &[String],
) -> Result<bool, QueueError> {
    let Some(mut tx) = leadership::begin(store, leadership).await? else {
        return Ok(false);
    };
    let doing = "swap a projection";
    let limit = tx.limit();
    let connection = tx.postgres().ok_or(QueueError::ForeignTransaction)?;
    let query = sqlx::raw_sql(SWAP_PATIENCE).execute(&mut *connection);
    limit.run(doing, query).await.map_err(StoreError::undone)?;
    for table in tables {
        let sql = AssertSqlSafe(swap_table(table));
        let query = sqlx::raw_sql(sql).execute(&mut *connection);
        limit.run(doing, query).await.map_err(StoreError::undone)?;
    }
    let query = sqlx::query(
        "WITH shadow AS (DELETE FROM event_projection WHERE name = $2 RETURNING position)
         INSERT INTO event_projection AS p (name, position, rebuilds)
         SELECT $1, position, 1 FROM shadow
         ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = now(),
             rebuilds = p.rebuilds + 1",
    )
    .bind(name)
    .bind(shadow)
    .execute(&mut *connection);
    let done = limit.run(doing, query).await?;
    if done.rows_affected() == 0 {
        // What has no position was not built to its end.
        tx.rollback().await?;
        return Ok(false);
    }
    let query = sqlx::query("DELETE FROM event_projection WHERE name = ANY ($1)")
        .bind(marks)
        .execute(connection);
    limit.run(doing, query).await?;
    tx.commit().await?;
    Ok(true)
}

/// Gives positions, and says to how many groups, what was seen before, and from where on.
async fn sequence(
    connection: &mut PgConnection,
    limit: i64,
    below: Option<i64>,
    is_to_note: bool,
) -> Result<(u64, HorizonSample, i64), sqlx::Error> {
    // The first statement of its transaction, which has no id before. Groups of transactions that
    // ended below the oldest are seen by the statement that follows.
    let row = sqlx::query(
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8,
             (SELECT coalesce(max(id), 0) FROM tidegate_log_batch),
             (SELECT sequenced_below FROM tidegate_queue WHERE name = 'queue')",
    )
    .fetch_one(&mut *connection)
    .await?;
    let mut look = HorizonSample {
        oldest: row.try_get(0)?,
        highest: row.try_get(1)?,
        after: None,
    };
    let stored: i64 = row.try_get(2)?;
    // The highest group that was seen is there still, unless the tables have less than they had, or retention
    // has removed it; what stands in the tables holds in either case.
    let known = below.filter(|below| look.highest >= *below);
    let below = known.unwrap_or(stored).max(stored);
    // Two at once would give the same positions twice, and the table allows it to one of them.
    let done = sqlx::query(
        "INSERT INTO tidegate_sequence (batch, position, count)
         SELECT b.id, coalesce((SELECT s.position + s.count FROM tidegate_sequence s
                 ORDER BY s.position DESC LIMIT 1), 1)
             + coalesce(sum(b.n) OVER (ORDER BY b.id ROWS BETWEEN UNBOUNDED PRECEDING
                 AND 1 PRECEDING), 0), b.n
         FROM (SELECT l.id, cardinality(l.ids) AS n FROM tidegate_log_batch l
               WHERE l.id > $1 AND NOT EXISTS
                   (SELECT 1 FROM tidegate_sequence s WHERE s.batch = l.id)
               ORDER BY l.id LIMIT $2) b",
    )
    .bind(below)
    .bind(limit)
    .execute(&mut *connection)
    .await?;
    // An idle sequencer asks for none, because a transaction with an id writes to the disk.
    if is_to_note && look.highest > below {
        let after = sqlx::query_scalar("SELECT pg_current_xact_id()::text::int8");
        look.after = Some(after.fetch_one(connection).await?);
    }
    Ok((done.rows_affected(), look, below))
}

pub(super) async fn read(
    connection: &mut PgConnection,
    after: i64,
    limit: i64,
) -> Result<LogPage, sqlx::Error> {
    let head: i64 = sqlx::query_scalar(HEAD).fetch_one(&mut *connection).await?;
    // From the group on that the next position is in.
    let rows = sqlx::query(
        "SELECT s.position + l.ordinal, e.id, e.event_id, e.type, e.key, e.payload::text,
             e.headers::text, (extract(epoch FROM e.created_at) * 1000)::int8
         FROM (SELECT batch, position FROM tidegate_sequence
               WHERE position >= coalesce((SELECT max(position) FROM tidegate_sequence
                         WHERE position <= $1 + 1), 0)
                 AND position <= $1 + $2) s
         JOIN tidegate_log_batch b ON b.id = s.batch
         CROSS JOIN LATERAL unnest(b.ids) i(id)
         JOIN tidegate_log l ON l.id = i.id AND l.batch = s.batch
         JOIN tidegate_event e ON e.id = l.id
         WHERE NOT l.is_failed AND s.position + l.ordinal > $1
           AND s.position + l.ordinal <= $1 + $2
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

/// Keeps retention off until this transaction ends: a removal that began before would not see the
/// position that is noted in it, and would go past.
async fn hold_retention(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_xact_lock_shared(tidegate_lock('retention'))")
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn advance(
    tx: Tx,
    leadership: &Leadership,
    name: &str,
    from: i64,
    to: i64,
) -> Result<bool, QueueError> {
    let doing = "move a projection on";
    let mut tx = tx.into_sql()?;
    let limit = tx.limit();
    let connection = tx.postgres().ok_or(QueueError::ForeignTransaction)?;
    // Whoever had the transaction may have looked at tables elsewhere.
    let ours = sqlx::raw_sql(OUR_TABLES).execute(connection);
    limit.run(doing, ours).await?;
    let Some(mut tx) = leadership::checked(tx, leadership).await? else {
        return Ok(false);
    };
    let connection = tx.postgres().ok_or(QueueError::ForeignTransaction)?;
    let query = sqlx::query(
        "UPDATE event_projection SET position = $3, updated_at = now()
         WHERE name = $1 AND position = $2",
    )
    .bind(name)
    .bind(from)
    .bind(to)
    .execute(&mut *connection);
    let mut moved = limit.run(doing, query).await?.rows_affected();
    if moved == 0 && from == 0 {
        // It may be its first.
        limit.run(doing, hold_retention(connection)).await?;
        let query = sqlx::query(
            "INSERT INTO event_projection (name, position) VALUES ($1, $2)
             ON CONFLICT DO NOTHING",
        )
        .bind(name)
        .bind(to)
        .execute(connection);
        moved = limit.run(doing, query).await?.rows_affected();
    }
    if moved == 0 {
        tx.rollback().await?;
        return Ok(false);
    }
    tx.commit().await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_known_of_tables_that_have_gone_back_is_forgotten() {
        let mut below = GroupHorizon::default();
        below.load(400);
        below.noted = Some((50, 500));
        below.load(400);
        assert_eq!(below.noted, Some((50, 500)));
        below.load(70);
        assert_eq!((below.below, below.noted), (70, None));
    }

    #[test]
    fn the_mark_moves_only_after_those_who_ran_have_ended() {
        let look = |oldest, highest, after| HorizonSample {
            oldest,
            highest,
            after,
        };
        let mut below = GroupHorizon::default();
        below.look(&look(10, 100, Some(20)));
        assert_eq!(below.below, 0);
        below.look(&look(19, 200, None));
        assert_eq!(
            below.below, 0,
            "transaction 19 may still add a group below 100"
        );
        below.look(&look(20, 300, None));
        assert_eq!(below.below, 100);
        below.look(&look(35, 300, None));
        assert_eq!(below.noted, None, "nothing is noted without a horizon");
        below.look(&look(41, 400, Some(50)));
        below.look(&look(50, 500, None));
        assert_eq!(below.below, 400);
    }
}
