//! The engine while nothing fails.

use std::time::Duration;

use tidegate_core::Offset;
use tidegate_sim::SimDisk;

use super::harness::{Harness, NOW_MS, append, at, id, offset, small, topic};
use crate::embedded::change::LogChange;
use crate::embedded::maintenance::Maintenance;
use crate::error::LogError;
use crate::local::Write;
use crate::port::{Append, Read};
use crate::record::Record;
use crate::topic::TopicConfig;

fn opened() -> (SimDisk, Harness) {
    let disk = SimDisk::new(1);
    let mut harness = Harness::open(&disk, small()).unwrap();
    harness.create("a", TopicConfig::new(2)).unwrap();
    (disk, harness)
}

#[test]
fn records_read_back_from_memory_and_from_segments() {
    let (_disk, mut harness) = opened();
    for n in 0..60 {
        let written = harness
            .append(vec![append("a", 0, n), append("a", 1, 1_000 + n)])
            .unwrap();
        assert_eq!(written[0].offset, Offset(n as i64));
        assert_eq!(written[1].at, at("a", 1));
        if n % 7 == 0 {
            harness.keep().unwrap();
        }
        let found = harness.all(&at("a", 0)).unwrap();
        assert_eq!(found.len() as u64, n + 1);
    }
    let found = harness.all(&at("a", 0)).unwrap();
    for (stored, n) in found.iter().zip(0..) {
        assert_eq!(stored.record, append("a", 0, n).record);
    }
    let segments = harness
        .opened
        .context
        .state()
        .partition((0, 0))
        .unwrap()
        .segments
        .len();
    assert!(segments > 2, "{segments}");
    harness.assert_balanced();
}

#[test]
fn records_without_an_id_and_times_are_given_theirs() {
    let (_disk, mut harness) = opened();
    let plain = |n: u64| Append::new(topic("a"), Record::new(format!("{n}"))).partition(0);
    harness
        .append((0..5).map(plain).chain([append("a", 0, 7)]).collect())
        .unwrap();
    harness.append(vec![plain(9)]).unwrap();
    let found = harness.all(&at("a", 0)).unwrap();
    assert_eq!(found.len(), 7);
    assert_eq!(found[0].record.timestamp_ms, NOW_MS);
    harness.assert_balanced();
}

#[test]
fn a_commit_is_one_for_records_offsets_and_books() {
    let (disk, mut harness) = opened();
    harness.register("g", vec![0]).unwrap();
    harness
        .append((0..4).map(|n| append("a", 0, n)).collect())
        .unwrap();
    harness
        .write(Write {
            appends: vec![append("a", 1, 10)],
            offsets: vec![offset("g", at("a", 0), 3, (0..3).map(id))],
        })
        .unwrap();
    harness.assert_balanced();
    let group = harness
        .audit()
        .into_iter()
        .find(|a| a.group.is_some())
        .unwrap();
    let account = group.books.account();
    assert_eq!(
        (account.accepted, account.queued, account.delivered),
        (5, 2, 3)
    );
    drop(harness);
    let harness = Harness::open(&disk, small()).unwrap();
    let state = harness.opened.context.state();
    let progress = state.groups.values().next().unwrap().get(&0).unwrap();
    let committed = progress.committed[0].as_ref().unwrap();
    assert_eq!(
        (committed.next, committed.metadata.as_str()),
        (Offset(3), "up to 3")
    );
    drop(state);
    harness.assert_balanced();
}

#[test]
fn offsets_by_time_are_those_of_the_first_record_not_older() {
    let (_disk, mut harness) = opened();
    let times = [5, 3, 9, 9, 2, 20, 11, 30];
    for (n, time) in times.iter().enumerate().cycle().take(80) {
        let ms = 1_000 + time + 40 * (n as u64 / 8);
        let record = Record::new("x".repeat(50)).timestamp_ms(ms);
        harness
            .append(vec![Append::new(topic("a"), record).partition(0)])
            .unwrap();
        if n == 5 {
            harness.keep().unwrap();
        }
    }
    let all = harness.all(&at("a", 0)).unwrap();
    for ms in 990..1_100 {
        let expect = all.iter().find(|s| s.record.timestamp_ms >= ms);
        let expect = expect.map_or(Offset(80), |s| s.offset);
        assert_eq!(
            harness.reader.offset_at(&at("a", 0), ms).unwrap(),
            expect,
            "{ms}"
        );
    }
}

