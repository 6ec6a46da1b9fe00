//! Settling: a lease that is not ours any more changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sqlx::SqliteConnection;
use tidegate_store::{StoreError, posting, sqlx};

use super::super::columns::{TransitionEffect, goal, keys_of, postings_of};
use super::super::{COMPONENT, Recorded};
use super::claim::{OPEN, release};
use super::leases::registry_version;
use super::{SqliteQueue, json, publish};
use crate::QueueError;
use crate::port::{HandlerCommit, HandlerState, LeaseId, QueueStore, Settlement, Transition};
use crate::tx::Tx;

/// One finished event.
#[derive(Serialize)]
struct Logged {
    id: i64,
    attempts: i64,
    set: Option<i64>,
    failed: bool,
    errors: Option<String>,
}

impl SqliteQueue {
    pub(super) async fn settle_transitions(
        &self,
        settlement: &Settlement,
    ) -> Result<Vec<i64>, QueueError> {
        let (settlement, now) = (settlement.clone(), self.sqlite.now_ms());
        let stale = self
            .sqlite
            .write("settle events", move |connection| {
                Box::pin(async move {
                    if let Some(version) = settlement.registry
                        && version != registry_version(connection).await?
                    {
                        return Ok(None);
                    }
                    Ok(Some(settle(connection, &settlement, now).await?))
                })
            })
            .await?;
        stale.ok_or(QueueError::RegistryChanged)
    }

    pub(super) async fn record_result(
        &self,
        tx: Option<Tx>,
        commit: &HandlerCommit,
    ) -> Result<bool, QueueError> {
        let now = self.sqlite.now_ms();
        let recorded = match tx {
            Some(mut tx) => {
                let limit = tx.limit()?;
                let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
                let recorded = record(connection, commit, now);
                // The commit is not asked for yet, so a failure is known to have changed nothing.
                let recorded = limit.run("record a result", recorded).await;
                let recorded = recorded.map_err(StoreError::undone)?;
                match recorded {
                    Recorded::Whole => tx.commit().await?,
                    Recorded::Nothing | Recorded::Guarded => tx.rollback().await?,
                }
                recorded
            }
            None => {
                let commit = commit.clone();
                self.sqlite
                    .write("record a result", move |connection| {
                        Box::pin(async move { record(connection, &commit, now).await })
                    })
                    .await?
            }
        };
        match recorded {
            Recorded::Whole => {}
            Recorded::Nothing => return Ok(false),
            Recorded::Guarded => {
                let event_id = commit.event_id;
                return Err(QueueError::SideEffectExists { event_id });
            }
        }
        if !commit.follow_ups.is_empty() {
            self.wake();
        }
        Ok(true)
    }
}

/// Which of these events are finished, have a row of their own, or were removed since: their batch goes on
/// listing them, and they are not its own any more.
async fn settled(
    connection: &mut SqliteConnection,
    ids: &[i64],
) -> Result<BTreeSet<i64>, sqlx::Error> {
    let sql = format!("SELECT i.value FROM json_each(?) i WHERE NOT ({OPEN})");
    let settled: Vec<i64> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .bind(json(&ids))
        .fetch_all(connection)
        .await?;
    Ok(settled.into_iter().collect())
}

/// How often the events of a claim were claimed, if the claim still holds.
async fn fence(
    connection: &mut SqliteConnection,
    held: LeaseId,
) -> Result<Option<i64>, sqlx::Error> {
    match held {
        LeaseId::Batch { batch, token } => {
            sqlx::query_scalar("SELECT attempts FROM tidegate_batch WHERE id = ? AND token = ?")
                .bind(batch)
                .bind(token)
                .fetch_optional(connection)
                .await
        }
        LeaseId::Row { id, token } => {
            sqlx::query_scalar(
                "SELECT attempts FROM tidegate_event_row
                 WHERE id = ? AND token = ? AND locked_by IS NOT NULL",
            )
            .bind(id)
            .bind(token)
            .fetch_optional(connection)
            .await
        }
    }
}

async fn settle(
    connection: &mut SqliteConnection,
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
        false => settled(connection, &listed).await?,
    };
    for one in transitions {
        let held = one.claim.lease;
        let attempts = match known {
            Some((of, attempts)) if of == held => attempts,
            _ => fence(connection, held).await?,
        };
        known = Some((held, attempts));
        let attempts = attempts.filter(|_| !of_batch(&one) || !settled.contains(&one.claim.id));
        let Some(attempts) = attempts else {
            stale.push(one.claim.id);
            continue;
        };
        let done_with = (&mut logged, &mut sets);
        apply(connection, one, attempts, now, done_with).await?;
        for state in &one.states {
            remember(connection, one.claim.id, state, now).await?;
        }
        done.push(one);
    }
    log(connection, &logged, now).await?;
    posting::write_sqlite(connection, COMPONENT, &postings_of(&done)).await?;
    for held in &settlement.finished {
        if let LeaseId::Batch { batch, token } = *held {
            // Should something be left in it after all, it comes back when the lease ends.
            let sql = format!(
                "DELETE FROM tidegate_batch WHERE id = ? AND token = ?
                 AND NOT EXISTS (SELECT 1 FROM json_each(ids) i WHERE {OPEN})"
            );
            sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(batch)
                .bind(token)
                .execute(&mut *connection)
                .await?;
        }
    }
    release(connection, &keys_of(settlement), now).await?;
    Ok(stale)
}

