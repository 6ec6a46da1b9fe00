//! Posts on their way into the tables.
//!
//! Posts wait in one queue, and one task writes. It takes all that wait, commits them in one transaction and
//! answers each. So the disk is synced once for many posts, and nobody waits longer than for the commit
//! before and its own.
//!
//! **Invariant:** a post is answered with success only after the commit that covers it. A post that was
//! canceled is stored or not; its repeat gets the same answer.

pub(crate) mod judge;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use tidegate_core::env::{CatchPanic, Clock, Env};
use tidegate_core::{Classify, EventId, Failure, FailureClass, Mutex};
use tidegate_store::{Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::event::{InvalidEvent, PostedEvent};
use crate::limit::{COMMIT_ATTEMPTS, GROUP_EVENTS, WAITING_EVENTS, WAITING_POSTS};
use crate::{EventLogError, sql, telemetry};

/// An event with everything that its row needs, apart from its number.
#[derive(Debug, Clone)]
pub(crate) struct IncomingEvent {
    pub(crate) event: Arc<PostedEvent>,
    /// The id of its answer, minted before it waits, so that trying again changes nothing.
    pub(crate) execution_id: EventId,
    /// The logger that sent it.
    pub(crate) logger: Option<Arc<str>>,
}

/// The outcome of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PostOutcome {
    /// It is stored now.
    Stored {
        /// The id of the answer.
        execution_id: EventId,
    },
    /// It was stored before.
    Repeated {
        /// The id of the first answer.
        execution_id: EventId,
    },
    /// Its key belongs to an event with another content.
    Conflict,
}

/// The answer to a single post.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PostAnswer {
    /// Always true.
    pub success: bool,
    /// The id of the answer.
    pub execution_ids: Vec<EventId>,
    /// The correlation of the event.
    pub correlation_id: String,
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchAnswer {
    /// Whether there are no errors.
    pub success: bool,
    /// Events of the batch.
    pub total_received: usize,
    /// Those that are stored now.
    pub total_inserted: usize,
    /// Those that were stored before.
    pub total_duplicates: usize,
    /// The ids of the answers, of stored and of repeated events.
    pub execution_ids: Vec<EventId>,
    /// The correlations, each once.
    pub correlation_ids: Vec<String>,
    /// The batch, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<String>,
    /// The events that were refused.
    pub errors: Vec<BatchProblem>,
}

/// An event of a batch that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BatchProblem {
    /// Its place in the batch.
    pub index: usize,
    /// The problem.
    pub error: String,
    /// The code of the problem.
    pub code: &'static str,
    /// Whether sending it again makes sense.
    pub class: &'static str,
}

/// The class of everything that is wrong with an event itself.
const PERMANENT: &str = "Permanent";

impl BatchAnswer {
    /// The answer to a batch of these events. `outcomes` are those of the valid ones, in their order.
    pub(crate) fn of(
        events: &[Result<IncomingEvent, InvalidEvent>],
        outcomes: &[PostOutcome],
        batch_id: Option<String>,
    ) -> Self {
        let mut answer = Self {
            success: true,
            total_received: events.len(),
            total_inserted: 0,
            total_duplicates: 0,
            execution_ids: Vec::new(),
            correlation_ids: Vec::new(),
            batch_id,
            errors: Vec::new(),
        };
        let mut correlations = BTreeSet::new();
        let mut outcomes = outcomes.iter();
        for (index, event) in events.iter().enumerate() {
            let incoming = match event {
                Ok(incoming) => incoming,
                Err(invalid) => {
                    answer.refuse(index, invalid.to_string(), "event.invalid");
                    continue;
                }
            };
            let execution_id = match outcomes.next() {
                Some(PostOutcome::Stored { execution_id }) => {
                    answer.total_inserted += 1;
                    *execution_id
                }
                Some(PostOutcome::Repeated { execution_id }) => {
                    answer.total_duplicates += 1;
                    *execution_id
                }
                Some(PostOutcome::Conflict) | None => {
                    let key = &incoming.event.key;
                    let error = format!("key `{key}` was used with another content");
                    answer.refuse(index, error, "idempotency.conflict");
                    continue;
                }
            };
            answer.execution_ids.push(execution_id);
            let correlation = incoming.event.correlation_id.as_str();
            if correlations.insert(correlation) {
                answer.correlation_ids.push(correlation.to_owned());
            }
        }
        answer.success = answer.errors.is_empty();
        answer
    }

    fn refuse(&mut self, index: usize, error: String, code: &'static str) {
        self.errors.push(BatchProblem {
            index,
            error,
            code,
            class: PERMANENT,
        });
    }
}

/// A post that waits for the writer.
struct WaitingPost {
    events: Vec<IncomingEvent>,
    /// Its share of the events that may wait.
    room: OwnedSemaphorePermit,
    tell: oneshot::Sender<Result<Vec<PostOutcome>, EventLogError>>,
}

/// The queue in front of the writer. Clones lead to the same one.
#[derive(Clone)]
pub(crate) struct IngestQueue {
    posts: mpsc::Sender<WaitingPost>,
    room: Arc<Semaphore>,
    failure: CommitFailure,
}

/// Why the last commit failed, until one succeeds.
type CommitFailure = Arc<Mutex<Option<String>>>;

impl std::fmt::Debug for IngestQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IngestQueue")
    }
}

