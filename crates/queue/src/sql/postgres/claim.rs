//! Claiming on PostgreSQL.

use std::collections::BTreeSet;

use sqlx::{PgConnection, Row};
use tidegate_store::sql::{OwnColumns, SqlConnection, SqlList, SqlValue};
use tidegate_store::{span_ms, sqlx};

use super::super::claim::{ClaimScan, ClaimStatements, ClaimedEvents, RowKind};
use super::super::columns::{PARKED_KEYS, ParkedKeys, unsigned};
use crate::event::headers_of;
use crate::port::LeaseId;

impl ClaimStatements for PgConnection {
    const LANES: &'static str = "WITH RECURSIVE lane(name) AS (
             (SELECT lane FROM tidegate_event_row ORDER BY lane LIMIT 1)
             UNION ALL
             SELECT (SELECT r.lane FROM tidegate_event_row r WHERE r.lane > l.name
                     ORDER BY r.lane LIMIT 1)
             FROM lane l WHERE l.name IS NOT NULL)
         SELECT name FROM lane WHERE name IS NOT NULL";

    async fn take_over(
        &mut self,
        scan: &mut ClaimScan,
        starvation: u32,
    ) -> Result<(), sqlx::Error> {
        let sql = "SELECT batch, new_token, new_attempts, claimed, new_abandoned
         FROM tidegate_take_over($1, $2, $3, $4, $5, $6)";
        let values: [&dyn SqlValue; 6] = [
            &int4(scan.room()),
            &scan.request.owner,
            &span_ms(scan.request.lease),
            &scan.floor,
            &scan.request.include_poison,
            &int4(starvation),
        ];
        let row = self.one_row(sql, &values).await?;
        let batch: Option<i64> = row.try_get(0)?;
        let ids: Option<Vec<i64>> = row.try_get(3)?;
        if let (Some(batch), Some(ids)) = (batch, ids) {
            let (attempts, abandoned): (i32, i32) = (row.try_get(2)?, row.try_get(4)?);
            let lease = (batch, row.try_get(1)?);
            scan.taken
                .batch(lease, attempts.into(), abandoned.into(), ids);
        }
        Ok(())
    }

    async fn reclaim_expired(&mut self, scan: &mut ClaimScan) -> Result<(), sqlx::Error> {
        let keys = stuck_keys(self, &mut scan.parked).await?;
        if !keys.is_empty() {
            // It takes the lock of the claim, so it is not called for nothing.
            release(self, &keys).await?;
        }
        self.take_over(scan, 0).await?;
        let sql = "SELECT (SELECT min(id) FROM tidegate_batch WHERE id >= $1), last_value
            FROM tidegate_batch_id_seq";
        let (lowest, last): (Option<i64>, i64) = self.fetch_one(sql, &[&scan.floor]).await?;
        scan.floor = lowest.unwrap_or(scan.floor);
        scan.last_batch = Some(last);
        Ok(())
    }

    async fn claim_rows(
        &mut self,
        scan: &ClaimScan,
        lanes: &[String],
        kind: RowKind,
        limit: u32,
    ) -> Result<Vec<Self::Row>, sqlx::Error> {
        let sql = "WITH due AS MATERIALIZED (
             SELECT d.id FROM unnest($1::text[]) l(name) CROSS JOIN LATERAL (
                 SELECT r.id, r.due_at FROM tidegate_event_row r
                 WHERE r.lane = l.name AND r.due_at <= clock_timestamp()
                   AND (r.abandoned + (r.locked_by IS NOT NULL AND r.is_confirmed)::integer >= 2) = $5
                   AND (NOT $5 OR r.due_at <= clock_timestamp() - $4 * interval '1 millisecond'
                       * ($6 + least(r.abandoned
                           + (r.locked_by IS NOT NULL AND r.is_confirmed)::integer - 2, 10)))
                 ORDER BY r.due_at, r.id LIMIT $2 FOR UPDATE SKIP LOCKED) d
             ORDER BY d.due_at, d.id LIMIT $2)
         UPDATE tidegate_event_row r SET token = r.token + 1, attempts = r.attempts + 1,
             abandoned = r.abandoned + (r.locked_by IS NOT NULL AND r.is_confirmed)::integer,
             is_confirmed = NOT $5, locked_by = $3, due_at = clock_timestamp() + $4 * interval '1 millisecond',
             updated_at = clock_timestamp()
         FROM due WHERE r.id = due.id RETURNING r.id, r.token, r.attempts, r.place, r.abandoned";
        let (limit, lease) = (i64::from(limit), span_ms(scan.request.lease));
        let (is_poison, starvation) = (kind.is_poison(), int4(kind.starvation()));
        let owner = &scan.request.owner;
        self.rows(
            sql,
            &[
                &SqlList(lanes),
                &limit,
                owner,
                &lease,
                &is_poison,
                &starvation,
            ],
        )
        .await
    }

    async fn claim_fresh(&mut self, scan: &mut ClaimScan) -> Result<u64, sqlx::Error> {
        let sql = "SELECT batch, claimed, registry FROM tidegate_claim($1, $2, $3)";
        let (room, lease) = (int4(scan.room()), span_ms(scan.request.lease));
        let row = self.one_row(sql, &[&room, &scan.request.owner, &lease]);
        let row = row.await?;
        if let Some(batch) = row.try_get(0)? {
            scan.taken.batch((batch, 1), 1, 0, row.try_get(1)?);
        }
        Ok(unsigned(row.try_get(2)?))
    }

    async fn read_claimed(
        &mut self,
        scan: &ClaimScan,
    ) -> Result<(ClaimedEvents, i64), sqlx::Error> {
        let sql = "SELECT id, event_id, type, key, payload::text, headers::text,
                (extract(epoch FROM created_at) * 1000)::int8,
                (extract(epoch FROM clock_timestamp()) * 1000)::int8
            FROM tidegate_event WHERE id = ANY ($1)";
        let rows = self.rows(sql, &[&SqlList(&scan.taken.order)]).await?;
        let mut events = ClaimedEvents::default();
        let mut now_ms = 0;
        for row in &rows {
            let Some(claim) = scan.taken.claim(row.try_get(0)?, row.event_id(1)?) else {
                continue;
            };
            now_ms = row.try_get(7)?;
            let (type_name, key) = (row.try_get(2)?, row.try_get(3)?);
            let headers = headers_of(row.try_get(5)?);
            let texts = (type_name, key, row.try_get(4)?, headers);
            events.add(&scan.taken, claim, texts, row.try_get(6)?);
        }
        Ok((events, now_ms))
    }

    async fn blocked(&mut self, batch: i64, ids: &[i64]) -> Result<Vec<i64>, sqlx::Error> {
        let sql = "SELECT tidegate_blocked($1, $2)";
        self.fetch_all(sql, &[&batch, &SqlList(ids)]).await
    }

    async fn renew(
        &mut self,
        leases: Vec<LeaseId>,
        lease_ms: i64,
        _now: i64,
    ) -> Result<Vec<LeaseId>, sqlx::Error> {
        let (mut batches, mut rows) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for one in &leases {
            let (held, (number, token)) = match *one {
                LeaseId::Batch { batch, token } => (&mut batches, (batch, token)),
                LeaseId::Row { id, token } => (&mut rows, (id, token)),
            };
            held.0.push(number);
            held.1.push(token);
        }
        let mut kept = BTreeSet::new();
        if !batches.0.is_empty() {
            let sql = "UPDATE tidegate_batch b
             SET locked_until = clock_timestamp() + $3 * interval '1 millisecond',
                 is_confirmed = true, locked_by = CASE WHEN $3 = 0 THEN '' ELSE b.locked_by END
             FROM unnest($1::int8[], $2::int8[]) w(id, token)
             WHERE b.id = w.id AND b.token = w.token RETURNING b.id, b.token";
            let held = self.fetch_all(
                sql,
                &[&SqlList(&batches.0), &SqlList(&batches.1), &lease_ms],
            );
            let batches = held.await?.into_iter();
            kept.extend(batches.map(|(batch, token)| LeaseId::Batch { batch, token }));
        }
        if !rows.0.is_empty() {
            let sql = "WITH held AS MATERIALIZED (
                 SELECT r.id FROM tidegate_event_row r
                 JOIN unnest($1::int8[], $2::int8[]) w(id, token)
                     ON r.id = w.id AND r.token = w.token
                 WHERE r.locked_by IS NOT NULL ORDER BY r.id FOR UPDATE OF r)
             UPDATE tidegate_event_row r
             SET due_at = clock_timestamp() + $3 * interval '1 millisecond',
                 is_confirmed = true, locked_by = CASE WHEN $3 = 0 THEN NULL ELSE r.locked_by END
             FROM held WHERE r.id = held.id RETURNING r.id, r.token";
            let held = self.fetch_all(sql, &[&SqlList(&rows.0), &SqlList(&rows.1), &lease_ms]);
            let rows = held.await?.into_iter();
            kept.extend(rows.map(|(id, token)| LeaseId::Row { id, token }));
        }
        let lost = leases.into_iter().filter(|one| !kept.contains(one));
        Ok(lost.collect())
    }

    async fn reopen(
        &mut self,
        batch: i64,
        token: i64,
    ) -> Result<Option<(i64, Vec<i64>)>, sqlx::Error> {
        let sql = "UPDATE tidegate_batch SET token = token + 1 WHERE id = $1 AND token = $2
         RETURNING token";
        let next: Option<i64> = self.fetch_optional(sql, &[&batch, &token]).await?;
        let Some(next) = next else {
            return Ok(None);
        };
        // A statement of its own: the one before may have waited for the settle whose answer was lost, and
        // would not have seen what that wrote.
        let sql = "SELECT tidegate_remaining(ids) FROM tidegate_batch
         WHERE id = $1 AND token = $2";
        let row = self.first_row(sql, &[&batch, &next]).await?;
        row.map(|row| Ok((next, row.try_get(0)?))).transpose()
    }
}

