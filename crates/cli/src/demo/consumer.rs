//! A member of a group: polls, handles, commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::Clock;
use tidegate_core::{EventId, GroupName, Topic};
use tidegate_log::{
    Batch, Commit, EmbeddedLog, Fence, Join, Log, LogError, OffsetCommit, Session, SessionEvent,
};

/// How long handling one record takes.
const HANDLING: Duration = Duration::from_millis(6);
/// Records that are handed out at once.
const HANDED_OUT: usize = 40;
/// The pause after something went wrong.
const PAUSE: Duration = Duration::from_millis(50);

/// The knowledge of the world around the log: the other witness, which knows nothing of the books. It
/// outlives members and power cuts.
#[derive(Debug, Clone, Default)]
pub(super) struct LogWitness(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
pub(super) struct Known {
    /// Events that somebody wants in the log, until it says that they are.
    pub(super) offered: BTreeSet<EventId>,
    /// Events of which the log said so.
    pub(super) acknowledged: BTreeSet<EventId>,
    /// How often each event was handled.
    pub(super) handled: BTreeMap<EventId, u64>,
    /// Commits that were refused because the partition had gone to somebody else.
    pub(super) fenced: u64,
}

impl LogWitness {
    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A member of the group, which works until it is closed or taken down.
pub(super) struct Consumer {
    pub(super) log: EmbeddedLog,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) world: LogWitness,
    pub(super) group: GroupName,
    pub(super) topic: Topic,
}

impl Consumer {
    pub(super) async fn run(self) {
        let join = Join {
            max_poll_records: HANDED_OUT,
            ..Join::new(self.group.clone(), vec![self.topic.clone()])
        };
        let Ok(session) = self.log.join(join).await else {
            return;
        };
        loop {
            match session.poll().await {
                Ok(SessionEvent::Records { fence, batch }) => {
                    self.handle(&*session, fence, &batch).await;
                }
                Ok(SessionEvent::Revoking(partitions)) => {
                    session.release(&partitions).await.ok();
                }
                Ok(SessionEvent::Assigned(_) | SessionEvent::Lost(_)) => {}
                Err(LogError::Closed | LogError::Stopped { .. }) => return,
                Err(_) => self.clock.sleep(PAUSE).await,
            }
        }
    }

    /// Handles records one by one, then commits them together. A member that dies in between leaves
    /// handled records uncommitted, and they are handled again: at least once.
    async fn handle(&self, session: &dyn Session, fence: Fence, batch: &Batch) {
        let mut ids = Vec::new();
        for stored in &batch.records {
            self.clock.sleep(HANDLING).await;
            let id = stored.event_id(self.log.cluster(), &batch.at);
            *self.world.known().handled.entry(id).or_default() += 1;
            ids.push(id);
        }
        let offset = OffsetCommit {
            at: batch.at.clone(),
            fence,
            next: batch.next,
            metadata: String::new(),
            postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
        };
        let commit = Commit {
            appends: Vec::new(),
            offsets: vec![offset],
        };
        if let Err(LogError::Fenced { .. }) = session.commit(commit).await {
            self.world.known().fenced += 1;
        }
    }
}
