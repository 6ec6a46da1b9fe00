//! Claiming: batches that ran out, rows that are due, then what is fresh.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use sqlx::{Row, SqliteConnection};
use tidegate_store::{span_ms, sqlx};

use super::super::claim::{ClaimedEvents, ClaimedIds, RowKind, served};
use super::super::columns::{PARKED_KEYS, ParkedKeys, place_of};
use super::super::decode::{OwnColumns, QueueRow};
use super::leases::registry_version;
use super::maintain::read_registry;
use super::unreadable::{end_unreadable, texts};
use super::{SqliteQueue, json};
use crate::QueueError;
use crate::port::{ClaimRequest, Claimed, ClaimedEvent, POISON_AFTER, POISON_STARVATION};

/// Events of batches that are neither finished nor have a row of their own.
pub(super) const UNFINISHED: &str = "NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.value)
    AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.value)";
/// The same, without those that are gone altogether: nobody could settle them, so nobody waits for
/// them.
pub(super) const OPEN: &str = "NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.value)
    AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.value)
    AND EXISTS (SELECT 1 FROM tidegate_event e WHERE e.id = i.value)";

impl SqliteQueue {
    fn parked(&self) -> MutexGuard<'_, ParkedKeys> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn claim_due(&self, request: &ClaimRequest) -> Result<Claimed, QueueError> {
        let (request, now) = (request.clone(), self.sqlite.now_ms());
        let mut parked = self.parked().clone();
        let is_reclaim = request.reclaim_expired;
        let (claimed, parked) = self
            .sqlite
            .write("claim events", move |connection| {
                Box::pin(async move {
                    let claimed = claim(connection, &request, &mut parked, now).await?;
                    Ok((claimed, parked))
                })
            })
            .await?;
        if is_reclaim {
            *self.parked() = parked;
        }
        Ok(claimed)
    }
}

async fn claim(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    parked: &mut ParkedKeys,
    now: i64,
) -> Result<Claimed, sqlx::Error> {
    let until = now + span_ms(request.lease);
    let times = (now, until);
    let mut taken = ClaimedIds::default();
    if request.reclaim_expired {
        let keys = stuck_keys(connection, parked).await?;
        release(connection, &keys, now).await?;
        if request.isolate && request.include_poison {
            reclaim_expired(connection, request, times, POISON_STARVATION, &mut taken).await?;
            look_at_rows(connection, request, times, &[RowKind::Starved], &mut taken).await?;
        }
    }
    let is_isolated = !taken.order.is_empty();
    if request.reclaim_expired && !is_isolated {
        reclaim_expired(connection, request, times, 0, &mut taken).await?;
    }
    if !is_isolated {
        let kinds = [RowKind::Trusted, RowKind::Poison];
        look_at_rows(connection, request, times, &kinds, &mut taken).await?;
    }
    let registry = registry_version(connection).await?;
    if !is_isolated && taken.room(request) > 0 {
        fresh(connection, request, now, until, &mut taken).await?;
    }
    let events = read(connection, taken, now).await?;
    Ok(Claimed {
        events,
        is_isolated,
        registry,
        now_ms: now,
    })
}

