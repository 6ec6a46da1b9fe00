//! Appends that are synced, beside a loop that appends the same bytes to a file and syncs as often.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_log::local::{RecordStorage, Write};

use super::{Bench, MIB, RECORD, Records, Scratch, block_on};
use crate::measure::{Measurement, median, peak_resident_mib};

/// Bytes per round, and rounds: ours and the plain loop take turns, since the disk is not ours alone.
const ROUND: usize = 32 * MIB;
const ROUNDS: usize = 15;
/// Three files of the journal: as many as there are while a checkpoint lags behind by one.
const WARM_UP: usize = 3 * 64 * MIB;
const SUSTAINED: usize = 2 * 1024 * MIB;

pub(super) fn run() {
    for (name, group) in [("64 KiB", 64 * 1024), ("256 KiB", 256 * 1024)] {
        synced(name, group);
    }
    sustained(Pace::OneByOne);
    sustained(Pace::InTurns);
    memory();
    for writers in [1, 16, 256] {
        concurrent(writers);
    }
}

const PLAIN: &str = "a plain loop: append the same bytes, fdatasync as often";

fn synced(name: &str, group: usize) {
    let scratch = Scratch::new("append");
    let dir = scratch.path();
    let (alone, turns, plain) = block_on(async {
        let bench = Bench::open(&dir.join("log"));
        bench.topic(1).await;
        let mut records = Records::new();
        // The files of the journal are filled with zeros once, and used again from then on.
        for _ in 0..WARM_UP / ROUND {
            write(&bench, &mut records, group, ROUND).await;
        }
        let mut file = File::create(dir.join("plain")).expect("a file");
        let (mut alone, mut turns, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            // The plain loop must not pay for maintenance that the rounds before have left.
            bench.rest().await;
            raw.push(plain_loop(&mut file, group));
            alone.push(write(&bench, &mut records, group, ROUND).await);
            bench.rest().await;
            turns.push(write_in_turns(&bench, &mut records, group, ROUND).await);
        }
        bench.storage.close().await;
        (median(alone), median(turns), median(raw))
    });
    for (pace, ours) in [(Pace::OneByOne, alone), (Pace::InTurns, turns)] {
        Measurement {
            bench: &format!("log append, synced groups of {name}, {}", pace.name()),
            ours,
            reference: plain,
            reference_is: PLAIN,
            unit: "MiB/s",
        }
        .print();
    }
}

/// Writes so many bytes of records in groups, one after the other; MiB/s.
async fn write(bench: &Bench, records: &mut Records, group: usize, bytes: usize) -> f64 {
    let writes: Vec<_> = (0..bytes / group)
        .map(|_| records.write(group / RECORD, 0))
        .collect();
    let began = Instant::now();
    write_all(bench, writes).await;
    bytes as f64 / MIB as f64 / began.elapsed().as_secs_f64()
}

/// Appends a round of bytes, which lie ready as our records do: all of them made before the clock starts.
fn plain_loop(file: &mut File, group: usize) -> f64 {
    let chunk = vec![b'x'; group / RECORD * RECORD];
    let chunks = vec![chunk; ROUND / group];
    let began = Instant::now();
    for chunk in &chunks {
        file.write_all(chunk).expect("it is written");
        file.sync_data().expect("it is synced");
    }
    ROUND as f64 / MIB as f64 / began.elapsed().as_secs_f64()
}

/// The rate of rounds that are equally large, all together.
fn of_all(rates: &[f64]) -> f64 {
    rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}

/// Whether the next group is encoded while one is synced.
#[derive(Clone, Copy)]
enum Pace {
    OneByOne,
    InTurns,
}

impl Pace {
    fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "one by one",
            Self::InTurns => "two in turns",
        }
    }
}

