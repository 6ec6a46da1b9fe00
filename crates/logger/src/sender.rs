//! Takes events from the main queue to the API.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::Code;
use tidegate_core::books::Place;
use tidegate_core::breaker::{BreakerState, CallResult, Permit};

use crate::api::{ApiAnswer, ApiFailure, EventOutcome, Payload, ask};
use crate::batch_guard::BatchGuard;
use crate::engine::Engine;
use crate::event::Encoder;
use crate::loss::reason;
use crate::spill::Rejection;
use crate::state::{LoggerPhase, LoggerState, Queued};
use crate::task::ShutdownGuard;
use crate::writer::WriterHandle;

/// One sender.
pub(crate) struct Sender {
    pub(crate) engine: Arc<Engine>,
    pub(crate) writer: Option<WriterHandle>,
    /// Whether it has just waited for more, in vain.
    pub(crate) has_lingered: bool,
    pub(crate) _shutdown_guard: Arc<ShutdownGuard>,
}

/// The next step of a sender.
enum Next {
    Batch(Vec<Queued>, Permit),
    /// The breaker is in the way; with a spill these go there.
    Spill(Vec<Queued>),
    Wait,
    /// The queue has just become empty: more is likely to come.
    Linger,
    End,
}

impl Sender {
    /// Sends until the logger stops and the queue is empty, or is to be spilled.
    pub(crate) async fn run(mut self) {
        loop {
            let next = self.next();
            self.has_lingered = matches!(next, Next::Linger);
            match next {
                // Events that come in this moment need not wake us: waking is the dearest thing that
                // logging can cost.
                Next::Linger => self.engine.clock.sleep(LINGER).await,
                Next::Batch(batch, permit) => self.send(batch, permit).await,
                Next::Spill(batch) => {
                    let engine = Arc::clone(&self.engine);
                    let mut batch = BatchGuard::sending(&engine, batch);
                    let spilled = engine.spill_or_lose(batch.take(), reason::CIRCUIT_OPEN);
                    spilled.await;
                }
                Next::Wait => self.wait().await,
                Next::End => return,
            }
        }
    }

    fn next(&self) -> Next {
        let engine = &*self.engine;
        let now = engine.clock.elapsed();
        let mut state = engine.state();
        if state.phase >= LoggerPhase::Draining
            || (state.phase > LoggerPhase::Running && state.queue.is_empty())
        {
            return Next::End;
        }
        if state.queue.is_empty() && !self.has_lingered {
            return Next::Linger;
        }
        if state.queue.is_empty() {
            // Counted under the same lock, so that the next event to come wakes it.
            state.idle_senders += 1;
            return Next::Wait;
        }
        match state.breaker.try_acquire(now) {
            Some(permit) => Next::Batch(self.take(&mut state), permit),
            None if engine.can_spill(&state) => Next::Spill(self.take(&mut state)),
            // Without a spill events wait in the queue for the breaker, and not at all when we stop.
            None if state.phase > LoggerPhase::Running => Next::End,
            None => {
                state.idle_senders += 1;
                Next::Wait
            }
        }
    }

    fn take(&self, state: &mut LoggerState) -> Vec<Queued> {
        let count = self.engine.config.options.batch_size.min(state.queue.len());
        let batch: Vec<Queued> = state.queue.drain(..count).collect();
        state.sending += count;
        if state.blocked > 0 || self.engine.config.options.on_full == crate::config::OnFull::Block {
            self.engine.wake_room();
        }
        batch
    }

    async fn wait(&mut self) {
        let engine = Arc::clone(&self.engine);
        let notified = engine.sender_wake.notified();
        // A missed wake-up costs no more than the wait for a batch, or a second.
        let nap = engine
            .config
            .options
            .max_batch_wait
            .clamp(Duration::from_millis(1), NAP);
        tokio::select! {
            biased;
            () = notified => {}
            () = engine.clock.sleep(nap) => {}
        }
        let mut state = engine.state();
        state.idle_senders -= 1;
        state.woken_senders = state.woken_senders.saturating_sub(1);
    }

