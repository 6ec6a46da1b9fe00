//! Takes events from the main queue to the API.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::Code;
use tidegate_core::books::Place;
use tidegate_core::breaker::{BreakerState, CallResult, Permit};

use crate::api::{Answer, Judgment, Payload, ask};
use crate::event::Encoder;
use crate::held::Held;
use crate::hub::Hub;
use crate::loss::reason;
use crate::spill::Rejection;
use crate::state::{Phase, Queued, State};
use crate::task::Alive;
use crate::writer::{Aside, WriterHandle};

/// One sender.
pub(crate) struct Sender {
    pub(crate) shared: Arc<Hub>,
    pub(crate) writer: Option<WriterHandle>,
    /// Whether it has just waited for more, in vain.
    pub(crate) has_lingered: bool,
    pub(crate) _alive: Arc<Alive>,
}

/// What there is to do.
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
                Next::Linger => self.linger().await,
                Next::Batch(batch, permit) => self.send(batch, permit).await,
                Next::Spill(batch) => {
                    let shared = Arc::clone(&self.shared);
                    let mut batch = Held::sending(&shared, batch);
                    let spilled = shared.spill_or_lose(batch.take(), reason::CIRCUIT_OPEN);
                    spilled.await;
                }
                Next::Wait => self.wait().await,
                Next::End => return,
            }
        }
    }

    fn next(&self) -> Next {
        let shared = &*self.shared;
        let now = shared.clock.elapsed();
        let mut state = shared.state();
        if state.phase >= Phase::Draining
            || (state.phase > Phase::Running && state.queue.is_empty())
        {
            return Next::End;
        }
        if state.queue.is_empty() && !self.has_lingered {
            return Next::Linger;
        }
        if state.queue.is_empty() {
            // Counted under the same lock, so that the next event to come rings.
            state.idle_senders += 1;
            return Next::Wait;
        }
        match state.breaker.try_acquire(now) {
            Some(permit) => Next::Batch(self.take(&mut state), permit),
            None if shared.can_spill(&state) => Next::Spill(self.take(&mut state)),
            // Without a spill events wait in the queue for the breaker, and not at all when we stop.
            None if state.phase > Phase::Running => Next::End,
            None => {
                state.idle_senders += 1;
                Next::Wait
            }
        }
    }

    fn take(&self, state: &mut State) -> Vec<Queued> {
        let count = self.shared.config.batch_size.min(state.queue.len());
        let batch: Vec<Queued> = state.queue.drain(..count).collect();
        state.sending += count;
        if state.blocked > 0 || self.shared.config.on_full == crate::config::OnFull::Block {
            self.shared.ring_room();
        }
        batch
    }

    /// A moment in which events that come need not wake us: waking is the dearest thing that
    /// logging can cost.
    async fn linger(&self) {
        self.shared.clock.sleep(LINGER).await;
    }

    async fn wait(&mut self) {
        let shared = Arc::clone(&self.shared);
        let bell = shared.sender_bell.notified();
        // A missed ring costs no more than the wait for a batch, or a second.
        let nap = shared
            .config
            .max_batch_wait
            .clamp(Duration::from_millis(1), NAP);
        tokio::select! {
            biased;
            () = bell => {}
            () = shared.clock.sleep(nap) => {}
        }
        let mut state = shared.state();
        state.idle_senders -= 1;
        state.rung_senders = state.rung_senders.saturating_sub(1);
    }

    /// Sends a batch; one that is too large goes in halves.
    async fn send(&mut self, batch: Vec<Queued>, permit: Permit) {
        let shared = Arc::clone(&self.shared);
        let mut permit = Some(permit);
        let mut parts = VecDeque::from([Held::sending(&shared, batch)]);
        while let Some(mut batch) = parts.pop_front() {
            let count = batch.len();
            let permit = match permit.take() {
                Some(permit) => Some(permit),
                None => {
                    let now = self.shared.clock.elapsed();
                    self.shared.state().breaker.try_acquire(now)
                }
            };
            let Some(permit) = permit else {
                // The first half has opened the breaker: this one waits for it, or is spilled.
                self.spill_all(batch.take()).await;
                continue;
            };
            let payloads = self.payloads(&batch);
            let began = self.shared.clock.elapsed();
            let answer = tokio::select! {
                biased;
                answer = ask(&*shared.api, &payloads) => Some(answer),
                () = shared.abandoned.wait() => None,
            };
            match answer {
                // It may have arrived or not: spilled, it is sent again under the same id.
                None => {
                    shared.state().breaker.release(permit);
                    let spilled = shared.spill_or_lose(batch.take(), reason::SHUTDOWN_QUEUED);
                    spilled.await;
                }
                Some(Answer::TooLarge) if count > 1 => {
                    shared.state().breaker.release(permit);
                    let second = batch.split_off(count / 2);
                    parts.push_front(second);
                    parts.push_front(batch);
                }
                Some(answer) => {
                    let judged = judge(answer, count);
                    self.settle(batch, &payloads, judged, permit, began).await;
                }
            }
        }
    }

    fn payloads(&self, batch: &Held<'_>) -> Vec<Payload> {
        let mut encoder = Encoder::new(&self.shared.config.defaults);
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

    async fn settle(
        &mut self,
        mut batch: Held<'_>,
        payloads: &[Payload],
        judged: Judged,
        permit: Permit,
        began: Duration,
    ) {
        let shared = Arc::clone(&self.shared);
        let mut stored = Vec::new();
        let mut rejected = Vec::new();
        let mut failed = Vec::new();
        for ((queued, payload), judgment) in
            batch.take().into_iter().zip(payloads).zip(judged.judgments)
        {
            match judgment {
                Judgment::Stored => stored.push(queued),
                Judgment::Failed { .. } => failed.push(queued),
                Judgment::Rejected {
                    code,
                    message,
                    status,
                } => {
                    let (id, json) = (queued.id, payload.json.clone());
                    let attempts = queued.attempts + 1;
                    let rejection = Rejection {
                        id,
                        json,
                        code,
                        message,
                        status,
                        attempts,
                    };
                    rejected.push((queued, rejection));
                }
            }
        }
        let now = shared.clock.elapsed();
        let result = if failed.is_empty() {
            CallResult::Success
        } else {
            CallResult::Failure
        };
        let (has_changed, has_opened) = {
            let mut state = shared.state();
            state.post(
                stored.iter().map(|q| q.id),
                Place::InFlight,
                Place::Delivered,
            );
            state.counters.sent += stored.len() as u64;
            state.api_failure = judged.failure;
            let took = now.saturating_sub(began);
            let change = state.breaker.record(permit, result, took, now);
            let has_opened = change.is_some_and(|change| change.to == BreakerState::Open);
            (change.is_some(), has_opened)
        };
        for mut queued in stored {
            queued.tell(Ok(()));
        }
        if has_changed {
            shared.ring_room();
        }
        // What failed goes first: setting aside waits for the disk, and the disk may hang.
        let rejected = self.hold_aside(rejected);
        if has_opened {
            self.spill_all(failed).await;
        } else {
            self.retry(failed, judged.retry_after).await;
        }
        self.set_aside(rejected).await;
        drop(batch);
        shared.keeper_bell.notify_one();
        shared.replay_bell.notify_one();
    }

    /// Puts what the API refused for good where the writer finds it, or whoever stops the logger.
    fn hold_aside(&self, rejected: Vec<(Queued, Rejection)>) -> Vec<Aside> {
        let mut state = self.shared.state();
        state.counters.rejected += rejected.len() as u64;
        rejected
            .into_iter()
            .map(|(queued, rejection)| {
                let number = queued.number;
                state.aside.insert(number, queued);
                Aside { number, rejection }
            })
            .collect()
    }

    /// Has the writer keep what the API refused for good, where there is a spill; else it is lost.
    async fn set_aside(&self, rejected: Vec<Aside>) {
        if rejected.is_empty() {
            return;
        }
        let numbers: Vec<u64> = rejected.iter().map(|aside| aside.number).collect();
        let is_kept = match &self.writer {
            Some(writer) => writer.set_aside(rejected).await,
            None => false,
        };
        if !is_kept {
            // Those that are not there any more were reported when the logger stopped.
            let events = self.shared.state().take_aside(&numbers);
            self.shared.lose(events, reason::REJECTED);
        }
    }

    /// Schedules another attempt for each, or gives up on those that had enough.
    async fn retry(&self, failed: Vec<Queued>, retry_after: Option<Duration>) {
        let shared = &*self.shared;
        let (mut exhausted, mut crowded, mut stopping) = (Vec::new(), Vec::new(), Vec::new());
        // One wait for all that failed together, so that they go out together again.
        let mut waits: BTreeMap<u32, Duration> = BTreeMap::new();
        let now = shared.clock.elapsed();
        for mut queued in failed {
            queued.attempts += 1;
            let retry = queued.attempts - 1;
            let wait = *waits.entry(retry).or_insert_with(|| shared.backoff(retry));
            let due = now.saturating_add(wait.max(retry_after.unwrap_or_default()));
            let mut state = shared.state();
            if state.phase > Phase::Running {
                stopping.push(queued);
            } else if queued.attempts > shared.config.max_retries {
                exhausted.push(queued);
            } else if state.retries.len() >= shared.config.queue_capacity {
                crowded.push(queued);
            } else {
                state.post([queued.id], Place::InFlight, Place::Retrying);
                state.retries.insert((due, queued.number), queued);
            }
        }
        self.with_older_retries(&mut exhausted);
        // All three are taken in hand before the first of them may have to wait.
        let exhausted = shared.spill_or_lose(exhausted, reason::RETRIES_EXHAUSTED);
        let crowded = shared.spill_or_lose(crowded, reason::RETRY_EXECUTOR_REJECTED);
        let stopping = shared.spill_or_lose(stopping, reason::SHUTDOWN_PENDING_RETRY);
        exhausted.await;
        crowded.await;
        stopping.await;
    }

    /// What is about to be spilled takes along what was logged before it and waits for a retry, so
    /// that it is not overtaken on the disk.
    fn with_older_retries(&self, spilled: &mut Vec<Queued>) {
        let Some(newest) = spilled.iter().map(|queued| queued.number).max() else {
            return;
        };
        let mut state = self.shared.state();
        if !self.shared.can_spill(&state) {
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

    /// The breaker has opened: what failed and what waits for a retry goes to the spill before
    /// anything newer does, in the order in which it was logged. Without a spill it is retried.
    async fn spill_all(&self, mut failed: Vec<Queued>) {
        let shared = &*self.shared;
        let waiting = {
            let mut state = shared.state();
            shared.can_spill(&state).then(|| state.take_retries())
        };
        match waiting {
            Some(waiting) => failed.extend(waiting),
            None => return self.retry(failed, None).await,
        }
        failed.sort_by_key(|queued| queued.number);
        shared.spill_or_lose(failed, reason::CIRCUIT_OPEN).await;
    }
}

/// How long a sender waits for more before it counts as idle.
const LINGER: Duration = Duration::from_millis(1);

/// The longest nap of an idle sender.
const NAP: Duration = Duration::from_secs(1);

/// An answer as one judgment per event.
pub(crate) struct Judged {
    pub(crate) judgments: Vec<Judgment>,
    pub(crate) retry_after: Option<Duration>,
    /// Why the API refuses us as a whole, if it does.
    pub(crate) failure: Option<String>,
}

/// Turns an answer into one judgment per event.
pub(crate) fn judge(answer: Answer, count: usize) -> Judged {
    let all = |judgment: Judgment| vec![judgment; count];
    match answer {
        Answer::Judged(judgments) if judgments.len() == count => Judged {
            judgments,
            retry_after: None,
            failure: None,
        },
        // An answer about other events than ours tells nothing about ours.
        Answer::Judged(judgments) => {
            let message = format!("{} judgments for {count} events", judgments.len());
            let code = Code::from_static("answer.unreadable");
            let failure = Some(format!("{code}: {message}"));
            Judged {
                judgments: all(Judgment::Failed { code, message }),
                retry_after: None,
                failure,
            }
        }
        Answer::TooLarge => {
            let code = Code::from_static("body.too_large");
            let message = "the event alone is too large for the API".to_owned();
            let judgments = all(Judgment::Rejected {
                code,
                message,
                status: Some(413),
            });
            Judged {
                judgments,
                retry_after: None,
                failure: None,
            }
        }
        Answer::Failed(failed) => {
            let failure = Some(format!("{}: {}", failed.code, failed.message));
            let judgment = Judgment::Failed {
                code: failed.code,
                message: failed.message,
            };
            Judged {
                judgments: all(judgment),
                retry_after: failed.retry_after,
                failure,
            }
        }
    }
}
