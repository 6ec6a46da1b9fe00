//! After one repair the books are in line with the records, whatever was damaged: what is lost is posted
//! as lost, what retention removed is not, and a second repair has nothing to do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::books::Place;
use tidegate_core::env::{Clock, Disk, Entropy, OpenMode, Stream};
use tidegate_sim::{SimDisk, is_long, seeds};

use super::harness::{
    Harness, append, at, damage, dir, empty_journal, id, journal, offset, secret, small,
};
use crate::EmbeddedConfig;
use crate::embedded::group::JournalFrame;
use crate::embedded::{
    COMMIT_DAMAGED, DAMAGED, Presence, Repaired, TopicAudit, check, files, plan_repair, presence,
    recount, repair, unknown_loss,
};
use crate::local::Write;
use crate::topic::TopicConfig;

/// One journal file, so that a later group is never far.
fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal_size: 1 << 16,
        ..small()
    }
}

fn open(disk: &SimDisk) -> Harness {
    Harness::open(disk, config()).unwrap()
}

/// The result of an audit: how many events are missing, and how many more are lost at least.
fn found(disk: &SimDisk) -> (u64, u64) {
    let counted = recount(disk, dir()).unwrap();
    let missing = counted.iter().map(TopicAudit::unaccounted).sum();
    let loss = unknown_loss(disk, dir()).unwrap();
    (missing, loss.map_or(0, |loss| loss.events))
}

/// How many events of topics and of groups are posted as lost.
fn all_lost(disk: &SimDisk) -> (i64, i64) {
    let counted = recount(disk, dir()).unwrap();
    let (groups, topics): (Vec<_>, Vec<_>) = counted.iter().partition(|a| a.group.is_some());
    let lost = |audited: &[&TopicAudit], place: &Place| -> i64 {
        audited.iter().map(|a| a.books.in_place(place)).sum()
    };
    let topics = lost(&topics, &Place::Lost(DAMAGED));
    (topics, lost(&groups, &Place::Lost(COMMIT_DAMAGED)))
}

/// Repairs, and sees to it that it does what it said before, and nothing is left to repair.
fn mend(disk: &SimDisk) -> Vec<Repaired> {
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = open(disk).clock;
    disk.end_process();
    let before = all_lost(disk);
    let plan = plan_repair(disk, &*clock, dir()).unwrap();
    let repaired = repair(&as_disk, &clock, dir(), 77).unwrap();
    let after = all_lost(disk);
    let posted = (after.0 - before.0, after.1 - before.1);
    let planned = [plan.damaged, plan.commit_damaged].map(|count| i64::try_from(count).unwrap());
    assert_eq!(posted, (planned[0], planned[1]), "{plan:?} {repaired:?}");
    let counted = recount(disk, dir()).unwrap();
    let left: Vec<_> = counted
        .iter()
        .flat_map(|audited| &audited.missing)
        .collect();
    assert!(left.is_empty(), "{left:?} after {repaired:?}");
    assert_eq!(unknown_loss(disk, dir()).unwrap(), None);
    for audited in &counted {
        assert!(audited.books.is_balanced(), "{audited:?}");
    }
    assert_eq!(repair(&as_disk, &clock, dir(), 78).unwrap(), []);
    let problems = check(disk, dir()).unwrap().problems;
    let losses: Vec<_> = problems.iter().filter(|found| found.is_loss()).collect();
    assert!(losses.is_empty(), "{losses:?}");
    repaired
}

/// How many events a topic, or a group on it, has lost for this reason.
fn lost(disk: &SimDisk, group: Option<&str>, place: &Place) -> i64 {
    let counted = recount(disk, dir()).unwrap();
    let is_it = |audited: &&TopicAudit| {
        let name = audited.group.as_ref().map(|group| group.as_str());
        audited.topic.as_str() == "a" && name == group
    };
    let audited = counted.iter().find(is_it).unwrap();
    audited.books.in_place(place)
}

/// A group that has delivered all of a partition up to `next`, from `from` on.
fn deliver(harness: &mut Harness, from: u64, next: u64) {
    let to = i64::try_from(next).unwrap();
    harness
        .write(Write {
            appends: Vec::new(),
            offsets: vec![offset("g", at("a", 0), to, (from..next).map(id))],
        })
        .unwrap();
}

