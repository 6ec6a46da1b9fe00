//! A right to something for a time.
//!
//! One owner at a time holds a name, until a moment on the database's clock (PostgreSQL) or on this
//! host's (SQLite, which has one host). Each new owner gets a larger token. Whatever the owner writes
//! is written only where the token is still the newest. So an owner that stood still for too long
//! changes nothing when it wakes up.

use std::time::Duration;

use crate::{Store, StoreError, StoreTx, span_ms};

/// A lease that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a lease that nobody keeps runs out"]
pub struct Lease {
    /// The name of the right.
    pub name: String,
    /// Larger than that of every owner before.
    pub token: i64,
}

/// Takes the lease of `name`, when nobody has it, for `span`.
///
/// Gives none while another owner holds it. The same owner asking again does not get it either:
/// it has the token already, and [`renew`]s with it. If canceled, it may be taken, and runs out.
///
/// # Errors
/// The database is away or refused.
pub async fn acquire(
    store: &Store,
    name: &str,
    owner: &str,
    span: Duration,
) -> Result<Option<Lease>, StoreError> {
    let doing = "take a lease";
    let (name, owner) = (name.to_owned(), owner.to_owned());
    let span = span_ms(span);
    let token: Option<i64> = match store {
        Store::Postgres(postgres) => {
            let (name, owner) = (name.clone(), owner);
            postgres
                .run(doing, move |connection| {
                    Box::pin(async move {
                        sqlx::query_scalar(
                            "INSERT INTO tidegate_lease AS l (name, owner, token, until)
                             VALUES ($1, $2, 1, clock_timestamp() + $3 * interval '1 millisecond')
                             ON CONFLICT (name) DO UPDATE
                             SET owner = excluded.owner, token = l.token + 1, until = excluded.until
                             WHERE l.until < clock_timestamp()
                             RETURNING token",
                        )
                        .bind(name)
                        .bind(owner)
                        .bind(span)
                        .fetch_optional(connection)
                        .await
                    })
                })
                .await?
        }
        Store::Sqlite(sqlite) => {
            let (name, owner, now) = (name.clone(), owner, sqlite.now_ms());
            sqlite
                .write(doing, move |connection| {
                    Box::pin(async move {
                        sqlx::query_scalar(
                            "INSERT INTO tidegate_lease AS l (name, owner, token, until)
                             VALUES (?1, ?2, 1, ?4 + ?3)
                             ON CONFLICT (name) DO UPDATE
                             SET owner = excluded.owner, token = l.token + 1, until = excluded.until
                             WHERE l.until < ?4
                             RETURNING token",
                        )
                        .bind(name)
                        .bind(owner)
                        .bind(span)
                        .bind(now)
                        .fetch_optional(connection)
                        .await
                    })
                })
                .await?
        }
    };
    Ok(token.map(|token| Lease { name, token }))
}

/// Holds the lease for `span` from now, and says whether it was still ours.
///
/// # Errors
/// The database is away or refused.
pub async fn renew(store: &Store, lease: &Lease, span: Duration) -> Result<bool, StoreError> {
    let doing = "renew a lease";
    let (name, token) = (lease.name.clone(), lease.token);
    let span = span_ms(span);
    let changed = match store {
        Store::Postgres(postgres) => {
            postgres
                .run(doing, move |connection| {
                    Box::pin(async move {
                        let done = sqlx::query(
                            "UPDATE tidegate_lease
                             SET until = clock_timestamp() + $3 * interval '1 millisecond'
                             WHERE name = $1 AND token = $2",
                        )
                        .bind(name)
                        .bind(token)
                        .bind(span)
                        .execute(connection)
                        .await?;
                        Ok(done.rows_affected())
                    })
                })
                .await?
        }
        Store::Sqlite(sqlite) => {
            let until = sqlite.now_ms() + span;
            sqlite
                .write(doing, move |connection| {
                    Box::pin(async move {
                        let done = sqlx::query(
                            "UPDATE tidegate_lease SET until = ?3 WHERE name = ?1 AND token = ?2",
                        )
                        .bind(name)
                        .bind(token)
                        .bind(until)
                        .execute(connection)
                        .await?;
                        Ok(done.rows_affected())
                    })
                })
                .await?
        }
    };
    Ok(changed > 0)
}

/// Gives the lease back, so that the next owner need not wait. Giving back one that was taken over
/// changes nothing.
///
/// # Errors
/// The database is away or refused; the lease then runs out by itself.
pub async fn release(store: &Store, lease: Lease) -> Result<(), StoreError> {
    renew(store, &lease, Duration::ZERO).await?;
    Ok(())
}

/// Whether `lease` is the newest of its name, looked at inside `tx` and held so until its end:
/// what else is in the transaction is then fenced by it.
///
/// # Errors
/// The database is away or refused.
pub async fn holds(tx: &mut StoreTx, lease: &Lease) -> Result<bool, StoreError> {
    let doing = "check a lease";
    let limit = tx.limit();
    let found: Option<i64> = match tx {
        StoreTx::Postgres(tx) => {
            let sql = "SELECT token FROM tidegate_lease WHERE name = $1 FOR SHARE";
            let query = sqlx::query_scalar(sql).bind(&lease.name);
            limit
                .run(doing, query.fetch_optional(tx.connection()))
                .await?
        }
        StoreTx::Sqlite(tx) => {
            let sql = "SELECT token FROM tidegate_lease WHERE name = ?1";
            let query = sqlx::query_scalar(sql).bind(&lease.name);
            limit
                .run(doing, query.fetch_optional(tx.connection()))
                .await?
        }
    };
    Ok(found == Some(lease.token))
}
