//! A log that can be switched off.

use std::sync::Arc;

use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::{
    Append, Batch, Committed, GroupSnapshot, Join, Log, LogError, LogFuture, Read, RecordPosition,
    Session, TopicConfig, TopicDescription, TopicPartition,
};

/// A log in front of another, which can be switched off.
#[derive(Debug)]
pub(super) struct SwitchedLog {
    beneath: Arc<dyn Log>,
    is_away: std::sync::atomic::AtomicBool,
    pub(super) appends: std::sync::atomic::AtomicU64,
}

impl SwitchedLog {
    pub(super) fn new(beneath: &Arc<dyn Log>) -> Arc<Self> {
        Arc::new(Self {
            beneath: Arc::clone(beneath),
            is_away: false.into(),
            appends: 0.into(),
        })
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.is_away
            .store(is_away, std::sync::atomic::Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), LogError> {
        match self.is_away.load(std::sync::atomic::Ordering::SeqCst) {
            false => Ok(()),
            true => Err(LogError::Login {
                servers: "test".to_owned(),
                why: "wrong password".to_owned(),
                settings: "sasl.password",
            }),
        }
    }
}

impl Log for SwitchedLog {
    fn cluster(&self) -> &str {
        self.beneath.cluster()
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        self.beneath.create_topic(topic, config)
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        Box::pin(async {
            self.check()?;
            self.beneath.topics().await
        })
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        self.beneath.describe(topic)
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async {
            self.check()?;
            self.appends
                .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            self.beneath.append(records).await
        })
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        self.beneath.read(read)
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        self.beneath.offset_at(at, timestamp_ms)
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        self.beneath.delete_before(at, offset)
    }

    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        self.beneath.committed(group, partitions)
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        self.beneath.groups()
    }

    fn group_books<'a>(
        &'a self,
        groups: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>> {
        self.beneath.group_books(groups)
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        self.beneath.forget_group(group)
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        self.beneath.join(join)
    }
}
