//! Sends what was spilled, in its order.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::{CallResult, Permit};

use crate::api::{Answer, Judgment, Payload, ask};
use crate::hub::Hub;
use crate::sender::judge;
use crate::spill::{Rejection, ReplayBatch};
use crate::state::Phase;
use crate::task::Alive;
use crate::writer::WriterHandle;

/// Lines per request, unless the configured batches are larger; alone, where they are single.
const BATCH: usize = 200;

pub(crate) struct Replayer {
    pub(crate) shared: Arc<Hub>,
    pub(crate) writer: WriterHandle,
    pub(crate) _alive: Arc<Alive>,
}

/// How a round went.
enum Round {
    /// Something was settled: go on at once.
    Progress,
    /// Nothing waits.
    Empty,
    /// The API failed; ask again after this, or at the next interval.
    Failed(Option<Duration>),
    /// The writer has ended.
    End,
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
            let bell = self.shared.replay_bell.notified();
            if !wait.is_zero() {
                tokio::select! {
                    biased;
                    () = bell => {}
                    () = self.shared.clock.sleep(wait) => {}
                }
            }
            if self.shared.state().phase > Phase::Running {
                return;
            }
            let Some(permit) = self.permit(&batch) else {
                wait = self.shared.config.replay_interval;
                continue;
            };
            self.shared.state().is_replaying = true;
            let round = self.round(&mut batch, permit).await;
            self.shared.state().is_replaying = false;
            self.shared.progress.notify_waiters();
            wait = match round {
                Round::Progress => Duration::ZERO,
                Round::Empty => self.shared.config.replay_interval,
                Round::Failed(after) => after.unwrap_or(self.shared.config.replay_interval),
                Round::End => return,
            };
        }
    }

    /// The right to a request, if the breaker allows one and something waits.
    fn permit(&self, batch: &ReplayBatch) -> Option<Permit> {
        let now = self.shared.clock.elapsed();
        let mut state = self.shared.state();
        if state.backlog == 0 && batch.lines.is_empty() {
            return None;
        }
        state.breaker.try_acquire(now)
    }

    async fn round(&self, batch: &mut ReplayBatch, permit: Permit) -> Round {
        if batch.lines.is_empty() {
            match self.read().await {
                Some(read) => *batch = read,
                None => {
                    self.release(permit);
                    return Round::End;
                }
            }
        }
        if batch.lines.is_empty() {
            self.release(permit);
            return Round::Empty;
        }
        let payloads: Vec<Payload> = batch
            .lines
            .iter()
            .filter_map(|line| line.payload.clone())
            .collect();
        if payloads.is_empty() {
            // Only lines that cannot be read, which are set aside already.
            self.release(permit);
            return self.settle(batch, Vec::new()).await;
        }
        let began = self.shared.clock.elapsed();
        let (judgments, retry_after) = self.send(&payloads, permit, began).await;
        // One that fails ends the round: asking again at once would only hammer the API.
        let has_failed = judgments.len() < payloads.len()
            || judgments
                .iter()
                .any(|j| matches!(j, Judgment::Failed { .. }));
        match self.settle(batch, judgments).await {
            Round::Progress if has_failed => Round::Failed(retry_after),
            round @ (Round::Progress | Round::Empty | Round::Failed(_) | Round::End) => round,
        }
    }

    /// Lines to send; none when the writer has ended. Reading past the end of a snapshot is what
    /// removes it.
    async fn read(&self) -> Option<ReplayBatch> {
        let single = self.shared.config.batch_size == 1;
        let max = if single {
            1
        } else {
            self.shared.config.batch_size.max(BATCH)
        };
        self.writer.read(max).await
    }

    /// Sends the payloads, in halves where they are too many, and gives a judgment for each of
    /// them, or for the first of them up to a failure.
    async fn send(
        &self,
        payloads: &[Payload],
        permit: Permit,
        began: Duration,
    ) -> (Vec<Judgment>, Option<Duration>) {
        let mut judgments = Vec::new();
        let mut retry_after = None;
        let mut size = payloads.len();
        while judgments.len() < payloads.len() {
            let rest = &payloads[judgments.len()..];
            let part = &rest[..size.min(rest.len())];
            let answer = tokio::select! {
                biased;
                answer = ask(&*self.shared.api, part) => answer,
                // It may have arrived or not: it is still on disk, and is sent again.
                () = self.shared.abandoned.wait() => break,
            };
            if matches!(answer, Answer::TooLarge) && part.len() > 1 {
                size = part.len() / 2;
                continue;
            }
            let judged = judge(answer, part.len());
            self.shared.state().api_failure = judged.failure;
            retry_after = retry_after.max(judged.retry_after);
            let has_failed = judged
                .judgments
                .iter()
                .any(|j| matches!(j, Judgment::Failed { .. }));
            judgments.extend(judged.judgments);
            if has_failed {
                break;
            }
        }
        let has_failed = judgments
            .iter()
            .any(|j| matches!(j, Judgment::Failed { .. }));
        let now = self.shared.clock.elapsed();
        if judgments.len() < payloads.len() && !has_failed {
            // Given up on our side, which says nothing about the other one.
            self.release(permit);
            return (judgments, retry_after);
        }
        let result = if has_failed {
            CallResult::Failure
        } else {
            CallResult::Success
        };
        self.shared
            .state()
            .breaker
            .record(permit, result, now.saturating_sub(began), now);
        self.shared.keeper_bell.notify_one();
        self.shared.sender_bell.notify_one();
        (judgments, retry_after)
    }

    /// Settles the lines up to the first that failed.
    async fn settle(&self, batch: &mut ReplayBatch, judgments: Vec<Judgment>) -> Round {
        let mut judgments = judgments.into_iter();
        let mut rejected = Vec::new();
        let mut count = 0;
        for line in &batch.lines {
            if let Some(payload) = &line.payload {
                match judgments.next() {
                    Some(Judgment::Stored) => {}
                    Some(Judgment::Rejected {
                        code,
                        message,
                        status,
                    }) => rejected.push(Rejection {
                        id: payload.id,
                        json: payload.json.clone(),
                        code,
                        message,
                        status,
                        attempts: 1,
                    }),
                    Some(Judgment::Failed { .. }) | None => break,
                }
            }
            count += 1;
        }
        if count == 0 {
            return Round::Progress;
        }
        let before = batch.lines.len();
        match self
            .writer
            .settle(std::mem::take(batch), count, rejected)
            .await
        {
            Some(rest) => *batch = rest,
            None => return Round::End,
        }
        if batch.lines.len() == before {
            // The disk has no room for what was rejected; it may have later.
            return Round::Failed(None);
        }
        if batch.lines.is_empty() {
            match self.read().await {
                Some(next) => *batch = next,
                None => return Round::End,
            }
        }
        Round::Progress
    }

    fn release(&self, permit: Permit) {
        self.shared.state().breaker.release(permit);
    }
}
