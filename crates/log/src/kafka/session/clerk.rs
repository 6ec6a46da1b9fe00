//! The commit thread: one commit at a time.
//!
//! Offsets alone are committed as such, those of several callers in one request. Records make it a
//! transaction ([`Writer`]). Either way our own fences are asked first and again after every answer that
//! leaves room for doubt.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidegate_core::env::Clock;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::LogError;
use crate::kafka::catalog::{Look, watermarks};
use crate::kafka::ear::Ear;
use crate::kafka::failure::{self, Meaning};
use crate::kafka::produce::{Parcel, Waiting};
use crate::kafka::under_way::UnderWay;
use crate::kafka::{Inner, KafkaConfig, groups};
use crate::port::{Join, OffsetCommit, Position};
use crate::record::TopicPartition;
use crate::turn::{self, Turn};

use super::board::Board;
use super::desk::End;
use super::entries::{self, Before, Entries, Trace};
use super::member::Member;
use super::writer::{Failure, Writer};

/// How long to wait before a request that may succeed later is made again.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the clerk looks up from an empty line.
const LOOK_UP: Duration = Duration::from_millis(100);
/// Commits that share one request.
const SHARE: usize = 256;

/// Where a commit stands, for whoever waits for it and may stop waiting.
pub(super) struct Stage;

impl Stage {
    pub(super) const WAITING: u8 = 0;
    pub(super) const BEGUN: u8 = 1;
    pub(super) const WITHDRAWN: u8 = 2;
}

/// Takes a commit that was not begun out of the line once nobody waits for it any more.
pub(super) struct Withdraw(pub(super) Arc<AtomicU8>);

