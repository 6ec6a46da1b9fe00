//! What all tasks of a logger share, and how events pass from one to the next.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Books, LossReason, Place};
use tidegate_core::env::{Clock, Entropy};
use tokio::sync::mpsc;

use crate::api::Api;
use crate::config::LoggerConfig;
use crate::hand::Hand;
use crate::loss::{Loss, reason};
use crate::state::{Phase, Queued, State};

use super::held::Held;
use super::sync::{
    AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Notify, Ordering, PoisonError,
};

/// Losses that can wait for a slow callback at least. As many fit as both queues hold, so that what
/// a stop loses at once is told; past it a loss is counted and logged, and the callback not told.
const LOSS_QUEUE: usize = 1_024;

/// Told of each event that is lost or set aside.
pub type LossCallback = Arc<dyn Fn(&Loss<'_>) + Send + Sync>;

/// A loss on its way to the callback.
pub(crate) struct Lost {
    pub(crate) queued: Option<Queued>,
    pub(crate) reason: LossReason,
}

/// Events that were posted as lost, on their way to those who wait for them and to the callback.
#[must_use = "a loss is reported"]
pub(crate) struct Unreported {
    events: Vec<Queued>,
    reason: LossReason,
}

/// A fact that becomes true once, and wakes those who wait for it in the order in which they came:
/// a simulated run must be the same each time.
#[derive(Default)]
pub(crate) struct Flag {
    is_set: AtomicBool,
    bell: Notify,
}

impl Flag {
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.bell.notify_waiters();
    }

    pub(crate) async fn wait(&self) {
        loop {
            let bell = self.bell.notified();
            if self.is_set.load(Ordering::SeqCst) {
                return;
            }
            bell.await;
        }
    }
}

pub(crate) struct Hub {
    pub(crate) config: LoggerConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) api: Arc<dyn Api>,
    entropy: Mutex<Box<dyn Entropy>>,
    state: Mutex<State>,
    hand: Mutex<Hand>,
    on_loss: Option<LossCallback>,
    losses: mpsc::Sender<Lost>,
    /// Losses that the callback has not heard of yet.
    waiting_losses: AtomicU64,
    /// The minute in which old buckets of the books were last folded.
    folded_at: AtomicU64,
    /// Set when requests on their way are to be given up.
    pub(crate) abandoned: Flag,
    /// Rung when the main queue has something, or the breaker allows something.
    pub(crate) sender_bell: Notify,
    /// Rung when the spill queue has something.
    pub(crate) writer_bell: Notify,
    /// Rung when there may be something to replay.
    pub(crate) replay_bell: Notify,
    /// Rung when a timer may be due earlier than before.
    pub(crate) keeper_bell: Notify,
    /// Rung when anything leaves memory.
    pub(crate) progress: Notify,
    /// Rung when there is room again: for tasks and for threads.
    pub(crate) room: Notify,
    room_for_threads: Condvar,
}

impl Hub {
    pub(crate) fn new(
        config: LoggerConfig,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        api: Arc<dyn Api>,
        state: State,
        on_loss: Option<LossCallback>,
    ) -> (Arc<Self>, mpsc::Receiver<Lost>) {
        let room = config.queue_capacity.saturating_mul(2).max(LOSS_QUEUE);
        let (losses, lost) = mpsc::channel(room.min(tokio::sync::Semaphore::MAX_PERMITS));
        let shared = Self {
            entropy: Mutex::new(entropy.fork("backoff")),
            config,
            clock,
            api,
            state: Mutex::new(state),
            hand: Mutex::new(Hand::default()),
            on_loss,
            losses,
            waiting_losses: AtomicU64::new(0),
            folded_at: AtomicU64::new(0),
            abandoned: Flag::default(),
            sender_bell: Notify::new(),
            writer_bell: Notify::new(),
            replay_bell: Notify::new(),
            keeper_bell: Notify::new(),
            progress: Notify::new(),
            room: Notify::new(),
            room_for_threads: Condvar::new(),
        };
        (Arc::new(shared), lost)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics under this lock leaves an event out of its place: queues and books
        // are changed by calls that do not panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the spill writer holds. Taken before the state where both are needed.
    pub(crate) fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the books of now, with old buckets folded.
    pub(crate) fn books(&self) -> Books {
        let now_ms = self.clock.now_ms();
        let minute = now_ms / 60_000;
        let mut books = {
            let mut state = self.state();
            // Seldom, because whoever logs waits for it.
            if self.folded_at.swap(minute, Ordering::Relaxed) != minute {
                state.books().fold(now_ms);
            }
            state.books().clone()
        };
        books.fold(now_ms);
        books
    }

    /// Waits on a thread until there may be room.
    pub(crate) fn wait_for_room<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        /// A missed wake-up costs no more than this.
        const NAP: Duration = Duration::from_millis(100);
        state.blocked += 1;
        let waited = self.room_for_threads.wait_timeout(state, NAP);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.blocked -= 1;
        state
    }

