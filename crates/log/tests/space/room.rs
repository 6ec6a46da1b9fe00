//! A file system that really has no room left.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_core::books::{Place, postings};
use tidegate_core::{GroupName, Offset};
use tidegate_log::{
    Commit, EmbeddedConfig, EmbeddedLog, Join, Log, LogError, OffsetCommit, Read, SessionEvent,
    TopicConfig, TopicPartition,
};
use tidegate_sim::scaled;

use crate::small_room::{room, run_in_small_room};
use crate::{append, number, open, topic};

const MIB: u64 = 1024 * 1024;
/// Its size in MiB.
const SIZE: u32 = 24;

#[test]
fn a_full_file_system_loses_nothing_that_was_acknowledged() {
    run_in_small_room("room::child_process_entry::on_a_small_file_system", SIZE);
}

#[test]
fn retention_makes_room_on_a_full_file_system() {
    run_in_small_room("room::child_process_entry::with_short_retention", SIZE);
}

#[test]
fn a_group_that_catches_up_makes_room_on_a_full_file_system() {
    run_in_small_room("room::child_process_entry::with_a_late_group", SIZE);
}

/// The program that the tests above run in a process of its own.
mod child_process_entry {
    use super::{catch_up, fill, flood, in_room};

    #[test]
    #[ignore = "not a test: does nothing without a room"]
    fn on_a_small_file_system() {
        in_room(fill);
    }

    #[test]
    #[ignore = "not a test: does nothing without a room"]
    fn with_short_retention() {
        in_room(flood);
    }

    #[test]
    #[ignore = "not a test: does nothing without a room"]
    fn with_a_late_group() {
        in_room(catch_up);
    }
}

fn in_room(work: impl AsyncFnOnce(&Path)) {
    let Some(room) = room() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(work(&room));
}

fn config(room: &Path) -> EmbeddedConfig {
    EmbeddedConfig {
        segment_size: 2 * MIB,
        journal_size: 2 * MIB,
        cache_size: MIB,
        ..EmbeddedConfig::new(room.join("log"))
    }
}

/// Past this, a log that could make room never does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Appends ten records of 10 kB to each of two partitions.
async fn append_ten(log: &dyn Log, from: u64) -> Result<(), LogError> {
    let batch = (from..from + 10).flat_map(|n| {
        let other = append("orders", n, 10_000).partition(1);
        [append("orders", n, 10_000), other]
    });
    let appended = log.append(batch.collect()).await.map(|_| ());
    if let Err(error) = &appended {
        assert_eq!(error.code().as_str(), "log.disk", "{error}");
    }
    appended
}

/// The same, again and again where there is no room.
async fn append_in_the_end(log: &dyn Log, from: u64) {
    let begun = Instant::now();
    while let Err(error) = append_ten(log, from).await {
        assert!(begun.elapsed() < PATIENCE, "no room is made: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn short() -> TopicConfig {
    TopicConfig {
        retention_bytes: Some(2 * MIB),
        ..TopicConfig::new(2)
    }
}

/// Far more than fits goes through a topic that keeps little, faster than anybody tidies.
async fn flood(room: &Path) {
    let log = open(config(room));
    log.create_topic(&topic("orders"), short()).await.unwrap();
    // Somebody else takes a part of it as well.
    let mut other = std::fs::File::create(room.join("other")).unwrap();
    std::io::Write::write_all(&mut other, &vec![1; 4 * MIB as usize]).unwrap();
    // 100 MB, or half of it: twice what fits.
    for n in 0..scaled(500).max(250) {
        append_in_the_end(&log, n * 10).await;
    }
    audit(&log).await;
    log.close().await;
}

/// A group that has not read keeps everything; once it has, there is room again.
async fn catch_up(room: &Path) {
    let log = open(config(room));
    log.create_topic(&topic("orders"), short()).await.unwrap();
    let group = GroupName::new("billing").unwrap();
    let session = log
        .join(Join::new(group, vec![topic("orders")]))
        .await
        .unwrap();
    let mut written = 0;
    // It is full when the maintenance thread has just done what it can in vain, and everybody can see it.
    let begun = Instant::now();
    loop {
        if append_ten(&log, written * 10).await.is_ok() {
            written += 1;
        } else if log.storage().tidy().await.is_err() && log.storage().no_room().is_some() {
            break;
        }
        let is_early = written < 1_000 && begun.elapsed() < PATIENCE;
        assert!(is_early, "it is never full: {written}");
    }
    assert_eq!(log.storage().stopped(), None);
    let mut seen = 0;
    while seen < written * 20 {
        let event = tokio::time::timeout(PATIENCE, session.poll()).await;
        let SessionEvent::Records { fence, batch } = event.unwrap().unwrap() else {
            continue;
        };
        let ids = batch
            .records
            .iter()
            .map(|stored| stored.event_id(log.cluster(), &batch.at));
        let offset = OffsetCommit {
            at: batch.at.clone(),
            fence,
            next: batch.next,
            metadata: String::new(),
            postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
        };
        seen += batch.records.len() as u64;
        let commit = Commit {
            appends: Vec::new(),
            offsets: vec![offset],
        };
        session.commit(commit).await.unwrap();
    }
    for n in 0..20 {
        append_in_the_end(&log, (written + n) * 10).await;
    }
    log.storage().tidy().await.unwrap();
    assert_eq!(log.storage().no_room(), None);
    audit(&log).await;
    log.close().await;
}

async fn audit(log: &EmbeddedLog) {
    for audited in log.storage().audit().await.unwrap() {
        assert_eq!(audited.missing, [], "{}", audited.topic);
    }
}

async fn fill(room: &Path) {
    let config = config(room);
    let log = open(config.clone());
    let kept = TopicConfig::new(1);
    log.create_topic(&topic("orders"), kept).await.unwrap();
    let mut acknowledged = 0;
    let mut refusals = 0;
    while refusals < 20 {
        match log
            .append(vec![append("orders", acknowledged, 10_000)])
            .await
        {
            Ok(_) => acknowledged += 1,
            Err(error) => {
                refusals += 1;
                assert!(acknowledged > 500, "full after {acknowledged}: {error}");
            }
        }
    }
    look(&log, acknowledged).await;
    log.close().await;

    // Room is made, and it goes on; at the latest after it is opened again.
    remount(room, "48m");
    let log = open(config);
    look(&log, acknowledged).await;
    log.append(vec![append("orders", acknowledged, 10_000)])
        .await
        .unwrap();
    look(&log, acknowledged + 1).await;
    log.close().await;
}

/// Gives the file system another size.
fn remount(room: &Path, size: &str) {
    let done = Command::new("mount")
        .args(["-o", &format!("remount,size={size}")])
        .arg(room)
        .status();
    assert!(done.unwrap().success());
}

/// Every acknowledged record is there, once and in order. Refused records may be there too: it was
/// not said that they are not.
async fn look(log: &dyn Log, acknowledged: u64) {
    let at = TopicPartition::new(topic("orders"), 0);
    let mut from = Offset(0);
    let mut expected = 0;
    while expected < acknowledged {
        let batch = log.read(Read::new(at.clone(), from)).await.unwrap();
        assert!(!batch.records.is_empty(), "{expected} of {acknowledged}");
        for stored in &batch.records {
            assert_eq!(number(&stored.record), expected);
            expected += 1;
        }
        from = batch.next;
    }
}
