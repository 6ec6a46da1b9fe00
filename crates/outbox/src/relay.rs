//! The relay: from rows of the table to records of topics.
//!
//! A relay leases key buckets ([`keeper`]) and works on them in a few lanes. A lane claims a batch, publishes
//! it and settles it, one after the other ([`lane`]); so a lane never has two batches of one key on their
//! way, and the lanes fill each other's waits. No transaction is open over a publish.

mod keeper;
mod lane;
mod publish;
mod state;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Shutdown;
use tidegate_core::env::{Env, system};
use tidegate_log::Log;

pub use state::{RelayReport, RelayStatus};

use crate::Outbox;
use crate::telemetry::RelayMetrics;
use keeper::Keeper;
use lane::RelayLane;
use state::RelayShared;
use upkeep::RelayUpkeep;

/// Batches that are on their way at once.
pub(crate) const LANES: u32 = 4;

/// A relay of one outbox.
///
/// ```no_run
/// use std::sync::Arc;
/// use tidegate_core::{Shutdown, env::Env};
/// use tidegate_log::Log;
/// use tidegate_outbox::{Outbox, Relay};
/// # async fn run(outbox: Outbox, log: Arc<dyn Log>) {
/// let (trigger, stop) = Shutdown::new();
/// let relay = Relay::new(outbox, log, &Env::system());
/// let report = relay.run(stop).await;
/// println!("{} rows were published", report.sent);
/// # drop(trigger);
/// # }
/// ```
#[derive(Debug)]
pub struct Relay {
    outbox: Outbox,
    log: Arc<dyn Log>,
    env: Env,
    worker: String,
    shared: Arc<RelayShared>,
}

/// The things that a lane, the keeper and the upkeep have in common.
#[derive(Debug, Clone)]
struct RelayParts {
    outbox: Outbox,
    log: Arc<dyn Log>,
    worker: Arc<str>,
    shared: Arc<RelayShared>,
    metrics: RelayMetrics,
    stop: Shutdown,
}

impl Relay {
    /// A relay that publishes the rows of `outbox` to `log`. Its name is this host, this process and chance.
    #[must_use]
    pub fn new(outbox: Outbox, log: Arc<dyn Log>, env: &Env) -> Self {
        let mut env = env.fork(&outbox.options().component());
        let chance = (env.entropy.next_u64(), env.entropy.next_u64());
        let worker = format!(
            "{}-{:016x}{:016x}",
            system::process_name(),
            chance.0,
            chance.1
        );
        let shared = Arc::new(RelayShared::new(Arc::clone(&env.clock)));
        Self {
            outbox,
            log,
            env,
            worker,
            shared,
        }
    }

    /// The same with another name, which must be its alone.
    #[must_use]
    pub fn named(mut self, worker: impl Into<String>) -> Self {
        self.worker = worker.into();
        self
    }

    /// Its name, as it stands in `locked_by`.
    #[must_use]
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> RelayStatus {
        self.shared.status()
    }

    /// A loop of it that stands still, by name. Waiting for a database or a broker is not standing still.
    #[must_use]
    pub fn stuck(&self) -> Option<String> {
        self.shared.stuck()
    }

    /// Publishes rows until `stop`. Then it ends what is on its way, gives all buckets back and returns.
    ///
    /// If canceled, its buckets are free for others after the lease.
    pub async fn run(&self, stop: Shutdown) -> RelayReport {
        let metrics = RelayMetrics::new(self.outbox.options());
        metrics.describe();
        let parts = RelayParts {
            outbox: self.outbox.clone(),
            log: Arc::clone(&self.log),
            worker: self.worker.as_str().into(),
            shared: Arc::clone(&self.shared),
            metrics,
            stop,
        };
        let mut tasks = Vec::new();
        for number in 0..LANES {
            let name = format!("outbox-lane-{number}");
            let lane = RelayLane::new(number, parts.clone(), &self.env.fork(&name));
            tasks.push(self.env.spawn.spawn(&name, Box::pin(lane.run())));
        }
        let upkeep = RelayUpkeep::new(parts.clone(), &self.env);
        tasks.push(
            self.env
                .spawn
                .spawn("outbox-upkeep", Box::pin(upkeep.run())),
        );
        let keeper = Keeper::new(parts.clone(), &self.env);
        let (ended, keeping) = Shutdown::new();
        let keeper_task = self
            .env
            .spawn
            .spawn("outbox-keeper", Box::pin(keeper.run(keeping)));
        for task in tasks {
            task.join().await;
        }
        // The leases are renewed until the last lane has settled.
        ended.stop();
        keeper_task.join().await;
        self.release(&parts).await;
        self.shared.report()
    }

    async fn release(&self, parts: &RelayParts) {
        let held = self.shared.all_leases();
        let store = parts.outbox.store();
        let release = store.release(&parts.worker, &held, true);
        let limit = Duration::from_secs(3);
        match self.env.clock.within(limit, release).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "could not give buckets back; they run out"),
            None => tracing::warn!("could not give buckets back in time; they run out"),
        }
    }
}

/// The numbers of a relay, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct BatchCounts {
    pub(crate) sent: u64,
    pub(crate) failed: u64,
    pub(crate) dead: u64,
}
