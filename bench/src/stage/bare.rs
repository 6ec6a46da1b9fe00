//! Bare loops: one hash map, the same JSON in and out, and the port of the log without a stage.

use std::collections::HashMap;
use std::time::Instant;

use serde::Deserialize;
use tidegate_core::{GroupName, Topic};
use tidegate_log::{Append, Commit, Join, Log, OffsetCommit, Record, SessionEvent, TopicConfig};

use super::{EPOCH, KEYS, MEASURED, PARTITIONS, fresh, told};
use crate::program::Why;

#[derive(Debug, Deserialize)]
struct Order<'a> {
    customer: &'a str,
    amount: i64,
    note: &'a str,
}

/// Sum and count by key.
#[derive(Debug, Default)]
pub(super) struct Totals(HashMap<String, (i64, i64)>);

impl Totals {
    /// The output of one record, as the flow makes it.
    pub(super) fn output(&mut self, value: &[u8]) -> Result<String, Why> {
        let order: Order<'_> = serde_json::from_slice(value).map_err(told)?;
        let Order {
            customer,
            amount,
            note,
        } = order;
        let (sum, n) = match self.0.get_mut(customer) {
            Some((sum, n)) => {
                (*sum, *n) = (*sum + amount, *n + 1);
                (*sum, *n)
            }
            None => {
                self.0.insert(customer.to_owned(), (amount, 1));
                (amount, 1)
            }
        };
        Ok(format!(
            "{{\"customer\":\"{customer}\",\"amount\":{amount},\"note\":\"{note}\",\"sum\":{sum},\"n\":{n}}}"
        ))
    }
}

/// Polls, and commits outputs and offsets together, one commit behind the other.
pub(super) async fn rate(log: &dyn Log, orders: &Topic) -> Result<f64, Why> {
    let totals = Topic::new(fresh("bare")).map_err(told)?;
    let made = log
        .create_topic(&totals, TopicConfig::new(PARTITIONS))
        .await;
    made.map_err(told)?;
    let group = GroupName::new(fresh("loop")).map_err(told)?;
    let mut join = Join::new(group, vec![orders.clone()]);
    join.max_poll_records = 2_000;
    let session = log.join(join).await.map_err(told)?;
    let mut state = Totals::default();
    let mut commit = Commit::default();
    let (mut done, mut from) = (0, None);
    while done < KEYS + MEASURED {
        let SessionEvent::Records { fence, batch } = session.poll().await.map_err(told)? else {
            continue;
        };
        for stored in &batch.records {
            let id = stored.event_id(log.cluster(), &batch.at);
            let value = stored.record.value.as_deref().unwrap_or_default();
            let mut record = Record::new(state.output(value)?).event_id(id);
            record.key.clone_from(&stored.record.key);
            commit.appends.push(Append::new(totals.clone(), record));
            done += 1;
            if done == KEYS {
                from = Some(Instant::now());
            }
        }
        commit.offsets.retain(|offset| offset.at != batch.at);
        commit.offsets.push(OffsetCommit {
            at: batch.at,
            fence,
            next: batch.next,
            metadata: String::new(),
            postings: Vec::new(),
        });
        if commit.appends.len() >= EPOCH || done >= KEYS + MEASURED {
            let full = std::mem::take(&mut commit);
            session.commit(full).await.map_err(told)?;
        }
    }
    let took = from.map_or(0.0, |from: Instant| from.elapsed().as_secs_f64());
    session.close().await.map_err(told)?;
    Ok(MEASURED as f64 / took)
}
