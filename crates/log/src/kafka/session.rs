//! A member of a group.
//!
//! ```text
//!  session ── poll, pause, seek … ──▶ cell (state) ◀── records, rebalances ── poll thread ── poll ──▶ client
//!     └────── commit ──▶ commit thread ── offsets, transactions ─────────────────────────────────────────▶ client
//! ```
//!
//! The poll thread is the client's thread: it polls always, whether somebody takes records or not, so that a
//! slow handler never costs the membership. The commit thread does one commit at a time, so
//! that the outcome of each is known before the next. Between them stands the state, a plain value under a
//! lock.

mod commit_entries;
mod commit_thread;
#[cfg(test)]
mod interleavings;
mod member;
mod poll_thread;
mod rebalance;
mod session_cell;
mod session_state;
mod stall;
mod start_offsets;
mod transaction_step;
mod transactional_producer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use tidegate_core::{GroupName, Mutex, Offset};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::commit_order::CommitTickets;
use crate::error::LogError;
use crate::port::{
    Commit, Fence, Join, Lag, LogFuture, OffsetCommit, Read, RecordPosition, Session, SessionEvent,
};
use crate::record::TopicPartition;
use crate::sync;

use super::KafkaInner;
use super::catalog::watermarks;

use commit_thread::{CancelOnDrop, CommitJob, CommitThread, JobState};
use member::GroupMember;
use poll_thread::PollThread;
use session_cell::SessionCell;
use session_state::{SessionEnd, SessionState};
use transactional_producer::TransactionalProducer;

/// Commits that wait in the queue; a later one waits before it is queued.
const MAX_QUEUED_COMMITS: usize = 256;
/// How long leaving a group is waited for.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The sessions of this process that have a name, by group and name.
#[derive(Default)]
pub(super) struct Instances(Mutex<BTreeMap<(GroupName, String), Weak<SessionCell>>>);

/// A member of a group on Kafka.
pub(super) struct KafkaSession {
    inner: Arc<KafkaInner>,
    group: GroupName,
    cell: Arc<SessionCell>,
    jobs: mpsc::Sender<CommitJob>,
    line: Arc<Semaphore>,
    /// Held while a commit is queued, so that none overtakes one that has to look up a topic first.
    entering: tokio::sync::Mutex<()>,
    polling: tokio::sync::Mutex<()>,
    max_poll_records: usize,
    left: watch::Receiver<bool>,
}

/// Joins a group.
pub(super) async fn join(inner: &Arc<KafkaInner>, join: Join) -> Result<KafkaSession, LogError> {
    if join.all_topics().next().is_none() {
        return Err(LogError::Refused {
            doing: "joining a group",
            why: "no topics are named".to_owned(),
        });
    }
    let mut counts = BTreeMap::new();
    for topic in join.all_topics() {
        counts.insert(topic.clone(), inner.known(topic).await?.partitions);
    }
    join.check_partitions(&counts)?;
    let (told, left) = watch::channel(false);
    let (config, joined) = (inner.config.clone(), join.clone());
    let member = inner
        .ask("kafka-join", move || {
            GroupMember::join(&config, &joined, told)
        })
        .await?;
    let member = Arc::new(member);
    // Twice what is handed out at once: one batch is worked on, one is ready.
    let limit_records = join.max_poll_records.max(1).saturating_mul(2);
    let buffer = join.buffer.map_or(inner.config.session_buffer, |bytes| {
        (bytes / 2).min(inner.config.session_buffer)
    });
    let state = SessionState::new(limit_records, buffer);
    let cell = Arc::new(SessionCell::new(state));
    inner.take_place(&join, &cell);
    let (jobs, line) = mpsc::channel();
    let instance = join.instance.clone().unwrap_or_else(|| inner.random_name());
    let transactional_id = transactional_id(&join.group, &instance);
    let thread = |usual: &str| join.name.clone().unwrap_or_else(|| usual.to_owned());
    let (committer, poller) = (thread("kafka-commit"), thread("kafka-poll"));
    let (group, max_poll_records) = (join.group.clone(), join.max_poll_records);
    let ports = (Arc::clone(&inner.clock), Arc::clone(&inner.spawn));
    let writer = TransactionalProducer::new(&inner.config, ports, transactional_id, &join);
    let writer = Arc::new(Mutex::new(writer));
    let commit_thread = CommitThread::new(inner, &member, &cell, line, &writer);
    let poll_thread = PollThread::new(inner, member, &cell, (join, writer));
    let committing = Box::pin(async move { commit_thread.run() });
    drop(inner.spawn.spawn_thread(&committer, committing));
    let polling = Box::pin(async move { poll_thread.run() });
    drop(inner.spawn.spawn_thread(&poller, polling));
    Ok(KafkaSession {
        inner: Arc::clone(inner),
        group,
        cell,
        jobs,
        line: Arc::new(Semaphore::new(MAX_QUEUED_COMMITS)),
        entering: tokio::sync::Mutex::new(()),
        polling: tokio::sync::Mutex::new(()),
        max_poll_records,
        left,
    })
}

