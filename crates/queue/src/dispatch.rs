//! Gives claimed events to handlers.
//!
//! A dispatcher claims batches ahead of its workers, renews its leases, lets workers call handlers,
//! and settles what they decided, a batch at a time. Nothing is remembered here that the store does
//! not know: whoever dies in the middle leaves a lease that runs out.

mod claimer;
mod ready;
mod registry_sync;
mod renewer;
mod settler;
mod state;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::env::{BoxFuture, Clock, Env, Task};
use tidegate_core::{Classify, FailureClass};

use crate::decide::Policy;
use crate::event::QueueEvent;
use crate::handler::{AnyHandler, Context, Delivery, Handled, Handler, RawEvent};
use crate::queue::Queue;
use crate::{QueueError, limit};
use state::DispatchState;

/// How a dispatcher works; the keys of the section `queue`.
#[derive(Debug, Clone)]
pub struct DispatcherOptions {
    /// The wait between polls when nothing wakes it: `poll-delay-ms`.
    pub poll_delay: Duration,
    /// Events claimed at once: `batch-size`.
    pub batch_size: u32,
    /// Handlers running at once: `concurrency`.
    pub concurrency: usize,
    /// The lease: `abandonment-timeout`.
    pub lease: Duration,
    /// The deadline of one call: `handler-timeout`.
    pub handler_timeout: Duration,
    /// How often claims that ran out are looked for, at least twice per lease: `reclaim_expired-interval`.
    pub rescue_interval: Duration,
    /// How long running handlers may go on after the stop.
    pub stop_timeout: Duration,
    /// The pause between clean-ups: `cleanup-interval`.
    pub cleanup_interval: Duration,
    /// How long finalized events are kept: `event-log-retention`. With it, each clean-up gives positions
    /// too, unless a projector does: only what has its position is removed.
    pub retention: Option<Duration>,
    /// Retries, fatal errors and events nobody wants.
    pub policy: Policy,
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        Self {
            poll_delay: Duration::from_millis(200),
            batch_size: 200,
            concurrency: 16,
            lease: Duration::from_secs(60),
            handler_timeout: Duration::from_secs(300),
            rescue_interval: Duration::from_secs(1),
            stop_timeout: Duration::from_secs(30),
            cleanup_interval: Duration::from_secs(60),
            retention: None,
            policy: Policy::default(),
        }
    }
}

/// A handler id that is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Handler with id '{id}' is already registered")]
pub struct AlreadyRegistered {
    id: String,
}

/// The reasons to refuse a handler.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Its id is taken.
    #[error(transparent)]
    AlreadyRegistered(#[from] AlreadyRegistered),
    /// Its id cannot be used.
    #[error(transparent)]
    Name(#[from] QueueError),
}

impl Classify for RegisterError {
    fn class(&self) -> FailureClass {
        match self {
            Self::AlreadyRegistered(_) | Self::Name(_) => FailureClass::Permanent,
        }
    }
}

/// A dispatcher in the making.
#[must_use = "a builder does nothing by itself"]
pub struct DispatcherBuilder {
    queue: Queue,
    options: DispatcherOptions,
    handlers: BTreeMap<String, AnyHandler>,
}

impl DispatcherBuilder {
    /// How it works.
    pub fn options(mut self, options: DispatcherOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds a handler.
    ///
    /// # Errors
    /// Its id is taken or cannot be used.
    pub fn register<E: QueueEvent>(self, handler: impl Handler<E>) -> Result<Self, RegisterError> {
        let (id, handler) = (handler.id().to_owned(), Arc::new(handler));
        self.register_raw(id, E::TYPE, move |event, context| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                match event.delivery() {
                    Ok(delivery) => handler.handle(&delivery, context).await,
                    Err(refused) => refused,
                }
            })
        })
    }

    /// Adds a closure as the handler `id` of a type.
    ///
    /// # Errors
    /// The id is taken or cannot be used.
    pub fn register_fn<E, R>(
        self,
        id: impl Into<String>,
        act: impl Fn(Delivery<E>) -> R + Send + Sync + 'static,
    ) -> Result<Self, RegisterError>
    where
        E: QueueEvent,
        R: Future<Output = Handled> + Send + 'static,
    {
        let act = Arc::new(act);
        self.register_raw(id, E::TYPE, move |event, _| {
            let act = Arc::clone(&act);
            Box::pin(async move {
                match event.delivery() {
                    Ok(delivery) => act(delivery).await,
                    Err(refused) => refused,
                }
            })
        })
    }

    /// Adds a closure that sees the JSON of any event of a type.
    ///
    /// # Errors
    /// The id is taken or cannot be used.
    pub fn register_raw(
        mut self,
        id: impl Into<String>,
        type_name: impl Into<String>,
        act: impl for<'a> Fn(&'a RawEvent<'a>, &'a mut Context) -> BoxFuture<'a, Handled>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self, RegisterError> {
        let (id, type_name) = (id.into(), type_name.into());
        // Ids are joined by commas and colons in lanes.
        if id.is_empty() || id.contains([',', ':', '"', '\\']) || id.chars().any(char::is_control) {
            return Err(RegisterError::Name(QueueError::InvalidName {
                what: "handler id",
                name: id,
                why: "it is empty or holds a comma, a colon, a quote or a control character",
            }));
        }
        limit::check("handler id", &id, limit::MAX_HANDLER_ID)?;
        limit::check("event type", &type_name, limit::MAX_TYPE)?;
        if self.handlers.contains_key(&id) {
            return Err(AlreadyRegistered { id }.into());
        }
        let handler = AnyHandler {
            id: id.clone(),
            type_name,
            act: Box::new(act),
        };
        self.handlers.insert(id, handler);
        Ok(self)
    }

    /// The dispatcher. Nothing runs yet.
    #[must_use]
    pub fn build(self, env: &Env) -> Dispatcher {
        let mut mine: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for handler in self.handlers.values() {
            let of_type = mine.entry(handler.type_name.clone()).or_default();
            of_type.insert(handler.id.clone());
        }
        let env = env.fork("dispatcher");
        let entropy = env.entropy.fork("backoff");
        Dispatcher {
            shared: Arc::new(Shared {
                queue: self.queue,
                options: self.options,
                handlers: self.handlers,
                mine,
                state: Mutex::new(DispatchState::new(entropy)),
                signals: state::DispatchSignals::default(),
                env,
            }),
        }
    }
}

