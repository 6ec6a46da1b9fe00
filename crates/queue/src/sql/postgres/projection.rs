//! The order of finalized events, and how far projections have read it, on PostgreSQL.

use std::sync::{MutexGuard, PoisonError};

use sqlx::PgConnection;
use tidegate_store::sql::{SqlConnection, SqlList};
use tidegate_store::sqlx;

use super::super::projection::ProjectionStatements;
use super::PostgresBackend;
use crate::QueueError;

/// Below which group everything has its position or was rolled back.
///
/// The number moves in two steps. A look notes the highest group it sees, and a horizon. Every
/// transaction that may still bring a lower group is below the horizon. Once all of those have ended, a
/// later look has seen every group up to that number.
///
/// The horizon is a transaction id that was given out after the look. A transaction that takes the
/// number of a group has its own id by then. The highest group that the look saw was committed, so all
/// numbers below were taken before it. The transactions that took them have ids that are older than the
/// look. The xmax of the look's snapshot is no horizon: it follows the last transaction that ended, and
/// those that run may be above it.
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

/// The result of a look.
#[derive(Debug, Clone, Copy)]
struct HorizonSample {
    /// Every transaction below had ended.
    oldest: i64,
    /// The highest group that was there.
    highest: i64,
    /// A transaction id that was given out after it, where one was asked for.
    after: Option<i64>,
}

impl PostgresBackend {
    pub(super) fn sequencer(&self) -> MutexGuard<'_, GroupHorizon> {
        let sequencer = self.sequencer.lock();
        sequencer.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn give_positions(&self, limit: u32) -> Result<u64, QueueError> {
        let (below, is_noted, begun) = {
            let known = self.sequencer();
            let below = known.is_loaded.then_some(known.below);
            (below, known.noted.is_some(), known.begun)
        };
        let given = self.postgres.transact("give positions", move |db| {
            Box::pin(sequence(db, i64::from(limit), below, !is_noted))
        });
        let (count, look, loaded) = given.await?;
        let moved = {
            let mut known = self.sequencer();
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
            let noted = self.postgres.run("note what has its position", move |db| {
                let sql = "UPDATE tidegate_queue SET sequenced_below = $1
                    WHERE name = 'queue' AND sequenced_below < $1 - 1000";
                db.execute(sql, &[&below])
            });
            noted.await?;
        }
        Ok(count)
    }
}

impl ProjectionStatements for PgConnection {
    // From the group on that the next position is in.
    const READ_LOG: &'static str =
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
         ORDER BY 1";

    /// Everybody who begins to read the table meanwhile waits behind the swap. It is tried again.
    const SWAP_PATIENCE: Option<&'static str> = Some("SET LOCAL lock_timeout = '500ms'");

    async fn note_position(
        &mut self,
        of: String,
        name: String,
        position: i64,
        _now: i64,
    ) -> Result<bool, sqlx::Error> {
        hold_retention(self).await?;
        // By the lock whoever forgets the projection waits, and takes the mark away too.
        let sql = "WITH there AS MATERIALIZED (
             SELECT 1 FROM event_projection WHERE name = $3 FOR KEY SHARE),
         noted AS (
             INSERT INTO event_projection AS p (name, position)
             SELECT $1, $2 FROM there ON CONFLICT (name) DO UPDATE
             SET position = excluded.position, updated_at = now()
             WHERE p.position > excluded.position)
         SELECT EXISTS (SELECT 1 FROM there)";
        self.fetch_one(sql, &[&name, &position, &of]).await
    }

    async fn advance(
        &mut self,
        name: &str,
        (from, to): (i64, i64),
        _now: i64,
    ) -> Result<bool, sqlx::Error> {
        let sql = "UPDATE event_projection SET position = $3, updated_at = now()
            WHERE name = $1 AND position = $2";
        let moved = self.execute(sql, &[&name, &from, &to]).await?;
        if moved > 0 || from != 0 {
            return Ok(moved > 0);
        }
        // It may be its first.
        hold_retention(self).await?;
        let sql = "INSERT INTO event_projection (name, position) VALUES ($1, $2)
            ON CONFLICT DO NOTHING";
        Ok(self.execute(sql, &[&name, &to]).await? > 0)
    }

    async fn swap_positions(
        &mut self,
        name: &str,
        shadow: &str,
        marks: &[String],
        _now: i64,
    ) -> Result<bool, sqlx::Error> {
        let sql = "WITH shadow AS (DELETE FROM event_projection WHERE name = $2 RETURNING position)
            INSERT INTO event_projection AS p (name, position, rebuilds)
            SELECT $1, position, 1 FROM shadow
            ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = now(),
                rebuilds = p.rebuilds + 1";
        let swapped = self.execute(sql, &[&name, &shadow]).await?;
        let sql = "DELETE FROM event_projection WHERE name = ANY ($1)";
        self.execute(sql, &[&SqlList(marks)]).await?;
        Ok(swapped > 0)
    }
}

/// Gives positions, and says to how many groups, what was seen before, and from where on.
async fn sequence(
    db: &mut PgConnection,
    limit: i64,
    below: Option<i64>,
    is_to_note: bool,
) -> Result<(u64, HorizonSample, i64), sqlx::Error> {
    // The first statement of its transaction, which has no id before. Groups of transactions that
    // ended below the oldest are seen by the statement that follows.
    let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8,
             (SELECT coalesce(max(id), 0) FROM tidegate_log_batch),
             (SELECT sequenced_below FROM tidegate_queue WHERE name = 'queue')";
    let (oldest, highest, stored): (i64, i64, i64) = db.fetch_one(sql, &[]).await?;
    let mut look = HorizonSample {
        oldest,
        highest,
        after: None,
    };
    // The highest group that was seen is there still, unless the tables have less than they had, or retention
    // has removed it; what stands in the tables holds in either case.
    let known = below.filter(|below| look.highest >= *below);
    let below = known.unwrap_or(stored).max(stored);
    // Two at once would give the same positions twice, and the table allows it to one of them.
    let sql = "INSERT INTO tidegate_sequence (batch, position, count)
         SELECT b.id, coalesce((SELECT s.position + s.count FROM tidegate_sequence s
                 ORDER BY s.position DESC LIMIT 1), 1)
             + coalesce(sum(b.n) OVER (ORDER BY b.id ROWS BETWEEN UNBOUNDED PRECEDING
                 AND 1 PRECEDING), 0), b.n
         FROM (SELECT l.id, cardinality(l.ids) AS n FROM tidegate_log_batch l
               WHERE l.id > $1 AND NOT EXISTS
                   (SELECT 1 FROM tidegate_sequence s WHERE s.batch = l.id)
               ORDER BY l.id LIMIT $2) b";
    let count = db.execute(sql, &[&below, &limit]).await?;
    // An idle sequencer asks for none, because a transaction with an id writes to the disk.
    if is_to_note && look.highest > below {
        let sql = "SELECT pg_current_xact_id()::text::int8";
        look.after = Some(db.fetch_one(sql, &[]).await?);
    }
    Ok((count, look, below))
}

/// Keeps retention off until this transaction ends: a removal that began before would not see the
/// position that is noted in it, and would go past.
async fn hold_retention(db: &mut PgConnection) -> Result<(), sqlx::Error> {
    let sql = "SELECT pg_advisory_xact_lock_shared(tidegate_lock('retention'))";
    db.execute(sql, &[]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_of_tables_that_have_gone_back_is_forgotten() {
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
