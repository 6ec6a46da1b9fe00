//! Events on their way through queue, spill queue and spill buffer, while the logger is stopped.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use tidegate_core::books::{Books, LossReason, Place};
use tidegate_core::breaker::Breaker;
use tidegate_core::env::{Clock, Sleep, Stream};
use tidegate_core::{EventId, EventIdMinter, Shutdown};
use tokio::sync::{mpsc, oneshot};

use super::batch_guard::BatchGuard;
use super::engine::{Engine, LossReport};
use super::logger::Logger;
use super::play::play;
use super::spilling::SpillOutcome;
use crate::api::{Api, Payload, Sending};
use crate::config::{LoggerConfig, OnFull};
use crate::event::Event;
use crate::logger_id::LoggerId;
use crate::loss::{Loss, reason};
use crate::spill::BatchWritten;
use crate::state::{LoggerPhase, LoggerState, Queued};

/// Events that each of two callers logs, into queues with room for one.
const EVENTS: usize = 3;
const CAPACITY: i64 = 1;
/// Events that are sent or written at a time.
const BATCH: usize = 2;

/// Time stands still: nobody is woken because it has passed.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// The stand-in of the sender does not ask it.
#[derive(Debug)]
struct NoApi;

impl Api for NoApi {
    fn send_from<'a>(&'a self, _: Option<LoggerId>, _: &'a [Payload]) -> Sending<'a> {
        Box::pin(std::future::pending())
    }
}

/// Where events have ended. The scheduler knows nothing of these locks, so nobody comes between an act
/// and its note.
#[derive(Debug, Default)]
struct Ends {
    delivered: Mutex<Vec<EventId>>,
    spilled: Mutex<Vec<EventId>>,
    /// As the callback got them.
    lost: Mutex<Vec<EventId>>,
    /// Those whose waiters got `Ok`.
    safe: Mutex<Vec<EventId>>,
}

/// Receives the outcome of an event.
type Outcome = oneshot::Receiver<Result<EventId, LossReason>>;

#[derive(Clone)]
struct Scene {
    engine: Arc<Engine>,
    logger: Logger,
    ends: Arc<Ends>,
    /// Whether requests may hang until they are given up.
    may_hang: bool,
    /// Whether the directory may be given up.
    may_fail: bool,
}

fn choose(count: u32) -> u32 {
    thread_rng().gen_range(0..count)
}

impl Scene {
    fn new(on_full: OnFull, may_hang: bool, may_fail: bool) -> (Self, mpsc::Receiver<LossReport>) {
        let config = LoggerConfig::builder()
            .queue_capacity(CAPACITY)
            .on_full(on_full)
            .spillover_path("spill")
            .build()
            .unwrap();
        let entropy = Stream::new(0);
        let ids = EventIdMinter::new(Box::new(entropy.stream("ids")));
        let breaker = Breaker::new(config.options.breaker_rule());
        let state = LoggerState::new(ids, breaker, Books::default(), 0);
        let ends = Arc::new(Ends::default());
        let seen = Arc::clone(&ends);
        let on_loss = move |loss: &Loss<'_>| seen.lost.lock().unwrap().extend(loss.id);
        let (engine, losses) = Engine::new(
            config,
            Arc::new(Still),
            &entropy,
            Arc::new(NoApi),
            None,
            state,
            Some(Arc::new(on_loss)),
        );
        let (trigger, _) = Shutdown::new();
        let logger = Logger {
            engine: Arc::clone(&engine),
            _trigger: Arc::new(trigger),
        };
        let scene = Self {
            engine,
            logger,
            ends,
            may_hang,
            may_fail,
        };
        (scene, losses)
    }

    fn spawn(&self, act: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let scene = self.clone();
        thread::spawn(move || act(&scene))
    }

