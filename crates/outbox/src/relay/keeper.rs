//! Keeps the leases of a relay: renews them, takes what is free, gives away what is more than its share.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Clock, Env};
use tidegate_core::{Shutdown, Topic, error_chain};
use tidegate_log::{Log, LogError, TopicConfig};

use super::RelayParts;
use super::state::LoopPulse;

/// The longest time between two looks: so soon a relay that came gets its share.
const LOOK: Duration = Duration::from_secs(2);

pub(super) struct Keeper {
    parts: RelayParts,
    clock: Arc<dyn Clock>,
    is_dlq_made: bool,
}

impl Keeper {
    pub(super) fn new(parts: RelayParts, env: &Env) -> Self {
        Self {
            parts,
            clock: Arc::clone(&env.clock),
            is_dlq_made: false,
        }
    }

    pub(super) async fn run(mut self, stop: Shutdown) {
        let pulse = LoopPulse::new(&self.parts.shared, "keeper".to_owned());
        let lease = self.parts.outbox.options().lease;
        let pause = (lease / 4).min(LOOK);
        loop {
            pulse.waiting(self.look(lease)).await;
            if !self.is_dlq_made {
                self.is_dlq_made = pulse.waiting(self.make_dlq()).await;
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
                shared.store_failed(error_chain(&error));
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
            Err(error) => shared.store_failed(error_chain(&error)),
        }
    }

    /// Makes the topic of dead letters that is known before any row is. Says whether that is done.
    async fn make_dlq(&self) -> bool {
        let options = self.parts.outbox.options();
        let meant = options.topic.as_ref().map(Topic::as_str);
        let name = match (options.dlq_topic.contains("{topic}"), meant) {
            (false, _) => options.dlq_topic.clone(),
            (true, Some(topic)) => options.dlq_of(topic),
            (true, None) => return true,
        };
        let Ok(dlq) = Topic::new(name) else {
            return true;
        };
        match make_dlq(&*self.parts.log, &dlq, options.topic.as_ref()).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, topic = %dlq, "could not make the topic of dead letters yet");
                false
            }
        }
    }
}

/// Makes a topic of dead letters where it is missing: it keeps everything, and has the partitions of the
/// topic that they were meant for.
pub(super) async fn make_dlq(
    log: &dyn Log,
    dlq: &Topic,
    meant: Option<&Topic>,
) -> Result<(), LogError> {
    match log.describe(dlq).await {
        Err(LogError::UnknownTopic { .. }) => {}
        described => return described.map(drop),
    }
    let mut config = TopicConfig::default();
    if let Some(meant) = meant {
        match log.describe(meant).await {
            Ok(described) => config.partitions = described.config.partitions,
            Err(LogError::UnknownTopic { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    log.create_topic(dlq, config).await
}
