//! The local log itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::env::{Clock, Env, Spawn};
use tidegate_core::{GroupName, Offset, Topic};

use super::group::{CommitNumber, MemberId, Subscription};
use super::members::GroupMembers;
use super::reader::{described, existing};
use super::session::LocalSession;
use super::storage::{RecordStorage, Write};
use crate::error::LogError;
use crate::group_snapshot::GroupSnapshot;
use crate::port::{
    Append, Batch, Committed, Join, Log, LogFuture, Read, RecordPosition, Session, StartAt,
};
use crate::record::TopicPartition;
use crate::topic::{TopicConfig, TopicDescription};

/// How long to rest after being woken for nothing, so that a storage that wakes too often costs time
/// and not the whole processor.
pub(super) const SPURIOUS_WAKE_PAUSE: Duration = Duration::from_millis(5);

/// A log within this process, over a [`RecordStorage`].
///
/// It starts no task but one for each commit that the storage does not finish at once. It keeps no time
/// but that of its calls: a partition that is not let go in time changes hands at the next call of any
/// member.
///
/// Cloning gives another handle on the same log.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// # runtime.block_on(async {
/// use std::sync::Arc;
/// use tidegate_core::{GroupName, Topic, env::Env};
/// use tidegate_log::local::LocalLog;
/// use tidegate_log::{Append, EmbeddedConfig, EmbeddedStorage, SessionEvent, Join, Log, Record, TopicConfig};
///
/// let env = Env::system();
/// let config = EmbeddedConfig { journal_size: 1 << 20, ..EmbeddedConfig::new(dir.path()) };
/// let storage = Arc::new(EmbeddedStorage::open(&env, config)?);
/// let log = LocalLog::new(storage.clone(), &env);
/// let orders = Topic::new("orders")?;
/// log.create_topic(&orders, TopicConfig::new(1)).await?;
/// log.append(vec![Append::new(orders.clone(), Record::new("placed"))]).await?;
///
/// let session = log.join(Join::new(GroupName::new("billing")?, vec![orders])).await?;
/// assert!(matches!(session.poll().await?, SessionEvent::Assigned(_)));
/// assert!(matches!(session.poll().await?, SessionEvent::Records { .. }));
/// log.end_sessions();
/// storage.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
pub struct LocalLog<S> {
    inner: Arc<Inner>,
    storage: Arc<S>,
}

pub(super) struct Inner {
    pub(super) storage: Arc<dyn RecordStorage>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) spawn: Arc<dyn Spawn>,
    state: Mutex<LocalState>,
    /// Held while a group is registered or forgotten, so that no join is undone by a forgetting that
    /// began before it.
    registry: tokio::sync::Mutex<()>,
    /// Counts records without key and partition.
    unkeyed: AtomicU32,
}

#[derive(Default)]
pub(super) struct LocalState {
    groups: BTreeMap<GroupName, GroupMembers>,
    last_member: u64,
    last_commit: CommitNumber,
    is_closed: bool,
}

impl LocalState {
    /// The next commit's number.
    pub(super) fn next_commit_number(&mut self) -> CommitNumber {
        self.last_commit += 1;
        self.last_commit
    }

