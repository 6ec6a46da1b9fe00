//! Claiming: batches that ran out, rows that are due, then what is fresh.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use sqlx::{PgConnection, Row};
use tidegate_store::{span_ms, sqlx};

use super::super::claim::{ClaimedEvents, ClaimedIds, RowKind, served};
use super::super::columns::{PARKED_KEYS, ParkedKeys, place_of, unsigned};
use super::super::decode::{OwnColumns, QueueRow};
use super::PostgresQueue;
use super::maintain::read_registry;
use crate::QueueError;
use crate::event::headers_of;
use crate::port::{ClaimRequest, Claimed, ClaimedEvent, LeaseId, POISON_STARVATION};

/// What a look for claims that ran out saw of the numbers of batches.
struct BatchNumbers {
    /// There is none below.
    floor: i64,
    /// The last that was given out.
    last: i64,
}

impl PostgresQueue {
    fn parked(&self) -> MutexGuard<'_, ParkedKeys> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn claim_due(&self, request: &ClaimRequest) -> Result<Claimed, QueueError> {
        let request = request.clone();
        let floor = self.floor.load(Ordering::Relaxed);
        let known = self.last_batch.load(Ordering::Relaxed);
        let mut parked = self.parked().clone();
        let is_reclaim = request.reclaim_expired;
        let (claimed, numbers, parked) = self
            .postgres
            .run("claim events", move |connection| {
                Box::pin(async move {
                    let claimed = claim(connection, &request, floor, &mut parked).await?;
                    Ok((claimed.0, claimed.1, parked))
                })
            })
            .await?;
        if is_reclaim {
            *self.parked() = parked;
        }
        match numbers {
            // What was seen before the call is given out a second time.
            Some(numbers) if numbers.last < known => {
                self.last_batch.store(numbers.last, Ordering::Relaxed);
                self.begin_anew();
            }
            // BatchNumbers of batches are given out under the lock of the claim, so none comes below.
            Some(numbers) => {
                self.last_batch.fetch_max(numbers.last, Ordering::Relaxed);
                self.floor.fetch_max(numbers.floor, Ordering::Relaxed);
            }
            None => {}
        }
        Ok(claimed)
    }
}

async fn claim(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    floor: i64,
    parked: &mut ParkedKeys,
) -> Result<(Claimed, Option<BatchNumbers>), sqlx::Error> {
    let mut taken = ClaimedIds::default();
    let mut numbers = None;
    if request.reclaim_expired && request.isolate && request.include_poison {
        take_over(connection, request, floor, POISON_STARVATION, &mut taken).await?;
        look_at_rows(connection, request, &[RowKind::Starved], &mut taken).await?;
    }
    let is_isolated = !taken.order.is_empty();
    if request.reclaim_expired && !is_isolated {
        numbers = Some(reclaim_expired(connection, request, floor, parked, &mut taken).await?);
    }
    if !is_isolated {
        let kinds = [RowKind::Trusted, RowKind::Poison];
        look_at_rows(connection, request, &kinds, &mut taken).await?;
    }
    let registry = if !is_isolated && taken.room(request) > 0 {
        fresh(connection, request, &mut taken).await?
    } else {
        let sql = "SELECT registry FROM tidegate_queue WHERE name = 'queue'";
        unsigned(sqlx::query_scalar(sql).fetch_one(&mut *connection).await?)
    };
    let (events, now_ms) = read(connection, taken).await?;
    let claimed = Claimed {
        events,
        is_isolated,
        registry,
        now_ms,
    };
    Ok((claimed, numbers))
}

