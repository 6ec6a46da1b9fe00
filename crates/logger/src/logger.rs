//! The handle that applications hold.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate_core::books::{Account, LossReason};
use tidegate_core::breaker::BreakerState;
use tidegate_core::{EventId, ShutdownTrigger};
use tokio::sync::oneshot;

use crate::config::OnFull;
use crate::event::Event;
use crate::logger_id::LoggerId;
use crate::loss::{Loss, reason};
use crate::process::{EventSink, Refused};
use crate::state::{LoggerPhase, LoggerState, Queued, Waiter};
use crate::telemetry::Metrics;
use crate::writer::BATCH;

use super::engine::Engine;

/// A handle on a logger. Cloning it is cheap and gives another handle on the same logger; when the
/// last one is dropped the logger drains and stops.
///
/// ```
/// use tidegate_core::env::Env;
/// use tidegate_logger::{Event, Logger, LoggerConfig};
/// # use tidegate_logger::{ApiAnswer, Api, EventOutcome, LoggerId, Payload, Sending};
/// # #[derive(Debug)] struct Sink;
/// # impl Api for Sink { fn send_from<'a>(&'a self, _: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
/// #     Box::pin(async move { ApiAnswer::PerEvent(vec![EventOutcome::Stored; batch.len()]) }) } }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let api = std::sync::Arc::new(Sink);
/// let config = LoggerConfig::builder().build()?;
/// let (logger, task) = Logger::open(config, api, Env::system(), None)?;
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let running = tokio::spawn(task.run(async { stopped.await.ok(); }));
/// logger.log(Event::step("CreateBooking", "BookingCreated", "Booking BK-1 created"))?;
/// stop.send(()).ok();
/// let report = running.await?;
/// assert_eq!(report.account.delivered, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Logger {
    pub(crate) engine: Arc<Engine>,
    /// Stops the task when the last handle is dropped.
    pub(crate) _trigger: Arc<ShutdownTrigger>,
}

/// Whether a logger is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoggerHealth {
    /// Events flow, or wait where they are safe.
    Up,
    /// Events wait, and this is why.
    Degraded(String),
    /// The disk was given up. While the API takes events they flow; while it does not, new ones are
    /// refused.
    System(String),
}

/// The result of an offer.
enum Offer {
    Taken(Wakeups),
    Refused(EventId, LossReason),
    Full,
}

/// Where an event goes whose caller waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    /// The main queue, on its way to the API.
    Queue,
    /// The spill, where there is one.
    Spill,
}

/// While it lives, a flush is waiting, and the writer does not wait for full batches.
struct FlushGuard<'a>(&'a Engine);

impl<'a> FlushGuard<'a> {
    fn new(engine: &'a Engine) -> Self {
        engine.state().flushing += 1;
        engine.writer_wake.notify_one();
        Self(engine)
    }
}

impl Drop for FlushGuard<'_> {
    fn drop(&mut self) {
        self.0.state().flushing -= 1;
    }
}

