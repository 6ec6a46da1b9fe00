//! A directory that an earlier version wrote is opened by this one.

use std::path::{Path, PathBuf};

use tidegate_core::books::{Place, postings};
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::{EventId, GroupName, Offset};
use tidegate_log::embedded::check;
use tidegate_log::local::{CommitTicket, GroupOffset, RecordStorage, Write};
use tidegate_log::{
    Append, Committed, EmbeddedConfig, EmbeddedStorage, Read, Record, TopicConfig, TopicPartition,
};

use crate::child::topic;

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/log-v1")
}

fn config(dir: &Path) -> EmbeddedConfig {
    EmbeddedConfig {
        cluster: "fixture".to_owned(),
        segment_size: 2_048,
        journal_size: 4_096,
        ..EmbeddedConfig::new(dir)
    }
}

fn id(n: u64) -> EventId {
    EventId::from_u128((0x019a_8f3e_5c00 << 80) | (7 << 76) | (0b10 << 62) | u128::from(n))
}

fn record(n: u64) -> Record {
    let record = Record::new(format!("value {n}")).timestamp_ms(1_790_000_000_000 + n);
    // Every third one came from elsewhere and has no id.
    match n % 3 {
        0 => record.key(format!("key {n}")),
        _ => record.event_id(id(n)).header("n", n.to_string()),
    }
}

const RECORDS: u64 = 60;

/// Writes the fixture where there is none. When the format gets a new version, name a new directory
/// above and run `cargo test -p tidegate-log --test embedded write_the_fixture -- --ignored`.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "not a test: writes the fixture that is kept, where it is missing"]
async fn write_the_fixture() {
    let dir = kept();
    if std::fs::read_dir(&dir).is_ok() {
        return;
    }
    let storage = EmbeddedStorage::open(&Env::system(), config(&dir)).unwrap();
    storage
        .create_topic(&topic("a"), TopicConfig::new(2))
        .await
        .unwrap();
    let group = GroupName::new("g").unwrap();
    storage.register_group(&group, &[topic("a")]).await.unwrap();
    for n in 0..RECORDS {
        let mut write = Write {
            appends: vec![
                Append::new(topic("a"), record(n)).partition(i32::try_from(n % 2).unwrap()),
            ],
            offsets: Vec::new(),
        };
        if n == 20 {
            let at = TopicPartition::new(topic("a"), 1);
            // Records 1, 3 and 5 lie in partition 1; 3 has no id of its own.
            let foreign = EventId::of_foreign("fixture", &topic("a"), at.partition, Offset(1));
            let ids = [id(1), foreign, id(5)];
            write.offsets.push(GroupOffset {
                group: group.clone(),
                at,
                committed: Committed {
                    next: Offset(3),
                    metadata: "kept".to_owned(),
                },
                postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
                ticket: CommitTicket::default(),
            });
        }
        storage.write(write).await.unwrap();
        if n == 40 {
            // The next changes are only in the journal.
            storage.tidy().await.unwrap();
        }
    }
    // No `close`: that would leave nothing in the journal. The process ends as if killed.
    std::process::exit(0);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_directory_of_version_1_opens() {
    let dir = tempfile::tempdir().unwrap();
    copy(&kept(), dir.path());
    let checked = check(&SystemDisk, dir.path()).unwrap();
    assert_eq!(checked.problems, []);
    assert!(checked.groups > 0, "some of it is only in the journal");
    assert!(checked.segments > 0, "some of it is in segments");
    let storage = EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap();
    for partition in 0..2_u64 {
        let at = TopicPartition::new(topic("a"), i32::try_from(partition).unwrap());
        let mut from = Offset(0);
        let mut found = Vec::new();
        while found.len() < 30 {
            let batch = storage.read(&Read::new(at.clone(), from)).await.unwrap();
            assert!(!batch.records.is_empty());
            from = batch.next;
            found.extend(batch.records);
        }
        for (stored, n) in found.iter().zip((partition..).step_by(2)) {
            assert_eq!(stored.record, record(n));
        }
    }
    let group = GroupName::new("g").unwrap();
    let committed = storage
        .committed(&group, &TopicPartition::new(topic("a"), 1))
        .unwrap();
    assert_eq!(
        (committed.next, committed.metadata.as_str()),
        (Offset(3), "kept")
    );
    for audited in storage.audit().await.unwrap() {
        assert_eq!(audited.missing, []);
        assert!(audited.books.is_balanced());
    }
    storage.close().await;
}
