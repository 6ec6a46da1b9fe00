//! Short ways to say what these tests say.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Entropy, Env};
use tidegate_core::{EventId, GroupName, Offset, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{
    Append, Assignment, Log, LogError, Read, Record, Session, SessionEvent, StoredRecord,
    TopicConfig, TopicPartition,
};

/// Longer than anything takes that must happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The address that the environment names.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask services up"))
}

/// Runs a test on a runtime of its own, and ends it when it takes too long.
pub(crate) fn run(test: impl Future<Output = ()>) {
    run_within(LIMIT * 4, test);
}

/// The same for a test that takes longer by design.
pub(crate) fn run_within(limit: Duration, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(limit, test)
            .await
            .expect("the test takes too long");
    });
    // Clients that are still being closed are left to themselves.
    runtime.shutdown_background();
}

pub(crate) fn config(servers: &str) -> KafkaConfig {
    KafkaConfig::new("test", servers)
}

/// The same with these settings of the client.
pub(crate) fn with(mut config: KafkaConfig, properties: &[(&str, &str)]) -> KafkaConfig {
    let properties = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    config.properties.extend(properties);
    config
}

/// The log of the broker that all tests use.
pub(crate) async fn log() -> KafkaLog {
    open(config(&variable("KAFKA_BOOTSTRAP"))).await
}

pub(crate) async fn open(config: KafkaConfig) -> KafkaLog {
    KafkaLog::connect(config, Env::system()).await.unwrap()
}

fn unique(what: &str) -> String {
    format!("{what}-{:016x}", system_entropy().next_u64())
}

pub(crate) fn group() -> GroupName {
    GroupName::new(unique("group")).unwrap()
}

pub(crate) async fn topic(log: &KafkaLog, partitions: u32) -> Topic {
    topic_with(log, TopicConfig::new(partitions)).await
}

pub(crate) async fn topic_with(log: &KafkaLog, config: TopicConfig) -> Topic {
    let topic = topic_name();
    log.create_topic(&topic, config).await.unwrap();
    topic
}

/// A name that no topic has.
pub(crate) fn topic_name() -> Topic {
    Topic::new(unique("topic")).unwrap()
}

/// A record with a number and an id that follows from it.
pub(crate) fn numbered(number: u64) -> Record {
    Record::new(number.to_string()).event_id(id(number))
}

pub(crate) fn id(number: u64) -> EventId {
    EventId::from_u128(0x7000_0000_0000_0000_0000 + u128::from(number))
}

pub(crate) fn number(stored: &StoredRecord) -> u64 {
    let value = stored.record.value.as_deref().unwrap();
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// Appends numbers to a partition.
pub(crate) async fn append(log: &KafkaLog, at: &TopicPartition, numbers: std::ops::Range<u64>) {
    let appends = numbers.map(|number| append_of(at, number)).collect();
    log.append(appends).await.unwrap();
}

pub(crate) fn append_of(at: &TopicPartition, number: u64) -> Append {
    Append::new(at.topic.clone(), numbered(number)).partition(at.partition.0)
}

/// All that a partition holds.
pub(crate) async fn everything(log: &KafkaLog, at: &TopicPartition) -> Vec<StoredRecord> {
    let there = log.describe(&at.topic).await.unwrap();
    let there = there.partitions[usize::try_from(at.partition.0).unwrap()];
    let (mut from, mut all) = (there.start, Vec::new());
    while from < there.end {
        let batch = log.read(Read::new(at.clone(), from)).await.unwrap();
        assert!(batch.next > from, "a read before the end gets on");
        from = batch.next;
        all.extend(batch.records);
    }
    all
}

/// The numbers that a partition holds.
pub(crate) async fn numbers(log: &KafkaLog, at: &TopicPartition) -> Vec<u64> {
    everything(log, at).await.iter().map(number).collect()
}

/// All that a partition holds, once it holds so many. The broker answers a commit before it ends the
/// transaction in the partitions, so its records can be read a moment later.
pub(crate) async fn everything_once(
    log: &KafkaLog,
    at: &TopicPartition,
    count: usize,
) -> Vec<StoredRecord> {
    let reading = async {
        loop {
            let found = everything(log, at).await;
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(LIMIT, reading).await;
    found.expect("the records of a commit can be read in time")
}

/// The numbers that a partition holds, once it holds so many.
pub(crate) async fn numbers_once(log: &KafkaLog, at: &TopicPartition, count: usize) -> Vec<u64> {
    let found = everything_once(log, at, count).await;
    found.iter().map(number).collect()
}

/// Polls until something is assigned, and says what.
pub(crate) async fn assigned(session: &dyn Session) -> BTreeMap<TopicPartition, Assignment> {
    loop {
        if let SessionEvent::Assigned(all) = poll(session).await.unwrap() {
            return all.into_iter().map(|one| (one.at.clone(), one)).collect();
        }
    }
}

/// Polls once, with a limit.
pub(crate) async fn poll(session: &dyn Session) -> Result<SessionEvent, LogError> {
    tokio::time::timeout(LIMIT, session.poll())
        .await
        .expect("something happens in time")
}

pub(crate) async fn committed(
    log: &KafkaLog,
    group: &GroupName,
    at: &TopicPartition,
) -> Option<Offset> {
    let found = log
        .committed(group, std::slice::from_ref(at))
        .await
        .unwrap();
    found[0].as_ref().map(|committed| committed.next)
}