/// Wakes a thread that waits for a future.
struct ThreadWaker(std::thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Which tasks to wake, once the lock is released.
#[derive(Default, Clone, Copy)]
struct Wakeups {
    sender: bool,
    writer: bool,
}

impl Logger {
    /// Takes an event on.
    ///
    /// Returns at once, without touching the disk or the network: the event is in memory and will
    /// be sent, or spilled. A crash of the process loses what is in memory; use
    /// [`log_durable`](Self::log_durable) for an event that must survive it. With `on-full: block`
    /// it waits for room, on this thread. In async code use
    /// [`log_when_room`](Self::log_when_room) then. Logging the same event twice logs two events.
    ///
    /// With `async.enabled: false` it returns only when the event was delivered, spilled or lost,
    /// and waits for that on this thread; in async code use [`log_now`](Self::log_now) then.
    ///
    /// # Errors
    /// The event is handed back with the reason, and was reported as lost. There is no room, the
    /// logger is stopping, or the disk was given up and the API is away too. The callback gets it on
    /// this thread.
    pub fn log(&self, event: Event) -> Result<(), Refused> {
        if !self.engine.config.options.is_background && self.engine.config.enabled {
            return self.log_on_thread(event);
        }
        let mut slot = Some(event);
        loop {
            // Read before the lock is taken: it is a good part of what there is to do.
            let now_ms = self.engine.clock.now_ms();
            let mut state = self.engine.state();
            match self.offer(&mut state, &mut slot, now_ms) {
                Offer::Taken(wakeups) => {
                    drop(state);
                    self.wake(wakeups);
                    return Ok(());
                }
                Offer::Refused(id, reason) => {
                    drop(state);
                    return Err(self.refuse(slot.unwrap_or_default(), id, &reason));
                }
                Offer::Full => drop(self.engine.wait_for_room(state)),
            }
        }
    }

    /// Takes these events on and says how many of them were; the others were reported as lost.
    pub fn log_all(&self, events: impl IntoIterator<Item = Event>) -> usize {
        events
            .into_iter()
            .filter_map(|event| self.log(event).ok())
            .count()
    }

    /// Takes an event on, and waits for room where `on-full: block` says so. If canceled, the
    /// event was not taken on.
    ///
    /// # Errors
    /// As for [`log`](Self::log).
    pub async fn log_when_room(&self, event: Event) -> Result<(), Refused> {
        let mut slot = Some(event);
        loop {
            let room = self.engine.room.notified();
            let now_ms = self.engine.clock.now_ms();
            let offer = self.offer(&mut self.engine.state(), &mut slot, now_ms);
            match offer {
                Offer::Taken(wakeups) => {
                    self.wake(wakeups);
                    return Ok(());
                }
                Offer::Refused(id, reason) => {
                    return Err(self.refuse(slot.unwrap_or_default(), id, &reason));
                }
                Offer::Full => room.await,
            }
        }
    }

    /// Takes an event on and returns once it would survive a power cut: it is in the spill, synced,
    /// and will be sent from there. Without a spill, once the API has it.
    ///
    /// If canceled after its first poll, the event is on its way all the same. Logging it twice
    /// logs two events.
    ///
    /// # Errors
    /// The reason for which it was lost, and reported.
    pub async fn log_durable(&self, event: Event) -> Result<EventId, LossReason> {
        self.log_and_wait(event, Destination::Spill).await
    }

    /// Takes an event on and returns once the API has it, or it is spilled because the API cannot
    /// be reached.
    ///
    /// If canceled after its first poll, the event is on its way all the same.
    ///
    /// # Errors
    /// The reason for which it was lost, and reported.
    pub async fn log_now(&self, event: Event) -> Result<EventId, LossReason> {
        self.log_and_wait(event, Destination::Queue).await
    }

    async fn log_and_wait(
        &self,
        event: Event,
        destination: Destination,
    ) -> Result<EventId, LossReason> {
        if !self.engine.config.enabled {
            let now_ms = self.engine.clock.now_ms();
            let mut state = self.engine.state();
            state.counters.events_ignored += 1;
            return Ok(state.ids.mint_at(now_ms));
        }
        let (waiter, answer) = oneshot::channel();
        let (mut slot, mut waiter) = (Some(event), Some(waiter));
        loop {
            let room = self.engine.room.notified();
            match self.offer_waiting(&mut slot, destination, &mut waiter) {
                Offer::Taken(wakeups) => break self.wake(wakeups),
                Offer::Refused(id, reason) => {
                    self.refuse(slot.unwrap_or_default(), id, &reason);
                    return Err(reason);
                }
                Offer::Full => room.await,
            }
        }
        // The waiter is dropped with the event if the tasks of the logger are.
        answer.await.unwrap_or(Err(reason::SHUTDOWN_QUEUED))
    }

    /// Takes an event on and waits on this thread until it is delivered, spilled or lost.
    fn log_on_thread(&self, event: Event) -> Result<(), Refused> {
        let kept = event.clone();
        let mut waiting = Box::pin(self.log_now(event));
        let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match waiting.as_mut().poll(&mut context) {
                Poll::Ready(Ok(_)) => return Ok(()),
                Poll::Ready(Err(reason)) => {
                    return Err(Refused::new(kept, reason.as_static().unwrap_or("refused")));
                }
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// Waits until nothing is in memory any more: no event is queued, being sent, or waiting for a
    /// retry or for the disk. Says whether that happened within `timeout`. An event on disk is safe,
    /// and its replay is not waited for.
    pub async fn flush(&self, timeout: Duration) -> bool {
        let _guard = FlushGuard::new(&self.engine);
        let flushed = self.engine.wait_until(timeout, LoggerState::is_flushed);
        flushed.await
    }

    /// The id of its spill directory, under which the API keeps its events; none without a directory.
    #[must_use]
    pub fn id(&self) -> Option<LoggerId> {
        self.engine.logger_id
    }

    /// Where all events are, as one snapshot.
    #[must_use]
    pub fn account(&self) -> Account {
        self.engine.state().account()
    }

    /// All counters, as one snapshot.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics::of(&self.engine.state())
    }

    /// Whether the logger is well.
    #[must_use]
    pub fn health(&self) -> LoggerHealth {
        let state = self.engine.state();
        match (&state.spill_failure, &state.api_failure) {
            (Some(why), _) => LoggerHealth::System(why.clone()),
            (None, Some(why)) => LoggerHealth::Degraded(why.clone()),
            (None, None) => LoggerHealth::Up,
        }
    }

    /// Takes the event out of its slot, if it takes it on: an event is large, and the caller pays
    /// for every move.
    #[inline]
    fn offer(&self, state: &mut LoggerState, slot: &mut Option<Event>, now_ms: u64) -> Offer {
        let engine = &*self.engine;
        if !engine.config.enabled {
            state.counters.events_ignored += 1;
            return Offer::Taken(Wakeups::default());
        }
        let capacity = engine.config.options.queue_capacity;
        let full = if state.phase != LoggerPhase::Running {
            Some(reason::SHUTDOWN_IN_PROGRESS)
        } else if state.has_nowhere_to_go() {
            Some(reason::SPILLOVER_WRITE_ERROR)
        } else if state.queue.len() < capacity {
            None
        } else if !engine.can_spill(state) {
            Some(reason::QUEUE_FULL)
        } else if state.spill_depth() < capacity {
            None
        } else {
            Some(reason::SPILLOVER_QUEUE_FULL)
        };
        match full {
            Some(_) if state.phase == LoggerPhase::Running && self.waits() => Offer::Full,
            Some(reason) => {
                let id = state.ids.mint_at(now_ms);
                state.accept_lost(id, reason.clone());
                Offer::Refused(id, reason)
            }
            None => {
                let id = state.ids.mint_at(now_ms);
                let number = state.accept(id);
                let mut wakeups = Wakeups::default();
                let Some(event) = slot.take() else {
                    return Offer::Taken(wakeups);
                };
                let queued = Queued {
                    event,
                    id,
                    timestamp_ms: now_ms,
                    attempts: 0,
                    number,
                    waiter: None,
                };
                state.counters.events_queued += 1;
                // With the breaker open the queue would only be a detour on the way to the disk.
                if state.queue.is_empty()
                    && state.breaker.state() == BreakerState::Open
                    && engine.can_spill(state)
                    && state.spill_depth() < capacity
                {
                    state.push_spill(queued);
                    wakeups.writer = matches!(state.spill.len(), 1 | BATCH);
                    return Offer::Taken(wakeups);
                }
                // The oldest makes room for the newest: what is spilled was logged before what is
                // queued, and stays in its order.
                if state.queue.len() >= capacity
                    && let Some(oldest) = state.queue.pop_front()
                {
                    state.push_spill(oldest);
                    // A writer that has work looks again by itself; a full batch does not wait.
                    wakeups.writer = matches!(state.spill.len(), 1 | BATCH);
                }
                state.queue.push_back(queued);
                // Each sender that waits is woken once, not once per event until it runs.
                if state.idle_senders > state.woken_senders {
                    state.woken_senders += 1;
                    wakeups.sender = true;
                }
                Offer::Taken(wakeups)
            }
        }
    }

    fn wake(&self, wakeups: Wakeups) {
        if wakeups.sender {
            self.engine.sender_wake.notify_one();
        }
        if wakeups.writer {
            self.engine.writer_wake.notify_one();
        }
    }

    fn offer_waiting(
        &self,
        slot: &mut Option<Event>,
        destination: Destination,
        waiter: &mut Option<Waiter>,
    ) -> Offer {
        let engine = &*self.engine;
        let now_ms = engine.clock.now_ms();
        let mut state = engine.state();
        let id = state.ids.mint_at(now_ms);
        let is_spilling = destination == Destination::Spill && engine.can_spill(&state);
        let depth = if is_spilling {
            state.spill_depth()
        } else {
            state.queue.len()
        };
        let has_nowhere_to_go = state.has_nowhere_to_go();
        let refused = if state.phase != LoggerPhase::Running {
            Some(reason::SHUTDOWN_IN_PROGRESS)
        } else if !has_nowhere_to_go && depth < engine.config.options.queue_capacity {
            None
        } else if self.waits() {
            return Offer::Full;
        } else if has_nowhere_to_go {
            Some(reason::SPILLOVER_WRITE_ERROR)
        } else if is_spilling {
            Some(reason::SPILLOVER_QUEUE_FULL)
        } else {
            Some(reason::QUEUE_FULL)
        };
        if let Some(reason) = refused {
            state.accept_lost(id, reason.clone());
            return Offer::Refused(id, reason);
        }
        let number = state.accept(id);
        let queued = Queued {
            event: slot.take().unwrap_or_default(),
            id,
            timestamp_ms: now_ms,
            attempts: 0,
            number,
            waiter: waiter.take(),
        };
        if is_spilling {
            state.push_spill(queued);
        } else {
            state.queue.push_back(queued);
            state.counters.events_queued += 1;
        }
        Offer::Taken(Wakeups {
            sender: !is_spilling,
            writer: is_spilling,
        })
    }

    fn waits(&self) -> bool {
        self.engine.config.options.on_full == OnFull::Block
    }

    /// Reports a refused event, which was posted as lost, and hands it back.
    fn refuse(&self, event: Event, id: EventId, reason: &LossReason) -> Refused {
        self.engine.call_back(&Loss {
            id: Some(id),
            event: Some(&event),
            reason,
        });
        Refused::new(event, reason.as_static().unwrap_or("refused"))
    }
}

impl EventSink for Logger {
    fn log(&self, event: Event) -> Result<(), Refused> {
        Self::log(self, event)
    }
}
