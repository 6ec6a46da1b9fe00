//! Who is well: checks of parts, heartbeats of loops, and whether we are draining.
//!
//! **Invariant:** asking never hangs. A check that does not answer in time is down, and says so.
//!
//! Results are kept for [`RESULT_LIFETIME`] and run by one asker at a time, so that no number of
//! probes can ask a database more than once in that time.

mod finding;
mod heartbeat;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::env::{BoxFuture, CatchPanic, Clock};
use tidegate_core::{Component, HealthFinding, Mutex};

use crate::future;
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
/// use tidegate_core::HealthFinding;
/// use tidegate_server::Health;
/// let health = Health::new(Env::system().clock);
/// health.register("store", || async { HealthFinding::up() });
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
    by_name: BTreeMap<String, Check>,
    /// Grows with each change, so that results of an older set are not taken for the present one.
    version: u64,
}

type Ask = Arc<dyn Fn() -> BoxFuture<'static, HealthFinding> + Send + Sync>;

#[derive(Clone)]
struct Check {
    ask: Ask,
    /// Whether we are ready only while it is not down.
    is_required: bool,
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

    /// Asks `check` about the part called `name` from now on.
    ///
    /// It has [`CHECK_TIMEOUT`] to answer and is dropped after that, so it must be safe to cancel;
    /// one that panics is down. A second check of the same name takes the place of the first.
    pub fn register<F, R>(&self, name: impl Into<String>, check: F)
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = HealthFinding> + Send + 'static,
    {
        // The call itself goes into the future too, so that a panic there is caught as well.
        let check = Arc::new(check);
        let ask = move || -> BoxFuture<'static, HealthFinding> {
            let check = Arc::clone(&check);
            Box::pin(async move { check().await })
        };
        self.add(name.into(), Arc::new(ask), true);
    }

    /// Asks a component about itself from now on, under the same rules.
    pub fn watch(&self, component: &Arc<dyn Component>) {
        let asked = Arc::clone(component);
        let ask = move || -> BoxFuture<'static, HealthFinding> {
            let asked = Arc::clone(&asked);
            Box::pin(async move { asked.health().await })
        };
        let name = component.name().to_owned();
        self.add(name, Arc::new(ask), component.gates_readiness());
    }

    fn add(&self, name: String, ask: Ask, is_required: bool) {
        let mut checks = self.shared.checks.lock();
        checks.by_name.insert(name, Check { ask, is_required });
        checks.version += 1;
    }

    /// Forgets the check of the part called `name`. Forgetting it twice changes nothing.
    pub fn forget(&self, name: &str) {
        let mut checks = self.shared.checks.lock();
        checks.by_name.remove(name);
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

    /// The loops that have not beaten in time.
    pub(crate) fn stalled(&self) -> Vec<HealthPart> {
        self.shared.loops.stalled()
    }

    /// What the checks say, in the order of their names. Takes at most [`CHECK_TIMEOUT`], twice
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
            .map(|(name, check)| -> BoxFuture<'_, HealthPart> { Box::pin(self.ask(name, check)) })
            .collect();
        let parts = future::all(running).await;
        *results = Some(Results {
            version,
            at: self.shared.clock.elapsed(),
            parts: parts.clone(),
        });
        parts
    }

    async fn ask(&self, name: String, check: Check) -> HealthPart {
        let answer = CatchPanic((check.ask)());
        let finding = match self.shared.clock.within(CHECK_TIMEOUT, answer).await {
            Some(Ok(finding)) => finding,
            Some(Err(panic)) => {
                crate::telemetry::check_panicked(&name, &panic);
                HealthFinding::down("the check panicked")
            }
            None => HealthFinding::down(format!("no answer within {CHECK_TIMEOUT:?}")),
        };
        HealthPart::new(name, check.is_required, finding)
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
