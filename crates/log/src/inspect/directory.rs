//! The log of a directory that no process answers for.

use std::time::Duration;

use tidegate_core::books::{Audited, ComponentAccount};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding, Topic};

use super::{NAME, OpenLog, OwnedGroup, account, audited, owned};
use crate::embedded::{self, EmbeddedConfig, EmbeddedLog, ScannedPartition, UnknownLoss};
use crate::error::LogError;

/// How often a directory that seems to lack events is looked at, and the wait between two looks:
/// beside a process that writes, events pass from file to file while they are counted.
const LOOKS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The log of a directory that no process answers for, read from its files. To search it, it is opened.
#[derive(Debug)]
pub struct LogDirectory {
    config: EmbeddedConfig,
    env: Env,
    owned: Vec<OwnedGroup>,
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

    /// Counts the log, again while it seems to lack events and somebody has it who cannot be asked.
    async fn count(&self) -> Result<(Vec<embedded::TopicAudit>, Option<UnknownLoss>), LogError> {
        let (disk, dir) = (&*self.env.disk, self.config.dir.as_path());
        let is_held = embedded::lock_holder(disk, dir)?.is_some();
        let look = || {
            Ok((
                embedded::recount(disk, dir)?,
                embedded::unknown_loss(disk, dir)?,
            ))
        };
        let mut last: (Vec<embedded::TopicAudit>, Option<UnknownLoss>) = look()?;
        for _ in 1..LOOKS {
            let is_clean = last.0.iter().all(|found| found.missing.is_empty());
            if (is_clean && last.1.is_none()) || !is_held {
                break;
            }
            self.env.clock.sleep(PAUSE).await;
            last = look()?;
        }
        let (mut counted, loss) = last;
        counted.retain(|found| !owned::has(&self.owned, &found.topic, found.group.as_ref()));
        Ok((counted, loss))
    }
}

impl Component for LogDirectory {
    fn name(&self) -> &str {
        NAME
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            let counted = self.count().await?.0.into_iter();
            Ok(counted
                .map(|found| account(&found.topic, found.group.as_ref(), &found.books))
                .collect())
        })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async {
            let (counted, loss) = self.count().await?;
            Ok(audited(counted, loss.as_ref()))
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let log = EmbeddedLog::open(&self.env, self.config.clone())?;
            let owned = self.owned.clone();
            let open = OpenLog::Embedded { log, owned };
            let found = open.find(id).await;
            open.close().await;
            Ok(found?)
        })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }
}
