//! The store of the outbox on either database.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::EventId;
use tidegate_core::books::{Account, Books, Posting};
use tidegate_core::env::Clock;
use tidegate_store::sql::{
    OwnColumns, SqlAccess, SqlConnection, SqlDatabase, SqlFuture, SqlList, SqlValue,
};
use tidegate_store::{Store, StoreError, span_ms, sqlx};

use super::insert::Inserter;
use super::inspect;
use super::settle::{moves, settle_rows};
use super::statements::Statements;
use crate::port::{
    BatchSettlement, BucketLease, ClaimedRow, ClaimedRows, OutboxFilter, OutboxFuture, OutboxRow,
    OutboxStats, OutboxStore, PurgeRequest, RelayLeases, RowClaim, RowSelection, Settled,
};
use crate::recount::OutboxRecount;
use crate::{NewOutboxEvent, OutboxOptions};

/// One of the two databases, as the outbox needs it.
pub(super) trait OutboxDatabase:
    SqlDatabase<Connection: OutboxConnection> + Clone + std::fmt::Debug + 'static
{
    /// The time that statements take as their last value; none where the server has it.
    fn now_ms(&self) -> Option<i64>;

    /// The statements on this outbox.
    fn statements(options: &OutboxOptions) -> Statements;
}

/// A connection of it.
pub(super) trait OutboxConnection: SqlConnection + 'static {
    /// Adds events, with their posting.
    fn insert<'c>(
        &'c mut self,
        inserter: &'c Inserter,
        events: &'c [NewOutboxEvent],
    ) -> SqlFuture<'c, Vec<EventId>>;

    /// The books of a relay.
    fn books<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books>;

    /// The same without the sums of ids.
    fn counts<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books>;

    /// Writes postings.
    fn post<'c>(&'c mut self, component: &'c str, postings: &'c [Posting]) -> SqlFuture<'c, ()>;

    /// Has the statements that follow in this transaction read by indexes, whatever the planner believes.
    fn prefer_indexes(&mut self) -> SqlFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Claims rows.
    fn claim<'c>(
        &'c mut self,
        text: &'c Statements,
        claim: &'c RowClaim,
        now: Option<i64>,
    ) -> SqlFuture<'c, ClaimedRows>;

    /// Settles a batch by one statement, where the database can, and says whether its leases were held.
    fn settle_at_once<'c>(
        &'c mut self,
        context: &'c SqlContext,
        settlement: &'c BatchSettlement,
        postings: &'c [Posting],
    ) -> SqlFuture<'c, Option<bool>>;
}

/// The outbox in a database.
#[derive(Debug)]
pub(super) struct SqlOutbox<D> {
    pub(super) database: D,
    store: Store,
    clock: Arc<dyn Clock>,
    pub(super) text: Arc<Statements>,
    inserter: Arc<Inserter>,
    pub(super) component: Arc<str>,
    /// The topic of rows that name none.
    topic: Option<Arc<str>>,
}

impl<D: OutboxDatabase> SqlOutbox<D> {
    pub(super) fn new(
        database: D,
        store: Store,
        options: &OutboxOptions,
        inserter: Arc<Inserter>,
    ) -> Self {
        Self {
            text: Arc::new(D::statements(options)),
            database,
            store,
            clock: inserter.clock(),
            inserter,
            component: options.component().into(),
            topic: options.topic.as_ref().map(|topic| topic.as_str().into()),
        }
    }

    /// Runs a call that needs the statements and the time.
    pub(super) async fn call<T, F>(
        &self,
        access: SqlAccess,
        doing: &'static str,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut D::Connection, SqlContext) -> SqlFuture<'c, T> + Send + 'static,
    {
        let context = SqlContext {
            text: Arc::clone(&self.text),
            component: Arc::clone(&self.component),
            topic: self.topic.clone(),
            now: self.database.now_ms(),
        };
        let run = self
            .database
            .call(access, doing, move |connection| call(connection, context));
        run.await
    }
}

/// The surroundings of a call.
pub(super) struct SqlContext {
    pub(super) text: Arc<Statements>,
    pub(super) component: Arc<str>,
    pub(super) topic: Option<Arc<str>>,
    pub(super) now: Option<i64>,
}

/// Adds the time to values, where statements take it.
pub(super) fn with_now<'a>(
    values: &[&'a dyn SqlValue],
    now: Option<&'a i64>,
) -> Vec<&'a dyn SqlValue> {
    let now = now.map(|now| now as &dyn SqlValue);
    values.iter().copied().chain(now).collect()
}

