//! Calls that block, off the async threads, each with a deadline.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Spawn};
use tokio::sync::{Semaphore, oneshot};

/// Calls that may block at the same time. One that never returns keeps its place, so this is also
/// how many threads a client that hangs can take.
const PLACES: usize = 16;

/// Runs blocking calls on threads of their own.
#[derive(Debug, Clone)]
pub(super) struct Workers {
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    places: Arc<Semaphore>,
}

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateCall {
    /// It was not begun.
    NotBegun,
    /// It was begun and has not returned.
    NoAnswer,
}

impl Workers {
    pub(super) fn new(clock: Arc<dyn Clock>, spawn: Arc<dyn Spawn>) -> Self {
        Self {
            clock,
            spawn,
            places: Arc::new(Semaphore::new(PLACES)),
        }
    }

    /// Runs `call` on a thread of its own and waits for it at most so long. A call that takes longer
    /// runs on, and its result is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LateCall> {
        let begin = self.clock.elapsed();
        let place = Arc::clone(&self.places).acquire_owned();
        let Some(Ok(place)) = self.clock.within(limit, place).await else {
            return Err(LateCall::NotBegun);
        };
        let (tell, told) = oneshot::channel();
        let task = async move {
            // The caller may have left.
            tell.send(call()).ok();
            drop(place);
        };
        drop(self.spawn.spawn_thread(name, Box::pin(task)));
        let left = limit.saturating_sub(self.clock.elapsed().saturating_sub(begin));
        match self.clock.within(left, told).await {
            Some(Ok(result)) => Ok(result),
            // No thread could be had, or the call panicked.
            Some(Err(_)) | None => Err(LateCall::NoAnswer),
        }
    }
}
