//! The check of a commit, and how it is carried through.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tidegate_core::{GroupName, Offset};
use tokio::sync::oneshot;

use super::group::{CommitNumber, MemberId};
use super::log::Inner;
use super::members::GroupMembers;
use super::reader::existing;
use super::storage::{GroupOffset, Write};
use crate::commit_order::{self, CommitTicket, CommitTickets};
use crate::error::LogError;
use crate::port::{Append, Committed, OffsetCommit, RecordPosition};
use crate::record::TopicPartition;

type Answer = Result<Vec<RecordPosition>, LogError>;
type Writing = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Says why these offsets may not be committed, in the order of the call.
pub(super) fn check(
    members: &GroupMembers,
    member: MemberId,
    offsets: &[OffsetCommit],
) -> Result<(), LogError> {
    let mut highest: BTreeMap<&TopicPartition, Offset> = BTreeMap::new();
    for offset in offsets {
        let at = || offset.at.clone();
        let there = existing(&*members.storage, &offset.at)?;
        if !members.group.owns(member, &offset.at, offset.fence) {
            return Err(LogError::Fenced { at: at() });
        }
        offset.check_metadata()?;
        // A commit under way will be done before this one, or not at all.
        let done = members.storage.committed(&members.name, &offset.at);
        let done = done.map(|committed| committed.next);
        let under_way = members.group.highest_under_way(&offset.at);
        let here = highest.get(&offset.at).copied();
        if let Some(committed) = done.max(under_way).max(here)
            && offset.next < committed
        {
            return Err(LogError::OffsetRegressed {
                at: at(),
                next: offset.next,
                committed,
            });
        }
        if offset.next > there.end || offset.next < Offset(0) {
            return Err(LogError::OutOfRange {
                at: at(),
                asked: offset.next,
                start: there.start,
                end: there.end,
            });
        }
        highest.insert(&offset.at, offset.next);
    }
    Ok(())
}

/// A commit that was checked and handed to the storage.
enum Begun {
    Done(Answer),
    UnderWay(oneshot::Receiver<Answer>),
}

/// Commits as a member.
///
/// Checking, counting the commit as under way and handing it to the storage are one step. The storage
/// keeps the order in which it is handed writes. So of two commits of a partition the later one is also
/// the one that stays. Once handed over, a commit is carried to its end by a task of its own: the
/// waiting caller may be canceled, and no other member gets the partition before the outcome is known.
pub(super) async fn commit(
    inner: &Arc<Inner>,
    name: &GroupName,
    member: MemberId,
    appends: Vec<Append>,
    offsets: Vec<OffsetCommit>,
    tickets: &mut CommitTickets,
) -> Answer {
    let mut request = Some((appends, offsets));
    let begun = std::future::poll_fn(|context| {
        let Some((appends, offsets)) = request.take() else {
            return Poll::Ready(Err(LogError::Closed));
        };
        let begun = begin(inner, name, member, (appends, offsets), tickets, context);
        Poll::Ready(begun)
    });
    match begun.await? {
        Begun::Done(answer) => answer,
        Begun::UnderWay(answer) => answer.await.unwrap_or_else(|_| {
            Err(LogError::OutcomeUnknown {
                doing: "a commit",
                why: "the log ended before it answered".to_owned(),
            })
        }),
    }
}

fn begin(
    inner: &Arc<Inner>,
    name: &GroupName,
    member: MemberId,
    (appends, offsets): (Vec<Append>, Vec<OffsetCommit>),
    tickets: &mut CommitTickets,
    context: &mut std::task::Context<'_>,
) -> Result<Begun, LogError> {
    let storage = Arc::clone(&inner.storage);
    let mut state = inner.state();
    let number = state.next_commit_number();
    let members = state.members(name)?;
    members.tick(inner.clock.elapsed());
    // Records alone need no partition, but a member that is gone writes nothing.
    if offsets.is_empty() && members.group.is_replaced(member) {
        return Err(LogError::Closed);
    }
    if members.member_state(member).is_err() {
        return Err(LogError::Closed);
    }
    check(members, member, &offsets)?;
    tickets.check()?;
    let held = tickets.to_vec();
    let partitions: Vec<TopicPartition> = offsets.iter().map(|offset| offset.at.clone()).collect();
    for offset in &offsets {
        members.group.begin_commit(&offset.at, number, offset.next);
    }
    let write = Write {
        appends,
        offsets: offsets
            .into_iter()
            .map(|offset| for_group(name, offset, &held))
            .collect(),
    };
    tickets.mark_submitted();
    let mut writing: Writing = Box::pin(async move { storage.write(write).await });
    if let Poll::Ready(answer) = writing.as_mut().poll(context) {
        drop(state);
        end(inner, name, &partitions, number);
        return Ok(Begun::Done(answer));
    }
    drop(state);
    let (reply, answer) = oneshot::channel();
    let (inner, name) = (Arc::clone(inner), name.clone());
    let spawn = Arc::clone(&inner.spawn);
    let task = spawn.spawn(
        "log-commit",
        Box::pin(async move {
            let answer = writing.await;
            // The caller may be gone, and the commits behind it must know all the same.
            if answer.is_err() {
                commit_order::fail(&held);
            }
            end(&inner, &name, &partitions, number);
            // Nobody may be waiting any more.
            reply.send(answer).ok();
        }),
    );
    drop(task);
    Ok(Begun::UnderWay(answer))
}

/// A commit has ended: partitions that waited for it change hands.
fn end(inner: &Inner, name: &GroupName, partitions: &[TopicPartition], number: CommitNumber) {
    let mut state = inner.state();
    let Ok(members) = state.members(name) else {
        return;
    };
    let mut has_waited = false;
    for at in partitions {
        members.group.end_commit(at, number);
        has_waited |= !members.group.is_owned(at);
    }
    if has_waited {
        let outcome = members.group.reassign(inner.clock.elapsed());
        members.apply(outcome);
    }
    members.commit_ended.notify_waiters();
}

fn for_group(
    name: &GroupName,
    offset: OffsetCommit,
    tickets: &[(TopicPartition, CommitTicket)],
) -> GroupOffset {
    let ticket = tickets.iter().find(|(at, _)| *at == offset.at);
    GroupOffset {
        ticket: ticket.map_or_else(CommitTicket::default, |(_, ticket)| ticket.clone()),
        group: name.clone(),
        at: offset.at,
        committed: Committed {
            next: offset.next,
            metadata: offset.metadata,
        },
        postings: offset.postings,
    }
}
