//! The answers of requests that carry an `Idempotency-Key`.
//!
//! A request takes its key with [`begin`], does its work, and leaves its answer with [`finish`]. A repeat gets
//! that answer and does nothing. A request that failed gives the key back with [`release`].
//!
//! With [`finish`] the work and its answer are two commits. A crash between them leaves the key locked until
//! the lock runs out, and the next request does the work again. Work that must not bear a repeat keeps its
//! answer in its own transaction, with [`finish_in`].

use std::time::Duration;

use sqlx::AssertSqlSafe;
use tidegate_core::EventId;

use crate::sql::{FromColumns, OwnColumns, SqlAccess, SqlConnection, SqlDatabase};
use crate::{Store, StoreError, StoreTx, span_ms};

/// The longest key, in characters.
pub const MAX_KEY: usize = 128;
/// How long a request may take to answer before another one takes its key over.
pub const LOCK: Duration = Duration::from_secs(60);
/// Keys that one statement of [`clean`] removes, at most.
const CLEANED_AT_ONCE: i64 = 1_000;

/// A request with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedRequest {
    /// The endpoint: method and path. One key means different things at different endpoints.
    pub scope: String,
    /// The key.
    pub key: String,
    /// The hash of the request, see [`fingerprint`].
    pub fingerprint: EventId,
}

/// The right to answer for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a key that is neither finished nor released stays locked"]
pub struct KeyClaim {
    scope: String,
    key: String,
    token: i64,
    is_retry: bool,
}

impl KeyClaim {
    /// Whether the same request took this key before and left no answer. Its work may be done already.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.is_retry
    }
}

/// An answer that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// The state in which a key was found.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Nobody has used it: the work is to be done.
    New(KeyClaim),
    /// The request was answered before, with this.
    Answered(KeptAnswer),
    /// The first request with this key has not answered yet.
    Running,
    /// The key was used for another request.
    Conflict,
}

/// The hash by which a repeated request is recognized.
///
/// ```
/// use tidegate_store::idempotency::fingerprint;
/// assert_eq!(fingerprint(b"{}"), fingerprint(b"{}"));
/// assert_ne!(fingerprint(b"{}"), fingerprint(b"[]"));
/// ```
#[must_use]
pub fn fingerprint(body: &[u8]) -> EventId {
    EventId::of_bytes(0, body)
}

/// Takes a key, or says who had it. `now_ms` is the time of this host.
///
/// Returns once the key is durably taken. If canceled, it may be taken until [`LOCK`] has passed.
///
/// # Errors
/// The database is away or refused.
pub async fn begin(
    store: &Store,
    request: KeyedRequest,
    now_ms: u64,
    ttl: Duration,
) -> Result<KeyState, StoreError> {
    let doing = "take an idempotency key";
    let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let access = SqlAccess::Transact;
    match store {
        Store::Sqlite(db) => {
            db.call(access, doing, move |db| {
                Box::pin(take(db, request, now, ttl))
            })
            .await
        }
        Store::Postgres(db) => {
            db.call(access, doing, move |db| {
                Box::pin(take(db, request, now, ttl))
            })
            .await
        }
    }
}

/// Keeps an answer, unless somebody else has taken the key over.
const FINISH: &str = "UPDATE tidegate_idempotency SET locked_until = NULL, status = $4, body = $5
    WHERE scope = $1 AND key = $2 AND token = $3 AND locked_until IS NOT NULL";

/// Keeps the answer in the transaction of the work, and says whether the claim still held. If not, another
/// request does the work by now, and the transaction must be taken back.
///
/// # Errors
/// The database is away or refused.
pub async fn finish_in(
    tx: &mut StoreTx,
    claim: &KeyClaim,
    answer: &KeptAnswer,
) -> Result<bool, StoreError> {
    let doing = "keep the answer of an idempotency key";
    let KeyClaim {
        scope, key, token, ..
    } = claim;
    let status = i64::from(answer.status);
    let values: [&dyn crate::sql::SqlValue; 5] = [scope, key, token, &status, &answer.body];
    let limit = tx.limit();
    let changed = match tx {
        StoreTx::Sqlite(tx) => {
            let call = tx.connection().execute(FINISH, &values);
            limit.run(doing, call).await?
        }
        StoreTx::Postgres(tx) => {
            let call = tx.connection().execute(FINISH, &values);
            limit.run(doing, call).await?
        }
    };
    Ok(changed > 0)
}