    /// Says that there is room.
    pub(crate) fn ring_room(&self) {
        self.room.notify_waiters();
        self.room_for_threads.notify_all();
    }

    /// Wakes everybody: the phase has changed.
    pub(crate) fn ring_all(&self) {
        self.sender_bell.notify_waiters();
        self.sender_bell.notify_one();
        self.writer_bell.notify_one();
        self.replay_bell.notify_one();
        self.keeper_bell.notify_one();
        self.progress.notify_waiters();
        self.ring_room();
    }

    /// The wait before retry number `retry`, counted from 0.
    pub(crate) fn backoff(&self, retry: u32) -> Duration {
        let mut entropy = self.entropy.lock().unwrap_or_else(PoisonError::into_inner);
        self.config.retry.backoff.wait(retry, entropy.as_mut())
    }

    /// Whether events can be spilled.
    pub(crate) fn can_spill(&self, state: &State) -> bool {
        self.config.spillover_path.is_some() && state.spill_failure.is_none()
    }

    /// Gives events to the spill writer, in their order, and waits for room where there is none.
    /// Without a spill they are lost for the given reason. If canceled, or never waited for, they go
    /// there without waiting.
    pub(crate) fn spill_or_lose(
        &self,
        events: Vec<Queued>,
        reason: LossReason,
    ) -> impl Future<Output = ()> + Send {
        let mut held = Held::new(self, events, reason);
        async move {
            while !held.spill_what_fits() {
                // Made before it is tried again, so that room made in between is not missed.
                let room = self.room.notified();
                if held.spill_what_fits() {
                    break;
                }
                room.await;
            }
        }
    }

    /// Gives events to the spill writer at once, whether there is room or not, or reports them as
    /// lost for the given reason: for those who cannot wait.
    pub(crate) fn spill_or_lose_now(&self, events: Vec<Queued>, reason: LossReason) {
        if events.is_empty() {
            return;
        }
        let refused = {
            let mut state = self.state();
            if self.config.spillover_path.is_none() {
                Some(reason)
            } else if state.spill_failure.is_some() {
                Some(reason::SPILLOVER_WRITE_ERROR)
            } else {
                for queued in events {
                    state.push_spill(queued);
                }
                drop(state);
                self.writer_bell.notify_one();
                return;
            }
        };
        if let Some(reason) = refused {
            self.lose(events, reason);
        }
    }

    /// Posts these events as lost and reports each once.
    pub(crate) fn lose(&self, events: Vec<Queued>, reason: LossReason) {
        let unreported = self.post_lost(&mut self.state(), events, reason);
        self.report_lost(unreported);
    }

    /// Posts these events as lost. They count as unreported until [`Self::report_lost`] has them.
    pub(crate) fn post_lost(
        &self,
        state: &mut State,
        events: Vec<Queued>,
        reason: LossReason,
    ) -> Unreported {
        if !events.is_empty() {
            let lost = Place::Lost(reason.clone());
            state.post(events.iter().map(|q| q.id), Place::InFlight, lost);
            state.counters.failed += events.len() as u64;
            if self.on_loss.is_some() {
                self.waiting_losses
                    .fetch_add(events.len() as u64, Ordering::SeqCst);
            }
        }
        Unreported { events, reason }
    }

