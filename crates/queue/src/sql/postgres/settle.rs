//! Settling: one statement per lease, which does nothing where the lease is not ours any more.

mod rows;

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use sqlx::PgConnection;
use tidegate_core::EventId;
use tidegate_store::posting::Columns;
use tidegate_store::sql::{SqlConnection, SqlList};
use tidegate_store::sqlx;

use super::super::COMPONENT;
use super::super::columns::{ByLease, TransitionEffect, goal, keys_of, postings_of};
use super::super::settle::{PUBLISHER, Recorded, SettleStatements};
use super::claim::release;
use super::{PostgresBackend, publish};
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::{HandlerCommit, LeaseId, Settlement, Transition};
use rows::{RowPostings, settle_rows};

impl PostgresBackend {
    pub(super) async fn settle_transitions(
        &self,
        settlement: &Settlement,
    ) -> Result<Vec<i64>, QueueError> {
        let by = ByLease::of(settlement);
        let registry = settlement.registry;
        let registry = registry.map(|version| i64::try_from(version).unwrap_or(i64::MAX));
        let mut stale = by.again;
        for ((batch, token), (transitions, is_finished)) in by.batches {
            let lease = Lease {
                batch,
                token,
                is_finished,
                registry,
            };
            stale.extend(self.settle_lease(lease, transitions).await?);
        }
        if !by.rows.is_empty() {
            let columns = self.columns(&by.rows).await?;
            let claims: Vec<(i64, i64)> = by.rows.iter().map(|one| claim_of(one)).collect();
            let postings = RowPostings::of(&by.rows);
            let wanted = claims.clone();
            let settled = self.postgres.run("settle events", move |db| {
                Box::pin(settle_rows(db, wanted, columns, postings, registry))
            });
            let settled = settled.await?.ok_or(QueueError::RegistryChanged)?;
            let lost = claims.iter().filter(|claim| !settled.contains(claim));
            stale.extend(lost.map(|(id, _)| *id));
        }
        let keys = keys_of(settlement);
        if !keys.is_empty() {
            // After the settle and not with it: it takes the lock of the claim. Should it fail, or
            // should we die before it, the next expiry scan does it. The settle stands, and whoever
            // heard otherwise would settle again.
            let released = self.postgres.run("release keys", move |db| {
                Box::pin(async move { release(db, &keys).await })
            });
            if let Err(error) = released.await {
                tracing::warn!(%error, "could not release parked keys; the next expiry scan will");
            }
        }
        Ok(stale)
    }

    /// Settles events of one batch, and gives those that were not its own any more.
    async fn settle_lease(
        &self,
        lease: Lease,
        mut transitions: Vec<&Transition>,
    ) -> Result<Vec<i64>, QueueError> {
        let mut stale = Vec::new();
        loop {
            let columns = self.columns(&transitions).await?;
            let postings = Columns::of(&postings_of(&transitions));
            let settled = self.postgres.run("settle a batch", move |db| {
                Box::pin(settle_batch(db, lease, columns, postings))
            });
            let Some(settled) = settled.await? else {
                stale.extend(transitions.iter().map(|one| one.claim.id));
                return Ok(stale);
            };
            let settled = settled.ok_or(QueueError::RegistryChanged)?;
            if settled.is_empty() {
                return Ok(stale);
            }
            // Nothing happened: some were settled before. The others go without them.
            transitions.retain(|one| !settled.contains(&one.claim.id));
            stale.extend(settled);
        }
    }

    async fn columns(&self, transitions: &[&Transition]) -> Result<TransitionColumns, QueueError> {
        let mut columns = TransitionColumns::default();
        for one in transitions {
            let (id, token) = claim_of(one);
            match goal(one) {
                TransitionEffect::Log { errors, handlers } => {
                    let set = match handlers {
                        Some(handlers) => Some(self.set_of(&handlers).await?),
                        None => None,
                    };
                    columns.final_ids.push(id);
                    columns.final_tokens.push(token);
                    columns.sets.push(set);
                    columns.are_failed.push(errors.is_some());
                    columns.errors.push(errors);
                }
                TransitionEffect::Row(onward) => {
                    columns.row_ids.push(id);
                    columns.row_tokens.push(token);
                    columns.lanes.push(onward.lane);
                    columns.keys.push(one.key.clone());
                    columns.places.push(onward.place.to_string());
                    columns.afters.push(onward.after_ms.unwrap_or(-1));
                }
            }
            for state in &one.states {
                columns.state_ids.push(id);
                columns.state_tokens.push(token);
                columns.handlers.push(state.handler.clone());
                columns.results.push(state.result.as_str());
                columns
                    .attempts
                    .push(i32::try_from(state.attempts).unwrap_or(i32::MAX));
                columns.state_errors.push(state.error.clone());
            }
        }
        Ok(columns)
    }

