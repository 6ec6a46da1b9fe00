//! One lane of a relay: claim, publish, settle, and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Backoff;
use tidegate_core::env::{Clock, Entropy, Env};
use tidegate_log::LogError;

use super::dead_letters::{DeadLetterOutcome, write_dead_letter};
use super::publish::{Publication, publish};
use super::state::LoopPulse;
use super::{BatchCounts, RelayParts};
use crate::OutboxError;
use crate::dead_letter::{GiveUp, dlq_of};
use crate::decide::{PublishFacts, PublishOutcome, RowFate, decide};
use crate::error::with_code;
use crate::port::{
    BatchSettlement, BucketCursor, BucketLease, ClaimedRow, ClaimedRows, RowClaim, Settled,
    SettledRow, SettledTo,
};

/// So often at least the table is read from its beginning: rows that waited are due by then.
const RESCAN: Duration = Duration::from_secs(1);
/// A publish that takes longer than this is shown: the log is probably away.
const LATE: Duration = Duration::from_secs(5);
const NO_ANSWER: &str =
    "log.unavailable: the log has had records for more than 5 s and does not answer";
/// The longest error that is kept.
const ERROR_LIMIT: usize = 500;

pub(super) struct RelayLane {
    number: u32,
    parts: RelayParts,
    clock: Arc<dyn Clock>,
    entropy: Box<dyn Entropy>,
    pulse: LoopPulse,
    cursor: LaneCursor,
    /// The most rows of a bucket that the next claim reads.
    per_bucket: u32,
    /// Failures of the store or the log in a row.
    failures: u32,
}

/// How far the lane has come since it read the table from its beginning.
#[derive(Debug, Default)]
struct LaneCursor {
    after: BTreeMap<u32, i64>,
    up_to: Option<i64>,
    began: Duration,
}

/// The next step of a lane.
enum Next {
    Claim,
    Wait(Duration),
}

