//! A log that is open in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::books::{Audit, Audited, Books, Component};
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, Env};
use tidegate_core::{EventId, GroupName, Topic};
use tidegate_log::embedded::{Presence, presence};
use tidegate_log::kafka::KafkaLog;
use tidegate_log::{EmbeddedLog, Log, LogError, TopicConfig};

use tidegate_server::log::Located;

use crate::report::say;

use super::find::{Begins, Readers, find, located};
use super::{Backend, Holder, LogSettings, accounts};

/// A log that is open in this process. Clones are the same log.
#[derive(Debug, Clone)]
pub(crate) enum Opened {
    Embedded(EmbeddedLog),
    Kafka { log: KafkaLog, scope: Scope },
}

/// What of a cluster is looked at: it may hold much that is no business of ours.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    /// The topics of the configuration.
    pub(crate) topics: Vec<Topic>,
    /// The groups of its bindings.
    pub(crate) groups: Vec<GroupName>,
    /// Which of them read which topic.
    pub(crate) bindings: BTreeSet<(Topic, GroupName)>,
}

impl Opened {
    /// Opens the log. What the lock file says of us is `answers_at`, if we answer for the
    /// directory.
    pub(crate) async fn open(
        settings: &LogSettings,
        env: &Env,
        answers_at: Option<String>,
    ) -> Result<Self, LogError> {
        Ok(match &settings.backend {
            Backend::Embedded(config) => {
                let mut config = (**config).clone();
                config.holder = answers_at;
                warn_if_emptied(&config.dir)?;
                Self::Embedded(EmbeddedLog::open(env, config)?)
            }
            Backend::Kafka(config) => {
                let topics = settings.topics.iter().map(|(topic, _)| topic.clone());
                let groups = settings.bindings.iter().map(|(_, group)| group.clone());
                let groups: BTreeSet<GroupName> = groups.collect();
                Self::Kafka {
                    scope: Scope {
                        topics: topics.collect(),
                        groups: groups.into_iter().collect(),
                        bindings: settings.bindings.iter().cloned().collect(),
                    },
                    log: KafkaLog::connect((**config).clone(), env.fork("kafka")).await?,
                }
            }
        })
    }

    /// Opens the log and makes the topics that are missing.
    pub(crate) async fn open_with_topics(
        settings: &LogSettings,
        env: &Env,
        answers_at: Option<String>,
    ) -> Result<Self, LogError> {
        let opened = Self::open(settings, env, answers_at).await?;
        if let Err(error) = opened.make(&settings.topics).await {
            opened.close().await;
            return Err(error);
        }
        Ok(opened)
    }

