//! Whether a group can be applied as a whole.

use std::collections::BTreeMap;

use tidegate_core::Topic;

use super::{NO_PARTITION, NO_TOPIC, Nonsense, State};
use crate::embedded::change::Change;
use crate::topic::TopicConfig;

/// A state, and what the changes so far would make of it.
struct Outlook<'a> {
    state: &'a State,
    /// Topics that would be new, with the number of their partitions.
    made: Vec<(&'a Topic, usize)>,
    /// Partitions whose end would be another one.
    ends: BTreeMap<(u32, u32), i64>,
}

impl State {
    /// Says why these changes cannot be applied, all of them and in this order.
    pub(super) fn fits(&self, changes: &[Change]) -> Result<(), Nonsense> {
        let mut outlook = Outlook {
            state: self,
            made: Vec::new(),
            ends: BTreeMap::new(),
        };
        changes.iter().try_for_each(|change| outlook.take(change))
    }
}

impl<'a> Outlook<'a> {
    fn take(&mut self, change: &'a Change) -> Result<(), Nonsense> {
        match change {
            Change::Chunk {
                topic,
                partition,
                head,
                ..
            } => {
                if head.base < self.end((*topic, *partition))? {
                    return Err(Nonsense("records for offsets that are taken"));
                }
                self.ends.insert((*topic, *partition), head.end());
            }
            Change::Offset {
                topic,
                partition,
                committed,
                ..
            } => self.reach((*topic, *partition), committed.next.0)?,
            Change::Skip {
                topic,
                partition,
                next,
                ..
            } => self.reach((*topic, *partition), *next)?,
            Change::Start {
                topic,
                partition,
                start,
                ..
            } => self.reach((*topic, *partition), *start)?,
            Change::Switch {
                topic,
                partition,
                end,
                ..
            } => self.reach((*topic, *partition), *end)?,
            Change::Topic {
                number,
                name,
                config,
            } => self.set_topic(*number, name, config)?,
            Change::Register { topics, .. } => {
                for topic in topics {
                    self.partitions(*topic)?;
                }
            }
            // Of a topic whose creation was lost nothing is known, and the group needs not know it.
            Change::Ends { ends, .. } => {
                for (topic, partition, end) in ends {
                    self.reach((*topic, *partition), *end).ok();
                }
            }
            Change::Forget { .. } => {}
        }
        Ok(())
    }

    /// How many partitions a topic has.
    fn partitions(&self, topic: u32) -> Result<usize, Nonsense> {
        let topic = topic as usize;
        let known = self.state.topics.get(topic);
        let known = known.map(|found| found.partitions.len());
        let made = topic.checked_sub(self.state.topics.len());
        let made = made.and_then(|index| self.made.get(index));
        known
            .or(made.map(|(_, partitions)| *partitions))
            .ok_or(NO_TOPIC)
    }

    fn end(&self, at: (u32, u32)) -> Result<i64, Nonsense> {
        if at.1 as usize >= self.partitions(at.0)? {
            return Err(NO_PARTITION);
        }
        let known = || self.state.partition(at.0, at.1).map_or(0, |p| p.end);
        Ok(self.ends.get(&at).copied().unwrap_or_else(known))
    }

    fn reach(&mut self, at: (u32, u32), offset: i64) -> Result<(), Nonsense> {
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
    ) -> Result<(), Nonsense> {
        let partitions = config.partitions as usize;
        let is_known = self.state.numbers.contains_key(name);
        let is_made = self.made.iter().any(|(made, _)| *made == name);
        let next = self.state.topics.len() + self.made.len();
        let is_right = match self.state.topics.get(number as usize) {
            Some(topic) => topic.name == *name && topic.partitions.len() == partitions,
            None => !is_known && !is_made && number as usize == next,
        };
        if !is_right {
            return Err(Nonsense("a topic under the number of another one"));
        }
        if number as usize == next {
            self.made.push((name, partitions));
        }
        Ok(())
    }
}
