//! The seeded executor.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate_core::Mutex;
use tidegate_core::env::{BoxFuture, Entropy, Stream, TaskOutcome};
use tokio::sync::oneshot;

use crate::disk::{Killed, Survivors};
use crate::node::{Node, NodeId, NodeState};
use crate::stray;
use crate::trace::Trace;

/// Steps without time moving on; past it the run is a loop that never waits.
const MAX_STEPS_AT_ONE_INSTANT: u64 = 1_000_000;

/// A deterministic world: nodes, their tasks, one time.
///
/// **May fail:** any ready task may go next; nodes crash and restart; disks and clocks do what
/// [`SimDisk`](crate::SimDisk) and [`SimClock`](crate::SimClock) say. **Must not fail:** the same
/// seed and the same code do the same, in every process; a task that is woken runs; a crashed node
/// does nothing any more.
pub struct Sim {
    seed: u64,
    shared: Arc<Shared>,
    tasks: BTreeMap<TaskId, RunningTask>,
    schedule: Stream,
    steps_at_this_instant: u64,
}

pub(crate) type TaskId = u64;

struct RunningTask {
    node: NodeId,
    future: BoxFuture<'static>,
    waker: Arc<TaskWaker>,
    tell: oneshot::Sender<TaskOutcome>,
}

/// The part of the world that nodes, clocks and wakers reach.
pub(crate) struct Shared {
    state: Mutex<State>,
    ready: Mutex<Vec<TaskId>>,
    pub(crate) trace: Trace,
}

struct State {
    now: Duration,
    timers: BTreeMap<(Duration, u64), Waker>,
    next_timer: u64,
    spawned: Vec<(
        TaskId,
        NodeId,
        BoxFuture<'static>,
        oneshot::Sender<TaskOutcome>,
    )>,
    aborted: Vec<TaskId>,
    next_task: TaskId,
    nodes: Vec<NodeState>,
}

impl Shared {
    pub(crate) fn now(&self) -> Duration {
        self.state.lock().now
    }

    pub(crate) fn set_timer(&self, until: Duration, waker: Waker) -> u64 {
        let mut state = self.state.lock();
        state.next_timer += 1;
        let timer = state.next_timer;
        state.timers.insert((until, timer), waker);
        timer
    }

    pub(crate) fn cancel_timer(&self, until: Duration, timer: u64) {
        self.state.lock().timers.remove(&(until, timer));
    }

    fn next_timer(&self) -> Option<Duration> {
        self.state.lock().timers.keys().next().map(|(at, _)| *at)
    }

    pub(crate) fn with_node<T>(&self, node: NodeId, act: impl FnOnce(&mut NodeState) -> T) -> T {
        act(&mut self.state.lock().nodes[node.0])
    }

    pub(crate) fn clock_offset_ms(&self, node: NodeId) -> i64 {
        self.with_node(node, |state| state.clock_offset_ms)
    }

    /// Starts a task of this life of a node; a life that is over starts nothing any more.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        node: NodeId,
        life: u64,
        name: &str,
        future: BoxFuture<'static>,
    ) -> (oneshot::Receiver<TaskOutcome>, TaskId) {
        let (tell, done) = oneshot::channel();
        let mut state = self.state.lock();
        state.next_task += 1;
        let id = state.next_task;
        let is_current = state.nodes[node.0].life == life && state.nodes[node.0].is_up;
        if is_current {
            self.trace
                .add(&[b"spawn", name.as_bytes(), &id.to_le_bytes()]);
            state.spawned.push((id, node, future, tell));
        } else {
            // Dropping a future may run code that looks at the state.
            drop(state);
            drop(future);
        }
        (done, id)
    }

    pub(crate) fn abort(&self, task: TaskId) {
        self.state.lock().aborted.push(task);
    }
}

struct TaskWaker {
    id: TaskId,
    is_queued: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::Relaxed) {
            self.shared.ready.lock().push(self.id);
        }
    }
}

