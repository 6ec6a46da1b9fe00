//! Topics: how many partitions they have, what they take, and how they are made.

mod query;
mod ranges;
mod topic_config;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use tidegate_core::{Mutex, Partition, Topic};

use crate::error::LogError;
use crate::record::TopicPartition;
use crate::topic::{PartitionDescription, TopicConfig, TopicDescription};

use super::client_context::{KafkaClientContext, poll_events};
use super::{KafkaConfig, KafkaInner, failure, settings};

pub(super) use query::{BrokerQuery, watermarks};
use topic_config::{config_of, properties_of};

/// How long what is known about a topic is taken for true, as in Kafka's own clients.
const FRESH: Duration = Duration::from_secs(300);

/// The facts about a topic that an append needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownTopic {
    pub(super) partitions: u32,
    pub(super) max_record_size: u64,
    pub(super) max_message_bytes: u64,
}

/// The known topics, and the clients that ask.
pub(super) struct KafkaCatalog {
    admin: AdminClient<KafkaClientContext>,
    /// Asks for metadata and offsets as a consumer, because a producer that asks makes topics.
    asker: Arc<BaseConsumer<KafkaClientContext>>,
    known: Mutex<BTreeMap<Topic, (Duration, KnownTopic)>>,
}

impl KafkaCatalog {
    pub(super) fn new(config: &KafkaConfig) -> Result<Self, LogError> {
        let refused = |error: KafkaError| failure::of_settings(&error);
        let context = KafkaClientContext::default;
        let admin = AdminClient::from_config_and_context(&settings::client(config), context());
        let asker = BaseConsumer::from_config_and_context(&settings::consumer(config), context());
        Ok(Self {
            admin: admin.map_err(refused)?,
            asker: Arc::new(asker.map_err(refused)?),
            known: Mutex::default(),
        })
    }

    /// Looks again before the topic is used next. Returns what was taken for true.
    pub(super) fn forget(&self, topic: &Topic) -> Option<KnownTopic> {
        self.known.lock().remove(topic).map(|(_, known)| known)
    }
}

/// Asks for the number of partitions of a topic.
fn count_partitions(
    asker: &BaseConsumer<KafkaClientContext>,
    query: &BrokerQuery,
    topic: &Topic,
) -> Result<u32, LogError> {
    poll_events(asker);
    let count = query.ask("a query of a topic", Some(topic), |limit| {
        let metadata = asker.fetch_metadata(Some(topic.as_str()), limit)?;
        let mut topics = metadata.topics().iter();
        let found = topics.find(|found| found.name() == topic.as_str());
        let error = found.and_then(MetadataTopic::error);
        match error.map(|error| KafkaError::MetadataFetch(error.into())) {
            // A topic that is not there is an answer: most of those who ask want to know just that.
            Some(error) if failure::is_no_topic(&error) => Ok(0),
            Some(error) => Err(error),
            None => Ok(found.map_or(0, |found| found.partitions().len())),
        }
    })?;
    match u32::try_from(count) {
        Ok(0) | Err(_) => Err(LogError::UnknownTopic {
            topic: topic.clone(),
        }),
        Ok(count) => Ok(count),
    }
}

impl KafkaInner {
    fn admin_options(&self) -> AdminOptions {
        AdminOptions::new()
            .request_timeout(Some(self.config.request_timeout))
            .operation_timeout(Some(self.config.request_timeout))
    }

    /// Waits for the administrator a little longer than the client itself does.
    async fn administer<T>(
        &self,
        doing: &'static str,
        topic: Option<&Topic>,
        call: impl Future<Output = KafkaResult<T>>,
    ) -> Result<T, LogError> {
        let limit = self.config.request_timeout + Duration::from_secs(1);
        match self.clock.within(limit, call).await {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => Err(self.config.failed(doing, topic, &error)),
            None => Err(self.away(self.late())),
        }
    }

    /// The facts about a topic that an append needs; asked for where they are not known lately.
    pub(super) async fn known(&self, topic: &Topic) -> Result<KnownTopic, LogError> {
        let now = self.clock.elapsed();
        if let Some((when, known)) = self.catalog.known.lock().get(topic)
            && now.saturating_sub(*when) < FRESH
        {
            return Ok(*known);
        }
        let partitions = self.partitions(topic).await?;
        let config = match self.configuration(topic).await {
            Ok(entries) => config_of(partitions, &entries),
            // A client that may write may lack the right to describe; then Kafka's own limit is assumed.
            Err(LogError::Refused { .. } | LogError::Forbidden { .. }) => {
                config_of(partitions, &BTreeMap::new())
            }
            Err(error) => return Err(error),
        };
        let known = KnownTopic {
            partitions,
            max_record_size: config.max_record_size,
            max_message_bytes: config.max_record_size + settings::OVERHEAD,
        };
        self.catalog
            .known
            .lock()
            .insert(topic.clone(), (now, known));
        Ok(known)
    }

