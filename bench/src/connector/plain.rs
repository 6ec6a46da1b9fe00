//! A handler without work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tidegate_connector::AckMode;
use tidegate_core::{Mutex, Topic};
use tidegate_log::Record;

use super::bare::{self, Commits};
use super::{Bench, PARTITIONS, options, partition as partition_of, print, value};
use crate::measure::median;
use crate::program::Why;

const RECORDS: usize = 1_000_000;
/// Records of the loop that waits for each commit.
const WAITED: usize = 10_000;
/// Rounds of each, in turns; the figure in the middle counts.
const ROUNDS: usize = 3;

fn filled(bench: &Bench) -> Result<Topic, Why> {
    let topic = bench.topic("plain", PARTITIONS)?;
    let record = |number| (Record::new(value(number, 200)), partition_of(number));
    bench.fill(&topic, RECORDS, record)?;
    Ok(topic)
}

/// Records per second of a binding, from the first record to the last.
fn ours(bench: &Bench, topic: &Topic, ack_mode: AckMode) -> Result<f64, Why> {
    let mut options = options(topic)?;
    options.ack_mode = ack_mode;
    let (count, began) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    let ended = Arc::new(Mutex::new(None));
    let handler = {
        let (count, began, ended) = (Arc::clone(&count), Arc::clone(&began), Arc::clone(&ended));
        move |_| {
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => *began.lock() = Some(Instant::now()),
                n if n + 1 == RECORDS => *ended.lock() = Some(Instant::now()),
                _ => {}
            }
            async { Ok(()) }
        }
    };
    let bound = bench.bound(options, handler)?;
    bench.runtime.block_on(async {
        bound.until(|| ended.lock().is_some()).await?;
        bound.stop().await
    })?;
    let (began, ended) = (*began.lock(), *ended.lock());
    match (began, ended) {
        (Some(began), Some(ended)) => {
            Ok(RECORDS as f64 / ended.duration_since(began).as_secs_f64())
        }
        _ => Err("nothing was handled".to_owned()),
    }
}

pub(super) fn partition(bench: &mut Bench) -> Result<(), Why> {
    eprintln!("a handler without work, offsets per batch");
    let topic = filled(bench)?;
    let (mut binding, mut bare) = (Vec::new(), Vec::new());
    // The first round warms everything up.
    for round in 0..=ROUNDS {
        let rate = ours(bench, &topic, AckMode::Manual)?;
        let reference = bare::run(&bench.servers, &topic, RECORDS, Commits::PerBatch)?;
        eprintln!("  ours {rate:.0}/s, bare {reference:.0}/s");
        if round > 0 {
            binding.push(rate);
            bare.push(reference);
        }
    }
    let rate = median(binding);
    bench.rates.insert("connector/partition", rate);
    let is = "a bare loop with the same commits; at least 0.7";
    print("connector/partition", rate, median(bare), is, "records/s");
    Ok(())
}

pub(super) fn immediate(bench: &mut Bench) -> Result<(), Why> {
    eprintln!("a handler without work, offsets at once");
    let topic = filled(bench)?;
    let (mut binding, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        binding.push(ours(bench, &topic, AckMode::ManualImmediate)?);
        bare.push(bare::run(
            &bench.servers,
            &topic,
            WAITED,
            Commits::PerRecord,
        )?);
        eprintln!("  ours {:?}, bare {:?}", binding.last(), bare.last());
    }
    let rate = median(binding);
    bench.rates.insert("connector/immediate", rate);
    let is = "a bare loop that commits each record and waits; at least 60";
    print("connector/immediate", rate, median(bare), is, "records/s");
    Ok(())
}