/// Keeps the answer for repeats, and says whether the claim still held. Calling it twice keeps the first.
///
/// # Errors
/// The database is away or refused. The key is then free again after [`LOCK`].
pub async fn finish(
    store: &Store,
    claim: KeyClaim,
    answer: KeptAnswer,
) -> Result<bool, StoreError> {
    let doing = "keep the answer of an idempotency key";
    let KeyClaim {
        scope, key, token, ..
    } = claim;
    let KeptAnswer { status, body } = answer;
    let status = i64::from(status);
    let changed = match store {
        Store::Sqlite(db) => {
            let call = db.call(SqlAccess::Write, doing, move |db| {
                db.execute(FINISH, &[&scope, &key, &token, &status, &body])
            });
            call.await?
        }
        Store::Postgres(db) => {
            let call = db.call(SqlAccess::Write, doing, move |db| {
                db.execute(FINISH, &[&scope, &key, &token, &status, &body])
            });
            call.await?
        }
    };
    Ok(changed > 0)
}

/// Gives a key back after work that failed, so that the next request need not wait.
///
/// # Errors
/// The database is away or refused. The key is then free again after [`LOCK`].
pub async fn release(store: &Store, claim: KeyClaim) -> Result<(), StoreError> {
    const SQL: &str = "DELETE FROM tidegate_idempotency
        WHERE scope = $1 AND key = $2 AND token = $3 AND locked_until IS NOT NULL";
    let doing = "give an idempotency key back";
    let KeyClaim {
        scope, key, token, ..
    } = claim;
    match store {
        Store::Sqlite(db) => {
            let call = db.call(SqlAccess::Write, doing, move |db| {
                db.execute(SQL, &[&scope, &key, &token])
            });
            call.await?
        }
        Store::Postgres(db) => {
            let call = db.call(SqlAccess::Write, doing, move |db| {
                db.execute(SQL, &[&scope, &key, &token])
            });
            call.await?
        }
    };
    Ok(())
}

/// Removes keys whose time is over, a bounded number at once, and gives how many there were.
///
/// # Errors
/// The database is away or refused; the batches before stand.
pub async fn clean(store: &Store, now_ms: u64) -> Result<u64, StoreError> {
    const SQL: &str = "DELETE FROM tidegate_idempotency WHERE (scope, key) IN (
        SELECT scope, key FROM tidegate_idempotency WHERE expires_at <= $1
        ORDER BY expires_at LIMIT $2)";
    let doing = "remove old idempotency keys";
    let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let mut removed = 0;
    loop {
        let round = match store {
            Store::Sqlite(db) => {
                let call = db.call(SqlAccess::Write, doing, move |db| {
                    db.execute(SQL, &[&now, &CLEANED_AT_ONCE])
                });
                call.await?
            }
            Store::Postgres(db) => {
                let call = db.call(SqlAccess::Write, doing, move |db| {
                    db.execute(SQL, &[&now, &CLEANED_AT_ONCE])
                });
                call.await?
            }
        };
        removed += round;
        if round < CLEANED_AT_ONCE.unsigned_abs() {
            return Ok(removed);
        }
    }
}

/// The row of a key, as far as it decides.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyRow {
    fingerprint: EventId,
    token: i64,
    locked_until: Option<i64>,
    status: Option<i64>,
    body: Option<String>,
    expires_at: i64,
}

impl FromColumns for KeyRow {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok(Self {
            fingerprint: row.event_id(0)?,
            token: row.get(1)?,
            locked_until: row.get(2)?,
            status: row.get(3)?,
            body: row.get(4)?,
            expires_at: row.get(5)?,
        })
    }
}

/// The fate of a request whose key has a row.
#[derive(Debug, PartialEq, Eq)]
enum KeyVerdict {
    /// The row is as good as none: its time is over, or its request died.
    TakeOver,
    Answered(KeptAnswer),
    Running,
    Conflict,
}

