//! The process that is killed: this very test program, started again with a role.

use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::Env;
use tidegate_core::{EventId, EventIds, GroupName, Offset, Topic};
use tidegate_log::local::{CommitTicket, GroupOffset, RecordStorage, Write};
use tidegate_log::{
    Append, Committed, EmbeddedConfig, EmbeddedStorage, Read, Record, TopicConfig, TopicPartition,
};
use tidegate_testkit::child::{self, ChildLines, say};

const DIR: &str = "TIDEGATE_OUTSIDE_DIR";

pub(crate) const GROUP: &str = "readers";

/// Small files, so that a short life fills, checkpoints and cleans many of them.
pub(crate) fn config(dir: &Path) -> EmbeddedConfig {
    EmbeddedConfig {
        segment_size: 16 * 1024,
        journal_size: 32 * 1024,
        cache_size: 8 * 1024,
        ..EmbeddedConfig::new(dir)
    }
}

/// Starts a child on the directory.
pub(crate) fn start(dir: &Path) -> (Child, ChildLines) {
    child::start(&[(DIR, dir.as_ref())]).unwrap()
}

/// Not a test of its own: without a directory it does nothing.
#[test]
fn child_process_entry() {
    let Ok(dir) = std::env::var(DIR) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(live(dir.as_ref()));
}

pub(crate) fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

/// Writes to all topics from many tasks, reads in a group, until it is killed. Reports each promise.
async fn live(dir: &Path) {
    let env = Env::system();
    let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
    let storage = Arc::new(EmbeddedStorage::open(&env, config(dir)).unwrap());
    let kept = TopicConfig {
        retention_bytes: Some(64 * 1024),
        ..TopicConfig::new(1)
    };
    let keyed = TopicConfig {
        compact: true,
        ..TopicConfig::new(1)
    };
    for (name, config) in [
        ("plain", TopicConfig::new(2)),
        ("kept", kept),
        ("keyed", keyed),
    ] {
        storage.create_topic(&topic(name), config).await.unwrap();
    }
    let group = GroupName::new(GROUP).unwrap();
    storage
        .register_group(&group, &[topic("plain")])
        .await
        .unwrap();
    // Another group begins behind all that is there.
    let late = GroupName::new(format!("late-{}", ids.mint())).unwrap();
    let plain = [0, 1].map(|number| TopicPartition::new(topic("plain"), number));
    storage
        .register_group(&late, &[topic("plain")])
        .await
        .unwrap();
    storage.skip_to_end(&late, &plain).await.unwrap();
    let begun = plain.map(|at| storage.committed(&late, &at).unwrap().next);
    say(&format!("begun {late} {} {}", begun[0], begun[1]));
    say("open");
    let mut tasks = Vec::new();
    for task in 0..6_i32 {
        let (storage, ids) = (Arc::clone(&storage), ids.clone());
        tasks.push(tokio::spawn(async move {
            for n in 0_u64.. {
                write_some(&storage, &ids, task, n).await;
            }
        }));
    }
    tasks.push(tokio::spawn(
        async move { read_some(&storage, group).await },
    ));
    for task in tasks {
        task.await.unwrap();
    }
}

async fn write_some(storage: &EmbeddedStorage, ids: &EventIds, task: i32, n: u64) {
    let minted: Vec<EventId> = (0..3).map(|_| ids.mint()).collect();
    let record = |id: &EventId| Record::new(format!("{id} {}", "x".repeat(150))).event_id(*id);
    let key = format!("key {}", n % 5);
    let appends = vec![
        Append::new(topic("plain"), record(&minted[0])).partition(task % 2),
        Append::new(topic("kept"), record(&minted[1])).partition(0),
        Append::new(topic("keyed"), record(&minted[2]).key(key)).partition(0),
    ];
    let write = Write {
        appends,
        offsets: Vec::new(),
    };
    let written = storage.write(write).await.unwrap();
    for (position, id) in written.iter().zip(&minted) {
        let TopicPartition { topic, partition } = &position.at;
        say(&format!(
            "record {topic} {partition} {} {id}",
            position.offset
        ));
    }
}

/// Reads `plain`-0 in the group and commits what it read, together with a copy of it.
async fn read_some(storage: &EmbeddedStorage, group: GroupName) {
    let at = TopicPartition::new(topic("plain"), 0);
    loop {
        let from = storage.committed(&group, &at).map_or(Offset(0), |c| c.next);
        let batch = storage.read(&Read::new(at.clone(), from)).await.unwrap();
        if batch.records.is_empty() {
            storage.wait_for(&at, from).await.unwrap();
            continue;
        }
        let ids = batch
            .records
            .iter()
            .map(|s| s.event_id(storage.cluster(), &at));
        let offset = GroupOffset {
            group: group.clone(),
            at: at.clone(),
            committed: Committed {
                next: batch.next,
                metadata: String::new(),
            },
            postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
            ticket: CommitTicket::default(),
        };
        let write = Write {
            appends: Vec::new(),
            offsets: vec![offset],
        };
        storage.write(write).await.unwrap();
        say(&format!("commit {}", batch.next));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
