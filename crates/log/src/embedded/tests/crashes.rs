//! The power goes at every disk operation of a workload. Whatever survives of the unsynced bytes,
//! everything promised is there and nothing is there by half.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_core::GroupName;
use tidegate_core::env::{Disk, Entropy, Stream};
use tidegate_sim::{Explored, SimDisk, crash_points, is_long};

use super::harness::{Harness, append, at, dir, id, offset, small};
use crate::embedded::injected_bugs::{self, InjectedBug};
use crate::local::Write;
use crate::port::Append;
use crate::topic::TopicConfig;

/// The partitions of the workload.
const PARTITIONS: [(&str, i32); 5] = [("a", 0), ("a", 1), ("kept", 0), ("keyed", 0), ("old", 0)];
const GROUP: &str = "g";

/// The promises of the log, and the calls since.
#[derive(Debug, Default, Clone)]
struct Obligations {
    /// Topics that were made.
    topics: u64,
    /// By partition: the numbers of records in the order of their offsets.
    records: BTreeMap<(String, i32), Vec<u64>>,
    /// The offset that the group committed on `a`-0.
    committed: i64,
    /// Groups that began behind all that `a` held, and where.
    begun: BTreeMap<String, [i64; 2]>,
    /// One of which that is not known.
    beginning: Option<(String, [i64; 2])>,
    /// A write that was not answered.
    open: Option<Open>,
}

#[derive(Debug, Clone, Default)]
struct Open {
    records: Vec<(String, i32, u64)>,
    committed: Option<i64>,
}

struct Script<'a> {
    disk: &'a SimDisk,
    harness: Option<Harness>,
    promised: &'a mut Obligations,
    random: Stream,
    next: u64,
}

impl Script<'_> {
    fn harness(&mut self) -> &mut Harness {
        self.harness
            .get_or_insert_with(|| Harness::open(self.disk, small()).unwrap())
    }

    fn below(&mut self, bound: u64) -> u64 {
        let random: &mut dyn Entropy = &mut self.random;
        random.below(bound)
    }

    fn make_topics(&mut self) {
        let plain = TopicConfig::new(2);
        let one = || TopicConfig::new(1);
        let kept = TopicConfig {
            retention_bytes: Some(4_000),
            ..one()
        };
        let keyed = TopicConfig {
            compact: true,
            ..one()
        };
        let old = TopicConfig {
            retention: Some(std::time::Duration::from_millis(200)),
            ..one()
        };
        for (name, config) in [("a", plain), ("kept", kept), ("keyed", keyed), ("old", old)] {
            self.harness().create(name, config).unwrap();
            self.promised.topics += 1;
        }
        self.harness().register(GROUP, vec![0]).unwrap();
    }

    fn record(&mut self) -> (Append, (String, i32, u64)) {
        let n = self.next;
        self.next += 1;
        let (name, partition) = PARTITIONS[self.below(5) as usize];
        let mut append = append(name, partition, n);
        if name == "keyed" {
            append.record.key = Some(format!("key {}", n % 3).into());
            if n.is_multiple_of(11) {
                append.record.value = None;
            }
        }
        (append, (name.to_owned(), partition, n))
    }

    /// One commit of several records, and sometimes of the group.
    fn commit(&mut self) {
        let count = 1 + self.below(6);
        let (appends, records): (Vec<_>, Vec<_>) = (0..count).map(|_| self.record()).unzip();
        let mut write = Write {
            appends,
            offsets: Vec::new(),
        };
        let mut open = Open {
            records,
            committed: None,
        };
        let here = self
            .promised
            .records
            .get(&("a".to_owned(), 0))
            .cloned()
            .unwrap_or_default();
        let from = self.promised.committed;
        if self.below(3) == 0 && (from as usize) < here.len() {
            let to = (from as usize + 1 + self.below(4) as usize).min(here.len());
            let ids = here[from as usize..to].iter().map(|n| id(*n));
            write
                .offsets
                .push(offset(GROUP, at("a", 0), to as i64, ids));
            open.committed = Some(to as i64);
        }
        self.promised.open = Some(open.clone());
        self.harness().write(write).unwrap();
        self.promised.open = None;
        note_done(self.promised, &open);
    }

    /// Several commits that share a sync: each is there or not, in their order.
    fn commit_together(&mut self) {
        let mut writes = Vec::new();
        let mut all = Open::default();
        for _ in 0..3 {
            let (append, record) = self.record();
            writes.push(Write {
                appends: vec![append],
                offsets: Vec::new(),
            });
            all.records.push(record);
        }
        // Checked as one write would be too strict: a prefix may be there.
        self.promised.open = Some(all.clone());
        for answer in self.harness().write_all(writes).unwrap() {
            answer.unwrap();
        }
        self.promised.open = None;
        note_done(self.promised, &all);
    }

    /// Another group begins behind all that `a` holds.
    fn begin_group(&mut self) {
        let name = format!("late{}", self.promised.begun.len());
        let ends = [0, 1].map(|partition| self.harness().end(&at("a", partition)));
        self.promised.beginning = Some((name.clone(), ends));
        self.harness().skip(&name, &[(0, 0), (0, 1)]).unwrap();
        self.promised.beginning = None;
        self.promised.begun.insert(name, ends);
    }

    fn keep(&mut self) {
        self.harness().pass(37);
        self.harness().keep().unwrap();
    }

    fn play(&mut self, steps: u64) {
        self.make_topics();
        for step in 0..steps {
            match self.below(12) {
                0..6 => self.commit(),
                6..9 => self.keep(),
                9 => self.harness().make_room().unwrap(),
                10 if step % 2 == 0 => {
                    // The process ends and another one goes on.
                    self.harness = None;
                    self.disk.end_process();
                }
                11 if self.promised.begun.len() < 3 => self.begin_group(),
                _ => {
                    let committed = self.promised.committed;
                    self.harness()
                        .delete_before(&at("a", 0), committed)
                        .unwrap();
                }
            }
        }
    }
}