    /// A group that somebody joined.
    pub(super) fn members(&mut self, name: &GroupName) -> Result<&mut GroupMembers, LogError> {
        if self.is_closed {
            return Err(LogError::Closed);
        }
        self.groups.get_mut(name).ok_or(LogError::Closed)
    }
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, LocalState> {
        // No step leaves the state half changed when it panics: decisions are made on values first.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives each record its partition, or says which topic or partition is not there, or what cannot be
    /// held.
    pub(super) fn place(&self, mut appends: Vec<Append>) -> Result<Vec<Append>, LogError> {
        let mut known: BTreeMap<Topic, u32> = BTreeMap::new();
        for append in &mut appends {
            let partitions = match known.get(&append.topic) {
                Some(partitions) => *partitions,
                None => {
                    let found = described(&*self.storage, &append.topic)?;
                    known.insert(found.topic, found.config.partitions);
                    found.config.partitions
                }
            };
            let count = || self.unkeyed.fetch_add(1, Ordering::Relaxed);
            let partition = append.choose_partition(partitions, count)?;
            append.partition = Some(partition);
        }
        Ok(appends)
    }

    /// Waits until every commit of these partitions that began before now has ended.
    pub(super) async fn wait_for_commits(
        &self,
        name: &GroupName,
        partitions: &[TopicPartition],
    ) -> Result<(), LogError> {
        let before = self.state().next_commit_number();
        loop {
            let commit_ended = {
                let mut state = self.state();
                if state.is_closed {
                    return Err(LogError::Closed);
                }
                // Nobody joined it in this life, so nobody commits.
                let Ok(members) = state.members(name) else {
                    return Ok(());
                };
                Arc::clone(&members.commit_ended)
            };
            let mut notified = std::pin::pin!(commit_ended.notified());
            notified.as_mut().enable();
            let waits = match self.state().members(name) {
                Ok(members) => partitions
                    .iter()
                    .any(|at| members.group.is_under_way(at, before)),
                Err(_) => false,
            };
            if !waits {
                return Ok(());
            }
            notified.await;
        }
    }

    /// Those of these partitions in which no member of the group has begun.
    fn not_begun(&self, group: &GroupName, partitions: &[TopicPartition]) -> Vec<TopicPartition> {
        let mut state = self.state();
        let members = state.members(group).ok();
        let has_begun = |at: &TopicPartition| {
            members
                .as_ref()
                .is_some_and(|members| members.has_begun(at))
        };
        let new = partitions.iter().filter(|at| !has_begun(at));
        new.cloned().collect()
    }

    fn check_open(&self) -> Result<(), LogError> {
        if self.state().is_closed {
            return Err(LogError::Closed);
        }
        Ok(())
    }
}

impl<S: RecordStorage + 'static> LocalLog<S> {
    /// A log over a storage. Nothing is started.
    #[must_use]
    pub fn new(storage: Arc<S>, env: &Env) -> Self {
        let inner = Inner {
            storage: Arc::<S>::clone(&storage),
            clock: Arc::clone(&env.clock),
            spawn: Arc::clone(&env.spawn),
            state: Mutex::default(),
            registry: tokio::sync::Mutex::new(()),
            unkeyed: AtomicU32::new(0),
        };
        Self {
            inner: Arc::new(inner),
            storage,
        }
    }

    /// The storage of the records.
    #[must_use]
    pub fn storage(&self) -> &Arc<S> {
        &self.storage
    }

    /// Ends every session and answers [`LogError::Closed`] from now on. Calls under way on the
    /// storage end as the storage wants. Calling twice changes nothing.
    pub fn end_sessions(&self) {
        let groups = {
            let mut state = self.inner.state();
            state.is_closed = true;
            std::mem::take(&mut state.groups)
        };
        for members in groups.into_values() {
            members.notify_all();
        }
    }

    /// Asks every member of a group to let everything go, as a broker does when members come and
    /// go.
    pub fn rebalance(&self, group: &GroupName) {
        self.with_members(group, |members, now| members.group.revoke_all(now));
    }

    /// Takes everything from the `nth` member of a group without asking. A broker does so with a member
    /// it has not heard of for too long. The member is told at its next poll, and takes its share
    /// again. Says whether there is such a member.
    pub fn expel(&self, group: &GroupName, nth: usize) -> bool {
        let mut is_there = false;
        self.with_members(group, |members, now| {
            let member = members.group.members().nth(nth);
            is_there = member.is_some();
            member.map_or_else(Default::default, |member| members.group.expire(member, now))
        });
        is_there
    }

    fn with_members(
        &self,
        name: &GroupName,
        act: impl FnOnce(&mut GroupMembers, Duration) -> super::group::Reassignment,
    ) {
        let now = self.inner.clock.elapsed();
        if let Ok(members) = self.inner.state().members(name) {
            let outcome = act(members, now);
            members.apply(outcome);
        }
    }

