//! The embedded log as a whole: groups and sessions over the storage.

use std::sync::Arc;

use tidegate_core::env::Env;

use super::config::EmbeddedConfig;
use super::storage::EmbeddedStorage;
use crate::error::LogError;
use crate::local::LocalLog;

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
pub type EmbeddedLog = LocalLog<EmbeddedStorage>;

impl EmbeddedLog {
    /// Opens the directory, see [`EmbeddedStorage::open`].
    ///
    /// # Errors
    /// As [`EmbeddedStorage::open`].
    pub fn open(env: &Env, config: EmbeddedConfig) -> Result<Self, LogError> {
        let storage = Arc::new(EmbeddedStorage::open(env, config)?);
        Ok(Self::new(storage, env))
    }

    /// Looks at the directory without its lock, see [`EmbeddedStorage::look`]. None where there is no log.
    ///
    /// # Errors
    /// As [`EmbeddedStorage::look`].
    pub fn look(env: &Env, config: EmbeddedConfig) -> Result<Option<Self>, LogError> {
        let storage = EmbeddedStorage::look(env, config)?;
        Ok(storage.map(|storage| Self::new(Arc::new(storage), env)))
    }

    /// Closes the log and its sessions, see [`EmbeddedStorage::close`]. Closing twice changes nothing.
    pub async fn close(&self) {
        self.end_sessions();
        self.storage().close().await;
    }
}
