//! Handlers: what is done with events.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use tidegate_core::env::BoxFuture;
use tidegate_core::{Classify, Code, EventId, EventIds, Failure, FailureClass};

use crate::event::{NewEvent, QueueEvent};
use crate::port::{ClaimedEvent, HandlerCommit, HandlerState, QueueStore};
use crate::tx::Tx;
use crate::{QueueError, limit};

/// The answer of a handler for an event.
#[derive(Debug)]
#[must_use = "an event without a result is handled again"]
pub enum Handled {
    /// It is done; this handler is not called for this event again.
    Success,
    /// It may work next time: called again after a while. With a failure of class System nothing
    /// would work: the dispatcher stops taking events, and its health says so.
    TransientError(Failure),
    /// It never will: the event is completed with errors.
    UnrecoverableError(Failure),
}

impl From<Failure> for Handled {
    fn from(failure: Failure) -> Self {
        match failure.class {
            FailureClass::Permanent => Self::UnrecoverableError(failure),
            // A failure that is not about this event may be gone by the next time.
            FailureClass::Transient | FailureClass::System => Self::TransientError(failure),
        }
    }
}

impl From<QueueError> for Handled {
    fn from(error: QueueError) -> Self {
        let class = error.class();
        let code = Code::from_static("queue.store");
        Failure::new(class, code, error.to_string())
            .with_source(error)
            .into()
    }
}

/// Handles events of one type.
///
/// It may be called more than once for one event: after a crash, a lease that ran out, or an answer
/// that was lost. Its effects through the [`Context`] happen once.
pub trait Handler<E: QueueEvent>: Send + Sync + 'static {
    /// Its name, unique among all handlers of all processes.
    fn id(&self) -> &str;

    /// Handles one event.
    fn handle(
        &self,
        event: &Delivery<E>,
        context: &mut Context,
    ) -> impl Future<Output = Handled> + Send;
}

/// An event with what is known about it.
#[derive(Debug)]
pub struct Delivery<E> {
    /// The event.
    pub event: E,
    /// Its id, the same at every attempt.
    pub event_id: EventId,
    /// Its number in the queue.
    pub number: i64,
    /// How often this handler was called for it, this time included.
    pub attempt: u32,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// When it was published, in milliseconds since 1970.
    pub created_ms: i64,
}

/// The effects of a handler that happen exactly once, together with its result.
///
/// Nothing of it happens before the handler returns [`Handled::Success`]; then all of it commits in
/// one transaction with the result, and only if the claim still holds.
pub struct Context {
    store: Arc<dyn QueueStore>,
    ids: EventIds,
    handler: String,
    event_id: EventId,
    follow_ups: Vec<NewEvent>,
    done: Vec<String>,
    tx: Option<Tx>,
}

impl Context {
    pub(crate) fn new(
        store: Arc<dyn QueueStore>,
        ids: EventIds,
        handler: &str,
        event_id: EventId,
    ) -> Self {
        Self {
            store,
            ids,
            handler: handler.to_owned(),
            event_id,
            follow_ups: Vec::new(),
            done: Vec::new(),
            tx: None,
        }
    }

    /// Publishes an event that follows from this one, with the result.
    ///
    /// # Errors
    /// It has no JSON form, or its type or key is too long.
    pub fn publish<E: QueueEvent>(&mut self, event: &E) -> Result<EventId, QueueError> {
        let id = self.ids.mint();
        self.publish_raw(NewEvent::of(id, event)?)?;
        Ok(id)
    }

    /// Publishes an event that follows from this one, with the result.
    ///
    /// # Errors
    /// Its type or key is too long.
    pub fn publish_raw(&mut self, event: NewEvent) -> Result<(), QueueError> {
        limit::check_events(std::slice::from_ref(&event))?;
        self.follow_ups.push(event);
        Ok(())
    }

    /// Whether this side effect is still to be done: false when an earlier attempt of this handler
    /// for this event recorded it. Recorded together with the result.
    ///
    /// # Errors
    /// The database is away, or the name is too long.
    pub async fn once(&mut self, sub_task: &str) -> Result<bool, QueueError> {
        limit::check("side effect", sub_task, limit::MAX_SUB_TASK)?;
        if self.done.iter().any(|done| done == sub_task) {
            return Ok(false);
        }
        let store = Arc::clone(&self.store);
        // In the transaction where there is one: handlers that each hold a connection and wait for a
        // second one would wait for each other.
        let tx = self.tx.as_mut();
        let is_done = store.is_done(tx, &self.handler, self.event_id, sub_task);
        if is_done.await? {
            return Ok(false);
        }
        self.done.push(sub_task.to_owned());
        Ok(true)
    }

    /// The transaction in which the result will be committed, for rows of one's own. On SQLite
    /// nobody else writes while it is open.
    ///
    /// # Errors
    /// The database is away.
    pub async fn transaction(&mut self) -> Result<&mut Tx, QueueError> {
        let tx = match self.tx.take() {
            Some(tx) => tx,
            None => self.store.begin().await?,
        };
        Ok(self.tx.insert(tx))
    }

    /// Whether there is something to commit beside the result.
    pub(crate) fn is_used(&self) -> bool {
        self.tx.is_some() || !self.done.is_empty() || !self.follow_ups.is_empty()
    }

    pub(crate) fn into_commit(
        self,
        event: &ClaimedEvent,
        state: HandlerState,
    ) -> (Option<Tx>, HandlerCommit) {
        let commit = HandlerCommit {
            claim: event.claim.clone(),
            state,
            follow_ups: self.follow_ups,
            done: self.done,
            event_id: self.event_id,
        };
        (self.tx, commit)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} for {})", self.handler, self.event_id)
    }
}

/// The work of a handler with an event.
type Act =
    dyn for<'a> Fn(&'a RawEvent<'a>, &'a mut Context) -> BoxFuture<'a, Handled> + Send + Sync;

/// A handler without the type of its events.
pub(crate) struct AnyHandler {
    pub(crate) id: String,
    pub(crate) type_name: String,
    pub(crate) act: Box<Act>,
}

/// An event as it stands in the table, for handlers of any type.
#[derive(Debug)]
pub struct RawEvent<'a> {
    pub(crate) event: &'a ClaimedEvent,
    /// How often this handler was called for it, this time included.
    pub attempt: u32,
}

impl RawEvent<'_> {
    /// Its JSON.
    #[must_use]
    pub fn payload(&self) -> &str {
        &self.event.payload
    }

    /// Its type.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.event.type_name
    }

    /// Its id.
    #[must_use]
    pub fn event_id(&self) -> EventId {
        self.event.claim.event_id
    }

    /// Its number in the queue.
    #[must_use]
    pub fn number(&self) -> i64 {
        self.event.claim.id
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.event.headers
    }

    /// The event with its type. The same bytes never become readable, so trying again would be for
    /// nothing.
    pub(crate) fn delivery<E: QueueEvent>(&self) -> Result<Delivery<E>, Handled> {
        let event = self.event;
        let decoded = serde_json::from_str::<E>(&event.payload).map_err(|error| {
            let code = Code::from_static("schema.invalid");
            let type_name = &event.type_name;
            let text = format!("event of type `{type_name}` is not readable: {error}");
            Handled::from(Failure::permanent(code, text).with_source(error))
        })?;
        Ok(Delivery {
            event: decoded,
            event_id: event.claim.event_id,
            number: event.claim.id,
            attempt: self.attempt,
            headers: event.headers.clone(),
            created_ms: event.created_ms,
        })
    }
}