/// The name under which a member writes transactions. A group's name has no `/` in it, so no two
/// members of different groups share one.
fn transactional_id(group: &GroupName, name: &str) -> String {
    format!("tidegate-{group}/{name}")
}

impl KafkaInner {
    /// Ends an earlier session of the same name in this process. The broker ends those of others, with
    /// their next heartbeat.
    fn take_place(&self, join: &Join, cell: &Arc<SessionCell>) {
        let Some(instance) = &join.instance else {
            return;
        };
        let name = (join.group.clone(), instance.clone());
        let mut instances = self.instances.0.lock();
        instances.retain(|_, cell| cell.strong_count() > 0);
        let earlier = instances.insert(name, Arc::downgrade(cell));
        if let Some(earlier) = earlier.and_then(|earlier| earlier.upgrade()) {
            earlier.with(|state| state.finish(SessionEnd::Replaced));
            earlier.wake_threads();
        }
    }
}

impl KafkaSession {
    /// The tickets of a commit that is called now. A partition that is not held has none, and its commit
    /// is refused.
    fn tickets(&self, offsets: &[OffsetCommit]) -> CommitTickets {
        self.cell.with(|state| {
            let ticket = |offset: &OffsetCommit| {
                let held = state.held.get(&offset.at);
                let held = held.filter(|held| held.fence == offset.fence)?;
                Some((offset.at.clone(), held.ticket.next()))
            };
            CommitTickets::new(offsets.iter().filter_map(ticket).collect())
        })
    }

    async fn commit_all(
        &self,
        commit: Commit,
        tickets: &mut CommitTickets,
    ) -> Result<Vec<RecordPosition>, LogError> {
        let limit = self.inner.config.request_timeout;
        let clock = &*self.inner.clock;
        let until = clock.elapsed() + limit;
        // Callers that ask what is committed wait from here on.
        let in_flight = self.inner.in_flight.begin(&self.group);
        let Some(entering) = clock.within(limit, self.entering.lock()).await else {
            return Err(self.inner.away("earlier commits wait for an answer"));
        };
        for offset in &commit.offsets {
            offset.check_metadata()?;
        }
        let batch = self.inner.route(commit.appends).await?;
        if batch.records.is_empty() && commit.offsets.is_empty() {
            return Ok(Vec::new());
        }
        if self.cell.has_ended() {
            return Err(commit_thread::over(&self.cell, &commit.offsets));
        }
        let place = Arc::clone(&self.line).acquire_owned();
        let left = until.saturating_sub(clock.elapsed());
        let Some(Ok(place)) = clock.within(left, place).await else {
            return Err(self.inner.away("earlier commits wait for an answer"));
        };
        let (reply, answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(JobState::WAITING));
        let job = CommitJob {
            batch,
            offsets: commit.offsets,
            tickets: tickets.to_vec(),
            // Half of the time is for the commit, the rest to find out what became of it.
            until: until.saturating_sub(limit / 2),
            stage: Arc::clone(&stage),
            reply,
            _place: place,
            _under_way: in_flight,
        };
        let line = CancelOnDrop(stage);
        if self.jobs.send(job).is_err() {
            return Err(LogError::Closed);
        }
        tickets.mark_submitted();
        drop(entering);
        let left = until.saturating_sub(clock.elapsed());
        match clock.within(left, answer).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(LogError::Closed),
            None if line.now() => Err(self.inner.away("earlier commits wait for an answer")),
            None => Err(commit_thread::outcome_unknown(self.inner.late())),
        }
    }
}

