//! The machine of a shard alone, without a log, beside a loop over one hash map.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{Offset, Topic};
use tidegate_log::{Assignment, Batch, Fence, SessionEvent, StoredRecord, TopicPartition};
use tidegate_stage::operators::{ChainOptions, TaskChain};
use tidegate_stage::recovery::RecoveredTask;
use tidegate_stage::{Effect, Machine, MachineInput, MachineOptions, SinkTopic};

use super::bare::Totals;
use super::{EPOCH, KEYS, MEASURED, ROUNDS, plan, print, record, told};
use crate::measure::median;
use crate::program::Why;

const BATCH: usize = 2_000;
const FENCE: Fence = Fence(1);

pub(super) fn run() -> Result<(), Why> {
    eprintln!("the machine of a stage alone");
    let records = (0..KEYS + MEASURED).map(|number| StoredRecord {
        offset: Offset(number as i64),
        record: record(number).timestamp_ms(1),
    });
    let records: Vec<StoredRecord> = records.collect();
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let rate = by_machine(&records)?;
        let reference = by_loop(&records)?;
        eprintln!("  ours {rate:.0}/s, bare {reference:.0}/s");
        if round > 0 {
            ours.push(rate);
            bare.push(reference);
        }
    }
    let is = "a loop over one hash map with the same JSON and outputs; at least 0.7";
    print("stage/machine", median(ours), median(bare), is);
    Ok(())
}

fn by_loop(records: &[StoredRecord]) -> Result<f64, Why> {
    let mut state = Totals::default();
    let mut from = Instant::now();
    let mut outputs = Vec::with_capacity(EPOCH);
    for (number, stored) in records.iter().enumerate() {
        if number == KEYS {
            from = Instant::now();
        }
        let value = stored.record.value.as_deref().unwrap_or_default();
        outputs.push((stored.record.key.clone(), state.output(value)?));
        if outputs.len() == EPOCH {
            black_box(&outputs);
            outputs.clear();
        }
    }
    Ok(MEASURED as f64 / from.elapsed().as_secs_f64())
}

fn topic(name: &str) -> Result<Topic, Why> {
    Topic::new(name).map_err(told)
}

fn machine() -> Result<Machine, Why> {
    let plan = plan("counts")?;
    let mut sinks = BTreeMap::new();
    for name in ["totals", "counts_dlq"] {
        let sink = SinkTopic {
            topic: topic(name)?,
            partitions: 1,
            max_record_bytes: 1_000_000,
        };
        sinks.insert(name.to_owned(), sink);
    }
    let options = MachineOptions {
        cluster: "bench".to_owned(),
        inputs: vec![topic("orders")?],
        partitions: 1,
        sinks,
        changelog: topic("changelog")?,
        epoch_records: EPOCH as u64,
        epoch_interval: Duration::from_secs(3_600),
        epoch_bytes: usize::MAX,
        rolls_base: true,
        clean_interval: Duration::from_secs(3_600),
        group: "counts".to_owned(),
    };
    let new_operators = move || {
        let options = ChainOptions {
            is_repartitioned: false,
            ..ChainOptions::default()
        };
        let chain = TaskChain::new(Arc::clone(&plan), "counts", options);
        let chain = chain.map_err(|error| {
            let code = tidegate_core::Code::from_static("bench.chain");
            tidegate_core::Failure::permanent(code, error.to_string())
        })?;
        Ok(Box::new(chain) as Box<_>)
    };
    Ok(Machine::new(options, Arc::new(new_operators)))
}

/// Hands records in, and answers each commit at once.
fn by_machine(records: &[StoredRecord]) -> Result<f64, Why> {
    let mut machine = machine()?;
    let at = TopicPartition::new(topic("orders")?, 0);
    let assignment = Assignment {
        at: at.clone(),
        fence: FENCE,
        committed: None,
        position: Offset(0),
    };
    let event = SessionEvent::Assigned(vec![assignment]);
    machine.step(MachineInput::Session(event), 1);
    let recovered = MachineInput::Recovered {
        partition: 0,
        fence: FENCE,
        recovered: Ok(RecoveredTask::first(0)),
    };
    machine.step(recovered, 1);
    let mut from = Instant::now();
    for (number, some) in records.chunks(BATCH).enumerate() {
        if number * BATCH == KEYS {
            from = Instant::now();
        }
        let next = some
            .last()
            .map_or(Offset(0), |last| Offset(last.offset.0 + 1));
        let batch = Batch {
            at: at.clone(),
            records: some.to_vec(),
            next,
        };
        let event = SessionEvent::Records {
            fence: FENCE,
            batch,
        };
        let mut effects = machine.step(MachineInput::Session(event), 1);
        while let Some(effect) = effects.pop() {
            if let Effect::Commit(commit) = effect {
                black_box(&commit);
                effects.extend(machine.step(MachineInput::Committed(None), 1));
            }
        }
    }
    let took = from.elapsed().as_secs_f64();
    let done = machine.counts().records_in;
    if done < (KEYS + MEASURED - EPOCH) as u64 {
        return Err(format!("only {done} records were committed"));
    }
    Ok(MEASURED as f64 / took)
}
