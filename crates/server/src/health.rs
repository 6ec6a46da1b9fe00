//! Who is well: checks of parts, heartbeats of loops, and whether we are draining.
//!
//! **Invariant:** asking never hangs. A check that does not answer in time is down, and says so.
//!
//! Results are kept for [`RESULT_LIFETIME`], and one asker at a time runs the checks. So no number of
//! probes can ask a database more than once in that time.

mod finding;
mod heartbeat;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate_core::env::{CatchPanic, Clock};
use tidegate_core::{Component, HealthFinding, Mutex};

pub(crate) use finding::HealthPart;
pub use heartbeat::Heartbeat;
use heartbeat::Loops;

/// How long one check may take.
///
/// Orchestrators give a probe one to a few seconds in all; a check that takes longer would make
/// them see a time-out, where the name of the part that hangs can be seen instead.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the result of a check is good for.
pub const RESULT_LIFETIME: Duration = Duration::from_secs(1);

/// The registry that `/livez`, `/readyz` and `/health` read. Cloning shares it.
///
/// ```
/// use tidegate_core::env::Env;
/// use tidegate_server::Health;
/// let health = Health::new(Env::system().clock);
/// health.drain();
/// assert!(health.is_draining());
/// ```
#[derive(Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    is_draining: AtomicBool,
    checks: Mutex<Checks>,
    loops: Arc<Loops>,
    /// Held while the checks run: whoever comes meanwhile waits and takes the same results.
    results: tokio::sync::Mutex<Option<Results>>,
}

#[derive(Default)]
struct Checks {
    by_name: BTreeMap<String, Arc<dyn Component>>,
    /// Grows with each change, so that results of an older set are not taken for the present one.
    version: u64,
}

struct Results {
    version: u64,
    at: Duration,
    parts: Vec<HealthPart>,
}

impl Health {
    /// A registry without checks: live, and ready.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            shared: Arc::new(Shared {
                loops: Arc::new(Loops::new(Arc::clone(&clock))),
                clock,
                is_draining: AtomicBool::new(false),
                checks: Mutex::default(),
                results: tokio::sync::Mutex::new(None),
            }),
        }
    }

    /// Asks a component about itself from now on.
    ///
    /// It has [`CHECK_TIMEOUT`] to answer; a check that panics is down. A second component of the same
    /// name takes the place of the first.
    pub fn watch(&self, component: &Arc<dyn Component>) {
        let mut checks = self.shared.checks.lock();
        let name = component.name().to_owned();
        checks.by_name.insert(name, Arc::clone(component));
        checks.version += 1;
    }

    /// Watches a loop: `/livez` fails once it has not beaten for longer than `limit`.
    ///
    /// The first limit begins now. A second loop of the same name is a loop of its own.
    #[must_use = "a heartbeat that is dropped counts as a loop that died"]
    pub fn heartbeat(&self, name: impl Into<String>, limit: Duration) -> Heartbeat {
        Loops::add(&self.shared.loops, name.into(), limit)
    }

    /// Says that we are about to stop: `/readyz` fails from now on. There is no way back, and
    /// saying it twice changes nothing.
    pub fn drain(&self) {
        self.shared.is_draining.store(true, Ordering::Release);
    }

    /// Whether [`drain`](Self::drain) was called.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.is_draining.load(Ordering::Acquire)
    }

    /// The loops that have not beaten in time, and those that components call stalled.
    pub(crate) fn stalled(&self) -> Vec<HealthPart> {
        let mut stalled = self.shared.loops.stalled();
        let checks = self.shared.checks.lock();
        for (name, component) in &checks.by_name {
            if let Some(stuck) = component.stalled() {
                let message = format!("loop `{stuck}` stands still");
                stalled.push(HealthPart::new(
                    name.clone(),
                    true,
                    HealthFinding::down(message),
                ));
            }
        }
        stalled
    }

    /// The results of the checks, in the order of their names. Takes at most [`CHECK_TIMEOUT`], twice
    /// that if it waits for another asker whose set of checks has changed since.
    ///
    /// If canceled, the checks that run are dropped and the next asker starts them again.
    pub(crate) async fn parts(&self) -> Vec<HealthPart> {
        let mut results = self.shared.results.lock().await;
        let (version, checks) = {
            let checks = self.shared.checks.lock();
            (checks.version, checks.by_name.clone())
        };
        let now = self.shared.clock.elapsed();
        if let Some(known) = results.as_ref()
            && known.version == version
            && now.saturating_sub(known.at) < RESULT_LIFETIME
        {
            return known.parts.clone();
        }
        let running = checks
            .into_iter()
            .map(|(name, component)| self.ask(name, component));
        let parts = join_all(running).await;
        *results = Some(Results {
            version,
            at: self.shared.clock.elapsed(),
            parts: parts.clone(),
        });
        parts
    }

    async fn ask(&self, name: String, component: Arc<dyn Component>) -> HealthPart {
        // The call itself goes into the future too, so that a panic there is caught as well.
        let answer = CatchPanic(Box::pin(async { component.health().await }));
        let finding = match self.shared.clock.within(CHECK_TIMEOUT, answer).await {
            Some(Ok(finding)) => finding,
            Some(Err(panic)) => {
                crate::telemetry::check_panicked(&name, &panic);
                HealthFinding::down("the check panicked")
            }
            None => HealthFinding::down(format!("no answer within {CHECK_TIMEOUT:?}")),
        };
        HealthPart::new(name, component.gates_readiness(), finding)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field(
                "checks",
                &self.shared.checks.lock().by_name.keys().collect::<Vec<_>>(),
            )
            .field("is_draining", &self.is_draining())
            .finish_non_exhaustive()
    }
}