    /// The number of a set of handlers, made where it is missing.
    async fn set_of(&self, handlers: &str) -> Result<i32, QueueError> {
        let known = self.sets().get(handlers).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let text = handlers.to_owned();
        let id = self.postgres.run("name a set of handlers", move |db| {
            Box::pin(async move {
                let sql = "INSERT INTO tidegate_handler_set (handlers) VALUES ($1)
                    ON CONFLICT DO NOTHING";
                db.execute(sql, &[&text]).await?;
                let sql = "SELECT id FROM tidegate_handler_set WHERE handlers = $1";
                db.fetch_one(sql, &[&text]).await
            })
        });
        let id = id.await?;
        self.sets().insert(handlers.to_owned(), id);
        Ok(id)
    }

    pub(super) fn sets(&self) -> MutexGuard<'_, BTreeMap<String, i32>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The batch that events are settled from.
#[derive(Clone, Copy)]
struct Lease {
    batch: i64,
    token: i64,
    /// Whether it ends with these events, unless others of it are open.
    is_finished: bool,
    /// The version of the registry that was decided by, where that matters.
    registry: Option<i64>,
}

/// By which claim an event is moved: its number and the token.
fn claim_of(one: &Transition) -> (i64, i64) {
    let token = match one.claim.lease {
        LeaseId::Batch { token, .. } | LeaseId::Row { token, .. } => token,
    };
    (one.claim.id, token)
}

/// Moves by what the statement does with them. Those of rows go by number and token together: a process
/// that stood still for longer than its lease may settle an old and a new claim of the same event at once.
#[derive(Default)]
struct TransitionColumns {
    final_ids: Vec<i64>,
    final_tokens: Vec<i64>,
    sets: Vec<Option<i32>>,
    are_failed: Vec<bool>,
    errors: Vec<Option<String>>,
    row_ids: Vec<i64>,
    row_tokens: Vec<i64>,
    lanes: Vec<String>,
    keys: Vec<Option<String>>,
    places: Vec<String>,
    afters: Vec<i64>,
    state_ids: Vec<i64>,
    state_tokens: Vec<i64>,
    handlers: Vec<String>,
    results: Vec<&'static str>,
    attempts: Vec<i32>,
    state_errors: Vec<Option<String>>,
}

/// Settles all of these events, or none where some were settled before: those it gives. None where
/// the lease is not ours any more, and none inside of that where the registry is another.
///
/// An event that a batch lists and that is neither in the log nor in a row is the batch's own. It stays
/// so while the batch's row is locked: whoever settles it or takes it over needs the same lock, and
/// nobody else may touch it. A batch of which nothing was settled lists its own only, so that nothing
/// needs to be looked up for it. For another batch that look comes after the lock, with a snapshot that
/// is as new.
async fn settle_batch(
    connection: &mut PgConnection,
    lease: Lease,
    columns: TransitionColumns,
    postings: Columns,
) -> Result<Option<Option<Vec<i64>>>, sqlx::Error> {
    sqlx::query_scalar(
        "WITH locked AS MATERIALIZED (
             SELECT attempts, ids, is_parted FROM tidegate_batch
             WHERE id = $1 AND token = $2 FOR UPDATE),
         held AS MATERIALIZED (
             SELECT attempts, ids, is_parted, CASE
                 WHEN $24::int8 IS NOT NULL AND tidegate_registry() IS DISTINCT FROM $24
                 THEN NULL WHEN is_parted
                 THEN tidegate_settled($4::int8[] || $8::int8[]) ELSE '{}' END AS settled
             FROM locked),
         lease AS MATERIALIZED (
             SELECT attempts, is_parted, $3 AND CASE WHEN is_parted
                 THEN NOT EXISTS (SELECT 1 FROM unnest(tidegate_remaining(ids)) i(id)
                     WHERE i.id <> ALL ($4) AND i.id <> ALL ($8))
                 ELSE cardinality(ids) = cardinality($4) + cardinality($8) END AS is_last
             FROM held WHERE settled = '{}'),
         gone AS (DELETE FROM tidegate_batch b USING lease WHERE b.id = $1 AND lease.is_last),
         parted AS (
             UPDATE tidegate_batch b SET is_parted = true FROM lease
             WHERE b.id = $1 AND NOT lease.is_last AND NOT lease.is_parted),
         together AS (
             INSERT INTO tidegate_log_batch (ids)
             SELECT $4 FROM lease WHERE cardinality($4::int8[]) > 0 RETURNING id),
         logged AS (
             INSERT INTO tidegate_log (id, batch, ordinal, attempts, handlers, is_failed, errors)
             SELECT f.id, together.id, f.n - 1, lease.attempts, f.handlers, f.is_failed,
                 f.errors::jsonb
             FROM unnest($4::int8[], $5::int4[], $6::bool[], $7::text[])
                 WITH ORDINALITY f(id, handlers, is_failed, errors, n), together, lease),
         rowed AS (
             INSERT INTO tidegate_event_row (id, lane, key, place, attempts, due_at)
             SELECT r.id, r.lane, r.key, r.place, lease.attempts,
                 CASE WHEN r.after < 0 THEN 'infinity'
                      ELSE clock_timestamp() + r.after * interval '1 millisecond' END
             FROM unnest($8::int8[], $9::text[], $10::text[], $11::text[], $12::int8[])
                 r(id, lane, key, place, after), lease),
         stated AS (
             INSERT INTO tidegate_handler_state AS h (id, handler_id, result, attempts, error)
             SELECT s.* FROM
                 unnest($13::int8[], $14::text[], $15::text[], $16::int4[], $17::text[]) s, lease
             ON CONFLICT (id, handler_id) DO UPDATE SET result = excluded.result,
                 attempts = excluded.attempts, error = excluded.error,
                 updated_at = clock_timestamp()),
         posted AS (
             INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
             SELECT $23, p.* FROM
                 unnest($18::text[], $19::text[], $20::text[], $21::int8[], $22::uuid[]) p, lease)
         SELECT settled FROM held",
    )
    .bind(lease.batch)
    .bind(lease.token)
    .bind(lease.is_finished)
    .bind(columns.final_ids)
    .bind(columns.sets)
    .bind(columns.are_failed)
    .bind(columns.errors)
    .bind(columns.row_ids)
    .bind(columns.lanes)
    .bind(columns.keys)
    .bind(columns.places)
    .bind(columns.afters)
    .bind(columns.state_ids)
    .bind(columns.handlers)
    .bind(columns.results)
    .bind(columns.attempts)
    .bind(columns.state_errors)
    .bind(postings.buckets)
    .bind(postings.froms)
    .bind(postings.tos)
    .bind(postings.counts)
    .bind(postings.sums)
    .bind(COMPONENT)
    .bind(lease.registry)
    .fetch_optional(connection)
    .await
}