/// A number of events as statements take it.
fn int4(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Takes over one batch that ran out, releases keys whose release was lost in a crash, and finds
/// the lowest batch there is.
async fn reclaim_expired(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    floor: i64,
    parked: &mut ParkedKeys,
    taken: &mut ClaimedIds,
) -> Result<BatchNumbers, sqlx::Error> {
    let keys = stuck_keys(connection, parked).await?;
    if !keys.is_empty() {
        // It takes the lock of the claim, so it is not called for nothing.
        sqlx::query("SELECT tidegate_release($1)")
            .bind(keys)
            .execute(&mut *connection)
            .await?;
    }
    take_over(connection, request, floor, 0, taken).await?;
    let (lowest, last): (Option<i64>, i64) = sqlx::query_as(
        "SELECT (SELECT min(id) FROM tidegate_batch WHERE id >= $1), last_value
         FROM tidegate_batch_id_seq",
    )
    .bind(floor)
    .fetch_one(connection)
    .await?;
    let floor = lowest.unwrap_or(floor);
    Ok(BatchNumbers { floor, last })
}

/// Takes over one batch that ran out; with `starvation` a poison candidate, which has waited so many leases more.
async fn take_over(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    floor: i64,
    starvation: u32,
    taken: &mut ClaimedIds,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query(
        "SELECT batch, new_token, new_attempts, claimed, new_abandoned
         FROM tidegate_take_over($1, $2, $3, $4, $5, $6)",
    )
    .bind(int4(taken.room(request)))
    .bind(&request.owner)
    .bind(span_ms(request.lease))
    .bind(floor)
    .bind(request.include_poison)
    .bind(int4(starvation))
    .fetch_one(connection)
    .await?;
    let batch: Option<i64> = row.try_get(0)?;
    let ids: Option<Vec<i64>> = row.try_get(3)?;
    if let (Some(batch), Some(ids)) = (batch, ids) {
        let (attempts, abandoned): (i32, i32) = (row.try_get(2)?, row.try_get(4)?);
        let lease = (batch, row.try_get(1)?);
        taken.batch(lease, attempts.into(), abandoned.into(), ids);
    }
    Ok(())
}

/// Of the parked keys that come next, those whose first event with a row is parked: it waits for a
/// claimed one, or its release was lost. From one key to the next by the index; the look after this
/// one goes on behind the last, so that all have their turn however many there are.
async fn stuck_keys(
    connection: &mut PgConnection,
    parked: &mut ParkedKeys,
) -> Result<Vec<String>, sqlx::Error> {
    let rows: Vec<(String, bool)> = sqlx::query_as(
        "WITH RECURSIVE parked(key, n) AS (
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
         FROM parked p WHERE p.key IS NOT NULL",
    )
    .bind(&parked.after)
    .bind(PARKED_KEYS)
    .fetch_all(connection)
    .await?;
    parked.note(rows.iter().map(|(key, _)| key));
    let stuck = rows.into_iter().filter(|(_, is_stuck)| *is_stuck);
    Ok(stuck.map(|(key, _)| key).collect())
}

/// The lanes there are, from one to the next by the index, without looking at what is in between.
pub(super) async fn lanes(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "WITH RECURSIVE lane(name) AS (
             (SELECT lane FROM tidegate_event_row ORDER BY lane LIMIT 1)
             UNION ALL
             SELECT (SELECT r.lane FROM tidegate_event_row r WHERE r.lane > l.name
                     ORDER BY r.lane LIMIT 1)
             FROM lane l WHERE l.name IS NOT NULL)
         SELECT name FROM lane WHERE name IS NOT NULL",
    )
    .fetch_all(connection)
    .await
}

/// Claims rows of these kinds, one after the other.
async fn look_at_rows(
    connection: &mut PgConnection,
    request: &ClaimRequest,
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
            rows(connection, request, &lanes, *kind, limit, taken).await?;
        }
    }
    Ok(())
}

async fn rows(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    lanes: &[String],
    kind: RowKind,
    limit: u32,
    taken: &mut ClaimedIds,
) -> Result<(), sqlx::Error> {
    let found = sqlx::query(
        "WITH due AS MATERIALIZED (
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
         FROM due WHERE r.id = due.id RETURNING r.id, r.token, r.attempts, r.place, r.abandoned",
    )
    .bind(lanes)
    .bind(i64::from(limit))
    .bind(&request.owner)
    .bind(span_ms(request.lease))
    .bind(kind.is_poison())
    .bind(int4(kind.starvation()))
    .fetch_all(connection)
    .await?;
    for row in found {
        let (id, token) = (row.try_get(0)?, row.try_get(1)?);
        let abandoned: i32 = row.try_get(4)?;
        let place = place_of(row.try_get(3)?);
        taken.row(id, token, row.count(2)?, abandoned.into(), place);
    }
    Ok(())
}

/// Claims what nobody has claimed before, and gives the version of the registry.
async fn fresh(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    taken: &mut ClaimedIds,
) -> Result<u64, sqlx::Error> {
    let row = sqlx::query("SELECT batch, claimed, registry FROM tidegate_claim($1, $2, $3)")
        .bind(int4(taken.room(request)))
        .bind(&request.owner)
        .bind(span_ms(request.lease))
        .fetch_one(connection)
        .await?;
    if let Some(batch) = row.try_get(0)? {
        taken.batch((batch, 1), 1, 0, row.try_get(1)?);
    }
    Ok(unsigned(row.try_get(2)?))
}

