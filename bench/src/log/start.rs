//! How long a start takes after a crash with 1 GiB of records.

use std::process::Command;
use std::time::Instant;

use tidegate_log::local::Shelf;

use super::read::drop_caches;
use super::{Bench, MIB, RECORD, Records, Scratch, block_on};
use crate::measure::Measurement;

const TOTAL: usize = 1024 * MIB;

pub(super) fn run() {
    let scratch = Scratch::new("start");
    let (log, crashed) = (scratch.path().join("log"), scratch.path().join("crashed"));
    block_on(async {
        let bench = Bench::open(&log);
        bench.topic(16).await;
        let mut records = Records::new();
        for round in 0..TOTAL / MIB {
            let partition = i32::try_from(round % 16).unwrap_or(0);
            let write = records.write(MIB / RECORD, partition);
            bench.shelf.write(write).await.expect("it is written");
        }
        // What the disk holds while the process still runs is what a kill leaves.
        let copied = Command::new("cp")
            .arg("-r")
            .arg(&log)
            .arg(&crashed)
            .status();
        assert!(
            copied.is_ok_and(|status| status.success()),
            "the directory is copied"
        );
        bench.shelf.close().await;
    });
    drop_caches();
    let took = block_on(async {
        let began = Instant::now();
        let bench = Bench::open(&crashed);
        let took = began.elapsed();
        bench.shelf.close().await;
        took
    });
    Measurement {
        bench: "log start after a crash with 1 GiB",
        ours: took.as_secs_f64(),
        reference: 1.0,
        reference_is: "what is demanded",
        unit: "seconds",
    }
    .print();
}
