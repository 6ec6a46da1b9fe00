//! A log in front of another one, which decides what becomes of records.

use std::fmt::Debug;
use std::sync::Arc;

use tidegate_core::{GroupName, Offset, Topic};
use tidegate_log::{
    Append, Batch, Committed, GroupSnapshot, Join, Log, LogError, LogFuture, Read, RecordPosition,
    Session, TopicConfig, TopicDescription, TopicPartition,
};

/// The outcomes of records, as [`Log::deliver`] tells them.
pub(crate) type Outcomes = Vec<Result<(), LogError>>;

/// The behavior of a log in front of another.
pub(crate) trait Weather: Send + Sync + Debug {
    /// Delivers records to the log beneath, or not.
    fn deliver<'a>(&'a self, beneath: &'a dyn Log, records: Vec<Append>)
    -> LogFuture<'a, Outcomes>;

    /// Whether the log can be reached at all.
    fn check(&self) -> Result<(), LogError> {
        Ok(())
    }
}

/// A log in front of another one.
#[derive(Debug)]
pub(crate) struct FrontLog<W> {
    pub(crate) beneath: Arc<dyn Log>,
    pub(crate) weather: W,
}

impl<W: Weather> Log for FrontLog<W> {
    fn cluster(&self) -> &str {
        self.beneath.cluster()
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        self.beneath.create_topic(topic, config)
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        Box::pin(async {
            self.weather.check()?;
            self.beneath.topics().await
        })
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        self.beneath.describe(topic)
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        self.beneath.append(records)
    }

    fn deliver(&self, records: Vec<Append>) -> LogFuture<'_, Outcomes> {
        self.weather.deliver(&*self.beneath, records)
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

/// A log that can be switched off, and that can keep a topic from its writers.
#[derive(Debug, Default)]
pub(crate) struct LogSwitch {
    is_away: std::sync::atomic::AtomicBool,
    forbidden: std::sync::Mutex<Option<String>>,
    pub(crate) deliveries: std::sync::atomic::AtomicU64,
}

/// A log with a switch.
pub(crate) type SwitchedLog = FrontLog<LogSwitch>;

impl FrontLog<LogSwitch> {
    pub(crate) fn new(beneath: &Arc<dyn Log>) -> Arc<Self> {
        Arc::new(Self {
            beneath: Arc::clone(beneath),
            weather: LogSwitch::default(),
        })
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        let now = &self.weather.is_away;
        now.store(is_away, std::sync::atomic::Ordering::SeqCst);
    }

    /// Keeps this topic from its writers, as access rules of a broker do.
    pub(crate) fn forbid(&self, topic: Option<&str>) {
        *self.weather.forbidden.lock().unwrap() = topic.map(str::to_owned);
    }
}

impl Weather for LogSwitch {
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

    fn deliver<'a>(
        &'a self,
        beneath: &'a dyn Log,
        records: Vec<Append>,
    ) -> LogFuture<'a, Outcomes> {
        Box::pin(async move {
            self.check()?;
            self.deliveries
                .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let forbidden = self.forbidden.lock().unwrap().clone();
            let is_kept = |one: &Append| forbidden.as_deref() == Some(one.topic.as_str());
            let kept: Vec<bool> = records.iter().map(is_kept).collect();
            if !kept.contains(&true) {
                return beneath.deliver(records).await;
            }
            // As a broker does: each record has its own answer.
            let topics: Vec<Topic> = records.iter().map(|one| one.topic.clone()).collect();
            let allowed = records.into_iter().filter(|one| !is_kept(one)).collect();
            let mut delivered = beneath.deliver(allowed).await?.into_iter();
            let of = |(is_kept, topic): (bool, Topic)| match is_kept {
                false => delivered.next().unwrap(),
                true => Err(LogError::Forbidden {
                    topic,
                    doing: "an append",
                    why: "test".to_owned(),
                }),
            };
            Ok(kept.into_iter().zip(topics).map(of).collect())
        })
    }
}
