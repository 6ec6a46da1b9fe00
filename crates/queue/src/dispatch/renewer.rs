//! Keeps leases while handlers run, and the tables tidy.

use super::Shared;
use crate::upkeep;

/// Renews three times per lease, so that two failures in a row lose nothing.
pub(super) async fn renew(shared: &Shared) {
    let every = shared.options.lease / 3;
    loop {
        tokio::select! {
            biased;
            () = shared.stopped() => return,
            () = shared.env.clock.sleep(every) => {}
        }
        let held = shared.state().lease_ids();
        if held.is_empty() {
            continue;
        }
        match shared
            .queue
            .store()
            .renew(&held, shared.options.lease)
            .await
        {
            Ok(lost) if lost.is_empty() => {}
            Ok(lost) => {
                tracing::warn!(count = lost.len(), "leases lost to other processes");
                shared.state().lose(&lost);
                shared.signals.room.notify_one();
            }
            Err(error) => tracing::warn!(%error, "could not renew leases; retrying"),
        }
    }
}

/// Never ends by itself. A call that is running when it is dropped is left to the database: each is
/// one transaction.
pub(super) async fn clean(shared: &Shared) {
    loop {
        let every = shared.options.cleanup_interval;
        shared.env.clock.sleep(every).await;
        let store = shared.queue.store();
        let clock = &*shared.env.clock;
        let (owner, retention) = (shared.queue.owner(), shared.options.retention);
        upkeep::clean(&**store, owner, clock, every, retention).await;
        upkeep::count(&**store).await;
    }
}
