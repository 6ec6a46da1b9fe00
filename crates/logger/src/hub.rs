//! What all tasks of a logger share, and how events pass from one to the next.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::EventIds;
use tidegate_core::books::{Books, LossReason, Place};
use tidegate_core::env::{Clock, Entropy};
use tokio::sync::{Notify, mpsc};

use crate::api::Api;
use crate::config::LoggerConfig;
use crate::hand::Hand;
use crate::loss::{Loss, reason};
use crate::state::{Phase, Queued, State};

/// Losses that wait for a slow callback; past it, whoever finds one calls it itself.
const LOSS_QUEUE: usize = 1_024;

/// Told of each event that is lost or set aside.
pub type LossCallback = Arc<dyn Fn(&Loss<'_>) + Send + Sync>;

/// A loss on its way to the callback.
pub(crate) struct Lost {
    pub(crate) queued: Option<Queued>,
    pub(crate) reason: LossReason,
}

pub(crate) struct Hub {
    pub(crate) config: LoggerConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) api: Arc<dyn Api>,
    pub(crate) ids: EventIds,
    entropy: Mutex<Box<dyn Entropy>>,
    state: Mutex<State>,
    hand: Mutex<Hand>,
    on_loss: Option<LossCallback>,
    losses: mpsc::Sender<Lost>,
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
        let (losses, lost) = mpsc::channel(LOSS_QUEUE);
        let shared = Self {
            ids: EventIds::new(Arc::clone(&clock), entropy.fork("ids")),
            entropy: Mutex::new(entropy.fork("backoff")),
            config,
            clock,
            api,
            state: Mutex::new(state),
            hand: Mutex::new(Hand::default()),
            on_loss,
            losses,
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

    /// A copy of the books of now.
    pub(crate) fn books(&self) -> Books {
        self.state().books().clone()
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
    /// Without a spill they are lost for the given reason.
    pub(crate) async fn spill_or_lose(&self, mut events: Vec<Queued>, reason: LossReason) {
        events.reverse();
        loop {
            // Made before the lock is taken, so that room made in between is not missed.
            let room = self.room.notified();
            let has_more = {
                let mut state = self.state();
                if self.config.spillover_path.is_none() {
                    break;
                }
                if state.spill_failure.is_some() {
                    drop(state);
                    events.reverse();
                    self.lose(events, Place::InFlight, reason::SPILLOVER_WRITE_ERROR);
                    return;
                }
                // While we stop nothing new comes in, so what is in memory is bounded already, and
                // nobody may be left holding events that a hanging disk would keep for ever.
                let is_stopping = state.phase > Phase::Running;
                while (is_stopping || state.spill_depth() < self.config.queue_capacity)
                    && let Some(event) = events.pop()
                {
                    state.push_spill(event);
                }
                !events.is_empty()
            };
            self.writer_bell.notify_one();
            if !has_more {
                return;
            }
            room.await;
        }
        events.reverse();
        self.lose(events, Place::InFlight, reason);
    }

    /// Posts these events as lost and reports each once.
    pub(crate) fn lose(&self, events: Vec<Queued>, from: Place, reason: LossReason) {
        if events.is_empty() {
            return;
        }
        {
            let mut state = self.state();
            state.post(
                events.iter().map(|q| q.id),
                from,
                Place::Lost(reason.clone()),
            );
            state.counters.failed += events.len() as u64;
        }
        for mut queued in events {
            queued.tell(Err(reason.clone()));
            self.report(Lost {
                queued: Some(queued),
                reason: reason.clone(),
            });
        }
        self.progress.notify_waiters();
    }

    /// Hands a loss to the callback, on the task that is there for it, or here if too many wait.
    pub(crate) fn report(&self, lost: Lost) {
        if self.on_loss.is_none() {
            return;
        }
        if let Err(
            mpsc::error::TrySendError::Full(lost) | mpsc::error::TrySendError::Closed(lost),
        ) = self.losses.try_send(lost)
        {
            self.call_back(&lost);
        }
    }

    /// Calls the callback; its panic is its own.
    pub(crate) fn call_back(&self, lost: &Lost) {
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
