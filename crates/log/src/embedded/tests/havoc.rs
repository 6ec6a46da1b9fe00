//! One file of a log is damaged, whatever was done to the log before. Then what was acknowledged is there,
//! or somebody is told; nothing is overwritten; and a repair ends it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate_core::Offset;
use tidegate_core::env::{Clock, Disk, Entropy, OpenMode, Stream};
use tidegate_sim::{SimDisk, is_long, seeds};

use super::harness::{Harness, append, at, dir, id, offset, secret, small};
use crate::EmbeddedConfig;
use crate::embedded::files::{journal_number, journals};
use crate::embedded::group::{ALIGN, HEADER, JournalFrame};
use crate::embedded::{
    LogProblem, RepairPlan, TopicAudit, check, plan_repair, recount, repair, unknown_loss,
};
use crate::error::LogError;
use crate::local::Write;
use crate::port::Read;
use crate::topic::TopicConfig;

/// The partitions of `a`, which `g` reads; `b` has one.
const PARTITIONS: i32 = 3;

/// A place in the log: the topic, the partition, the offset.
type Place = (&'static str, i32, i64);

/// The acknowledged records and commits.
#[derive(Default)]
struct Model {
    /// The number of each record that was ever written.
    records: BTreeMap<Place, u64>,
    /// The committed offsets of `g`, by partition.
    committed: BTreeMap<i32, i64>,
    /// Where the partitions ended when everything was last put into segments, and when that was last
    /// made durable. The next process puts the rest there anew.
    filled: BTreeMap<(&'static str, i32), i64>,
    durable: BTreeMap<(&'static str, i32), i64>,
    /// Where the partitions of `a` start.
    starts: BTreeMap<i32, i64>,
    next: u64,
}

impl Model {
    fn append(&mut self, topic: &'static str, partition: i32) -> crate::port::Append {
        self.next += 1;
        append(topic, partition, self.next)
    }

    fn is_there(&self, (topic, partition, offset): Place) -> bool {
        topic != "a"
            || self
                .starts
                .get(&partition)
                .is_none_or(|start| offset >= *start)
    }
}

fn config(draw: &mut dyn Entropy) -> EmbeddedConfig {
    let sizes = [2_048, 8_192, 1 << 16];
    EmbeddedConfig {
        journal_size: sizes[draw.below(3) as usize],
        cache_size: [600, 4_000][draw.below(2) as usize],
        ..small()
    }
}

/// Some records, in one or more writes that share a sync.
fn write(harness: &mut Harness, draw: &mut dyn Entropy, model: &mut Model) {
    let mut writes = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..=draw.below(3) {
        let first = model.next;
        let appends = (0..=draw.below(3)).map(|_| {
            let partition = draw.below(PARTITIONS as u64) as i32;
            model.append("a", partition)
        });
        let appends: Vec<_> = appends.collect();
        writes.push(Write {
            appends,
            offsets: Vec::new(),
        });
        numbers.push(first + 1..);
    }
    for (answer, numbers) in harness.write_all(writes).unwrap().into_iter().zip(numbers) {
        for (written, number) in answer.unwrap().iter().zip(numbers) {
            let place = ("a", written.at.partition.0, written.offset.0);
            assert_eq!(model.records.insert(place, number), None, "{place:?}");
        }
    }
}

/// The group delivers what follows, sometimes with a record that is written along.
fn commit(harness: &mut Harness, draw: &mut dyn Entropy, model: &mut Model) {
    let partition = draw.below(PARTITIONS as u64) as i32;
    let from = model.committed.get(&partition).copied().unwrap_or(0);
    let waiting = harness.end(&at("a", partition)) - from;
    if waiting == 0 {
        return;
    }
    let next = from + 1 + draw.below(waiting as u64) as i64;
    let passed = model
        .records
        .range(("a", partition, from)..("a", partition, next));
    let ids: Vec<_> = passed.map(|(_, number)| id(*number)).collect();
    let along = (draw.below(2) == 0).then(|| model.append("b", 0));
    let number = model.next;
    let written = harness.write(Write {
        appends: along.into_iter().collect(),
        offsets: vec![offset("g", at("a", partition), next, ids)],
    });
    for written in written.unwrap() {
        model.records.insert(("b", 0, written.offset.0), number);
    }
    model.committed.insert(partition, next);
}

fn note_filled(harness: &Harness, model: &mut Model) {
    for (topic, partition) in [("a", 0), ("a", 1), ("a", 2), ("b", 0)] {
        let end = harness.end(&at(topic, partition));
        model.filled.insert((topic, partition), end);
    }
}

fn step(harness: &mut Harness, draw: &mut dyn Entropy, model: &mut Model) {
    match draw.below(20) {
        0..=8 => write(harness, draw, model),
        9..=12 => commit(harness, draw, model),
        13..=14 => {
            harness.opened.maintenance.fill(true).unwrap();
            note_filled(harness, model);
        }
        15 => {
            harness.opened.maintenance.checkpoint().unwrap();
            note_filled(harness, model);
            model.durable = model.filled.clone();
        }
        16..=17 => harness.keep().unwrap(),
        18 => {
            let partition = draw.below(PARTITIONS as u64) as i32;
            if let Some(next) = model
                .committed
                .get(&partition)
                .filter(|_| draw.below(3) == 0)
            {
                harness.delete_before(&at("a", partition), *next).unwrap();
            }
        }
        _ => harness.pass(60_000),
    }
    for partition in 0..PARTITIONS {
        let start = harness.start(&at("a", partition));
        model.starts.insert(partition, start);
    }
}

/// Where the last write begins: the number of its journal file, and the place. Nothing behind it says
/// that it was synced.
fn last_write(disk: &dyn Disk) -> (u64, u64) {
    let mut groups = Vec::new();
    for (number, name) in journals(disk, dir()).unwrap() {
        let bytes = disk.read(&dir().join(name), 1 << 24).unwrap();
        let mut place = 0;
        while place + HEADER <= bytes.len() {
            let frame = JournalFrame::read(&bytes[place..], secret(disk));
            groups.extend(frame.map(|frame| (frame.sequence, frame.synced, number, place as u64)));
            place += frame.map_or(ALIGN, |frame| frame.size());
        }
    }
    let (_, synced, ..) = *groups.iter().max().unwrap();
    let first = groups.iter().find(|(sequence, ..)| *sequence == synced + 1);
    let (_, _, number, place) = *first.unwrap();
    (number, place)
}

/// The damage to a file.
#[derive(Debug)]
struct Damage {
    /// For whoever reads of a failure.
    what: String,
    is_journal: bool,
    is_manifest: bool,
    /// The end of the journal is gone, and it is unknown how much it held.
    is_end: bool,
    /// And nothing is left of it.
    is_without_trace: bool,
}

fn files(disk: &dyn Disk) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for place in ["", "topic-a", "topic-b"] {
        let place = dir().join(place);
        let entries = disk.list(&place).unwrap_or_default().into_iter();
        let ours = entries.filter(|entry| {
            let is = |kind: &str| entry.name.ends_with(kind);
            is(".seg")
                || is(".idx")
                || is("manifest")
                || is("manifest.copy")
                || journal_number(&entry.name).is_some()
        });
        files.extend(ours.map(|entry| place.join(entry.name)));
    }
    files.sort();
    files
}

/// Damages one file: a bit, some bytes, its end, or all of it. Of the last write nothing but with the end
/// of its file: it looks as if it had never been acknowledged.
fn damage(disk: &SimDisk, draw: &mut dyn Entropy) -> Option<Damage> {
    let as_disk: &dyn Disk = disk;
    let (last, place) = last_write(as_disk);
    let files = files(as_disk);
    let path = &files[draw.below(files.len() as u64) as usize];
    let name = path.file_name()?.to_str()?.to_owned();
    let len = as_disk.read(path, 1 << 24).unwrap().len() as u64;
    let number = journal_number(&name);
    let limit = match number {
        Some(number) if number == last => place,
        Some(number) if number > last => 0,
        Some(_) | None => len,
    };
    let is_last = number.is_some_and(|number| number >= last);
    let mut damage = Damage {
        what: name.clone(),
        is_journal: number.is_some(),
        is_manifest: name.starts_with("manifest"),
        is_end: false,
        is_without_trace: false,
    };
    match draw.below(8) {
        0..=3 if limit > 0 => {
            let place = draw.below(limit);
            disk.flip_bit(path, place, draw.below(8) as u8);
            damage.what += &format!(": a bit at {place}");
        }
        4..=5 if limit > 0 => {
            let place = draw.below(limit);
            let count = (1 + draw.below(300)).min(limit - place);
            let mut file = as_disk.open(path, OpenMode::Write).unwrap();
            file.write_at(place, &vec![0; count as usize]).unwrap();
            damage.what += &format!(": {count} zeros at {place}");
        }
        6 if len > 0 => {
            let place = draw.below(len);
            let mut file = as_disk.open(path, OpenMode::Write).unwrap();
            file.truncate(place).unwrap();
            damage.is_end = is_last;
            damage.what += &format!(": cut at {place}");
        }
        7 => {
            as_disk.remove(path).unwrap();
            damage.is_end = is_last;
            damage.is_without_trace = is_last;
            damage.what += ": removed";
        }
        _ => return None,
    }
    Some(damage)
}

/// All records of a partition that can be read.
fn readable(
    harness: &mut Harness,
    topic: &'static str,
    partition: i32,
) -> BTreeMap<Place, Vec<u8>> {
    let place = at(topic, partition);
    let mut from = harness.start(&place);
    let mut found = BTreeMap::new();
    loop {
        match harness.reader.read(&Read::new(place.clone(), Offset(from))) {
            Ok(batch) if batch.records.is_empty() => return found,
            Ok(batch) => {
                from = batch.next.0;
                for stored in batch.records {
                    let value = stored.record.value.unwrap_or_default().to_vec();
                    let is_new = found.insert((topic, partition, stored.offset.0), value);
                    assert_eq!(is_new, None, "read twice");
                }
            }
            Err(LogError::Damaged { to, .. }) if to.0 > from => from = to.0,
            Err(error) => panic!("{error}"),
        }
    }
}

fn all_readable(harness: &mut Harness) -> BTreeMap<Place, Vec<u8>> {
    let partitions = [("a", 0), ("a", 1), ("a", 2), ("b", 0)];
    let all = partitions.into_iter();
    all.flat_map(|(topic, p)| readable(harness, topic, p))
        .collect()
}

/// How many events are missing, and how many more are lost at least.
fn told(disk: &SimDisk) -> (u64, u64) {
    let counted = recount(disk, dir()).unwrap();
    let missing = counted.iter().map(TopicAudit::unaccounted).sum();
    let loss = unknown_loss(disk, dir()).unwrap();
    (missing, loss.map_or(0, |loss| loss.events))
}

/// The partitions of which the group would read something again.
fn undone(harness: &Harness, model: &Model) -> Vec<i32> {
    let state = harness.opened.context.state();
    let progress = state.groups.values().next().and_then(|of| of.get(&0));
    let committed = model.committed.iter();
    let undone = committed.filter(|(partition, next)| {
        let now = progress.map_or(0, |progress| progress.needs(**partition as usize));
        assert!(now <= **next, "{now} was never committed");
        now < **next
    });
    undone.map(|(partition, _)| *partition).collect()
}

fn live(harness: &Harness) -> u64 {
    harness.audit().iter().map(TopicAudit::unaccounted).sum()
}

fn play(seed: u64) {
    let mut draw = Stream::new(seed);
    let draw: &mut dyn Entropy = &mut draw;
    let disk = SimDisk::new(seed);
    let config = config(draw);
    let open = || Harness::open(&disk, config.clone()).unwrap();
    let mut harness = open();
    harness
        .create("a", TopicConfig::new(PARTITIONS as u32))
        .unwrap();
    harness.create("b", TopicConfig::new(1)).unwrap();
    harness.register("g", vec![0]).unwrap();
    let mut model = Model::default();
    for _ in 0..10 + draw.below(60) {
        step(&mut harness, draw, &mut model);
        if draw.below(25) == 0 {
            drop(harness);
            disk.end_process();
            harness = open();
            model.filled = model.durable.clone();
        }
    }
    drop(harness);
    disk.end_process();
    assert_eq!(told(&disk), (0, 0));
    let Some(damage) = damage(&disk, draw) else {
        return;
    };
    disk.end_process();
    println!("{damage:?}");
    after(&disk, &open, &damage, model, draw);
}

/// The rules that hold behind the damage.
fn after(
    disk: &SimDisk,
    open: &dyn Fn() -> Harness,
    damage: &Damage,
    mut model: Model,
    draw: &mut dyn Entropy,
) {
    let before = told(disk);
    let mut harness = open();
    let mut found = all_readable(&mut harness);
    for (place, value) in &found {
        let number = model.records.get(place).expect("nobody wrote that");
        let value = String::from_utf8_lossy(value);
        assert!(
            value.starts_with(&format!("value {number} ")),
            "{place:?} {value}"
        );
    }
    let lost = model.records.keys();
    let lost = lost.filter(|place| model.is_there(**place) && !found.contains_key(*place));
    let lost: Vec<Place> = lost.copied().collect();
    let undone = undone(&harness, &model);
    let is_told = before != (0, 0);
    if !lost.is_empty() || !undone.is_empty() {
        assert!(
            is_told || damage.is_without_trace,
            "in silence: {lost:?} {undone:?}"
        );
        assert!(
            !damage.is_manifest,
            "there is another one: {lost:?} {undone:?}"
        );
    } else if !damage.is_journal {
        // With a commit that is lost goes what it posted, also where a later one went on behind it.
        assert_eq!(before.0, 0, "nothing is missing");
    }
    if damage.is_journal {
        let filled = |place: &&Place| {
            let end = model.filled.get(&(place.0, place.1));
            end.is_some_and(|end| place.2 < *end)
        };
        let copied = lost.iter().find(filled);
        assert_eq!(copied, None, "its segment has it");
    }
    assert_eq!(
        live(&harness),
        before.0,
        "who asks the log is told the same"
    );
    for partition in 0..PARTITIONS {
        let written = harness.append(vec![model.append("a", partition)]).unwrap();
        let place = ("a", partition, written[0].offset.0);
        let is_given = model.records.contains_key(&place);
        assert!(!is_given || damage.is_end, "{place:?} was given before");
        found.insert(place, format!("value {} ", model.next).into_bytes());
    }
    if draw.below(2) == 0 {
        harness.keep().unwrap();
    }
    if draw.below(2) == 0 {
        harness.opened.maintenance.checkpoint().unwrap();
    }
    drop(harness);
    disk.end_process();
    assert_eq!(
        told(disk),
        before,
        "a start does not hide it, nor add to it"
    );
    mend(disk, &open().clock);
    let mut harness = open();
    let left = all_readable(&mut harness);
    for (place, value) in &found {
        let is_left = left.get(place).is_some_and(|left| left.starts_with(value));
        assert!(is_left, "{place:?} is gone with the repair");
    }
    for partition in 0..PARTITIONS {
        harness.append(vec![model.append("a", partition)]).unwrap();
    }
    assert_eq!(live(&harness), 0);
}

/// Repairs the log, and checks that nothing is left to repair.
fn mend(disk: &SimDisk, clock: &Arc<super::harness::TestClock>) {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = clock.clone();
    disk.end_process();
    plan_repair(disk, &*clock, dir()).unwrap();
    repair(&as_disk, &clock, dir(), 77).unwrap();
    disk.end_process();
    let plan = plan_repair(disk, &*clock, dir()).unwrap();
    assert_eq!(plan, RepairPlan::default());
    assert_eq!(told(disk), (0, 0), "a repair ends it");
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    disk.end_process();
    let problems = check(disk, dir()).unwrap().problems;
    assert!(!problems.iter().any(LogProblem::is_loss), "{problems:?}");
}

#[test]
fn whatever_file_is_damaged_nothing_acknowledged_is_lost_in_silence() {
    seeds!(if is_long() { 20_000 } else { 150 }, play);
}
