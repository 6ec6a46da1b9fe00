//! The state that all tasks of a logger share, and how events pass from one to the next.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Books, LossReason, Place};
use tidegate_core::env::{Clock, Entropy};
use tidegate_core::{Backoff, EventId};
use tokio::sync::mpsc;

use crate::api::Api;
use crate::config::LoggerConfig;
use crate::event::Event;
use crate::logger_id::LoggerId;
use crate::loss::{Loss, reason};
use crate::state::{LoggerPhase, LoggerState, Queued};
use crate::writer::SpillBuffer;

use super::sync::{
    AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Notify, Ordering, PoisonError,
};

/// Losses that can wait for a slow callback at least. As many fit as both queues hold, so that all
/// losses of a stop are reported. Further losses are counted and logged only.
const LOSS_QUEUE: usize = 1_024;

/// Called for each event that is lost or set aside.
pub type LossCallback = Arc<dyn Fn(&Loss<'_>) + Send + Sync>;

/// A loss on its way to the callback.
pub(crate) struct LossReport {
    id: Option<EventId>,
    event: Option<Event>,
    reason: LossReason,
}

/// Events that were posted as lost and are still to be reported to waiters and callback.
#[must_use = "a loss is reported"]
pub(crate) struct PostedLosses {
    events: Vec<Queued>,
    reason: LossReason,
}

/// A fact that becomes true once, and wakes those who wait for it in the order in which they came.
/// A simulated run must be the same each time.
#[derive(Default)]
pub(crate) struct Flag {
    is_set: AtomicBool,
    notify: Notify,
}

impl Flag {
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    pub(crate) async fn wait(&self) {
        loop {
            let notified = self.notify.notified();
            if self.is_set.load(Ordering::SeqCst) {
                return;
            }
            notified.await;
        }
    }
}

pub(crate) struct Engine {
    pub(crate) config: LoggerConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) api: Arc<dyn Api>,
    /// The id of the spill directory, if there is one.
    pub(crate) logger_id: Option<LoggerId>,
    entropy: Mutex<Box<dyn Entropy>>,
    backoff: Backoff,
    state: Mutex<LoggerState>,
    spill_buffer: Mutex<SpillBuffer>,
    on_loss: Option<LossCallback>,
    losses: mpsc::Sender<LossReport>,
    /// Losses that wait for the callback.
    waiting_losses: AtomicU64,
    /// The minute in which old buckets of the books were last folded.
    folded_at: AtomicU64,
    /// Set when requests on their way are to be given up.
    pub(crate) abandoned: Flag,
    /// Notified when the main queue has something, or the breaker allows something.
    pub(crate) sender_wake: Notify,
    /// Notified when the spill queue has something.
    pub(crate) writer_wake: Notify,
    /// Notified when there may be something to replay.
    pub(crate) replay_wake: Notify,
    /// Notified when a timer may be due earlier than before.
    pub(crate) timer_wake: Notify,
    /// Notified when anything leaves memory.
    pub(crate) progress: Notify,
    /// Notified when there is room again: for tasks and for threads.
    pub(crate) room: Notify,
    room_for_threads: Condvar,
}

