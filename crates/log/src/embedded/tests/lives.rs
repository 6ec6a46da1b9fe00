//! A process is killed at every disk operation while the machine runs on. The next process goes on from
//! there and loses the power at every operation of its own: whatever either was answered is there.
//!
//! Bytes that a killed process has written can be read and may still be lost. So this finds a process
//! that builds on what it reads without a sync of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_core::env::{Entropy, Stream};
use tidegate_sim::{Explored, SimDisk, crash_points_of_two_lives, scaled};

use super::harness::{Harness, append, at, small};
use crate::EmbeddedConfig;
use crate::embedded::injected_bugs::{self, InjectedBug};
use crate::topic::TopicConfig;

/// The promises to both lives. The records are numbered by their offsets.
#[derive(Debug, Default, Clone)]
struct Promised {
    is_made: bool,
    records: u64,
    /// How many more were asked for in a write that was not answered.
    asked: u64,
}

impl Promised {
    /// Whether a log may end there: a write is whole or not there.
    fn allows(&self, end: u64) -> bool {
        end == self.records || end == self.records + self.asked
    }
}

/// Files so small that a life begins one with every few writes.
fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 700,
        ..small()
    }
}

fn end(harness: &Harness) -> u64 {
    harness.end(&at("a", 0)).unsigned_abs()
}

/// Opens the log, writes so many times, and does what the maintenance thread does now and then.
fn live(disk: &SimDisk, promised: &mut Promised, mut random: Stream, writes: u64) {
    let random: &mut dyn Entropy = &mut random;
    let mut harness = Harness::open(disk, config()).unwrap();
    harness.create("a", TopicConfig::new(1)).unwrap();
    promised.is_made = true;
    // Records that an open log shows stay, also those that nobody was answered for.
    assert!(
        promised.allows(end(&harness)),
        "{} for {promised:?}",
        end(&harness)
    );
    promised.records = end(&harness);
    promised.asked = 0;
    for _ in 0..writes {
        promised.asked = 1 + random.below(3);
        let numbers = promised.records..promised.records + promised.asked;
        harness
            .append(numbers.map(|n| append("a", 0, n)).collect())
            .unwrap();
        promised.records += promised.asked;
        promised.asked = 0;
        if random.below(4) == 0 {
            harness.keep().unwrap();
        }
    }
}

/// Opens the log as the third process would, and says what is missing.
fn check(disk: &SimDisk, promised: &Promised) -> Result<(), String> {
    let mut harness = Harness::open(disk, config()).map_err(|error| error.to_string())?;
    if !promised.is_made {
        return Ok(());
    }
    if !promised.allows(end(&harness)) {
        return Err(format!(
            "the log ends at {} for {promised:?}",
            end(&harness)
        ));
    }
    let found = harness
        .all(&at("a", 0))
        .map_err(|error| error.to_string())?;
    let is_right = |(n, stored): (u64, &crate::StoredRecord)| {
        stored.offset.0.unsigned_abs() == n && stored.record == append("a", 0, n).record
    };
    if found.len() as u64 != end(&harness) || !(0..).zip(&found).all(is_right) {
        return Err(format!("other records are there: {found:?}"));
    }
    for audited in harness.audit() {
        if !audited.books.is_balanced() || !audited.missing.is_empty() {
            return Err(format!("the books are wrong: {:?}", audited.missing));
        }
    }
    Ok(())
}

fn play(seed: u64) -> Explored {
    let life = |name: &'static str, writes: u64| {
        move |disk: &SimDisk, promised: &mut Promised| {
            live(disk, promised, Stream::new(seed).stream(name), writes);
        }
    };
    crash_points_of_two_lives(seed, life("first", 4), life("second", 3), check)
}

#[test]
fn t31_a_kill_and_then_a_power_cut_lose_nothing_that_was_answered() {
    let mut explored = Explored::default();
    let seeds = scaled(20);
    for seed in 0..seeds {
        explored += play(seed);
    }
    println!(
        "{seeds} workloads, {} pairs of ends, {} crashes: nothing missing",
        explored.operations, explored.states
    );
}

/// The mistake that needs both: a file that was named by a process that died, and used by the next one.
#[test]
fn a_name_that_a_killed_process_left_unsynced_is_caught() {
    injected_bugs::inject(Some(InjectedBug::UnsyncedName));
    let caught = catch_unwind(AssertUnwindSafe(|| play(0)));
    injected_bugs::inject(None);
    let what = caught.expect_err("the mistake was not caught");
    let what = what.downcast_ref::<String>().map_or("", String::as_str);
    assert!(what.contains("the log ends at"), "{what}");
}
