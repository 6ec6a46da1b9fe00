//! The relay on SQLite with the embedded log.

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::Topic;
use tidegate_core::env::Env;
use tidegate_log::{Append, EmbeddedConfig, EmbeddedLog, Log, Record, TopicConfig};
use tidegate_outbox::NewOutboxEvent;

use super::{BATCH, KEYS, PARTITIONS, drained, open, told};
use crate::program::Why;
use crate::report::{Cost, Line, skipped};

const EVENTS: u32 = 50_000;

pub(super) fn run() {
    eprintln!("SQLite to the embedded log");
    let measured = (|| {
        let program = std::env::current_exe().map_err(told)?;
        let scratch = program.with_file_name("bench-outbox");
        // Files of an earlier run that was stopped half-way.
        drop(std::fs::remove_dir_all(&scratch));
        std::fs::create_dir_all(&scratch).map_err(told)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(told)?;
        let rates = runtime.block_on(rates(&scratch));
        drop(std::fs::remove_dir_all(&scratch));
        rates
    })();
    match measured {
        Ok((ours, reference)) => Line {
            bench: "outbox/sqlite-embedded",
            ours,
            reference,
            reference_is: "bare appends of as many records per call",
            unit: "events/s",
            cost: Cost::default(),
        }
        .print(),
        Err(why) => skipped("outbox/sqlite-embedded", &why),
    }
}

/// Events per second of a relay, and of bare appends.
async fn rates(scratch: &std::path::Path) -> Result<(f64, f64), Why> {
    let topic = Topic::new("measured").map_err(told)?;
    let log = EmbeddedLog::open(&Env::system(), EmbeddedConfig::new(scratch.join("log")));
    let log = log.map_err(told)?;
    let made = log.create_topic(&topic, TopicConfig::new(PARTITIONS)).await;
    made.map_err(told)?;
    let url = format!("sqlite://{}", scratch.join("outbox.db").display());
    let (store, outbox) = open(&url, &topic).await?;
    for first in (0..EVENTS).step_by(BATCH as usize) {
        let events: Vec<NewOutboxEvent> = (first..first + BATCH)
            .map(|number| {
                let key = format!("key-{}", number % KEYS);
                NewOutboxEvent::new(key, "Measured", format!("{number:200}"))
            })
            .collect();
        outbox.insert(&events).await.map_err(told)?;
    }
    let (_, took) = drained(&outbox, Arc::new(log.clone()), EVENTS).await?;
    let ours = f64::from(EVENTS) / took.as_secs_f64();
    let began = Instant::now();
    for first in (0..EVENTS).step_by(BATCH as usize) {
        let records = (first..first + BATCH).map(|number| {
            let record = Record::new(format!("{number:200}")).key(format!("key-{}", number % KEYS));
            Append::new(topic.clone(), record)
        });
        log.append(records.collect()).await.map_err(told)?;
    }
    let reference = f64::from(EVENTS) / began.elapsed().as_secs_f64();
    store.close().await.map_err(told)?;
    log.close().await;
    Ok((ours, reference))
}
