//! One member of a group of a local log.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::{Offset, Topic};
use tokio::sync::Notify;

use super::commit::commit;
use super::group::MemberId;
use super::log::{Inner, SPURIOUS_WAKE_PAUSE};
use super::members::{GroupMembers, MemberAction};
use super::reader::partition;
use super::storage::RecordStorage;
use crate::commit_order::CommitTickets;
use crate::error::LogError;
use crate::port::{
    Commit, Fence, Join, Lag, LogFuture, OffsetCommit, Read, RecordPosition, Session, SessionEvent,
};
use crate::record::TopicPartition;

/// One member of a group of a local log.
pub(super) struct LocalSession {
    inner: Arc<Inner>,
    member: MemberId,
    join: Join,
    /// Notified when there is something to look at.
    wake: Arc<Notify>,
    /// Held by the caller that polls.
    polling: tokio::sync::Mutex<()>,
}

impl LocalSession {
    pub(super) fn new(inner: Arc<Inner>, member: MemberId, join: Join, wake: Arc<Notify>) -> Self {
        Self {
            inner,
            member,
            join,
            wake,
            polling: tokio::sync::Mutex::new(()),
        }
    }

    /// Acts on the group, brought up to this moment.
    fn with_members<T>(
        &self,
        act: impl FnOnce(&mut GroupMembers, Duration) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let now = self.inner.clock.elapsed();
        let mut state = self.inner.state();
        let members = state.members(&self.join.group)?;
        members.member_state(self.member)?;
        members.tick(now);
        act(members, now)
    }

    async fn next(&self) -> Result<SessionEvent, LogError> {
        let _polling = self.polling.lock().await;
        let mut probe: Option<TopicPartition> = None;
        let mut was_spurious = false;
        loop {
            let mut notified = pin!(self.wake.notified());
            // A change after this look notifies.
            notified.as_mut().enable();
            let step = self.with_members(|members, now| {
                let outcome = members.group.heartbeat(self.member, now);
                members.apply(outcome);
                members.step(self.member, probe.as_ref())
            })?;
            let was_woken = probe.take().is_some();
            match step {
                MemberAction::Deliver(event) => return Ok(event),
                MemberAction::Read(at, fence, from) => {
                    if let Some(records) = self.read(at, fence, from).await? {
                        return Ok(records);
                    }
                    was_spurious = was_woken;
                }
                MemberAction::Wait { on, until } => {
                    if std::mem::take(&mut was_spurious) {
                        self.inner.clock.sleep(SPURIOUS_WAKE_PAUSE).await;
                    }
                    tokio::select! {
                        biased;
                        () = notified => {}
                        woken = any_of(&*self.inner.storage, &on) => probe = Some(woken?),
                        () = self.sleep_until(until) => {}
                    }
                }
            }
        }
    }

    /// Reads one batch; none when it must not be handed out, or was a hole.
    async fn read(
        &self,
        at: TopicPartition,
        fence: Fence,
        from: Offset,
    ) -> Result<Option<SessionEvent>, LogError> {
        let mut read = Read::new(at, from);
        read.max_records = self.join.max_poll_records.max(1);
        let buffer = self.join.buffer.unwrap_or(read.max_bytes);
        read.max_bytes = read.max_bytes.min(buffer);
        match self.inner.storage.read(&read).await {
            Ok(batch) => {
                let is_ours = self.with_members(|members, _| {
                    Ok(members.advance(self.member, &read.at, fence, from, batch.next))
                })?;
                let is_something = is_ours && !batch.records.is_empty();
                Ok(is_something.then_some(SessionEvent::Records { fence, batch }))
            }
            Err(error) => {
                let is_missing = matches!(
                    error,
                    LogError::OutOfRange { .. } | LogError::Damaged { .. }
                );
                self.with_members(|members, _| {
                    members.read_failed(self.member, &read.at, (fence, from), is_missing);
                    Ok(())
                })?;
                Err(error)
            }
        }
    }

    async fn sleep_until(&self, until: Option<Duration>) {
        match until {
            Some(until) => {
                let left = until.saturating_sub(self.inner.clock.elapsed());
                self.inner.clock.sleep(left).await;
            }
            None => std::future::pending().await,
        }
    }

    async fn leave(&self) -> Result<(), LogError> {
        let held = self.with_members(|members, now| {
            let held = members.group.owned(self.member);
            members.leave(self.member, now);
            Ok(held)
        });
        // A session that ended before has nothing to leave.
        let Ok(held) = held else {
            return Ok(());
        };
        tokio::select! {
            biased;
            ended = self.inner.wait_for_commits(&self.join.group, &held) => ended.or(Ok(())),
            () = self.inner.clock.sleep(self.join.release_timeout) => Ok(()),
        }
    }

    async fn lags(&self) -> Result<Vec<Lag>, LogError> {
        let storage = &self.inner.storage;
        let owned = self.with_members(|members, _| {
            let owned = members.group.owned(self.member);
            let member_state = members.member_state(self.member)?;
            let first =
                |at: &TopicPartition| member_state.readers.get(at).map(|reader| reader.first);
            Ok(owned
                .into_iter()
                .map(|at| (first(&at), at))
                .collect::<Vec<_>>())
        })?;
        let mut lags = Vec::new();
        for (first, at) in owned {
            let Some(there) = partition(&**storage, &at) else {
                continue;
            };
            let committed = storage
                .committed(&self.join.group, &at)
                .map(|done| done.next);
            let next = committed.or(first).unwrap_or(there.start).max(there.start);
            let records = there.end.0.saturating_sub(next.0);
            let age = if records > 0 {
                self.age(&at, next).await?
            } else {
                Duration::ZERO
            };
            lags.push(Lag {
                at,
                records: u64::try_from(records).unwrap_or(0),
                age,
            });
        }
        Ok(lags)
    }

