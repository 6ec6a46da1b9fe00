//! Where partitions begin and end, and what is taken away from them.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use tidegate_core::{Offset, Topic};

use crate::error::LogError;
use crate::kafka::client_context::KafkaClientContext;
use crate::kafka::{KafkaInner, convert, failure};
use crate::record::TopicPartition;

use super::watermarks;

/// The first error among these.
fn check(list: &TopicPartitionList) -> KafkaResult<()> {
    let elements = list.elements();
    elements.iter().try_for_each(|element| element.error())
}

impl KafkaInner {
    pub(in crate::kafka) async fn offset_at(
        &self,
        at: &TopicPartition,
        timestamp_ms: u64,
    ) -> Result<Offset, LogError> {
        self.check_partition(at).await?;
        let (asker, query, at) = (self.asker(), self.query(), at.clone());
        self.ask("kafka-offset-at", move || {
            let when = Offset(i64::try_from(timestamp_ms).unwrap_or(i64::MAX));
            let found = query.ask("an offset by time", Some(&at.topic), |limit| {
                let asked = convert::places([(&at, when)])?;
                let found = asker.offsets_for_times(asked, limit)?;
                let elements = found.elements();
                let Some(element) = elements.first() else {
                    return Ok(None);
                };
                element.error()?;
                let rdkafka::Offset::Offset(offset) = element.offset() else {
                    return Ok(None);
                };
                Ok(Some(Offset(offset)))
            })?;
            match found {
                Some(offset) => Ok(offset),
                None => watermarks(&asker, &query, &at).map(|(_, end)| end),
            }
        })
        .await
    }

    pub(in crate::kafka) async fn delete_before(
        &self,
        at: &TopicPartition,
        offset: Offset,
    ) -> Result<Offset, LogError> {
        const DOING: &str = "the removal of records";
        let (start, end) = self.range(at).await?;
        if offset <= start {
            return Ok(start);
        }
        let before = offset.min(end);
        let topic = Some(&at.topic);
        let failed = |error| self.config.failed(DOING, topic, &error);
        let asked = convert::places([(at, before)]).map_err(failed)?;
        let options = self.admin_options();
        let begin = self.clock.elapsed();
        loop {
            let call = self.catalog.admin.delete_records(&asked, &options);
            let removed = self.administer(DOING, topic, call).await?;
            let Err(error) = check(&removed) else {
                return Ok(before);
            };
            let patience = failure::patience(&error).min(self.config.request_timeout);
            if self.clock.elapsed().saturating_sub(begin) >= patience {
                return Err(failed(error));
            }
            self.clock.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Where a partition begins and ends.
    pub(in crate::kafka) async fn range(
        &self,
        at: &TopicPartition,
    ) -> Result<(Offset, Offset), LogError> {
        self.check_partition(at).await?;
        let (asker, query, at) = (self.asker(), self.query(), at.clone());
        self.ask("kafka-range", move || watermarks(&asker, &query, &at))
            .await
    }

    pub(in crate::kafka) fn asker(&self) -> Arc<BaseConsumer<KafkaClientContext>> {
        Arc::clone(&self.catalog.asker)
    }

    /// Removes a topic. Returns when the broker that we ask does not know it any more.
    pub(in crate::kafka) async fn delete_topic(&self, topic: &Topic) -> Result<(), LogError> {
        const DOING: &str = "the removal of a topic";
        let options = self.admin_options();
        let names = [topic.as_str()];
        let call = self.catalog.admin.delete_topics(&names, &options);
        match self.administer(DOING, Some(topic), call).await?.pop() {
            Some(Ok(_)) => {}
            Some(Err((_, code))) => {
                let error = KafkaError::AdminOp(code);
                return Err(self.config.failed(DOING, Some(topic), &error));
            }
            None => return Err(self.away("an empty answer")),
        }
        let until = self.clock.elapsed() + self.config.request_timeout;
        while self.clock.elapsed() < until {
            self.catalog.forget(topic);
            match self.known(topic).await {
                Err(LogError::UnknownTopic { .. }) => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => self.clock.sleep(Duration::from_millis(20)).await,
            }
        }
        Err(self.away(self.late()))
    }

    pub(in crate::kafka) async fn delete_group(&self, group: &str) -> Result<(), LogError> {
        const DOING: &str = "the removal of a group";
        let options = self.admin_options();
        let names = [group];
        let call = self.catalog.admin.delete_groups(&names, &options);
        match self.administer(DOING, None, call).await?.pop() {
            Some(Ok(_)) | Some(Err((_, RDKafkaErrorCode::GroupIdNotFound))) => Ok(()),
            Some(Err((_, RDKafkaErrorCode::NonEmptyGroup))) => Err(LogError::Refused {
                doing: DOING,
                why: format!("`{group}` has members"),
            }),
            Some(Err((_, code))) => {
                Err(self.config.failed(DOING, None, &KafkaError::AdminOp(code)))
            }
            None => Err(self.away("an empty answer")),
        }
    }
}