    /// Takes events on that somebody waits for.
    fn accept(&self, count: usize) -> (Vec<Queued>, Vec<Outcome>) {
        let mut state = self.engine.state();
        let accept = |_| {
            let id = state.ids.mint_at(0);
            let (waiter, outcome) = oneshot::channel();
            let queued = Queued {
                event: Event::step("p", "s", "d"),
                id,
                timestamp_ms: 0,
                attempts: 0,
                number: state.accept(id),
                waiter: Some(waiter),
            };
            (queued, outcome)
        };
        (0..count).map(accept).unzip()
    }

    /// Logs events in all the ways there are. Returned events were reported.
    fn log(&self) {
        for _ in 0..EVENTS {
            let event = Event::step("p", "s", "d");
            let outcome = match choose(4) {
                0 => {
                    self.logger.log(event).ok();
                    continue;
                }
                1 => {
                    block_on(self.logger.log_when_room(event)).ok();
                    continue;
                }
                2 => block_on(self.logger.log_now(event)),
                _ => block_on(self.logger.log_durable(event)),
            };
            match outcome {
                Ok(id) => self.ends.safe.lock().unwrap().push(id),
                // With a spill nothing is lost for this reason: the waiter was dropped.
                Err(why) => assert_ne!(why, reason::SHUTDOWN_QUEUED, "the waiter was dropped"),
            }
        }
    }

    /// Does what a sender does, with requests that succeed, fail, are given up or dropped.
    async fn send(&self) {
        while let Some(batch) = self.next_batch() {
            if batch.is_empty() {
                self.engine.sender_wake.notified().await;
                let mut state = self.engine.state();
                state.idle_senders -= 1;
                state.woken_senders = state.woken_senders.saturating_sub(1);
                continue;
            }
            let mut guard = BatchGuard::sending(&self.engine, batch);
            match choose(if self.may_hang { 4 } else { 3 }) {
                0 => self.deliver(guard.take()),
                1 => {
                    let spilled = self
                        .engine
                        .spill_or_lose(guard.take(), reason::CIRCUIT_OPEN);
                    spilled.await;
                }
                2 => {
                    let spilled = self
                        .engine
                        .spill_or_lose(guard.take(), reason::CIRCUIT_OPEN);
                    let mut spilled = Box::pin(spilled);
                    let mut context = Context::from_waker(Waker::noop());
                    if spilled.as_mut().poll(&mut context).is_pending() {
                        // A sender may be dropped while it waits for room.
                        drop(spilled);
                    }
                }
                _ => {
                    self.engine.abandoned.wait().await;
                    let spilled = self
                        .engine
                        .spill_or_lose(guard.take(), reason::SHUTDOWN_QUEUED);
                    spilled.await;
                }
            }
        }
    }

    /// An empty batch when there is nothing to do, none when the sender is to end.
    fn next_batch(&self) -> Option<Vec<Queued>> {
        let mut state = self.engine.state();
        let is_stopping = state.phase > LoggerPhase::Running;
        if state.phase >= LoggerPhase::Draining || (is_stopping && state.queue.is_empty()) {
            return None;
        }
        let count = BATCH.min(state.queue.len());
        let batch: Vec<Queued> = state.queue.drain(..count).collect();
        if batch.is_empty() {
            state.idle_senders += 1;
        } else {
            state.sending += count;
            self.engine.wake_room();
        }
        Some(batch)
    }

    fn deliver(&self, batch: Vec<Queued>) {
        let ids: Vec<EventId> = batch.iter().map(|queued| queued.id).collect();
        let mut state = self.engine.state();
        state.post(ids.iter().copied(), Place::InFlight, Place::Delivered);
        self.ends.delivered.lock().unwrap().extend(ids);
        drop(state);
        for mut queued in batch {
            queued.notify_waiter(Ok(()));
        }
    }