fn note_done(promised: &mut Obligations, done: &Open) {
    for (name, partition, n) in &done.records {
        promised
            .records
            .entry((name.clone(), *partition))
            .or_default()
            .push(*n);
    }
    if let Some(committed) = done.committed {
        promised.committed = committed;
    }
}

fn scenario(seed: u64, steps: u64, disk: &SimDisk, promised: &mut Obligations) {
    let mut script = Script {
        disk,
        harness: None,
        promised,
        random: Stream::new(seed).stream("script"),
        next: 0,
    };
    script.play(steps);
}

/// Opens the disk as the next process would, and says what is broken.
fn check(disk: &SimDisk, promised: &Obligations) -> Result<(), String> {
    let as_disk: &dyn Disk = disk;
    if promised.topics == 0 && as_disk.list(dir()).is_err() {
        return Ok(());
    }
    let mut harness = Harness::open(disk, small()).map_err(|error| error.to_string())?;
    let known = harness.opened.context.state().topics.len() as u64;
    if known < promised.topics {
        return Err(format!("{known} of {} topics", promised.topics));
    }
    let is_open_there = check_records(&mut harness, promised, known)?;
    check_committed(&harness, promised, is_open_there)?;
    check_begun(&harness, promised)?;
    for audited in harness.audit() {
        if !audited.books.is_balanced() || !audited.missing.is_empty() {
            return Err(format!("the books are wrong: {:?}", audited.missing));
        }
    }
    // A process that opens a log can write to it, and finds it again.
    if known > 0 {
        harness
            .append(vec![append("a", 0, 9_999)])
            .map_err(|error| error.to_string())?;
        let end = harness.end(&at("a", 0));
        drop(harness);
        disk.end_process();
        let harness = Harness::open(disk, small()).map_err(|error| error.to_string())?;
        if harness.end(&at("a", 0)) != end {
            return Err("a write after the crash is gone".to_owned());
        }
    }
    Ok(())
}

/// Whether the records are right, and whether the write that was not answered is there.
fn check_records(
    harness: &mut Harness,
    promised: &Obligations,
    known: u64,
) -> Result<Option<bool>, String> {
    let mut is_open_there = None;
    for (name, partition) in PARTITIONS.into_iter().take(known as usize + 1) {
        let place = at(name, partition);
        if harness.opened.context.state().find(&place).is_none() {
            continue;
        }
        let mut expected: Vec<u64> = promised
            .records
            .get(&(name.to_owned(), partition))
            .cloned()
            .unwrap_or_default();
        let opened = promised.open.iter().flat_map(|open| &open.records);
        let opened: Vec<u64> = opened
            .filter(|(n, p, _)| (n.as_str(), *p) == (name, partition))
            .map(|(.., n)| *n)
            .collect();
        let end = harness.end(&place) as usize;
        if !opened.is_empty() {
            let is_there = end > expected.len();
            if is_open_there.is_some_and(|known| known != is_there) {
                return Err("a write is there by half".to_owned());
            }
            is_open_there = Some(is_there);
            if is_there {
                expected.extend(opened);
            }
        }
        if end != expected.len() {
            return Err(format!("{place} ends at {end}, not at {}", expected.len()));
        }
        let start = harness.start(&place);
        let found = harness.all(&place).map_err(|error| error.to_string())?;
        let compacted = name == "keyed";
        if !compacted && found.len() as i64 != end as i64 - start {
            return Err(format!(
                "{place} has {} records from {start} to {end}",
                found.len()
            ));
        }
        for stored in &found {
            let n = expected[stored.offset.0 as usize];
            if stored.record.headers.event_id() != Some(id(n)) {
                return Err(format!("{place} has something else at {}", stored.offset));
            }
        }
        if compacted {
            check_keys(&expected, &found)?;
        }
        if name == "a" && start > promised.committed.max(committed_of(harness)) {
            return Err("what a group still needs was removed".to_owned());
        }
    }
    Ok(is_open_there)
}