impl Engine {
    pub(crate) fn new(
        config: LoggerConfig,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        api: Arc<dyn Api>,
        logger_id: Option<LoggerId>,
        state: LoggerState,
        on_loss: Option<LossCallback>,
    ) -> (Arc<Self>, mpsc::Receiver<LossReport>) {
        let room = config
            .options
            .queue_capacity
            .saturating_mul(2)
            .max(LOSS_QUEUE);
        let (losses, lost) = mpsc::channel(room.min(tokio::sync::Semaphore::MAX_PERMITS));
        let engine = Self {
            entropy: Mutex::new(entropy.fork("backoff")),
            backoff: config.options.backoff(),
            config,
            clock,
            api,
            logger_id,
            state: Mutex::new(state),
            spill_buffer: Mutex::new(SpillBuffer::default()),
            on_loss,
            losses,
            waiting_losses: AtomicU64::new(0),
            folded_at: AtomicU64::new(0),
            abandoned: Flag::default(),
            sender_wake: Notify::new(),
            writer_wake: Notify::new(),
            replay_wake: Notify::new(),
            timer_wake: Notify::new(),
            progress: Notify::new(),
            room: Notify::new(),
            room_for_threads: Condvar::new(),
        };
        (Arc::new(engine), lost)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LoggerState> {
        // Nothing that panics under this lock leaves an event out of its place: queues and books
        // are changed by calls that do not panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events that the spill writer holds. Locked before the state where both are needed.
    pub(crate) fn spill_buffer(&self) -> MutexGuard<'_, SpillBuffer> {
        self.spill_buffer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the books of now, with old buckets folded.
    pub(crate) fn books(&self) -> Books {
        let now_ms = self.clock.now_ms();
        let minute = now_ms / 60_000;
        let mut books = {
            let mut state = self.state();
            // Seldom, because callers of `log` wait for it.
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
        mut state: MutexGuard<'a, LoggerState>,
    ) -> MutexGuard<'a, LoggerState> {
        /// A missed wake-up costs no more than this.
        const NAP: Duration = Duration::from_millis(100);
        state.blocked += 1;
        let waited = self.room_for_threads.wait_timeout(state, NAP);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.blocked -= 1;
        state
    }

    /// Waits until this is true of the state, at most for `limit`, and says whether it is.
    pub(crate) async fn wait_until(
        &self,
        limit: Duration,
        is_true: impl Fn(&LoggerState) -> bool,
    ) -> bool {
        let mut limit = self.clock.sleep(limit);
        loop {
            let progress = self.progress.notified();
            if is_true(&self.state()) {
                return true;
            }
            tokio::select! {
                biased;
                () = progress => {}
                () = &mut limit => return is_true(&self.state()),
            }
        }
    }

    /// Wakes all that wait for room.
    pub(crate) fn wake_room(&self) {
        self.room.notify_waiters();
        self.room_for_threads.notify_all();
    }

    /// Wakes all tasks: the phase has changed.
    pub(crate) fn wake_all(&self) {
        self.sender_wake.notify_waiters();
        self.sender_wake.notify_one();
        self.writer_wake.notify_one();
        self.replay_wake.notify_one();
        self.timer_wake.notify_one();
        self.progress.notify_waiters();
        self.wake_room();
    }

    /// The wait before retry number `retry`, counted from 0.
    pub(crate) fn backoff(&self, retry: u32) -> Duration {
        let mut entropy = self.entropy.lock().unwrap_or_else(PoisonError::into_inner);
        self.backoff.wait(retry, entropy.as_mut())
    }

    /// Whether events can be spilled.
    pub(crate) fn can_spill(&self, state: &LoggerState) -> bool {
        self.config.options.spillover_path.is_some() && state.spill_failure.is_none()
    }

    /// Gives events to the spill writer, in their order, until it has `limit` of them, and leaves the
    /// rest. Without a spill, or after it was given up, all are lost.
    pub(crate) fn spill_up_to(
        &self,
        limit: usize,
        events: &mut VecDeque<Queued>,
        reason: &LossReason,
    ) {
        if events.is_empty() {
            return;
        }
        let mut state = self.state();
        let lost = if self.config.options.spillover_path.is_none() {
            Some(reason.clone())
        } else {
            let is_given_up = state.spill_failure.is_some();
            is_given_up.then_some(reason::SPILLOVER_WRITE_ERROR)
        };
        if let Some(reason) = lost {
            let lost = self.post_lost(&mut state, std::mem::take(events).into(), reason);
            drop(state);
            self.report_lost(lost);
            return;
        }
        // A stop takes no new events, so memory is bounded already, and no task may be left with
        // events that wait for a hanging disk.
        let is_stopping = state.phase > LoggerPhase::Running;
        while (is_stopping || state.spill_depth() < limit)
            && let Some(event) = events.pop_front()
        {
            state.push_spill(event);
        }
        drop(state);
        self.writer_wake.notify_one();
    }

    /// Gives events to the spill writer at once, whether there is room or not, or reports them as
    /// lost for the given reason. It is for those who cannot wait.
    pub(crate) fn spill_or_lose_now(&self, events: Vec<Queued>, reason: &LossReason) {
        self.spill_up_to(usize::MAX, &mut events.into(), reason);
    }

    /// Posts these events as lost and reports each once.
    pub(crate) fn lose(&self, events: Vec<Queued>, reason: LossReason) {
        let posted = self.post_lost(&mut self.state(), events, reason);
        self.report_lost(posted);
    }

    /// Posts these events as lost. They must then be given to [`Self::report_lost`].
    pub(crate) fn post_lost(
        &self,
        state: &mut LoggerState,
        events: Vec<Queued>,
        reason: LossReason,
    ) -> PostedLosses {
        if !events.is_empty() {
            let lost = Place::Lost(reason.clone());
            state.post(events.iter().map(|q| q.id), Place::InFlight, lost);
            state.counters.events_failed += events.len() as u64;
            if self.on_loss.is_some() {
                self.waiting_losses
                    .fetch_add(events.len() as u64, Ordering::SeqCst);
            }
        }
        PostedLosses { events, reason }
    }

    /// Reports these events to their waiters and to the callback.
    pub(crate) fn report_lost(&self, PostedLosses { events, reason }: PostedLosses) {
        if events.is_empty() {
            return;
        }
        for mut queued in events {
            queued.notify_waiter(Err(reason.clone()));
            self.send_report(LossReport {
                id: Some(queued.id),
                event: Some(queued.event),
                reason: reason.clone(),
            });
        }
        self.progress.notify_waiters();
    }

    /// Queues a loss for the callback, which runs on its own thread. If that queue is full, the loss
    /// is counted as unreported: a callback that hangs must not stop the task that found the loss.
    pub(crate) fn report(&self, id: Option<EventId>, event: Option<Event>, reason: LossReason) {
        if self.on_loss.is_none() {
            return;
        }
        self.waiting_losses.fetch_add(1, Ordering::SeqCst);
        self.send_report(LossReport { id, event, reason });
    }

    fn send_report(&self, lost: LossReport) {
        if self.on_loss.is_none() {
            return;
        }
        if let Err(refused) = self.losses.try_send(lost) {
            self.waiting_losses.fetch_sub(1, Ordering::SeqCst);
            self.state().counters.events_unreported += 1;
            let (mpsc::error::TrySendError::Full(lost) | mpsc::error::TrySendError::Closed(lost)) =
                refused;
            let id = lost.id.map(|id| id.to_string());
            tracing::error!(
                id,
                reason = %lost.reason,
                "event lost; loss callback queue is full, callback not called"
            );
        }
    }

    /// Calls the callback for a loss from the queue.
    pub(crate) fn deliver_report(&self, lost: &LossReport) {
        self.call_back(&Loss {
            id: lost.id,
            event: lost.event.as_ref(),
            reason: &lost.reason,
        });
        self.waiting_losses.fetch_sub(1, Ordering::SeqCst);
    }

    /// Losses that the callback did not get, or not yet.
    pub(crate) fn unreported(&self, state: &LoggerState) -> u64 {
        state.counters.events_unreported + self.waiting_losses.load(Ordering::SeqCst)
    }

    /// Everything that is still in memory is lost: no task is left that could send or spill it.
    pub(crate) fn lose_remaining(&self, why: &str) {
        let reason = if self.config.options.spillover_path.is_some() {
            reason::SPILLOVER_WRITE_ERROR
        } else {
            reason::SHUTDOWN_QUEUED
        };
        let (left, rejects) = {
            let mut buffer = self.spill_buffer();
            let mut state = self.state();
            state.spilling = 0;
            let mut left = buffer.give_up();
            left.extend(state.spill.drain(..));
            let (waiting, queued) = state.take_unsent();
            left.extend(waiting);
            left.extend(queued);
            let rejects: Vec<Queued> = std::mem::take(&mut state.pending_rejects)
                .into_values()
                .collect();
            let is_spilling = self.config.options.spillover_path.is_some();
            if is_spilling && !(left.is_empty() && rejects.is_empty()) {
                state.spill_failure.get_or_insert(why.to_owned());
            }
            (
                self.post_lost(&mut state, left, reason),
                self.post_lost(&mut state, rejects, reason::REJECTED),
            )
        };
        self.report_lost(left);
        self.report_lost(rejects);
    }

    /// Calls the callback; its panic is its own.
    pub(crate) fn call_back(&self, loss: &Loss<'_>) {
        if let Some(on_loss) = &self.on_loss
            && catch_unwind(AssertUnwindSafe(|| on_loss(loss))).is_err()
        {
            tracing::error!(reason = %loss.reason, "loss callback panicked");
        }
    }

    /// Whether the logger still sends.
    pub(crate) fn is_sending(&self) -> bool {
        self.state().phase < LoggerPhase::Draining
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}
