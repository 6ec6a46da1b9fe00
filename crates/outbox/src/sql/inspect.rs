//! The table as operators see it, and what they change.

use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::{Account, Books, LossReason, Place, Posting, postings};
use tidegate_store::sql::{OwnColumns, SqlAccess, SqlConnection};
use tidegate_store::{span_ms, sqlx};

use super::store::{OutboxConnection, OutboxDatabase, SqlOutbox, with_now};
use crate::OutboxError;
use crate::port::{
    OutboxFilter, OutboxRow, OutboxStats, OutboxStatus, PurgeRequest, RowSelection, place_of,
};
use crate::recount::{FinishedRow, OutboxRecount, RowCount, show_in_flight};

/// Rows that a recount reads at once.
const PAGE: i64 = 10_000;

type Asked<T> = Result<T, OutboxError>;

pub(super) async fn list<D: OutboxDatabase>(
    outbox: &SqlOutbox<D>,
    filter: OutboxFilter,
) -> Asked<Vec<OutboxRow>> {
    let call = outbox.call(SqlAccess::Read, "list rows", move |c, x| {
        Box::pin(async move {
            let status = filter.status.map_or("", OutboxStatus::as_str);
            let key = filter.aggregate_id.unwrap_or_default();
            let limit = i64::from(filter.limit);
            let rows = c.rows(x.text.list.sql(), &[&filter.after, &status, &key, &limit]);
            rows.await?.iter().map(row).collect()
        })
    });
    Ok(call.await?)
}

pub(super) async fn show<D: OutboxDatabase>(
    outbox: &SqlOutbox<D>,
    which: RowSelection,
) -> Asked<Option<OutboxRow>> {
    let Some((id, event)) = single(&which) else {
        return Ok(None);
    };
    let call = outbox.call(SqlAccess::Read, "show a row", move |c, x| {
        Box::pin(async move {
            let found = c.first_row(x.text.show.sql(), &[&id, &event]);
            found.await?.as_ref().map(row).transpose()
        })
    });
    Ok(call.await?)
}

/// The number and the id that select one row; what is not given is one that no row has.
fn single(which: &RowSelection) -> Option<(i64, EventId)> {
    match which {
        RowSelection::Id(id) => Some((*id, EventId::from_u128(0))),
        RowSelection::Event(event) => Some((-1, *event)),
        RowSelection::All => None,
    }
}

fn row(row: &impl OwnColumns) -> Result<OutboxRow, sqlx::Error> {
    let status: String = row.get(10)?;
    let status = OutboxStatus::parse(&status).unwrap_or(OutboxStatus::Pending);
    Ok(OutboxRow {
        id: row.get(0)?,
        event_id: row.event_id(1)?,
        aggregate_type: row.get(2)?,
        aggregate_id: row.get(3)?,
        type_name: row.get(4)?,
        topic: row.get(5)?,
        payload: row.shown(6)?,
        payload_bytes: row.get(7)?,
        headers: row.get(8)?,
        created_at: row.get(9)?,
        sent: status == OutboxStatus::Sent,
        status,
        attempts: row.count(11)?,
        locked_by: row.get(12)?,
        locked_at: row.get(13)?,
        sent_at: row.get(14)?,
        last_error_at: row.get(15)?,
        next_attempt_at: row.get(16)?,
        last_error: row.get(17)?,
    })
}

/// Events with the places that they come from.
fn moved(
    rows: &[impl OwnColumns],
    to: impl Fn(&Place) -> Option<Place>,
) -> Result<Vec<Posting>, sqlx::Error> {
    let mut moved = Vec::new();
    for row in rows {
        let status: String = row.get(1)?;
        let status = OutboxStatus::parse(&status).unwrap_or(OutboxStatus::Pending);
        let from = place_of(status, row.count(2)?);
        moved.extend(postings([row.event_id(0)?], Some(from.clone()), to(&from)));
    }
    Ok(merged(moved))
}

/// The same with one posting per move and bucket.
fn merged(moved: Vec<Posting>) -> Vec<Posting> {
    let mut sums = std::collections::BTreeMap::new();
    for one in moved {
        let sum: &mut (u64, u128) = sums.entry((one.bucket, one.from, one.to)).or_default();
        *sum = (sum.0 + one.count, sum.1.wrapping_add(one.id_sum));
    }
    let posting = |((bucket, from, to), (count, id_sum))| Posting {
        bucket,
        from,
        to,
        count,
        id_sum,
    };
    sums.into_iter().map(posting).collect()
}

pub(super) async fn retry<D: OutboxDatabase>(
    outbox: &SqlOutbox<D>,
    which: RowSelection,
) -> Asked<u64> {
    let call = outbox.call(SqlAccess::Transact, "retry rows", move |c, x| {
        Box::pin(async move {
            let is_all = which == RowSelection::All;
            let (id, event) = single(&which).unwrap_or((-1, EventId::from_u128(0)));
            let values = with_now(&[&id, &event, &is_all], x.now.as_ref());
            let rows = c.rows(x.text.retry.sql(), &values).await?;
            // SQLite lists them first; PostgreSQL has changed them with the same statement.
            if let Some(now) = x.now {
                for row in &rows {
                    let event = row.event_id(0)?;
                    let values = with_now(&[&event], Some(&now));
                    c.execute(x.text.retry_row.sql(), &values[..1]).await?;
                }
            }
            let postings = moved(&rows, |_| Some(Place::Queued))?;
            let postings: Vec<Posting> = postings.into_iter().filter(|p| p.from != p.to).collect();
            c.post(&x.component, &postings).await?;
            Ok(rows.len() as u64)
        })
    });
    Ok(call.await?)
}