async fn apply(
    connection: &mut SqliteConnection,
    one: &Transition,
    attempts: i64,
    now: i64,
    (logged, sets): (&mut Vec<Logged>, &mut BTreeMap<String, i64>),
) -> Result<(), sqlx::Error> {
    let id = one.claim.id;
    let is_row = matches!(one.claim.lease, LeaseId::Row { .. });
    match goal(one) {
        TransitionEffect::Log { errors, handlers } => {
            if is_row {
                sqlx::query("DELETE FROM tidegate_event_row WHERE id = ?")
                    .bind(id)
                    .execute(&mut *connection)
                    .await?;
            }
            let set = match handlers {
                Some(handlers) => Some(set_of(connection, handlers, sets).await?),
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
            sqlx::query(
                "INSERT INTO tidegate_event_row (id, lane, key, place, attempts, due_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (id) DO UPDATE SET lane = ?2, place = ?4, due_at = ?6, updated_at = ?7,
                     token = token + 1, locked_by = NULL, abandoned = 0, is_confirmed = 1",
            )
            .bind(id)
            .bind(onward.lane)
            .bind(&one.key)
            .bind(onward.place.to_string())
            .bind(attempts)
            .bind(due)
            .bind(now)
            .execute(connection)
            .await?;
        }
    }
    Ok(())
}

async fn log(
    connection: &mut SqliteConnection,
    logged: &[Logged],
    now: i64,
) -> Result<(), sqlx::Error> {
    if logged.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = logged.iter().map(|one| one.id).collect();
    let batch: i64 = sqlx::query_scalar(
        "INSERT INTO tidegate_log_batch (finalized_at, ids) VALUES (?, ?) RETURNING id",
    )
    .bind(now)
    .bind(json(&ids))
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO tidegate_log (id, batch, ordinal, attempts, handlers, is_failed, errors)
         SELECT value ->> 'id', ?2, key, value ->> 'attempts', value ->> 'set',
             value ->> 'failed', value ->> 'errors'
         FROM json_each(?1)",
    )
    .bind(json(&logged))
    .bind(batch)
    .execute(connection)
    .await?;
    Ok(())
}

/// The number of a set of handlers, made where it is missing. Most events of a settle have the same,
/// and asking costs more than all the rest that is done for an event.
async fn set_of(
    connection: &mut SqliteConnection,
    handlers: String,
    known: &mut BTreeMap<String, i64>,
) -> Result<i64, sqlx::Error> {
    if let Some(id) = known.get(&handlers) {
        return Ok(*id);
    }
    let id: Option<i64> =
        sqlx::query_scalar("SELECT id FROM tidegate_handler_set WHERE handlers = ?")
            .bind(&handlers)
            .fetch_optional(&mut *connection)
            .await?;
    let id = match id {
        Some(id) => id,
        None => {
            let add = "INSERT INTO tidegate_handler_set (handlers) VALUES (?) RETURNING id";
            let add = sqlx::query_scalar(add).bind(&handlers);
            add.fetch_one(connection).await?
        }
    };
    known.insert(handlers, id);
    Ok(id)
}

async fn remember(
    connection: &mut SqliteConnection,
    id: i64,
    state: &HandlerState,
    now: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO tidegate_handler_state (id, handler_id, result, attempts, error, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id, handler_id) DO UPDATE
         SET result = ?3, attempts = ?4, error = ?5, updated_at = ?6",
    )
    .bind(id)
    .bind(&state.handler)
    .bind(state.result.as_str())
    .bind(i64::from(state.attempts))
    .bind(&state.error)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(())
}

/// The fence, the result, the follow-up events and the guards, in the transaction of `connection`.
async fn record(
    connection: &mut SqliteConnection,
    commit: &HandlerCommit,
    now: i64,
) -> Result<Recorded, sqlx::Error> {
    if fence(connection, commit.claim.lease).await?.is_none() {
        return Ok(Recorded::Nothing);
    }
    let is_of_batch = matches!(commit.claim.lease, LeaseId::Batch { .. });
    if is_of_batch && !settled(connection, &[commit.claim.id]).await?.is_empty() {
        return Ok(Recorded::Nothing);
    }
    // Before anything is written: nobody else writes meanwhile.
    let is_guarded: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM event_inbox WHERE handler_id = ? AND event_id = ?
             AND sub_task IN (SELECT value FROM json_each(?)))",
    )
    .bind(&commit.state.handler)
    .bind(commit.event_id.to_string())
    .bind(json(&commit.done))
    .fetch_one(&mut *connection)
    .await?;
    if is_guarded {
        return Ok(Recorded::Guarded);
    }
    remember(connection, commit.claim.id, &commit.state, now).await?;
    for sub_task in &commit.done {
        sqlx::query(
            "INSERT INTO event_inbox (handler_id, event_id, sub_task, created_at)
             VALUES (?, ?, ?, ?)",
        )
        .bind(&commit.state.handler)
        .bind(commit.event_id.to_string())
        .bind(sub_task)
        .bind(now)
        .execute(&mut *connection)
        .await?;
    }
    publish::insert(connection, &commit.follow_ups, now).await?;
    Ok(Recorded::Whole)
}