    async fn partitions(&self, topic: &Topic) -> Result<u32, LogError> {
        let (asker, query) = (self.asker(), self.query());
        let asked = topic.clone();
        self.ask("kafka-metadata", move || {
            count_partitions(&asker, &query, &asked)
        })
        .await
    }

    /// The settings of a topic, by name, with whether they were set for it.
    async fn configuration(
        &self,
        topic: &Topic,
    ) -> Result<BTreeMap<String, (String, bool)>, LogError> {
        const DOING: &str = "a query of the settings of a topic";
        let specifier = ResourceSpecifier::Topic(topic.as_str());
        let options = self.admin_options();
        let call = self.catalog.admin.describe_configs([&specifier], &options);
        let mut found = self.administer(DOING, Some(topic), call).await?;
        let resource = match found.pop() {
            Some(Ok(resource)) => resource,
            Some(Err(code)) => {
                let error = KafkaError::AdminOp(code);
                return Err(self.config.failed(DOING, Some(topic), &error));
            }
            None => return Err(self.away("an empty answer")),
        };
        let entries = resource.entries.into_iter().filter_map(|entry| {
            let own = entry.source == ConfigSource::DynamicTopic;
            Some((entry.name, (entry.value?, own)))
        });
        Ok(entries.collect())
    }

    pub(super) async fn create_topic(
        &self,
        topic: &Topic,
        config: TopicConfig,
    ) -> Result<(), LogError> {
        let refused = |why: String| LogError::TopicConfig {
            topic: topic.clone(),
            why,
        };
        let count = i32::try_from(config.partitions)
            .ok()
            .filter(|count| *count > 0);
        let count = count.ok_or_else(|| refused("it needs at least one partition".to_owned()))?;
        let properties = properties_of(&config);
        let copies = self
            .config
            .replication
            .map_or(-1, |copies| i32::try_from(copies).unwrap_or(i32::MAX));
        let mut new = NewTopic::new(topic.as_str(), count, TopicReplication::Fixed(copies));
        for (name, value) in &properties {
            new = new.set(name, value);
        }
        let options = self.admin_options();
        let call = self.catalog.admin.create_topics([&new], &options);
        let made = self.administer("a new topic", None, call).await?.pop();
        self.catalog.forget(topic);
        match made {
            Some(Ok(_)) => {
                self.await_topic(topic).await?;
                self.await_leaders(topic, count).await
            }
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {
                // Somebody else may have made it this very moment.
                self.await_topic(topic).await?;
                self.adapt_topic(topic, &config, &properties).await?;
                self.await_leaders(topic, count).await
            }
            Some(Err((_, code))) if is_about_settings(code) => Err(refused(code.to_string())),
            Some(Err((_, code))) => match failure::meaning(code) {
                failure::Meaning::Refusal => Err(LogError::Refused {
                    doing: "a new topic",
                    why: failure::refusal(code),
                }),
                failure::Meaning::NoAnswer
                | failure::Meaning::NoTopic
                | failure::Meaning::Stale
                | failure::Meaning::TooLarge => Err(self.away(code.to_string())),
            },
            None => Err(self.away("an empty answer")),
        }
    }

    /// Waits until the broker that we ask knows of a topic that was just made.
    async fn await_topic(&self, topic: &Topic) -> Result<(), LogError> {
        let until = self.clock.elapsed() + self.config.request_timeout;
        loop {
            match self.known(topic).await {
                Err(LogError::UnknownTopic { .. }) if self.clock.elapsed() < until => {
                    self.clock.sleep(Duration::from_millis(20)).await;
                }
                known => return known.map(|_| ()),
            }
        }
    }

