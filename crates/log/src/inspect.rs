//! Answers to questions about a log: its books, a recount, where an event is, and how far groups are behind.

mod administration;
mod directory;
mod find;
#[cfg(feature = "kafka")]
mod kafka_accounts;
mod lag;
mod owned;
#[cfg(test)]
#[cfg(feature = "kafka")]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::books::{
    AcceptedEvents, Audited, Books, Bucket, ComponentAccount, ComponentKind, Discrepancy, Place,
};
use tidegate_core::env::{BoxFuture, Clock, Env};
use tidegate_core::{
    Component, EventId, EventLocation, Failure, GroupName, HealthFinding, Shutdown, Topic,
};

pub use directory::LogDirectory;
pub use find::copies_of;
pub use owned::{NoMarks, OwnedAudit, OwnedGroup, SettledMarks};

use crate::embedded::{self, DirectoryAudit, EmbeddedConfig, EmbeddedLog, TopicBooks};
use crate::error::LogError;
#[cfg(feature = "kafka")]
use crate::kafka::KafkaLog;
use crate::options::{LogBackend, LogOptions};
use crate::port::Log;
use crate::topic::TopicConfig;
use find::{Begins, Readers, TopicReader};

/// The name of the log among the components of a process.
const NAME: &str = "log";

/// The name of the journal among the accounts; no topic is called so.
const JOURNAL: &str = "(journal)";

/// A log that is open in this process. Clones are the same log.
#[derive(Debug, Clone)]
pub enum OpenLog {
    /// In a directory.
    Embedded {
        /// The log.
        log: EmbeddedLog,
        /// Groups for which other components answer.
        owned: Vec<OwnedGroup>,
    },
    /// On a cluster.
    #[cfg(feature = "kafka")]
    Kafka {
        /// The log.
        log: KafkaLog,
        /// The part of it that is looked at.
        scope: LogScope,
    },
}

/// The part of a cluster that is looked at: it may hold much that is no business of ours.
#[derive(Debug, Clone, Default)]
pub struct LogScope {
    /// The topics of the configuration.
    pub topics: Vec<Topic>,
    /// The groups of its bindings.
    pub groups: Vec<GroupName>,
    /// Which of them read which topic.
    pub bindings: BTreeSet<(Topic, GroupName)>,
    /// Groups for which other components answer.
    pub owned: Vec<OwnedGroup>,
}

impl OpenLog {
    /// Opens the log. `answers_at` is the address at which this process answers for a directory, for
    /// whoever finds it held.
    ///
    /// # Errors
    /// The directory is held or cannot be used, or no broker answers.
    pub async fn open(
        options: &LogOptions,
        env: &Env,
        answers_at: Option<String>,
    ) -> Result<Self, LogError> {
        match &options.backend {
            LogBackend::Embedded(config) => {
                let mut config = (**config).clone();
                config.answers_at = answers_at;
                let log = EmbeddedLog::open(env, config)?;
                let owned = options.owned.clone();
                Ok(Self::Embedded { log, owned })
            }
            #[cfg(feature = "kafka")]
            LogBackend::Kafka(config) => {
                let groups = options.bindings.iter().map(|(_, group)| group.clone());
                let groups: BTreeSet<GroupName> = groups.collect();
                let scope = LogScope {
                    topics: options.topics.keys().cloned().collect(),
                    groups: groups.into_iter().collect(),
                    bindings: options.bindings.iter().cloned().collect(),
                    owned: options.owned.clone(),
                };
                let log = KafkaLog::connect((**config).clone(), env.fork("kafka")).await?;
                Ok(Self::Kafka { log, scope })
            }
        }
    }

    /// Looks at the log in a directory without its lock, see [`EmbeddedLog::look`]. None where there is none.
    ///
    /// # Errors
    /// A file cannot be read, or is of another version.
    pub fn look(
        config: EmbeddedConfig,
        owned: Vec<OwnedGroup>,
        env: &Env,
    ) -> Result<Option<Self>, LogError> {
        let log = EmbeddedLog::look(env, config)?;
        Ok(log.map(|log| Self::Embedded { log, owned }))
    }

    /// Opens the log and makes the topics that are missing.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and when a topic cannot be set up like that.
    pub async fn open_with_topics(
        options: &LogOptions,
        env: &Env,
        answers_at: Option<String>,
    ) -> Result<Self, LogError> {
        let opened = Self::open(options, env, answers_at).await?;
        if let Err(error) = opened.make(&options.topics).await {
            opened.close().await;
            return Err(error);
        }
        Ok(opened)
    }

