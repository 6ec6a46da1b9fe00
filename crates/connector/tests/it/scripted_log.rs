//! A log in front of another one, whose commits fail to order. It counts what is committed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tidegate_core::dead_letter::name;
use tidegate_core::{GroupName, Mutex, Offset, Topic};
use tidegate_log::{
    Append, Batch, Commit, Committed, Fence, GroupSnapshot, Join, Lag, Log, LogError, LogFuture,
    Read, RecordPosition, Session, SessionEvent, TopicConfig, TopicDescription, TopicPartition,
};

/// A fault of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitFault {
    /// It is refused.
    Refuse,
    /// It is not made, and no answer comes.
    LoseRequest,
    /// It is made, and no answer comes.
    LoseAnswer,
    /// It is not made, and the session is over.
    EndSession,
    /// The process is killed before it.
    DieBefore,
    /// The process is killed so long after it was begun, or behind it at the latest.
    DieWithin(Duration),
}

/// Ends this process as kill -9 does.
fn die() {
    kill_process(getpid(), Signal::KILL).unwrap();
}

#[derive(Debug, Default)]
struct CommitScript {
    /// Faults of the next commits that bring records, or whose records were written before.
    faults: VecDeque<CommitFault>,
    /// Faults of the next appends of hand-offs.
    append_faults: VecDeque<CommitFault>,
    /// The group that appended a hand-off whose offset is still to be committed.
    handed_off: Option<GroupName>,
    /// Hand-offs that were appended, and how many of them a fault waits for.
    hand_offs: usize,
    fails_behind: usize,
    /// Told when a session has lost partitions, or its end.
    on_lost: Option<fn()>,
    /// A topic that is not there as far as commits go.
    missing: Option<Topic>,
    /// Records of a partition before this offset are not there any more, as far as polls go.
    removed: Option<(TopicPartition, Offset)>,
    /// Partitions whose next records cannot be read, as far as polls go.
    damaged: Vec<TopicPartition>,
    /// Records of this partition are not handed out, and nobody says why.
    withheld: Option<TopicPartition>,
    /// Whether there is no room for records of commits.
    is_full: bool,
    /// How often partitions were assigned.
    assigned: usize,
    /// The largest commit that is taken.
    max_commit: Option<usize>,
    /// Groups of commits, with the offset of partition 0.
    commits: Vec<(GroupName, Option<i64>)>,
    failed: usize,
}

impl CommitScript {
    /// Refuses records for which there is no room, or no topic.
    fn refuses(&mut self, records: &[Append]) -> Result<(), LogError> {
        if self.is_full && !records.is_empty() {
            self.failed += 1;
            return Err(LogError::Full { used: 1, limit: 1 });
        }
        let missing = self.missing.clone();
        if let Some(topic) = missing
            && records.iter().any(|append| append.topic == topic)
        {
            self.failed += 1;
            return Err(LogError::UnknownTopic { topic });
        }
        Ok(())
    }
}

/// A log in front of another one.
#[derive(Debug, Clone)]
pub(crate) struct ScriptedLog {
    beneath: Arc<dyn Log>,
    script: Arc<Mutex<CommitScript>>,
}

impl ScriptedLog {
    pub(crate) fn new(beneath: &Arc<dyn Log>) -> Self {
        Self {
            beneath: Arc::clone(beneath),
            script: Arc::default(),
        }
    }

    /// The next commit that brings records fails like this.
    pub(crate) fn fail_next(&self, fault: CommitFault) {
        self.script.lock().faults.push_back(fault);
    }

    /// The first commit behind so many hand-offs fails like this.
    pub(crate) fn fail_behind(&self, hand_offs: usize, fault: CommitFault) {
        let mut script = self.script.lock();
        script.fails_behind = hand_offs;
        script.faults.push_back(fault);
    }

    /// The next append of a hand-off fails like this.
    pub(crate) fn fail_next_append(&self, fault: CommitFault) {
        self.script.lock().append_faults.push_back(fault);
    }

    /// Tells when a session loses partitions, or is over.
    pub(crate) fn on_lost(&self, tell: fn()) {
        self.script.lock().on_lost = Some(tell);
    }

    /// Commits with records for this topic fail from now on, as if it was not there; or none any more.
    pub(crate) fn set_missing(&self, topic: Option<Topic>) {
        self.script.lock().missing = topic;
    }

    /// Polls find no records of this partition before this offset from now on, and say so once.
    pub(crate) fn remove_before(&self, at: &TopicPartition, offset: Offset) {
        self.script.lock().removed = Some((at.clone(), offset));
    }

    /// The next records of this partition cannot be read.
    pub(crate) fn damage(&self, at: &TopicPartition) {
        self.script.lock().damaged.push(at.clone());
    }

