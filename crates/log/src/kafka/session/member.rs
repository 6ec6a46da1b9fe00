//! The client of a member, and the rebalances it tells of.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, TopicPartitionList};
use tidegate_core::{Mutex, Topic};
use tokio::sync::watch;

use crate::error::LogError;
use crate::kafka::client_context::KafkaClientContext;
use crate::kafka::{KafkaConfig, settings};
use crate::port::Join;

/// A request of the group to a member.
pub(super) enum RebalanceRequest {
    Assign(TopicPartitionList),
    Revoke(TopicPartitionList),
}

/// Takes in what the group wants. It is done later, by the poll thread: the client waits for the answer and
/// keeps its membership meanwhile, so nothing has to be decided within the callback.
#[derive(Default)]
pub(super) struct RebalanceContext {
    pub(super) context: KafkaClientContext,
    moves: Mutex<VecDeque<RebalanceRequest>>,
    /// Nobody carries out moves any more: the client is being closed.
    closing: AtomicBool,
    /// The topics that are read together with the one that the group subscribes.
    co_partitioned: Vec<Topic>,
}

impl RebalanceContext {
    /// The next thing the group wants.
    pub(super) fn next_request(&self) -> Option<RebalanceRequest> {
        self.moves.lock().pop_front()
    }

    /// Whether something else is wanted already.
    pub(super) fn has_requests(&self) -> bool {
        !self.moves.lock().is_empty()
    }

    /// Partitions that the group assigns or wants back, with those that are read together with them. The
    /// group knows only of its own; the client takes them all in one call, and lets them go in one.
    fn with_co_partitioned(&self, of_group: &TopicPartitionList) -> TopicPartitionList {
        let mut all = of_group.clone();
        for element in of_group.elements() {
            for topic in &self.co_partitioned {
                all.add_partition(topic.as_str(), element.partition());
            }
        }
        all
    }

    /// From now on partitions are let go within the callback.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }
}

impl ClientContext for RebalanceContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.context.line(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.failure(&error, reason);
    }
}

impl ConsumerContext for RebalanceContext {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        error: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let assigns = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let partitions = self.with_co_partitioned(partitions);
        if self.closing.load(Ordering::Acquire) {
            let answer = if assigns {
                consumer.incremental_assign(&partitions)
            } else {
                consumer.incremental_unassign(&partitions)
            };
            if let Err(error) = answer {
                tracing::debug!("leaving a group failed: {error}");
            }
            return;
        }
        let wanted = if assigns {
            RebalanceRequest::Assign(partitions)
        } else {
            RebalanceRequest::Revoke(partitions)
        };
        self.moves.lock().push_back(wanted);
    }
}

/// The client of a member. Dropping it leaves the group, which may take its time.
pub(super) struct GroupMember {
    pub(super) consumer: BaseConsumer<RebalanceContext>,
    /// Behind the client, so that it is told when that has ended.
    _gone: Gone,
}

struct Gone(watch::Sender<bool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl GroupMember {
    /// Makes the client and says what it wants to read. Joining goes on while it is polled.
    pub(super) fn join(
        config: &KafkaConfig,
        join: &Join,
        gone: watch::Sender<bool>,
    ) -> Result<Self, LogError> {
        const DOING: &str = "joining a group";
        let failed = |error: KafkaError| config.failed(DOING, None, &error);
        let client = settings::member(config, join);
        let context = RebalanceContext {
            co_partitioned: join.co_partitioned.clone(),
            ..RebalanceContext::default()
        };
        let consumer = BaseConsumer::from_config_and_context(&client, context);
        let consumer: BaseConsumer<RebalanceContext> = consumer.map_err(failed)?;
        let topics: Vec<&str> = join.topics.iter().map(Topic::as_str).collect();
        consumer.subscribe(&topics).map_err(failed)?;
        Ok(Self {
            consumer,
            _gone: Gone(gone),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_that_are_read_together_are_taken_and_let_go_with_those_of_the_group() {
        let context = RebalanceContext {
            co_partitioned: ["b", "c"].map(|name| Topic::new(name).unwrap()).into(),
            ..RebalanceContext::default()
        };
        let mut of_group = TopicPartitionList::new();
        of_group.add_partition("a", 3);
        of_group.add_partition("a", 5);
        let all = context.with_co_partitioned(&of_group);
        let all = all.elements();
        let mut all: Vec<_> = all
            .iter()
            .map(|one| (one.topic(), one.partition()))
            .collect();
        all.sort_unstable();
        assert_eq!(
            all,
            [("a", 3), ("a", 5), ("b", 3), ("b", 5), ("c", 3), ("c", 5)]
        );
    }
}