    /// Makes topics. What a topic of the directory is set up like follows the configuration; on Kafka
    /// others have a say in it, so that what is there stays as it is.
    async fn make(&self, topics: &[(Topic, TopicConfig)]) -> Result<(), LogError> {
        let log = match self {
            Self::Embedded(log) => return log.shelf().create_topics(topics).await,
            Self::Kafka { log, .. } => log,
        };
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

    /// The log.
    pub(crate) fn log(&self) -> Arc<dyn Log> {
        match self {
            Self::Embedded(log) => Arc::new(log.clone()),
            Self::Kafka { log, .. } => Arc::new(log.clone()),
        }
    }

    /// The books of all topics and groups, without a recount.
    pub(crate) async fn components(&self) -> Result<Vec<Component>, LogError> {
        match self {
            Self::Embedded(log) => Ok(accounts::of_shelf(log.shelf())),
            Self::Kafka { log, scope } => accounts::of_kafka(log, scope).await,
        }
    }

    /// Counts all topics and compares that with the books.
    pub(crate) async fn audit(&self) -> Result<Audit, LogError> {
        let components: Vec<Audited> = match self {
            Self::Embedded(log) => {
                let audited = log.shelf().audit().await?;
                let loss = log.shelf().unknown_loss();
                let loss = loss.as_ref().map(accounts::unknown_loss);
                let audited = audited.into_iter().map(accounts::audited);
                audited.chain(loss).collect()
            }
            Self::Kafka { log, scope } => accounts::audit_kafka(log, scope).await?,
        };
        Ok(Audit::new(components))
    }

    /// Where an event is; none if no topic has it.
    pub(crate) async fn find(&self, id: EventId) -> Result<Option<Located>, LogError> {
        let (scope, readers) = (self.scope(), self.readers());
        let kafka = match self {
            Self::Embedded(_) => None,
            Self::Kafka { log, .. } => Some(log),
        };
        let posted = self.posted();
        let begins = Begins {
            readers,
            posted,
            kafka,
        };
        let sightings = find(&*self.log(), id, scope.as_ref(), &begins).await?;
        Ok(located(id, sightings))
    }

    /// Which groups are known to read which topics, and where they began.
    pub(super) fn readers(&self) -> Readers {
        match self {
            Self::Embedded(log) => {
                let books = log.shelf().books().into_iter();
                let groups =
                    books.filter_map(|kept| Some(((kept.topic, kept.group?), kept.begins)));
                groups.collect()
            }
            // A broker knows only of groups that have committed something, so that others are known by the
            // configuration alone.
            Self::Kafka { scope, .. } => {
                let bindings = scope.bindings.iter().cloned();
                bindings.map(|binding| (binding, Vec::new())).collect()
            }
        }
    }

    /// What the groups have posted, where the log itself keeps that by place.
    fn posted(&self) -> BTreeMap<(Topic, GroupName), Books> {
        let Self::Embedded(log) = self else {
            return BTreeMap::new();
        };
        let books = log.shelf().books().into_iter();
        let posted = books.filter_map(|kept| Some(((kept.topic, kept.group?), kept.books)));
        posted.collect()
    }

    /// What is looked at, where that is not everything.
    pub(crate) fn scope(&self) -> Option<Scope> {
        match self {
            Self::Embedded(_) => None,
            Self::Kafka { scope, .. } => Some(scope.clone()),
        }
    }

    /// Why the log cannot be used now; none while it can.
    pub(crate) async fn trouble(&self) -> Option<String> {
        match self {
            Self::Embedded(log) => log.shelf().stopped(),
            // A broker that answers is there.
            Self::Kafka { log, .. } => log.topics().await.err().map(|error| error.to_string()),
        }
    }

    /// Why the log takes no appends for now, while everything else goes on.
    pub(crate) fn no_room(&self) -> Option<String> {
        match self {
            Self::Embedded(log) => log.shelf().no_room(),
            Self::Kafka { .. } => None,
        }
    }

    /// Ends every session, and returns when the directory is whole and free for the next process.
    pub(crate) async fn close(&self) {
        if let Self::Embedded(log) = self {
            log.close().await;
        }
    }

    /// Who holds the log in this directory; none if nobody does, or there is no log.
    pub(crate) fn holder(dir: &Path) -> Result<Option<Holder>, LogError> {
        // Whoever looks does not make a lock file where there is none; and whoever emptied a directory
        // has not ended the process that has it.
        if Self::presence(dir)? == Presence::Absent {
            return Ok(None);
        }
        let path = dir.join("lock");
        match SystemDisk.lock(&path) {
            Ok(_free) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let disk: &dyn Disk = &SystemDisk;
                let text = disk.read(&path, 4_096).unwrap_or_default();
                Ok(Holder::of(&LogError::Locked {
                    dir: dir.to_owned(),
                    holder: String::from_utf8_lossy(&text).trim().to_owned(),
                }))
            }
            // Nobody writes to a directory that cannot be written to, or we may not know.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
                ) =>
            {
                Ok(None)
            }
            Err(source) => Err(LogError::Disk {
                doing: "lock",
                path,
                source,
            }),
        }
    }

    /// Whether there is a log in this directory, or was one.
    pub(crate) fn presence(dir: &Path) -> Result<Presence, LogError> {
        presence(&SystemDisk, dir)
    }
}

/// Says so where a new log is about to be made in place of one that is gone.
fn warn_if_emptied(dir: &Path) -> Result<(), LogError> {
    let is_emptied = Opened::presence(dir)? == Presence::Emptied;
    if is_emptied && Opened::holder(dir)?.is_none() {
        say(&format!(
            "a log was opened in `{}` before, and nothing of it is left; a new one is made",
            dir.display()
        ));
    }
    Ok(())
}