    /// Polls hand out nothing of this partition any more.
    pub(crate) fn withhold(&self, at: &TopicPartition) {
        self.script.lock().withheld = Some(at.clone());
    }

    /// Commits with more bytes to be written are refused.
    pub(crate) fn set_max_commit(&self, bytes: usize) {
        self.script.lock().max_commit = Some(bytes);
    }

    /// Whether commits with records find no room.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.script.lock().is_full = is_full;
    }

    /// How often partitions were assigned to somebody.
    pub(crate) fn assigned(&self) -> usize {
        self.script.lock().assigned
    }

    /// How many commits failed.
    pub(crate) fn failed(&self) -> usize {
        self.script.lock().failed
    }

    /// The offsets of partition 0 that a group has committed, in this order.
    pub(crate) fn commits_of(&self, group: &GroupName) -> Vec<i64> {
        let script = self.script.lock();
        let own = script.commits.iter().filter(|(found, _)| found == group);
        own.filter_map(|(_, next)| *next).collect()
    }
}

#[derive(Debug)]
struct ScriptedSession {
    beneath: Arc<dyn Session>,
    group: GroupName,
    script: Arc<Mutex<CommitScript>>,
    /// Whether it said that records are not there any more.
    has_told: AtomicBool,
}

impl ScriptedSession {
    fn tell_lost<T>(&self, answer: &Result<T, LogError>, is_lost: bool) {
        let is_over = matches!(
            answer,
            Err(LogError::Closed | LogError::Stopped { .. } | LogError::Fenced { .. })
        );
        let tell = self.script.lock().on_lost;
        if let Some(tell) = tell.filter(|_| is_lost || is_over) {
            tell();
        }
    }

    /// The error in place of records that are not there any more.
    fn removed_in(&self, event: &SessionEvent) -> Option<LogError> {
        let removed = self.script.lock().removed.clone();
        let (SessionEvent::Records { batch, .. }, Some((at, start))) = (event, removed) else {
            return None;
        };
        let asked = batch.records.first()?.offset;
        (batch.at == at && asked < start).then_some(LogError::OutOfRange {
            at,
            asked,
            start,
            end: start,
        })
    }

    /// Whether these records are not to be seen; an error if that is to be told.
    fn hides(&self, event: &SessionEvent) -> Result<bool, LogError> {
        let mut script = self.script.lock();
        if let SessionEvent::Assigned(assignments) = event {
            script.assigned += assignments.len();
        }
        let SessionEvent::Records { batch, .. } = event else {
            return Ok(false);
        };
        if let Some(index) = script.damaged.iter().position(|at| *at == batch.at) {
            let at = script.damaged.remove(index);
            script.withheld = Some(at.clone());
            let from = batch.records[0].offset;
            let to = batch.next;
            return Err(LogError::Damaged { at, from, to });
        }
        Ok(script.withheld.as_ref() == Some(&batch.at))
    }

    /// The fault of a commit, if it has one.
    fn fault(&self, commit: &Commit) -> Result<Option<CommitFault>, LogError> {
        let mut script = self.script.lock();
        let size: usize = commit.appends.iter().map(|a| a.record.size()).sum();
        if let Some(limit) = script.max_commit.filter(|limit| size > *limit) {
            script.failed += 1;
            let (size, limit) = (size as u64, limit as u64);
            return Err(LogError::CommitTooLarge { size, limit });
        }
        script.refuses(&commit.appends)?;
        // Another consumer's commit may come while the hand-off is on its way.
        let is_own = |group: &mut GroupName| *group == self.group;
        let was_handed_off = script.handed_off.take_if(is_own).is_some();
        let has_hand_offs = was_handed_off && script.hand_offs >= script.fails_behind;
        let fault = match commit.appends.is_empty() && !has_hand_offs {
            true => None,
            false => script.faults.pop_front(),
        };
        script.failed += usize::from(fault.is_some());
        Ok(fault)
    }
}

/// The group that hands a record off; none if it is no hand-off.
fn group_of(append: &Append) -> Option<GroupName> {
    let header = append.record.headers.get(name::GROUP)?;
    GroupName::new(str::from_utf8(header).ok()?).ok()
}

fn unknown() -> LogError {
    LogError::OutcomeUnknown {
        doing: "the commit",
        why: "on purpose".to_owned(),
    }
}