fn judge(row: KeyRow, fingerprint: EventId, now: i64) -> KeyVerdict {
    if row.expires_at <= now {
        return KeyVerdict::TakeOver;
    }
    if row.fingerprint != fingerprint {
        return KeyVerdict::Conflict;
    }
    match (row.locked_until, row.status) {
        (None, Some(status)) => KeyVerdict::Answered(KeptAnswer {
            status: u16::try_from(status).unwrap_or(500),
            body: row.body.unwrap_or_default(),
        }),
        (Some(until), _) if until > now => KeyVerdict::Running,
        (Some(_) | None, _) => KeyVerdict::TakeOver,
    }
}

async fn take<C: SqlConnection>(
    db: &mut C,
    request: KeyedRequest,
    now: i64,
    ttl: Duration,
) -> Result<KeyState, sqlx::Error> {
    let KeyedRequest {
        scope,
        key,
        fingerprint,
    } = request;
    let locked_until = now.saturating_add(span_ms(LOCK));
    let expires_at = now.saturating_add(span_ms(ttl).max(span_ms(LOCK)));
    let insert = "INSERT INTO tidegate_idempotency
            (scope, key, fingerprint, token, locked_until, expires_at)
        VALUES ($1, $2, $3, 1, $4, $5) ON CONFLICT (scope, key) DO NOTHING";
    let values: [&dyn crate::sql::SqlValue; 5] =
        [&scope, &key, &fingerprint, &locked_until, &expires_at];
    if db.execute(insert, &values).await? > 0 {
        return Ok(KeyState::New(KeyClaim {
            scope,
            key,
            token: 1,
            is_retry: false,
        }));
    }
    // The row is locked until the end of the transaction, so that one request alone takes it over.
    let select = format!(
        "SELECT fingerprint, token, locked_until, status, body, expires_at
         FROM tidegate_idempotency WHERE scope = $1 AND key = $2 {}",
        C::FOR_UPDATE
    );
    let row = db.fetch_optional::<KeyRow>(AssertSqlSafe(select), &[&scope, &key]);
    let Some(row) = row.await? else {
        // It was released between the two statements; the client asks again.
        return Ok(KeyState::Running);
    };
    let token = row.token + 1;
    let is_retry = row.expires_at > now;
    match judge(row, fingerprint, now) {
        KeyVerdict::Answered(answer) => return Ok(KeyState::Answered(answer)),
        KeyVerdict::Running => return Ok(KeyState::Running),
        KeyVerdict::Conflict => return Ok(KeyState::Conflict),
        KeyVerdict::TakeOver => {}
    }
    let update = "UPDATE tidegate_idempotency
        SET fingerprint = $3, locked_until = $4, expires_at = $5, token = $6,
            status = NULL, body = NULL
        WHERE scope = $1 AND key = $2";
    let values: [&dyn crate::sql::SqlValue; 6] = [
        &scope,
        &key,
        &fingerprint,
        &locked_until,
        &expires_at,
        &token,
    ];
    db.execute(update, &values).await?;
    Ok(KeyState::New(KeyClaim {
        scope,
        key,
        token,
        is_retry,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> KeyRow {
        KeyRow {
            fingerprint: fingerprint(b"first"),
            token: 1,
            locked_until: Some(100),
            status: None,
            body: None,
            expires_at: 1_000,
        }
    }

    #[test]
    fn a_key_answers_repeats_and_refuses_other_requests() {
        let answered = KeyRow {
            locked_until: None,
            status: Some(201),
            body: Some("{}".to_owned()),
            ..row()
        };
        let kept = KeptAnswer {
            status: 201,
            body: "{}".to_owned(),
        };
        let first = fingerprint(b"first");
        assert_eq!(
            judge(answered.clone(), first, 50),
            KeyVerdict::Answered(kept)
        );
        let other = fingerprint(b"other");
        assert_eq!(judge(answered.clone(), other, 50), KeyVerdict::Conflict);
        assert_eq!(judge(answered, other, 1_000), KeyVerdict::TakeOver);
    }

    #[test]
    fn a_key_whose_request_died_is_taken_over_after_its_lock() {
        let first = fingerprint(b"first");
        assert_eq!(judge(row(), first, 99), KeyVerdict::Running);
        assert_eq!(judge(row(), first, 100), KeyVerdict::TakeOver);
        assert_eq!(
            judge(row(), fingerprint(b"other"), 100),
            KeyVerdict::Conflict
        );
    }
}