pub(super) async fn purge<D: OutboxDatabase>(
    outbox: &SqlOutbox<D>,
    request: PurgeRequest,
) -> Asked<u64> {
    let call = outbox.call(SqlAccess::Transact, "purge rows", move |c, x| {
        Box::pin(async move {
            let (status, limit) = (request.status.as_str(), i64::from(request.limit));
            let values: [&dyn tidegate_store::sql::SqlValue; 3] =
                [&status, &request.before_ms, &limit];
            c.prefer_indexes().await?;
            let rows = c.rows(x.text.purge.sql(), &values).await?;
            remove(c, &x.component, &rows).await
        })
    });
    Ok(call.await?)
}

pub(super) async fn clean<D: OutboxDatabase>(
    outbox: &SqlOutbox<D>,
    retention: Option<Duration>,
    limit: u32,
) -> Asked<u64> {
    let call = outbox.call(SqlAccess::Transact, "clean the outbox", move |c, x| {
        Box::pin(async move {
            for forget in &x.text.forget_relays {
                c.execute(forget.sql(), &with_now(&[], x.now.as_ref()))
                    .await?;
            }
            let Some(retention) = retention else {
                return Ok(0);
            };
            let (span, limit) = (span_ms(retention), i64::from(limit));
            let values = with_now(&[&span, &limit], x.now.as_ref());
            c.prefer_indexes().await?;
            let rows = c.rows(x.text.clean.sql(), &values).await?;
            remove(c, &x.component, &rows).await
        })
    });
    Ok(call.await?)
}

/// Posts rows that were removed. Those that were given up on are lost; of the others only the row is gone.
async fn remove<C: OutboxConnection>(
    connection: &mut C,
    component: &str,
    rows: &[<C as SqlConnection>::Row],
) -> Result<u64, sqlx::Error> {
    let to = |from: &Place| match from {
        Place::DeadLettered => Some(Place::Lost(LossReason::PURGED)),
        Place::Queued
        | Place::InFlight
        | Place::Retrying
        | Place::Parked
        | Place::Spilled
        | Place::Delivered
        | Place::Lost(_) => None,
    };
    let postings = moved(rows, to)?;
    connection.post(component, &postings).await?;
    Ok(rows.len() as u64)
}

pub(super) async fn stats<D: OutboxDatabase>(outbox: &SqlOutbox<D>) -> Asked<OutboxStats> {
    let call = outbox.call(SqlAccess::Snapshot, "count the outbox", move |c, x| {
        Box::pin(async move {
            let now = with_now(&[], x.now.as_ref());
            let (waiting, retrying, oldest): (i64, i64, Option<i64>) =
                c.fetch_one(x.text.waiting.sql(), &now).await?;
            let dead = c.fetch_one(x.text.dead.sql(), &[]).await?;
            let (fresh, again): (i64, i64) = c.fetch_one(x.text.claimed.sql(), &now).await?;
            Ok(OutboxStats {
                pending: waiting - fresh - again,
                retrying: retrying - again,
                claimed: fresh + again,
                dead,
                oldest_age_ms: oldest.map(|age| age.max(0)),
                relays: c.fetch_one(x.text.count_relays.sql(), &now).await?,
            })
        })
    });
    Ok(call.await?)
}

pub(super) async fn account<D: OutboxDatabase>(outbox: &SqlOutbox<D>) -> Asked<Account> {
    let call = outbox.call(SqlAccess::Snapshot, "read the books", move |c, x| {
        Box::pin(async move {
            let mut account = c.counts(&x.component).await?.account();
            let now = with_now(&[], x.now.as_ref());
            let claimed: (i64, i64) = c.fetch_one(x.text.claimed.sql(), &now).await?;
            show_in_flight(&mut account, claimed);
            Ok(account)
        })
    });
    Ok(call.await?)
}

pub(super) async fn books<D: OutboxDatabase>(outbox: &SqlOutbox<D>) -> Asked<Books> {
    let call = outbox.call(SqlAccess::LongSnapshot, "read the books", move |c, x| {
        Box::pin(async move { c.books(&x.component).await })
    });
    Ok(call.await?)
}

pub(super) async fn recount<D: OutboxDatabase>(outbox: &SqlOutbox<D>) -> Asked<OutboxRecount> {
    let call = outbox.call(SqlAccess::LongSnapshot, "count the outbox", move |c, x| {
        Box::pin(async move {
            let mut count = RowCount::default();
            let mut after = 0_i64;
            loop {
                let rows = c.rows(x.text.recount.sql(), &[&after, &PAGE]).await?;
                for row in &rows {
                    after = row.get(0)?;
                    let status: String = row.get(2)?;
                    count.add(FinishedRow {
                        event_id: row.event_id(1)?,
                        status: OutboxStatus::parse(&status).unwrap_or(OutboxStatus::Pending),
                        attempts: row.count(3)?,
                        key: row.get(4)?,
                        topic: row.get(5)?,
                        at_ms: row.get(6)?,
                    });
                }
                if rows.len() < usize::try_from(PAGE).unwrap_or(0) {
                    break;
                }
            }
            let now = with_now(&[], x.now.as_ref());
            let claimed = c.fetch_one(x.text.claimed.sql(), &now).await?;
            let books = c.books(&x.component).await?;
            Ok(count.finish(books, claimed))
        })
    });
    Ok(call.await?)
}
