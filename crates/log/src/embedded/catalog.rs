//! The topics, for those who encode: a copy that is read without the lock of the state.

use std::collections::BTreeMap;

use tidegate_core::Topic;

use super::state::LogState;
use crate::error::LogError;
use crate::record::TopicPartition;
use crate::topic::TopicConfig;

/// The number and the configuration of each topic.
#[derive(Debug, Default)]
pub(super) struct Catalog(BTreeMap<Topic, (u32, TopicConfig)>);

impl Catalog {
    pub(super) fn of(state: &LogState) -> Self {
        let topics = state.topics.iter().zip(0..);
        let entry = |(topic, number): (&super::state::TopicState, u32)| {
            (topic.name.clone(), (number, topic.config.clone()))
        };
        let topics = topics.filter(|(topic, _)| !topic.is_removed);
        Self(topics.map(entry).collect())
    }

    pub(super) fn topic(&self, topic: &Topic) -> Result<(u32, &TopicConfig), LogError> {
        match self.0.get(topic) {
            Some((number, config)) => Ok((*number, config)),
            None => Err(LogError::UnknownTopic {
                topic: topic.clone(),
            }),
        }
    }

    /// The numbers of a partition.
    pub(super) fn find(&self, at: &TopicPartition) -> Result<(u32, u32), LogError> {
        let (number, config) = self.topic(&at.topic)?;
        let partitions = config.partitions;
        let partition = u32::try_from(at.partition.0)
            .ok()
            .filter(|p| *p < partitions);
        let partition = partition.ok_or_else(|| LogError::UnknownPartition {
            at: at.clone(),
            partitions,
        })?;
        Ok((number, partition))
    }
}
