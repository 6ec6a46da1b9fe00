//! The committed offsets of groups, asked from outside of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rdkafka::TopicPartitionList;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use tidegate_core::{GroupName, Mutex, Offset};

use crate::error::LogError;
use crate::port::Committed;
use crate::record::TopicPartition;

use super::books::{self, GroupBooks};
use super::catalog::BrokerQuery;
use super::client_context::{KafkaClientContext, poll_events};
use super::{KafkaConfig, KafkaInner, failure, settings};

/// Groups whose client is kept for the next question.
const KEPT: usize = 8;

/// The committed offset of a group on a partition, and its books.
pub(super) type FoundOffset = Option<(Option<GroupBooks>, Committed)>;

/// Consumers that ask for the offsets of a group and never join it.
pub(super) struct OffsetFetchers {
    config: KafkaConfig,
    kept: Mutex<Vec<(GroupName, Arc<BaseConsumer<KafkaClientContext>>)>>,
}

impl OffsetFetchers {
    pub(super) fn new(config: KafkaConfig) -> Self {
        Self {
            config,
            kept: Mutex::default(),
        }
    }

    /// Asks; blocks.
    pub(super) fn committed(
        &self,
        group: &GroupName,
        partitions: &[TopicPartition],
        query: &BrokerQuery,
    ) -> Result<Vec<FoundOffset>, LogError> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let consumer = self.offset_fetcher(group)?;
        poll_events(&consumer);
        committed(&consumer, query, partitions)
    }

    /// The client that asks for a group.
    pub(super) fn offset_fetcher(
        &self,
        group: &GroupName,
    ) -> Result<Arc<BaseConsumer<KafkaClientContext>>, LogError> {
        let mut kept = self.kept.lock();
        if let Some(index) = kept.iter().position(|(name, _)| name == group) {
            // The one asked for last is dropped last.
            let found = kept.remove(index);
            let consumer = Arc::clone(&found.1);
            kept.push(found);
            return Ok(consumer);
        }
        let config = settings::offset_fetcher(&self.config, group.as_str());
        let consumer =
            BaseConsumer::from_config_and_context(&config, KafkaClientContext::default());
        let consumer = Arc::new(consumer.map_err(|error| failure::of_settings(&error))?);
        kept.push((group.clone(), Arc::clone(&consumer)));
        let dropped = (kept.len() > KEPT).then(|| kept.remove(0));
        drop(kept);
        // Here, on a worker: the end of a client may take its time.
        drop(dropped);
        Ok(consumer)
    }
}

/// Asks for committed offsets by a client of the group, waiting for transactions that have not ended.
pub(super) fn committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    query: &BrokerQuery,
    partitions: &[TopicPartition],
) -> Result<Vec<FoundOffset>, LogError> {
    const DOING: &str = "a query of committed offsets";
    let mut asked = TopicPartitionList::with_capacity(partitions.len());
    for at in partitions {
        asked.add_partition(at.topic.as_str(), at.partition.0);
    }
    let found = query.ask(DOING, None, |limit| {
        consumer.committed_offsets(asked.clone(), limit)
    })?;
    partitions
        .iter()
        .map(|at| {
            let Some(element) = found.find_partition(at.topic.as_str(), at.partition.0) else {
                return Ok(None);
            };
            let error = element.error();
            error.map_err(|error| query.failed(DOING, Some(&at.topic), &error))?;
            let rdkafka::Offset::Offset(offset) = element.offset() else {
                return Ok(None);
            };
            // The client's own accessor panics on text that is not UTF-8, which any program may write;
            // it is none of ours then.
            let text = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned()));
            let text = text.unwrap_or_default();
            let (books, metadata) = books::read(&text);
            let committed = Committed {
                next: Offset(offset),
                metadata: metadata.to_owned(),
            };
            Ok(Some((books, committed)))
        })
        .collect()
}

impl KafkaInner {
    pub(super) async fn groups(&self) -> Result<Vec<GroupName>, LogError> {
        let (asker, query) = (self.asker(), self.query());
        self.ask("kafka-groups", move || {
            let found = query.ask("a list of groups", None, |limit| {
                asker.fetch_group_list(None, limit)
            })?;
            // Groups of other kinds (connectors, for instance) commit no offsets.
            let mut groups: Vec<GroupName> = found
                .groups()
                .iter()
                .filter(|group| matches!(group.protocol_type(), "consumer" | ""))
                .filter_map(|group| GroupName::new(group.name()).ok())
                .collect();
            groups.sort();
            Ok(groups)
        })
        .await
    }

    pub(super) async fn forget_group(&self, group: &GroupName) -> Result<(), LogError> {
        self.delete_group(group.as_str()).await
    }
}