/// The last record of each key is there, unless it is a tombstone.
fn check_keys(expected: &[u64], found: &[crate::StoredRecord]) -> Result<(), String> {
    let mut last = BTreeMap::new();
    for n in expected {
        last.insert(n % 3, *n);
    }
    for n in last.into_values().filter(|n| !n.is_multiple_of(11)) {
        let is_there = found
            .iter()
            .any(|s| s.record.headers.event_id() == Some(id(n)));
        if !is_there {
            return Err(format!("record {n}, the last of its key, is gone"));
        }
    }
    Ok(())
}

fn committed_of(harness: &Harness) -> i64 {
    let state = harness.opened.context.state();
    let progress = state.groups.values().next().and_then(|group| group.get(&0));
    let committed = progress.and_then(|progress| progress.committed[0].as_ref());
    committed.map_or(0, |committed| committed.next.0)
}

fn check_committed(
    harness: &Harness,
    promised: &Obligations,
    is_there: Option<bool>,
) -> Result<(), String> {
    let found = committed_of(harness);
    let opened = promised.open.as_ref().and_then(|open| open.committed);
    let expected = match opened {
        Some(next) if is_there == Some(true) => next,
        Some(_) | None => promised.committed,
    };
    if found != expected {
        return Err(format!("{found} is committed, not {expected}"));
    }
    Ok(())
}

/// Groups began where they were told, in both partitions or in none.
fn check_begun(harness: &Harness, promised: &Obligations) -> Result<(), String> {
    let state = harness.opened.context.state();
    let found = |name: &str| -> Option<[i64; 2]> {
        let progress = state.groups.get(&GroupName::new(name).ok()?)?.get(&0)?;
        progress.committed[0].as_ref()?;
        Some([progress.needs(0), progress.needs(1)])
    };
    for (name, ends) in &promised.begun {
        if found(name) != Some(*ends) {
            return Err(format!(
                "{name} began at {:?}, not at {ends:?}",
                found(name)
            ));
        }
    }
    match &promised.beginning {
        Some((name, ends)) if found(name).is_some_and(|found| found != *ends) => {
            Err(format!("{name} began by half"))
        }
        Some(_) | None => Ok(()),
    }
}

const STEPS: u64 = 60;

#[test]
fn a_million_crashes_lose_nothing_that_was_promised() {
    let wanted = if is_long() { 1_000_000 } else { 8_000 };
    let mut explored = Explored::default();
    let mut seed = 0;
    while explored.states < wanted {
        explored += crash_points(
            seed,
            |disk, promised| scenario(seed, STEPS, disk, promised),
            check,
        );
        seed += 1;
    }
    println!(
        "{seed} workloads, {} operations, {} crashes: nothing missing",
        explored.operations, explored.states
    );
}

/// Writes that share a sync are each there or not; so those that survive are a prefix.
#[test]
fn of_writes_that_share_a_sync_a_prefix_survives() {
    let script = |seed: u64, disk: &SimDisk, promised: &mut Obligations| {
        let mut script = Script {
            disk,
            harness: None,
            promised,
            random: Stream::new(seed).stream("script"),
            next: 0,
        };
        script.make_topics();
        for _ in 0..8 {
            script.commit_together();
            script.keep();
        }
    };
    let check = |disk: &SimDisk, promised: &Obligations| {
        if promised.topics < 4 {
            return Ok(());
        }
        // Which of them survived is told by how many records there are.
        let harness = Harness::open(disk, small()).map_err(|error| error.to_string())?;
        let ends = PARTITIONS
            .iter()
            .map(|(name, p)| harness.end(&at(name, *p)));
        let there: i64 = ends.sum();
        drop(harness);
        disk.end_process();
        let mut promised = promised.clone();
        let count: usize = promised.records.values().map(Vec::len).sum();
        let mut open = promised.open.take().unwrap_or_default();
        let extra = (there as usize)
            .checked_sub(count)
            .ok_or("something is missing")?;
        open.records.truncate(extra);
        note_done(&mut promised, &open);
        check(disk, &promised)
    };
    let mut explored = Explored::default();
    for seed in 0..if is_long() { 3 } else { 1 } {
        explored += crash_points(seed, |disk, promised| script(seed, disk, promised), check);
    }
    assert!(explored.states > 500, "{explored:?}");
}

