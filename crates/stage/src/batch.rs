//! The end of `mode batch`: when all inputs are read.
//!
//! A source ends where it ended at the start. A topic of the stage's own ends when everything before it is read, and
//! it is read as well. So the inputs are looked at in their order.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Clock;
use tidegate_core::{Classify, FailureClass, GroupName, Offset, Topic};
use tidegate_log::{Log, LogError, Read, TopicPartition};

/// How often the inputs are looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The inputs of a stage that ends.
pub(crate) struct BatchInputs {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    group: GroupName,
    /// The topics in their order; a source has where its partitions ended at the start.
    topics: Vec<(Topic, Option<Vec<Offset>>)>,
}

impl fmt::Debug for BatchInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.topics).finish()
    }
}

impl BatchInputs {
    /// The inputs as they end now. `topics` says of each whether it is one of the stage's own.
    pub(crate) async fn new(
        log: Arc<dyn Log>,
        clock: Arc<dyn Clock>,
        group: GroupName,
        topics: Vec<(Topic, bool)>,
    ) -> Result<Self, LogError> {
        let mut with_ends = Vec::new();
        for (topic, is_repartition) in topics {
            let ends = match is_repartition {
                true => None,
                false => {
                    let partitions = log.describe(&topic).await?.partitions;
                    Some(partitions.iter().map(|one| one.end).collect())
                }
            };
            with_ends.push((topic, ends));
        }
        Ok(Self {
            log,
            clock,
            group,
            topics: with_ends,
        })
    }

    /// Waits until everything is read and committed.
    pub(crate) async fn read(&self) -> Result<(), LogError> {
        while !self.are_read().await? {
            self.clock.sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// Whether everything is read and committed. A log that is away does not tell.
    pub(crate) async fn are_read(&self) -> Result<bool, LogError> {
        for (topic, ends) in &self.topics {
            match self.is_read(topic, ends.as_deref()).await {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) if error.class() == FailureClass::Transient => {
                    tracing::warn!(%error, %topic, "the log does not tell yet how far an input is read");
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn is_read(&self, topic: &Topic, ends: Option<&[Offset]>) -> Result<bool, LogError> {
        let described = self.log.describe(topic).await?.partitions;
        let partitions = described.iter();
        let at = |number: i32| TopicPartition::new(topic.clone(), number);
        let all: Vec<TopicPartition> = partitions.map(|one| at(one.partition.0)).collect();
        let committed = self.log.committed(&self.group, &all).await?;
        for (number, (partition, held)) in described.iter().zip(committed).enumerate() {
            let of_start = ends.map(|ends| ends.get(number).copied().unwrap_or(partition.end));
            let end = of_start.unwrap_or(partition.end);
            let next = held.map_or(partition.start, |held| held.next);
            let from = next.max(partition.start);
            if from < end
                && self
                    .has_record(at(partition.partition.0), from, end)
                    .await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether readers see a record between two offsets. Offsets alone do not tell: on Kafka, commits take some.
    async fn has_record(
        &self,
        at: TopicPartition,
        mut from: Offset,
        end: Offset,
    ) -> Result<bool, LogError> {
        while from < end {
            let read = Read {
                max_records: 1,
                ..Read::new(at.clone(), from)
            };
            let batch = self.log.read(read).await?;
            match batch.records.first() {
                Some(first) => return Ok(first.offset < end),
                None if batch.next <= from => return Ok(false),
                None => from = batch.next,
            }
        }
        Ok(false)
    }
}
