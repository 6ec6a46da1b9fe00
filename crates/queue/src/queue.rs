//! The queue as an application sees it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{EventId, EventIds};
use tidegate_store::Store;

use crate::QueueError;
use crate::event::{NewEvent, QueueEvent};
use crate::port::{
    ClaimRequest, ClaimedEvent, Disposition, HandlerFilter, HandlerState, Lane, QueueStore,
    Settlement, Transition,
};
use crate::tx::Tx;

/// A durable queue of events. Cloning gives another handle on the same one.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tidegate_core::env::Env;
/// use tidegate_queue::{QueueEvent, Queue};
/// use tidegate_store::{Store, StoreOptions};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { order: u64 }
/// impl QueueEvent for OrderPlaced { const TYPE: &'static str = "OrderPlaced"; }
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("queue.db");
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let env = Env::system();
/// let store = Store::open(&StoreOptions::new(format!("sqlite://{}", path.display())), &env).await?;
/// let queue = Queue::open(store, &env).await?;
/// queue.publish(&OrderPlaced { order: 7 }).await?;
/// let event = queue.poll().await?.expect("it was published");
/// assert_eq!(event.payload, r#"{"order":7}"#);
/// queue.finalize(&event, Vec::new()).await?;
/// assert_eq!(queue.account().await?.delivered, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Queue {
    store: Arc<dyn QueueStore>,
    ids: EventIds,
    owner: String,
    lease: Duration,
}

/// The wake-up that is due after publishing in a transaction of one's own: it tells the dispatchers, once
/// it is committed. Forgetting it costs time and no event, because polling finds it.
#[must_use = "call `wake` after the commit, or the events wait for the next poll"]
#[derive(Debug)]
pub struct Wake {
    store: Arc<dyn QueueStore>,
}

impl Wake {
    /// Tells the dispatchers.
    pub fn wake(self) {
        self.store.wake();
    }
}

