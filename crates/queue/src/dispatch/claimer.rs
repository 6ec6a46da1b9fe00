//! Claims ahead of the workers.

use std::time::Duration;

use tidegate_core::Classify;

use super::{Shared, registry_sync};
use crate::port::{ClaimRequest, Claimed, ClaimedEvent, HandlerFilter, LeaseId, POISON_AFTER};
use crate::{QueueError, telemetry};

/// How often rows of their own are looked for while fresh events keep coming: a retry waits at most so
/// long beyond its time. It has no key, because it is far below every poll delay and wait that one
/// sets. The look is by an index, and cheap beside the claims between two looks.
const DELAYED_EVERY: Duration = Duration::from_millis(20);
/// The longest pause after failures in a row.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) async fn claim(shared: &Shared) {
    if !register(shared).await {
        return;
    }
    let mut schedule = PollSchedule::new(shared);
    let mut failures = 0_u32;
    while !shared.state().is_stopping {
        let room = room(shared);
        if room == 0 {
            tokio::select! {
                biased;
                () = shared.signals.room.notified() => {}
                () = shared.stopping() => return,
            }
            continue;
        }
        let request = schedule.request(shared, room);
        // Not cut short by the stop: what it claims is given back at once, and would otherwise wait
        // for the end of its lease.
        shared.state().is_claiming = true;
        let claimed = shared.queue.store().claim(&request).await;
        schedule.note(&claimed);
        let taken = take(shared, claimed).await;
        shared.state().is_claiming = false;
        shared.signals.outcome.notify_one();
        match taken {
            Ok(0) => {
                failures = 0;
                // A look that left the rows out is soon followed by one that does not: what woke
                // us up may have been about them.
                let poll_delay = shared.options.poll_delay;
                let limit = if request.include_delayed {
                    poll_delay
                } else {
                    poll_delay.min(DELAYED_EVERY)
                };
                if wait(shared, limit).await == Woken::ByRows {
                    schedule.last_delayed = None;
                }
            }
            Ok(_) => failures = 0,
            Err(error) => {
                failures = failures.saturating_add(1);
                failed(shared, &error, failures).await;
            }
        }
    }
}

/// Writes our handlers into the registry; says no when the stop came first.
async fn register(shared: &Shared) -> bool {
    let mut failures = 0_u32;
    while !shared.state().is_stopping {
        match registry_sync::register(shared).await {
            Ok(registry) => {
                let mut state = shared.state();
                state.registry = registry;
                state.problem = None;
                return true;
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                failed(shared, &error, failures).await;
            }
        }
    }
    false
}

/// How many events may be claimed now: two batches may be in memory, and small claims wait until
/// there is room for half of one. None beside a poison candidate that is to stay alone.
fn room(shared: &Shared) -> u32 {
    let batch = shared.options.batch_size.max(1);
    let state = shared.state();
    if state.is_isolated() {
        return 0;
    }
    let in_memory = u32::try_from(state.in_memory()).unwrap_or(u32::MAX);
    let room = batch.saturating_mul(2).saturating_sub(in_memory);
    if room >= batch.div_ceil(2) {
        room.min(batch)
    } else {
        0
    }
}

/// When what was looked for last.
struct PollSchedule {
    last_delayed: Option<Duration>,
    last_reclaim: Option<Duration>,
    reclaim_every: Duration,
    /// Whether the last that ran out was a poison candidate: there may be more, one after the other.
    has_poison: bool,
}

impl PollSchedule {
    fn new(shared: &Shared) -> Self {
        Self {
            last_delayed: None,
            last_reclaim: None,
            reclaim_every: shared.options.rescue_interval.min(shared.options.lease / 2),
            has_poison: false,
        }
    }

    fn request(&mut self, shared: &Shared, limit: u32) -> ClaimRequest {
        let now = shared.env.clock.elapsed();
        let is_due = |last: Option<Duration>, every| {
            last.is_none_or(|last| now >= last.saturating_add(every))
        };
        let include_delayed = is_due(self.last_delayed, DELAYED_EVERY);
        let (include_poison, isolate) = {
            let state = shared.state();
            (!state.holds_abandoned(), state.holds_nothing())
        };
        let is_next = include_poison && std::mem::take(&mut self.has_poison);
        let reclaim_expired = is_next || is_due(self.last_reclaim, self.reclaim_every);
        if include_delayed {
            self.last_delayed = Some(now);
        }
        if reclaim_expired {
            self.last_reclaim = Some(now);
        }
        ClaimRequest {
            owner: shared.queue.owner().to_owned(),
            limit,
            lease: shared.options.lease,
            filter: HandlerFilter::Handlers(shared.mine.clone()),
            reclaim_expired,
            include_delayed,
            include_poison: include_poison && reclaim_expired,
            isolate,
        }
    }

    /// A process that left one batch behind may have left more, which are not to wait for the next look.
    fn note(&mut self, claimed: &Result<Claimed, QueueError>) {
        let is_poison = |event: &ClaimedEvent| event.abandoned >= POISON_AFTER;
        if let Ok(claimed) = claimed {
            self.has_poison |= claimed.events.iter().any(is_poison);
        }
        let is_reclaimed = |event: &ClaimedEvent| {
            matches!(event.claim.lease, LeaseId::Batch { .. }) && event.attempts > 1
        };
        if claimed
            .as_ref()
            .is_ok_and(|claimed| claimed.events.iter().any(is_reclaimed))
        {
            self.last_reclaim = None;
        }
    }
}

/// Takes what was claimed, and has a look at the registry where it is another one by now.
async fn take(shared: &Shared, claimed: Result<Claimed, QueueError>) -> Result<usize, QueueError> {
    let claimed = claimed?;
    let count = claimed.events.len();
    for event in &claimed.events {
        telemetry::picked_up(event, claimed.now_ms);
    }
    let known = {
        let mut state = shared.state();
        state.problem = None;
        state.add(claimed.events, claimed.is_isolated);
        state.registry.version
    };
    if count > 0 {
        shared.signals.work.notify_waiters();
    }
    // They are ours whatever comes of this look. An event decided by an older registry is decided again
    // when it is settled.
    if claimed.registry != known
        && claimed.registry != 0
        && let Err(error) = registry_sync::refresh(shared).await
    {
        tracing::warn!(%error, "could not read the handler registry");
    }
    Ok(count)
}

/// The reason that a wait ended.
#[derive(PartialEq, Eq)]
enum Woken {
    /// Rows may be due, which are not to wait for the next look at rows.
    ByRows,
    /// Anything else.
    Otherwise,
}

async fn wait(shared: &Shared, limit: Duration) -> Woken {
    tokio::select! {
        biased;
        () = shared.signals.rows.notified() => return Woken::ByRows,
        () = shared.queue.store().woken() => {}
        () = shared.stopping() => {}
        () = shared.env.clock.sleep(limit) => {}
    }
    Woken::Otherwise
}

async fn failed(shared: &Shared, error: &QueueError, failures: u32) {
    shared.state().problem = Some((error.class(), error.to_string()));
    tracing::warn!(%error, failures, "claiming events failed; retrying");
    let pause = shared
        .options
        .poll_delay
        .saturating_mul(failures.min(50))
        .min(LONGEST_PAUSE);
    tokio::select! {
        biased;
        () = shared.stopping() => {}
        () = shared.env.clock.sleep(pause) => {}
    }
}

#[cfg(test)]
mod tests;
