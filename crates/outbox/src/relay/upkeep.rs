//! The work of a relay now and then: the gauges, the clean-up of sent rows, the folding of old postings.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Env};

use super::RelayParts;
use super::state::LoopPulse;

/// Between two looks at the numbers of the table.
const LOOK: Duration = Duration::from_secs(5);
/// Between two clean-ups.
const CLEAN: Duration = Duration::from_secs(60);
/// Rows that one transaction removes.
const BATCH: u32 = 5_000;

pub(super) struct RelayUpkeep {
    parts: RelayParts,
    clock: Arc<dyn Clock>,
}

impl RelayUpkeep {
    pub(super) fn new(parts: RelayParts, env: &Env) -> Self {
        Self {
            parts,
            clock: Arc::clone(&env.clock),
        }
    }

    pub(super) async fn run(self) {
        let pulse = LoopPulse::new(&self.parts.shared, "upkeep".to_owned());
        let mut cleaned = None;
        loop {
            let began = self.clock.elapsed();
            pulse.waiting(self.show()).await;
            if cleaned.is_none_or(|at: Duration| began.saturating_sub(at) >= CLEAN) {
                pulse.waiting(self.clean()).await;
                cleaned = Some(began);
            }
            // A large table is counted less often.
            let pause = LOOK.max((self.clock.elapsed() - began) * 10);
            let is_over = tokio::select! {
                biased;
                () = self.parts.stop.clone().requested() => true,
                () = pulse.waiting(self.clock.sleep(pause)) => false,
            };
            if is_over {
                break;
            }
        }
        pulse.waiting(self.show()).await;
        pulse.end();
    }

    async fn show(&self) {
        match self.parts.outbox.stats().await {
            Ok(stats) => {
                let dead = u64::try_from(stats.dead).unwrap_or(0);
                self.parts.shared.dead_rows(dead);
                self.parts.metrics.show(&stats);
            }
            Err(error) => tracing::debug!(%error, "could not count the outbox"),
        }
    }

    /// Removes old rows, transaction by transaction. A stop ends it, and the numbers are shown meanwhile.
    async fn clean(&self) {
        let retention = self.parts.outbox.options().retention;
        let mut stop = std::pin::pin!(self.parts.stop.clone().requested());
        let mut shown = self.clock.elapsed();
        loop {
            match self.parts.outbox.store().clean(retention, BATCH).await {
                Ok(removed) if removed < u64::from(BATCH) => return,
                Ok(_) => {}
                Err(error) => {
                    let relay = &self.parts.outbox.options().name;
                    tracing::warn!(%error, relay, "could not remove old rows; retrying in a minute");
                    self.parts.metrics.clean_failed();
                    return;
                }
            }
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = std::future::ready(()) => {}
            }
            if self.clock.elapsed().saturating_sub(shown) >= LOOK {
                self.show().await;
                shown = self.clock.elapsed();
            }
        }
    }
}