#[test]
fn a_lost_index_is_made_again() {
    let (disk, mut harness) = opened();
    for n in 0..60 {
        harness.append(vec![append("a", 0, n)]).unwrap();
        harness.keep().unwrap();
    }
    harness.opened.maintenance.checkpoint().unwrap();
    let names: Vec<_> = {
        let state = harness.opened.context.state();
        let segments = &state.partition((0, 0)).unwrap().segments;
        segments.iter().map(|segment| segment.name(0)).collect()
    };
    drop(harness);
    let dir = super::harness::dir().join("topic-a");
    let as_disk: &dyn tidegate_core::env::Disk = &disk;
    as_disk
        .remove(&dir.join(names[0].replace(".seg", ".idx")))
        .unwrap();
    disk.flip_bit(&dir.join(names[1].replace(".seg", ".idx")), 30, 3);
    let mut harness = Harness::open(&disk, small()).unwrap();
    for from in [0, 13, 14, 15, 30, 59] {
        let batch = harness.read(&at("a", 0), from).unwrap();
        assert_eq!(batch.records[0].offset, Offset(from));
        assert_eq!(batch.records[0].record, append("a", 0, from as u64).record);
    }
}

#[test]
fn retention_by_size_removes_whole_segments_and_posts_them() {
    let (disk, mut harness) = opened();
    let config = TopicConfig {
        retention_bytes: Some(6_000),
        ..TopicConfig::new(1)
    };
    harness.create("b", config).unwrap();
    for n in 0..200 {
        harness.append(vec![append("b", 0, n)]).unwrap();
        harness.keep().unwrap();
    }
    harness.opened.maintenance.fill(true).unwrap();
    harness.keep().unwrap();
    let start = harness.start(&at("b", 0));
    assert!(start > 100, "{start}");
    let used = harness.opened.context.state().used;
    assert!(used < 9_000, "{used}");
    assert!(matches!(
        harness.read(&at("b", 0), 0),
        Err(LogError::OutOfRange { .. })
    ));
    let found = harness.all(&at("b", 0)).unwrap();
    assert_eq!(found[0].offset.0, start);
    harness.assert_balanced();
    let removed = harness.audit()[1].books.removed().accepted;
    assert_eq!(removed, start);
    drop(harness);
    let as_disk: &dyn tidegate_core::env::Disk = &disk;
    let files = as_disk
        .list(&super::harness::dir().join("topic-b"))
        .unwrap();
    assert!(files.len() < 20, "{files:?}");
}

#[test]
fn retention_by_age_waits_for_a_group() {
    let (_disk, mut harness) = opened();
    let config = TopicConfig {
        retention: Some(Duration::from_secs(10)),
        ..TopicConfig::new(1)
    };
    harness.create("b", config).unwrap();
    harness.register("slow", vec![1]).unwrap();
    for n in 0..40 {
        harness.append(vec![append("b", 0, n)]).unwrap();
    }
    harness.opened.maintenance.fill(true).unwrap();
    harness.pass(60_000);
    harness.keep().unwrap();
    assert_eq!(harness.start(&at("b", 0)), 0);
    let commit = |next: i64, ids: std::ops::Range<u64>| Write {
        appends: vec![],
        offsets: vec![offset("slow", at("b", 0), next, ids.map(id))],
    };
    harness.write(commit(20, 0..20)).unwrap();
    harness.keep().unwrap();
    let start = harness.start(&at("b", 0));
    assert!(start > 0 && start <= 20, "{start}");
    harness.assert_balanced();
    harness.write(commit(40, 20..40)).unwrap();
    harness.keep().unwrap();
    assert_eq!(harness.start(&at("b", 0)), 40);
    assert_eq!(harness.all(&at("b", 0)).unwrap(), []);
    harness.assert_balanced();
    // The group's own books still know all of it.
    let group = harness
        .audit()
        .into_iter()
        .find(|a| a.group.is_some())
        .unwrap();
    assert_eq!(group.books.account().delivered, 40);
}

#[test]
fn delete_before_stops_where_a_group_is() {
    let (disk, mut harness) = opened();
    harness
        .append((0..30).map(|n| append("a", 0, n)).collect())
        .unwrap();
    harness.delete_before(&at("a", 0), 7).unwrap();
    assert_eq!(harness.start(&at("a", 0)), 7);
    assert_eq!(harness.all(&at("a", 0)).unwrap()[0].offset, Offset(7));
    harness.assert_balanced();
    harness.register("g", vec![0]).unwrap();
    harness.delete_before(&at("a", 0), 12).unwrap();
    assert_eq!(harness.start(&at("a", 0)), 7);
    harness
        .write(Write {
            appends: vec![],
            offsets: vec![offset("g", at("a", 0), 12, (7..12).map(id))],
        })
        .unwrap();
    harness.delete_before(&at("a", 0), 100).unwrap();
    assert_eq!(harness.start(&at("a", 0)), 12);
    harness.assert_balanced();
    drop(harness);
    let harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.start(&at("a", 0)), 12);
    harness.assert_balanced();
}

