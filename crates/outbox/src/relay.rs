//! The relay: from rows of the table to records of topics.
//!
//! A relay leases key buckets ([`lease_renewal`]) and works on them in a few lanes. A lane claims a batch, publishes
//! it and settles it, one after the other ([`lane`]); so a lane never has two batches of one key on their
//! way, and the lanes fill each other's waits. No transaction is open over a publish.

mod dead_letters;
mod lane;
mod lease_renewal;
mod publish;
mod state;
mod upkeep;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Shutdown;
use tidegate_core::env::{Env, system};
use tidegate_log::Log;

pub use state::{RelayReport, RelayStatus};

use crate::Outbox;
use crate::telemetry::RelayMetrics;
use lane::RelayLane;
use lease_renewal::LeaseRenewal;
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

/// The things that the loops of a relay have in common.
#[derive(Debug, Clone)]
struct RelayParts {
    outbox: Outbox,
    log: Arc<dyn Log>,
    worker: Arc<str>,
    shared: Arc<RelayShared>,
    metrics: RelayMetrics,
    stop: Shutdown,
    /// Until when a relay that is to stop waits for the log; set when a lane first hears of the stop.
    stop_deadline: Arc<OnceLock<Duration>>,
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
        let longest = outbox.options().backoff_max;
        let shared = Arc::new(RelayShared::new(Arc::clone(&env.clock), longest));
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

    /// The work that it did so far.
    #[must_use]
    pub fn report(&self) -> RelayReport {
        self.shared.report()
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
            stop_deadline: Arc::default(),
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
        let renewal = LeaseRenewal::new(parts.clone(), &self.env);
        let (ended, renewing) = Shutdown::new();
        let renewal = self
            .env
            .spawn
            .spawn("outbox-leases", Box::pin(renewal.run(renewing)));
        for task in tasks {
            task.join().await;
        }
        // The leases are renewed until the last lane has settled.
        ended.stop();
        renewal.join().await;
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