/// Of the parked keys that come next, those whose release was lost: the first event with a row is
/// parked, and nothing earlier is claimed. From one key to the next by the index; the look after this
/// one goes on behind the last, so that all have their turn however many there are.
async fn stuck_keys(
    connection: &mut SqliteConnection,
    parked: &mut ParkedKeys,
) -> Result<Vec<String>, sqlx::Error> {
    let rows: Vec<(String, i64, Option<i64>)> = sqlx::query_as(
        "WITH RECURSIVE parked(key, n) AS (
             SELECT min(r.key), 1 FROM tidegate_event_row r
             WHERE r.key IS NOT NULL AND r.due_at IS NULL AND r.key >= coalesce(?1, '')
             UNION ALL
             SELECT (SELECT min(r.key) FROM tidegate_event_row r
                     WHERE r.key IS NOT NULL AND r.due_at IS NULL AND r.key > p.key), p.n + 1
             FROM parked p WHERE p.key IS NOT NULL AND p.n < ?2)
         SELECT p.key, h.id, h.due_at FROM parked p JOIN tidegate_event_row h
             ON h.id = (SELECT min(r.id) FROM tidegate_event_row r WHERE r.key = p.key)
         WHERE p.key IS NOT NULL ORDER BY p.key",
    )
    .bind(&parked.after)
    .bind(PARKED_KEYS)
    .fetch_all(&mut *connection)
    .await?;
    parked.note(rows.iter().map(|(key, _, _)| key));
    if rows.iter().all(|(_, _, due)| due.is_some()) {
        return Ok(Vec::new());
    }
    let busy = format!(
        "SELECT e.key, min(e.id) FROM tidegate_batch b, json_each(b.ids) i
         JOIN tidegate_event e ON e.id = i.value
         WHERE e.key IS NOT NULL AND {UNFINISHED} GROUP BY e.key"
    );
    let busy: Vec<(String, i64)> = sqlx::query_as(sqlx::AssertSqlSafe(busy))
        .fetch_all(connection)
        .await?;
    let busy: BTreeMap<String, i64> = busy.into_iter().collect();
    let stuck = rows.into_iter().filter(|(key, head, due)| {
        due.is_none() && busy.get(key).is_none_or(|claimed| claimed > head)
    });
    Ok(stuck.map(|(key, _, _)| key).collect())
}

pub(super) async fn remaining(
    connection: &mut SqliteConnection,
    ids: &str,
) -> Result<Vec<i64>, sqlx::Error> {
    let sql = format!("SELECT i.value FROM json_each(?) i WHERE {OPEN} ORDER BY i.key");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .bind(ids)
        .fetch_all(connection)
        .await
}

/// Takes over one batch that ran out; with `starvation` a poison candidate, which has waited so many leases more.
async fn reclaim_expired(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    (now, until): (i64, i64),
    starvation: u32,
    taken: &mut ClaimedIds,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query(
        "SELECT id, token, attempts, ids, n FROM (
             SELECT *, abandoned + (locked_by <> '' AND is_confirmed) AS n FROM tidegate_batch)
         WHERE locked_until < ?1
           AND (n < 2 AND ?4 = 0
             OR n >= 2 AND ?2 AND locked_until <= ?1 - (min(n - 2, 10) + ?4) * ?3)
         ORDER BY n >= 2, id LIMIT 1",
    )
    .bind(now)
    .bind(request.include_poison)
    .bind(span_ms(request.lease))
    .bind(i64::from(starvation))
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else {
        return Ok(());
    };
    let batch: i64 = row.try_get(0)?;
    let (token, attempts): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
    let mut ids = remaining(connection, row.try_get(3)?).await?;
    if ids.is_empty() {
        sqlx::query("DELETE FROM tidegate_batch WHERE id = ?")
            .bind(batch)
            .execute(connection)
            .await?;
        return Ok(());
    }
    let abandoned: i64 = row.try_get(4)?;
    // Two leases that ran out make its events poison candidates, which are handed out one at a time.
    let room = match abandoned >= i64::from(POISON_AFTER) {
        true => taken.room(request).min(1),
        false => taken.room(request),
    };
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if ids.len() > room {
        let rest = ids.split_off(room);
        sqlx::query("UPDATE tidegate_batch SET ids = ?, token = token + 1 WHERE id = ?")
            .bind(json(&rest))
            .bind(batch)
            .execute(&mut *connection)
            .await?;
        let counts = (attempts + 1, abandoned);
        let batch = insert_batch(connection, request, counts, now, until, &ids).await?;
        taken.batch((batch, 1), attempts + 1, abandoned, ids);
        return Ok(());
    }
    sqlx::query(
        "UPDATE tidegate_batch SET token = token + 1, attempts = attempts + 1, locked_by = ?,
             locked_until = ?, claimed_at = ?, ids = ?, abandoned = ?,
             is_confirmed = ? WHERE id = ?",
    )
    .bind(&request.owner)
    .bind(until)
    .bind(now)
    .bind(json(&ids))
    .bind(abandoned)
    .bind(abandoned < i64::from(POISON_AFTER))
    .bind(batch)
    .execute(connection)
    .await?;
    taken.batch((batch, token + 1), attempts + 1, abandoned, ids);
    Ok(())
}

