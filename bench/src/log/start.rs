//! How long a start takes after a crash with 1 GiB of records.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tidegate_log::local::RecordStorage;

use super::read::drop_caches;
use super::{Bench, MIB, RECORD, Records, Scratch, block_on};
use crate::measure::Measurement;

const TOTAL: usize = 1024 * MIB;

/// Copies a directory; false if something in it has changed meanwhile.
fn copy(from: &Path, to: &Path) -> bool {
    drop(std::fs::remove_dir_all(to));
    let copied = Command::new("cp")
        .arg("-r")
        .args([from, to])
        .stderr(Stdio::null())
        .status();
    copied.is_ok_and(|status| status.success())
}

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
            bench.storage.write(write).await.expect("it is written");
        }
        // A kill leaves the files as they are while the process still runs. A file that was
        // renamed meanwhile is missing in the copy, which is made anew then.
        let is_copied = (0..20).any(|_| copy(&log, &crashed));
        assert!(is_copied, "the directory is copied");
        bench.storage.close().await;
    });
    drop_caches();
    let took = block_on(async {
        let began = Instant::now();
        let bench = Bench::open(&crashed);
        let took = began.elapsed();
        bench.storage.close().await;
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
