//! A member of a group as rules use it: it does what it is told and remembers what it saw.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tidegate_core::{EventId, Offset};

use super::scene::{Scene, text};
use crate::{
    Append, Assignment, Commit, Fence, LogError, OffsetCommit, RecordPosition, Session,
    SessionEvent, StoredRecord, TopicPartition,
};

/// A member of a group.
#[derive(Debug)]
pub struct Member {
    scene: Scene,
    /// Its session.
    pub session: Arc<dyn Session>,
    /// The partitions that it owns.
    pub owned: BTreeMap<TopicPartition, Assignment>,
    /// The records that it was handed out, in order.
    pub seen: BTreeMap<TopicPartition, Vec<StoredRecord>>,
    /// The partitions that it was asked to let go, and keeps because it does not [oblige](Self::stubborn).
    pub asked: Vec<TopicPartition>,
    /// The partitions that it lost.
    pub lost: Vec<TopicPartition>,
    obliges: bool,
}

impl Member {
    /// A member that lets go at once of what it is asked for.
    #[must_use]
    pub fn new(scene: Scene, session: Arc<dyn Session>) -> Self {
        Self {
            scene,
            session,
            owned: BTreeMap::new(),
            seen: BTreeMap::new(),
            asked: Vec::new(),
            lost: Vec::new(),
            obliges: true,
        }
    }

    /// A member that keeps what it is asked for.
    #[must_use]
    pub fn stubborn(mut self) -> Self {
        self.obliges = false;
        self
    }

    /// Polls once, for at most this long; says whether something happened.
    ///
    /// # Errors
    /// Those of the poll.
    pub async fn step(&mut self, limit: Duration) -> Result<bool, LogError> {
        match self.scene.within(limit, self.session.poll()).await {
            Some(polled) => self.hear(polled?).await,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Does and remembers what a member does about something that happened.
    async fn hear(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Assigned(assigned) => {
                for assignment in assigned {
                    let at = assignment.at.clone();
                    let before = self.owned.insert(at.clone(), assignment);
                    assert!(before.is_none(), "{at} was assigned to its owner");
                }
            }
            SessionEvent::Revoking(asked) => {
                for at in &asked {
                    assert!(self.owned.contains_key(at), "{at} was asked of a stranger");
                }
                if self.obliges {
                    self.release(&asked).await;
                } else {
                    self.asked.extend(asked);
                }
            }
            SessionEvent::Lost(lost) => {
                for at in &lost {
                    assert!(
                        self.owned.remove(at).is_some(),
                        "{at} was lost by a stranger"
                    );
                }
                self.lost.extend(lost);
            }
            SessionEvent::Records { fence, batch } => {
                assert!(!batch.records.is_empty(), "a batch has a record");
                assert_eq!(
                    fence,
                    self.fence(&batch.at),
                    "records of the present assignment"
                );
                let seen = self.seen.entry(batch.at).or_default();
                seen.extend(batch.records);
            }
        }
    }

    /// Polls until something is so; past the time of the stage, `what` did not happen.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let clock = self.scene.stage.clock();
        let end = clock.elapsed() + self.scene.stage.times().settle;
        while !is_so(self) {
            let left = end.saturating_sub(clock.elapsed());
            assert!(!left.is_zero(), "{what} did not happen: {self:?}");
            self.step(left).await.unwrap();
        }
    }

    /// Polls until `count` partitions are owned.
    pub async fn until_owning(&mut self, count: usize) {
        self.until("the assignment", |member| member.owned.len() == count)
            .await;
    }

    /// Polls until `count` records were seen.
    pub async fn until_seen(&mut self, count: usize) {
        self.until("the delivery", |member| member.count() >= count)
            .await;
    }

    /// Polls on until nothing happens for the quiet time of the stage.
    pub async fn until_quiet(&mut self) {
        let quiet = self.scene.stage.times().quiet;
        while self.step(quiet).await.unwrap() {}
    }

    /// How many records were seen.
    #[must_use]
    pub fn count(&self) -> usize {
        self.seen.values().map(Vec::len).sum()
    }

    /// The values that were seen of a partition, as text.
    #[must_use]
    pub fn values(&self, at: &TopicPartition) -> Vec<String> {
        self.seen.get(at).into_iter().flatten().map(text).collect()
    }

    /// The fence under which a partition is owned.
    #[must_use]
    pub fn fence(&self, at: &TopicPartition) -> Fence {
        match self.owned.get(at) {
            Some(assignment) => assignment.fence,
            None => panic!("{at} is not owned: {self:?}"),
        }
    }

    /// Lets partitions go.
    pub async fn release(&mut self, partitions: &[TopicPartition]) {
        self.session.release(partitions).await.unwrap();
        self.owned.retain(|at, _| !partitions.contains(at));
        self.asked.retain(|at| !partitions.contains(at));
    }

    /// A commit of an offset under the present assignment.
    #[must_use]
    pub fn offset(&self, at: &TopicPartition, next: Offset, metadata: &str) -> OffsetCommit {
        OffsetCommit {
            at: at.clone(),
            fence: self.fence(at),
            next,
            metadata: metadata.to_owned(),
            postings: Vec::new(),
        }
    }

    /// A commit of these events and everything before them: they went from the group's queue to a
    /// place.
    #[must_use]
    pub fn settling(
        &self,
        at: &TopicPartition,
        events: &[(Offset, EventId)],
        to: Place,
    ) -> OffsetCommit {
        let last = events.last().unwrap().0;
        let ids = events.iter().map(|(_, id)| *id);
        OffsetCommit {
            postings: postings(ids, Some(Place::Queued), Some(to)),
            ..self.offset(at, Offset(last.0 + 1), "")
        }
    }

    /// Commits records and offsets.
    ///
    /// # Errors
    /// Those of the commit.
    pub async fn commit(
        &self,
        appends: Vec<Append>,
        offsets: Vec<OffsetCommit>,
    ) -> Result<Vec<RecordPosition>, LogError> {
        self.session.commit(Commit { appends, offsets }).await
    }

    /// Commits one offset.
    ///
    /// # Errors
    /// Those of the commit.
    pub async fn commit_to(&self, at: &TopicPartition, next: Offset) -> Result<(), LogError> {
        let offset = self.offset(at, next, "");
        self.commit(Vec::new(), vec![offset]).await.map(|_| ())
    }
}

/// Polls two members at a time until something is so.
pub async fn together(
    what: &str,
    one: &mut Member,
    two: &mut Member,
    is_so: impl Fn(&Member, &Member) -> bool,
) {
    let clock = one.scene.stage.clock();
    let end = clock.elapsed() + one.scene.stage.times().settle;
    let sessions = [Arc::clone(&one.session), Arc::clone(&two.session)];
    let mut turn = 0;
    while !is_so(one, two) {
        let left = end.saturating_sub(clock.elapsed());
        assert!(!left.is_zero(), "{what} did not happen: {one:?} {two:?}");
        // Neither is given up before something has happened: so they get on however slow the log is.
        let mut polls = [sessions[0].poll(), sessions[1].poll()];
        let event = poll_fn(|context| {
            for index in [turn, 1 - turn] {
                if let Poll::Ready(polled) = polls[index].as_mut().poll(context) {
                    return Poll::Ready((index, polled));
                }
            }
            Poll::Pending
        });
        if let Some((index, polled)) = one.scene.within(left, event).await {
            drop(polls);
            turn = 1 - index;
            let member = if index == 0 { &mut *one } else { &mut *two };
            member.hear(polled.unwrap()).await;
        }
    }
}
