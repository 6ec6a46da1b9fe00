//! Killed at any moment, the log keeps what it acknowledged.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_core::{EventId, GroupName, Offset, Topic};
use tidegate_log::embedded::{check, recount};
use tidegate_log::local::RecordStorage;
use tidegate_log::{EmbeddedStorage, Read, TopicPartition};
use tidegate_sim::scaled;

use crate::child;

/// The promises of the killed processes.
#[derive(Default)]
struct Promises {
    records: BTreeMap<(String, i32, i64), EventId>,
    committed: i64,
    /// Where groups began in `plain`.
    begun: BTreeMap<String, [i64; 2]>,
}

impl Promises {
    fn add(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["open"] => {}
            ["begun", group, zero, one] => {
                let begun = [zero, one].map(|next| next.parse().unwrap());
                self.begun.insert(group.to_owned(), begun);
            }
            ["commit", next] => self.committed = next.parse().unwrap(),
            ["record", topic, partition, offset, id] => {
                let place = (
                    topic.to_owned(),
                    partition.parse().unwrap(),
                    offset.parse().unwrap(),
                );
                let before = self.records.insert(place, id.parse().unwrap());
                assert_eq!(before, None, "an offset was given twice: {line}");
            }
            _ => panic!("what is `{line}`?"),
        }
    }
}

#[test]
fn t30_killed_at_any_moment_the_log_keeps_what_it_acknowledged() {
    let kills = scaled(100);
    let draw: &mut dyn Entropy = &mut Stream::new(0x6b69_6c6c);
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut promises = Promises::default();
    for life in 0..kills {
        let (mut process, mut lines) = child::start(&log);
        // One in eight dies while it opens what the last one left; the others once they have promised
        // something, however long that takes on a busy machine.
        let is_early = life > 0 && draw.below(8) == 0;
        if is_early {
            std::thread::sleep(Duration::from_millis(draw.below(30)));
        } else {
            // The first one for so long that retention has something to remove.
            let least = if life == 0 { 2_000 } else { 1 };
            let wanted = least + below(draw, 1_500);
            for promised in 0..wanted {
                let line = lines.next();
                let line = line.unwrap_or_else(|| panic!("it ended by itself after {promised}"));
                promises.add(&line);
            }
        }
        process.kill().unwrap();
        process.wait().unwrap();
        lines.for_each(|line| promises.add(&line));
        for audited in recount(&SystemDisk, &log).unwrap() {
            assert_eq!(audited.missing, [], "after life {life}: {audited:?}");
        }
        let checked = check(&SystemDisk, &log).unwrap();
        let losses: Vec<_> = checked.problems.iter().filter(|p| p.is_loss()).collect();
        assert!(losses.is_empty(), "after life {life}: {losses:?}");
    }
    look_through(&log, &promises);
    println!(
        "{kills} kills: {} records promised, {} groups begun, committed up to {}, 0 missing",
        promises.records.len(),
        promises.begun.len(),
        promises.committed
    );
}

fn below(draw: &mut dyn Entropy, bound: u64) -> usize {
    usize::try_from(draw.below(bound)).unwrap()
}

/// Opens the log once more and holds each record against what was promised.
fn look_through(dir: &Path, promises: &Promises) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let storage = EmbeddedStorage::open(&Env::system(), child::config(dir)).unwrap();
        // Records that are past their retention go now.
        storage.tidy().await.unwrap();
        let group = GroupName::new(child::GROUP).unwrap();
        let plain = TopicPartition::new(child::topic("plain"), 0);
        let committed = storage.committed(&group, &plain).map_or(0, |c| c.next.0);
        assert!(committed >= promises.committed);
        for (name, begun) in &promises.begun {
            let group = GroupName::new(name.clone()).unwrap();
            let found = [0, 1].map(|number| {
                let at = TopicPartition::new(child::topic("plain"), number);
                storage.committed(&group, &at).map_or(0, |c| c.next.0)
            });
            assert_eq!(found, *begun, "{name}");
        }
        for (name, partition) in [("plain", 0), ("plain", 1), ("kept", 0), ("keyed", 0)] {
            let at = TopicPartition::new(Topic::new(name).unwrap(), partition);
            let found = all(&storage, &at).await;
            let start = found.0;
            let of_it = promises
                .records
                .iter()
                .filter(|((n, p, _), _)| (n.as_str(), *p) == (name, partition));
            for ((_, _, offset), id) in of_it {
                match found.1.get(offset) {
                    Some(there) => assert_eq!(there, id, "{at} at {offset}"),
                    None => assert!(name == "keyed" || *offset < start, "{at} lacks {offset}"),
                }
            }
            assert!(name != "kept" || start > 0, "retention has worked");
        }
        storage.close().await;
    });
}

async fn all(storage: &EmbeddedStorage, at: &TopicPartition) -> (i64, BTreeMap<i64, EventId>) {
    let described = storage.describe(&at.topic).unwrap();
    let index = usize::try_from(at.partition.0).unwrap();
    let start = described.partitions[index].start;
    let mut from = start;
    let mut found = BTreeMap::new();
    loop {
        let batch = storage.read(&Read::new(at.clone(), from)).await.unwrap();
        if batch.records.is_empty() {
            return (start.0, found);
        }
        for stored in &batch.records {
            found.insert(stored.offset.0, stored.event_id(storage.cluster(), at));
        }
        assert!(batch.next > from);
        from = Offset(batch.next.0);
    }
}