/// Leases as two lists.
pub(super) fn lists(leases: &[BucketLease]) -> (Vec<i64>, Vec<i64>) {
    let pairs = leases.iter().map(|l| (i64::from(l.bucket), l.token));
    pairs.unzip()
}

fn leases(rows: Vec<(i64, i64)>) -> Vec<BucketLease> {
    let lease = |(bucket, token)| BucketLease {
        bucket: u32::try_from(bucket).unwrap_or(u32::MAX),
        token,
    };
    let mut leases: Vec<BucketLease> = rows.into_iter().map(lease).collect();
    leases.sort();
    leases
}

/// A row of a claim, from its first eleven columns.
pub(super) fn claimed_row(row: &impl OwnColumns) -> Result<ClaimedRow, sqlx::Error> {
    Ok(ClaimedRow {
        id: row.get(0)?,
        bucket: row.count(1)?,
        event_id: row.event_id(2)?,
        aggregate_id: row.get(3)?,
        aggregate_type: row.get(4)?,
        type_name: row.get(5)?,
        topic: row.get(6)?,
        payload: row.get::<Option<String>>(7)?.map(Bytes::from),
        headers: row.get(8)?,
        attempts: row.count(9)?,
        created_ms: row.get(10)?,
    })
}

impl<D: OutboxDatabase> OutboxStore for SqlOutbox<D> {
    fn insert<'a>(&'a self, events: &'a [NewOutboxEvent]) -> OutboxFuture<'a, Vec<EventId>> {
        let (inserter, events) = (Arc::clone(&self.inserter), events.to_vec());
        Box::pin(async move {
            let call = self.call(
                SqlAccess::Transact,
                "add events to the outbox",
                move |c, _| Box::pin(async move { c.insert(&inserter, &events).await }),
            );
            Ok(call.await?)
        })
    }