/// Whether the workload finds this mistake, within so many seeds.
fn is_caught(bug: InjectedBug, seeds: u64) -> Option<u64> {
    (0..seeds).find(|seed| {
        let run = || {
            crash_points(
                *seed,
                |disk, promised| scenario(*seed, STEPS, disk, promised),
                check,
            )
        };
        injected_bugs::inject(Some(bug));
        let caught = catch_unwind(AssertUnwindSafe(run)).is_err();
        injected_bugs::inject(None);
        caught
    })
}

#[test]
fn planted_mistakes_are_caught() {
    for bug in [
        InjectedBug::AnswerBeforeSync,
        InjectedBug::UnsyncedSegments,
        InjectedBug::UncheckedTail,
        InjectedBug::UnsyncedSwitch,
        InjectedBug::CheckpointAhead,
    ] {
        let seed = is_caught(bug, 5);
        println!("{bug:?}: caught by seed {seed:?}");
        assert!(seed.is_some(), "{bug:?} was not caught");
    }
}

/// Records that a journaled removal took from segments are in the journal as well until the next manifest:
/// whoever reads the journal again has it once, or not at all.
#[test]
fn a_crash_between_a_removal_and_its_manifest_leaves_no_record_twice() {
    let config = || crate::EmbeddedConfig {
        journal_size: 1 << 17,
        ..small()
    };
    let script = |disk: &SimDisk, written: &mut i64| {
        let mut harness = Harness::open(disk, config()).unwrap();
        let keyed = TopicConfig {
            compact: true,
            ..TopicConfig::new(1)
        };
        harness.create("keyed", keyed).unwrap();
        let mut add = |harness: &mut Harness, n: u64| {
            let mut append = append("keyed", 0, n);
            append.record.key = Some(format!("key {}", n % 3).into());
            harness.append(vec![append]).unwrap();
            *written += 1;
        };
        (0..40).for_each(|n| add(&mut harness, n));
        harness.keep().unwrap();
        (40..60).for_each(|n| add(&mut harness, n));
        harness.opened.maintenance.fill(true).unwrap();
        harness.delete_before(&at("keyed", 0), 58).unwrap();
    };
    let check = |disk: &SimDisk, written: &i64| {
        if *written == 0 {
            return Ok(());
        }
        let mut harness = Harness::open(disk, config()).map_err(|error| error.to_string())?;
        for audited in harness.audit() {
            if !audited.books.is_balanced() || !audited.missing.is_empty() {
                return Err(format!("the books are wrong: {audited:?}"));
            }
        }
        let end = harness.end(&at("keyed", 0));
        let found = harness.all(&at("keyed", 0)).map_err(|e| e.to_string())?;
        if end < *written || !found.is_sorted_by(|a, b| a.offset < b.offset) {
            return Err(format!(
                "{written} were written, {end} is the end: {found:?}"
            ));
        }
        let numbers: Vec<u64> = (0..end as u64).collect();
        let last: Vec<u64> = (0..3)
            .filter_map(|key| numbers.iter().rev().find(|n| *n % 3 == key).copied())
            .filter(|n| *n as i64 >= harness.start(&at("keyed", 0)))
            .collect();
        if !last
            .iter()
            .all(|n| found.iter().any(|s| s.offset.0 as u64 == *n))
        {
            return Err(format!("the last of a key is gone: {found:?}"));
        }
        let state = harness.opened.context.state();
        let partition = state.partition((0, 0)).ok_or("the partition is gone")?;
        let in_segments: u64 = partition.segments.iter().map(|s| s.len).sum();
        let unflushed: u64 = partition
            .unflushed
            .iter()
            .map(|f| f.bytes.len() as u64)
            .sum();
        let counted = (state.used, state.unflushed_bytes, partition.unflushed_bytes);
        if counted != (in_segments + unflushed, unflushed, unflushed) {
            return Err(format!(
                "{in_segments} + {unflushed} bytes, not {counted:?}"
            ));
        }
        let mut unflushed = partition.unflushed.iter();
        if unflushed.any(|f| f.head.end() <= partition.start) {
            return Err("what was removed is kept in memory".to_owned());
        }
        Ok(())
    };
    let explored = crash_points(5, script, check);
    assert!(explored.states > 200, "{explored:?}");
}
