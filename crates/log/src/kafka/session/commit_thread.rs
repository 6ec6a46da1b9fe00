//! The commit thread: one commit at a time.
//!
//! Offsets alone are committed as such, those of several callers in one request. Records make it a
//! transaction ([`TransactionalProducer`]). Either way our own fences are asked first and again after every answer that
//! leaves its outcome unknown.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidegate_core::env::Clock;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::commit_order::{self, CommitTicket};
use crate::error::LogError;
use crate::kafka::catalog::{BrokerQuery, watermarks};
use crate::kafka::client_context::KafkaClientContext;
use crate::kafka::failure::{self, Meaning};
use crate::kafka::in_flight::InFlightGuard;
use crate::kafka::produce::{PendingDeliveries, ProduceBatch};
use crate::kafka::{KafkaConfig, KafkaInner, groups};
use crate::port::{OffsetCommit, RecordPosition};
use crate::record::TopicPartition;

use super::commit_entries::{self, Before, CommitEntries, CommitEvidence};
use super::member::GroupMember;
use super::session_cell::SessionCell;
use super::session_state::SessionEnd;
use super::transactional_producer::{SharedProducer, TransactionFailure};

/// How long to wait before a request that may succeed later is made again.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the commit thread looks up from an empty line.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(100);
/// Commits that share one request.
const MAX_COMMITS_PER_REQUEST: usize = 256;

/// The state of a commit, for the caller, which may stop waiting.
pub(super) struct JobState;

impl JobState {
    pub(super) const WAITING: u8 = 0;
    pub(super) const BEGUN: u8 = 1;
    pub(super) const WITHDRAWN: u8 = 2;
}

/// Moves a commit on that still waits; false if it does not wait any more.
fn claim(stage: &AtomicU8, to: u8) -> bool {
    let (waiting, order) = (JobState::WAITING, Ordering::AcqRel);
    let claimed = stage.compare_exchange(waiting, to, order, Ordering::Acquire);
    claimed.is_ok()
}

/// Takes a commit that was not begun out of the line once nobody waits for it any more.
pub(super) struct CancelOnDrop(pub(super) Arc<AtomicU8>);

impl CancelOnDrop {
    /// Whether it was taken out: then it is surely not done.
    pub(super) fn now(&self) -> bool {
        claim(&self.0, JobState::WITHDRAWN)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.now();
    }
}

/// A commit in line.
pub(super) struct CommitJob {
    pub(super) batch: ProduceBatch,
    pub(super) offsets: Vec<OffsetCommit>,
    /// Its tickets among the commits of its partitions.
    pub(super) tickets: Vec<(TopicPartition, CommitTicket)>,
    /// When no further try is begun.
    pub(super) until: Duration,
    pub(super) stage: Arc<AtomicU8>,
    pub(super) reply: oneshot::Sender<Result<Vec<RecordPosition>, LogError>>,
    /// Its place in the line, which it keeps even if nobody waits for it any more.
    pub(super) _place: OwnedSemaphorePermit,
    /// Callers that ask what is committed wait for this one.
    pub(super) _under_way: InFlightGuard,
}

impl CommitJob {
    /// Whether it is still wanted; from here on it cannot be withdrawn. One that was withdrawn is not
    /// done, and those behind it must not be either.
    fn begin(&self) -> bool {
        let begun = claim(&self.stage, JobState::BEGUN);
        if !begun {
            commit_order::fail(&self.tickets);
        }
        begun
    }

    fn answer(self, answer: Result<Vec<RecordPosition>, LogError>) {
        if answer.is_err() {
            commit_order::fail(&self.tickets);
        }
        // The caller may have stopped waiting.
        self.reply.send(answer).ok();
    }

    fn is_offsets_only(&self) -> bool {
        self.batch.records.is_empty()
    }
}

/// The commit thread.
pub(super) struct CommitThread {
    inner: Weak<KafkaInner>,
    member: Arc<GroupMember>,
    cell: Arc<SessionCell>,
    clock: Arc<dyn Clock>,
    config: KafkaConfig,
    line: Receiver<CommitJob>,
    writer: SharedProducer,
    asker: Arc<BaseConsumer<KafkaClientContext>>,
}

