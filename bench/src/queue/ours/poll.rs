//! Many claimers that poll and finalize by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tidegate_queue::{Queue, QueueError};
use tidegate_store::StoreError;

use super::{PAUSE, answer};

/// Events that one claimer takes at once.
const FEW: u32 = 20;

#[derive(Default)]
struct Tally {
    handled: AtomicU64,
    busy: AtomicU64,
}

/// Lets so many claimers take events until none is left.
pub(super) async fn until_empty(queue: Queue, claimers: u32) {
    let tally = Arc::new(Tally::default());
    let claimers: Vec<_> = (0..claimers)
        .map(|_| tokio::spawn(claim(queue.clone(), Arc::clone(&tally))))
        .collect();
    for claimer in claimers {
        claimer.await.expect("a claimer ends");
    }
    answer(&json!({
        "handled": tally.handled.load(Ordering::SeqCst),
        "busy": tally.busy.load(Ordering::SeqCst),
    }));
}

async fn claim(queue: Queue, tally: Arc<Tally>) {
    loop {
        let Some(events) = tally.judge(queue.poll_batch(FEW).await) else {
            continue;
        };
        if events.is_empty() {
            if super::handle::is_empty(&queue).await {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        for event in events {
            loop {
                if let Some(is_ours) = tally.judge(queue.finalize(&event, Vec::new()).await) {
                    assert!(is_ours, "a claim was lost");
                    tally.handled.fetch_add(1, Ordering::SeqCst);
                    break;
                }
            }
        }
    }
}

impl Tally {
    /// The answer; none when somebody else was in the way, which is counted.
    fn judge<T>(&self, answer: Result<T, QueueError>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(QueueError::Store(StoreError::Conflict { .. })) => {
                self.busy.fetch_add(1, Ordering::SeqCst);
                None
            }
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
    }
}