impl RelayLane {
    pub(super) fn new(number: u32, parts: RelayParts, env: &Env) -> Self {
        Self {
            number,
            pulse: LoopPulse::new(&parts.shared, format!("lane-{number}")),
            per_bucket: parts.outbox.options().batch_size,
            parts,
            clock: Arc::clone(&env.clock),
            entropy: env.entropy.fork("waits"),
            cursor: LaneCursor::default(),
            failures: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let stop = self.parts.stop.clone();
        loop {
            let leases = self.parts.shared.begin(self.number);
            let next = if leases.is_empty() || !self.parts.shared.is_valid() {
                self.parts.shared.nothing_to_publish(self.number);
                Next::Wait(self.parts.outbox.options().poll_delay)
            } else {
                self.step(leases).await
            };
            self.parts.shared.end(self.number);
            let pause = match next {
                Next::Claim => Duration::ZERO,
                Next::Wait(pause) => pause,
            };
            let is_over = tokio::select! {
                biased;
                () = stop.clone().requested() => true,
                () = self.pulse.waiting(self.clock.sleep(pause)) => false,
            };
            if is_over {
                break;
            }
        }
        self.pulse.end();
    }

    async fn step(&mut self, leases: Vec<BucketLease>) -> Next {
        let began = self.clock.elapsed();
        let claim = self.next_claim(&leases, began);
        let is_whole = claim.up_to.is_none();
        let limit = claim.limit;
        let claimed = match self
            .pulse
            .waiting(self.parts.outbox.store().claim(claim))
            .await
        {
            Ok(claimed) => claimed,
            Err(error) => return self.store_failed(&error),
        };
        if !claimed.is_held {
            // The renewal finds out which of them are lost.
            self.cursor = LaneCursor::default();
            return Next::Wait(self.parts.outbox.options().poll_delay);
        }
        if claimed.rows.is_empty() {
            self.cursor = LaneCursor::default();
            self.parts.shared.nothing_to_publish(self.number);
            return match is_whole {
                true => Next::Wait(self.parts.outbox.options().poll_delay),
                false => Next::Claim,
            };
        }
        // A process that stood still past its lease must not publish what others have by now.
        if !self.parts.shared.is_valid() {
            self.cursor = LaneCursor::default();
            return Next::Wait(Duration::ZERO);
        }
        self.cursor.advance(&claimed);
        self.per_bucket = next_per_bucket(self.per_bucket, limit, leases.len(), &claimed);
        self.work(leases, claimed.rows).await
    }

    fn next_claim(&mut self, leases: &[BucketLease], now: Duration) -> RowClaim {
        let options = self.parts.outbox.options();
        if now.saturating_sub(self.cursor.began) >= RESCAN {
            self.cursor = LaneCursor {
                began: now,
                ..LaneCursor::default()
            };
        }
        let buckets = leases.iter().map(|lease| BucketCursor {
            lease: *lease,
            after: match self.cursor.up_to {
                // A bucket that came since was not read from its beginning.
                Some(_) => self.cursor.after.get(&lease.bucket).copied().unwrap_or(0),
                None => 0,
            },
        });
        RowClaim {
            worker: self.parts.worker.to_string(),
            lane: self.number,
            buckets: buckets.collect(),
            up_to: self.cursor.up_to,
            limit: options.batch_size,
            per_bucket: self.per_bucket,
        }
    }

    /// Publishes and settles.
    async fn work(&mut self, mut leases: Vec<BucketLease>, rows: Vec<ClaimedRow>) -> Next {
        // The fate of the other buckets is no matter of this batch.
        leases.retain(|lease| rows.iter().any(|row| row.bucket == lease.bucket));
        let published = self.publish(&rows).await;
        for row in published.overtaken.iter().filter_map(|i| rows.get(*i)) {
            let trace_id = row.trace_id();
            tracing::warn!(row = row.id, event = %row.event_id, trace_id, "the broker refused a row and took a later one of its key");
        }
        self.parts.metrics.overtaken(published.overtaken.len());
        let away = published.away.as_ref();
        let mut away = away.map(|error| with_code(&error.code(), error));
        let mut settled = Vec::with_capacity(rows.len());
        let mut counts = BatchCounts::default();
        for (row, outcome) in rows.iter().zip(&published.outcomes) {
            if matches!(outcome, PublishOutcome::Failed { .. }) {
                counts.failed += 1;
            }
            let facts = PublishFacts {
                attempts: row.attempts,
                outcome,
            };
            let options = self.parts.outbox.options();
            let to = match decide(facts, options, &mut *self.entropy) {
                RowFate::Leave => continue,
                RowFate::Sent => SettledTo::Sent,
                RowFate::RetryIn { wait, error } => {
                    let (attempts, trace_id) = (row.attempts + 1, row.trace_id());
                    tracing::warn!(row = row.id, event = %row.event_id, trace_id, attempts, %error, "a row could not be published");
                    SettledTo::Retry {
                        wait,
                        error: shortened(error),
                    }
                }
                RowFate::DeadLetter { .. } if away.is_some() => continue,
                RowFate::DeadLetter {
                    code,
                    is_exhausted,
                    error,
                } => {
                    let why = GiveUp {
                        code,
                        is_exhausted,
                        error,
                        now_ms: self.clock.now_ms(),
                    };
                    match self.dead_letter(row, why).await {
                        Ok(to) => to,
                        Err(why) => {
                            away = Some(why);
                            continue;
                        }
                    }
                }
            };
            counts.sent += u64::from(to == SettledTo::Sent);
            counts.dead += u64::from(matches!(to, SettledTo::Dead { .. }));
            settled.push(SettledRow {
                id: row.id,
                event_id: row.event_id,
                attempts_before: row.attempts,
                to,
            });
        }
        if settled.len() < rows.len() {
            // Rows that are left must come before whatever follows them: the next claim begins anew.
            self.cursor = LaneCursor::default();
        }
        let has_settled = !settled.is_empty();
        if has_settled {
            self.settle(leases, settled, counts, &rows).await;
        }
        match away {
            Some(why) => self.log_failed(why, has_settled),
            None => {
                self.failures = 0;
                self.parts.shared.log_answered(self.number);
                Next::Claim
            }
        }
    }

    async fn publish(&self, rows: &[ClaimedRow]) -> Publication {
        let RelayParts {
            outbox,
            log,
            shared,
            ..
        } = &self.parts;
        let work = publish(&**log, outbox.options(), shared, rows);
        let published = self.patiently(work).await;
        published.unwrap_or_else(|| Publication {
            outcomes: vec![PublishOutcome::LogAway; rows.len()],
            away: Some(LogError::Closed),
            overtaken: Vec::new(),
        })
    }

    /// Waits for the log as long as it takes, and shows that it does. Only the end of the relay ends the wait,
    /// once its time is over: a broker that is away must not hold up the process.
    async fn patiently<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let RelayParts {
            outbox,
            shared,
            stop,
            stop_deadline,
            ..
        } = &self.parts;
        let late = async {
            self.clock.sleep(LATE).await;
            shared.log_failed(self.number, NO_ANSWER.to_owned());
            std::future::pending::<()>().await;
        };
        let given_up = async {
            stop.clone().requested().await;
            let now = self.clock.elapsed();
            let end = stop_deadline.get_or_init(|| now + outbox.options().stop_timeout);
            self.clock.sleep(end.saturating_sub(now)).await;
        };
        self.pulse
            .waiting(async {
                tokio::select! {
                    biased;
                    done = work => Some(done),
                    () = late => None,
                    () = given_up => None,
                }
            })
            .await
    }

