//! Claims ahead of the workers.

use std::time::Duration;

use tidegate_core::Classify;

use super::{Shared, registered};
use crate::port::{ClaimRequest, Claimed, ClaimedEvent, Held, SUSPECT, Serves};
use crate::{QueueError, telemetry};

/// How often rows of their own are looked for while fresh events keep coming: so long at most does a
/// retry wait beyond its time. It has no key, because it is far below every poll delay and wait that
/// one sets, and the look, by an index, is cheap beside the claims between two of them.
const ROWS_EVERY: Duration = Duration::from_millis(20);
/// The longest pause after failures in a row.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) async fn claim(shared: &Shared) {
    if !register(shared).await {
        return;
    }
    let mut looks = Looks::new(shared);
    let mut failures = 0_u32;
    while !shared.hub().is_stopping() {
        let room = room(shared);
        if room == 0 {
            tokio::select! {
                biased;
                () = shared.signals.room.notified() => {}
                () = shared.stopping() => return,
            }
            continue;
        }
        let request = looks.request(shared, room);
        // Not cut short by the stop: what it claims is given back at once, and would otherwise wait
        // for the end of its lease.
        shared.hub().begin_claim();
        let claimed = shared.queue.store().claim(&request).await;
        looks.note(&claimed);
        let taken = take(shared, claimed).await;
        shared.hub().end_claim();
        shared.signals.outcome.notify_one();
        match taken {
            Ok(0) => {
                failures = 0;
                // A look that left the rows out is soon followed by one that does not: what woke
                // us up may have been about them.
                let poll_delay = shared.options.poll_delay;
                let limit = if request.rows {
                    poll_delay
                } else {
                    poll_delay.min(ROWS_EVERY)
                };
                if wait(shared, limit).await == Woken::ByRows {
                    looks.rows = None;
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
    while !shared.hub().is_stopping() {
        match registered::register(shared).await {
            Ok(registry) => {
                let mut hub = shared.hub();
                hub.registry = registry;
                hub.works();
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
/// there is room for half of one. None beside a suspect that is to stay alone.
fn room(shared: &Shared) -> u32 {
    let batch = shared.options.batch_size.max(1);
    let hub = shared.hub();
    if hub.is_alone() {
        return 0;
    }
    let in_memory = u32::try_from(hub.in_memory()).unwrap_or(u32::MAX);
    let room = batch.saturating_mul(2).saturating_sub(in_memory);
    if room >= batch.div_ceil(2) {
        room.min(batch)
    } else {
        0
    }
}

/// When what was looked for last.
struct Looks {
    rows: Option<Duration>,
    rescue: Option<Duration>,
    rescue_every: Duration,
    /// Whether the last that ran out was a suspect: there may be more, one after the other.
    has_suspect: bool,
}

impl Looks {
    fn new(shared: &Shared) -> Self {
        Self {
            rows: None,
            rescue: None,
            rescue_every: shared.options.rescue_interval.min(shared.options.lease / 2),
            has_suspect: false,
        }
    }

    fn request(&mut self, shared: &Shared, limit: u32) -> ClaimRequest {
        let now = shared.env.clock.elapsed();
        let is_due = |last: Option<Duration>, every| {
            last.is_none_or(|last| now >= last.saturating_add(every))
        };
        let rows = is_due(self.rows, ROWS_EVERY);
        let (suspects, alone) = {
            let hub = shared.hub();
            (!hub.holds_abandoned(), hub.holds_nothing())
        };
        let is_next = suspects && std::mem::take(&mut self.has_suspect);
        let rescue = is_next || is_due(self.rescue, self.rescue_every);
        if rows {
            self.rows = Some(now);
        }
        if rescue {
            self.rescue = Some(now);
        }
        ClaimRequest {
            owner: shared.queue.owner().to_owned(),
            limit,
            lease: shared.options.lease,
            serves: Serves::Handlers(shared.mine.clone()),
            rescue,
            rows,
            suspects: suspects && rescue,
            alone,
        }
    }

    /// Whoever left one batch behind may have left more, which are not to wait for the next look.
    fn note(&mut self, claimed: &Result<Claimed, QueueError>) {
        let is_suspect = |event: &ClaimedEvent| event.abandoned >= SUSPECT;
        if let Ok(claimed) = claimed {
            self.has_suspect |= claimed.events.iter().any(is_suspect);
        }
        let is_rescued = |event: &ClaimedEvent| {
            matches!(event.claim.held, Held::Batch { .. }) && event.attempts > 1
        };
        if claimed
            .as_ref()
            .is_ok_and(|claimed| claimed.events.iter().any(is_rescued))
        {
            self.rescue = None;
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
        let mut hub = shared.hub();
        hub.works();
        hub.add(claimed.events, claimed.is_alone);
        hub.registry.version
    };
    if count > 0 {
        shared.signals.work.notify_waiters();
    }
    // They are ours whatever comes of this look. What is decided by an older registry is decided again
    // when it is settled.
    if claimed.registry != known
        && claimed.registry != 0
        && let Err(error) = registered::look(shared).await
    {
        tracing::warn!(%error, "the registry could not be read");
    }
    Ok(count)
}

/// What ended a wait.
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
    shared.hub().fails(error.class(), error.to_string());
    tracing::warn!(%error, failures, "the queue's store gives nothing");
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