    /// Tells those who wait for these events, and the callback.
    pub(crate) fn report_lost(&self, Unreported { events, reason }: Unreported) {
        if events.is_empty() {
            return;
        }
        for mut queued in events {
            queued.tell(Err(reason.clone()));
            self.send_report(Lost {
                queued: Some(queued),
                reason: reason.clone(),
            });
        }
        self.progress.notify_waiters();
    }

    /// Hands a loss to the callback, on the thread that is there for it. When too many wait for it,
    /// it is counted as untold instead: a callback that hangs must not stop whoever found the loss.
    pub(crate) fn report(&self, lost: Lost) {
        if self.on_loss.is_none() {
            return;
        }
        self.waiting_losses.fetch_add(1, Ordering::SeqCst);
        self.send_report(lost);
    }

    fn send_report(&self, lost: Lost) {
        if self.on_loss.is_none() {
            return;
        }
        if let Err(refused) = self.losses.try_send(lost) {
            self.waiting_losses.fetch_sub(1, Ordering::SeqCst);
            self.state().counters.untold += 1;
            let (mpsc::error::TrySendError::Full(lost) | mpsc::error::TrySendError::Closed(lost)) =
                refused;
            let id = lost.queued.map(|queued| queued.id.to_string());
            tracing::error!(id, reason = %lost.reason, "a loss that the callback is not told of");
        }
    }

    /// Tells the callback of a loss that waited for it.
    pub(crate) fn tell(&self, lost: &Lost) {
        self.call_back(lost);
        self.waiting_losses.fetch_sub(1, Ordering::SeqCst);
    }

    /// Losses that the callback has not heard of, or not yet.
    pub(crate) fn untold(&self, state: &State) -> u64 {
        state.counters.untold + self.waiting_losses.load(Ordering::SeqCst)
    }

    /// Everything that is still in memory is lost: nobody is left who could send or keep it.
    pub(crate) fn lose_what_is_left(&self, why: &str) {
        let reason = if self.config.spillover_path.is_some() {
            reason::SPILLOVER_WRITE_ERROR
        } else {
            reason::SHUTDOWN_QUEUED
        };
        let (left, aside) = {
            let mut hand = self.hand();
            let mut state = self.state();
            state.spilling = 0;
            let mut left = hand.give_up();
            left.extend(state.spill.drain(..));
            let (waiting, queued) = state.take_unsent();
            left.extend(waiting);
            left.extend(queued);
            let aside: Vec<Queued> = std::mem::take(&mut state.aside).into_values().collect();
            let is_spilling = self.config.spillover_path.is_some();
            if is_spilling && !(left.is_empty() && aside.is_empty()) {
                state.spill_failure.get_or_insert(why.to_owned());
            }
            (
                self.post_lost(&mut state, left, reason),
                self.post_lost(&mut state, aside, reason::REJECTED),
            )
        };
        self.report_lost(left);
        self.report_lost(aside);
    }

    /// Calls the callback; its panic is its own.
    fn call_back(&self, lost: &Lost) {
        let queued = lost.queued.as_ref();
        self.call_back_with(&Loss {
            id: queued.map(|queued| queued.id),
            event: queued.map(|queued| &queued.event),
            reason: &lost.reason,
        });
    }

    pub(crate) fn call_back_with(&self, loss: &Loss<'_>) {
        if let Some(on_loss) = &self.on_loss
            && catch_unwind(AssertUnwindSafe(|| on_loss(loss))).is_err()
        {
            tracing::error!(reason = %loss.reason, "the loss callback panicked");
        }
    }

    /// Whether the logger still sends.
    pub(crate) fn is_sending(&self) -> bool {
        self.state().phase < Phase::Draining
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hub")
    }
}