    /// Does what the spill writer does, with a disk that takes events, takes some, or refuses.
    fn write(&self) {
        let mut refusals = 3;
        loop {
            let notified = self.engine.writer_wake.notified();
            let (depth, phase) = {
                let _buffer = self.engine.spill_buffer();
                let state = self.engine.state();
                (state.spill_depth(), state.phase)
            };
            if depth == 0 && phase == LoggerPhase::Stopped {
                return;
            }
            if depth == 0 {
                block_on(notified);
                continue;
            }
            self.engine.refill(0);
            let mut ids: Vec<EventId> = {
                let buffer = self.engine.spill_buffer();
                let count = buffer.len().min(BATCH);
                (0..count).map(|index| buffer.get(index).id).collect()
            };
            let taken = ids.len();
            let answer = if refusals > 0 { choose(6) } else { 0 };
            refusals -= u32::from(answer > 2);
            let refused = match answer {
                3 if taken > 0 => {
                    ids.pop();
                    vec![(taken - 1, reason::SPILLOVER_MAX_EVENTS)]
                }
                4 => {
                    self.engine.finish_refused(taken);
                    continue;
                }
                5 if self.may_fail => {
                    self.engine.give_up_spill("the disk is gone".to_owned());
                    return;
                }
                _ => Vec::new(),
            };
            let written = BatchWritten {
                taken,
                ids: ids.clone(),
                refused,
            };
            if self.engine.finish_written(written, 0) != SpillOutcome::TooLate {
                self.ends.spilled.lock().unwrap().extend(ids);
            }
        }
    }

    /// Stops the logger as its task does, except that no time passes: what the task waits for within a
    /// limit is waited for or not.
    fn stop(&self, sender: thread::JoinHandle<()>, writer: thread::JoinHandle<()>) {
        let engine = &self.engine;
        let waiting = {
            let mut state = engine.state();
            state.phase = LoggerPhase::Stopping;
            state.take_retries()
        };
        engine.wake_all();
        engine.spill_or_lose_now(waiting, &reason::SHUTDOWN_PENDING_RETRY);
        // Where events wait for room, the writer may give some back to senders that have ended.
        if !self.may_hang && engine.config.options.on_full == OnFull::DropNewest {
            block_on(async {
                loop {
                    let progress = engine.progress.notified();
                    if engine.state().is_quiet() {
                        break;
                    }
                    progress.await;
                }
            });
        }
        engine.state().phase = LoggerPhase::Draining;
        engine.abandoned.set();
        engine.wake_all();
        let left: Vec<Queued> = engine.state().queue.drain(..).collect();
        engine.spill_or_lose_now(left, &reason::SHUTDOWN_QUEUED);
        let mut threads = vec![sender, writer];
        let is_sender_gone = choose(2) == 0;
        if is_sender_gone {
            threads.remove(0).join().unwrap();
        }
        engine.state().phase = LoggerPhase::Stopped;
        engine.wake_all();
        if choose(2) == 0 {
            threads.pop().unwrap().join().unwrap();
        }
        engine.lose_remaining("the disk did not answer in time");
        if is_sender_gone {
            // The report of the stop is made now, whatever the writer still does.
            let account = engine.state().account();
            assert!(
                account.is_balanced() && account.in_flight == 0,
                "{account:?}"
            );
        }
        for thread in threads {
            thread.join().unwrap();
        }
        // The last one has let go.
        engine.lose_remaining("the logger was dropped");
        engine.wake_all();
    }

    /// Each event is in one place.
    fn check(&self, accepted: usize, mut losses: mpsc::Receiver<LossReport>) {
        while let Ok(lost) = losses.try_recv() {
            self.engine.deliver_report(&lost);
        }
        assert_eq!(self.engine.spill_buffer().len(), 0);
        let mut state = self.engine.state();
        assert!(state.is_flushed(), "{} are being sent", state.sending);
        assert_eq!(state.blocked, 0);
        let account = state.account();
        assert!(
            account.is_balanced() && account.in_flight == 0,
            "{account:?}"
        );
        let count = |ends: &Mutex<Vec<EventId>>| i64::try_from(ends.lock().unwrap().len()).unwrap();
        assert_eq!(account.delivered, count(&self.ends.delivered));
        assert_eq!(account.spilled, count(&self.ends.spilled), "{account:?}");
        assert_eq!(account.lost.total(), count(&self.ends.lost), "{account:?}");
        assert_eq!(account.accepted, i64::try_from(accepted).unwrap());
        let mut all = BTreeSet::new();
        let ends = [&self.ends.delivered, &self.ends.spilled, &self.ends.lost];
        for id in ends.iter().flat_map(|ends| ends.lock().unwrap().clone()) {
            assert!(all.insert(id), "{id} is in two places: {:?}", self.ends);
        }
        let lost = self.ends.lost.lock().unwrap();
        let safe = self.ends.safe.lock().unwrap();
        assert!(safe.iter().all(|id| !lost.contains(id)), "{:?}", self.ends);
    }
}

