//! Config, disk, clock and state of an open log, shared by its threads and callers.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::Topic;
use tidegate_core::env::{Clock, Disk};
use tokio::sync::Notify;

use super::catalog::Catalog;
use super::config::EmbeddedConfig;
use super::secret::LogSecret;
use super::state::{JournalPlace, LogState};
use super::sync_gate::SyncGate;
use super::telemetry;
use crate::error::LogError;

/// Config, disk, clock and state of an open log, shared by its threads and callers.
#[derive(Debug)]
pub(super) struct EmbeddedContext {
    pub(super) config: EmbeddedConfig,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) secret: LogSecret,
    state: Mutex<LogState>,
    catalog: Mutex<Arc<Catalog>>,
    status: Mutex<LogStatus>,
    /// Journal files that may be used again.
    pool: Mutex<Vec<String>>,
    /// Whether the journal is being synced.
    pub(super) sync_gate: SyncGate,
    /// Notified when the maintenance thread has something to do.
    pub(super) wake_maintenance: Notify,
    /// Notified when the maintenance thread has made room.
    pub(super) wake_writer: Notify,
    /// Notified when the log is closed or has stopped, for those who wait for records.
    pub(super) ended: Notify,
}

/// Whether the log takes writes, and how far its checkpoint is.
#[derive(Debug, Default, Clone)]
pub(super) struct LogStatus {
    /// Why it does not take everything.
    pub(super) reasons: BTreeMap<RefusalReason, String>,
    pub(super) is_closed: bool,
    /// Where the journal begins that is still needed.
    pub(super) checkpoint: JournalPlace,
    /// The sequence up to which a checkpoint was written.
    pub(super) checkpoint_sequence: u64,
    /// How many topics the last checkpoint of this process has.
    pub(super) checkpoint_topics: usize,
    /// Bytes of commits that wait for the disk.
    pub(super) queued: u64,
    /// How many look at files that must not be removed meanwhile.
    pub(super) pins: u64,
    /// The first damage that a read or an audit of this process came upon.
    pub(super) damage: Option<String>,
}

/// A reason not to take everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RefusalReason {
    /// The disk failed: nothing is taken any more.
    Stopped,
    /// Records cannot go to their segments for now.
    Full,
    /// The last write to the journal found no room.
    Unwritten,
    /// The result of the start is in no checkpoint yet. Until it is, nothing is written behind it: the next
    /// start would take that for what was there before, and the rest for lost.
    RecoveryPending,
    /// The last append was refused by the log's own limit.
    OverLimit,
}

impl LogStatus {
    /// Why it refuses for this reason; none where it does not.
    pub(super) fn why(&self, reason: RefusalReason) -> Option<&String> {
        self.reasons.get(&reason)
    }

    pub(super) fn is(&self, reason: RefusalReason) -> bool {
        self.why(reason).is_some()
    }

    /// Refuses for this reason, or not any more.
    pub(super) fn set(&mut self, reason: RefusalReason, why: Option<String>) {
        match why {
            Some(why) => self.reasons.insert(reason, why),
            None => self.reasons.remove(&reason),
        };
    }

    /// Why records are refused for want of room.
    pub(super) fn no_room(&self) -> Option<String> {
        let mut reasons = self.reasons.iter();
        let found = reasons.find(|(reason, _)| **reason != RefusalReason::Stopped);
        found.map(|(_, why)| why.clone())
    }
}

impl EmbeddedContext {
    pub(super) fn new(
        config: EmbeddedConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        state: LogState,
        status: LogStatus,
        pool: Vec<String>,
    ) -> Self {
        Self {
            config,
            disk,
            clock,
            catalog: Mutex::new(Arc::new(Catalog::of(&state))),
            secret: state.secret,
            state: Mutex::new(state),
            status: Mutex::new(status),
            pool: Mutex::new(pool),
            sync_gate: SyncGate::default(),
            wake_maintenance: Notify::new(),
            wake_writer: Notify::new(),
            ended: Notify::new(),
        }
    }

    /// The state. A thread that panics while it holds the lock has changed nothing that was not durable.
    pub(super) fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> MutexGuard<'_, LogStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The topics as of now, for those who encode.
    pub(super) fn catalog(&self) -> Arc<Catalog> {
        let catalog = self.catalog.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&catalog)
    }

    /// Brings the catalog up to date with the state.
    pub(super) fn renew_catalog(&self) {
        let renewed = Arc::new(Catalog::of(&self.state()));
        *self.catalog.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
    }

    /// Whether a topic is in a checkpoint, so that damage of the journal cannot take its creation.
    pub(super) fn is_in_checkpoint(&self, topic: &Topic) -> bool {
        let number = self.state().topic(topic).map(|(number, _)| number as usize);
        number.is_some_and(|number| number < self.status().checkpoint_topics)
    }

    pub(super) fn pool(&self) -> MutexGuard<'_, Vec<String>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn topic_dir(&self, topic: &Topic) -> PathBuf {
        super::files::topic_dir(&self.config.dir, topic)
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Refuses whatever changes something, once the log has stopped.
    pub(super) fn check_running(&self) -> Result<(), LogError> {
        match self.status().why(RefusalReason::Stopped) {
            Some(why) => Err(LogError::Stopped { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// The same for those who ask from outside; what was handed over before the end is still done.
    pub(super) fn check_open(&self) -> Result<(), LogError> {
        self.check_running()?;
        if self.status().is_closed {
            return Err(LogError::Closed);
        }
        Ok(())
    }

    /// Refuses whatever goes to the journal before the result of recovery is saved.
    pub(super) fn check_recovery_saved(&self) -> Result<(), LogError> {
        match self.status().why(RefusalReason::RecoveryPending) {
            Some(why) => Err(self.no_space("save the result of recovery in", why.clone())),
            None => Ok(()),
        }
    }

    /// The error of something that the disk has no room for.
    pub(super) fn no_space(&self, doing: &'static str, why: String) -> LogError {
        LogError::Disk {
            doing,
            path: self.config.dir.clone(),
            source: io::Error::new(io::ErrorKind::StorageFull, why),
        }
    }

    /// A sync that fails is final, also when it says that there is no room: what it was to make
    /// durable may be gone, and the next sync would not say so.
    pub(super) fn synced(&self, done: Result<(), LogError>) -> Result<(), LogError> {
        if let Err(error) = &done {
            self.stop(error);
        }
        done
    }

    /// Takes note of damage that a read or an audit came upon: health and log tell it from then on.
    pub(super) fn note_damage(&self, why: &str) {
        telemetry::damage_found();
        let mut status = self.status();
        if status.damage.is_none() {
            tracing::error!(why, dir = %self.config.dir.display(), "the log is damaged; see `tidegate log check`");
            status.damage = Some(why.to_owned());
        }
    }

    /// Takes nothing any more; reads go on.
    pub(super) fn stop(&self, error: &LogError) {
        let mut status = self.status();
        if !status.is(RefusalReason::Stopped) {
            tracing::error!(%error, dir = %self.config.dir.display(), "the log has stopped");
            status.set(RefusalReason::Stopped, Some(error.to_string()));
        }
        drop(status);
        self.wake_writer.notify_one();
        self.ended.notify_waiters();
    }
}
