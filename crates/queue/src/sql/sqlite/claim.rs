//! Claiming on SQLite.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Row, SqliteConnection};
use tidegate_store::sql::{OwnColumns, SqlConnection, SqlList, SqlValue};
use tidegate_store::{span_ms, sqlx};

use super::super::claim::{ClaimScan, ClaimStatements, ClaimedEvents, RowKind, is_stuck};
use super::super::columns::{PARKED_KEYS, ParkedKeys};
use super::super::maintain::registry_version;
use super::unreadable::{end_unreadable, texts};
use crate::port::{LeaseId, POISON_AFTER};

/// Events of batches that are neither finished nor have a row of their own.
pub(super) const UNFINISHED: &str = "NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.value)
    AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.value)";
/// The same, without those that are gone altogether: nobody could settle them, so nobody waits for
/// them.
pub(super) const OPEN: &str = "NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.value)
    AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.value)
    AND EXISTS (SELECT 1 FROM tidegate_event e WHERE e.id = i.value)";

impl ClaimStatements for SqliteConnection {
    const LANES: &'static str = "WITH RECURSIVE lane(name) AS (
             SELECT min(lane) FROM tidegate_event_row
             UNION ALL
             SELECT (SELECT min(r.lane) FROM tidegate_event_row r WHERE r.lane > l.name)
             FROM lane l WHERE l.name IS NOT NULL)
         SELECT name FROM lane WHERE name IS NOT NULL";

    async fn take_over(
        &mut self,
        scan: &mut ClaimScan,
        starvation: u32,
    ) -> Result<(), sqlx::Error> {
        let sql = "SELECT id, token, attempts, ids, n FROM (
             SELECT *, abandoned + (locked_by <> '' AND is_confirmed) AS n FROM tidegate_batch)
         WHERE locked_until < ?1
           AND (n < 2 AND ?4 = 0
             OR n >= 2 AND ?2 AND locked_until <= ?1 - (min(n - 2, 10) + ?4) * ?3)
         ORDER BY n >= 2, id LIMIT 1";
        let (lease, starvation) = (span_ms(scan.request.lease), i64::from(starvation));
        let values: [&dyn SqlValue; 4] =
            [&scan.now, &scan.request.include_poison, &lease, &starvation];
        let Some(row) = self.first_row(sql, &values).await? else {
            return Ok(());
        };
        let batch: i64 = row.try_get(0)?;
        let (token, attempts): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
        let mut ids = remaining(self, row.try_get(3)?).await?;
        if ids.is_empty() {
            self.execute("DELETE FROM tidegate_batch WHERE id = ?", &[&batch])
                .await?;
            return Ok(());
        }
        let abandoned: i64 = row.try_get(4)?;
        // Two leases that ran out make its events poison candidates, which are handed out one at a time.
        let is_poison = abandoned >= i64::from(POISON_AFTER);
        let room = scan.room().min(if is_poison { 1 } else { u32::MAX });
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if ids.len() > room {
            let rest = ids.split_off(room);
            let sql = "UPDATE tidegate_batch SET ids = ?, token = token + 1 WHERE id = ?";
            self.execute(sql, &[&SqlList(&rest), &batch]).await?;
            let batch = insert_batch(self, scan, (attempts + 1, abandoned), &ids).await?;
            scan.taken.batch((batch, 1), attempts + 1, abandoned, ids);
            return Ok(());
        }
        let sql =
            "UPDATE tidegate_batch SET token = token + 1, attempts = attempts + 1, locked_by = ?,
             locked_until = ?, claimed_at = ?, ids = ?, abandoned = ?,
             is_confirmed = ? WHERE id = ?";
        self.execute(
            sql,
            &[
                &scan.request.owner,
                &scan.until(),
                &scan.now,
                &SqlList(&ids),
                &abandoned,
                &!is_poison,
                &batch,
            ],
        )
        .await?;
        scan.taken
            .batch((batch, token + 1), attempts + 1, abandoned, ids);
        Ok(())
    }

    async fn release_stuck(&mut self, scan: &mut ClaimScan) -> Result<(), sqlx::Error> {
        let keys = stuck_keys(self, &mut scan.parked).await?;
        release(self, &keys, scan.now).await
    }

    async fn reclaim_expired(&mut self, scan: &mut ClaimScan) -> Result<(), sqlx::Error> {
        self.take_over(scan, 0).await
    }

    async fn claim_rows(
        &mut self,
        scan: &ClaimScan,
        lanes: &[String],
        kind: RowKind,
        limit: u32,
    ) -> Result<Vec<Self::Row>, sqlx::Error> {
        let sql = "UPDATE tidegate_event_row SET token = token + 1, attempts = attempts + 1,
             abandoned = abandoned + (locked_by IS NOT NULL AND is_confirmed),
             is_confirmed = NOT ?6, locked_by = ?1, due_at = ?2, updated_at = ?3
         WHERE id IN (SELECT id FROM tidegate_event_row
                      WHERE lane IN (SELECT value FROM json_each(?4)) AND due_at <= ?3
                        AND (abandoned + (locked_by IS NOT NULL AND is_confirmed) >= 2) = ?6
                        AND (NOT ?6 OR due_at <= ?3 - ?7 * (?8
                            + min(abandoned + (locked_by IS NOT NULL AND is_confirmed) - 2, 10)))
                      ORDER BY due_at, id LIMIT ?5)
         RETURNING id, token, attempts, place, abandoned";
        let (until, lease) = (scan.until(), span_ms(scan.request.lease));
        self.rows(
            sql,
            &[
                &scan.request.owner,
                &until,
                &scan.now,
                &SqlList(lanes),
                &i64::from(limit),
                &kind.is_poison(),
                &lease,
                &i64::from(kind.starvation()),
            ],
        )
        .await
    }

    async fn claim_fresh(&mut self, scan: &mut ClaimScan) -> Result<u64, sqlx::Error> {
        let registry = registry_version(self).await?;
        let sql = "SELECT e.id, EXISTS (SELECT 1 FROM tidegate_canceled c WHERE c.id = e.id)
         FROM tidegate_event e
         WHERE e.id > (SELECT cursor FROM tidegate_queue WHERE name = 'queue')
         ORDER BY e.id LIMIT ?";
        let room = i64::from(scan.room());
        let found: Vec<(i64, bool)> = self.fetch_all(sql, &[&room]).await?;
        let Some((last, _)) = found.last() else {
            return Ok(registry);
        };
        let sql = "UPDATE tidegate_queue SET cursor = ? WHERE name = 'queue'";
        self.execute(sql, &[last]).await?;
        let ids = found.iter().filter(|(_, is_canceled)| !is_canceled);
        let ids: Vec<i64> = ids.map(|(id, _)| *id).collect();
        if !ids.is_empty() {
            let batch = insert_batch(self, scan, (1, 0), &ids).await?;
            scan.taken.batch((batch, 1), 1, 0, ids);
        }
        Ok(registry)
    }

    async fn read_claimed(
        &mut self,
        scan: &ClaimScan,
    ) -> Result<(ClaimedEvents, i64), sqlx::Error> {
        let sql = "SELECT id, event_id, type, key, payload, headers, created_at FROM tidegate_event
            WHERE id IN (SELECT value FROM json_each(?))";
        let rows = self.rows(sql, &[&SqlList(&scan.taken.order)]).await?;
        let mut events = ClaimedEvents::default();
        for row in &rows {
            let Some((claim, attempts)) = scan.taken.claim(row.try_get(0)?, row.event_id(1)?)
            else {
                continue;
            };
            match texts(row)? {
                Some(texts) => events.add(&scan.taken, (claim, attempts), texts, row.try_get(6)?),
                None => end_unreadable(self, &claim, attempts, scan.now).await?,
            }
        }
        Ok((events, scan.now))
    }

    async fn blocked(&mut self, batch: i64, _ids: &[i64]) -> Result<Vec<i64>, sqlx::Error> {
        let sql = format!(
            "WITH busy AS (
             SELECT e.key AS key, min(e.id) AS id
             FROM tidegate_batch b, json_each(b.ids) i JOIN tidegate_event e ON e.id = i.value
             WHERE b.id <> ?1 AND e.key IS NOT NULL AND {UNFINISHED} GROUP BY e.key)
         SELECT e.id FROM tidegate_batch b, json_each(b.ids) i
         JOIN tidegate_event e ON e.id = i.value LEFT JOIN busy ON busy.key = e.key
         WHERE b.id = ?1 AND e.key IS NOT NULL AND (busy.id < e.id OR EXISTS
             (SELECT 1 FROM tidegate_event_row r WHERE r.key = e.key AND r.id < e.id))"
        );
        self.fetch_all(AssertSqlSafe(sql), &[&batch]).await
    }

    async fn renew(
        &mut self,
        leases: Vec<LeaseId>,
        lease_ms: i64,
        now: i64,
    ) -> Result<Vec<LeaseId>, sqlx::Error> {
        let (until, is_given_back) = (now + lease_ms, lease_ms == 0);
        let mut lost = Vec::new();
        for one in leases {
            let done = match one {
                LeaseId::Batch { batch, token } => {
                    let sql = "UPDATE tidegate_batch SET locked_until = ?, is_confirmed = 1,
                         locked_by = CASE WHEN ? THEN '' ELSE locked_by END
                     WHERE id = ? AND token = ?";
                    self.execute(sql, &[&until, &is_given_back, &batch, &token])
                        .await?
                }
                LeaseId::Row { id, token } => {
                    let sql = "UPDATE tidegate_event_row SET due_at = ?, is_confirmed = 1,
                         locked_by = CASE WHEN ? THEN NULL ELSE locked_by END
                     WHERE id = ? AND token = ? AND locked_by IS NOT NULL";
                    self.execute(sql, &[&until, &is_given_back, &id, &token])
                        .await?
                }
            };
            if done == 0 {
                lost.push(one);
            }
        }
        Ok(lost)
    }

    async fn reopen(
        &mut self,
        batch: i64,
        token: i64,
    ) -> Result<Option<(i64, Vec<i64>)>, sqlx::Error> {
        let sql = "UPDATE tidegate_batch SET token = token + 1 WHERE id = ? AND token = ?
         RETURNING token, ids";
        let row: Option<(i64, String)> = self.fetch_optional(sql, &[&batch, &token]).await?;
        let Some((token, ids)) = row else {
            return Ok(None);
        };
        Ok(Some((token, remaining(self, &ids).await?)))
    }
}

