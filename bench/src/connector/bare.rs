//! The bare client in a loop, with the settings that the port gives it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tidegate_core::Topic;

use super::{LIMIT, POLL_RECORDS, fresh, told};
use crate::program::Why;

/// When the loop commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commits {
    /// Behind each batch, one commit under way at a time, as a binding does.
    PerBatch,
    /// Behind each record, and waits.
    PerRecord,
}

/// Counts commits that were answered.
#[derive(Default)]
struct Answered(AtomicUsize);

impl ClientContext for Answered {}

impl ConsumerContext for Answered {
    fn commit_callback(&self, _: KafkaResult<()>, _: &TopicPartitionList) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A record, copied out as anybody must who hands records to somebody else.
#[expect(dead_code, reason = "it stands for what a loop hands on")]
struct Copied {
    partition: i32,
    offset: i64,
    timestamp: Option<i64>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
}

impl Copied {
    fn new(message: &BorrowedMessage<'_>) -> Self {
        Self {
            partition: message.partition(),
            offset: message.offset(),
            timestamp: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
        }
    }
}

/// Records per second, from the first record to the last.
pub(super) fn run(
    servers: &str,
    topic: &Topic,
    records: usize,
    commits: Commits,
) -> Result<f64, Why> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("group.id", fresh("bare"))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("check.crcs", "true")
        .set("queued.max.messages.kbytes", "8192")
        .set("fetch.wait.max.ms", "100")
        .set("fetch.queue.backoff.ms", "10")
        .set("partition.assignment.strategy", "cooperative-sticky");
    let consumer: BaseConsumer<Answered> =
        BaseConsumer::from_config_and_context(&config, Answered::default()).map_err(told)?;
    consumer.subscribe(&[topic.as_str()]).map_err(told)?;
    let (waiting, mut begin) = (Instant::now(), None);
    let mut batch: Vec<Copied> = Vec::with_capacity(POLL_RECORDS);
    let mut next: Vec<i64> = vec![-1; super::PARTITIONS as usize];
    let (mut sent, mut since, mut left) = (0, 0, records);
    while left > 0 {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            if waiting.elapsed() > LIMIT {
                return Err("records are missing".to_owned());
            }
            continue;
        };
        let message = message.map_err(told)?;
        begin.get_or_insert_with(Instant::now);
        let partition = usize::try_from(message.partition()).unwrap_or(0);
        if let Some(next) = next.get_mut(partition) {
            *next = message.offset() + 1;
        }
        batch.push(Copied::new(&message));
        left -= 1;
        since += 1;
        match commits {
            Commits::PerRecord => {
                consumer
                    .commit_message(&message, CommitMode::Sync)
                    .map_err(told)?;
            }
            Commits::PerBatch => {
                let is_free = consumer.context().0.load(Ordering::Relaxed) == sent;
                if since >= POLL_RECORDS && is_free {
                    consumer
                        .commit(&offsets(topic, &next)?, CommitMode::Async)
                        .map_err(told)?;
                    (sent, since) = (sent + 1, 0);
                }
            }
        }
        if batch.len() == POLL_RECORDS {
            batch.clear();
        }
    }
    let took = begin.map_or(0.0, |begin: Instant| begin.elapsed().as_secs_f64());
    if commits == Commits::PerBatch {
        consumer
            .commit(&offsets(topic, &next)?, CommitMode::Sync)
            .map_err(told)?;
    }
    Ok(records as f64 / took)
}

fn offsets(topic: &Topic, next: &[i64]) -> Result<TopicPartitionList, Why> {
    let mut offsets = TopicPartitionList::new();
    for (partition, next) in next.iter().enumerate().filter(|(_, next)| **next >= 0) {
        let partition = i32::try_from(partition).unwrap_or(0);
        offsets
            .add_partition_offset(topic.as_str(), partition, Offset::Offset(*next))
            .map_err(told)?;
    }
    Ok(offsets)
}