impl Withdraw {
    /// Whether it was taken out: then it is surely not done.
    pub(super) fn now(&self) -> bool {
        let withdrawn = self.0.compare_exchange(
            Stage::WAITING,
            Stage::WITHDRAWN,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        withdrawn.is_ok()
    }
}

impl Drop for Withdraw {
    fn drop(&mut self) {
        self.now();
    }
}

/// A commit in line.
pub(super) struct Job {
    pub(super) parcel: Parcel,
    pub(super) offsets: Vec<OffsetCommit>,
    /// Its turns among the commits of its partitions.
    pub(super) turns: Vec<(TopicPartition, Turn)>,
    /// When no further try is begun.
    pub(super) until: Duration,
    pub(super) stage: Arc<AtomicU8>,
    pub(super) reply: oneshot::Sender<Result<Vec<Position>, LogError>>,
    /// Its place in the line, which it keeps even if nobody waits for it any more.
    pub(super) _place: OwnedSemaphorePermit,
    /// Whoever asks what is committed waits for this one.
    pub(super) _under_way: UnderWay,
}

impl Job {
    /// Whether it is still wanted; from here on it cannot be withdrawn. One that was withdrawn is not
    /// done, and those behind it must not be either.
    fn begin(&self) -> bool {
        let begun = self.stage.compare_exchange(
            Stage::WAITING,
            Stage::BEGUN,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if begun.is_err() {
            turn::fail(&self.turns);
        }
        begun.is_ok()
    }

    fn answer(self, answer: Result<Vec<Position>, LogError>) {
        if answer.is_err() {
            turn::fail(&self.turns);
        }
        // Whoever asked may have stopped waiting.
        self.reply.send(answer).ok();
    }

    fn is_offsets_only(&self) -> bool {
        self.parcel.records.is_empty()
    }
}

/// The commit thread.
pub(super) struct Clerk {
    inner: Weak<Inner>,
    member: Arc<Member>,
    board: Arc<Board>,
    clock: Arc<dyn Clock>,
    config: KafkaConfig,
    line: Receiver<Job>,
    writer: Writer,
    asker: Arc<BaseConsumer<Ear>>,
}

impl Clerk {
    pub(super) fn new(
        inner: &Arc<Inner>,
        member: &Arc<Member>,
        board: &Arc<Board>,
        line: Receiver<Job>,
        join: &Join,
        transactional_id: String,
    ) -> Self {
        let clock = Arc::clone(&inner.clock);
        let config = inner.config.clone();
        Self {
            inner: Arc::downgrade(inner),
            member: Arc::clone(member),
            board: Arc::clone(board),
            writer: Writer::new(
                &config,
                (Arc::clone(&clock), Arc::clone(&inner.spawn)),
                transactional_id,
                join.session_timeout,
            ),
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
                None => self.line.recv_timeout(LOOK_UP),
            };
            match job {
                Ok(job) if !job.begin() => {}
                Ok(job) if self.board.is_over() => {
                    let error = over(&self.board, &job.offsets);
                    job.answer(Err(error));
                }
                Ok(job) if job.is_offsets_only() => {
                    let mut jobs = vec![job];
                    while jobs.len() < SHARE {
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
                Ok(job) => self.commit_records(job),
                Err(RecvTimeoutError::Timeout) if !self.board.is_over() => {
                    let until = self.clock.elapsed() + self.config.request_timeout;
                    self.writer.clean_up(until);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn commit_offsets(&self, mut jobs: Vec<Job>) {
        let until = jobs.iter().map(|job| job.until).max().unwrap_or_default();
        // Once a request had no answer, whatever is said later says nothing about that one.
        let mut doubt = None;
        let mut sent = Entries::new();
        loop {
            jobs = self.look_up(jobs, until, doubt.as_deref(), &sent);
            let (entries, left) = self.enter(jobs, doubt.as_deref());
            jobs = left;
            if jobs.is_empty() {
                return;
            }
            let result = self.request(&entries);
            self.board.with(|desk| {
                desk.end_commit(entries.keys());
                match &result {
                    Ok(()) => entries::done(desk, &entries),
                    Err(error) if is_answer(error) => {}
                    Err(_) => entries::unsure(desk, &entries),
                }
            });
            self.board.stir();
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
                doubt = Some(error.to_string());
                sent = entries;
            }
            let meaning = failure::code_of(&error).map(failure::meaning);
            if self.clock.elapsed() >= until || meaning == Some(Meaning::Refusal) {
                for job in jobs {
                    job.answer(Err(doubted(self.no(&error), doubt.as_deref())));
                }
                return;
            }
            // The same once more: if the first request was done, this one changes nothing.
            self.board.rest(PAUSE);
        }
    }

    /// Puts the offsets of all commits into one request. Those that may not be made get their answer.
    fn enter(&self, jobs: Vec<Job>, doubt: Option<&str>) -> (Entries, Vec<Job>) {
        let mut entries = Entries::new();
        let mut left = Vec::new();
        let mut refused = Vec::new();
        self.board.with(|desk| {
            for job in jobs {
                let added = entries::add(desk, &mut entries, &job.offsets, &job.turns);
                match added {
                    Ok(()) => left.push(job),
                    Err(error) => {
                        // Before those behind it are looked at.
                        turn::fail(&job.turns);
                        refused.push((job, error));
                    }
                }
            }
            desk.begin_commit(entries.keys());
        });
        for (job, error) in refused {
            job.answer(Err(doubted(error, doubt)));
        }
        (entries, left)
    }

    fn request(&self, entries: &Entries) -> Result<(), KafkaError> {
        let consumer = &self.member.consumer;
        // The client knows of a loss before the driver has heard of it.
        if consumer.assignment_lost() {
            return Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::AssignmentLost));
        }
        consumer.commit(&entries::list(entries)?, CommitMode::Sync)
    }

    /// The error of a commit of offsets that is given up.
    fn no(&self, error: &KafkaError) -> LogError {
        let why = failure::said(error);
        match failure::code_of(error).map(failure::meaning) {
            Some(Meaning::Refusal) => LogError::Refused {
                doing: "a commit",
                why,
            },
            // Neither done nor lost: the group did not settle in time.
            Some(Meaning::Stale) => LogError::Away {
                servers: self.config.bootstrap_servers.clone(),
                why,
            },
            Some(Meaning::NoAnswer | Meaning::NoTopic | Meaning::TooLarge) | None => {
                LogError::Unknown {
                    doing: "a commit",
                    why,
                }
            }
        }
    }

    /// Looks up what is not known about the partitions of these commits. Those for which that fails get
    /// their answer, and those that were done by the request `sent`, which all of them were in.
    fn look_up(
        &self,
        jobs: Vec<Job>,
        until: Duration,
        doubt: Option<&str>,
        sent: &Entries,
    ) -> Vec<Job> {
        let mut left = Vec::with_capacity(jobs.len());
        let mut done = BTreeSet::new();
        for job in jobs {
            match self.ask(&job.offsets, until, sent) {
                Ok(found) => {
                    done.extend(found);
                    left.push(job);
                }
                Err(error) => job.answer(Err(doubted(error, doubt))),
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
        sent: &Entries,
    ) -> Result<Vec<TopicPartition>, LogError> {
        let asked = self.board.with(|desk| entries::to_ask(desk, offsets));
        let mut done = Vec::new();
        if asked.is_empty() {
            return Ok(done);
        }
        let look = self.look(until);
        let committed = groups::committed(&self.member.consumer, &look, &asked)?;
        for (at, committed) in asked.iter().zip(committed) {
            let (_, end) = watermarks(&self.asker, &look, at)?;
            self.board.with(|desk| {
                let Some(held) = desk.held.get_mut(at) else {
                    return;
                };
                held.seen = held.seen.max(end);
                if entries::learn(held, sent.get(at), committed) {
                    done.push(at.clone());
                }
            });
        }
        Ok(done)
    }

    fn commit_records(&mut self, job: Job) {
        let answer = self.transact(&job);
        job.answer(answer);
    }

    /// One transaction, done again for as long as only the group has moved and we still own what we
    /// commit.
    fn transact(&mut self, job: &Job) -> Result<Vec<Position>, LogError> {
        loop {
            self.ask(&job.offsets, job.until, &Entries::new())?;
            let mut entries = Entries::new();
            let before = self.board.with(|desk| {
                entries::add(desk, &mut entries, &job.offsets, &job.turns)?;
                desk.begin_commit(entries.keys());
                Ok::<Before, LogError>(entries::before(desk, &entries))
            })?;
            let result = self.attempt(job, &before, &entries);
            self.board.with(|desk| {
                desk.end_commit(entries.keys());
                match &result {
                    Ok(_) => entries::done(desk, &entries),
                    Err(Failure::Unknown(_)) => entries::unsure(desk, &entries),
                    Err(Failure::Redo | Failure::Undone(_)) => {}
                }
            });
            self.board.stir();
            match result {
                Ok(positions) => return Ok(positions),
                Err(Failure::Redo) => self.board.rest(PAUSE),
                Err(Failure::Undone(error)) => return Err(error),
                Err(Failure::Unknown(why)) => {
                    return Err(LogError::Unknown {
                        doing: "a commit",
                        why,
                    });
                }
            }
        }
    }

    fn attempt(
        &mut self,
        job: &Job,
        before: &Before,
        entries: &Entries,
    ) -> Result<Vec<Position>, Failure> {
        let offsets = entries::list(entries).map_err(|error| Failure::Undone(self.no(&error)))?;
        let board = &self.board;
        let is_ours = || holds(board, &job.offsets);
        let done = self
            .writer
            .write(&self.member, &job.parcel, &offsets, job.until, is_ours);
        match done {
            Ok(waiting) => self.positions(&waiting, job),
            Err(failure) => match failure {
                Failure::Unknown(why) => self.settle(before, entries, why, job),
                Failure::Redo | Failure::Undone(_) => Err(failure),
            },
        }
    }

    /// Whether we still own what a commit is about, as far as the client knows.
    fn is_ours(&self, job: &Job) -> bool {
        !self.member.consumer.assignment_lost() && holds(&self.board, &job.offsets)
    }

    /// How partitions and offsets are asked for until then, with a little time in any case.
    fn look(&self, until: Duration) -> Look {
        Look {
            clock: Arc::clone(&self.clock),
            servers: self.config.bootstrap_servers.clone(),
            limit: until.saturating_sub(self.clock.elapsed()).max(LOOK_UP),
        }
    }

    /// Finds out what became of a transaction whose end had no answer. The new producer has ended it one
    /// way or the other, and the group's offsets were in it.
    fn settle(
        &mut self,
        before: &Before,
        entries: &Entries,
        why: String,
        job: &Job,
    ) -> Result<Vec<Position>, Failure> {
        let until = self.clock.elapsed() + self.config.request_timeout / 2;
        if entries.is_empty() || !self.writer.clean_up(until) {
            return Err(Failure::Unknown(why));
        }
        let asked: Vec<TopicPartition> = entries.keys().cloned().collect();
        let look = self.look(until);
        let found = groups::committed(&self.member.consumer, &look, &asked);
        let Ok(found) = found else {
            return Err(Failure::Unknown(why));
        };
        match (entries::trace(before, entries, &found), self.writer.last()) {
            // Whoever took a partition over may have done the same work and written the same.
            (Trace::Done, Some(waiting)) if self.is_ours(job) => self.positions(&waiting, job),
            (Trace::Undone, _) => Err(Failure::Undone(LogError::Away {
                servers: self.config.bootstrap_servers.clone(),
                why,
            })),
            (Trace::Done | Trace::Unknown, _) => Err(Failure::Unknown(why)),
        }
    }

    /// Where the records of a transaction lie that was committed. All were delivered, or it would not
    /// have been.
    fn positions(&self, waiting: &Waiting, job: &Job) -> Result<Vec<Position>, Failure> {
        let Some(inner) = self.inner.upgrade() else {
            return Err(Failure::Unknown("the log was closed".to_owned()));
        };
        inner
            .delivered(waiting, job.parcel.records.clone())
            .map_err(|error| Failure::Unknown(error.to_string()))
    }
}

/// Whether all of these are held under the fence they name.
fn holds(board: &Board, offsets: &[OffsetCommit]) -> bool {
    board.with(|desk| {
        offsets.iter().all(|offset| {
            let held = desk.held.get(&offset.at);
            held.is_some_and(|held| held.fence == offset.fence)
        })
    })
}

/// The error of a commit in a session that is over.
pub(super) fn over(board: &Board, offsets: &[OffsetCommit]) -> LogError {
    let is_replaced = board.with(|desk| desk.end == Some(End::Replaced));
    match offsets.first() {
        // Whoever took our place has what we had.
        Some(offset) if is_replaced => LogError::Fenced {
            at: offset.at.clone(),
        },
        Some(_) | None => LogError::Closed,
    }
}

/// An error says that nothing was changed only if no earlier request is left without an answer.
fn doubted(error: LogError, doubt: Option<&str>) -> LogError {
    match doubt {
        None => error,
        Some(why) => LogError::Unknown {
            doing: "a commit",
            why: why.to_owned(),
        },
    }
}

/// Whether an error is an answer of the broker: it did not do it.
fn is_answer(error: &KafkaError) -> bool {
    match failure::code_of(error).map(failure::meaning) {
        Some(Meaning::Refusal | Meaning::Stale) => true,
        Some(Meaning::NoAnswer | Meaning::NoTopic | Meaning::TooLarge) | None => false,
    }
}
