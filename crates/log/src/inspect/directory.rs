//! The log of a directory that no process answers for.

use std::time::Duration;

use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding, Topic};

use super::{NAME, OpenLog, OwnedGroup, accepted, account, audited, forgotten_account, owned};
use crate::embedded::{self, EmbeddedConfig, ScannedPartition};
use crate::error::LogError;

/// How often a directory that seems to lack events is looked at, and the wait between two looks:
/// beside a process that writes, events pass from file to file while they are counted.
const LOOKS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The log of a directory that no process answers for, read from its files. Nothing is written.
#[derive(Debug)]
pub struct LogDirectory {
    config: EmbeddedConfig,
    env: Env,
    owned: Vec<OwnedGroup>,
    is_lock_tried: bool,
}

impl LogDirectory {
    /// The log of this directory.
    #[must_use]
    pub fn new(config: EmbeddedConfig, env: &Env) -> Self {
        let env = env.fork("log-directory");
        Self {
            config,
            env,
            owned: Vec::new(),
            is_lock_tried: true,
        }
    }

    /// Leaves groups out for which other components answer.
    #[must_use]
    pub fn without(mut self, owned: Vec<OwnedGroup>) -> Self {
        self.owned = owned;
        self
    }

    /// Tells the event of every record of a topic that can be read. Gives nothing where there is no such
    /// topic.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn scan_topic(
        &self,
        topic: &Topic,
        seen: &mut dyn FnMut(EventId),
    ) -> Result<Option<Vec<ScannedPartition>>, LogError> {
        embedded::scan_topic(&*self.env.disk, &self.config.dir, topic, seen)
    }

    /// Asks for no lock, and so not whether somebody has the directory.
    #[must_use]
    pub fn without_lock(mut self) -> Self {
        self.is_lock_tried = false;
        self
    }

    /// Counts the log, again while it seems to lack events and somebody may have it who cannot be asked.
    async fn count(&self) -> Result<embedded::DirectoryAudit, LogError> {
        let (disk, dir) = (&*self.env.disk, self.config.dir.as_path());
        let is_held = !self.is_lock_tried || embedded::lock_holder(disk, dir)?.is_some();
        let letters = &self.config.dead_letters;
        let look = || embedded::audit_directory(disk, dir, letters).map(Option::unwrap_or_default);
        let mut last = look()?;
        for _ in 1..LOOKS {
            let is_clean = last.topics.iter().all(|found| found.missing.is_empty());
            let is_whole = last.loss.is_none() && last.findings.is_empty() && last.torn.is_none();
            if (is_clean && is_whole) || !is_held {
                break;
            }
            self.env.clock.sleep(PAUSE).await;
            last = look()?;
        }
        last.topics
            .retain(|found| !owned::has(&self.owned, &found.topic, found.group.as_ref()));
        // Of what a process is writing just now nothing is known yet.
        if !is_held {
            last.findings.extend(last.torn.take());
        }
        Ok(last)
    }
}

impl Component for LogDirectory {
    fn name(&self) -> &str {
        NAME
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            let counted = self.count().await?;
            let topics = counted.topics.iter();
            let kept =
                topics.map(|found| account(&found.topic, found.group.as_ref(), &found.books));
            Ok(kept
                .chain(counted.forgotten.iter().map(forgotten_account))
                .collect())
        })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async {
            let (disk, dir) = (&*self.env.disk, self.config.dir.as_path());
            Ok(accepted(&embedded::books(disk, dir)?))
        })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(audited(self.count().await?)) })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let looked = OpenLog::look(self.config.clone(), self.owned.clone(), &self.env)?;
            let Some(open) = looked else {
                return Ok(Vec::new());
            };
            let found = open.find(id).await;
            open.close().await;
            Ok(found?)
        })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }
}