    /// Makes topics. The settings of a topic in the directory follow the configuration. On Kafka others
    /// have a say in them, so those of an existing topic stay.
    async fn make(&self, topics: &BTreeMap<Topic, TopicConfig>) -> Result<(), LogError> {
        match self {
            Self::Embedded { log, .. } => {
                let topics: Vec<_> = topics.clone().into_iter().collect();
                log.storage().create_topics(&topics).await
            }
            #[cfg(feature = "kafka")]
            Self::Kafka { log, .. } => {
                for (topic, config) in topics {
                    match log.describe(topic).await {
                        Err(LogError::UnknownTopic { .. }) => {
                            log.create_topic(topic, config.clone()).await?;
                        }
                        described => drop(described?),
                    }
                }
                Ok(())
            }
        }
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> Arc<dyn Log> {
        match self {
            Self::Embedded { log, .. } => Arc::new(log.clone()),
            #[cfg(feature = "kafka")]
            Self::Kafka { log, .. } => Arc::new(log.clone()),
        }
    }

    /// The books of all topics and groups, without a recount.
    async fn accounts(&self) -> Result<Vec<ComponentAccount>, LogError> {
        match self {
            Self::Embedded { log, owned } => {
                let books = log.storage().books().into_iter();
                let kept = books
                    .filter(|kept| !owned::has(owned, &kept.topic, kept.group.as_ref()))
                    .map(|kept| account(&kept.topic, kept.group.as_ref(), &kept.books));
                let forgotten = log.storage().forgotten();
                Ok(kept
                    .chain(forgotten.iter().map(forgotten_account))
                    .collect())
            }
            #[cfg(feature = "kafka")]
            Self::Kafka { log, scope } => kafka_accounts::of_kafka(log, scope).await,
        }
    }

    /// The records that all topics ever took. Groups read them, and have none of their own.
    async fn accepted(&self) -> Result<Vec<AcceptedEvents>, LogError> {
        match self {
            Self::Embedded { log, .. } => Ok(accepted(&log.storage().books())),
            #[cfg(feature = "kafka")]
            Self::Kafka { log, scope } => {
                let mut all = Vec::new();
                for topic in &scope.topics {
                    let described = match log.describe(topic).await {
                        Err(LogError::UnknownTopic { .. }) => continue,
                        described => described?,
                    };
                    let partitions = described.partitions.iter();
                    let ends = partitions.map(|found| (found.partition, found.end));
                    all.push(AcceptedEvents::of_partitions(topic.as_str(), ends));
                }
                Ok(all)
            }
        }
    }

    /// Counts all topics and compares that with the books.
    async fn audit(&self) -> Result<Vec<Audited>, LogError> {
        match self {
            Self::Embedded { log, owned } => {
                let mut audit = log.storage().audit_files().await?;
                let is_ours = |found: &embedded::TopicAudit| {
                    !owned::has(owned, &found.topic, found.group.as_ref())
                };
                audit.topics.retain(is_ours);
                Ok(audited(audit))
            }
            #[cfg(feature = "kafka")]
            Self::Kafka { log, scope } => kafka_accounts::audit_kafka(log, scope).await,
        }
    }

    /// Where an event was seen; where it is now comes last.
    async fn find(&self, id: EventId) -> Result<Vec<EventLocation>, LogError> {
        let begins = Begins {
            readers: self.readers(),
            open: self,
        };
        find::find(&*self.log(), id, self.scope().as_ref(), &begins).await
    }

    /// Which groups are known to read which topics, where they began, and what they have posted.
    fn readers(&self) -> Readers {
        match self {
            Self::Embedded { log, .. } => {
                let books = log.storage().books().into_iter();
                let groups = books.filter_map(|kept| {
                    let reader = TopicReader {
                        begins: kept.begins,
                        posted: kept.books,
                    };
                    Some(((kept.topic, kept.group?), reader))
                });
                groups.collect()
            }
            // A broker knows only of groups that have committed something, so that others are known by the
            // configuration alone.
            #[cfg(feature = "kafka")]
            Self::Kafka { scope, .. } => {
                let bindings = scope.bindings.iter().cloned();
                bindings
                    .map(|binding| (binding, TopicReader::default()))
                    .collect()
            }
        }
    }

    /// The part that is looked at, where that is not everything.
    fn scope(&self) -> Option<LogScope> {
        match self {
            Self::Embedded { .. } => None,
            #[cfg(feature = "kafka")]
            Self::Kafka { scope, .. } => Some(scope.clone()),
        }
    }

    /// A log that has no room is ready for everything but appends, which are refused by name.
    async fn health(&self) -> HealthFinding {
        match self {
            Self::Embedded { log, .. } => {
                let storage = log.storage();
                match (storage.stopped(), storage.no_room(), storage.damage()) {
                    (Some(why), ..) => HealthFinding::down(why),
                    (None, Some(why), _) => {
                        HealthFinding::degraded(format!("appends are refused: {why}"))
                    }
                    (None, None, Some(why)) => HealthFinding::degraded(format!("damaged: {why}")),
                    (None, None, None) => HealthFinding::up(),
                }
            }
            // A broker that answers is there.
            #[cfg(feature = "kafka")]
            Self::Kafka { log, .. } => match log.topics().await {
                Ok(_) => HealthFinding::up(),
                Err(error) => HealthFinding::down(error.to_string()),
            },
        }
    }

    /// Ends every session, and returns when the directory is whole and free for the next process.
    pub async fn close(&self) {
        match self {
            Self::Embedded { log, .. } => log.close().await,
            #[cfg(feature = "kafka")]
            Self::Kafka { .. } => {}
        }
    }
}

/// The log as a component of its process. Its background work is the gauges of lag.
#[derive(Debug)]
pub struct LogComponent {
    open: OpenLog,
    clock: Arc<dyn Clock>,
}

impl LogComponent {
    /// The component of this log.
    #[must_use]
    pub fn new(open: OpenLog, env: &Env) -> Self {
        let clock = Arc::clone(&env.clock);
        Self { open, clock }
    }
}

impl Component for LogComponent {
    fn name(&self) -> &str {
        NAME
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(self.open.accounts().await?) })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(self.open.accepted().await?) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(self.open.audit().await?) })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move { Ok(self.open.find(id).await?) })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(self.open.health())
    }

    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            if matches!(self.open, OpenLog::Embedded { .. }) {
                embedded::telemetry::describe();
            }
            tokio::select! {
                biased;
                () = stop.requested() => {}
                () = lag::watch(&self.open, &*self.clock) => {}
            }
        })
    }

    fn close(&self) -> BoxFuture<'_> {
        Box::pin(self.open.close())
    }
}

