//! Renews the leases of a relay, takes buckets that are free, and gives away those beyond its share.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Shutdown;
use tidegate_core::env::{Clock, Env};

use super::RelayParts;
use super::dead_letters::make_known_dlq;
use super::state::LoopPulse;

/// The longest time between two looks: so soon a relay that came gets its share.
const LOOK: Duration = Duration::from_secs(2);

pub(super) struct LeaseRenewal {
    parts: RelayParts,
    clock: Arc<dyn Clock>,
    is_dlq_made: bool,
}

impl LeaseRenewal {
    pub(super) fn new(parts: RelayParts, env: &Env) -> Self {
        Self {
            parts,
            clock: Arc::clone(&env.clock),
            is_dlq_made: false,
        }
    }

    pub(super) async fn run(mut self, stop: Shutdown) {
        let pulse = LoopPulse::new(&self.parts.shared, "leases".to_owned());
        let lease = self.parts.outbox.options().lease;
        let pause = (lease / 4).min(LOOK);
        loop {
            pulse.waiting(self.look(lease)).await;
            if !self.is_dlq_made {
                self.is_dlq_made = pulse.waiting(make_known_dlq(&self.parts)).await;
            }
            let is_over = tokio::select! {
                biased;
                () = stop.clone().requested() => true,
                () = pulse.waiting(self.clock.sleep(pause)) => false,
            };
            if is_over {
                break;
            }
        }
        pulse.end();
    }

    async fn look(&self, span: Duration) {
        let RelayParts {
            outbox,
            worker,
            shared,
            ..
        } = &self.parts;
        let store = outbox.store();
        let began = self.clock.elapsed();
        let held = shared.all_leases();
        let leases = match store.renew(worker, &held, span).await {
            Ok(leases) => leases,
            Err(error) => {
                shared.store_failed(&error);
                return;
            }
        };
        shared.renewed(began, span, &leases.held, leases.relays);
        let buckets = outbox.options().buckets;
        let share = usize::try_from(buckets.div_ceil(leases.relays.max(1))).unwrap_or(usize::MAX);
        let surplus = shared.take_surplus(share);
        if !surplus.is_empty()
            && let Err(error) = store.release(worker, &surplus, false).await
        {
            tracing::debug!(%error, "could not give buckets away; they run out");
        }
        let room = share.saturating_sub(leases.held.len());
        if room == 0 {
            return;
        }
        match store
            .acquire(worker, u32::try_from(room).unwrap_or(u32::MAX), span)
            .await
        {
            Ok(taken) => shared.add(&taken),
            Err(error) => shared.store_failed(&error),
        }
    }
}
