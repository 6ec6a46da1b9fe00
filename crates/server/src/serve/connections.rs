//! Room for connections, and how it is made.
//!
//! A connection that asks nothing must not keep out one that does: a probe has to be answered even
//! while thousands of sockets lie idle. So when all places are taken, the connection that has been
//! idle the longest is asked to leave. One with a request in flight never is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Mutex;
use tidegate_core::env::Clock;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::telemetry::{self, Limit};

/// How long a connection gets to leave before the next one is asked, too.
const LEAVE_LIMIT: Duration = Duration::from_millis(100);

/// The places for connections.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    places: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// A connection has become idle.
    became_idle: Notify,
}

/// The idle connections by the turn in which they became so: the first has idled the longest.
#[derive(Debug, Default)]
struct Idle {
    turn: u64,
    leave: BTreeMap<u64, Arc<Notify>>,
}

impl ConnectionLimiter {
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            idle: Mutex::default(),
            became_idle: Notify::new(),
        })
    }

    /// Waits for a place, and sees to it that one becomes free as long as anybody is idle.
    pub(super) async fn permit(self: &Arc<Self>, clock: &dyn Clock) -> ConnectionPermit {
        let place = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) => {
                telemetry::limit_hit(Limit::Connections);
                self.make_room(clock).await
            }
        };
        let leave = Arc::new(Notify::new());
        let turn = self.wait_idle(&leave);
        ConnectionPermit {
            connections: Arc::clone(self),
            leave,
            state: Mutex::new(Requests { now: 0, turn }),
            _place: place,
        }
    }

    async fn make_room(&self, clock: &dyn Clock) -> Option<OwnedSemaphorePermit> {
        loop {
            let became_idle = self.became_idle.notified();
            let asked = self.idle.lock().leave.pop_first();
            let is_asked = asked.is_some();
            if let Some((_, leave)) = asked {
                leave.notify_one();
            }
            let pause = async {
                if is_asked {
                    clock.sleep(LEAVE_LIMIT).await;
                } else {
                    became_idle.await;
                }
            };
            tokio::select! {
                biased;
                // It fails only when the semaphore is closed, which nobody does.
                place = Arc::clone(&self.places).acquire_owned() => return place.ok(),
                () = pause => {}
            }
        }
    }

    fn wait_idle(&self, leave: &Arc<Notify>) -> u64 {
        let mut idle = self.idle.lock();
        idle.turn += 1;
        let turn = idle.turn;
        idle.leave.insert(turn, Arc::clone(leave));
        drop(idle);
        self.became_idle.notify_waiters();
        turn
    }
}

/// The place of one connection. Dropping it makes room.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    connections: Arc<ConnectionLimiter>,
    leave: Arc<Notify>,
    state: Mutex<Requests>,
    _place: Option<OwnedSemaphorePermit>,
}

/// The requests of a connection. A client may send the next before it has read the last response.
#[derive(Debug)]
struct Requests {
    now: u64,
    /// Since when there are none.
    turn: u64,
}

impl ConnectionPermit {
    /// Waits until the connection is asked to leave.
    pub(super) async fn asked_to_leave(&self) {
        self.leave.notified().await;
    }

    /// Whether a request is being answered.
    pub(super) fn is_busy(&self) -> bool {
        self.state.lock().now > 0
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        let mut requests = self.state.lock();
        requests.now += 1;
        if requests.now == 1 {
            self.connections.idle.lock().leave.remove(&requests.turn);
        }
        drop(requests);
        Busy(Arc::clone(self))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let turn = self.state.lock().turn;
        self.connections.idle.lock().leave.remove(&turn);
    }
}

/// A request of a connection, up to the last byte of its response.
#[derive(Debug)]
pub(super) struct Busy(Arc<ConnectionPermit>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut requests = self.0.state.lock();
        requests.now -= 1;
        if requests.now == 0 {
            requests.turn = self.0.connections.wait_idle(&self.0.leave);
        }
    }
}
