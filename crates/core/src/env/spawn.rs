//! Who runs tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tokio::sync::oneshot;

/// A future in a box, so that ports stay object-safe.
pub type BoxFuture<'a, T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who runs tasks.
///
/// An implementation must keep: a task runs until it completes, panics or is aborted; a panic ends
/// that task alone and reaches whoever holds its [`Task`]; tasks make progress independently of
/// each other.
pub trait Spawn: Send + Sync + fmt::Debug {
    /// Starts `task` beside the others. It must not block.
    fn spawn(&self, name: &str, task: BoxFuture<'static>) -> Task;

    /// Starts `task` on a thread of its own, where it may block on disk.
    ///
    /// Writers live here: a state machine that is stepped by one named thread. In a simulation it
    /// is a task like any other, because a simulated disk does not block.
    fn spawn_thread(&self, name: &str, task: BoxFuture<'static>) -> Task;
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// It ran to its end.
    Completed,
    /// It panicked with this message.
    Panicked(String),
    /// It was aborted, or its runtime went away.
    Aborted,
}

impl TaskOutcome {
    /// The outcome of a task that panicked with this payload.
    #[must_use]
    pub fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        Self::Panicked(panic_message(payload))
    }
}

pub(super) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let message = payload.downcast_ref::<&'static str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("a panic without a message").to_owned()
}

/// A running task. Dropping it lets the task run on.
#[must_use = "a task that nobody joins cannot report its panic"]
pub struct Task {
    done: oneshot::Receiver<TaskOutcome>,
    abort: Box<dyn Fn() + Send + Sync>,
}

impl Task {
    /// Ties a task to the channel that reports its end and to what aborts it; for implementations
    /// of [`Spawn`].
    pub fn new(
        done: oneshot::Receiver<TaskOutcome>,
        abort: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            done,
            abort: Box::new(abort),
        }
    }

    /// Waits for the end of the task. If canceled, the task runs on and cannot be joined again.
    pub async fn join(self) -> TaskOutcome {
        self.done.await.unwrap_or(TaskOutcome::Aborted)
    }

    /// Asks the task to end at its next await. A task on a thread of its own ends only when it
    /// awaits; calling this twice, or after the end, changes nothing.
    pub fn abort(&self) {
        (self.abort)();
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}