    /// Sends a batch; one that is too large goes in halves.
    async fn send(&mut self, batch: Vec<Queued>, permit: Permit) {
        let engine = Arc::clone(&self.engine);
        let mut permit = Some(permit);
        let mut parts = VecDeque::from([BatchGuard::sending(&engine, batch)]);
        while let Some(mut batch) = parts.pop_front() {
            let count = batch.len();
            let now = engine.clock.elapsed();
            let another = || engine.state().breaker.try_acquire(now);
            let Some(permit) = permit.take().or_else(another) else {
                // The first half has opened the breaker: this one waits for it, or is spilled.
                self.spill_all(batch.take()).await;
                continue;
            };
            let payloads = self.payloads(&batch);
            let began = self.engine.clock.elapsed();
            let answer = tokio::select! {
                biased;
                answer = ask(&*engine.api, engine.logger_id, &payloads) => Some(answer),
                () = engine.abandoned.wait() => None,
            };
            match answer {
                // It may have arrived or not: spilled, it is sent again under the same id.
                None => {
                    engine.state().breaker.release(permit);
                    let spilled = engine.spill_or_lose(batch.take(), reason::SHUTDOWN_QUEUED);
                    spilled.await;
                }
                Some(ApiAnswer::TooLarge) if count > 1 => {
                    engine.state().breaker.release(permit);
                    let second = batch.split_off(count / 2);
                    parts.push_front(second);
                    parts.push_front(batch);
                }
                Some(answer) => {
                    let sent = per_event(answer, count);
                    self.finish_batch(batch, &payloads, sent, permit, began)
                        .await;
                }
            }
        }
    }

    fn payloads(&self, batch: &BatchGuard<'_>) -> Vec<Payload> {
        let mut encoder = Encoder::new(&self.engine.config.defaults);
        batch
            .events()
            .map(|queued| {
                let mut json = Vec::with_capacity(512);
                encoder.encode(&queued.event, queued.id, queued.timestamp_ms, &mut json);
                Payload {
                    id: queued.id,
                    json: Bytes::from(json),
                }
            })
            .collect()
    }

    async fn finish_batch(
        &mut self,
        mut batch: BatchGuard<'_>,
        payloads: &[Payload],
        sent: SendOutcomes,
        permit: Permit,
        began: Duration,
    ) {
        let engine = Arc::clone(&self.engine);
        let mut stored = Vec::new();
        let (mut rejected, mut rejections) = (Vec::new(), Vec::new());
        let mut failed = Vec::new();
        for ((queued, payload), outcome) in
            batch.take().into_iter().zip(payloads).zip(sent.outcomes)
        {
            match outcome {
                EventOutcome::Stored => stored.push(queued),
                EventOutcome::Failed { .. } => failed.push(queued),
                EventOutcome::Rejected {
                    code,
                    message,
                    status,
                } => {
                    rejections.push(Rejection {
                        payload: payload.clone(),
                        code,
                        message,
                        status,
                        attempts: queued.attempts + 1,
                    });
                    rejected.push(queued);
                }
            }
        }
        let now = engine.clock.elapsed();
        let result = if failed.is_empty() {
            CallResult::Success
        } else {
            CallResult::Failure
        };
        let (has_changed, has_opened) = {
            let mut state = engine.state();
            state.post(
                stored.iter().map(|q| q.id),
                Place::InFlight,
                Place::Delivered,
            );
            state.counters.events_sent += stored.len() as u64;
            state.api_failure = sent.failure;
            let took = now.saturating_sub(began);
            let change = state.breaker.record(permit, result, took, now);
            let has_opened = change.is_some_and(|change| change.to == BreakerState::Open);
            (change.is_some(), has_opened)
        };
        for mut queued in stored {
            queued.notify_waiter(Ok(()));
        }
        if has_changed {
            engine.wake_room();
        }
        // Failed events go first: setting aside waits for the disk, and the disk may hang.
        let numbers = self.add_pending_rejects(rejected);
        if has_opened {
            self.spill_all(failed).await;
        } else {
            self.retry(failed, sent.retry_after).await;
        }
        self.set_aside(numbers, rejections).await;
        drop(batch);
        engine.timer_wake.notify_one();
        engine.replay_wake.notify_one();
    }

    /// Puts events that the API refused for good where the writer, or a stop, finds them by their
    /// numbers.
    fn add_pending_rejects(&self, rejected: Vec<Queued>) -> Vec<u64> {
        let mut state = self.engine.state();
        state.counters.events_rejected += rejected.len() as u64;
        let numbers = rejected.iter().map(|queued| queued.number).collect();
        let pending = rejected.into_iter().map(|queued| (queued.number, queued));
        state.pending_rejects.extend(pending);
        numbers
    }

    /// Has the writer keep what the API refused for good, where there is a spill; else it is lost.
    async fn set_aside(&self, numbers: Vec<u64>, rejections: Vec<Rejection>) {
        if numbers.is_empty() {
            return;
        }
        let is_kept = match &self.writer {
            Some(writer) => writer.set_aside(numbers.clone(), rejections).await,
            None => false,
        };
        if !is_kept {
            // Those that are not there any more were reported when the logger stopped.
            let events = self.engine.state().take_pending_rejects(&numbers);
            self.engine.lose(events, reason::REJECTED);
        }
    }