/// How a maintenance thread comes to a removal.
type Decide = fn(&mut Maintenance) -> Result<Option<LogChange>, LogError>;

/// Between what the maintenance thread decides and the journal there is time for a group to register: then nothing
/// goes, until the group has read it.
fn assert_spares_a_late_group(config: TopicConfig, decide: Decide) {
    let (_disk, mut harness) = opened();
    harness.create("b", config).unwrap();
    for n in 0..60 {
        let mut append = append("b", 0, n);
        append.record.key = Some(format!("key {}", n % 3).into());
        harness.append(vec![append]).unwrap();
    }
    harness.opened.maintenance.fill(true).unwrap();
    let all = harness.all(&at("b", 0)).unwrap();
    let stale = decide(&mut harness.opened.maintenance).unwrap().unwrap();
    harness.register("late", vec![1]).unwrap();
    assert!(
        !harness.opened.writer.remove(stale).unwrap(),
        "it was removed"
    );
    assert_eq!(harness.start(&at("b", 0)), 0);
    assert_eq!(harness.all(&at("b", 0)).unwrap(), all);
    harness.assert_balanced();
    harness
        .write(Write {
            appends: vec![],
            offsets: vec![offset("late", at("b", 0), 60, (0..60).map(id))],
        })
        .unwrap();
    let unflushed = decide(&mut harness.opened.maintenance).unwrap().unwrap();
    assert!(
        harness.opened.writer.remove(unflushed).unwrap(),
        "it was not"
    );
    assert!(harness.all(&at("b", 0)).unwrap().len() < all.len());
    harness.assert_balanced();
}

#[test]
fn t32_a_deletion_that_was_decided_before_a_group_registered_takes_nothing() {
    assert_spares_a_late_group(TopicConfig::new(1), |maintenance| {
        maintenance.delete_before(&at("b", 0), 10)
    });
}

#[test]
fn t32_retention_that_was_decided_before_a_group_registered_takes_nothing() {
    let config = TopicConfig {
        retention_bytes: Some(1_000),
        ..TopicConfig::new(1)
    };
    assert_spares_a_late_group(config, |maintenance| maintenance.retention(false));
}

#[test]
fn t32_compaction_that_was_decided_before_a_group_registered_takes_nothing() {
    let config = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    assert_spares_a_late_group(config, Maintenance::compaction);
}

#[test]
fn a_removal_behind_one_that_took_more_takes_nothing() {
    let (_disk, mut harness) = opened();
    harness
        .append((0..30).map(|n| append("a", 0, n)).collect())
        .unwrap();
    let maintenance = &mut harness.opened.maintenance;
    let [less, more] =
        [7, 12].map(|to| maintenance.delete_before(&at("a", 0), to).unwrap().unwrap());
    assert!(harness.opened.writer.remove(more).unwrap());
    assert!(!harness.opened.writer.remove(less).unwrap());
    assert_eq!(harness.start(&at("a", 0)), 12);
    harness.assert_balanced();
}

#[test]
fn compaction_keeps_the_last_of_each_key_and_posts_the_rest() {
    let (disk, mut harness) = opened();
    let config = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    harness.create("c", config).unwrap();
    let keyed = |key: u64, n: u64| {
        let mut append = append("c", 0, n);
        append.record.key = Some(format!("key {key}").into());
        append
    };
    for n in 0..120 {
        let mut append = keyed(n % 4, n);
        if n == 50 {
            append.record.key = Some("gone".into());
        } else if n == 52 {
            append.record.key = Some("gone".into());
            append.record.value = None;
        }
        harness.append(vec![append]).unwrap();
        harness.keep().unwrap();
    }
    for n in 120..400 {
        harness.append(vec![keyed(n % 4, n)]).unwrap();
        harness.keep().unwrap();
        harness.assert_balanced();
    }
    let found = harness.all(&at("c", 0)).unwrap();
    assert!(found.len() < 90, "{}", found.len());
    assert!(
        found
            .iter()
            .all(|s| s.record.key.as_deref() != Some(b"gone"))
    );
    for key in 0..4 {
        let last = found
            .iter()
            .rev()
            .find(|s| s.record.key == keyed(key, 0).record.key);
        assert_eq!(last.unwrap().offset.0 % 4, key as i64);
    }
    let offsets: Vec<i64> = found.iter().map(|s| s.offset.0).collect();
    assert!(offsets.is_sorted_by(|a, b| a < b));
    assert_eq!(harness.end(&at("c", 0)), 400);
    drop(harness);
    let mut harness = Harness::open(&disk, small()).unwrap();
    assert_eq!(harness.all(&at("c", 0)).unwrap(), found);
    harness.assert_balanced();
}

