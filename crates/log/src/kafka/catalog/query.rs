//! Questions about partitions, asked again while their leaders are just being found.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use tidegate_core::env::Clock;
use tidegate_core::{Offset, Topic};

use crate::error::LogError;
use crate::kafka::{KafkaConfig, KafkaInner, failure};
use crate::record::TopicPartition;

/// How long to wait before the same is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// How partitions are asked for.
#[derive(Debug, Clone)]
pub(in crate::kafka) struct BrokerQuery {
    clock: Arc<dyn Clock>,
    /// The brokers that are asked, for the error of a question without an answer.
    servers: String,
    /// How long one question may take, with all its tries.
    limit: Duration,
}

impl BrokerQuery {
    pub(in crate::kafka) fn new(
        clock: &Arc<dyn Clock>,
        config: &KafkaConfig,
        limit: Duration,
    ) -> Self {
        Self {
            clock: Arc::clone(clock),
            servers: config.bootstrap_servers.clone(),
            limit,
        }
    }

    /// Asks until the answer is one that stays; blocks. Each try is told how much time is left.
    pub(in crate::kafka) fn ask<T>(
        &self,
        doing: &'static str,
        topic: Option<&Topic>,
        mut question: impl FnMut(Duration) -> KafkaResult<T>,
    ) -> Result<T, LogError> {
        let begin = self.clock.elapsed();
        loop {
            let passed = || self.clock.elapsed().saturating_sub(begin);
            let error = match question(self.limit.saturating_sub(passed()).max(PAUSE)) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if passed() + PAUSE >= failure::patience(&error).min(self.limit) {
                return Err(self.failed(doing, topic, &error));
            }
            std::thread::sleep(PAUSE);
        }
    }

    pub(in crate::kafka) fn failed(
        &self,
        doing: &'static str,
        topic: Option<&Topic>,
        error: &KafkaError,
    ) -> LogError {
        failure::of_question(doing, &self.servers, topic, error)
    }
}

/// Asks where a partition begins and ends, for readers that see only what is committed.
pub(in crate::kafka) fn watermarks<C: ConsumerContext>(
    asker: &BaseConsumer<C>,
    query: &BrokerQuery,
    at: &TopicPartition,
) -> Result<(Offset, Offset), LogError> {
    let doing = "a query of a partition";
    let (start, end) = query.ask(doing, Some(&at.topic), |limit| {
        asker.fetch_watermarks(at.topic.as_str(), at.partition.0, limit)
    })?;
    Ok((Offset(start), Offset(end)))
}

impl KafkaInner {
    /// How partitions are asked for within the deadline of a call.
    pub(in crate::kafka) fn query(&self) -> BrokerQuery {
        BrokerQuery::new(&self.clock, &self.config, self.config.request_timeout)
    }

    /// Waits until each partition of a topic has a leader that answers for it. Metadata name one earlier
    /// than it knows of it itself.
    pub(super) async fn await_leaders(&self, topic: &Topic, count: i32) -> Result<(), LogError> {
        let (asker, query, topic) = (self.asker(), self.query(), topic.clone());
        self.ask("kafka-leaders", move || {
            query.ask("a new topic", Some(&topic), |limit| {
                let mut asked = TopicPartitionList::new();
                for number in 0..count {
                    let end = rdkafka::Offset::End;
                    asked.add_partition_offset(topic.as_str(), number, end)?;
                }
                let found = asker.offsets_for_times(asked, limit)?;
                found.elements().iter().try_for_each(|found| found.error())
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::error::RDKafkaErrorCode;
    use tidegate_core::env::Env;

    /// Asks with a limit; the first answers are errors of this code. Returns how often it was asked, and
    /// whether there was an answer.
    fn ask(limit: Duration, code: RDKafkaErrorCode, errors: usize) -> (usize, bool) {
        let query = BrokerQuery {
            clock: Env::system().clock,
            servers: "b:1".to_owned(),
            limit,
        };
        let mut asked = 0;
        let answer = query.ask("a test", None, |left| {
            assert!(left <= limit);
            asked += 1;
            if asked > errors {
                return Ok(());
            }
            Err(KafkaError::MetadataFetch(code))
        });
        (asked, answer.is_ok())
    }

    #[test]
    fn a_leader_that_is_just_being_found_is_waited_for() {
        use RDKafkaErrorCode::{NotLeaderForPartition, OperationTimedOut, UnknownPartition};
        let long = Duration::from_secs(60);
        assert_eq!(ask(long, NotLeaderForPartition, 3), (4, true));
        assert_eq!(ask(long, UnknownPartition, 2), (3, true));
        // Everything else is an answer, and no leader is waited for beyond the deadline.
        assert_eq!(ask(long, OperationTimedOut, 1), (1, false));
        let (asked, has_answer) = ask(PAUSE * 4, NotLeaderForPartition, usize::MAX);
        assert!((2..=4).contains(&asked) && !has_answer, "{asked}");
    }
}