impl IngestQueue {
    /// The queue of a writer that runs on `env`. It ends with the last handle on the queue.
    pub(crate) fn open(store: Store, env: &Env) -> Self {
        let (posts, waiting) = mpsc::channel(WAITING_POSTS);
        let failure = CommitFailure::default();
        let writer = IngestWriter {
            store,
            clock: Arc::clone(&env.clock),
            failure: Arc::clone(&failure),
        };
        drop(
            env.spawn
                .spawn("eventlog-writer", Box::pin(writer.run(waiting))),
        );
        Self {
            posts,
            room: Arc::new(Semaphore::new(WAITING_EVENTS as usize)),
            failure,
        }
    }

    /// Why no event can be stored now, as far as the last commit tells.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Stores these events and gives the outcome of each, in their order.
    pub(crate) async fn post(
        &self,
        events: Vec<IncomingEvent>,
    ) -> Result<Vec<PostOutcome>, EventLogError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let share =
            u32::try_from(events.len()).map_or(WAITING_EVENTS, |events| events.min(WAITING_EVENTS));
        let room = Arc::clone(&self.room).acquire_many_owned(share).await;
        let room = room.map_err(|_| EventLogError::Closed)?;
        let (tell, told) = oneshot::channel();
        let sent = self.posts.send(WaitingPost { events, room, tell }).await;
        sent.map_err(|_| EventLogError::Closed)?;
        told.await.map_err(|_| EventLogError::Closed)?
    }
}

struct IngestWriter {
    store: Store,
    clock: Arc<dyn Clock>,
    failure: CommitFailure,
}

impl IngestWriter {
    async fn run(self, mut waiting: mpsc::Receiver<WaitingPost>) {
        let mut posts = Vec::new();
        while waiting.recv_many(&mut posts, WAITING_POSTS).await > 0 {
            // Nobody waits for the answer any more, and whoever wants it asks again.
            posts.retain(|post| !post.tell.is_closed());
            let mut rest = posts.drain(..).peekable();
            while let Some(first) = rest.next() {
                let mut events = first.events.len();
                let mut group = vec![first];
                while let Some(post) =
                    rest.next_if(|post| events + post.events.len() <= GROUP_EVENTS)
                {
                    events += post.events.len();
                    group.push(post);
                }
                let committed = self.commit(group).await;
                if let Err(away) = committed
                    && !matches!(*away, StoreError::Conflict { .. })
                {
                    // The others would wait as long for the same answer.
                    for post in rest.by_ref() {
                        drop(post.tell.send(Err(EventLogError::Store(Arc::clone(&away)))));
                    }
                }
            }
        }
    }

    /// Commits a group, and answers each of its posts. An error says why the store took none of them.
    async fn commit(&self, posts: Vec<WaitingPost>) -> Result<(), Arc<StoreError>> {
        let (mut events, mut tells, mut rooms) = (Vec::new(), Vec::new(), Vec::new());
        for post in posts {
            tells.push((post.tell, post.events.len()));
            rooms.push(post.room);
            events.extend(post.events);
        }
        let events: Arc<[IncomingEvent]> = events.into();
        let stored = self.store_group(&events).await;
        drop(rooms);
        let away = match &stored {
            Err(EventLogError::Store(error)) if error.class() != FailureClass::Permanent => {
                Some(Arc::clone(error))
            }
            Ok(_) | Err(_) => None,
        };
        let failure = away.clone().map(EventLogError::Store);
        let failure = failure.map(|error| Failure::from(error).message);
        *self.failure.lock() = failure;
        match stored {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for (tell, count) in tells {
                    // A caller that went away asks again and gets the same answer.
                    drop(tell.send(Ok(outcomes.by_ref().take(count).collect())));
                }
            }
            // The database refused something in it: each post is tried alone, so that one of them does
            // not take the others with it.
            Err(EventLogError::Store(error))
                if error.class() == FailureClass::Permanent && tells.len() > 1 =>
            {
                let mut from = 0;
                for (tell, count) in tells {
                    let alone: Arc<[IncomingEvent]> = events[from..from + count].into();
                    from += count;
                    drop(tell.send(self.store_group(&alone).await));
                }
            }
            Err(error) => {
                for (tell, _) in tells {
                    drop(tell.send(Err(error.clone())));
                }
            }
        }
        away.map_or(Ok(()), Err)
    }

    async fn store_group(
        &self,
        events: &Arc<[IncomingEvent]>,
    ) -> Result<Vec<PostOutcome>, EventLogError> {
        let began = self.clock.elapsed();
        let mut attempt = 1;
        let outcomes = loop {
            let now_ms = i64::try_from(self.clock.now_ms()).unwrap_or(i64::MAX);
            let storing = sql::store_events(&self.store, Arc::clone(events), now_ms);
            // A panic would end the writer, and with it every later post.
            match CatchPanic(Box::pin(storing)).await {
                Ok(Err(StoreError::Conflict { .. })) if attempt < COMMIT_ATTEMPTS => attempt += 1,
                Ok(outcome) => break outcome?,
                Err(panic) => {
                    tracing::error!(panic, "storing events panicked");
                    return Err(EventLogError::Closed);
                }
            }
        };
        let took = self.clock.elapsed().saturating_sub(began);
        telemetry::committed(&outcomes, took);
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests;