/// Lets the first waiting event of each key go, and holds back the others.
pub(super) async fn release(db: &mut PgConnection, keys: &[String]) -> Result<(), sqlx::Error> {
    let sql = "SELECT tidegate_release($1)";
    db.execute(sql, &[&SqlList(keys)]).await.map(drop)
}

/// A number of events as statements take it.
fn int4(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Of the parked keys that come next, those whose first event with a row is parked: it waits for a
/// claimed one, or its release was lost. From one key to the next by the index; the look after this
/// one goes on behind the last, so that all have their turn however many there are.
async fn stuck_keys(
    db: &mut PgConnection,
    parked: &mut ParkedKeys,
) -> Result<Vec<String>, sqlx::Error> {
    let sql = "WITH RECURSIVE parked(key, n) AS (
             (SELECT r.key, 1 FROM tidegate_event_row r
              WHERE r.key IS NOT NULL AND r.due_at = 'infinity' AND r.key >= coalesce($1, '')
              ORDER BY r.key LIMIT 1)
             UNION ALL
             SELECT (SELECT r.key FROM tidegate_event_row r
                     WHERE r.key IS NOT NULL AND r.due_at = 'infinity' AND r.key > p.key
                     ORDER BY r.key LIMIT 1), p.n + 1
             FROM parked p WHERE p.key IS NOT NULL AND p.n < $2)
         SELECT p.key, (SELECT r.due_at FROM tidegate_event_row r WHERE r.key = p.key
                        ORDER BY r.id LIMIT 1) = 'infinity'
         FROM parked p WHERE p.key IS NOT NULL";
    let rows: Vec<(String, bool)> = db.fetch_all(sql, &[&parked.after, &PARKED_KEYS]).await?;
    parked.note(rows.iter().map(|(key, _)| key));
    let stuck = rows.into_iter().filter(|(_, is_stuck)| *is_stuck);
    Ok(stuck.map(|(key, _)| key).collect())
}