    /// Gives up on a row. Without its dead letter it is kept and tried again.
    async fn dead_letter(&mut self, row: &ClaimedRow, why: GiveUp) -> Result<SettledTo, String> {
        let options = self.parts.outbox.options();
        let error = why.error.clone();
        let work = write_dead_letter(&*self.parts.log, options, row, &why);
        let written = self.patiently(work).await;
        match written.unwrap_or(DeadLetterOutcome::LogAway(LogError::Closed)) {
            DeadLetterOutcome::Written => {
                let trace_id = row.trace_id();
                tracing::warn!(row = row.id, event = %row.event_id, trace_id, %error, "a row was given up on");
                Ok(SettledTo::Dead {
                    error: shortened(error),
                })
            }
            DeadLetterOutcome::Refused(refusal) => {
                let trace_id = row.trace_id();
                tracing::warn!(row = row.id, event = %row.event_id, trace_id, %error, %refusal, "a dead letter was refused; its row is kept and tried again");
                if let Some(dlq) = dlq_of(row, options) {
                    self.parts.shared.topic_failed(&dlq, refusal.clone());
                }
                Ok(SettledTo::Retry {
                    wait: options.backoff_max,
                    error: shortened(format!("{error}; and no dead letter: {refusal}")),
                })
            }
            DeadLetterOutcome::LogAway(error) => Err(with_code(&error.code(), &error)),
        }
    }

    /// Settles until it is done, others have the buckets, or the leases may have run out.
    async fn settle(
        &mut self,
        leases: Vec<BucketLease>,
        rows: Vec<SettledRow>,
        counts: BatchCounts,
        claimed: &[ClaimedRow],
    ) {
        let settlement = BatchSettlement {
            worker: self.parts.worker.to_string(),
            lane: self.number,
            leases,
            rows,
        };
        let mut has_failed = false;
        let backoff = self.pauses();
        for retry in 0.. {
            let store = self.parts.outbox.store();
            let outcome = self.pulse.waiting(store.settle(&settlement)).await;
            let is_fenced = match outcome {
                Ok(Settled::Done) => false,
                Ok(Settled::Fenced) => true,
                Ok(Settled::Foreign(ids)) => {
                    // One of them may wait again, before rows that the cursor has not passed.
                    self.cursor = LaneCursor::default();
                    // After an answer that was lost they are our own changes.
                    if !has_failed {
                        let is_foreign = |row: &&ClaimedRow| ids.contains(&row.id);
                        for row in claimed.iter().filter(is_foreign) {
                            let trace_id = row.trace_id();
                            tracing::warn!(row = row.id, event = %row.event_id, trace_id, "somebody else changed a row that was being published");
                        }
                    }
                    false
                }
                Err(error) => {
                    has_failed = true;
                    self.parts.shared.store_failed(&error);
                    if !self.parts.shared.is_valid() {
                        tracing::warn!(
                            "a batch was published and could not be settled; it will be published again"
                        );
                        self.cursor = LaneCursor::default();
                        return;
                    }
                    let pause = backoff.wait(retry, &mut *self.entropy);
                    self.pulse.waiting(self.clock.sleep(pause)).await;
                    continue;
                }
            };
            if is_fenced {
                tracing::warn!("another relay has taken over; a batch may be published twice");
                self.cursor = LaneCursor::default();
            } else {
                let BatchCounts { sent, failed, dead } = counts;
                self.parts.metrics.batch(claimed.len(), sent, failed, dead);
            }
            self.parts.shared.count(counts, is_fenced);
            return;
        }
    }

