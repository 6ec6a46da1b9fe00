//! Commits of this process that have not ended, so that whoever asks what is committed can wait for
//! those that began before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Clock;
use tidegate_core::{GroupName, Mutex};
use tokio::sync::Notify;

/// Commits that have not ended, by group.
#[derive(Debug, Default)]
pub(super) struct InFlightCommits {
    all: Mutex<All>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct All {
    last: u64,
    groups: BTreeMap<GroupName, BTreeSet<u64>>,
}

/// A commit that has not ended. Dropping it ends it.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    registry: Arc<InFlightCommits>,
    group: GroupName,
    number: u64,
}

impl InFlightCommits {
    /// Notes a commit.
    pub(super) fn begin(self: &Arc<Self>, group: &GroupName) -> InFlightGuard {
        let mut all = self.all.lock();
        all.last += 1;
        let number = all.last;
        all.groups.entry(group.clone()).or_default().insert(number);
        InFlightGuard {
            registry: Arc::clone(self),
            group: group.clone(),
            number,
        }
    }

    /// Waits for the commits of a group that have begun by now. Returns whether they ended in time.
    pub(super) async fn wait(&self, group: &GroupName, clock: &dyn Clock, limit: Duration) -> bool {
        let last = self.all.lock().last;
        let none_left = async {
            loop {
                let ended = self.ended.notified();
                let mut ended = std::pin::pin!(ended);
                // Listening begins before the look, so that no end is missed in between.
                ended.as_mut().enable();
                let first = self
                    .all
                    .lock()
                    .groups
                    .get(group)
                    .and_then(|all| all.first().copied());
                if first.is_none_or(|first| first > last) {
                    return;
                }
                ended.await;
            }
        };
        clock.within(limit, none_left).await.is_some()
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut all = self.registry.all.lock();
        if let Some(numbers) = all.groups.get_mut(&self.group) {
            numbers.remove(&self.number);
            if numbers.is_empty() {
                all.groups.remove(&self.group);
            }
        }
        drop(all);
        self.registry.ended.notify_waiters();
    }
}