/// Of the parked keys that come next, those whose release was lost: the first event with a row is
/// parked, and nothing earlier is claimed. From one key to the next by the index; the look after this
/// one goes on behind the last, so that all have their turn however many there are.
async fn stuck_keys(
    db: &mut SqliteConnection,
    parked: &mut ParkedKeys,
) -> Result<Vec<String>, sqlx::Error> {
    let sql = "WITH RECURSIVE parked(key, n) AS (
             SELECT min(r.key), 1 FROM tidegate_event_row r
             WHERE r.key IS NOT NULL AND r.due_at IS NULL AND r.key >= coalesce(?1, '')
             UNION ALL
             SELECT (SELECT min(r.key) FROM tidegate_event_row r
                     WHERE r.key IS NOT NULL AND r.due_at IS NULL AND r.key > p.key), p.n + 1
             FROM parked p WHERE p.key IS NOT NULL AND p.n < ?2)
         SELECT p.key, h.id, h.due_at FROM parked p JOIN tidegate_event_row h
             ON h.id = (SELECT min(r.id) FROM tidegate_event_row r WHERE r.key = p.key)
         WHERE p.key IS NOT NULL ORDER BY p.key";
    let rows: Vec<(String, i64, Option<i64>)> =
        db.fetch_all(sql, &[&parked.after, &PARKED_KEYS]).await?;
    parked.note(rows.iter().map(|(key, _, _)| key));
    if rows.iter().all(|(_, _, due)| due.is_some()) {
        return Ok(Vec::new());
    }
    let busy = format!(
        "SELECT e.key, min(e.id) FROM tidegate_batch b, json_each(b.ids) i
         JOIN tidegate_event e ON e.id = i.value
         WHERE e.key IS NOT NULL AND {UNFINISHED} GROUP BY e.key"
    );
    let busy: Vec<(String, i64)> = db.fetch_all(AssertSqlSafe(busy), &[]).await?;
    let busy: BTreeMap<String, i64> = busy.into_iter().collect();
    let stuck = rows
        .into_iter()
        .filter(|(key, head, due)| is_stuck(*head, due.is_some(), busy.get(key).copied()));
    Ok(stuck.map(|(key, _, _)| key).collect())
}

