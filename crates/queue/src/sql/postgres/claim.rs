//! Claiming: batches that ran out, rows that are due, then what is fresh.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{PgConnection, Row};
use tidegate_core::books::Place;
use tidegate_store::{span_ms, sqlx};

use super::super::columns::{PARKED_KEYS, ParkedKeys, place_of, small, unsigned};
use super::maintain::read_registry;
use super::{PostgresQueue, id_of};
use crate::QueueError;
use crate::event::headers_of;
use crate::port::{
    Claim, ClaimRequest, Claimed, ClaimedEvent, HandlerResult, HandlerState, Held, Lane, PATIENCE,
};

/// What was claimed, before the events are read.
struct Taken {
    held: BTreeMap<i64, (Held, u32, Place)>,
    order: Vec<i64>,
    batches: Vec<(i64, Vec<i64>)>,
    /// Those of which leases ran out, and how many.
    abandoned: BTreeMap<i64, u32>,
    registry: u64,
}

/// What a look for claims that ran out saw of the numbers of batches.
struct Numbers {
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
        let is_rescue = request.rescue;
        let (claimed, numbers, parked) = self
            .postgres
            .run("claim events", move |connection| {
                Box::pin(async move {
                    let claimed = claim(connection, &request, floor, &mut parked).await?;
                    Ok((claimed.0, claimed.1, parked))
                })
            })
            .await?;
        if is_rescue {
            *self.parked() = parked;
        }
        match numbers {
            // What was seen before the call is given out a second time.
            Some(numbers) if numbers.last < known => {
                self.last_batch.store(numbers.last, Ordering::Relaxed);
                self.begin_anew();
            }
            // Numbers of batches are given out under the lock of the claim, so none comes below.
            Some(numbers) => {
                self.last_batch.fetch_max(numbers.last, Ordering::Relaxed);
                self.floor.fetch_max(numbers.floor, Ordering::Relaxed);
            }
            None => {}
        }
        Ok(claimed)
    }

    pub(super) async fn renew_leases(
        &self,
        held: &[Held],
        lease: Duration,
    ) -> Result<Vec<Held>, QueueError> {
        let held = held.to_vec();
        let lost = self
            .postgres
            .run("renew claims", move |connection| {
                Box::pin(async move { renew(connection, held, span_ms(lease)).await })
            })
            .await?;
        Ok(lost)
    }

    pub(super) async fn reopen_batch(
        &self,
        batch: i64,
        token: i64,
    ) -> Result<Option<(i64, Vec<i64>)>, QueueError> {
        let found = self
            .postgres
            .run("reopen a batch", move |connection| {
                Box::pin(async move {
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
                    // A statement of its own: the one before may have waited for the settle whose
                    // answer was lost, and would not have seen what that wrote.
                    let left: Option<Vec<i64>> = sqlx::query_scalar(
                        "SELECT tidegate_remaining(ids) FROM tidegate_batch
                         WHERE id = $1 AND token = $2",
                    )
                    .bind(batch)
                    .bind(next)
                    .fetch_optional(connection)
                    .await?;
                    Ok(left.map(|left| (next, left)))
                })
            })
            .await?;
        Ok(found)
    }
}

async fn claim(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    floor: i64,
    parked: &mut ParkedKeys,
) -> Result<(Claimed, Option<Numbers>), sqlx::Error> {
    let mut taken = Taken {
        held: BTreeMap::new(),
        order: Vec::new(),
        batches: Vec::new(),
        abandoned: BTreeMap::new(),
        registry: 0,
    };
    let mut numbers = None;
    if request.rescue && request.alone && request.suspects {
        take_over(connection, request, floor, PATIENCE, &mut taken).await?;
        look_at_rows(connection, request, &[Kind::Patient], &mut taken).await?;
    }
    let is_alone = !taken.order.is_empty();
    if request.rescue && !is_alone {
        numbers = Some(rescue(connection, request, floor, parked, &mut taken).await?);
    }
    if !is_alone {
        let kinds = [Kind::Trusted, Kind::Suspect];
        look_at_rows(connection, request, &kinds, &mut taken).await?;
    }
    if !is_alone && room(request, &taken) > 0 {
        fresh(connection, request, &mut taken).await?;
    } else {
        let sql = "SELECT registry FROM tidegate_queue WHERE name = 'queue'";
        taken.registry = unsigned(sqlx::query_scalar(sql).fetch_one(&mut *connection).await?);
    }
    let mut claimed = read(connection, taken).await?;
    claimed.is_alone = is_alone;
    Ok((claimed, numbers))
}

