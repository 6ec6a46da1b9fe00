//! Does what is due: retries whose wait is over, and the timer of the breaker.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::breaker::BreakerState;

use crate::hub::Hub;
use crate::loss::reason;
use crate::state::{Phase, Queued};
use crate::telemetry;

/// How often the gauges are brought up to date.
const GAUGES: Duration = Duration::from_secs(1);

/// Runs until the logger has stopped.
pub(crate) async fn run(shared: Arc<Hub>) {
    loop {
        let bell = shared.keeper_bell.notified();
        let now = shared.clock.elapsed();
        let wait = {
            let state = shared.state();
            if state.phase >= Phase::Draining {
                return;
            }
            let retry = state.retries.keys().next().map(|(due, _)| *due);
            let next = retry.into_iter().chain(state.breaker.wakes_at()).min();
            next.map_or(GAUGES, |at| at.saturating_sub(now)).min(GAUGES)
        };
        tokio::select! {
            biased;
            () = bell => {}
            () = shared.clock.sleep(wait) => {}
        }
        do_what_is_due(&shared).await;
        telemetry::gauges(&shared);
    }
}

async fn do_what_is_due(shared: &Hub) {
    let now = shared.clock.elapsed();
    let (mut crowded, mut is_open) = (Vec::new(), false);
    {
        let mut state = shared.state();
        if state.breaker.tick(now).is_some() {
            shared.sender_bell.notify_one();
            shared.replay_bell.notify_one();
            // With the spill given up, one may be taken on that asks the API.
            shared.ring_room();
        }
        while state.phase == Phase::Running
            && let Some(entry) = state.retries.first_entry()
            && entry.key().0 <= now
        {
            let queued: Queued = entry.remove();
            state.post([queued.id], Place::Retrying, Place::InFlight);
            if state.queue.len() < shared.config.queue_capacity {
                state.queue.push_back(queued);
                shared.sender_bell.notify_one();
            } else {
                is_open = state.breaker.state() == BreakerState::Open;
                crowded.push(queued);
            }
        }
    }
    let reason = if is_open {
        reason::CIRCUIT_OPEN
    } else {
        reason::RETRY_REQUEUE_FAILED
    };
    shared.spill_or_lose(crowded, reason).await;
}