    fn pauses(&self) -> Backoff {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(5));
        Backoff::exponential(first, 2.0, longest).with_jitter(0.25)
    }

    fn pause(&mut self) -> Next {
        let pause = self.pauses().wait(self.failures, &mut *self.entropy);
        self.failures = self.failures.saturating_add(1);
        self.cursor = LaneCursor::default();
        Next::Wait(pause)
    }

    fn store_failed(&mut self, error: &OutboxError) -> Next {
        self.parts.shared.store_failed(error);
        self.pause()
    }

    /// The log takes nothing at present: no attempt counts.
    fn log_failed(&mut self, why: String, has_settled: bool) -> Next {
        self.parts.shared.log_failed(self.number, why);
        if has_settled {
            self.failures = 0;
        }
        self.pause()
    }
}

impl LaneCursor {
    /// Goes on behind these rows, if there may be more; else the next claim begins anew.
    fn advance(&mut self, claimed: &ClaimedRows) {
        let up_to = self.up_to.unwrap_or(claimed.up_to);
        if !claimed.has_more || up_to == i64::MAX {
            *self = Self {
                began: self.began,
                ..Self::default()
            };
            return;
        }
        self.up_to = Some(up_to);
        for row in &claimed.rows {
            let after = self.after.entry(row.bucket).or_default();
            *after = (*after).max(row.id);
        }
    }
}

/// The most rows of a bucket that the next claim reads: about its share while all buckets have rows, and more while
/// only a few have.
fn next_per_bucket(present: u32, limit: u32, buckets: usize, claimed: &ClaimedRows) -> u32 {
    let buckets = u32::try_from(buckets).unwrap_or(u32::MAX).max(1);
    let share = limit.div_ceil(buckets);
    let is_full = u32::try_from(claimed.rows.len()).is_ok_and(|rows| rows >= limit);
    match (is_full, claimed.has_more) {
        (true, _) => (present / 2).max(share),
        (false, true) => present.saturating_mul(2).min(limit),
        (false, false) => present,
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(ERROR_LIMIT) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_the_share_of_each_bucket_or_all_of_a_busy_one() {
        let row = ClaimedRow {
            id: 1,
            bucket: 0,
            event_id: tidegate_core::EventId::from_u128(1),
            aggregate_id: String::new(),
            aggregate_type: None,
            type_name: String::new(),
            topic: None,
            payload: None,
            headers: None,
            attempts: 0,
            created_ms: 0,
        };
        let claimed = |rows, has_more| ClaimedRows {
            rows: vec![row.clone(); rows],
            has_more,
            ..ClaimedRows::default()
        };
        let (limit, buckets) = (500, 16);
        let mut present = limit;
        for expect in [250, 125, 62, 32, 32] {
            present = next_per_bucket(present, limit, buckets, &claimed(500, true));
            assert_eq!(present, expect);
        }
        present = next_per_bucket(present, limit, buckets, &claimed(3, false));
        assert_eq!(present, 32, "nothing is to be learned from a few rows");
        for expect in [64, 128, 256, 500, 500] {
            present = next_per_bucket(present, limit, buckets, &claimed(40, true));
            assert_eq!(present, expect);
        }
        assert_eq!(next_per_bucket(1, 1, buckets, &claimed(1, true)), 1);
    }
}