/// Two GiB. Handed over in turns, a few groups may share a sync, so syncs are counted.
fn sustained(pace: Pace) {
    const GROUP: usize = 256 * 1024;
    let scratch = Scratch::new("sustained");
    let plain = || {
        let path = scratch.path().join("plain");
        let mut file = File::create(&path).expect("a file");
        let rounds = 0..SUSTAINED / ROUND;
        let rates: Vec<_> = rounds.map(|_| plain_loop(&mut file, GROUP)).collect();
        drop(std::fs::remove_file(path));
        of_all(&rates)
    };
    // The better one of a run before and a run after, since the machine is not ours alone.
    let before = plain();
    let (ours, syncs) = block_on(async {
        let bench = Bench::open(&scratch.path().join("log"));
        bench.topic(1).await;
        let syncs = bench.disk.journal_syncs();
        let mut records = Records::new();
        let mut rates = Vec::new();
        for _ in 0..SUSTAINED / ROUND {
            rates.push(match pace {
                Pace::OneByOne => write(&bench, &mut records, GROUP, ROUND).await,
                Pace::InTurns => write_in_turns(&bench, &mut records, GROUP, ROUND).await,
            });
        }
        bench.storage.close().await;
        let syncs = bench.disk.journal_syncs() - syncs;
        (of_all(&rates), syncs)
    });
    let name = pace.name();
    Measurement {
        bench: &format!("log append, 2 GiB in groups of 256 KiB, {name}"),
        ours,
        reference: before.max(plain()),
        reference_is: PLAIN,
        unit: "MiB/s",
    }
    .print();
    Measurement {
        bench: &format!("log syncs for these groups, {name}"),
        ours: syncs as f64,
        reference: (SUSTAINED / GROUP) as f64,
        reference_is: "groups",
        unit: "syncs",
    }
    .print();
}

/// Writes so many bytes of records in groups, two of which are always under way; MiB/s.
async fn write_in_turns(bench: &Bench, records: &mut Records, group: usize, bytes: usize) -> f64 {
    let mut lot = || -> Vec<_> {
        let groups = bytes / group / 2;
        (0..groups)
            .map(|_| records.write(group / RECORD, 0))
            .collect()
    };
    let (one, other) = (lot(), lot());
    let began = Instant::now();
    tokio::join!(write_all(bench, one), write_all(bench, other));
    bytes as f64 / MIB as f64 / began.elapsed().as_secs_f64()
}

async fn write_all(bench: &Bench, writes: Vec<Write>) {
    for write in writes {
        bench.storage.write(write).await.expect("it is written");
    }
}

fn memory() {
    Measurement {
        bench: "log append, most memory so far",
        ours: peak_resident_mib(),
        reference: 64.0,
        reference_is: "four times the cache of fresh records",
        unit: "MiB",
    }
    .print();
}

/// Many who each wait for their own commit of ten records.
fn concurrent(writers: usize) {
    const COMMIT: usize = 10;
    const TIME: Duration = Duration::from_secs(3);
    let scratch = Scratch::new("concurrent");
    let (commits, syncs, took) = block_on(async {
        let bench = Arc::new(Bench::open(&scratch.path().join("log")));
        bench.topic(16).await;
        let first = Records::new().write(COMMIT, 0);
        bench.storage.write(first).await.expect("it is written");
        let syncs = bench.disk.journal_syncs();
        let began = Instant::now();
        let tasks: Vec<_> = (0..writers)
            .map(|writer| {
                let bench = Arc::clone(&bench);
                tokio::spawn(async move {
                    let mut records = Records::new();
                    let mut commits = 0_u64;
                    while began.elapsed() < TIME {
                        let write = records.write(COMMIT, i32::try_from(writer % 16).unwrap_or(0));
                        bench.storage.write(write).await.expect("it is written");
                        commits += 1;
                    }
                    commits
                })
            })
            .collect();
        let mut commits = 0;
        for task in tasks {
            commits += task.await.expect("a writer ends");
        }
        let took = began.elapsed();
        let syncs = bench.disk.journal_syncs() - syncs;
        bench.storage.close().await;
        (commits, syncs, took)
    });
    let alone = plain_syncs(scratch.path(), COMMIT * RECORD, Duration::from_secs(1));
    Measurement {
        bench: &format!("log commits of 10 records, {writers} writers"),
        ours: commits as f64 / took.as_secs_f64(),
        reference: alone,
        reference_is: "one plain loop: append the same bytes, fdatasync each",
        unit: "commits/s",
    }
    .print();
    Measurement {
        bench: &format!("log syncs per commit, {writers} writers"),
        ours: syncs as f64 / commits as f64,
        reference: 1.0,
        reference_is: "a sync for each",
        unit: "syncs",
    }
    .print();
}

fn plain_syncs(dir: &Path, bytes: usize, time: Duration) -> f64 {
    let mut file = File::create(dir.join("plain")).expect("a file");
    let chunk = vec![b'x'; bytes];
    let began = Instant::now();
    let mut count = 0_u64;
    while began.elapsed() < time {
        file.write_all(&chunk).expect("it is written");
        file.sync_data().expect("it is synced");
        count += 1;
    }
    count as f64 / began.elapsed().as_secs_f64()
}
