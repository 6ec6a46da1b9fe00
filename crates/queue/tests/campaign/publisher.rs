//! Publishes as applications do, and remembers what it was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::env::{Entropy, Stream};
use tidegate_queue::{NewEvent, Queue, QueueError, Tx};
use tidegate_store::sqlx;

use crate::events::Placed;

/// The events that the queue owes, kept outside of it.
#[derive(Debug, Default)]
pub(crate) struct Obligations {
    /// Everything that was ever handed over, by id.
    pub(crate) attempted: BTreeMap<EventId, u64>,
    /// The events that were acknowledged.
    pub(crate) promised: BTreeSet<EventId>,
    /// The events of transactions that were rolled back.
    pub(crate) taken_back: BTreeSet<EventId>,
}

impl Obligations {
    /// Whether a verdict over them is a proof.
    pub(crate) fn are_enough(&self) -> bool {
        self.promised.len() > 200 && self.taken_back.len() > 20
    }
}

/// The state that publishers share.
#[derive(Clone)]
pub(crate) struct Publisher {
    pub(crate) queue: Queue,
    pub(crate) obligations: Arc<Mutex<Obligations>>,
    pub(crate) is_calm: Arc<AtomicBool>,
    pub(crate) next: Arc<AtomicU64>,
}

impl Publisher {
    /// Publishes until it is calm. Keys are its own, so that none of its events overlap.
    pub(crate) async fn run(self, number: u64, seed: u64) {
        let mut random = Stream::new(seed).stream(&format!("publisher {number}"));
        while !self.is_calm.load(Ordering::Relaxed) {
            let draw: &mut dyn Entropy = &mut random;
            tokio::time::sleep(Duration::from_millis(draw.below(40))).await;
            let count = if draw.below(12) == 0 { 15 } else { 1 };
            let events: Vec<NewEvent> = (0..count)
                .map(|_| {
                    let n = self.next.fetch_add(1, Ordering::Relaxed);
                    let is_keyed = draw.below(4) == 0;
                    let key = is_keyed.then(|| format!("{number}-{}", draw.below(6)));
                    self.event(n, key)
                })
                .collect();
            let answer = if draw.below(2) == 0 {
                self.queue.publish_all(&events).await.map(drop)
            } else {
                let is_kept = draw.below(3) > 0;
                let starvation = if draw.below(20) == 0 { 1_500 } else { 10 };
                let open_for = Duration::from_millis(draw.below(starvation));
                self.in_transaction(&events, is_kept, open_for).await
            };
            // Without an answer nobody knows, and either is right.
            if answer.is_ok() {
                let mut obligations = self.obligations.lock().unwrap();
                let ids = events.iter().map(|event| event.event_id);
                let kept = ids.filter(|id| !obligations.taken_back.contains(id));
                let kept: Vec<EventId> = kept.collect();
                obligations.promised.extend(kept);
            }
        }
    }

    fn event(&self, n: u64, key: Option<String>) -> NewEvent {
        let id = self.queue.ids().mint();
        self.obligations.lock().unwrap().attempted.insert(id, n);
        NewEvent::of(id, &Placed { n, key }).unwrap()
    }

    /// Beside a row of the application's, in its transaction.
    async fn in_transaction(
        &self,
        events: &[NewEvent],
        is_kept: bool,
        open_for: Duration,
    ) -> Result<(), QueueError> {
        let mut tx = self.queue.begin().await?;
        add_order(&mut tx, events).await?;
        let wake = self.queue.publish_all_in(&mut tx, events).await?;
        tokio::time::sleep(open_for).await;
        if is_kept {
            tx.commit().await?;
            wake.wake();
            return Ok(());
        }
        // No commit was sent, so whatever the answer is, it did not happen.
        let ids = events.iter().map(|event| event.event_id);
        self.obligations.lock().unwrap().taken_back.extend(ids);
        tx.rollback().await
    }
}

async fn add_order(tx: &mut Tx, events: &[NewEvent]) -> Result<(), QueueError> {
    let connection = tx.postgres().ok_or(QueueError::ForeignTransaction)?;
    let ids = events.iter().map(|event| event.event_id.as_u128());
    let ids: Vec<sqlx::types::Uuid> = ids.map(sqlx::types::Uuid::from_u128).collect();
    let insert = sqlx::query("INSERT INTO orders SELECT * FROM unnest($1::uuid[])").bind(ids);
    let failed = |error| tidegate_store::StoreError::of("add an order", error);
    insert.execute(connection).await.map_err(failed)?;
    Ok(())
}
