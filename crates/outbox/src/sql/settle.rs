//! Writing down what became of rows, one after the other.

use std::collections::BTreeMap;

use tidegate_core::EventId;
use tidegate_core::books::{Place, Posting, postings};
use tidegate_store::sql::SqlList;
use tidegate_store::{span_ms, sqlx};

use super::store::{OutboxConnection, SqlContext, lists, with_now};
use crate::port::{BatchSettlement, Settled, SettledRow, SettledTo};

/// The postings of settled rows.
pub(super) fn moves<'a>(rows: impl Iterator<Item = &'a SettledRow>) -> Vec<Posting> {
    let mut by_move: BTreeMap<(Place, Place), Vec<EventId>> = BTreeMap::new();
    for row in rows {
        let (from, to) = row.places();
        if from != to {
            by_move.entry((from, to)).or_default().push(row.event_id);
        }
    }
    let moves = by_move.into_iter();
    moves
        .flat_map(|((from, to), ids)| postings(ids, Some(from), Some(to)))
        .collect()
}

/// Settles row by row, in one transaction. Rows that somebody else has changed are left alone.
pub(super) async fn settle_rows<C: OutboxConnection>(
    connection: &mut C,
    context: &SqlContext,
    settlement: &BatchSettlement,
) -> Result<Settled, sqlx::Error> {
    let (buckets, tokens) = lists(&settlement.leases);
    let (buckets, tokens) = (SqlList(&buckets), SqlList(&tokens));
    let held: Vec<i64> = connection
        .fetch_all(context.text.held.sql(), &[&buckets, &tokens])
        .await?;
    if held.len() != settlement.leases.len() {
        return Ok(Settled::Fenced);
    }
    let topic = context.topic.as_deref();
    let (mut done, mut foreign) = (Vec::new(), Vec::new());
    for row in &settlement.rows {
        let (word, error, wait) = match &row.to {
            SettledTo::Sent => ("SENT", None, None),
            SettledTo::Retry { wait, error } => {
                ("PENDING", Some(error.as_str()), Some(span_ms(*wait)))
            }
            SettledTo::Dead { error } => ("DEAD", Some(error.as_str()), None),
        };
        let small = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let (before, after) = (small(row.attempts_before), small(row.attempts()));
        let worker = &settlement.worker;
        let values = [
            &row.id as &dyn tidegate_store::sql::SqlValue,
            &before,
            &word,
            &after,
            worker,
            &error,
            &wait,
            &topic,
        ];
        let values = with_now(&values, context.now.as_ref());
        let changed = connection.execute(context.text.settle_row.sql(), &values);
        match changed.await? {
            0 => foreign.push(row.id),
            _ => done.push(row),
        }
    }
    let posted = moves(done.into_iter());
    connection.post(&context.component, &posted).await?;
    let lane = format!("{}/{}", settlement.worker, settlement.lane);
    connection
        .execute(context.text.forget_claim.sql(), &[&lane])
        .await?;
    Ok(match foreign.is_empty() {
        true => Settled::Done,
        false => Settled::Foreign(foreign),
    })
}