#[test]
fn a_record_that_retention_removed_is_not_lost_with_its_journal() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..6 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    harness.delete_before(&at("a", 0), 3).unwrap();
    drop(harness);
    // One that had been removed, and one that had not.
    for n in [1, 4] {
        damage(&disk, &journal(&disk, 1), format!("value {n} ").as_bytes());
    }
    assert!(found(&disk).0 > 0);
    mend(&disk);
    assert_eq!(lost(&disk, None, &Place::Lost(DAMAGED)), 1);
}

#[test]
fn a_removal_whose_posting_is_lost_is_posted_as_lost() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..6 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    harness.opened.maintenance.checkpoint().unwrap();
    let before = harness.opened.context.state().journal.at;
    harness.delete_before(&at("a", 0), 2).unwrap();
    harness.delete_before(&at("a", 0), 4).unwrap();
    harness.append(vec![append("a", 0, 6)]).unwrap();
    drop(harness);
    disk.flip_bit(&journal(&disk, 1), before + 50, 1);
    mend(&disk);
    // Whether they were removed in time is in no books.
    assert_eq!(lost(&disk, None, &Place::Lost(DAMAGED)), 2);
}

#[test]
fn repair_reports_records_of_a_lost_commit_even_after_retention() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..40 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    // In several segments, which can go.
    harness.opened.maintenance.checkpoint().unwrap();
    deliver(&mut harness, 0, 5);
    deliver(&mut harness, 5, 10);
    deliver(&mut harness, 10, 36);
    harness.delete_before(&at("a", 0), 36).unwrap();
    drop(harness);
    damage(&disk, &journal(&disk, 1), b"up to 10");
    assert_eq!(found(&disk).0, 5);
    mend(&disk);
    assert_eq!(lost(&disk, Some("g"), &Place::Lost(COMMIT_DAMAGED)), 5);
    assert_eq!(lost(&disk, Some("g"), &Place::Delivered), 31);
    assert_eq!(lost(&disk, None, &Place::Lost(DAMAGED)), 0);
}

#[test]
fn repair_posts_a_lost_commit_that_retention_relied_on() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness
        .append((0..8).map(|n| append("a", 0, n)).collect())
        .unwrap();
    deliver(&mut harness, 0, 2);
    deliver(&mut harness, 2, 4);
    harness.delete_before(&at("a", 0), 4).unwrap();
    drop(harness);
    damage(&disk, &journal(&disk, 1), b"up to 4");
    mend(&disk);
    assert_eq!(lost(&disk, Some("g"), &Place::Lost(COMMIT_DAMAGED)), 2);
    assert_eq!(lost(&disk, Some("g"), &Place::Delivered), 2);
}

