//! A log that answers otherwise where a test says so.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::{
    Append, Batch, Commit, Committed, Fence, GroupSnapshot, Join, Lag, Log, LogError, LogFuture,
    Read, RecordPosition, Session, SessionEvent, TopicConfig, TopicDescription, TopicPartition,
};

/// The answer to a poll of a member; none where the log is asked.
pub(crate) type Poll = Arc<dyn Fn(&str) -> Option<LogError> + Send + Sync>;

/// Changes what is read.
pub(crate) type Alter = Arc<dyn Fn(&mut Batch) + Send + Sync>;

/// Says at a step of a stage whether it dies there: it hears no answer any more.
pub(crate) type Gate = Arc<dyn Fn(&'static str) -> bool + Send + Sync>;

async fn pass(gate: &Gate, step: &'static str) {
    if gate(step) {
        std::future::pending::<()>().await;
    }
}

/// A log with another poll, with other records, and with an end at one of its calls.
pub(crate) struct WrappedLog {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) gate: Gate,
    pub(crate) poll: Poll,
    pub(crate) alter: Alter,
}

impl WrappedLog {
    pub(crate) fn new(log: Arc<dyn Log>) -> Self {
        Self {
            log,
            gate: Arc::new(|_| false),
            poll: Arc::new(|_| None),
            alter: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for WrappedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappedLog({:?})", self.log)
    }
}

impl Log for WrappedLog {
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
        Box::pin(async move {
            let mut batch = self.log.read(read).await?;
            (self.alter)(&mut batch);
            pass(&self.gate, "changelog read").await;
            Ok(batch)
        })
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

    fn group_books<'a>(
        &'a self,
        asked: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>> {
        self.log.group_books(asked)
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        self.log.groups()
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        self.log.forget_group(group)
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        let (log, poll) = (Arc::clone(&self.log), Arc::clone(&self.poll));
        let gate = Arc::clone(&self.gate);
        Box::pin(async move {
            let member = join.instance.clone().unwrap_or_default();
            let session = log.join(join).await?;
            let wrapped = WrappedSession {
                session,
                member,
                poll,
                gate,
            };
            Ok(Arc::new(wrapped) as Arc<dyn Session>)
        })
    }
}

struct WrappedSession {
    session: Arc<dyn Session>,
    member: String,
    poll: Poll,
    gate: Gate,
}

impl fmt::Debug for WrappedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappedSession({:?})", self.session)
    }
}

impl Session for WrappedSession {
    fn poll(&self) -> LogFuture<'_, SessionEvent> {
        Box::pin(async move {
            match (self.poll)(&self.member) {
                Some(error) => Err(error),
                None => {
                    let event = self.session.poll().await?;
                    pass(&self.gate, "event taken").await;
                    Ok(event)
                }
            }
        })
    }

    fn release<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.session.release(partitions)
    }

    fn pause<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.session.pause(partitions)
    }

    fn resume<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.session.resume(partitions)
    }

    fn seek<'a>(
        &'a self,
        at: &'a TopicPartition,
        fence: Fence,
        offset: Offset,
    ) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.session.seek(at, fence, offset).await?;
            pass(&self.gate, "position set").await;
            Ok(())
        })
    }

    fn commit(&self, commit: Commit) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async move {
            pass(&self.gate, "before the commit").await;
            let done = self.session.commit(commit).await?;
            pass(&self.gate, "behind the commit").await;
            Ok(done)
        })
    }

    fn lag(&self) -> LogFuture<'_, Vec<Lag>> {
        self.session.lag()
    }

    fn close(&self) -> LogFuture<'_, ()> {
        self.session.close()
    }
}
