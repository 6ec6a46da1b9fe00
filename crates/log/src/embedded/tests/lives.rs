//! A process is killed at every disk operation while the machine runs on, the next one goes on from there and
//! loses the power at every operation of its own: whatever either was answered is there.
//!
//! What a killed process has written can be read and may still be lost. So this finds whoever builds on what
//! he reads without a sync of his own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_core::env::{Entropy, Stream};
use tidegate_sim::{Explored, SimDisk, crash_points_of_two_lives, scaled};

use super::desk::{Desk, append, at, small};
use crate::EmbeddedConfig;
use crate::embedded::planted::{self, Bug};
use crate::topic::TopicConfig;

/// What both lives were promised. The records are numbered by their offsets.
#[derive(Debug, Default, Clone)]
struct Owed {
    is_made: bool,
    records: u64,
    /// How many more were asked for in a write that was not answered.
    asked: u64,
}

impl Owed {
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

fn end(desk: &Desk) -> u64 {
    desk.end(&at("a", 0)).unsigned_abs()
}

/// Opens the log, writes so many times, and does what the keeper does now and then.
fn live(disk: &SimDisk, owed: &mut Owed, mut random: Stream, writes: u64) {
    let random: &mut dyn Entropy = &mut random;
    let mut desk = Desk::open(disk, config()).unwrap();
    desk.create("a", TopicConfig::new(1)).unwrap();
    owed.is_made = true;
    // What an open log shows stays, also what nobody was answered for.
    assert!(owed.allows(end(&desk)), "{} for {owed:?}", end(&desk));
    owed.records = end(&desk);
    owed.asked = 0;
    for _ in 0..writes {
        owed.asked = 1 + random.below(3);
        let numbers = owed.records..owed.records + owed.asked;
        desk.append(numbers.map(|n| append("a", 0, n)).collect())
            .unwrap();
        owed.records += owed.asked;
        owed.asked = 0;
        if random.below(4) == 0 {
            desk.keep().unwrap();
        }
    }
}

/// Opens the log as the third process would, and says what is missing.
fn check(disk: &SimDisk, owed: &Owed) -> Result<(), String> {
    let mut desk = Desk::open(disk, config()).map_err(|error| error.to_string())?;
    if !owed.is_made {
        return Ok(());
    }
    if !owed.allows(end(&desk)) {
        return Err(format!("the log ends at {} for {owed:?}", end(&desk)));
    }
    let found = desk.all(&at("a", 0)).map_err(|error| error.to_string())?;
    let is_right = |(n, stored): (u64, &crate::StoredRecord)| {
        stored.offset.0.unsigned_abs() == n && stored.record == append("a", 0, n).record
    };
    if found.len() as u64 != end(&desk) || !(0..).zip(&found).all(is_right) {
        return Err(format!("other records are there: {found:?}"));
    }
    for audited in desk.audit() {
        if !audited.books.is_balanced() || !audited.missing.is_empty() {
            return Err(format!("the books are wrong: {:?}", audited.missing));
        }
    }
    Ok(())
}

fn play(seed: u64) -> Explored {
    let life = |name: &'static str, writes: u64| {
        move |disk: &SimDisk, owed: &mut Owed| {
            live(disk, owed, Stream::new(seed).stream(name), writes);
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
    planted::plant(Some(Bug::UnsyncedName));
    let caught = catch_unwind(AssertUnwindSafe(|| play(0)));
    planted::plant(None);
    let what = caught.expect_err("the mistake was not caught");
    let what = what.downcast_ref::<String>().map_or("", String::as_str);
    assert!(what.contains("the log ends at"), "{what}");
}
