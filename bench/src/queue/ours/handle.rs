//! Handling, by a dispatcher with an empty handler.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::env::Env;
use tidegate_queue::{
    Dispatcher, DispatcherBuilder, DispatcherOptions, Handled, Queue, QueueEvent,
};
use tokio::sync::Notify;

use super::{LEASE, PAUSE, TYPE, answer, micros};
use crate::measure::{cpu_time, peak_resident_mib};

/// Events claimed at once: as many as the peers take.
pub(super) const BATCH: u32 = 500;

#[derive(Serialize, Deserialize)]
struct Measured {
    number: u32,
    text: String,
}

impl QueueEvent for Measured {
    const TYPE: &'static str = TYPE;
}

fn dispatcher(queue: &Queue) -> DispatcherBuilder {
    Dispatcher::builder(queue.clone()).options(DispatcherOptions {
        batch_size: BATCH,
        lease: LEASE,
        ..DispatcherOptions::default()
    })
}

/// Handles until `count` events are settled; for none, until nothing is left. The times of the
/// calls go to `file`.
pub(super) async fn drain(queue: Queue, env: &Env, count: u32, file: Option<&str>) {
    let times = Arc::new(Mutex::new(String::new()));
    let (kept, is_timed) = (Arc::clone(&times), file.is_some());
    let dispatcher = dispatcher(&queue)
        .register_fn(
            "empty",
            move |delivery: tidegate_queue::Delivery<Measured>| {
                if is_timed {
                    let mut times = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    let line = writeln!(times, "{} {}", delivery.event.number, micros());
                    line.expect("a text takes every line");
                }
                std::future::ready(Handled::Success)
            },
        )
        .expect("the id is free")
        .build(env);
    let handle = dispatcher.handle();
    let stop = Arc::new(Notify::new());
    let asked = Arc::clone(&stop);
    let began = micros();
    let running = tokio::spawn(async move { dispatcher.run(asked.notified()).await });
    answer(&json!({"ready": true}));
    if count == 0 {
        // Counting is work for the database, so it is not done at every moment.
        while !is_empty(&queue).await {
            tokio::time::sleep(10 * PAUSE).await;
        }
    }
    while handle.report().finalized < u64::from(count) {
        tokio::time::sleep(PAUSE).await;
    }
    let ended = micros();
    let cpu = cpu_time();
    stop.notify_one();
    let report = running.await.expect("the dispatcher ends");
    assert_eq!(report.stale, 0, "{report:?}");
    answer(&json!({
        "handled": report.finalized,
        "began_us": began,
        "ended_us": ended,
        "cpu_s": cpu.as_secs_f64(),
        "rss_mb": peak_resident_mib(),
    }));
    if let Some(file) = file {
        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::write(file, times.as_bytes()).expect("the times are kept");
    }
}

/// Claims, begins to handle, and never ends.
pub(super) async fn hang(queue: Queue, env: &Env) {
    let begun = Arc::new(Notify::new());
    let told = Arc::clone(&begun);
    let dispatcher = dispatcher(&queue)
        .register_fn("empty", move |_: tidegate_queue::Delivery<Measured>| {
            told.notify_one();
            std::future::pending::<Handled>()
        })
        .expect("the id is free")
        .build(env);
    let running = dispatcher.run(std::future::pending());
    let tell = async {
        begun.notified().await;
        answer(&json!({"ready": true}));
    };
    tokio::join!(running, tell);
}

/// Whether every event is settled.
pub(super) async fn is_empty(queue: &Queue) -> bool {
    let stats = queue
        .store()
        .stats()
        .await
        .expect("the queue can be counted");
    stats.pending + stats.processing + stats.retrying == 0
}
