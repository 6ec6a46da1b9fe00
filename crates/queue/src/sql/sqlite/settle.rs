//! Settling: a lease that is not ours any more changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sqlx::{AssertSqlSafe, SqliteConnection};
use tidegate_core::EventId;
use tidegate_store::sql::{SqlConnection, SqlList, SqlValue};
use tidegate_store::{posting, sqlx};

use super::super::COMPONENT;
use super::super::columns::{TransitionEffect, goal, keys_of, postings_of};
use super::super::maintain::registry_version;
use super::super::settle::{PUBLISHER, Recorded, SettleStatements};
use super::claim::{OPEN, release};
use super::{SqliteBackend, json, publish};
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::{HandlerCommit, HandlerState, LeaseId, Settlement, Transition};

/// One finished event.
#[derive(Serialize)]
struct Logged {
    id: i64,
    attempts: i64,
    set: Option<i64>,
    failed: bool,
    errors: Option<String>,
}

impl SqliteBackend {
    pub(super) async fn settle_transitions(
        &self,
        settlement: &Settlement,
        now: i64,
    ) -> Result<Vec<i64>, QueueError> {
        let settlement = settlement.clone();
        let stale = self.sqlite.write("settle events", move |db| {
            Box::pin(async move {
                if let Some(version) = settlement.registry
                    && version != registry_version(db).await?
                {
                    return Ok(None);
                }
                Ok(Some(settle(db, &settlement, now).await?))
            })
        });
        stale.await?.ok_or(QueueError::RegistryChanged)
    }
}

/// Which of these events are finished, have a row of their own, or were removed since: their batch goes on
/// listing them, and they are not its own any more.
async fn settled(db: &mut SqliteConnection, ids: &[i64]) -> Result<BTreeSet<i64>, sqlx::Error> {
    let sql = format!("SELECT i.value FROM json_each(?) i WHERE NOT ({OPEN})");
    let settled: Vec<i64> = db.fetch_all(AssertSqlSafe(sql), &[&SqlList(ids)]).await?;
    Ok(settled.into_iter().collect())
}

/// How often the events of a claim were claimed, if the claim still holds.
async fn fence(db: &mut SqliteConnection, held: LeaseId) -> Result<Option<i64>, sqlx::Error> {
    match held {
        LeaseId::Batch { batch, token } => {
            let sql = "SELECT attempts FROM tidegate_batch WHERE id = ? AND token = ?";
            db.fetch_optional(sql, &[&batch, &token]).await
        }
        LeaseId::Row { id, token } => {
            let sql = "SELECT attempts FROM tidegate_event_row
                 WHERE id = ? AND token = ? AND locked_by IS NOT NULL";
            db.fetch_optional(sql, &[&id, &token]).await
        }
    }
}

async fn settle(
    db: &mut SqliteConnection,
    settlement: &Settlement,
    now: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    let (transitions, mut stale) = settlement.once_each();
    let mut done: Vec<&Transition> = Vec::new();
    let mut logged = Vec::new();
    let mut sets = BTreeMap::new();
    let mut known: Option<(LeaseId, Option<i64>)> = None;
    let of_batch = |one: &&Transition| matches!(one.claim.lease, LeaseId::Batch { .. });
    let listed = transitions.iter().copied().filter(of_batch);
    let listed: Vec<i64> = listed.map(|one| one.claim.id).collect();
    let settled = match listed.is_empty() {
        true => BTreeSet::new(),
        false => settled(db, &listed).await?,
    };
    for one in transitions {
        let held = one.claim.lease;
        let attempts = match known {
            Some((of, attempts)) if of == held => attempts,
            _ => fence(db, held).await?,
        };
        known = Some((held, attempts));
        let attempts = attempts.filter(|_| !of_batch(&one) || !settled.contains(&one.claim.id));
        let Some(attempts) = attempts else {
            stale.push(one.claim.id);
            continue;
        };
        apply(db, one, attempts, now, (&mut logged, &mut sets)).await?;
        for state in &one.states {
            remember(db, one.claim.id, state, now).await?;
        }
        done.push(one);
    }
    log(db, &logged, now).await?;
    posting::write_sqlite(db, COMPONENT, &postings_of(&done)).await?;
    for held in &settlement.finished {
        if let LeaseId::Batch { batch, token } = *held {
            // Should something be left in it after all, it comes back when the lease ends.
            let sql = format!(
                "DELETE FROM tidegate_batch WHERE id = ? AND token = ?
                 AND NOT EXISTS (SELECT 1 FROM json_each(ids) i WHERE {OPEN})"
            );
            db.execute(AssertSqlSafe(sql), &[&batch, &token]).await?;
        }
    }
    release(db, &keys_of(settlement), now).await?;
    Ok(stale)
}