pub(super) async fn remaining(
    db: &mut SqliteConnection,
    ids: &str,
) -> Result<Vec<i64>, sqlx::Error> {
    let sql = format!("SELECT i.value FROM json_each(?) i WHERE {OPEN} ORDER BY i.key");
    db.fetch_all(AssertSqlSafe(sql), &[&ids]).await
}

/// Adds a batch with so many attempts, of which so many leases ran out.
async fn insert_batch(
    db: &mut SqliteConnection,
    scan: &ClaimScan,
    (attempts, abandoned): (i64, i64),
    ids: &[i64],
) -> Result<i64, sqlx::Error> {
    let sql = "INSERT INTO tidegate_batch
             (attempts, abandoned, is_confirmed, locked_by, locked_until, claimed_at, ids)
         VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id";
    db.fetch_one(
        sql,
        &[
            &attempts,
            &abandoned,
            &(abandoned < i64::from(POISON_AFTER)),
            &scan.request.owner,
            &scan.until(),
            &scan.now,
            &SqlList(ids),
        ],
    )
    .await
}

/// Lets the first waiting event of each key go, and holds back the others.
///
/// It waits for a later event of its key that is being handled: one that was given back has such. A batch
/// that was claimed after the row was written knew of the row, and what it has of the key is parked. One
/// that was canceled before it was claimed has nothing earlier left once the cursor is there.
pub(super) async fn release(
    db: &mut SqliteConnection,
    keys: &[String],
    now: i64,
) -> Result<(), sqlx::Error> {
    let busy = format!(
        "SELECT EXISTS (SELECT 1 FROM tidegate_event_row r
             WHERE r.key = ?1 AND r.due_at IS NOT NULL AND r.locked_by IS NOT NULL)
         OR EXISTS (SELECT 1 FROM tidegate_batch b, json_each(b.ids) i
             JOIN tidegate_event e ON e.id = i.value
             WHERE e.key = ?1 AND (e.id < ?2 OR b.claimed_at <= ?3) AND {UNFINISHED})
         OR ?2 > (SELECT cursor FROM tidegate_queue WHERE name = 'queue')"
    );
    for key in keys {
        let sql = "SELECT id, due_at, updated_at FROM tidegate_event_row WHERE key = ?
             ORDER BY id LIMIT 1";
        let head: Option<(i64, Option<i64>, i64)> = db.fetch_optional(sql, &[key]).await?;
        let Some((head, due, since)) = head else {
            continue;
        };
        let is_busy: bool = db
            .fetch_one(AssertSqlSafe(busy.clone()), &[key, &head, &since])
            .await?;
        if due.is_none() && !is_busy {
            let sql = "UPDATE tidegate_event_row SET due_at = ? WHERE id = ?";
            db.execute(sql, &[&now, &head]).await?;
        }
        let sql = "UPDATE tidegate_event_row SET due_at = NULL
             WHERE key = ? AND id > ? AND due_at IS NOT NULL AND locked_by IS NULL";
        db.execute(sql, &[key, &head]).await?;
    }
    Ok(())
}