impl SettleStatements for PgConnection {
    async fn insert(&mut self, events: &[NewEvent], _now: i64) -> Result<Vec<i64>, sqlx::Error> {
        publish::insert(self, events).await
    }

    async fn guard(&mut self, id: EventId, _now: i64) -> Result<bool, sqlx::Error> {
        let sql = "INSERT INTO event_inbox (handler_id, event_id, sub_task) VALUES ($1, $2, '')
             ON CONFLICT DO NOTHING";
        Ok(self.execute(sql, &[&PUBLISHER, &id]).await? > 0)
    }

    async fn record(&mut self, commit: &HandlerCommit, _now: i64) -> Result<Recorded, sqlx::Error> {
        let fence: Option<i64> = match commit.claim.lease {
            LeaseId::Batch { batch, token } => {
                let sql = "WITH locked AS MATERIALIZED (
                     SELECT id, is_parted FROM tidegate_batch
                     WHERE id = $1 AND token = $2 FOR SHARE)
                 SELECT id FROM locked
                 WHERE NOT is_parted OR tidegate_settled(ARRAY[$3::int8]) = '{}'";
                self.fetch_optional(sql, &[&batch, &token, &commit.claim.id])
                    .await?
            }
            LeaseId::Row { id, token } => {
                let sql =
                    "SELECT id FROM tidegate_event_row WHERE id = $1 AND token = $2 FOR SHARE";
                self.fetch_optional(sql, &[&id, &token]).await?
            }
        };
        if fence.is_none() {
            return Ok(Recorded::Nothing);
        }
        let state = &commit.state;
        let sql = "INSERT INTO tidegate_handler_state (id, handler_id, result, attempts, error)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (id, handler_id) DO UPDATE SET result = excluded.result,
             attempts = excluded.attempts, error = excluded.error, updated_at = clock_timestamp()";
        self.execute(
            sql,
            &[
                &commit.claim.id,
                &state.handler,
                &state.result.as_str(),
                &i32::try_from(state.attempts).unwrap_or(i32::MAX),
                &state.error,
            ],
        )
        .await?;
        if !commit.done.is_empty() {
            // It waits for whoever is about to write the same.
            let sql = "INSERT INTO event_inbox (handler_id, event_id, sub_task)
             SELECT $1, $2, * FROM unnest($3::text[]) ON CONFLICT DO NOTHING";
            let done = SqlList(&commit.done);
            let guards = self.execute(sql, &[&state.handler, &commit.event_id, &done]);
            if guards.await? < commit.done.len() as u64 {
                return Ok(Recorded::Guarded);
            }
        }
        publish::insert(self, &commit.follow_ups).await?;
        Ok(Recorded::Whole)
    }
}