async fn apply(
    db: &mut SqliteConnection,
    one: &Transition,
    attempts: i64,
    now: i64,
    (logged, sets): (&mut Vec<Logged>, &mut BTreeMap<String, i64>),
) -> Result<(), sqlx::Error> {
    let id = one.claim.id;
    match goal(one) {
        TransitionEffect::Log { errors, handlers } => {
            if matches!(one.claim.lease, LeaseId::Row { .. }) {
                let sql = "DELETE FROM tidegate_event_row WHERE id = ?";
                db.execute(sql, &[&id]).await?;
            }
            let set = match handlers {
                Some(handlers) => Some(set_of(db, handlers, sets).await?),
                None => None,
            };
            logged.push(Logged {
                id,
                attempts,
                set,
                failed: errors.is_some(),
                errors,
            });
        }
        TransitionEffect::Row(onward) => {
            let due = onward.after_ms.map(|after| now + after);
            let sql = "INSERT INTO tidegate_event_row (id, lane, key, place, attempts, due_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (id) DO UPDATE SET lane = ?2, place = ?4, due_at = ?6, updated_at = ?7,
                     token = token + 1, locked_by = NULL, abandoned = 0, is_confirmed = 1";
            db.execute(
                sql,
                &[
                    &id,
                    &onward.lane,
                    &one.key,
                    &onward.place.to_string(),
                    &attempts,
                    &due,
                    &now,
                ],
            )
            .await?;
        }
    }
    Ok(())
}

async fn log(db: &mut SqliteConnection, logged: &[Logged], now: i64) -> Result<(), sqlx::Error> {
    if logged.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = logged.iter().map(|one| one.id).collect();
    let sql = "INSERT INTO tidegate_log_batch (finalized_at, ids) VALUES (?, ?) RETURNING id";
    let batch: i64 = db.fetch_one(sql, &[&now, &SqlList(&ids)]).await?;
    let sql = "INSERT INTO tidegate_log (id, batch, ordinal, attempts, handlers, is_failed, errors)
         SELECT value ->> 'id', ?2, key, value ->> 'attempts', value ->> 'set',
             value ->> 'failed', value ->> 'errors'
         FROM json_each(?1)";
    db.execute(sql, &[&json(&logged), &batch]).await.map(drop)
}

/// The number of a set of handlers, made where it is missing. Most events of a settle have the same,
/// and asking costs more than all the rest that is done for an event.
async fn set_of(
    db: &mut SqliteConnection,
    handlers: String,
    known: &mut BTreeMap<String, i64>,
) -> Result<i64, sqlx::Error> {
    if let Some(id) = known.get(&handlers) {
        return Ok(*id);
    }
    let sql = "SELECT id FROM tidegate_handler_set WHERE handlers = ?";
    let id = match db.fetch_optional(sql, &[&handlers]).await? {
        Some(id) => id,
        None => {
            let sql = "INSERT INTO tidegate_handler_set (handlers) VALUES (?) RETURNING id";
            db.fetch_one(sql, &[&handlers]).await?
        }
    };
    known.insert(handlers, id);
    Ok(id)
}

async fn remember(
    db: &mut SqliteConnection,
    id: i64,
    state: &HandlerState,
    now: i64,
) -> Result<(), sqlx::Error> {
    let sql =
        "INSERT INTO tidegate_handler_state (id, handler_id, result, attempts, error, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id, handler_id) DO UPDATE
         SET result = ?3, attempts = ?4, error = ?5, updated_at = ?6";
    let (handler, error) = (&state.handler, &state.error);
    let (result, attempts) = (state.result.as_str(), i64::from(state.attempts));
    let values: [&dyn SqlValue; 6] = [&id, handler, &result, &attempts, error, &now];
    db.execute(sql, &values).await.map(drop)
}

impl SettleStatements for SqliteConnection {
    async fn insert(&mut self, events: &[NewEvent], now: i64) -> Result<Vec<i64>, sqlx::Error> {
        publish::insert(self, events, now).await
    }

    async fn guard(&mut self, id: EventId, now: i64) -> Result<bool, sqlx::Error> {
        let sql = "INSERT INTO event_inbox (handler_id, event_id, sub_task, created_at)
             VALUES (?, ?, '', ?) ON CONFLICT DO NOTHING";
        Ok(self.execute(sql, &[&PUBLISHER, &id, &now]).await? > 0)
    }

    async fn record(&mut self, commit: &HandlerCommit, now: i64) -> Result<Recorded, sqlx::Error> {
        if fence(self, commit.claim.lease).await?.is_none() {
            return Ok(Recorded::Nothing);
        }
        let is_of_batch = matches!(commit.claim.lease, LeaseId::Batch { .. });
        if is_of_batch && !settled(self, &[commit.claim.id]).await?.is_empty() {
            return Ok(Recorded::Nothing);
        }
        // Before anything is written: nobody else writes meanwhile.
        let sql = "SELECT EXISTS (SELECT 1 FROM event_inbox WHERE handler_id = ? AND event_id = ?
             AND sub_task IN (SELECT value FROM json_each(?)))";
        let (handler, event_id) = (&commit.state.handler, &commit.event_id);
        let is_guarded = self.fetch_one(sql, &[handler, event_id, &SqlList(&commit.done)]);
        if is_guarded.await? {
            return Ok(Recorded::Guarded);
        }
        remember(self, commit.claim.id, &commit.state, now).await?;
        for sub_task in &commit.done {
            let sql = "INSERT INTO event_inbox (handler_id, event_id, sub_task, created_at)
             VALUES (?, ?, ?, ?)";
            self.execute(sql, &[handler, event_id, sub_task, &now])
                .await?;
        }
        self.insert(&commit.follow_ups, now).await?;
        Ok(Recorded::Whole)
    }
}