    fn renew<'a>(
        &'a self,
        worker: &'a str,
        held: &'a [BucketLease],
        span: Duration,
    ) -> OutboxFuture<'a, RelayLeases> {
        let (worker, (buckets, tokens)) = (worker.to_owned(), lists(held));
        let span = span_ms(span);
        Box::pin(async move {
            let call = self.call(
                SqlAccess::Transact,
                "renew the leases of a relay",
                move |c, x| {
                    Box::pin(async move {
                        let values = with_now(&[&worker, &span], x.now.as_ref());
                        c.execute(x.text.renew_relay.sql(), &values).await?;
                        let (buckets, tokens) = (SqlList(&buckets), SqlList(&tokens));
                        let values = with_now(&[&worker, &buckets, &tokens, &span], x.now.as_ref());
                        let held = c.fetch_all(x.text.renew_buckets.sql(), &values).await?;
                        let values = with_now(&[], x.now.as_ref());
                        let relays: i64 = c.fetch_one(x.text.count_relays.sql(), &values).await?;
                        Ok(RelayLeases {
                            held: leases(held),
                            relays: u32::try_from(relays).unwrap_or(u32::MAX).max(1),
                        })
                    })
                },
            );
            Ok(call.await?)
        })
    }

    fn acquire<'a>(
        &'a self,
        worker: &'a str,
        count: u32,
        span: Duration,
    ) -> OutboxFuture<'a, Vec<BucketLease>> {
        let (worker, count, span) = (worker.to_owned(), i64::from(count), span_ms(span));
        Box::pin(async move {
            let call = self.call(SqlAccess::Transact, "take buckets", move |c, x| {
                Box::pin(async move {
                    let values = with_now(&[&worker, &count, &span], x.now.as_ref());
                    Ok(leases(c.fetch_all(x.text.acquire.sql(), &values).await?))
                })
            });
            Ok(call.await?)
        })
    }

    fn release<'a>(
        &'a self,
        worker: &'a str,
        held: &'a [BucketLease],
        is_leaving: bool,
    ) -> OutboxFuture<'a, ()> {
        let (worker, (buckets, tokens)) = (worker.to_owned(), lists(held));
        Box::pin(async move {
            let call = self.call(SqlAccess::Transact, "give buckets back", move |c, x| {
                Box::pin(async move {
                    let (buckets, tokens) = (SqlList(&buckets), SqlList(&tokens));
                    let values = with_now(&[&worker, &buckets, &tokens], x.now.as_ref());
                    c.execute(x.text.release.sql(), &values).await?;
                    if is_leaving {
                        for leave in &x.text.leave {
                            c.execute(leave.sql(), &[&worker]).await?;
                        }
                    }
                    Ok(())
                })
            });
            Ok(call.await?)
        })
    }

    fn claim(&self, claim: RowClaim) -> OutboxFuture<'_, ClaimedRows> {
        Box::pin(async move {
            let lane = format!("{}/{}", claim.worker, claim.lane);
            let worker = claim.worker.clone();
            let call = self.call(SqlAccess::Read, "claim rows", move |c, x| {
                Box::pin(async move { c.claim(&x.text, &claim, x.now).await })
            });
            let claimed = call.await?;
            // PostgreSQL took the note with the claim. SQLite reads beside its writer, and only a claim that
            // found something has anything to write.
            if self.database.now_ms().is_some() && !claimed.rows.is_empty() {
                let ids: Vec<i64> = claimed.rows.iter().map(|row| row.id).collect();
                let call = self.call(SqlAccess::Write, "note a claim", move |c, x| {
                    Box::pin(async move {
                        let ids = SqlList(&ids);
                        let values = with_now(&[&lane, &worker, &ids], x.now.as_ref());
                        c.execute(x.text.note_claim.sql(), &values).await
                    })
                });
                call.await?;
            }
            Ok(claimed)
        })
    }

    fn settle<'a>(&'a self, settlement: &'a BatchSettlement) -> OutboxFuture<'a, Settled> {
        let settlement = Arc::new(settlement.clone());
        Box::pin(async move {
            let doing = "settle a batch";
            let whole = Arc::clone(&settlement);
            let call = self.call(SqlAccess::Write, doing, move |c, x| {
                Box::pin(async move {
                    let postings = moves(whole.rows.iter());
                    c.settle_at_once(&x, &whole, &postings).await
                })
            });
            match call.await {
                Ok(Some(true)) => return Ok(Settled::Done),
                Ok(Some(false)) => return Ok(Settled::Fenced),
                // Rows that somebody else has changed make the statement fail as a whole.
                Ok(None) | Err(StoreError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let call = self.call(SqlAccess::Transact, doing, move |c, x| {
                Box::pin(async move { settle_rows(c, &x, &settlement).await })
            });
            Ok(call.await?)
        })
    }

    fn list<'a>(&'a self, filter: &'a OutboxFilter) -> OutboxFuture<'a, Vec<OutboxRow>> {
        Box::pin(inspect::list(self, filter.clone()))
    }

    fn show<'a>(&'a self, which: &'a RowSelection) -> OutboxFuture<'a, Option<OutboxRow>> {
        Box::pin(inspect::show(self, which.clone()))
    }

    fn retry<'a>(&'a self, which: &'a RowSelection) -> OutboxFuture<'a, u64> {
        Box::pin(inspect::retry(self, which.clone()))
    }

    fn purge(&self, request: PurgeRequest) -> OutboxFuture<'_, u64> {
        Box::pin(inspect::purge(self, request))
    }

    fn clean(&self, retention: Option<Duration>, limit: u32) -> OutboxFuture<'_, u64> {
        Box::pin(async move {
            let removed = inspect::clean(self, retention, limit).await?;
            tidegate_store::posting::fold(&self.store, &self.component, self.clock.now_ms())
                .await?;
            Ok(removed)
        })
    }

    fn stats(&self) -> OutboxFuture<'_, OutboxStats> {
        Box::pin(inspect::stats(self))
    }

    fn account(&self) -> OutboxFuture<'_, Account> {
        Box::pin(inspect::account(self))
    }

    fn books(&self) -> OutboxFuture<'_, Books> {
        Box::pin(inspect::books(self))
    }

    fn recount(&self) -> OutboxFuture<'_, OutboxRecount> {
        Box::pin(inspect::recount(self))
    }

    fn ping(&self) -> OutboxFuture<'_, ()> {
        Box::pin(async { Ok(self.store.ping().await?) })
    }
}
