//! An Event Log API on a real port.

mod fault;
mod line;
mod serve;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::stored::Stored;
use fault::Faults;
use serve::Running;

pub use fault::{Fault, Request};

/// Largest body that the API takes.
const MAX_BODY: usize = 1024 * 1024;

/// Most events that a batch may hold, unless the stub is told otherwise.
const MAX_BATCH: usize = 1_000;

/// How many of the newest requests a stub remembers.
const REMEMBERED: usize = 1_000;

/// How often a wait looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// An Event Log API on a port of this machine that fails on demand.
///
/// It runs on a thread of its own, so tests without a runtime and other processes can use it. It
/// answers `POST /v1/events` and `POST /v1/events/batch` as the real one does; what arrived is
/// asked through [`Stored`]. Dropping it closes the port.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::{EventId, env::system::SystemClock};
/// use tidegate_logger::{ApiAnswer, Api, HttpApi, Payload};
/// use tidegate_testkit::{Fault, StubApi};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let stub = StubApi::start()?;
/// stub.fail_next(Fault::ApplyThenDrop);
///
/// let api = HttpApi::builder(stub.url()).build(Arc::new(SystemClock::new())).unwrap();
/// let event = Payload { id: EventId::from_u128(7), json: r#"{"details":"hello"}"#.into() };
/// assert!(matches!(api.send(&[event.clone()]).await, ApiAnswer::Failed(_)));
/// assert!(matches!(api.send(&[event.clone()]).await, ApiAnswer::PerEvent(_)));
///
/// assert_eq!(stub.ids(), [event.id]);
/// assert_eq!((stub.requests(), stub.duplicates()), (2, 1));
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct StubApi {
    shared: Arc<Shared>,
    address: SocketAddr,
    running: Mutex<Option<Running>>,
}

struct Shared {
    stored: Stored,
    faults: Mutex<Faults>,
    token: Mutex<Option<String>>,
    seen: Mutex<VecDeque<Request>>,
    limits: Limits,
}

struct Limits {
    max_body: usize,
    max_batch: usize,
}

impl Shared {
    fn note(&self, request: Request) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() == REMEMBERED {
            seen.pop_front();
        }
        seen.push_back(request);
    }
}

impl StubApi {
    /// Starts on a free port, with an empty store.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn start() -> io::Result<Self> {
        Self::start_with(Stored::new())
    }

    /// Starts on a free port in front of this store.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn start_with(stored: Stored) -> io::Result<Self> {
        Self::start_at(
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            stored,
            MAX_BATCH,
        )
    }

    /// Starts at this address in front of this store, for batches of at most `max_batch` events.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub fn start_at(address: SocketAddr, stored: Stored, max_batch: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            stored,
            faults: Mutex::default(),
            token: Mutex::default(),
            seen: Mutex::default(),
            limits: Limits {
                max_body: MAX_BODY,
                max_batch,
            },
        });
        let (running, address) = Running::start(address, Arc::clone(&shared))?;
        Ok(Self {
            shared,
            address,
            running: Mutex::new(Some(running)),
        })
    }

    /// The base address for a client, without `/v1`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address of the port, which stays the same over [`down`](Self::down) and
    /// [`up`](Self::up).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The events that arrived.
    #[must_use]
    pub fn store(&self) -> &Stored {
        &self.shared.stored
    }

    /// Lets this go wrong with the next request that has no fault in line yet.
    pub fn fail_next(&self, fault: Fault) {
        self.faults().line.push_back(fault);
    }

    /// Lets `rule` decide what goes wrong with each request, once no fault is in line.
    pub fn fail_by(&self, rule: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static) {
        self.faults().rule = Some(Box::new(rule));
    }

    /// Lets this go wrong with every request, once no fault is in line.
    pub fn fail_always(&self, fault: Fault) {
        self.fail_by(move |_| Some(fault.clone()));
    }

    /// Forgets every fault. Requests that hang keep hanging.
    pub fn heal(&self) {
        *self.faults() = Faults::default();
    }

    /// From now on only requests with this bearer token get through.
    pub fn require_token(&self, token: impl Into<String>) {
        let mut required = self
            .shared
            .token
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *required = Some(token.into());
    }

    /// From now on no token is needed.
    pub fn require_no_token(&self) {
        let mut required = self
            .shared
            .token
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *required = None;
    }

    /// Closes the port and every connection; what is stored stays. Returns once the port is
    /// closed. Twice is as good as once.
    pub fn down(&self) {
        let running = self.running().take();
        if let Some(running) = running {
            running.stop();
        }
    }

    /// Opens the same port again. When it is open already, nothing happens.
    ///
    /// # Errors
    /// Another process has taken the port and keeps it.
    pub fn up(&self) -> io::Result<()> {
        let mut running = self.running();
        if running.is_none() {
            let (again, _) = Running::start(self.address, Arc::clone(&self.shared))?;
            *running = Some(again);
        }
        Ok(())
    }

    /// The newest requests, oldest first; at most 1,000 are remembered.
    #[must_use]
    pub fn seen(&self) -> Vec<Request> {
        let seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        seen.iter().cloned().collect()
    }

    /// Waits until `fact` holds.
    ///
    /// # Panics
    /// It does not hold within `limit`.
    pub async fn wait_until(&self, fact: impl Fn(&Self) -> bool, limit: Duration) {
        let start = Instant::now();
        while !fact(self) {
            self.check_limit(start, limit);
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// [`wait_until`](Self::wait_until) for tests without a runtime: it blocks its thread.
    ///
    /// # Panics
    /// `fact` does not hold within `limit`.
    #[track_caller]
    pub fn wait_until_blocking(&self, fact: impl Fn(&Self) -> bool, limit: Duration) {
        let start = Instant::now();
        while !fact(self) {
            self.check_limit(start, limit);
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    #[track_caller]
    fn check_limit(&self, start: Instant, limit: Duration) {
        assert!(
            start.elapsed() < limit,
            "still not so after {limit:?}: {self:?}"
        );
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.shared
            .faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for StubApi {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.shared.stored
    }
}

impl Drop for StubApi {
    fn drop(&mut self) {
        self.down();
    }
}

impl fmt::Debug for StubApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StubApi({}: {:?})", self.address, self.shared.stored)
    }
}