impl CommitThread {
    pub(super) fn new(
        inner: &Arc<KafkaInner>,
        member: &Arc<GroupMember>,
        cell: &Arc<SessionCell>,
        line: Receiver<CommitJob>,
        writer: &SharedProducer,
    ) -> Self {
        let clock = Arc::clone(&inner.clock);
        let config = inner.config.clone();
        Self {
            inner: Arc::downgrade(inner),
            member: Arc::clone(member),
            cell: Arc::clone(cell),
            writer: Arc::clone(writer),
            asker: inner.asker(),
            clock,
            config,
            line,
        }
    }

    /// Runs until the session is over.
    pub(super) fn run(mut self) {
        let mut next = None;
        loop {
            let job = match next.take() {
                Some(job) => Ok(job),
                None => self.line.recv_timeout(LOOKUP_INTERVAL),
            };
            match job {
                Ok(job) if !job.begin() => {}
                Ok(job) if self.cell.has_ended() => {
                    let error = over(&self.cell, &job.offsets);
                    job.answer(Err(error));
                }
                Ok(job) if job.is_offsets_only() => {
                    let mut jobs = vec![job];
                    while jobs.len() < MAX_COMMITS_PER_REQUEST {
                        match self.line.try_recv() {
                            Ok(job) if !job.is_offsets_only() => {
                                next = Some(job);
                                break;
                            }
                            Ok(job) if job.begin() => jobs.push(job),
                            Ok(_) => {}
                            Err(_) => break,
                        }
                    }
                    self.commit_offsets(jobs);
                }
                Ok(job) => {
                    let answer = self.transact(&job);
                    job.answer(answer);
                }
                Err(RecvTimeoutError::Timeout) if !self.cell.has_ended() => {
                    let until = self.clock.elapsed() + self.config.request_timeout;
                    self.writer.lock().clean_up(until);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn commit_offsets(&self, mut jobs: Vec<CommitJob>) {
        let until = jobs.iter().map(|job| job.until).max().unwrap_or_default();
        // Once a request had no answer, whatever is said later says nothing about that one.
        let mut unknown = None;
        let mut sent = CommitEntries::new();
        loop {
            jobs = self.look_up(jobs, until, unknown.as_deref(), &sent);
            let (entries, left) = self.enter(jobs, unknown.as_deref());
            jobs = left;
            if jobs.is_empty() {
                return;
            }
            let result = self.request(&entries);
            self.cell.with(|state| {
                state.end_commit(entries.keys());
                match &result {
                    Ok(()) => commit_entries::done(state, &entries),
                    Err(error) if is_answer(error) => {}
                    Err(_) => commit_entries::outcome_unknown(state, &entries),
                }
            });
            self.cell.wake_threads();
            let error = match result {
                Ok(()) => {
                    for job in jobs {
                        job.answer(Ok(Vec::new()));
                    }
                    return;
                }
                Err(error) => error,
            };
            if !is_answer(&error) {
                unknown = Some(error.to_string());
                sent = entries;
            }
            let meaning = failure::code_of(&error).map(failure::meaning);
            if self.clock.elapsed() >= until || meaning == Some(Meaning::Refusal) {
                for job in jobs {
                    job.answer(Err(or_unknown(self.no(&error), unknown.as_deref())));
                }
                return;
            }
            // The same once more: if the first request was done, this one changes nothing.
            self.cell.rest(PAUSE);
        }
    }

    /// Puts the offsets of all commits into one request. Those that may not be made get their answer.
    fn enter(
        &self,
        jobs: Vec<CommitJob>,
        unknown: Option<&str>,
    ) -> (CommitEntries, Vec<CommitJob>) {
        let mut entries = CommitEntries::new();
        let mut left = Vec::new();
        let mut refused = Vec::new();
        self.cell.with(|state| {
            for job in jobs {
                let added = commit_entries::add(state, &mut entries, &job.offsets, &job.tickets);
                match added {
                    Ok(()) => left.push(job),
                    Err(error) => {
                        // Before those behind it are looked at.
                        commit_order::fail(&job.tickets);
                        refused.push((job, error));
                    }
                }
            }
            state.begin_commit(entries.keys());
        });
        for (job, error) in refused {
            job.answer(Err(or_unknown(error, unknown)));
        }
        (entries, left)
    }

    fn request(&self, entries: &CommitEntries) -> Result<(), KafkaError> {
        let consumer = &self.member.consumer;
        // The client knows of a loss before the poll thread has heard of it.
        if consumer.assignment_lost() {
            return Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::AssignmentLost));
        }
        consumer.commit(&commit_entries::list(entries)?, CommitMode::Sync)
    }

    /// The error of a commit of offsets that is given up.
    fn no(&self, error: &KafkaError) -> LogError {
        let why = failure::said(error);
        match failure::code_of(error).map(failure::meaning) {
            Some(Meaning::Refusal) => LogError::Refused {
                doing: "a commit",
                why,
            },
            // Neither done nor lost: the group did not rebalance in time.
            Some(Meaning::Stale) => self.config.away(why),
            Some(Meaning::NoAnswer | Meaning::NoTopic | Meaning::TooLarge) | None => {
                outcome_unknown(why)
            }
        }
    }

    /// Looks up what is not known about the partitions of these commits. Those for which that fails get
    /// their answer, and those that were done by the request `sent`, which all of them were in.
    fn look_up(
        &self,
        jobs: Vec<CommitJob>,
        until: Duration,
        unknown: Option<&str>,
        sent: &CommitEntries,
    ) -> Vec<CommitJob> {
        let mut left = Vec::with_capacity(jobs.len());
        let mut done = BTreeSet::new();
        for job in jobs {
            match self.ask(&job.offsets, until, sent) {
                Ok(found) => {
                    done.extend(found);
                    left.push(job);
                }
                Err(error) => job.answer(Err(or_unknown(error, unknown))),
            }
        }
        if done.is_empty() {
            return left;
        }
        let mut open = Vec::with_capacity(left.len());
        for mut job in left {
            job.offsets.retain(|offset| !done.contains(&offset.at));
            if job.offsets.is_empty() {
                job.answer(Ok(Vec::new()));
            } else {
                open.push(job);
            }
        }
        open
    }

    /// Looks up what is not known about the partitions of these offsets. Returns those for which the
    /// request `sent`, which had no answer, was done.
    fn ask(
        &self,
        offsets: &[OffsetCommit],
        until: Duration,
        sent: &CommitEntries,
    ) -> Result<Vec<TopicPartition>, LogError> {
        let asked = self
            .cell
            .with(|state| commit_entries::to_ask(state, offsets));
        let mut done = Vec::new();
        if asked.is_empty() {
            return Ok(done);
        }
        let query = self.query(until);
        let committed = groups::committed(&self.member.consumer, &query, &asked)?;
        for (at, committed) in asked.iter().zip(committed) {
            let (_, end) = watermarks(&self.asker, &query, at)?;
            self.cell.with(|state| {
                let Some(held) = state.held.get_mut(at) else {
                    return;
                };
                held.seen = held.seen.max(end);
                if commit_entries::learn(held, sent.get(at), committed) {
                    done.push(at.clone());
                }
            });
        }
        Ok(done)
    }

    /// One transaction, done again for as long as only the group has moved and we still own what we
    /// commit.
    fn transact(&mut self, job: &CommitJob) -> Result<Vec<RecordPosition>, LogError> {
        loop {
            self.ask(&job.offsets, job.until, &CommitEntries::new())?;
            let mut entries = CommitEntries::new();
            let before = self.cell.with(|state| {
                commit_entries::add(state, &mut entries, &job.offsets, &job.tickets)?;
                state.begin_commit(entries.keys());
                Ok::<Before, LogError>(commit_entries::before(state, &entries))
            })?;
            let result = self.attempt(job, &before, &entries);
            self.cell.with(|state| {
                state.end_commit(entries.keys());
                match &result {
                    Ok(_) => commit_entries::done(state, &entries),
                    Err(TransactionFailure::Unknown(_)) => {
                        commit_entries::outcome_unknown(state, &entries)
                    }
                    Err(TransactionFailure::Redo | TransactionFailure::Undone(_)) => {}
                }
            });
            self.cell.wake_threads();
            match result {
                Ok(positions) => return Ok(positions),
                Err(TransactionFailure::Redo) => self.cell.rest(PAUSE),
                Err(TransactionFailure::Undone(error)) => return Err(error),
                Err(TransactionFailure::Unknown(why)) => return Err(outcome_unknown(why)),
            }
        }
    }

    fn attempt(
        &mut self,
        job: &CommitJob,
        before: &Before,
        entries: &CommitEntries,
    ) -> Result<Vec<RecordPosition>, TransactionFailure> {
        let offsets = commit_entries::list(entries)
            .map_err(|error| TransactionFailure::Undone(self.no(&error)))?;
        let cell = &self.cell;
        let is_ours = || holds(cell, &job.offsets);
        let mut writer = self.writer.lock();
        let done = writer.write(&self.member, &job.batch, &offsets, job.until, is_ours);
        drop(writer);
        match done {
            Ok(waiting) => self.positions(&waiting, job),
            Err(TransactionFailure::Unknown(why)) => self.find_outcome(before, entries, why, job),
            Err(failure) => Err(failure),
        }
    }

    /// Whether we still own what a commit is about, as far as the client knows.
    fn is_ours(&self, job: &CommitJob) -> bool {
        !self.member.consumer.assignment_lost() && holds(&self.cell, &job.offsets)
    }

    /// How partitions and offsets are asked for until then, with a little time in any case.
    fn query(&self, until: Duration) -> BrokerQuery {
        let left = until.saturating_sub(self.clock.elapsed());
        BrokerQuery::new(&self.clock, &self.config, left.max(LOOKUP_INTERVAL))
    }

    /// Finds out what became of a transaction whose end had no answer. The new producer has ended it one
    /// way or the other, and the group's offsets were in it.
    fn find_outcome(
        &mut self,
        before: &Before,
        entries: &CommitEntries,
        why: String,
        job: &CommitJob,
    ) -> Result<Vec<RecordPosition>, TransactionFailure> {
        let until = self.clock.elapsed() + self.config.request_timeout / 2;
        if entries.is_empty() || !self.writer.lock().clean_up(until) {
            return Err(TransactionFailure::Unknown(why));
        }
        let asked: Vec<TopicPartition> = entries.keys().cloned().collect();
        let query = self.query(until);
        let found = groups::committed(&self.member.consumer, &query, &asked);
        let Ok(found) = found else {
            return Err(TransactionFailure::Unknown(why));
        };
        match (
            commit_entries::trace(before, entries, &found),
            self.writer.lock().last(),
        ) {
            // The new owner of a partition may have done the same work and written the same.
            (CommitEvidence::Done, Some(waiting)) if self.is_ours(job) => {
                self.positions(&waiting, job)
            }
            (CommitEvidence::Undone, _) => Err(TransactionFailure::Undone(self.config.away(why))),
            (CommitEvidence::Done | CommitEvidence::Unknown, _) => {
                Err(TransactionFailure::Unknown(why))
            }
        }
    }

    /// Where the records of a transaction lie that was committed. All were delivered, or it would not
    /// have been.
    fn positions(
        &self,
        waiting: &PendingDeliveries,
        job: &CommitJob,
    ) -> Result<Vec<RecordPosition>, TransactionFailure> {
        let Some(inner) = self.inner.upgrade() else {
            return Err(TransactionFailure::Unknown("the log was closed".to_owned()));
        };
        inner
            .delivered(waiting, job.batch.records.clone())
            .map_err(|error| TransactionFailure::Unknown(error.to_string()))
    }
}

/// Whether all of these are held under the fence they name.
fn holds(cell: &SessionCell, offsets: &[OffsetCommit]) -> bool {
    cell.with(|state| {
        offsets.iter().all(|offset| {
            let held = state.held.get(&offset.at);
            held.is_some_and(|held| held.fence == offset.fence)
        })
    })
}

/// The error of a commit in a session that is over.
pub(super) fn over(cell: &SessionCell, offsets: &[OffsetCommit]) -> LogError {
    let is_replaced = cell.with(|state| state.end == Some(SessionEnd::Replaced));
    match offsets.first() {
        // The member that took our place has what we had.
        Some(offset) if is_replaced => LogError::Fenced {
            at: offset.at.clone(),
        },
        Some(_) | None => LogError::Closed,
    }
}

/// An error says that nothing was changed only if no earlier request is left without an answer.
fn or_unknown(error: LogError, unknown: Option<&str>) -> LogError {
    unknown.map_or(error, |why| outcome_unknown(why.to_owned()))
}

/// The error of a commit that may or may not be done.
pub(super) fn outcome_unknown(why: String) -> LogError {
    LogError::OutcomeUnknown {
        doing: "a commit",
        why,
    }
}

/// Whether an error is an answer of the broker: it did not do it.
fn is_answer(error: &KafkaError) -> bool {
    match failure::code_of(error).map(failure::meaning) {
        Some(Meaning::Refusal | Meaning::Stale) => true,
        Some(Meaning::NoAnswer | Meaning::NoTopic | Meaning::TooLarge) | None => false,
    }
}