fn play_scene(full: u64, on_full: OnFull, may_fail: bool, is_stopped_early: bool) {
    play(full, move || {
        let may_hang = is_stopped_early && choose(2) == 0;
        let (scene, losses) = Scene::new(on_full, may_hang, may_fail);
        let callers = [scene.spawn(Scene::log), scene.spawn(Scene::log)];
        let sender = scene.spawn(|scene| block_on(scene.send()));
        let writer = scene.spawn(Scene::write);
        let join_callers = || {
            for caller in callers {
                caller.join().unwrap();
            }
        };
        if is_stopped_early {
            scene.stop(sender, writer);
            join_callers();
        } else {
            join_callers();
            scene.stop(sender, writer);
        }
        scene.check(2 * EVENTS, losses);
    });
}

#[test]
fn an_event_is_in_one_place_when_a_logger_that_waits_for_room_is_stopped_at_any_moment() {
    play_scene(60_000, OnFull::Block, true, true);
}

#[test]
fn an_event_is_in_one_place_when_a_logger_that_drops_is_stopped_at_any_moment() {
    play_scene(60_000, OnFull::DropNewest, true, true);
}

#[test]
fn the_spill_queue_takes_no_more_than_its_limit() {
    play(1, || {
        let (scene, _losses) = Scene::new(OnFull::DropNewest, false, false);
        let (events, _outcomes) = scene.accept(5);
        let mut events = VecDeque::from(events);
        let reason = &reason::CIRCUIT_OPEN;
        scene.engine.spill_up_to(3, &mut events, reason);
        assert_eq!((scene.engine.state().spill_depth(), events.len()), (3, 2));
        scene.engine.spill_up_to(3, &mut events, reason);
        assert_eq!(events.len(), 2, "it is full");
        scene.engine.state().phase = LoggerPhase::Stopping;
        scene.engine.spill_up_to(3, &mut events, reason);
        assert_eq!(events.len(), 0, "a stop leaves nobody with events");
    });
}

#[test]
fn callers_that_wait_for_room_get_it_in_any_order() {
    play_scene(60_000, OnFull::Block, false, false);
}

#[test]
fn an_event_is_in_one_place_when_the_disk_answers_while_nobody_waits_for_it_any_longer() {
    play(60_000, || {
        let on_full = [OnFull::Block, OnFull::DropNewest][choose(2) as usize];
        let (scene, losses) = Scene::new(on_full, false, true);
        let (early, mut outcomes) = scene.accept(2);
        let (late, late_outcomes) = scene.accept(1);
        outcomes.extend(late_outcomes);
        scene.engine.spill_or_lose_now(early, &reason::CIRCUIT_OPEN);
        let writer = scene.spawn(Scene::write);
        let sender = scene.spawn(|scene| {
            // A dropped guard gives its events to the disk.
            drop(BatchGuard::new(&scene.engine, late, reason::CIRCUIT_OPEN));
        });
        scene.engine.state().phase = LoggerPhase::Stopped;
        scene.engine.wake_all();
        scene
            .engine
            .lose_remaining("the disk did not answer in time");
        sender.join().unwrap();
        writer.join().unwrap();
        scene.engine.lose_remaining("the logger was dropped");
        for mut outcome in outcomes {
            assert!(outcome.try_recv().is_ok(), "a waiter got no outcome");
        }
        scene.check(3, losses);
    });
}
