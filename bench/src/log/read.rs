//! One partition out of many is read, from the disk and from memory.

use std::time::Instant;

use tidegate_core::Offset;
use tidegate_log::local::RecordStorage;
use tidegate_log::{Read, TopicPartition};

use super::{Bench, MIB, RECORD, Records, Scratch, block_on, topic};
use crate::measure::Measurement;

const PARTITIONS: i32 = 64;
const TOTAL: usize = 1024 * MIB;

pub(super) fn run() {
    let scratch = Scratch::new("read");
    block_on(async {
        let bench = Bench::open(scratch.path());
        bench.topic(64).await;
        let mut records = Records::new();
        for round in 0..TOTAL / MIB {
            let mut write = records.write(0, 0);
            // Every partition gets some of each commit.
            for n in 0..MIB / RECORD {
                let partition = i32::try_from((round + n) % 64).unwrap_or(0) % PARTITIONS;
                write.appends.push(records.append(partition));
            }
            bench.storage.write(write).await.expect("it is written");
        }
        bench.storage.close().await;
    });
    let is_cold = drop_caches();
    let (cold, ratio) = read_one(&scratch, 7);
    Measurement {
        bench: match is_cold {
            true => "log read of 1 of 64 partitions, page cache dropped",
            false => "log read of 1 of 64 partitions, page cache NOT dropped (no right to)",
        },
        ours: cold,
        reference: 300_000.0,
        reference_is: "what is demanded",
        unit: "records/s",
    }
    .print();
    Measurement {
        bench: "log bytes read for it",
        ours: ratio,
        reference: 1.0,
        reference_is: "the bytes of its records",
        unit: "times",
    }
    .print();
    let (warm, _) = read_one(&scratch, 7);
    Measurement {
        bench: "log read of 1 of 64 partitions, warm",
        ours: warm,
        reference: 1_000_000.0,
        reference_is: "what is demanded",
        unit: "records/s",
    }
    .print();
}

/// Reads a partition in a log that was just opened: records per second, and bytes read from files
/// for each byte of records.
fn read_one(scratch: &Scratch, partition: i32) -> (f64, f64) {
    block_on(async {
        let bench = Bench::open(scratch.path());
        let at = TopicPartition::new(topic(), partition);
        let before = bench.disk.bytes_read();
        let began = Instant::now();
        let mut from = Offset(0);
        let (mut records, mut bytes) = (0_u64, 0_u64);
        loop {
            let read = Read::new(at.clone(), from);
            let batch = bench.storage.read(&read).await.expect("it is read");
            if batch.records.is_empty() {
                break;
            }
            records += batch.records.len() as u64;
            bytes += batch
                .records
                .iter()
                .map(|s| s.record.size() as u64)
                .sum::<u64>();
            from = batch.next;
        }
        let rate = records as f64 / began.elapsed().as_secs_f64();
        let read = bench.disk.bytes_read() - before;
        bench.storage.close().await;
        (rate, read as f64 / bytes as f64)
    })
}

/// Whether the page cache could be emptied.
pub(super) fn drop_caches() -> bool {
    let synced = std::process::Command::new("sync").status();
    synced.is_ok_and(|status| status.success())
        && std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