impl Session for KafkaSession {
    fn poll(&self) -> LogFuture<'_, SessionEvent> {
        Box::pin(async move {
            let _turn = self.polling.lock().await;
            self.cell.handed_out(self.max_poll_records).await
        })
    }

    fn release<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.cell.with(|state| state.release(partitions));
            self.cell.wake_threads();
            Ok(())
        })
    }

    fn pause<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.cell.with(|state| state.pause(partitions));
            // The client may hold on for a partition that nobody takes from any more.
            self.cell.wake_threads();
            Ok(())
        })
    }

    fn resume<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.cell.with(|state| state.resume(partitions));
            self.cell.tell();
            Ok(())
        })
    }

    fn seek<'a>(
        &'a self,
        at: &'a TopicPartition,
        fence: Fence,
        offset: Offset,
    ) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.cell.with(|state| state.seek(at, fence, offset))?;
            self.cell.wake_threads();
            Ok(())
        })
    }

    fn commit(&self, commit: Commit) -> LogFuture<'_, Vec<RecordPosition>> {
        // Taken now, not when it is first polled: several may be called before any is waited for.
        let mut tickets = self.tickets(&commit.offsets);
        Box::pin(async move {
            let answer = self.commit_all(commit, &mut tickets).await;
            tickets.acknowledge(&answer);
            answer
        })
    }

    fn lag(&self) -> LogFuture<'_, Vec<Lag>> {
        Box::pin(async move {
            let held: Vec<(TopicPartition, Offset)> = self.cell.with(|state| {
                let from =
                    |held: &session_state::OwnedPartition| held.committed.unwrap_or(held.begin);
                state
                    .held
                    .iter()
                    .map(|(at, held)| (at.clone(), from(held)))
                    .collect()
            });
            let (readers, asker) = (Arc::clone(&self.inner.readers), self.inner.asker());
            let (query, now) = (self.inner.query(), self.inner.clock.now_ms());
            self.inner
                .ask("kafka-lag", move || {
                    let lag = |(at, from): (TopicPartition, Offset)| {
                        let (start, end) = watermarks(&asker, &query, &at)?;
                        let from = from.max(start);
                        let mut lag = Lag {
                            at: at.clone(),
                            records: 0,
                            age: Duration::ZERO,
                        };
                        if from >= end {
                            return Ok(lag);
                        }
                        let one = Read {
                            max_records: 1,
                            ..Read::new(at, from)
                        };
                        // Holes in front of the first record are no records. Behind it they are counted,
                        // because telling them apart would mean to read everything.
                        if let Some(oldest) = readers.read(&one)?.records.first() {
                            lag.records = u64::try_from(end.0 - oldest.offset.0).unwrap_or(0);
                            let age = now.saturating_sub(oldest.record.timestamp_ms);
                            lag.age = Duration::from_millis(age);
                        }
                        Ok(lag)
                    };
                    held.into_iter().map(lag).collect()
                })
                .await
        })
    }

    fn close(&self) -> LogFuture<'_, ()> {
        Box::pin(async move {
            self.cell.with(|state| state.finish(SessionEnd::Closed));
            self.cell.wake_threads();
            let mut left = self.left.clone();
            let gone = left.wait_for(|left| *left);
            // At the deadline the client's thread is left to itself; everything durable is long done.
            if self.inner.clock.within(CLOSE_LIMIT, gone).await.is_none() {
                tracing::warn!(
                    "leaving a Kafka group takes longer than {CLOSE_LIMIT:?}; it continues in the background"
                );
            }
            Ok(())
        })
    }
}

impl Drop for KafkaSession {
    fn drop(&mut self) {
        self.cell.with(|state| state.finish(SessionEnd::Closed));
        self.cell.wake_threads();
    }
}

impl fmt::Debug for KafkaSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self
            .cell
            .with(|state| state.held.keys().cloned().collect::<Vec<_>>());
        f.debug_struct("KafkaSession")
            .field("held", &held)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn no_two_members_share_a_transactional_id() {
        let id = |group: &str, name| transactional_id(&GroupName::new(group).unwrap(), name);
        assert_ne!(id("orders-eu", "1"), id("orders", "eu-1"));
        assert!(GroupName::new("orders/eu").is_err());
    }

    #[test]
    fn a_commit_that_was_not_begun_is_withdrawn_with_whoever_waits() {
        for (stage, after) in [
            (JobState::WAITING, JobState::WITHDRAWN),
            (JobState::BEGUN, JobState::BEGUN),
        ] {
            let stage = Arc::new(AtomicU8::new(stage));
            drop(CancelOnDrop(Arc::clone(&stage)));
            assert_eq!(stage.load(Ordering::Acquire), after);
        }
    }
}
