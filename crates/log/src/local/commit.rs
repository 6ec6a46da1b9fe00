//! What may be committed, and how a commit is carried through.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tidegate_core::{GroupName, Offset};
use tokio::sync::oneshot;

use super::group::{MemberId, Ticket};
use super::log::Inner;
use super::reader::existing;
use super::storage::{GroupOffset, RecordStorage, Write};
use super::team::Team;
use crate::error::LogError;
use crate::port::{Append, Committed, OffsetCommit, Position};
use crate::record::TopicPartition;
use crate::turn::{self, Turn, Turns};

type Answer = Result<Vec<Position>, LogError>;
type Writing = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Says why these offsets may not be committed, in the order of the call.
pub(super) fn check(
    team: &Team,
    name: &GroupName,
    member: MemberId,
    offsets: &[OffsetCommit],
    storage: &dyn RecordStorage,
) -> Result<(), LogError> {
    let mut highest: BTreeMap<&TopicPartition, Offset> = BTreeMap::new();
    for offset in offsets {
        let at = || offset.at.clone();
        let there = existing(storage, &offset.at)?;
        if !team.group.owns(member, &offset.at, offset.fence) {
            return Err(LogError::Fenced { at: at() });
        }
        offset.check_metadata()?;
        // What is under way will be committed before this one, or not at all.
        let done = storage
            .committed(name, &offset.at)
            .map(|committed| committed.next);
        let under_way = team.group.highest_under_way(&offset.at);
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
/// Checking, counting the commit as under way and handing it to the storage are one step: the storage
/// keeps the order in which it is handed writes, so of two commits of a partition the later one is
/// also the one that stays. Once handed over, a commit is carried to its end by a task of its own:
/// whoever waits for it may be canceled, and nobody else gets the partition before the outcome is
/// known.
pub(super) async fn commit(
    inner: &Arc<Inner>,
    name: &GroupName,
    member: MemberId,
    appends: Vec<Append>,
    offsets: Vec<OffsetCommit>,
    turns: &mut Turns,
) -> Answer {
    let mut request = Some((appends, offsets));
    let begun = std::future::poll_fn(|context| {
        let Some((appends, offsets)) = request.take() else {
            return Poll::Ready(Err(LogError::Closed));
        };
        let begun = begin(inner, name, member, (appends, offsets), turns, context);
        Poll::Ready(begun)
    });
    match begun.await? {
        Begun::Done(answer) => answer,
        Begun::UnderWay(told) => told.await.unwrap_or_else(|_| {
            Err(LogError::OutcomeUnknown {
                doing: "a commit",
                why: "the log ended before it said so".to_owned(),
            })
        }),
    }
}

fn begin(
    inner: &Arc<Inner>,
    name: &GroupName,
    member: MemberId,
    (appends, offsets): (Vec<Append>, Vec<OffsetCommit>),
    turns: &mut Turns,
    context: &mut std::task::Context<'_>,
) -> Result<Begun, LogError> {
    let storage = Arc::clone(&inner.storage);
    let mut state = inner.state();
    let ticket = state.ticket();
    let team = state.team(name)?;
    team.tick(name, &*storage, inner.clock.elapsed());
    // Records alone need no partition, but a member that is gone writes nothing.
    if offsets.is_empty() && team.group.is_replaced(member) {
        return Err(LogError::Closed);
    }
    if team.seat(member).is_err() {
        return Err(LogError::Closed);
    }
    check(team, name, member, &offsets, &*storage)?;
    turns.check()?;
    let held = turns.held();
    let partitions: Vec<TopicPartition> = offsets.iter().map(|offset| offset.at.clone()).collect();
    for offset in &offsets {
        team.group.begin_commit(&offset.at, ticket, offset.next);
    }
    let write = Write {
        appends,
        offsets: offsets
            .into_iter()
            .map(|offset| for_group(name, offset, &held))
            .collect(),
    };
    turns.in_line();
    let mut writing: Writing = Box::pin(async move { storage.write(write).await });
    if let Poll::Ready(answer) = writing.as_mut().poll(context) {
        drop(state);
        end(inner, name, &partitions, ticket);
        return Ok(Begun::Done(answer));
    }
    drop(state);
    let (tell, told) = oneshot::channel();
    let (inner, name) = (Arc::clone(inner), name.clone());
    let spawn = Arc::clone(&inner.spawn);
    let task = spawn.spawn(
        "log-commit",
        Box::pin(async move {
            let answer = writing.await;
            // Whoever waits may be gone, and those behind it must know all the same.
            if answer.is_err() {
                turn::fail(&held);
            }
            end(&inner, &name, &partitions, ticket);
            // Nobody may be waiting any more.
            tell.send(answer).ok();
        }),
    );
    drop(task);
    Ok(Begun::UnderWay(told))
}

/// A commit has ended: partitions that waited for it change hands.
fn end(inner: &Inner, name: &GroupName, partitions: &[TopicPartition], ticket: Ticket) {
    let mut state = inner.state();
    let Ok(team) = state.team(name) else {
        return;
    };
    let mut has_waited = false;
    for at in partitions {
        team.group.end_commit(at, ticket);
        has_waited |= !team.group.is_owned(at);
    }
    if has_waited {
        let outcome = team.group.settle(inner.clock.elapsed());
        team.apply(outcome, name, &*inner.storage);
    }
    team.settled.notify_waiters();
}

fn for_group(
    name: &GroupName,
    offset: OffsetCommit,
    turns: &[(TopicPartition, Turn)],
) -> GroupOffset {
    let turn = turns.iter().find(|(at, _)| *at == offset.at);
    GroupOffset {
        turn: turn.map_or_else(Turn::default, |(_, turn)| turn.clone()),
        group: name.clone(),
        at: offset.at,
        committed: Committed {
            next: offset.next,
            metadata: offset.metadata,
        },
        postings: offset.postings,
    }
}