fn room(request: &ClaimRequest, taken: &Taken) -> i32 {
    let taken = u32::try_from(taken.order.len()).unwrap_or(u32::MAX);
    i32::try_from(request.limit.saturating_sub(taken)).unwrap_or(i32::MAX)
}

/// Takes over one batch that ran out, releases keys whose release was lost in a crash, and finds
/// the lowest batch there is.
async fn rescue(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    floor: i64,
    parked: &mut ParkedKeys,
    taken: &mut Taken,
) -> Result<Numbers, sqlx::Error> {
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
    Ok(Numbers { floor, last })
}

/// Takes over one batch that ran out; with patience a suspect, which has waited so many leases more.
async fn take_over(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    floor: i64,
    patience: u32,
    taken: &mut Taken,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query(
        "SELECT batch, new_token, new_attempts, claimed, new_abandoned
         FROM tidegate_take_over($1, $2, $3, $4, $5, $6)",
    )
    .bind(room(request, taken))
    .bind(&request.owner)
    .bind(span_ms(request.lease))
    .bind(floor)
    .bind(request.suspects)
    .bind(i32::try_from(patience).unwrap_or(i32::MAX))
    .fetch_one(connection)
    .await?;
    let batch: Option<i64> = row.try_get(0)?;
    let ids: Option<Vec<i64>> = row.try_get(3)?;
    if let (Some(batch), Some(ids)) = (batch, ids) {
        let token = row.try_get(1)?;
        let attempts: i32 = row.try_get(2)?;
        taken.ran_out(&ids, row.try_get(4)?);
        taken.batch(batch, token, attempts, ids);
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

/// The lanes whose rows are for this claimer.
async fn served_lanes(
    connection: &mut PgConnection,
    request: &ClaimRequest,
) -> Result<Vec<String>, sqlx::Error> {
    let lanes = lanes(connection).await?;
    // A look for what others left behind finds also what was left for those who are unregistered.
    let registry = match request.rescue && !lanes.is_empty() {
        true => Some(read_registry(connection).await?),
        false => None,
    };
    let served = lanes.into_iter().filter(|lane| {
        let lane = Lane::parse(lane);
        let is_left = |registry| lane.is_left_to(&request.serves, registry);
        lane.is_served_by(&request.serves) || registry.as_ref().is_some_and(is_left)
    });
    Ok(served.collect())
}

/// Which rows are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Those of which fewer than two leases ran out.
    Trusted,
    /// One of the others.
    Suspect,
    /// One of those that have waited for long.
    Patient,
}

/// Claims rows of these kinds, one after the other. Where something that ran out was taken, no suspect
/// comes with it.
async fn look_at_rows(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    kinds: &[Kind],
    taken: &mut Taken,
) -> Result<(), sqlx::Error> {
    if !request.rows || room(request, taken) == 0 {
        return Ok(());
    }
    let lanes = served_lanes(connection, request).await?;
    for kind in kinds {
        let is_free = match kind {
            Kind::Trusted => true,
            Kind::Suspect | Kind::Patient => request.suspects && taken.abandoned.is_empty(),
        };
        if is_free && !lanes.is_empty() && room(request, taken) > 0 {
            rows(connection, request, &lanes, *kind, taken).await?;
        }
    }
    Ok(())
}

async fn rows(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    lanes: &[String],
    kind: Kind,
    taken: &mut Taken,
) -> Result<(), sqlx::Error> {
    let limit = match kind {
        Kind::Trusted => i64::from(room(request, taken)),
        Kind::Suspect | Kind::Patient => 1,
    };
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
    .bind(limit)
    .bind(&request.owner)
    .bind(span_ms(request.lease))
    .bind(kind != Kind::Trusted)
    .bind(match kind {
        Kind::Trusted | Kind::Suspect => 0,
        Kind::Patient => i32::try_from(PATIENCE).unwrap_or(i32::MAX),
    })
    .fetch_all(connection)
    .await?;
    for row in found {
        let id: i64 = row.try_get(0)?;
        let token = row.try_get(1)?;
        let attempts: i32 = row.try_get(2)?;
        let place = place_of(row.try_get(3)?);
        let held = Held::Row { id, token };
        taken.ran_out(&[id], row.try_get(4)?);
        taken.held.insert(id, (held, small(attempts.into()), place));
        taken.order.push(id);
    }
    Ok(())
}

async fn fresh(
    connection: &mut PgConnection,
    request: &ClaimRequest,
    taken: &mut Taken,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query("SELECT batch, claimed, registry FROM tidegate_claim($1, $2, $3)")
        .bind(room(request, taken))
        .bind(&request.owner)
        .bind(span_ms(request.lease))
        .fetch_one(connection)
        .await?;
    taken.registry = unsigned(row.try_get(2)?);
    if let Some(batch) = row.try_get(0)? {
        taken.batch(batch, 1, 1, row.try_get(1)?);
    }
    Ok(())
}

impl Taken {
    fn ran_out(&mut self, ids: &[i64], abandoned: i32) {
        if abandoned > 0 {
            let abandoned = small(abandoned.into());
            self.abandoned.extend(ids.iter().map(|id| (*id, abandoned)));
        }
    }

    fn batch(&mut self, batch: i64, token: i64, attempts: i32, ids: Vec<i64>) {
        for id in &ids {
            let held = Held::Batch { batch, token };
            let attempts = small(attempts.into());
            self.held.insert(*id, (held, attempts, Place::Queued));
            self.order.push(*id);
        }
        if !ids.is_empty() {
            self.batches.push((batch, ids));
        }
    }
}

/// Reads the events that were claimed. The claim stands already: should this fail, its lease runs
/// out and somebody else reads them.
async fn read(connection: &mut PgConnection, taken: Taken) -> Result<Claimed, sqlx::Error> {
    if taken.order.is_empty() {
        return Ok(Claimed {
            registry: taken.registry,
            ..Claimed::default()
        });
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
    let mut events: BTreeMap<i64, ClaimedEvent> = BTreeMap::new();
    let mut has_keys = false;
    let mut now_ms = 0;
    for row in &rows {
        let id: i64 = row.try_get(0)?;
        let Some((held, attempts, place)) = taken.held.get(&id).cloned() else {
            continue;
        };
        now_ms = row.try_get(7)?;
        let key: Option<String> = row.try_get(3)?;
        has_keys |= key.is_some();
        let event = ClaimedEvent {
            claim: Claim {
                id,
                event_id: id_of(row, 1)?,
                held,
                place,
            },
            type_name: row.try_get(2)?,
            key,
            payload: row.try_get(4)?,
            headers: headers_of(row.try_get(5)?),
            created_ms: row.try_get(6)?,
            attempts,
            abandoned: taken.abandoned.get(&id).copied().unwrap_or(0),
            is_blocked: false,
            states: Vec::new(),
        };
        events.insert(id, event);
    }
    if has_keys {
        for (batch, ids) in &taken.batches {
            let blocked: Vec<i64> = sqlx::query_scalar("SELECT tidegate_blocked($1, $2)")
                .bind(batch)
                .bind(ids)
                .fetch_all(&mut *connection)
                .await?;
            let blocked: BTreeSet<i64> = blocked.into_iter().collect();
            for event in events.values_mut() {
                event.is_blocked |= blocked.contains(&event.claim.id);
            }
        }
    }
    // A first claim finds nothing that a handler has said before.
    let told = |id: &i64| {
        taken
            .held
            .get(id)
            .is_some_and(|(_, attempts, _)| *attempts > 1)
    };
    let again: Vec<i64> = taken.order.iter().copied().filter(told).collect();
    if !again.is_empty() {
        let rows = sqlx::query(
            "SELECT id, handler_id, result, attempts, error FROM tidegate_handler_state
             WHERE id = ANY ($1)",
        )
        .bind(&again)
        .fetch_all(connection)
        .await?;
        for row in rows {
            let attempts: i32 = row.try_get(3)?;
            let state = HandlerState {
                handler: row.try_get(1)?,
                result: HandlerResult::parse(row.try_get(2)?),
                attempts: small(attempts.into()),
                error: row.try_get(4)?,
            };
            if let Some(event) = events.get_mut(&row.try_get::<i64, _>(0)?) {
                event.states.push(state);
            }
        }
    }
    let in_order = taken.order.iter().filter_map(|id| events.remove(id));
    Ok(Claimed {
        events: in_order.collect(),
        is_alone: false,
        registry: taken.registry,
        now_ms,
    })
}

async fn renew(
    connection: &mut PgConnection,
    held: Vec<Held>,
    lease: i64,
) -> Result<Vec<Held>, sqlx::Error> {
    let (mut batches, mut batch_tokens) = (Vec::new(), Vec::new());
    let (mut ids, mut tokens) = (Vec::new(), Vec::new());
    for one in &held {
        match *one {
            Held::Batch { batch, token } => {
                batches.push(batch);
                batch_tokens.push(token);
            }
            Held::Row { id, token } => {
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
            kept.insert(Held::Batch {
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
            kept.insert(Held::Row {
                id: row.try_get(0)?,
                token: row.try_get(1)?,
            });
        }
    }
    Ok(held.into_iter().filter(|one| !kept.contains(one)).collect())
}