impl Session for ScriptedSession {
    fn poll(&self) -> LogFuture<'_, SessionEvent> {
        Box::pin(async move {
            loop {
                let polled = self.beneath.poll().await;
                let is_lost = matches!(&polled, Ok(SessionEvent::Lost(_)));
                self.tell_lost(&polled, is_lost);
                let event = polled?;
                if self.hides(&event)? {
                    continue;
                }
                let Some(asked) = self.removed_in(&event) else {
                    return Ok(event);
                };
                if !self.has_told.swap(true, Ordering::Relaxed) {
                    return Err(asked);
                }
            }
        })
    }

    fn release<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.beneath.release(partitions)
    }

    fn pause<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.beneath.pause(partitions)
    }

    fn resume<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        self.beneath.resume(partitions)
    }

    fn seek<'a>(
        &'a self,
        at: &'a TopicPartition,
        fence: Fence,
        offset: Offset,
    ) -> LogFuture<'a, ()> {
        self.beneath.seek(at, fence, offset)
    }

    fn commit(&self, commit: Commit) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async move {
            let first = commit.offsets.iter().find(|one| one.at.partition.0 == 0);
            let next = first.map(|one| one.next.0);
            match self.fault(&commit)? {
                Some(CommitFault::EndSession) => {
                    self.beneath.close().await?;
                    return Err(LogError::Closed);
                }
                Some(CommitFault::Refuse) => {
                    let topic = commit.appends[0].topic.clone();
                    return Err(LogError::UnknownTopic { topic });
                }
                Some(CommitFault::LoseRequest) => return Err(unknown()),
                Some(CommitFault::LoseAnswer) => {
                    self.beneath.commit(commit).await?;
                    return Err(unknown());
                }
                Some(CommitFault::DieBefore) => die(),
                Some(CommitFault::DieWithin(wait)) => {
                    std::thread::spawn(move || {
                        std::thread::sleep(wait);
                        die();
                    });
                    self.beneath.commit(commit).await?;
                    die();
                    return Err(unknown());
                }
                None => {}
            }
            let made = self.beneath.commit(commit).await;
            self.tell_lost(&made, false);
            let made = made?;
            let mut script = self.script.lock();
            script.commits.push((self.group.clone(), next));
            Ok(made)
        })
    }

    fn lag(&self) -> LogFuture<'_, Vec<Lag>> {
        self.beneath.lag()
    }

    fn close(&self) -> LogFuture<'_, ()> {
        self.beneath.close()
    }
}

impl Log for ScriptedLog {
    fn cluster(&self) -> &str {
        self.beneath.cluster()
    }

    fn is_shared(&self) -> bool {
        self.beneath.is_shared()
    }

    fn create_topic<'a>(&'a self, topic: &'a Topic, config: TopicConfig) -> LogFuture<'a, ()> {
        self.beneath.create_topic(topic, config)
    }

    fn topics(&self) -> LogFuture<'_, Vec<Topic>> {
        self.beneath.topics()
    }

    fn describe<'a>(&'a self, topic: &'a Topic) -> LogFuture<'a, TopicDescription> {
        self.beneath.describe(topic)
    }

    fn append(&self, records: Vec<Append>) -> LogFuture<'_, Vec<RecordPosition>> {
        Box::pin(async move {
            let fault = {
                let mut script = self.script.lock();
                let groups: Vec<GroupName> = records.iter().filter_map(group_of).collect();
                let is_one = !groups.is_empty();
                if is_one {
                    script.refuses(&records)?;
                }
                let fault = match is_one {
                    true => script.append_faults.pop_front(),
                    false => None,
                };
                if fault.is_none() {
                    script.hand_offs += groups.len();
                    script.handed_off = groups.into_iter().next().or(script.handed_off.take());
                }
                script.failed += usize::from(fault.is_some());
                fault
            };
            match fault {
                None => self.beneath.append(records).await,
                Some(CommitFault::LoseAnswer) => {
                    self.beneath.append(records).await?;
                    Err(unknown())
                }
                Some(_) => Err(unknown()),
            }
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

    fn group_books<'a>(
        &'a self,
        asked: &'a [(GroupName, Topic)],
    ) -> LogFuture<'a, Vec<GroupSnapshot>> {
        self.beneath.group_books(asked)
    }

    fn groups(&self) -> LogFuture<'_, Vec<GroupName>> {
        self.beneath.groups()
    }

    fn forget_group<'a>(&'a self, group: &'a GroupName) -> LogFuture<'a, ()> {
        self.beneath.forget_group(group)
    }

    fn join(&self, join: Join) -> LogFuture<'_, Arc<dyn Session>> {
        Box::pin(async move {
            let group = join.group.clone();
            let beneath = self.beneath.join(join).await?;
            let script = Arc::clone(&self.script);
            let session: Arc<dyn Session> = Arc::new(ScriptedSession {
                beneath,
                group,
                script,
                has_told: AtomicBool::new(false),
            });
            Ok(session)
        })
    }
}