/// Adds a batch with so many attempts, of which so many leases ran out.
async fn insert_batch(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    (attempts, abandoned): (i64, i64),
    now: i64,
    until: i64,
    ids: &[i64],
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO tidegate_batch
             (attempts, abandoned, is_confirmed, locked_by, locked_until, claimed_at, ids)
         VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
    )
    .bind(attempts)
    .bind(abandoned)
    .bind(abandoned < i64::from(POISON_AFTER))
    .bind(&request.owner)
    .bind(until)
    .bind(now)
    .bind(json(&ids))
    .fetch_one(connection)
    .await
}

/// The lanes there are, from one to the next by the index, without looking at what is in between.
pub(super) async fn lanes(connection: &mut SqliteConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "WITH RECURSIVE lane(name) AS (
             SELECT min(lane) FROM tidegate_event_row
             UNION ALL
             SELECT (SELECT min(r.lane) FROM tidegate_event_row r WHERE r.lane > l.name)
             FROM lane l WHERE l.name IS NOT NULL)
         SELECT name FROM lane WHERE name IS NOT NULL",
    )
    .fetch_all(connection)
    .await
}

/// Claims rows of these kinds, one after the other.
async fn look_at_rows(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    times: (i64, i64),
    kinds: &[RowKind],
    taken: &mut ClaimedIds,
) -> Result<(), sqlx::Error> {
    if !request.include_delayed || taken.room(request) == 0 {
        return Ok(());
    }
    let lanes = lanes(connection).await?;
    let registry = match request.reclaim_expired && !lanes.is_empty() {
        true => Some(read_registry(connection).await?),
        false => None,
    };
    let lanes = served(lanes, request, registry.as_ref());
    for kind in kinds {
        let limit = taken.row_limit(request, *kind);
        if !lanes.is_empty() && limit > 0 {
            rows(connection, request, &lanes, times, (*kind, limit), taken).await?;
        }
    }
    Ok(())
}

async fn rows(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    lanes: &[String],
    (now, until): (i64, i64),
    (kind, limit): (RowKind, u32),
    taken: &mut ClaimedIds,
) -> Result<(), sqlx::Error> {
    let found = sqlx::query(
        "UPDATE tidegate_event_row SET token = token + 1, attempts = attempts + 1,
             abandoned = abandoned + (locked_by IS NOT NULL AND is_confirmed),
             is_confirmed = NOT ?6, locked_by = ?1, due_at = ?2, updated_at = ?3
         WHERE id IN (SELECT id FROM tidegate_event_row
                      WHERE lane IN (SELECT value FROM json_each(?4)) AND due_at <= ?3
                        AND (abandoned + (locked_by IS NOT NULL AND is_confirmed) >= 2) = ?6
                        AND (NOT ?6 OR due_at <= ?3 - ?7 * (?8
                            + min(abandoned + (locked_by IS NOT NULL AND is_confirmed) - 2, 10)))
                      ORDER BY due_at, id LIMIT ?5)
         RETURNING id, token, attempts, place, abandoned",
    )
    .bind(&request.owner)
    .bind(until)
    .bind(now)
    .bind(json(&lanes))
    .bind(i64::from(limit))
    .bind(kind.is_poison())
    .bind(span_ms(request.lease))
    .bind(i64::from(kind.starvation()))
    .fetch_all(connection)
    .await?;
    for row in found {
        let (id, token) = (row.try_get(0)?, row.try_get(1)?);
        let place = place_of(row.try_get(3)?);
        taken.row(id, token, row.count(2)?, row.try_get(4)?, place);
    }
    Ok(())
}

