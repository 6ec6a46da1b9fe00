//! How long an event takes from its commit to a reader of its topic.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_core::{GroupName, Shutdown};
use tidegate_log::{Join, Log, SessionEvent};
use tidegate_outbox::{NewOutboxEvent, Outbox, Relay};

use super::{Bench, KEYS, told};
use crate::measure::percentile;
use crate::program::Why;
use crate::report::{Cost, Line};

/// Events per second, and how they are grouped into transactions.
const RATE: u32 = 2_000;
const PER_COMMIT: u32 = 10;
const SECONDS: u32 = 15;
/// Of the first of them nothing is told: connections are made and the group is joined.
const WARM_UP: u32 = 3;
/// How long the last records are waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Milliseconds.
pub(super) struct Latency {
    p50: f64,
    p99: f64,
}

pub(super) fn run(bench: &mut Bench) -> Result<Latency, Why> {
    eprintln!("from commit to topic at {RATE}/s");
    let topic = bench.topic()?;
    let (_, _store, outbox) = bench.outbox(&topic)?;
    let log: Arc<dyn Log> = Arc::new(bench.log.clone());
    bench.runtime.block_on(async {
        let group = GroupName::new(topic.as_str()).map_err(told)?;
        let session = log
            .join(Join::new(group, vec![topic]))
            .await
            .map_err(told)?;
        let (trigger, stop) = Shutdown::new();
        let relay = Relay::new(outbox.clone(), Arc::clone(&log), &Env::system());
        let reading = async {
            let mut arrived = HashMap::new();
            let total = (RATE * SECONDS) as usize;
            let began = Instant::now();
            let limit = Duration::from_secs(u64::from(SECONDS)) + PATIENCE;
            while arrived.len() < total && began.elapsed() < limit {
                let event = tokio::time::timeout(PATIENCE, session.poll()).await;
                let Ok(event) = event else {
                    break;
                };
                if let SessionEvent::Records { batch, .. } = event.map_err(told)? {
                    let now = Instant::now();
                    for stored in batch.records {
                        let value = stored.record.value.unwrap_or_default();
                        let number = String::from_utf8_lossy(&value);
                        if let Ok(number) = number.trim().parse::<u32>() {
                            arrived.entry(number).or_insert(now);
                        }
                    }
                }
            }
            trigger.stop();
            Ok::<_, Why>(arrived)
        };
        let (_, committed, arrived) = tokio::join!(relay.run(stop), write(&outbox), reading);
        let (committed, arrived) = (committed?, arrived?);
        session.close().await.map_err(told)?;
        let mut waits = Vec::new();
        for (number, at) in committed {
            let arrived = arrived.get(&number);
            let arrived = arrived.ok_or_else(|| format!("event {number} never arrived"))?;
            if number >= WARM_UP * RATE {
                let waited = arrived.saturating_duration_since(at).as_micros();
                waits.push(u32::try_from(waited).unwrap_or(u32::MAX));
            }
        }
        let mut ms = |share| percentile(&mut waits, share) / 1_000.0;
        Ok(Latency {
            p50: ms(0.5),
            p99: ms(0.99),
        })
    })
}

/// Commits events at the rate, and says when each was committed.
async fn write(outbox: &Outbox) -> Result<Vec<(u32, Instant)>, Why> {
    let mut committed = Vec::new();
    let began = Instant::now();
    for first in (0..RATE * SECONDS).step_by(PER_COMMIT as usize) {
        let due = Duration::from_secs_f64(f64::from(first) / f64::from(RATE));
        tokio::time::sleep_until((began + due).into()).await;
        let events: Vec<NewOutboxEvent> = (first..first + PER_COMMIT)
            .map(|number| {
                let key = format!("key-{}", number % KEYS);
                NewOutboxEvent::new(key, "Measured", format!("{number:200}"))
            })
            .collect();
        outbox.insert(&events).await.map_err(told)?;
        let now = Instant::now();
        committed.extend((first..first + PER_COMMIT).map(|number| (number, now)));
    }
    Ok(committed)
}

pub(super) fn print(latency: &Latency) {
    for (bench, ours, reference) in [
        ("outbox/latency-p50", latency.p50, 25.0),
        ("outbox/latency-p99", latency.p99, 50.0),
    ] {
        Line {
            bench,
            ours,
            reference,
            reference_is: "the most it should be",
            unit: "ms from commit to a reader of the topic, at 2,000/s",
            cost: Cost::default(),
        }
        .print();
    }
}