    async fn read_waiting(&self, mut read: Read) -> Result<Batch, LogError> {
        let inner = &self.inner;
        existing(&*inner.storage, &read.at)?;
        let until = inner.clock.elapsed().saturating_add(read.wait);
        let mut was_woken = false;
        loop {
            inner.check_open()?;
            let batch = inner.storage.read(&read).await?;
            let has_moved = batch.next != read.from;
            if !batch.records.is_empty() {
                return Ok(batch);
            }
            if has_moved {
                // Nothing but a hole: what is behind it may be there already.
                read.from = batch.next;
                continue;
            }
            let left = until.saturating_sub(inner.clock.elapsed());
            if left.is_zero() {
                return Ok(batch);
            }
            if std::mem::take(&mut was_woken) {
                inner.clock.sleep(SPURIOUS_WAKE_PAUSE.min(left)).await;
            }
            tokio::select! {
                biased;
                woken = inner.storage.wait_for(&read.at, read.from) => {
                    woken?;
                    was_woken = true;
                }
                () = inner.clock.sleep(left) => {}
            }
        }
    }

    async fn enter(&self, join: Join) -> Result<Arc<dyn Session>, LogError> {
        let inner = &self.inner;
        let _registering = inner.registry.lock().await;
        inner.check_open()?;
        let mut partitions = Vec::new();
        let mut counts = BTreeMap::new();
        for topic in join.all_topics() {
            let found = described(&*inner.storage, topic)?;
            counts.insert(topic.clone(), found.config.partitions);
            let numbers = found.partitions.iter().map(|found| found.partition);
            partitions.extend(numbers.map(|number| TopicPartition::new(topic.clone(), number.0)));
        }
        join.check_partitions(&counts)?;
        let subscription = Subscription {
            topics: join.topics.iter().cloned().collect(),
            co_partitioned: join.co_partitioned.iter().cloned().collect(),
            instance: join.instance.clone(),
            release_timeout: join.release_timeout,
        };
        // Held until this member is in: no other one comes in between.
        if let Ok(members) = inner.state().members(&join.group)
            && let Some(topic) = members.group.conflict(&subscription)
        {
            return Err(LogError::TopicConfig {
                topic: topic.clone(),
                why: "another member of the group reads it together with other topics".to_owned(),
            });
        }
        let topics: Vec<Topic> = join.all_topics().cloned().collect();
        inner.storage.register_group(&join.group, &topics).await?;
        if join.start == StartAt::Latest {
            // Where another member has begun, it may be at work on what would be skipped.
            inner.wait_for_commits(&join.group, &partitions).await?;
            let new = inner.not_begun(&join.group, &partitions);
            inner.storage.skip_to_end(&join.group, &new).await?;
        }
        let now = inner.clock.elapsed();
        let mut state = inner.state();
        if state.is_closed {
            return Err(LogError::Closed);
        }
        state.last_member += 1;
        let member = MemberId(state.last_member);
        let members = state.groups.entry(join.group.clone());
        let members = members
            .or_insert_with_key(|name| GroupMembers::new(name.clone(), inner.storage.clone()));
        let wake = members.add(member, &join);
        let outcome = members.group.join(member, subscription, partitions, now);
        members.apply(outcome);
        drop(state);
        Ok(Arc::new(LocalSession::new(
            Arc::clone(inner),
            member,
            join,
            wake,
        )))
    }

    async fn forget(&self, group: &GroupName) -> Result<(), LogError> {
        let unjoined = self.unjoined(|name, _| name == group).await;
        let _unjoined = match unjoined {
            Err(LogError::InUse { why, .. }) => {
                return Err(LogError::Refused {
                    doing: "to forget a group",
                    why: format!("`{group}`: {why}"),
                });
            }
            unjoined => unjoined?,
        };
        self.inner.storage.forget_group(group).await
    }

    /// How many members a group has.
    pub(crate) fn member_count(&self, group: &GroupName) -> usize {
        let mut state = self.inner.state();
        let members = state.members(group);
        members.map_or(0, |members| members.group.members().count())
    }