#[test]
fn repair_posts_damage_of_a_segment_and_of_the_journal_in_one_minute() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(2)).unwrap();
    // All of one minute. The group has settled what the journal loses, and not what the segment loses:
    // its books have as many of that minute as the records, and not the same ones.
    harness.append(vec![append("a", 1, 7)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    for n in [14, 21] {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    harness
        .write(Write {
            appends: Vec::new(),
            offsets: vec![offset("g", at("a", 0), 1, [id(14)])],
        })
        .unwrap();
    harness.append(vec![append("a", 0, 28)]).unwrap();
    drop(harness);
    damage(&disk, &journal(&disk, 1), b"value 14 ");
    let segment = dir().join("topic-a").join("1-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 7 ");
    empty_journal(&disk);
    mend(&disk);
    assert_eq!(lost(&disk, None, &Place::Lost(DAMAGED)), 2);
    assert_eq!(lost(&disk, Some("g"), &Place::Lost(DAMAGED)), 1);
    assert_eq!(lost(&disk, Some("g"), &Place::Delivered), 1);
}

#[test]
fn records_removed_with_a_damaged_segment_are_posted_as_lost() {
    for is_missing in [false, true] {
        let disk = SimDisk::new(1);
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(1)).unwrap();
        harness.register("g", vec![0]).unwrap();
        for n in 0..40 {
            harness.append(vec![append("a", 0, n)]).unwrap();
        }
        deliver(&mut harness, 0, 40);
        harness.opened.maintenance.checkpoint().unwrap();
        harness.delete_before(&at("a", 0), 3).unwrap();
        harness.opened.maintenance.checkpoint().unwrap();
        drop(harness);
        disk.end_process();
        let segment = dir().join("topic-a/0-00000000000000000000-0.seg");
        let as_disk: &dyn Disk = &disk;
        match is_missing {
            true => as_disk.remove(&segment).unwrap(),
            false => damage(&disk, &segment, b"value 4 "),
        }
        let mut harness = open(&disk);
        harness.delete_before(&at("a", 0), 30).unwrap();
        harness.opened.maintenance.checkpoint().unwrap();
        drop(harness);
        disk.end_process();
        let missing = i64::try_from(found(&disk).0).unwrap();
        assert!(missing > 0);
        mend(&disk);
        assert_eq!(lost(&disk, None, &Place::Lost(DAMAGED)), missing);
    }
}

#[test]
fn events_posted_as_lost_and_then_removed_explain_no_other_loss() {
    let disk = SimDisk::new(1);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    for n in 0..40 {
        harness.append(vec![append("a", 0, n)]).unwrap();
    }
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.end_process();
    let segment = dir().join("topic-a/0-00000000000000000000-0.seg");
    damage(&disk, &segment, b"value 3 ");
    damage(&disk, &segment, b"value 4 ");
    empty_journal(&disk);
    mend(&disk);
    assert_eq!(lost(&disk, None, &Place::Lost(DAMAGED)), 2);
    let mut harness = open(&disk);
    harness.delete_before(&at("a", 0), 20).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    // One more event than there is in the records, and nothing that explains it.
    let book = |state: &mut crate::embedded::state::LogState| {
        let books = &mut state.topics[0].books;
        let (bucket, _) = books.tallies(&Place::Queued).pop_last().unwrap();
        let tally = tidegate_core::books::Tally::of(id(99));
        books.move_tally(bucket, None, Some(Place::Queued), tally);
    };
    book(&mut harness.opened.context.state());
    harness.append(vec![append("a", 0, 40)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    disk.end_process();
    assert_eq!(found(&disk).0, 1);
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let clock: Arc<dyn Clock> = open(&disk).clock;
    disk.end_process();
    repair(&as_disk, &clock, dir(), 78).unwrap();
    assert_eq!(found(&disk).0, 1, "a repair explains only what it knows");
}

#[test]
fn a_repair_works_with_a_clock_that_is_behind_the_books() {
    for days in [3, 40] {
        let disk = SimDisk::new(1);
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(1)).unwrap();
        harness.register("g", vec![0]).unwrap();
        for n in 0..10 {
            harness.append(vec![append("a", 0, n)]).unwrap();
        }
        // By then minutes are folded into hours, and hours into days.
        harness.pass(days * 86_400_000);
        harness.opened.maintenance.checkpoint().unwrap();
        drop(harness);
        disk.end_process();
        let segment = dir().join("topic-a/0-00000000000000000000-0.seg");
        damage(&disk, &segment, b"value 3 ");
        empty_journal(&disk);
        mend(&disk);
        assert_eq!(lost(&disk, None, &Place::Lost(DAMAGED)), 1);
        assert_eq!(lost(&disk, Some("g"), &Place::Lost(DAMAGED)), 1);
    }
}

#[test]
fn a_repair_makes_no_journal_file_that_is_larger_than_the_others() {
    for is_one_left in [true, false] {
        let disk = SimDisk::new(1);
        let as_disk: &dyn Disk = &disk;
        let mut harness = open(&disk);
        harness.create("a", TopicConfig::new(1)).unwrap();
        harness.append(vec![append("a", 0, 0)]).unwrap();
        let clock: Arc<dyn Clock> = harness.clock.clone();
        drop(harness);
        let path = journal(&disk, 1);
        if is_one_left {
            let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
            file.truncate(0).unwrap();
        } else {
            as_disk.remove(&path).unwrap();
        }
        let configured = EmbeddedConfig {
            journal_size: if is_one_left { 1 << 20 } else { 1 << 16 },
            ..small()
        };
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        repair(&shared, &clock, configured, 77).unwrap();
        let names = files::journals(&disk, dir()).unwrap().into_values();
        let longest = names.filter_map(|name| files::journal_len(&name)).max();
        assert_eq!(longest, Some(1 << 16));
    }
}

#[test]
fn whatever_is_left_of_a_log_is_found() {
    let disk = SimDisk::new(1);
    let as_disk: &dyn Disk = &disk;
    assert_eq!(presence(&disk, dir()).unwrap(), Presence::Absent);
    let mut harness = open(&disk);
    harness.create("a", TopicConfig::new(1)).unwrap();
    harness.append(vec![append("a", 0, 0)]).unwrap();
    harness.opened.maintenance.checkpoint().unwrap();
    drop(harness);
    let journal = journal(&disk, 1);
    let segment = dir().join("topic-a").join("0-00000000000000000000-0.seg");
    as_disk.remove(&journal).unwrap();
    for name in ["manifest", "manifest.copy"] {
        assert_eq!(presence(&disk, dir()).unwrap(), Presence::There, "{name}");
        assert!(recount(&disk, dir()).is_ok());
        as_disk.remove(&dir().join(name)).unwrap();
    }
    // Records without a manifest are no new log.
    assert_eq!(presence(&disk, dir()).unwrap(), Presence::There);
    assert!(as_disk.read(&segment, 1 << 20).is_ok());
    assert!(recount(&disk, dir()).is_err());
    assert!(Harness::open(&disk, config()).is_err());
}

#[test]
fn a_lock_alone_tells_that_a_log_was_opened() {
    let disk = SimDisk::new(1);
    let as_disk: &dyn Disk = &disk;
    drop(open(&disk));
    for entry in as_disk.list(dir()).unwrap() {
        if entry.name != "lock" {
            as_disk.remove(&dir().join(entry.name)).unwrap();
        }
    }
    assert_eq!(presence(&disk, dir()).unwrap(), Presence::Emptied);
    // As after a crash before the first manifest: a new log is made.
    drop(open(&disk));
    assert_eq!(presence(&disk, dir()).unwrap(), Presence::There);
}

const PARTITIONS: u64 = 3;

/// Random work on a log.
struct Work {
    harness: Harness,
    draw: Stream,
    /// The numbers of the records, by partition and offset.
    sent: BTreeMap<(i32, i64), u64>,
    passed: BTreeMap<i32, i64>,
    next: u64,
}

impl Work {
    fn below(&mut self, limit: u64) -> u64 {
        self.draw.next_u64() % limit
    }

    fn partition(&mut self) -> i32 {
        i32::try_from(self.below(PARTITIONS)).unwrap()
    }

    fn step(&mut self) {
        match self.below(20) {
            0..9 => self.send(),
            9..13 => self.commit(),
            13..15 => self.harness.opened.maintenance.fill(true).unwrap(),
            15 => self.harness.opened.maintenance.checkpoint().unwrap(),
            16..18 => self.harness.keep().unwrap(),
            18 => self.remove(),
            _ => self.harness.pass(60_000),
        }
    }

    fn send(&mut self) {
        let count = 1 + self.below(3);
        let numbers: Vec<u64> = (0..count).map(|n| self.next + n).collect();
        self.next += count;
        let partitions: Vec<i32> = numbers.iter().map(|_| self.partition()).collect();
        let appends = numbers.iter().zip(partitions);
        let appends = appends.map(|(n, partition)| append("a", partition, *n));
        let placed = self.harness.append(appends.collect()).unwrap();
        for (placed, n) in placed.iter().zip(numbers) {
            let key = (placed.at.partition.0, placed.offset.0);
            self.sent.insert(key, n);
        }
    }

    fn commit(&mut self) {
        let partition = self.partition();
        let from = self.passed.get(&partition).copied().unwrap_or(0);
        let end = self.harness.end(&at("a", partition));
        if end == from {
            return;
        }
        let to = from + 1 + i64::try_from(self.below(end.abs_diff(from))).unwrap();
        let passed = self.sent.range((partition, from)..(partition, to));
        let ids: Vec<_> = passed.map(|(_, n)| id(*n)).collect();
        let appends = match self.below(2) {
            0 => vec![append("b", 0, self.next)],
            _ => Vec::new(),
        };
        self.next += 1;
        let offsets = vec![offset("g", at("a", partition), to, ids)];
        self.harness.write(Write { appends, offsets }).unwrap();
        self.passed.insert(partition, to);
    }

    fn remove(&mut self) {
        let partition = self.partition();
        let to = self.passed.get(&partition).copied().unwrap_or(0);
        if self.below(2) == 0 {
            self.harness.delete_before(&at("a", partition), to).unwrap();
        }
    }
}

/// All files that hold something, and where the last write of the journal begins: what lies there may
/// have been under way.
fn damageable(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    let as_disk: &dyn Disk = disk;
    let len = |path: &Path| as_disk.read(path, 1 << 24).unwrap().len() as u64;
    let mut found = Vec::new();
    for name in ["topic-a", "topic-b"] {
        let place = dir().join(name);
        let entries = as_disk.list(&place).unwrap_or_default().into_iter();
        let segments = entries.filter(|entry| entry.name.ends_with(".seg"));
        found.extend(segments.map(|entry| place.join(entry.name)));
    }
    let mut found: Vec<(PathBuf, u64)> = found.into_iter().map(|p| (p.clone(), len(&p))).collect();
    let mut frames = Vec::new();
    for (number, name) in files::journals(disk, dir()).unwrap() {
        let path = dir().join(name);
        let bytes = as_disk.read(&path, 1 << 24).unwrap();
        let mut at = 0;
        while at < bytes.len() {
            match JournalFrame::read(&bytes[at..], secret(disk)) {
                Some(frame) => {
                    frames.push((frame.sequence, frame.synced, number, at as u64));
                    at += frame.size();
                }
                None => at += 8,
            }
        }
        found.push((path, 0));
    }
    let last = frames.iter().max().copied().unwrap_or_default();
    for (path, limit) in &mut found {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        let Some(number) = files::journal_number(name) else {
            continue;
        };
        // Up to the end of the last group that a later one says to be synced.
        let proven = frames
            .iter()
            .filter(|frame| frame.2 == number && frame.0 <= last.1);
        *limit = proven.map(|frame| frame.3 + 40).max().unwrap_or(0);
    }
    found.retain(|(_, limit)| *limit > 8);
    found
}

/// Random work, damage in one or two files, and one repair.
fn play(seed: u64) {
    let mut draw = Stream::new(seed).stream("play");
    let disk = SimDisk::new(seed);
    let config = EmbeddedConfig {
        journal_size: [2_048, 8_192, 1 << 16][(draw.next_u64() % 3) as usize],
        cache_size: [600, 4_000][(draw.next_u64() % 2) as usize],
        ..small()
    };
    let mut harness = Harness::open(&disk, config.clone()).unwrap();
    harness.create("a", TopicConfig::new(3)).unwrap();
    harness.create("b", TopicConfig::new(1)).unwrap();
    harness.register("g", vec![0]).unwrap();
    // A log that loses the names of topics as well writes to others.
    harness.opened.maintenance.checkpoint().unwrap();
    let mut work = Work {
        harness,
        draw: draw.stream("work"),
        sent: BTreeMap::new(),
        passed: BTreeMap::new(),
        next: 0,
    };
    for _ in 0..10 + draw.next_u64() % 60 {
        work.step();
    }
    drop(work);
    disk.end_process();
    assert_eq!(found(&disk), (0, 0));
    for _ in 0..1 + draw.next_u64() % 2 {
        let files = damageable(&disk);
        if files.is_empty() {
            continue;
        }
        let (path, limit) = &files[(draw.next_u64() % files.len() as u64) as usize];
        let place = 8 + draw.next_u64() % (limit - 8);
        let as_disk: &dyn Disk = &disk;
        match draw.next_u64() % 4 {
            0 | 1 => disk.flip_bit(path, place, (draw.next_u64() % 8) as u8),
            2 => {
                let mut file = as_disk.open(path, OpenMode::Write).unwrap();
                let zeros = (1 + draw.next_u64() % 300).min(limit - place);
                file.write_at(place, &vec![0; zeros as usize]).unwrap();
            }
            _ => as_disk.remove(path).unwrap(),
        }
    }
    if draw.next_u64().is_multiple_of(2) {
        // Nothing can be taken from there.
        empty_journal(&disk);
    }
    disk.end_process();
    if draw.next_u64().is_multiple_of(2) {
        // A start comes before the repair, and more work.
        let mut harness = Harness::open(&disk, config).unwrap();
        harness.append(vec![append("a", 0, 100_000)]).unwrap();
        harness.keep().unwrap();
        drop(harness);
        disk.end_process();
    }
    mend(&disk);
}

/// Retention has removed offsets whose records the books never had. The events of offsets that nobody
/// has read are lost then, and not theirs: a group that passed those could not explain a loss.
#[test]
fn events_of_unread_offsets_are_lost_before_those_of_removed_ones() {
    play(0xe0a2_c370_b4df_3a55);
}

#[test]
fn after_any_damage_one_repair_brings_the_books_in_line() {
    seeds!(if is_long() { 6_000 } else { 60 }, play);
}