impl Sim {
    /// A world that follows from `seed`.
    ///
    /// # Panics
    /// Inside a tokio runtime: stray tasks would find it, and the run would not be repeatable.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        assert!(
            tokio::runtime::Handle::try_current().is_err(),
            "a simulation runs in a plain #[test], without a tokio runtime around it"
        );
        let state = State {
            now: Duration::ZERO,
            timers: BTreeMap::new(),
            next_timer: 0,
            spawned: Vec::new(),
            aborted: Vec::new(),
            next_task: 0,
            nodes: Vec::new(),
        };
        let shared = Shared {
            state: Mutex::new(state),
            ready: Mutex::default(),
            trace: Trace::default(),
        };
        Self {
            seed,
            shared: Arc::new(shared),
            tasks: BTreeMap::new(),
            schedule: Stream::new(seed).stream("schedule"),
            steps_at_this_instant: 0,
        }
    }

    /// A stream of randomness for the script of this run.
    #[must_use]
    pub fn entropy(&self, name: &str) -> Stream {
        Stream::new(self.seed).stream(name)
    }

    /// Adds a node, up and idle, with an empty disk.
    #[must_use]
    pub fn node(&mut self, name: &str) -> Node {
        let mut state = self.shared.state.lock();
        let id = NodeId(state.nodes.len());
        let entropy = Stream::new(self.seed).stream(&format!("node {} {name}", id.0));
        state
            .nodes
            .push(NodeState::new(name, entropy, &self.shared.trace));
        drop(state);
        Node::new(Arc::clone(&self.shared), id)
    }

    /// The time since the run began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    /// The hash of everything that happened, see [`Trace`].
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.shared.trace.clone()
    }

    /// Takes the power from a node: its tasks are gone, its disk keeps what it might keep.
    pub fn crash(&mut self, node: &Node) {
        self.crash_node(node.id());
    }

    /// Ends a node's process and leaves the machine running: its tasks are gone, and its disk has
    /// everything that was written.
    pub fn kill(&mut self, node: &Node) {
        self.end_node(node.id(), |_, disk| disk.end_process());
    }

    /// Brings a node back, with the disk it has. Restarting a node that is up does nothing.
    pub fn restart(&mut self, node: &Node) {
        let now = self.now();
        self.shared.with_node(node.id(), |state| state.restart(now));
        self.shared
            .trace
            .add(&[b"restart", &node.id().0.to_le_bytes()]);
    }

    /// Runs `future` on `node` until it completes.
    ///
    /// # Panics
    /// When the future panics, when its node crashes, or when nothing can ever wake it again.
    pub fn block_on<T: Send + 'static>(
        &mut self,
        node: &Node,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (give, mut taken) = oneshot::channel();
        let task = node.start("block_on", async move {
            give.send(future.await).ok();
        });
        let mut joined = Box::pin(task.join());
        loop {
            if let Ok(value) = taken.try_recv() {
                return value;
            }
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(outcome) = joined.as_mut().poll(&mut context)
                && outcome != TaskOutcome::Completed
            {
                self.fail(&format!("block_on ended with {outcome:?}"));
            }
            if !self.step() {
                self.fail("block_on: nothing is ready and no timer is set");
            }
        }
    }

    /// Runs until `is_done`, for at most `limit`, and says whether it is.
    pub fn run_until(&mut self, limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
        let end = self.now().saturating_add(limit);
        loop {
            if is_done() {
                return true;
            }
            let next = self.shared.next_timer();
            let can_act = self.has_ready() || next.is_some_and(|at| at <= end);
            if !can_act || !self.step() {
                self.advance_to(end);
                return is_done();
            }
        }
    }

    /// Runs for this long, also when there is nothing to do.
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, || false);
    }

    /// Does one thing: runs a ready task, or moves time on to the next timer. Says whether there
    /// was anything to do.
    pub fn step(&mut self) -> bool {
        self.take_spawned_and_aborted();
        let picked = {
            let mut ready = self.shared.ready.lock();
            let entropy: &mut dyn Entropy = &mut self.schedule;
            let index = usize::try_from(entropy.below(ready.len() as u64)).unwrap_or(0);
            (!ready.is_empty()).then(|| ready.swap_remove(index))
        };
        match picked {
            Some(task) => self.poll(task),
            None => return self.fire_next_timers(),
        }
        self.steps_at_this_instant += 1;
        if self.steps_at_this_instant > MAX_STEPS_AT_ONE_INSTANT {
            self.fail("a task keeps itself busy without ever waiting");
        }
        true
    }

    fn has_ready(&self) -> bool {
        !self.shared.ready.lock().is_empty() || !self.shared.state.lock().spawned.is_empty()
    }

    fn take_spawned_and_aborted(&mut self) {
        let (spawned, aborted) = {
            let mut state = self.shared.state.lock();
            (
                std::mem::take(&mut state.spawned),
                std::mem::take(&mut state.aborted),
            )
        };
        for (id, node, future, tell) in spawned {
            let waker = Arc::new(TaskWaker {
                id,
                is_queued: AtomicBool::new(false),
                shared: Arc::clone(&self.shared),
            });
            Arc::clone(&waker).wake();
            self.tasks.insert(
                id,
                RunningTask {
                    node,
                    future,
                    waker,
                    tell,
                },
            );
        }
        for id in aborted {
            if let Some(task) = self.tasks.remove(&id) {
                self.shared.trace.add(&[b"abort", &id.to_le_bytes()]);
                self.drop_future(task.future);
            }
        }
    }

    fn poll(&mut self, id: TaskId) {
        // A task that ended, or whose node crashed, may still have been woken.
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let now = self.shared.now();
        let node = task.node;
        self.shared
            .trace
            .add(&[b"poll", &id.to_le_bytes(), &now.as_nanos().to_le_bytes()]);
        task.waker.is_queued.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&task.waker));
        let mut context = Context::from_waker(&waker);
        let future = task.future.as_mut();
        let (polled, strayed) =
            stray::watched(|| catch_unwind(AssertUnwindSafe(|| future.poll(&mut context))));
        if let Some(stray) = strayed {
            self.fail(&format!("a task reached around the simulation at {stray}"));
        }
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => self.finish(id, TaskOutcome::Completed),
            Err(payload) if payload.is::<Killed>() => {}
            Err(payload) => self.finish(id, TaskOutcome::panicked(payload.as_ref())),
        }
        // The disk may have ended the node in the middle of the step, whoever caught the unwinding.
        if self
            .shared
            .with_node(node, |state| state.is_up && state.disk.is_killed())
        {
            self.crash_node(node);
        }
    }

    fn finish(&mut self, id: TaskId, outcome: TaskOutcome) {
        let Some(task) = self.tasks.remove(&id) else {
            return;
        };
        self.shared.trace.add(&[b"finish", &id.to_le_bytes()]);
        self.drop_future(task.future);
        if let Err(TaskOutcome::Panicked(message)) = task.tell.send(outcome) {
            self.fail(&format!("a task that nobody joins panicked: {message}"));
        }
    }

    fn crash_node(&mut self, node: NodeId) {
        self.end_node(node, |entropy, disk| {
            let survivors = Survivors::Random(entropy.next_u64());
            disk.crash(&survivors);
        });
    }

    fn end_node(&mut self, node: NodeId, cut: impl FnOnce(&mut Stream, &crate::SimDisk)) {
        self.shared.trace.add(&[b"end", &node.0.to_le_bytes()]);
        // The disk goes first, so that nothing that runs while tasks are dropped can reach it.
        let disk = self.shared.with_node(node, |state| {
            state.is_up = false;
            state.disk.kill();
            state.disk.clone()
        });
        let gone: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.node == node)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if let Some(task) = self.tasks.remove(&id) {
                self.drop_future(task.future);
            }
        }
        let mine = |(_, owner, ..): &(TaskId, NodeId, BoxFuture<'static>, _)| *owner == node;
        let never_begun: Vec<_> = {
            let mut state = self.shared.state.lock();
            let all = std::mem::take(&mut state.spawned);
            let (mine, others) = all.into_iter().partition(mine);
            state.spawned = others;
            mine
        };
        drop(never_begun);
        self.shared
            .with_node(node, |state| cut(&mut state.crashes, &disk));
    }

    /// Drops a future, whose own clean-up may panic because its node is gone.
    fn drop_future(&self, future: BoxFuture<'static>) {
        let ((), strayed) = stray::watched(|| {
            catch_unwind(AssertUnwindSafe(|| drop(future))).ok();
        });
        if let Some(stray) = strayed {
            self.fail(&format!("a task reached around the simulation at {stray}"));
        }
    }

    fn fire_next_timers(&mut self) -> bool {
        let next = self.shared.next_timer();
        match next {
            Some(at) => self.advance_to(at),
            None => return false,
        }
        true
    }

    fn advance_to(&mut self, at: Duration) {
        let due: Vec<Waker> = {
            let mut state = self.shared.state.lock();
            if at > state.now {
                state.now = at;
                self.steps_at_this_instant = 0;
            }
            let now = state.now;
            let later = state.timers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.timers, later)
                .into_values()
                .collect()
        };
        for waker in due {
            waker.wake();
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!(
            "simulation with seed {:#x} failed at {:?}: {what}",
            self.seed,
            self.now()
        );
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Sim(seed {:#x}, {:?}, {} tasks)",
            self.seed,
            self.now(),
            self.tasks.len()
        )
    }
}
