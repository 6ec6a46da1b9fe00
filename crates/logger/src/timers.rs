//! The timers: retries whose wait is over, the breaker, and the gauges.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::breaker::BreakerState;

use crate::engine::Engine;
use crate::loss::reason;
use crate::state::{LoggerPhase, Queued};
use crate::telemetry;

/// How often the gauges are brought up to date.
const GAUGES: Duration = Duration::from_secs(1);

/// Runs until the logger has stopped.
pub(crate) async fn run(engine: Arc<Engine>) {
    loop {
        let notified = engine.timer_wake.notified();
        let now = engine.clock.elapsed();
        let wait = {
            let state = engine.state();
            if state.phase >= LoggerPhase::Draining {
                return;
            }
            let retry = state.retries.keys().next().map(|(due, _)| *due);
            let next = retry.into_iter().chain(state.breaker.wakes_at()).min();
            next.map_or(GAUGES, |at| at.saturating_sub(now)).min(GAUGES)
        };
        tokio::select! {
            biased;
            () = notified => {}
            () = engine.clock.sleep(wait) => {}
        }
        fire_due(&engine).await;
        telemetry::gauges(&engine);
    }
}

async fn fire_due(engine: &Engine) {
    let now = engine.clock.elapsed();
    let (mut crowded, mut is_open) = (Vec::new(), false);
    {
        let mut state = engine.state();
        if state.breaker.tick(now).is_some() {
            engine.sender_wake.notify_one();
            engine.replay_wake.notify_one();
            // With the spill given up, one may be taken on that asks the API.
            engine.wake_room();
        }
        while state.phase == LoggerPhase::Running
            && let Some(entry) = state.retries.first_entry()
            && entry.key().0 <= now
        {
            let queued: Queued = entry.remove();
            state.post([queued.id], Place::Retrying, Place::InFlight);
            if state.queue.len() < engine.config.options.queue_capacity {
                state.queue.push_back(queued);
                engine.sender_wake.notify_one();
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
    engine.spill_or_lose(crowded, reason).await;
}