impl fmt::Debug for DispatcherBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DispatcherBuilder({} handlers)", self.handlers.len())
    }
}

/// The state that the tasks of a dispatcher share.
struct Shared {
    queue: Queue,
    options: DispatcherOptions,
    handlers: BTreeMap<String, AnyHandler>,
    mine: BTreeMap<String, BTreeSet<String>>,
    state: Mutex<DispatchState>,
    signals: state::DispatchSignals,
    env: Env,
}

/// The work that a dispatcher did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatchReport {
    /// Events claimed.
    pub claimed: u64,
    /// Events finalized.
    pub finalized: u64,
    /// Events put back for another attempt.
    pub retried: u64,
    /// Events that were somebody else's when we were done.
    pub stale: u64,
}

/// How a dispatcher is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatcherHealth {
    /// Whether it takes new work.
    pub is_up: bool,
    /// The problem, if there is one.
    pub problem: Option<String>,
    /// The class of the problem. After a System failure of a handler the dispatcher takes no work any
    /// more: mend what is wrong, and start another.
    pub class: Option<FailureClass>,
}

/// Gives events to handlers, for as long as it runs.
pub struct Dispatcher {
    shared: Arc<Shared>,
}

/// A handle on a running dispatcher.
#[derive(Clone)]
pub struct DispatcherHandle {
    shared: Arc<Shared>,
}

impl DispatcherHandle {
    /// How it is.
    #[must_use]
    pub fn health(&self) -> DispatcherHealth {
        self.shared.state().health()
    }

    /// The work that it did so far.
    #[must_use]
    pub fn report(&self) -> DispatchReport {
        self.shared.state().report
    }
}

impl fmt::Debug for DispatcherHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DispatcherHandle({:?})", self.report())
    }
}

impl Dispatcher {
    /// A dispatcher of this queue.
    pub fn builder(queue: Queue) -> DispatcherBuilder {
        DispatcherBuilder {
            queue,
            options: DispatcherOptions::default(),
            handlers: BTreeMap::new(),
        }
    }

    /// A handle to look at it while it runs.
    #[must_use]
    pub fn handle(&self) -> DispatcherHandle {
        DispatcherHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Registers its handlers and works until `shutdown` completes; then claims nothing more, lets
    /// running handlers end within the stop timeout, settles what they said, and gives the rest
    /// back at once.
    ///
    /// A handler that fails with class System stops it in the same way, because whatever it took
    /// next would fail too. It then waits for the shutdown, and its health says why.
    ///
    /// If canceled, its handlers are cut short with it, leases run out by themselves and somebody else
    /// goes on.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> DispatchReport {
        let shared = self.shared;
        let workers = (0..shared.options.concurrency.max(1)).map(|number| {
            let task: BoxFuture<'static> = Box::pin(worker::work(Arc::clone(&shared)));
            shared
                .env
                .spawn
                .spawn(&format!("queue-worker-{number}"), task)
        });
        let mut workers = Workers(workers.collect());
        let _stopped = Stopped(&shared);
        let stop = async {
            // Also after a failure that stopped it: its gauges are looked at most of all then.
            tokio::select! {
                biased;
                () = shutdown => {}
                () = renewer::clean(&shared) => {}
            }
            shared.stop();
        };
        let working = async {
            tokio::join!(
                claimer::claim(&shared),
                settler::settle(&shared, &mut workers),
                renewer::renew(&shared),
            );
        };
        tokio::join!(stop, working);
        shared.state().report
    }
}

/// However the run ends, also by being dropped: nothing is claimed any more, and the health says so.
struct Stopped<'a>(&'a Shared);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// How long workers that are cut short may take to end: a handler that holds its thread ends when it
/// likes, and nobody waits for that.
const CUT_SHORT: Duration = Duration::from_secs(1);

/// Workers that end with whoever started them: nobody would settle what they do, or keep their leases.
struct Workers(Vec<Task>);

impl Workers {
    /// Cuts short those that still run, and waits until they have let go of what they hold: on SQLite the
    /// transaction of a handler keeps everybody else from writing.
    async fn end(&mut self, clock: &dyn Clock) {
        self.0.iter().for_each(Task::abort);
        let ended = async {
            for worker in self.0.drain(..) {
                worker.join().await;
            }
        };
        tokio::select! {
            biased;
            () = ended => {}
            () = clock.sleep(CUT_SHORT) => {}
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.iter().for_each(Task::abort);
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dispatcher({} handlers)", self.shared.handlers.len())
    }
}
