//! Whether a group can be applied as a whole.

use std::collections::BTreeMap;

use tidegate_core::Topic;

use super::{InvalidChange, LogState, NO_PARTITION, NO_TOPIC};
use crate::embedded::change::{LogChange, PartitionKey};
use crate::topic::TopicConfig;

/// A state, and the effect of the changes so far.
struct Preview<'a> {
    state: &'a LogState,
    /// Topics that would be new, with the number of their partitions.
    made: Vec<(&'a Topic, usize)>,
    /// Partitions whose end would be another one.
    ends: BTreeMap<PartitionKey, i64>,
}

impl LogState {
    /// Says why these changes cannot be applied, all of them and in this order.
    pub(super) fn validate(&self, changes: &[LogChange]) -> Result<(), InvalidChange> {
        let mut preview = Preview {
            state: self,
            made: Vec::new(),
            ends: BTreeMap::new(),
        };
        changes.iter().try_for_each(|change| preview.take(change))
    }
}

impl<'a> Preview<'a> {
    fn take(&mut self, change: &'a LogChange) -> Result<(), InvalidChange> {
        match change {
            LogChange::Chunk { at, chunk } => {
                if chunk.head.base < self.end(*at)? {
                    return Err(InvalidChange("records for offsets that are in use"));
                }
                self.ends.insert(*at, chunk.head.end());
            }
            LogChange::Offset { at, .. }
            | LogChange::Skip { at, .. }
            | LogChange::Seek { at, .. }
            | LogChange::Start { at, .. }
            | LogChange::Switch { at, .. } => {
                self.end(*at)?;
            }
            LogChange::Topic {
                number,
                name,
                config,
            } => self.set_topic(*number, name, config)?,
            LogChange::Register { topics, .. } => {
                for topic in topics {
                    self.partitions(*topic)?;
                }
            }
            LogChange::RemoveTopic { topic } => {
                self.partitions(*topic)?;
            }
            LogChange::EndOffsets { .. } | LogChange::Forget { .. } => {}
        }
        // Of a topic whose creation was lost nothing is known, and the ends of partitions need not know it.
        change.for_each_end(|at, offset| {
            if self.end(at).is_ok_and(|end| offset > end) {
                self.ends.insert(at, offset);
            }
        });
        Ok(())
    }

    /// How many partitions a topic has.
    fn partitions(&self, topic: u32) -> Result<usize, InvalidChange> {
        let topic = topic as usize;
        let known = self.state.topics.get(topic);
        let known = known.map(|found| found.partitions.len());
        let made = topic.checked_sub(self.state.topics.len());
        let made = made.and_then(|index| self.made.get(index));
        known
            .or(made.map(|(_, partitions)| *partitions))
            .ok_or(NO_TOPIC)
    }

    fn end(&self, at: PartitionKey) -> Result<i64, InvalidChange> {
        if at.1 as usize >= self.partitions(at.0)? {
            return Err(NO_PARTITION);
        }
        let known = || self.state.partition(at).map_or(0, |p| p.end);
        Ok(self.ends.get(&at).copied().unwrap_or_else(known))
    }

    fn set_topic(
        &mut self,
        number: u32,
        name: &'a Topic,
        config: &TopicConfig,
    ) -> Result<(), InvalidChange> {
        let partitions = config.partitions as usize;
        let is_known = self.state.numbers.contains_key(name);
        let is_made = self.made.iter().any(|(made, _)| *made == name);
        let next = self.state.topics.len() + self.made.len();
        let is_right = match self.state.topics.get(number as usize) {
            Some(topic) => topic.name == *name && topic.partitions.len() == partitions,
            None => !is_known && !is_made && number as usize == next,
        };
        if !is_right {
            return Err(InvalidChange("a topic under the number of another one"));
        }
        if number as usize == next {
            self.made.push((name, partitions));
        }
        Ok(())
    }
}
