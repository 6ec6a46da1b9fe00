//! Topics, also those whose creation was lost to damage.
//!
//! A topic is known by its number from its creation on. Where that was lost, what was written to the
//! topic since is still there, and so is what was written to later ones: one is made up under that
//! number, and gets its own name should the journal tell it.

use tidegate_core::Topic;
use tidegate_core::books::Books;

use super::{NO_TOPIC, Nonsense, PartitionState, State, TopicState};
use crate::embedded::change::Change;
use crate::topic::TopicConfig;

/// More topics or partitions than damage hides.
const MOST: usize = 10_000;

impl State {
    /// Makes a topic, or sets it up anew, or gives one that was made up its own name. The change was
    /// found to [fit](State::fits).
    pub(super) fn set_topic(&mut self, number: u32, name: Topic, config: TopicConfig) {
        let count = config.partitions as usize;
        self.numbers.insert(name.clone(), number);
        match self.topics.get_mut(number as usize) {
            Some(topic) => {
                if topic.name != name {
                    self.numbers.remove(&topic.name);
                }
                topic.name = name;
                topic.config = config;
                topic.is_made_up = false;
            }
            None => self.topics.push(TopicState {
                name,
                config,
                books: Books::default(),
                partitions: Vec::new(),
                is_made_up: false,
            }),
        }
        self.widen(number, count);
    }

    /// Makes up the topics and partitions that changes speak of and that are not there. Only behind
    /// groups that were lost to damage: then their creation was among those.
    pub(in crate::embedded) fn make_up(&mut self, changes: &[Change]) -> Result<(), Nonsense> {
        for change in changes {
            match change {
                Change::Chunk {
                    topic, partition, ..
                }
                | Change::Offset {
                    topic, partition, ..
                }
                | Change::Skip {
                    topic, partition, ..
                }
                | Change::Start {
                    topic, partition, ..
                }
                | Change::Switch {
                    topic, partition, ..
                } => self.make_up_partition(*topic, *partition)?,
                Change::Register { topics, .. } => {
                    for topic in topics {
                        self.make_up_to(*topic as usize + 1)?;
                    }
                }
                Change::Topic { number, .. } => self.make_up_to(*number as usize)?,
                Change::Ends { ends, .. } => {
                    for (topic, partition, _) in ends {
                        self.make_up_partition(*topic, *partition)?;
                    }
                }
                Change::Forget { .. } => {}
            }
        }
        Ok(())
    }

    fn make_up_partition(&mut self, topic: u32, partition: u32) -> Result<(), Nonsense> {
        self.make_up_to(topic as usize + 1)?;
        let is_made_up = self.topics[topic as usize].is_made_up;
        let count = partition as usize + 1;
        if is_made_up && count <= MOST {
            self.widen(topic, count);
        }
        Ok(())
    }

    /// Makes up topics until there are so many.
    fn make_up_to(&mut self, count: usize) -> Result<(), Nonsense> {
        if count > self.topics.len() + MOST {
            return Err(NO_TOPIC);
        }
        for number in self.topics.len()..count {
            let name = (0..).find_map(|turn| {
                let again = "-again".repeat(turn);
                let name = Topic::new(format!("lost-topic-{number}{again}")).ok()?;
                (!self.numbers.contains_key(&name)).then_some(name)
            });
            let name = name.ok_or(NO_TOPIC)?;
            tracing::error!(topic = %name, "the creation of a topic was lost to damage; what is left of it is kept under this name");
            self.numbers
                .insert(name.clone(), u32::try_from(number).unwrap_or(u32::MAX));
            self.topics.push(TopicState {
                name,
                config: TopicConfig::new(1),
                books: Books::default(),
                partitions: vec![PartitionState::default()],
                is_made_up: true,
            });
        }
        Ok(())
    }

    /// Gives a topic at least so many partitions, and its readers as well.
    fn widen(&mut self, number: u32, count: usize) {
        let Some(topic) = self.topics.get_mut(number as usize) else {
            return;
        };
        if topic.partitions.len() < count {
            topic.partitions.resize_with(count, PartitionState::default);
        }
        topic.config.partitions = u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX);
        let count = topic.partitions.len();
        let readings = self.groups.values_mut();
        for reading in readings.filter_map(|group| group.get_mut(&number)) {
            reading.starts.resize(count, 0);
            reading.committed.resize(count, None);
        }
    }
}
