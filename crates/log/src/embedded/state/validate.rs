//! Whether a group can be applied as a whole.

use std::collections::BTreeMap;

use tidegate_core::Topic;

use super::{InvalidChange, LogState, NO_PARTITION, NO_TOPIC};
use crate::embedded::change::LogChange;
use crate::topic::TopicConfig;

/// A state, and the effect of the changes so far.
struct Preview<'a> {
    state: &'a LogState,
    /// Topics that would be new, with the number of their partitions.
    made: Vec<(&'a Topic, usize)>,
    /// Partitions whose end would be another one.
    ends: BTreeMap<(u32, u32), i64>,
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
            LogChange::Chunk {
                topic,
                partition,
                head,
                ..
            } => {
                if head.base < self.end((*topic, *partition))? {
                    return Err(InvalidChange("records for offsets that are in use"));
                }
                self.ends.insert((*topic, *partition), head.end());
            }
            LogChange::Offset {
                topic,
                partition,
                committed,
                ..
            } => self.extend_end((*topic, *partition), committed.next.0)?,
            LogChange::Skip {
                topic,
                partition,
                next,
                ..
            } => self.extend_end((*topic, *partition), *next)?,
            LogChange::Start {
                topic,
                partition,
                start,
                ..
            } => self.extend_end((*topic, *partition), *start)?,
            LogChange::Switch {
                topic,
                partition,
                end,
                ..
            } => self.extend_end((*topic, *partition), *end)?,
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
            // Of a topic whose creation was lost nothing is known, and the group needs not know it.
            LogChange::EndOffsets { ends, .. } => {
                for (topic, partition, end) in ends {
                    self.extend_end((*topic, *partition), *end).ok();
                }
            }
            LogChange::Forget { .. } => {}
        }
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

    fn end(&self, at: (u32, u32)) -> Result<i64, InvalidChange> {
        if at.1 as usize >= self.partitions(at.0)? {
            return Err(NO_PARTITION);
        }
        let known = || self.state.partition(at.0, at.1).map_or(0, |p| p.end);
        Ok(self.ends.get(&at).copied().unwrap_or_else(known))
    }

    fn extend_end(&mut self, at: (u32, u32), offset: i64) -> Result<(), InvalidChange> {
        if offset > self.end(at)? {
            self.ends.insert(at, offset);
        }
        Ok(())
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