    /// The tickets of a commit that is called now. A partition that is not ours has none, and its commit
    /// is refused.
    fn tickets(&self, offsets: &[OffsetCommit]) -> CommitTickets {
        let mut state = self.inner.state();
        let Ok(members) = state.members(&self.join.group) else {
            return CommitTickets::default();
        };
        let ticket = |offset: &OffsetCommit| {
            let ticket = members
                .group
                .ticket(self.member, &offset.at, offset.fence)?;
            Some((offset.at.clone(), ticket))
        };
        CommitTickets::new(offsets.iter().filter_map(ticket).collect())
    }

    async fn commit_in_order(
        &self,
        request: Commit,
        tickets: &mut CommitTickets,
    ) -> Result<Vec<RecordPosition>, LogError> {
        let Commit { appends, offsets } = request;
        let appends = self.inner.place(appends)?;
        if appends.is_empty() && offsets.is_empty() {
            return self.with_members(|_, _| Ok(Vec::new()));
        }
        let group = &self.join.group;
        commit(&self.inner, group, self.member, appends, offsets, tickets).await
    }

    /// How old the first record at or after an offset is.
    async fn age(&self, at: &TopicPartition, from: Offset) -> Result<Duration, LogError> {
        let mut read = Read::new(at.clone(), from);
        read.max_records = 1;
        let batch = self.inner.storage.read(&read).await?;
        let made = batch
            .records
            .first()
            .map(|stored| stored.record.timestamp_ms);
        let now = self.inner.clock.now_ms();
        Ok(made.map_or(Duration::ZERO, |made| {
            Duration::from_millis(now.saturating_sub(made))
        }))
    }
}

/// Waits until one of these partitions may have something new, and says which.
async fn any_of(
    storage: &dyn RecordStorage,
    on: &[(TopicPartition, Offset)],
) -> Result<TopicPartition, LogError> {
    let mut waits: Vec<_> = on
        .iter()
        .map(|(at, from)| (at, storage.wait_for(at, *from)))
        .collect();
    poll_fn(|context| {
        for (at, wait) in &mut waits {
            if let Poll::Ready(woken) = wait.as_mut().poll(context) {
                return Poll::Ready(woken.map(|()| (*at).clone()));
            }
        }
        Poll::Pending
    })
    .await
}

impl Session for LocalSession {
    fn poll(&self) -> LogFuture<'_, SessionEvent> {
        Box::pin(self.next())
    }

    fn release<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.with_members(|members, now| {
                let outcome = members.group.release(self.member, partitions, now);
                members.forget_readers(self.member);
                members.apply(outcome);
                Ok(())
            })
        })
    }

    fn pause<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.with_members(|members, _| {
                members
                    .member_state(self.member)?
                    .paused
                    .extend(partitions.iter().cloned());
                Ok(())
            })
        })
    }

    fn resume<'a>(&'a self, partitions: &'a [TopicPartition]) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.with_members(|members, _| {
                let member_state = members.member_state(self.member)?;
                member_state.paused.retain(|at| !partitions.contains(at));
                member_state.wake.notify_waiters();
                Ok(())
            })
        })
    }

    fn seek<'a>(
        &'a self,
        at: &'a TopicPartition,
        fence: Fence,
        offset: Offset,
    ) -> LogFuture<'a, ()> {
        Box::pin(async move {
            self.with_members(|members, _| {
                let fenced = || LogError::Fenced { at: at.clone() };
                if !members.group.owns(self.member, at, fence) {
                    return Err(fenced());
                }
                let member_state = members.member_state(self.member)?;
                let reader = member_state.readers.get_mut(at).ok_or_else(fenced)?;
                reader.next = offset;
                reader.is_stopped = false;
                reader.fault = None;
                member_state.wake.notify_waiters();
                Ok(())
            })
        })
    }

    fn commit(&self, request: Commit) -> LogFuture<'_, Vec<RecordPosition>> {
        // Taken now, not when it is first polled: several may be called before any is waited for.
        let mut tickets = self.tickets(&request.offsets);
        Box::pin(async move {
            let answer = self.commit_in_order(request, &mut tickets).await;
            tickets.acknowledge(&answer);
            answer
        })
    }

    fn lag(&self) -> LogFuture<'_, Vec<Lag>> {
        Box::pin(self.lags())
    }

    fn close(&self) -> LogFuture<'_, ()> {
        Box::pin(self.leave())
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        let now = self.inner.clock.elapsed();
        if let Ok(members) = self.inner.state().members(&self.join.group) {
            members.leave(self.member, now);
        }
    }
}

impl fmt::Debug for LocalSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topics: Vec<&str> = self.join.topics.iter().map(Topic::as_str).collect();
        f.debug_struct("LocalSession")
            .field("group", &self.join.group.as_str())
            .field("member", &self.member.0)
            .field("topics", &topics)
            .finish_non_exhaustive()
    }
}
