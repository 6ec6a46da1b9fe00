//! Simulated machines.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{BoxFuture, Entropy, Env, Spawn, Stream, Task};

use crate::disk::SimDisk;
use crate::executor::Shared;
use crate::time::SimClock;
use crate::trace::Trace;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId(pub(crate) usize);

pub(crate) struct NodeState {
    name: String,
    pub(crate) is_up: bool,
    /// Counts restarts, so that what is left of an earlier life can do nothing.
    pub(crate) life: u64,
    up_since: Duration,
    pub(crate) clock_offset_ms: i64,
    pub(crate) disk: SimDisk,
    /// Decides what a crash leaves on the disk.
    pub(crate) crashes: Stream,
    entropy: Stream,
}

impl NodeState {
    pub(crate) fn new(name: &str, entropy: Stream, trace: &Trace) -> Self {
        Self {
            name: name.to_owned(),
            is_up: true,
            life: 0,
            up_since: Duration::ZERO,
            clock_offset_ms: 0,
            disk: SimDisk::traced(entropy.stream("disk"), trace.clone()),
            crashes: entropy.stream("crashes"),
            entropy,
        }
    }

    pub(crate) fn restart(&mut self, now: Duration) {
        if !self.is_up {
            self.is_up = true;
            self.life += 1;
            self.up_since = now;
            // A kill was meant for the life in which it was set.
            self.disk.forget_kill();
        }
    }
}

/// A simulated machine: a disk that outlives crashes, a clock of its own, and tasks.
///
/// Cloning gives another handle on the same machine.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
    id: NodeId,
}

impl Node {
    pub(crate) fn new(shared: Arc<Shared>, id: NodeId) -> Self {
        Self { shared, id }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// The ports of the node's present life. After a restart, take them anew.
    #[must_use]
    pub fn env(&self) -> Env {
        let (life, since, disk, entropy) = self.shared.with_node(self.id, |state| {
            let entropy = state.entropy.stream(&format!("life {}", state.life));
            (
                state.life,
                state.up_since,
                state.disk.of_this_life(),
                entropy,
            )
        });
        Env {
            clock: Arc::new(SimClock::new(Arc::clone(&self.shared), self.id, since)),
            entropy: entropy.fork("env"),
            disk: Arc::new(disk),
            spawn: Arc::new(SimSpawn {
                shared: Arc::clone(&self.shared),
                node: self.id,
                life,
            }),
        }
    }

    /// Starts a task on the node.
    pub fn start(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) -> Task {
        self.env().spawn.spawn(name, Box::pin(task))
    }

    /// The disk of the node, to script its faults and to look at it after a crash.
    #[must_use]
    pub fn disk(&self) -> SimDisk {
        self.shared.with_node(self.id, |state| state.disk.clone())
    }

    /// Whether the node is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.with_node(self.id, |state| state.is_up)
    }

    /// Sets how far the node's wall clock is ahead of the true time; negative for behind. Doing it
    /// while the node runs is a clock that jumps.
    pub fn set_clock_offset_ms(&self, offset_ms: i64) {
        self.shared
            .with_node(self.id, |state| state.clock_offset_ms = offset_ms);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.with_node(self.id, |state| {
            write!(f, "Node({}, up {})", state.name, state.is_up)
        })
    }
}

/// Runs tasks on a simulated node.
///
/// **May fail:** all tasks of a node end when it crashes, and their handles say `Aborted`.
/// **Must not fail:** a panic ends one task alone.
#[derive(Clone)]
pub struct SimSpawn {
    shared: Arc<Shared>,
    node: NodeId,
    life: u64,
}

impl Spawn for SimSpawn {
    fn spawn(&self, name: &str, task: BoxFuture<'static>) -> Task {
        let (done, id) = self.shared.spawn(self.node, self.life, name, task);
        let shared = Arc::clone(&self.shared);
        Task::new(done, move || shared.abort(id))
    }

    fn spawn_thread(&self, name: &str, task: BoxFuture<'static>) -> Task {
        self.spawn(name, task)
    }
}

impl fmt::Debug for SimSpawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimSpawn({:?}, life {})", self.node, self.life)
    }
}
