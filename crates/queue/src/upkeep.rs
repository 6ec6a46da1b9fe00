//! Keeps the tables tidy, and the gauges true.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{CatchPanic, Clock, Env};

use crate::port::QueueStore;
use crate::projection::{GROUPS, SEQUENCER};
use crate::queue::Queue;
use crate::{QueueError, telemetry};

/// How long the leadership to give positions is held without renewal.
const LEADERSHIP_SPAN: Duration = Duration::from_secs(10);

/// How the tables are kept tidy; keys of the section `queue`.
#[derive(Debug, Clone)]
pub struct UpkeepOptions {
    /// The pause between clean-ups: `cleanup-interval`.
    pub cleanup_interval: Duration,
    /// How long finalized events are kept: `event-log-retention`.
    pub retention: Option<Duration>,
    /// How often the gauges are set. Counting reads the tables, so not too often.
    pub gauge_interval: Duration,
}

impl Default for UpkeepOptions {
    fn default() -> Self {
        Self {
            cleanup_interval: Duration::from_secs(60),
            retention: None,
            gauge_interval: Duration::from_secs(15),
        }
    }
}

/// Clean-up and gauges of a queue, for a process without a dispatcher; a dispatcher does the same by
/// itself. Any number of processes may do it at once.
#[derive(Debug)]
pub struct Upkeep {
    store: Arc<dyn QueueStore>,
    owner: String,
    clock: Arc<dyn Clock>,
    options: UpkeepOptions,
}

impl Upkeep {
    /// The upkeep of this queue. Nothing runs yet.
    #[must_use]
    pub fn new(queue: &Queue, options: UpkeepOptions, env: &Env) -> Self {
        Self {
            store: Arc::clone(queue.store()),
            owner: queue.owner().to_owned(),
            clock: Arc::clone(&env.clock),
            options,
        }
    }

    /// Works until `shutdown` completes. A call that is running then is left to the database: each
    /// is one transaction.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let cleaning = async {
            loop {
                self.clock.sleep(self.options.cleanup_interval).await;
                let every = self.options.cleanup_interval;
                let (store, clock) = (&*self.store, &*self.clock);
                clean(store, &self.owner, clock, every, self.options.retention).await;
            }
        };
        let counting = async {
            loop {
                count(&*self.store).await;
                self.clock.sleep(self.options.gauge_interval).await;
            }
        };
        tokio::select! {
            biased;
            () = shutdown => {}
            () = cleaning => {}
            () = counting => {}
        }
    }
}

/// Removes what may go. It goes on while there is something, and no longer than the pause between
/// clean-ups, so that whatever else its caller does has its turn.
pub(crate) async fn clean(
    store: &dyn QueueStore,
    owner: &str,
    clock: &dyn Clock,
    every: Duration,
    retention: Option<Duration>,
) {
    let removing = remove(store, owner, clock, every, retention);
    // A panic would take upkeep from the queue in silence, or a dispatcher with it.
    if let Err(panic) = CatchPanic(Box::pin(removing)).await {
        tracing::error!(panic, "the clean-up of the queue panicked");
    }
}

async fn remove(
    store: &dyn QueueStore,
    owner: &str,
    clock: &dyn Clock,
    every: Duration,
    retention: Option<Duration>,
) {
    let until = clock.elapsed().saturating_add(every);
    if retention.is_some()
        && let Err(error) = give_positions(store, owner, clock, until).await
    {
        tracing::warn!(%error, "could not assign log positions");
    }
    loop {
        match store.clean(retention).await {
            Ok(cleaned) if cleaned.events > 0 && clock.elapsed() < until => {}
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%error, "could not clean up the queue");
                return;
            }
        }
    }
}

/// Gives positions to what has none, unless a projector does: retention removes only what has its
/// position, because nobody can have read it before.
async fn give_positions(
    store: &dyn QueueStore,
    owner: &str,
    clock: &dyn Clock,
    until: Duration,
) -> Result<(), QueueError> {
    let Some(leadership) = store
        .acquire_leadership(SEQUENCER, owner, LEADERSHIP_SPAN)
        .await?
    else {
        return Ok(());
    };
    let sequenced = async {
        while store.sequence(GROUPS).await? >= u64::from(GROUPS) && clock.elapsed() < until {
            if !store.renew_leadership(&leadership, LEADERSHIP_SPAN).await? {
                break;
            }
        }
        Ok(())
    };
    let sequenced = sequenced.await;
    store.renew_leadership(&leadership, Duration::ZERO).await?;
    sequenced
}

/// Sets the gauges.
pub(crate) async fn count(store: &dyn QueueStore) {
    match CatchPanic(store.stats()).await {
        Ok(Ok(stats)) => telemetry::stats(&stats),
        Ok(Err(error)) => tracing::warn!(%error, "could not count the queue"),
        Err(panic) => tracing::error!(panic, "counting the queue panicked"),
    }
}