#[test]
fn a_full_log_takes_commits_from_its_reserve() {
    let disk = SimDisk::new(1);
    let config = crate::EmbeddedConfig {
        max_size: 4_000,
        reserve: 1_000,
        ..small()
    };
    let mut harness = Harness::open(&disk, config).unwrap();
    let keeps_little = TopicConfig {
        retention_bytes: Some(1),
        ..TopicConfig::new(1)
    };
    harness.create("a", keeps_little).unwrap();
    harness.register("g", vec![0]).unwrap();
    let mut n = 0;
    let refused = loop {
        match harness.append(vec![append("a", 0, n)]) {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
        harness.keep().unwrap();
    };
    assert!(
        matches!(refused, LogError::Full { limit: 4_000, .. }),
        "{refused}"
    );
    let end = n as i64;
    harness
        .write(Write {
            appends: vec![append("a", 0, n)],
            offsets: vec![offset("g", at("a", 0), end, (0..n).map(id))],
        })
        .unwrap();
    harness.opened.maintenance.fill(true).unwrap();
    harness.keep().unwrap();
    harness.append(vec![append("a", 0, n + 1)]).unwrap();
    harness.assert_balanced();
}

#[test]
fn limits_are_refused_by_name() {
    let (_disk, mut harness) = opened();
    let config = TopicConfig {
        max_record_size: 10,
        ..TopicConfig::new(1)
    };
    harness.create("b", config.clone()).unwrap();
    let check = |result: Result<_, LogError>, code: &str| {
        assert_eq!(
            result.map(|_: Vec<_>| ()).unwrap_err().code().as_str(),
            code
        );
    };
    check(
        harness.append(vec![append("b", 0, 1)]),
        "log.record-too-large",
    );
    check(
        harness.append(vec![append("a", 9, 1)]),
        "log.unknown-partition",
    );
    check(harness.append(vec![append("x", 0, 1)]), "log.unknown-topic");
    let other = TopicConfig {
        partitions: 3,
        ..config
    };
    let refused = harness.create("b", other).unwrap_err();
    assert_eq!(refused.code().as_str(), "log.topic-config");
    assert!(harness.create("none", TopicConfig::new(0)).is_err());
    assert_eq!(harness.end(&at("b", 0)), 0);
}

#[test]
fn a_large_commit_and_a_large_record_fit() {
    let (disk, mut harness) = opened();
    let large = Record::new(vec![7; 300_000]);
    let appends: Vec<_> = (0..5)
        .map(|_| Append::new(topic("a"), large.clone()).partition(0))
        .collect();
    harness.append(appends).unwrap();
    harness.append(vec![append("a", 0, 1)]).unwrap();
    harness.keep().unwrap();
    drop(harness);
    let mut harness = Harness::open(&disk, small()).unwrap();
    let read = Read {
        max_bytes: 1,
        ..Read::new(at("a", 0), Offset(0))
    };
    let batch = harness.reader.read(&read).unwrap();
    assert_eq!((batch.records.len(), batch.next), (1, Offset(1)));
    assert_eq!(harness.all(&at("a", 0)).unwrap().len(), 6);
    harness.assert_balanced();
}

#[test]
fn compaction_comes_to_an_end_with_more_keys_than_memory() {
    let disk = SimDisk::new(1);
    let config = crate::EmbeddedConfig {
        compaction_memory: 1_000,
        ..small()
    };
    let mut harness = Harness::open(&disk, config).unwrap();
    let compacted = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    harness.create("c", compacted).unwrap();
    let keys = 40;
    let total = 600;
    for n in 0..total {
        let mut append = append("c", 0, n);
        append.record.key = Some(format!("key {}", n % keys).into());
        harness.append(vec![append]).unwrap();
        harness.keep().unwrap();
    }
    let mut rounds = 0;
    while let Some(change) = harness.opened.maintenance.compaction().unwrap() {
        assert!(harness.opened.writer.remove(change).unwrap());
        rounds += 1;
        assert!(rounds < 50, "the same segments are written again and again");
    }
    let found = harness.all(&at("c", 0)).unwrap();
    assert!((found.len() as u64) < 4 * keys, "{}", found.len());
    for n in total - keys..total {
        assert!(found.iter().any(|s| s.offset == Offset(n as i64)), "{n}");
    }
    assert!(found.is_sorted_by(|a, b| a.offset < b.offset));
    harness.assert_balanced();
}
