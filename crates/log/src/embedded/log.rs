//! The embedded log as a whole: groups and sessions over the storage.

use std::sync::Arc;

use tidegate_core::env::Env;
use tidegate_core::{GroupName, Offset, Topic};

use super::config::EmbeddedConfig;
use super::storage::EmbeddedStorage;
use crate::error::LogError;
use crate::local::LocalLog;
use crate::port::{Append, Batch, Committed, Join, Log, LogFuture, Read, RecordPosition, Session};
use crate::record::TopicPartition;
use crate::topic::{TopicConfig, TopicDescription};

/// The log in a directory of this machine.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// # runtime.block_on(async {
/// use tidegate_core::{Topic, env::Env};
/// use tidegate_log::{Append, EmbeddedConfig, EmbeddedLog, Log, Record, TopicConfig};
///
/// let config = EmbeddedConfig { journal_size: 1 << 20, ..EmbeddedConfig::new(dir.path()) };
/// let log = EmbeddedLog::open(&Env::system(), config)?;
/// let orders = Topic::new("orders")?;
/// log.create_topic(&orders, TopicConfig::new(4)).await?;
/// let record = Record::new("placed").key("order-1");
/// let written = log.append(vec![Append::new(orders, record)]).await?;
/// assert_eq!(written[0].offset.0, 0);
/// log.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct EmbeddedLog {
    log: LocalLog,
    storage: Arc<EmbeddedStorage>,
}

impl EmbeddedLog {
    /// Opens the directory, see [`EmbeddedStorage::open`].
    ///
    /// # Errors
    /// As [`EmbeddedStorage::open`].
    pub fn open(env: &Env, config: EmbeddedConfig) -> Result<Self, LogError> {
        let storage = Arc::new(EmbeddedStorage::open(env, config)?);
        let log = LocalLog::new(Arc::clone(&storage) as _, env);
        Ok(Self { log, storage })
    }

    /// What keeps the records: to audit it, and to see how it is.
    #[must_use]
    pub fn storage(&self) -> &Arc<EmbeddedStorage> {
        &self.storage
    }

    /// Closes the log and its sessions, see [`EmbeddedStorage::close`]. Closing twice changes nothing.
    pub async fn close(&self) {
        self.log.close();
        self.storage.close().await;
    }
}

impl Log for EmbeddedLog {
    fn cluster(&self) -> &str {
        self.log.cluster()
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        self.log.create_topic(topic, config)
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        self.log.topics()
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        self.log.describe(topic)
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        self.log.append(records)
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        self.log.read(read)
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        self.log.offset_at(at, timestamp_ms)
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        self.log.delete_before(at, offset)
    }

    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        self.log.committed(group, partitions)
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        self.log.groups()
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        self.log.forget_group(group)
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        self.log.join(join)
    }
}