    /// Makes sure that no group that is meant has members, and that none joins while the answer is held. A group
    /// is meant by its name and the topics that its members read. Commits of members that have left are waited
    /// for.
    ///
    /// # Errors
    /// [`LogError::InUse`] names the first group that has members.
    pub(crate) async fn unjoined(
        &self,
        is_meant: impl Fn(&GroupName, &[TopicPartition]) -> bool,
    ) -> Result<UnjoinedGroups<'_>, LogError> {
        let registering = self.inner.registry.lock().await;
        self.inner.check_open()?;
        let mut meant = Vec::new();
        for (name, members) in &self.inner.state().groups {
            let partitions = members.group.partitions();
            if !is_meant(name, &partitions) {
                continue;
            }
            if members.group.members().next().is_some() {
                return Err(LogError::InUse {
                    what: format!("group `{name}`"),
                    why: "it has members".to_owned(),
                });
            }
            meant.push((name.clone(), partitions));
        }
        // A commit of a member that left must not come after the change.
        for (name, partitions) in &meant {
            self.inner.wait_for_commits(name, partitions).await?;
        }
        Ok(UnjoinedGroups {
            _registering: registering,
        })
    }
}

/// Groups that have no members, and get none while this is held.
pub(crate) struct UnjoinedGroups<'a> {
    _registering: tokio::sync::MutexGuard<'a, ()>,
}

impl<S> Clone for LocalLog<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            storage: Arc::clone(&self.storage),
        }
    }
}

impl<S> fmt::Debug for LocalLog<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalLog({:?})", self.inner.storage)
    }
}

impl<S: RecordStorage + 'static> Log for LocalLog<S> {
    fn cluster(&self) -> &str {
        self.inner.storage.cluster()
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.inner.check_open()?;
            self.inner.storage.create_topic(topic, config).await
        })
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        Box::pin(async move {
            self.inner.check_open()?;
            Ok(self.inner.storage.topics())
        })
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        Box::pin(async move {
            self.inner.check_open()?;
            described(&*self.inner.storage, topic)
        })
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async move {
            self.inner.check_open()?;
            let appends = self.inner.place(records)?;
            if appends.is_empty() {
                return Ok(Vec::new());
            }
            let write = Write {
                appends,
                offsets: Vec::new(),
            };
            self.inner.storage.write(write).await
        })
    }

    fn read(&self, read: Read) -> LogFuture<'_, Batch> {
        Box::pin(self.read_waiting(read))
    }

    fn offset_at<'a>(&'a self, at: &'a TopicPartition, timestamp_ms: u64) -> LogFuture<'a, Offset> {
        Box::pin(async move {
            self.inner.check_open()?;
            existing(&*self.inner.storage, at)?;
            self.inner.storage.offset_at(at, timestamp_ms).await
        })
    }

    fn delete_before<'a>(
        &'a self,
        at: &'a TopicPartition,
        offset: Offset,
    ) -> LogFuture<'a, Offset> {
        Box::pin(async move {
            self.inner.check_open()?;
            existing(&*self.inner.storage, at)?;
            self.inner.storage.delete_before(at, offset).await
        })
    }

    fn committed<'a>(
        &'a self,
        group: &'a GroupName,
        partitions: &'a [TopicPartition],
    ) -> LogFuture<'a, Vec<Option<Committed>>> {
        Box::pin(async move {
            self.inner.check_open()?;
            for at in partitions {
                existing(&*self.inner.storage, at)?;
            }
            self.inner.wait_for_commits(group, partitions).await?;
            let storage = &self.inner.storage;
            Ok(partitions
                .iter()
                .map(|at| storage.committed(group, at))
                .collect())
        })
    }

    fn group_books<'a>(
        &'a self,
        asked: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>> {
        Box::pin(async move {
            self.inner.check_open()?;
            Ok(self.inner.storage.group_books(asked))
        })
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        Box::pin(async move {
            self.inner.check_open()?;
            Ok(self.inner.storage.groups())
        })
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        Box::pin(self.forget(group))
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        Box::pin(self.enter(join))
    }
}