impl Queue {
    /// The queue on this database; its tables are brought up to date.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn open(store: Store, env: &Env) -> Result<Self, QueueError> {
        crate::sql::migrate(&store).await?;
        let store = crate::sql::queue_store(store, env).await?;
        Ok(Self::on(store, env))
    }

    /// The queue on a store of its own.
    #[must_use]
    pub fn on(store: Arc<dyn QueueStore>, env: &Env) -> Self {
        let mut entropy = env.entropy.fork("queue-owner");
        Self {
            ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("queue-ids")),
            owner: format!("{:016x}", entropy.next_u64()),
            store,
            lease: Duration::from_secs(60),
        }
    }

    /// The same, with a name that is shown in `locked_by`.
    #[must_use]
    pub fn named(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// The same, with another lease for [`poll`](Self::poll).
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn QueueStore> {
        &self.store
    }

    /// The name that is shown in `locked_by`.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The minter of ids.
    #[must_use]
    pub fn ids(&self) -> &EventIds {
        &self.ids
    }

    /// Publishes an event in a transaction of its own and gives its id.
    ///
    /// Returns once it would survive a power cut. If canceled, it is published or not. Calling it
    /// twice publishes two events.
    ///
    /// # Errors
    /// It has no JSON form, or the database is away or refused.
    pub async fn publish<E: QueueEvent>(&self, event: &E) -> Result<EventId, QueueError> {
        let event = NewEvent::of(self.ids.mint(), event)?;
        let id = event.event_id;
        self.publish_all(&[event]).await?;
        Ok(id)
    }

    /// Publishes many events, all or none, and gives their numbers.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn publish_all(&self, events: &[NewEvent]) -> Result<Vec<i64>, QueueError> {
        let ids = self.store.publish(events).await?;
        self.store.wake();
        Ok(ids)
    }

    /// Publishes an event unless this was done before with its id, and says whether it did. The id is remembered as
    /// long as the event is in the queue or in its log.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn publish_once(&self, event: &NewEvent) -> Result<bool, QueueError> {
        let is_new = self.store.publish_once(event).await?;
        self.store.wake();
        Ok(is_new)
    }

    /// Waits until dispatchers in other processes were told of everything that this one published or
    /// woke them for. Only a program that ends right after that needs it: what is published is there
    /// all the same, and they find it at their next poll.
    pub async fn wakes_sent(&self) {
        self.store.wakes_sent().await;
    }

    /// Publishes an event in the caller's transaction: it is there if and only if that commits.
    ///
    /// # Errors
    /// It has no JSON form, the transaction is of another database, or the database refused.
    pub async fn publish_in<E: QueueEvent>(
        &self,
        tx: &mut Tx,
        event: &E,
    ) -> Result<(EventId, Wake), QueueError> {
        let event = NewEvent::of(self.ids.mint(), event)?;
        let id = event.event_id;
        let wake = self.publish_all_in(tx, &[event]).await?;
        Ok((id, wake))
    }

    /// Publishes many events in the caller's transaction.
    ///
    /// # Errors
    /// The transaction is of another database, or the database refused.
    pub async fn publish_all_in(
        &self,
        tx: &mut Tx,
        events: &[NewEvent],
    ) -> Result<Wake, QueueError> {
        self.store.publish_in(tx, events).await?;
        Ok(Wake {
            store: Arc::clone(&self.store),
        })
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// The database is away.
    pub async fn begin(&self) -> Result<Tx, QueueError> {
        self.store.begin().await
    }

    /// Claims the oldest event that is due; none when there is none. It is ours until the lease
    /// ends, or until it is settled.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn poll(&self) -> Result<Option<ClaimedEvent>, QueueError> {
        Ok(self.poll_batch(1).await?.pop())
    }

    /// Claims up to `limit` events that are due, oldest first.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn poll_batch(&self, limit: u32) -> Result<Vec<ClaimedEvent>, QueueError> {
        let request = ClaimRequest {
            owner: self.owner.clone(),
            limit,
            lease: self.lease,
            filter: HandlerFilter::All,
            reclaim_expired: true,
            include_delayed: true,
            include_poison: true,
            isolate: false,
        };
        let claimed = self.store.claim(&request).await?.events;
        let (blocked, free): (Vec<_>, Vec<_>) =
            claimed.into_iter().partition(|event| event.is_blocked);
        if !blocked.is_empty() {
            let park = |event: &ClaimedEvent| Disposition::Park {
                lane: Lane::new(&event.type_name, []),
            };
            self.settle(&blocked, park).await?;
        }
        Ok(free)
    }

    /// Moves an event to the log: COMPLETED, or COMPLETED_WITH_ERRORS where errors are given. Says
    /// whether the claim still held; doing it again changes nothing and says no.
    ///
    /// # Errors
    /// No event has this number, or the database is away or refused.
    pub async fn finalize(
        &self,
        event: &ClaimedEvent,
        errors: Vec<HandlerState>,
    ) -> Result<bool, QueueError> {
        let errors: Vec<HandlerState> = errors.into_iter().map(HandlerState::kept).collect();
        let to = |_: &ClaimedEvent| Disposition::Finalize {
            errors: errors.clone(),
            handlers: None,
        };
        let stale = self.settle(std::slice::from_ref(event), to).await?;
        if stale.is_empty() {
            return Ok(true);
        }
        let id = event.claim.id;
        match self.store.show(id).await? {
            Some(_) => Ok(false),
            None => Err(QueueError::UnknownEvent { id }),
        }
    }

    async fn settle(
        &self,
        events: &[ClaimedEvent],
        to: impl Fn(&ClaimedEvent) -> Disposition,
    ) -> Result<Vec<i64>, QueueError> {
        let transitions = events.iter().map(|event| Transition {
            claim: event.claim.clone(),
            key: event.key.clone(),
            to: to(event),
            states: Vec::new(),
        });
        let settlement = Settlement {
            registry: None,
            transitions: transitions.collect(),
            // A caller that polls by hand may settle in any order; a batch ends with its last event.
            finished: events.iter().map(|event| event.claim.lease).collect(),
        };
        self.store.settle(&settlement).await
    }

    /// How many events are where.
    ///
    /// # Errors
    /// The database is away or refused.
    pub async fn account(&self) -> Result<tidegate_core::books::Account, QueueError> {
        self.store.account().await
    }
}
