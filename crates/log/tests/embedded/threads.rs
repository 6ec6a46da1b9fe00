//! The log with its real threads.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::{GroupName, Offset};
use tidegate_log::embedded::ls;
use tidegate_log::local::{RecordStorage, Write};
use tidegate_log::{
    Append, EmbeddedConfig, EmbeddedLog, EmbeddedStorage, Join, Log, LogError, Read, Record,
    SessionEvent, TopicConfig, TopicPartition,
};

use crate::child::{config, topic};
use crate::slow::SlowDisk;

fn append(name: &str, partition: i32, text: &str) -> Append {
    Append::new(topic(name), Record::new(text.to_owned())).partition(partition)
}

fn write(appends: Vec<Append>) -> Write {
    Write {
        appends,
        offsets: Vec::new(),
    }
}

/// Past this, something never happens.
const LIMIT: Duration = Duration::from_secs(60);

/// Begins a call: it has done all that it does before it waits. Says whether it waits now.
async fn waits<T>(mut call: Pin<&mut impl Future<Output = T>>) -> bool {
    poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_the_journal_and_all_records_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap());
    storage
        .create_topic(&topic("a"), TopicConfig::new(3))
        .await
        .unwrap();
    let mut tasks = Vec::new();
    for task in 0..32 {
        let storage = Arc::clone(&storage);
        tasks.push(tokio::spawn(async move {
            for n in 0..40 {
                let appends = (0..3)
                    .map(|p| append("a", p, &format!("{task} {n}")))
                    .collect();
                storage.write(write(appends)).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    storage.tidy().await.unwrap();
    for audited in storage.audit().await.unwrap() {
        assert_eq!(audited.missing, []);
        assert_eq!(audited.books.account().queued, 32 * 40 * 3);
    }
    storage.close().await;
    let refused = storage.write(write(vec![append("a", 0, "late")])).await;
    assert!(matches!(refused, Err(LogError::Closed)));
    // The lock is free, and everything is there.
    let again = EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap();
    let described = again.describe(&topic("a")).unwrap();
    assert!(
        described
            .partitions
            .iter()
            .all(|p| p.end == Offset(32 * 40))
    );
    again.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_is_woken_by_records_and_by_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let storage = EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap();
    storage
        .create_topic(&topic("a"), TopicConfig::new(1))
        .await
        .unwrap();
    let at = TopicPartition::new(topic("a"), 0);
    let mut waiting = pin!(storage.wait_for(&at, Offset(0)));
    assert!(waits(waiting.as_mut()).await);
    storage
        .write(write(vec![append("a", 0, "x")]))
        .await
        .unwrap();
    let woken = tokio::time::timeout(LIMIT, waiting).await;
    woken.expect("a record wakes").unwrap();
    let mut waiting = pin!(storage.wait_for(&at, Offset(1)));
    assert!(waits(waiting.as_mut()).await);
    storage.close().await;
    let woken = tokio::time::timeout(LIMIT, waiting).await;
    let woken = woken.expect("the end wakes");
    assert!(matches!(woken, Err(LogError::Closed)), "{woken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_group_fills_the_log_and_draining_it_lets_appends_flow() {
    let dir = tempfile::tempdir().unwrap();
    let limits = EmbeddedConfig {
        max_size: 200 * 1024,
        reserve: 16 * 1024,
        ..config(dir.path())
    };
    let storage = EmbeddedStorage::open(&Env::system(), limits).unwrap();
    let kept = TopicConfig {
        retention_bytes: Some(32 * 1024),
        ..TopicConfig::new(1)
    };
    storage.create_topic(&topic("a"), kept).await.unwrap();
    let group = GroupName::new("g").unwrap();
    storage.register_group(&group, &[topic("a")]).await.unwrap();
    let value = "x".repeat(1_000);
    let refused = loop {
        if let Err(error) = storage.write(write(vec![append("a", 0, &value)])).await {
            break error;
        }
    };
    assert!(matches!(refused, LogError::Full { .. }), "{refused}");
    let at = TopicPartition::new(topic("a"), 0);
    let mut from = Offset(0);
    loop {
        let batch = storage.read(&Read::new(at.clone(), from)).await.unwrap();
        if batch.records.is_empty() {
            break;
        }
        from = batch.next;
        let ids = batch
            .records
            .iter()
            .map(|s| s.event_id(storage.cluster(), &at));
        let queued = tidegate_core::books::Place::Queued;
        let delivered = tidegate_core::books::Place::Delivered;
        let offset = tidegate_log::local::GroupOffset {
            group: group.clone(),
            at: at.clone(),
            committed: tidegate_log::Committed {
                next: from,
                metadata: String::new(),
            },
            postings: tidegate_core::books::postings(ids, Some(queued), Some(delivered)),
            ticket: tidegate_log::local::CommitTicket::default(),
        };
        let commit = Write {
            appends: Vec::new(),
            offsets: vec![offset],
        };
        storage.write(commit).await.unwrap();
    }
    storage.tidy().await.unwrap();
    storage
        .write(write(vec![append("a", 0, &value)]))
        .await
        .unwrap();
    for audited in storage.audit().await.unwrap() {
        assert_eq!(audited.missing, []);
    }
    storage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_go_on_while_the_log_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SlowDisk::default();
    let mut env = Env::system();
    env.disk = disk.disk();
    let storage = Arc::new(EmbeddedStorage::open(&env, config(dir.path())).unwrap());
    let two = TopicConfig::new(2);
    storage.create_topic(&topic("a"), two).await.unwrap();
    let both = vec![append("a", 0, "x"), append("a", 1, "y")];
    storage.write(write(both)).await.unwrap();
    storage.tidy().await.unwrap();
    // The audit reads both partitions and is held up in the second one.
    disk.hold("1-");
    let audit = {
        let storage = Arc::clone(&storage);
        tokio::spawn(async move { storage.audit().await })
    };
    disk.wait_until_somebody_is_held().await;
    let at = TopicPartition::new(topic("a"), 0);
    for _ in 0..3 {
        let read = Read::new(at.clone(), Offset(0));
        let read = tokio::time::timeout(LIMIT, storage.read(&read));
        let batch = read.await.expect("a read waits for no audit").unwrap();
        assert_eq!(batch.records.len(), 1);
    }
    assert!(!audit.is_finished());
    disk.let_go();
    let audited = audit.await.unwrap().unwrap();
    assert_eq!(audited[0].books.account().queued, 2);
    storage.close().await;
}

/// A caller that does not wait any more costs nothing, and a log that is closed counts for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_that_nobody_waits_for_are_not_done() {
    for is_closed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let disk = SlowDisk::default();
        let mut env = Env::system();
        env.disk = disk.disk();
        let storage = EmbeddedStorage::open(&env, config(dir.path())).unwrap();
        let one = TopicConfig::new(1);
        storage.create_topic(&topic("a"), one).await.unwrap();
        storage
            .write(write(vec![append("a", 0, "x")]))
            .await
            .unwrap();
        storage.tidy().await.unwrap();
        disk.hold("0-");
        let mut first = pin!(storage.audit());
        assert!(waits(first.as_mut()).await);
        disk.wait_until_somebody_is_held().await;
        let read = disk.reads("0-");
        let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(storage.audit())).collect();
        for audit in &mut waiting {
            assert!(waits(audit.as_mut()).await);
        }
        if is_closed {
            let mut closing = pin!(storage.close());
            assert!(waits(closing.as_mut()).await);
            disk.let_go();
            let answers = async {
                first.await.unwrap();
                for audit in waiting {
                    let refused = audit.await.unwrap_err();
                    assert!(matches!(refused, LogError::Closed), "{refused}");
                }
            };
            tokio::join!(closing, answers);
        } else {
            drop(waiting);
            disk.let_go();
            first.await.unwrap();
            storage.close().await;
        }
        // The segment is small: an audit reads how it begins, where the first one was held, then all of it.
        // It looks at the header in two more reads.
        assert_eq!(disk.reads("0-"), read + 3, "{is_closed}");
    }
}

/// A partition that cannot be read keeps no other one waiting: where its file is gone it rests until
/// it is sought, where the disk fails it is tried again in its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_cannot_be_read_does_not_starve_the_others() {
    for (is_gone, code) in [(true, "log.damaged"), (false, "log.disk")] {
        let dir = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(&Env::system(), config(dir.path())).unwrap();
        log.create_topic(&topic("a"), TopicConfig::new(2))
            .await
            .unwrap();
        for n in 0..20 {
            let appends = (0..2).map(|p| append("a", p, &n.to_string())).collect();
            log.append(appends).await.unwrap();
        }
        log.storage().tidy().await.unwrap();
        let segment = dir.path().join("topic-a/0-00000000000000000000-0.seg");
        std::fs::remove_file(&segment).unwrap();
        if !is_gone {
            // It opens, and every read of it fails.
            std::fs::create_dir(&segment).unwrap();
        }
        let join = Join {
            max_poll_records: 5,
            ..Join::new(GroupName::new("g").unwrap(), vec![topic("a")])
        };
        let session = log.join(join).await.unwrap();
        let (mut seen, mut failures) = (0, 0);
        while seen < 20 {
            match session.poll().await {
                Ok(SessionEvent::Records { batch, .. }) => {
                    assert_eq!(batch.at, TopicPartition::new(topic("a"), 1));
                    seen += batch.records.len();
                }
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.code().to_string(), code);
                    failures += 1;
                    assert!(failures < 20, "the other partition waits");
                }
            }
        }
        assert_eq!(failures == 1, is_gone, "{failures}");
        log.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_the_lock_file_does_not_free_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let storage = EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap();
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    for _ in 0..2 {
        let second = EmbeddedStorage::open(&Env::system(), config(dir.path()));
        assert!(matches!(second, Err(LogError::Locked { .. })), "{second:?}");
    }
    storage.close().await;
    let again = EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap();
    again.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_quiet_writes_one_group_behind_its_last_commit() {
    let dir = tempfile::tempdir().unwrap();
    let storage = EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap();
    let a = topic("a");
    let created = storage.create_topic(&a, TopicConfig::new(1));
    created.await.unwrap();
    storage
        .write(write(vec![append("a", 0, "one")]))
        .await
        .unwrap();
    let groups = || {
        let listed = ls(&SystemDisk, dir.path()).unwrap().unwrap();
        listed.replayed
    };
    let before = groups();
    let limit = std::time::Instant::now() + LIMIT;
    while groups() == before {
        assert!(std::time::Instant::now() < limit, "nothing is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(groups(), before + 1);
    storage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_a_running_log_meets_is_told_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let open = || EmbeddedStorage::open(&Env::system(), config(dir.path())).unwrap();
    let storage = open();
    let a = topic("a");
    let created = storage.create_topic(&a, TopicConfig::new(1));
    created.await.unwrap();
    storage
        .write(write(vec![append("a", 0, "a value to damage")]))
        .await
        .unwrap();
    storage.close().await;
    let segment = dir.path().join("topic-a/0-00000000000000000000-0.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let text = b"a value to damage";
    let at = bytes.windows(text.len()).position(|part| part == text);
    bytes[at.unwrap()] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    for is_audit in [true, false] {
        let storage = open();
        assert_eq!(storage.damage(), None);
        if is_audit {
            storage.audit().await.unwrap();
        } else {
            let read = Read::new(TopicPartition::new(topic("a"), 0), Offset(0));
            let error = storage.read(&read).await.unwrap_err();
            assert!(matches!(error, LogError::Damaged { .. }), "{error}");
        }
        assert!(storage.damage().is_some());
        storage.close().await;
    }
}