/// Reads the events that were claimed. The claim stands already: should this fail, its lease runs
/// out and somebody else reads them.
async fn read(
    connection: &mut PgConnection,
    taken: ClaimedIds,
) -> Result<(Vec<ClaimedEvent>, i64), sqlx::Error> {
    if taken.order.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let rows = sqlx::query(
        "SELECT id, event_id, type, key, payload::text, headers::text,
             (extract(epoch FROM created_at) * 1000)::int8,
             (extract(epoch FROM clock_timestamp()) * 1000)::int8
         FROM tidegate_event WHERE id = ANY ($1)",
    )
    .bind(&taken.order)
    .fetch_all(&mut *connection)
    .await?;
    let mut events = ClaimedEvents::default();
    let mut now_ms = 0;
    for row in &rows {
        let Some(claim) = taken.claim(row.try_get(0)?, row.event_id(1)?) else {
            continue;
        };
        now_ms = row.try_get(7)?;
        let (type_name, key) = (row.try_get(2)?, row.try_get(3)?);
        let headers = headers_of(row.try_get(5)?);
        let texts = (type_name, key, row.try_get(4)?, headers);
        events.add(&taken, claim, texts, row.try_get(6)?);
    }
    if events.have_keys() {
        for (batch, ids) in &taken.batches {
            let blocked = sqlx::query_scalar("SELECT tidegate_blocked($1, $2)")
                .bind(batch)
                .bind(ids)
                .fetch_all(&mut *connection);
            events.block(blocked.await?);
        }
    }
    // A first claim finds nothing that a handler has said before.
    let again = taken.claimed_again();
    if !again.is_empty() {
        let rows = sqlx::query(
            "SELECT id, handler_id, result, attempts, error FROM tidegate_handler_state
             WHERE id = ANY ($1)",
        )
        .bind(&again)
        .fetch_all(connection)
        .await?;
        for row in &rows {
            events.add_state(row.try_get(0)?, row.handler_state(1)?);
        }
    }
    Ok((events.in_order(&taken.order), now_ms))
}

/// Gives a batch a new token, and says which of its events are open.
pub(super) async fn reopen(
    connection: &mut PgConnection,
    batch: i64,
    token: i64,
) -> Result<Option<(i64, Vec<i64>)>, sqlx::Error> {
    let next: Option<i64> = sqlx::query_scalar(
        "UPDATE tidegate_batch SET token = token + 1 WHERE id = $1 AND token = $2
         RETURNING token",
    )
    .bind(batch)
    .bind(token)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(next) = next else {
        return Ok(None);
    };
    // A statement of its own: the one before may have waited for the settle whose answer was lost, and
    // would not have seen what that wrote.
    let left: Option<Vec<i64>> = sqlx::query_scalar(
        "SELECT tidegate_remaining(ids) FROM tidegate_batch
         WHERE id = $1 AND token = $2",
    )
    .bind(batch)
    .bind(next)
    .fetch_optional(connection)
    .await?;
    Ok(left.map(|left| (next, left)))
}

pub(super) async fn renew(
    connection: &mut PgConnection,
    leases: Vec<LeaseId>,
    lease: i64,
) -> Result<Vec<LeaseId>, sqlx::Error> {
    let (mut batches, mut batch_tokens) = (Vec::new(), Vec::new());
    let (mut ids, mut tokens) = (Vec::new(), Vec::new());
    for one in &leases {
        match *one {
            LeaseId::Batch { batch, token } => {
                batches.push(batch);
                batch_tokens.push(token);
            }
            LeaseId::Row { id, token } => {
                ids.push(id);
                tokens.push(token);
            }
        }
    }
    let mut kept = BTreeSet::new();
    if !batches.is_empty() {
        let rows = sqlx::query(
            "UPDATE tidegate_batch b
             SET locked_until = clock_timestamp() + $3 * interval '1 millisecond',
                 is_confirmed = true, locked_by = CASE WHEN $3 = 0 THEN '' ELSE b.locked_by END
             FROM unnest($1::int8[], $2::int8[]) w(id, token)
             WHERE b.id = w.id AND b.token = w.token RETURNING b.id, b.token",
        )
        .bind(batches)
        .bind(batch_tokens)
        .bind(lease)
        .fetch_all(&mut *connection)
        .await?;
        for row in rows {
            kept.insert(LeaseId::Batch {
                batch: row.try_get(0)?,
                token: row.try_get(1)?,
            });
        }
    }
    if !ids.is_empty() {
        let rows = sqlx::query(
            "WITH held AS MATERIALIZED (
                 SELECT r.id FROM tidegate_event_row r
                 JOIN unnest($1::int8[], $2::int8[]) w(id, token)
                     ON r.id = w.id AND r.token = w.token
                 WHERE r.locked_by IS NOT NULL ORDER BY r.id FOR UPDATE OF r)
             UPDATE tidegate_event_row r
             SET due_at = clock_timestamp() + $3 * interval '1 millisecond',
                 is_confirmed = true, locked_by = CASE WHEN $3 = 0 THEN NULL ELSE r.locked_by END
             FROM held WHERE r.id = held.id RETURNING r.id, r.token",
        )
        .bind(ids)
        .bind(tokens)
        .bind(lease)
        .fetch_all(&mut *connection)
        .await?;
        for row in rows {
            kept.insert(LeaseId::Row {
                id: row.try_get(0)?,
                token: row.try_get(1)?,
            });
        }
    }
    Ok(leases
        .into_iter()
        .filter(|one| !kept.contains(one))
        .collect())
}