    /// Gives a topic that is there already these settings.
    async fn adapt_topic(
        &self,
        topic: &Topic,
        config: &TopicConfig,
        properties: &[(&'static str, String)],
    ) -> Result<(), LogError> {
        let partitions = self.partitions(topic).await?;
        if partitions != config.partitions {
            return Err(LogError::TopicConfig {
                topic: topic.clone(),
                why: format!(
                    "it has {partitions} partitions and cannot have {}",
                    config.partitions
                ),
            });
        }
        let found = self.configuration(topic).await?;
        let is_so = |(name, value): &(&'static str, String)| {
            found.get(*name).is_some_and(|(is, _)| is == value)
        };
        if properties.iter().all(is_so) {
            return Ok(());
        }
        // The request replaces all settings of the topic, so those that others made go along.
        let mut all: BTreeMap<&str, &str> = found
            .iter()
            .filter(|(_, (_, own))| *own)
            .map(|(name, (value, _))| (name.as_str(), value.as_str()))
            .collect();
        all.extend(
            properties
                .iter()
                .map(|(name, value)| (*name, value.as_str())),
        );
        let mut alter = AlterConfig::new(ResourceSpecifier::Topic(topic.as_str()));
        for (name, value) in all {
            alter = alter.set(name, value);
        }
        let options = self.admin_options();
        let call = self.catalog.admin.alter_configs([&alter], &options);
        let altered = self.administer("new settings of a topic", Some(topic), call);
        let altered = altered.await?.pop();
        self.catalog.forget(topic);
        match altered {
            Some(Ok(_)) => self.await_settings(topic, config).await,
            Some(Err((_, code))) => Err(LogError::TopicConfig {
                topic: topic.clone(),
                why: code.to_string(),
            }),
            None => Err(self.away("an empty answer")),
        }
    }

    /// Waits until new settings are what a look at the topic shows.
    async fn await_settings(&self, topic: &Topic, config: &TopicConfig) -> Result<(), LogError> {
        let until = self.clock.elapsed() + self.config.request_timeout;
        loop {
            let found = self.configuration(topic).await?;
            let is_so = config_of(config.partitions, &found) == *config;
            if is_so || self.clock.elapsed() >= until {
                return Ok(());
            }
            self.clock.sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn topics(&self) -> Result<Vec<Topic>, LogError> {
        let (asker, config) = (self.asker(), self.config.clone());
        self.ask("kafka-topics", move || {
            poll_events(&asker);
            let metadata = asker.fetch_metadata(None, config.request_timeout);
            let metadata =
                metadata.map_err(|error| config.failed("a list of topics", None, &error))?;
            // Topics that the broker keeps for itself are nobody's.
            let names = metadata.topics().iter().map(MetadataTopic::name);
            let mut topics: Vec<Topic> = names
                .filter(|name| !name.starts_with("__"))
                .filter_map(|name| Topic::new(name).ok())
                .collect();
            topics.sort();
            Ok(topics)
        })
        .await
    }

    pub(super) async fn describe(&self, topic: &Topic) -> Result<TopicDescription, LogError> {
        let count = self.partitions(topic).await?;
        let config = config_of(count, &self.configuration(topic).await?);
        let (asker, query) = (self.asker(), self.query());
        let asked = topic.clone();
        let partitions = self
            .ask("kafka-describe", move || {
                let numbers = 0..i32::try_from(count).unwrap_or(i32::MAX);
                numbers
                    .map(|number| {
                        let at = TopicPartition::new(asked.clone(), number);
                        let (start, end) = watermarks(&asker, &query, &at)?;
                        Ok(PartitionDescription {
                            partition: Partition(number),
                            start,
                            end,
                        })
                    })
                    .collect::<Result<Vec<_>, LogError>>()
            })
            .await?;
        Ok(TopicDescription {
            topic: topic.clone(),
            config,
            partitions,
        })
    }

    /// Refuses a partition that the topic does not have.
    pub(super) async fn check_partition(&self, at: &TopicPartition) -> Result<(), LogError> {
        let known = self.known(&at.topic).await?;
        let is_there = u32::try_from(at.partition.0).is_ok_and(|number| number < known.partitions);
        if is_there {
            return Ok(());
        }
        Err(LogError::UnknownPartition {
            at: at.clone(),
            partitions: known.partitions,
        })
    }
}

/// Whether an error says that a topic cannot be like that.
fn is_about_settings(code: RDKafkaErrorCode) -> bool {
    [
        RDKafkaErrorCode::InvalidPartitions,
        RDKafkaErrorCode::InvalidReplicationFactor,
        RDKafkaErrorCode::InvalidReplicaAssignment,
        RDKafkaErrorCode::InvalidConfig,
        RDKafkaErrorCode::InvalidRequest,
        RDKafkaErrorCode::InvalidTopic,
        RDKafkaErrorCode::PolicyViolation,
    ]
    .contains(&code)
}
