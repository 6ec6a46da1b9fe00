//! Sends what was spilled, in its order.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::{CallResult, Permit};

use crate::api::{ApiAnswer, EventOutcome, Payload, ask};
use crate::engine::Engine;
use crate::sender::per_event;
use crate::spill::{Rejection, ReplayBatch};
use crate::state::LoggerPhase;
use crate::task::ShutdownGuard;
use crate::writer::WriterHandle;

/// Lines per request, unless the configured batches are larger; alone, where they are single.
const BATCH: usize = 200;

pub(crate) struct Replayer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) writer: WriterHandle,
    pub(crate) _shutdown_guard: Arc<ShutdownGuard>,
}

impl Replayer {
    /// Replays until the logger stops.
    pub(crate) async fn run(self) {
        // The first look is at once: what an earlier process left behind has waited long enough.
        let Some(mut batch) = self.read().await else {
            return;
        };
        let mut wait = Duration::ZERO;
        loop {
            let notified = self.engine.replay_wake.notified();
            if !wait.is_zero() {
                tokio::select! {
                    biased;
                    () = notified => {}
                    () = self.engine.clock.sleep(wait) => {}
                }
            }
            if self.engine.state().phase > LoggerPhase::Running {
                return;
            }
            let Some(permit) = self.permit(&batch) else {
                wait = self.interval();
                continue;
            };
            self.engine.state().is_replaying = true;
            let round = self.round(&mut batch, permit).await;
            self.engine.state().is_replaying = false;
            self.engine.progress.notify_waiters();
            match round {
                Some(after) => wait = after,
                None => return,
            }
        }
    }

    /// The wait where there is nothing to do, or the other side names none.
    fn interval(&self) -> Duration {
        self.engine.config.options.replay_interval
    }

    /// The right to a request, if the breaker allows one and something waits.
    fn permit(&self, batch: &ReplayBatch) -> Option<Permit> {
        let now = self.engine.clock.elapsed();
        let mut state = self.engine.state();
        if state.backlog == 0 && batch.lines.is_empty() {
            return None;
        }
        state.breaker.try_acquire(now)
    }

    /// Sends a batch. Says after which wait the next one follows; none when the writer has ended.
    async fn round(&self, batch: &mut ReplayBatch, permit: Permit) -> Option<Duration> {
        if batch.lines.is_empty() {
            let Some(read) = self.read().await else {
                self.release(permit);
                return None;
            };
            *batch = read;
        }
        if batch.lines.is_empty() {
            self.release(permit);
            return Some(self.interval());
        }
        let payloads: Vec<Payload> = batch
            .lines
            .iter()
            .filter_map(|line| line.payload.clone())
            .collect();
        if payloads.is_empty() {
            // Only lines that cannot be read, which are set aside already.
            self.release(permit);
            return self.finish_lines(batch, Vec::new()).await;
        }
        let began = self.engine.clock.elapsed();
        let (outcomes, retry_after) = self.send(&payloads, permit, began).await;
        // One that fails ends the round: asking again at once would only hammer the API.
        let has_failed = outcomes.len() < payloads.len() || any_failed(&outcomes);
        let wait = self.finish_lines(batch, outcomes).await?;
        let is_failed = wait.is_zero() && has_failed;
        Some(if is_failed {
            retry_after.unwrap_or(self.interval())
        } else {
            wait
        })
    }

    /// Lines to send; none when the writer has ended. Reading past the end of a snapshot is what
    /// removes it.
    async fn read(&self) -> Option<ReplayBatch> {
        let single = self.engine.config.options.batch_size == 1;
        let max = if single {
            1
        } else {
            self.engine.config.options.batch_size.max(BATCH)
        };
        self.writer.read(max).await
    }

    /// Sends the payloads, in halves where they are too many. Gives an outcome for each of them, or for
    /// the first of them up to a failure.
    async fn send(
        &self,
        payloads: &[Payload],
        permit: Permit,
        began: Duration,
    ) -> (Vec<EventOutcome>, Option<Duration>) {
        let mut outcomes = Vec::new();
        let mut retry_after = None;
        let mut size = payloads.len();
        while outcomes.len() < payloads.len() {
            let rest = &payloads[outcomes.len()..];
            let part = &rest[..size.min(rest.len())];
            let answer = tokio::select! {
                biased;
                answer = ask(&*self.engine.api, self.engine.logger_id, part) => answer,
                // It may have arrived or not: it is still on disk, and is sent again.
                () = self.engine.abandoned.wait() => break,
            };
            if matches!(answer, ApiAnswer::TooLarge) && part.len() > 1 {
                size = part.len() / 2;
                continue;
            }
            let sent = per_event(answer, part.len());
            self.engine.state().api_failure = sent.failure;
            retry_after = retry_after.max(sent.retry_after);
            outcomes.extend(sent.outcomes);
            if any_failed(&outcomes) {
                break;
            }
        }
        let has_failed = any_failed(&outcomes);
        let now = self.engine.clock.elapsed();
        if outcomes.len() < payloads.len() && !has_failed {
            // Given up on our side, which says nothing about the other one.
            self.release(permit);
            return (outcomes, retry_after);
        }
        let result = if has_failed {
            CallResult::Failure
        } else {
            CallResult::Success
        };
        self.engine
            .state()
            .breaker
            .record(permit, result, now.saturating_sub(began), now);
        self.engine.timer_wake.notify_one();
        self.engine.sender_wake.notify_one();
        (outcomes, retry_after)
    }

    /// Marks the lines up to the first that failed as replayed. Says as [`round`](Self::round) does
    /// what to wait for.
    async fn finish_lines(
        &self,
        batch: &mut ReplayBatch,
        outcomes: Vec<EventOutcome>,
    ) -> Option<Duration> {
        let mut outcomes = outcomes.into_iter();
        let mut rejected = Vec::new();
        let mut count = 0;
        for line in &batch.lines {
            if let Some(payload) = &line.payload {
                match outcomes.next() {
                    Some(EventOutcome::Stored) => {}
                    Some(EventOutcome::Rejected {
                        code,
                        message,
                        status,
                    }) => rejected.push(Rejection {
                        payload: payload.clone(),
                        code,
                        message,
                        status,
                        attempts: 1,
                    }),
                    Some(EventOutcome::Failed { .. }) | None => break,
                }
            }
            count += 1;
        }
        if count == 0 {
            return Some(Duration::ZERO);
        }
        let before = batch.lines.len();
        let lines = std::mem::take(batch);
        *batch = self.writer.mark_replayed(lines, count, rejected).await?;
        if batch.lines.len() == before {
            // The disk has no room for what was rejected; it may have later.
            return Some(self.interval());
        }
        if batch.lines.is_empty() {
            *batch = self.read().await?;
        }
        Some(Duration::ZERO)
    }

    fn release(&self, permit: Permit) {
        self.engine.state().breaker.release(permit);
    }
}

fn any_failed(outcomes: &[EventOutcome]) -> bool {
    let is_failed = |outcome: &EventOutcome| matches!(outcome, EventOutcome::Failed { .. });
    outcomes.iter().any(is_failed)
}