async fn fresh(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    now: i64,
    until: i64,
    taken: &mut ClaimedIds,
) -> Result<(), sqlx::Error> {
    let found: Vec<(i64, bool)> = sqlx::query_as(
        "SELECT e.id, EXISTS (SELECT 1 FROM tidegate_canceled c WHERE c.id = e.id)
         FROM tidegate_event e
         WHERE e.id > (SELECT cursor FROM tidegate_queue WHERE name = 'queue')
         ORDER BY e.id LIMIT ?",
    )
    .bind(i64::from(taken.room(request)))
    .fetch_all(&mut *connection)
    .await?;
    let Some((last, _)) = found.last() else {
        return Ok(());
    };
    sqlx::query("UPDATE tidegate_queue SET cursor = ? WHERE name = 'queue'")
        .bind(last)
        .execute(&mut *connection)
        .await?;
    let ids = found.iter().filter(|(_, is_canceled)| !is_canceled);
    let ids: Vec<i64> = ids.map(|(id, _)| *id).collect();
    if !ids.is_empty() {
        let batch = insert_batch(connection, request, (1, 0), now, until, &ids).await?;
        taken.batch((batch, 1), 1, 0, ids);
    }
    Ok(())
}

async fn read(
    connection: &mut SqliteConnection,
    taken: ClaimedIds,
    now: i64,
) -> Result<Vec<ClaimedEvent>, sqlx::Error> {
    if taken.order.is_empty() {
        return Ok(Vec::new());
    }
    let order = json(&taken.order);
    let rows = sqlx::query(
        "SELECT id, event_id, type, key, payload, headers, created_at FROM tidegate_event
         WHERE id IN (SELECT value FROM json_each(?))",
    )
    .bind(&order)
    .fetch_all(&mut *connection)
    .await?;
    let mut events = ClaimedEvents::default();
    for row in &rows {
        let Some((claim, attempts)) = taken.claim(row.try_get(0)?, row.event_id(1)?) else {
            continue;
        };
        match texts(row)? {
            Some(texts) => events.add(&taken, (claim, attempts), texts, row.try_get(6)?),
            None => end_unreadable(connection, &claim, attempts, now).await?,
        }
    }
    if events.have_keys() {
        for (batch, _) in &taken.batches {
            events.block(blocked(connection, *batch).await?);
        }
    }
    let rows = sqlx::query(
        "SELECT id, handler_id, result, attempts, error FROM tidegate_handler_state
         WHERE id IN (SELECT value FROM json_each(?))",
    )
    .bind(&order)
    .fetch_all(connection)
    .await?;
    for row in &rows {
        events.add_state(row.try_get(0)?, row.handler_state(1)?);
    }
    Ok(events.in_order(&taken.order))
}

/// Which events of a batch have an earlier one of their key that is not finished.
async fn blocked(connection: &mut SqliteConnection, batch: i64) -> Result<Vec<i64>, sqlx::Error> {
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
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .bind(batch)
        .fetch_all(connection)
        .await
}

/// Lets the first waiting event of each key go, and holds back the others.
///
/// It waits for a later event of its key that is being handled: one that was given back has such. A batch
/// that was claimed after the row was written knew of the row, and what it has of the key is parked. One
/// that was canceled before it was claimed has nothing earlier left once the cursor is there.
pub(super) async fn release(
    connection: &mut SqliteConnection,
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
        let head: Option<(i64, Option<i64>, i64)> = sqlx::query_as(
            "SELECT id, due_at, updated_at FROM tidegate_event_row WHERE key = ?
             ORDER BY id LIMIT 1",
        )
        .bind(key)
        .fetch_optional(&mut *connection)
        .await?;
        let Some((head, due, since)) = head else {
            continue;
        };
        let is_busy: bool = sqlx::query_scalar(sqlx::AssertSqlSafe(busy.clone()))
            .bind(key)
            .bind(head)
            .bind(since)
            .fetch_one(&mut *connection)
            .await?;
        if due.is_none() && !is_busy {
            sqlx::query("UPDATE tidegate_event_row SET due_at = ? WHERE id = ?")
                .bind(now)
                .bind(head)
                .execute(&mut *connection)
                .await?;
        }
        sqlx::query(
            "UPDATE tidegate_event_row SET due_at = NULL
             WHERE key = ? AND id > ? AND due_at IS NOT NULL AND locked_by IS NULL",
        )
        .bind(key)
        .bind(head)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