    /// Schedules another attempt for each, or gives up on those that had enough.
    async fn retry(&self, failed: Vec<Queued>, retry_after: Option<Duration>) {
        let engine = &*self.engine;
        let (mut exhausted, mut crowded, mut stopping) = (Vec::new(), Vec::new(), Vec::new());
        // One wait for all that failed together, so that they go out together again.
        let mut waits: BTreeMap<u32, Duration> = BTreeMap::new();
        let now = engine.clock.elapsed();
        for mut queued in failed {
            queued.attempts += 1;
            let retry = queued.attempts - 1;
            let wait = *waits.entry(retry).or_insert_with(|| engine.backoff(retry));
            let due = now.saturating_add(wait.max(retry_after.unwrap_or_default()));
            let mut state = engine.state();
            if state.phase > LoggerPhase::Running {
                stopping.push(queued);
            } else if u64::from(queued.attempts) > engine.config.options.max_retries {
                exhausted.push(queued);
            } else if state.retries.len() >= engine.config.options.queue_capacity {
                crowded.push(queued);
            } else {
                state.post([queued.id], Place::InFlight, Place::Retrying);
                state.retries.insert((due, queued.number), queued);
            }
        }
        self.with_older_retries(&mut exhausted);
        // All three are guarded before the first of them may have to wait.
        let exhausted = engine.spill_or_lose(exhausted, reason::RETRIES_EXHAUSTED);
        let crowded = engine.spill_or_lose(crowded, reason::RETRY_EXECUTOR_REJECTED);
        let stopping = engine.spill_or_lose(stopping, reason::SHUTDOWN_PENDING_RETRY);
        exhausted.await;
        crowded.await;
        stopping.await;
    }

    /// Adds the older events that wait for a retry to those about to be spilled, so that they are not
    /// overtaken on the disk.
    fn with_older_retries(&self, spilled: &mut Vec<Queued>) {
        let Some(newest) = spilled.iter().map(|queued| queued.number).max() else {
            return;
        };
        let mut state = self.engine.state();
        if !self.engine.can_spill(&state) {
            return;
        }
        let retries = std::mem::take(&mut state.retries);
        let (older, younger) = retries
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|((_, number), _)| *number < newest);
        state.retries = younger;
        let ids: Vec<_> = older.values().map(|queued: &Queued| queued.id).collect();
        state.post(ids, Place::Retrying, Place::InFlight);
        spilled.extend(older.into_values());
        spilled.sort_by_key(|queued| queued.number);
    }

    /// The breaker has opened. Failed events and those that wait for a retry go to the spill before
    /// anything newer does, in the order in which it was logged. Without a spill it is retried.
    async fn spill_all(&self, mut failed: Vec<Queued>) {
        let engine = &*self.engine;
        let waiting = {
            let mut state = engine.state();
            engine.can_spill(&state).then(|| state.take_retries())
        };
        match waiting {
            Some(waiting) => failed.extend(waiting),
            None => return self.retry(failed, None).await,
        }
        failed.sort_by_key(|queued| queued.number);
        engine.spill_or_lose(failed, reason::CIRCUIT_OPEN).await;
    }
}

/// How long a sender waits for more before it counts as idle.
const LINGER: Duration = Duration::from_millis(1);

/// The longest nap of an idle sender.
const NAP: Duration = Duration::from_secs(1);

/// An answer as one outcome per event.
pub(crate) struct SendOutcomes {
    pub(crate) outcomes: Vec<EventOutcome>,
    pub(crate) retry_after: Option<Duration>,
    /// Why the API refuses us as a whole, if it does.
    pub(crate) failure: Option<String>,
}

/// Turns an answer into one outcome per event.
pub(crate) fn per_event(answer: ApiAnswer, count: usize) -> SendOutcomes {
    let known = |outcomes| SendOutcomes {
        outcomes,
        retry_after: None,
        failure: None,
    };
    let failed = |code: Code, message: String, retry_after| SendOutcomes {
        failure: Some(format!("{code}: {message}")),
        outcomes: vec![EventOutcome::Failed { code, message }; count],
        retry_after,
    };
    match answer {
        ApiAnswer::PerEvent(outcomes) if outcomes.len() == count => known(outcomes),
        // An answer about other events says nothing about ours.
        ApiAnswer::PerEvent(outcomes) => {
            let message = format!("{} outcomes for {count} events", outcomes.len());
            failed(Code::from_static("answer.unreadable"), message, None)
        }
        ApiAnswer::TooLarge => {
            let rejected = EventOutcome::Rejected {
                code: Code::from_static("body.too_large"),
                message: "the event alone is too large for the API".to_owned(),
                status: Some(413),
            };
            known(vec![rejected; count])
        }
        ApiAnswer::Failed(ApiFailure {
            code,
            message,
            retry_after,
        }) => failed(code, message, retry_after),
    }
}