/// The name of a topic, or of a group on it, in the books.
fn account_name(topic: &Topic, group: Option<&GroupName>) -> (String, ComponentKind) {
    match group {
        Some(group) => (format!("{group}@{topic}"), ComponentKind::Group),
        None => (topic.to_string(), ComponentKind::Topic),
    }
}

/// The name of the groups on a topic that were forgotten, all of them together; no group is called so.
fn forgotten_name(topic: &Topic) -> String {
    format!("(forgotten)@{topic}")
}

/// The account of the groups on a topic that were forgotten.
fn forgotten_account((topic, books): &(Topic, Books)) -> ComponentAccount {
    ComponentAccount {
        name: forgotten_name(topic),
        kind: ComponentKind::Group,
        account: books.account(),
    }
}

fn account(topic: &Topic, group: Option<&GroupName>, books: &Books) -> ComponentAccount {
    let (name, kind) = account_name(topic, group);
    let account = books.account();
    ComponentAccount {
        name,
        kind,
        account,
    }
}

/// The records that the topics of an embedded log ever took.
fn accepted(kept: &[TopicBooks]) -> Vec<AcceptedEvents> {
    let topics = kept.iter().filter(|kept| kept.group.is_none());
    topics
        .map(|kept| AcceptedEvents::of(kept.topic.as_str(), ComponentKind::Topic, &kept.books))
        .collect()
}

/// The recount of an embedded log, with the loss that is in no books: at least so many events are missing. Bytes
/// that a process may be writing just now are no finding, and are said.
/// A log without topics was audited as well, and has no events.
fn audited(audit: DirectoryAudit) -> Vec<Audited> {
    let DirectoryAudit {
        topics,
        loss,
        findings,
        torn,
        forgotten,
    } = audit;
    let is_empty = topics.is_empty();
    let found = topics.into_iter().map(|found| {
        let (name, kind) = account_name(&found.topic, found.group.as_ref());
        let audited = Audited::new(name, kind, &found.books, &found.recount, found.missing);
        audited.unverifiable(found.unverifiable)
    });
    // Nothing waits for them any more, so there is nothing to count.
    let forgotten = forgotten.into_iter().map(|(topic, books)| {
        let (name, kind) = (forgotten_name(&topic), ComponentKind::Group);
        Audited::new(name, kind, &books, &books, Vec::new())
    });
    let lost = loss.map(|loss| Discrepancy {
        bucket: Bucket::Minute(0),
        place: Place::Queued,
        count: i64::try_from(loss.events).unwrap_or(i64::MAX),
        id: None,
    });
    let is_told = is_empty || lost.is_some() || torn.is_some() || !findings.is_empty();
    let journal = is_told.then(|| {
        let (kind, nothing) = (ComponentKind::Topic, Books::default());
        let missing = lost.into_iter().collect();
        let journal = Audited::new(JOURNAL.to_owned(), kind, &nothing, &nothing, missing);
        let notes = torn.into_iter().map(|torn| torn.message);
        journal.with_findings(findings).with_notes(notes)
    });
    found.chain(forgotten).chain(journal).collect()
}
