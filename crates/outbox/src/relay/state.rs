//! The knowledge that the tasks of one relay have together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::env::Clock;
use tidegate_core::{Code, Mutex, Topic};

use super::{BatchCounts, LANES};
use crate::OutboxError;
use crate::error::with_code;
use crate::port::BucketLease;

/// A loop that neither waits for somebody nor begins anew for this long stands still.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// The work that a relay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RelayReport {
    /// Rows that it published.
    pub sent: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Rows that it gave up on.
    pub dead: u64,
    /// Batches that it published and could not settle, because others had its buckets by then.
    pub fenced: u64,
    /// Batches that it claimed.
    pub batches: u64,
}

/// How a relay is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelayStatus {
    /// Buckets that it has.
    pub buckets: usize,
    /// Relays that share the buckets.
    pub relays: u32,
    /// Why the database does not answer.
    pub store_trouble: Option<String>,
    /// Why the log takes nothing.
    pub log_trouble: Option<String>,
    /// Why rows wait for a topic, by topic: it is missing, or the broker keeps it from us.
    pub topic_troubles: BTreeMap<String, String>,
    /// Rows of the table that are DEAD.
    pub dead_rows: u64,
}

#[derive(Debug)]
pub(super) struct RelayShared {
    clock: Arc<dyn Clock>,
    /// The longest wait between two attempts of a row.
    longest_wait: Duration,
    state: Mutex<SharedState>,
}

#[derive(Debug, Default)]
struct SharedState {
    buckets: BTreeMap<u32, HeldBucket>,
    is_lane_busy: [bool; LANES as usize],
    /// Until when the leases hold for sure, by our own clock.
    valid_until: Duration,
    relays: u32,
    store_trouble: Option<(Code, String)>,
    /// Why the log takes nothing, by lane.
    log_troubles: [Option<String>; LANES as usize],
    /// Why topics took nothing, and when they last did so.
    topic_troubles: BTreeMap<String, (Duration, String)>,
    dead_rows: u64,
    report: RelayReport,
    loops: BTreeMap<String, LoopBeat>,
}

#[derive(Debug, Clone, Copy)]
struct HeldBucket {
    token: i64,
    /// It is to be given to another relay once its lane has settled.
    is_leaving: bool,
}

#[derive(Debug, Clone, Copy)]
struct LoopBeat {
    since: Duration,
    is_waiting: bool,
}

fn lane_of(bucket: u32) -> usize {
    usize::try_from(bucket % LANES).unwrap_or(0)
}

impl RelayShared {
    pub(super) fn new(clock: Arc<dyn Clock>, longest_wait: Duration) -> Self {
        Self {
            clock,
            longest_wait,
            state: Mutex::default(),
        }
    }

    pub(super) fn status(&self) -> RelayStatus {
        let state = self.state.lock();
        let troubles = state.topic_troubles.iter();
        let troubles = troubles.filter(|(_, (at, _))| self.is_fresh(*at));
        RelayStatus {
            buckets: state.buckets.len(),
            relays: state.relays,
            store_trouble: state.store_trouble.as_ref().map(|(_, why)| why.clone()),
            log_trouble: state.log_troubles.iter().flatten().next().cloned(),
            topic_troubles: troubles
                .map(|(topic, (_, why))| (topic.clone(), why.clone()))
                .collect(),
            dead_rows: state.dead_rows,
        }
    }

    pub(super) fn report(&self) -> RelayReport {
        self.state.lock().report
    }

    /// The leases of a lane, for its next batch. It is busy with them until [`end`](Self::end).
    pub(super) fn begin(&self, lane: u32) -> Vec<BucketLease> {
        let mut state = self.state.lock();
        let own = state
            .buckets
            .iter()
            .filter(|(bucket, held)| lane_of(**bucket) == lane_of(lane) && !held.is_leaving);
        let leases: Vec<BucketLease> = own
            .map(|(bucket, held)| BucketLease {
                bucket: *bucket,
                token: held.token,
            })
            .collect();
        state.is_lane_busy[lane_of(lane)] = !leases.is_empty();
        leases
    }

    pub(super) fn end(&self, lane: u32) {
        self.state.lock().is_lane_busy[lane_of(lane)] = false;
    }

    /// Whether the leases hold for sure.
    pub(super) fn is_valid(&self) -> bool {
        self.clock.elapsed() < self.state.lock().valid_until
    }

    pub(super) fn all_leases(&self) -> Vec<BucketLease> {
        let state = self.state.lock();
        let all = state.buckets.iter();
        all.map(|(bucket, held)| BucketLease {
            bucket: *bucket,
            token: held.token,
        })
        .collect()
    }

    /// The leases were renewed by a call that began at `began`.
    pub(super) fn renewed(
        &self,
        began: Duration,
        span: Duration,
        held: &[BucketLease],
        relays: u32,
    ) {
        let mut state = self.state.lock();
        state.buckets.retain(|bucket, own| {
            held.iter()
                .any(|one| (one.bucket, one.token) == (*bucket, own.token))
        });
        // A quarter is left to a clock of the database that runs faster than ours.
        state.valid_until = began + span * 3 / 4;
        state.relays = relays;
        if state.store_trouble.take().is_some() {
            tracing::info!("the database answers again");
        }
    }

    pub(super) fn add(&self, taken: &[BucketLease]) {
        let mut state = self.state.lock();
        for lease in taken {
            let held = HeldBucket {
                token: lease.token,
                is_leaving: false,
            };
            state.buckets.insert(lease.bucket, held);
        }
    }

    /// Marks all but `target` buckets as leaving, and takes those whose lane has settled out.
    pub(super) fn take_surplus(&self, target: usize) -> Vec<BucketLease> {
        let mut state = self.state.lock();
        let staying = state
            .buckets
            .values()
            .filter(|held| !held.is_leaving)
            .count();
        let mut surplus = staying.saturating_sub(target);
        for held in state.buckets.values_mut().rev() {
            if surplus > 0 && !held.is_leaving {
                held.is_leaving = true;
                surplus -= 1;
            }
        }
        let busy = state.is_lane_busy;
        let free: Vec<BucketLease> = state
            .buckets
            .iter()
            .filter(|(bucket, held)| held.is_leaving && !busy[lane_of(**bucket)])
            .map(|(bucket, held)| BucketLease {
                bucket: *bucket,
                token: held.token,
            })
            .collect();
        for lease in &free {
            state.buckets.remove(&lease.bucket);
        }
        free
    }

    /// The database did not do it. Told once for each kind of failure, and not for each call.
    pub(super) fn store_failed(&self, error: &OutboxError) {
        let (code, why) = (error.code(), with_code(&error.code(), error));
        let mut state = self.state.lock();
        let known = state.store_trouble.as_ref().map(|(code, _)| code);
        if known != Some(&code) {
            tracing::warn!(%why, "the database does not answer; rows wait");
        }
        state.store_trouble = Some((code, why));
    }

    /// The log takes nothing of a lane. Told once for each reason, and not for each lane and try.
    pub(super) fn log_failed(&self, lane: u32, why: String) {
        let mut state = self.state.lock();
        if !state.log_troubles.contains(&Some(why.clone())) {
            tracing::warn!(%why, "the log takes nothing at present; rows wait, and no attempt counts");
        }
        state.log_troubles[lane_of(lane)] = Some(why);
    }

    pub(super) fn log_answered(&self, lane: u32) {
        let mut state = self.state.lock();
        let ended = state.log_troubles[lane_of(lane)].take();
        if ended.is_some() && state.log_troubles.iter().all(Option::is_none) {
            tracing::info!("the log takes records again");
        }
    }

    /// A lane has no rows, so the log can have no trouble with them.
    pub(super) fn nothing_to_publish(&self, lane: u32) {
        self.state.lock().log_troubles[lane_of(lane)] = None;
    }

    /// A topic takes nothing. Told once for each reason, and not for each row and attempt.
    pub(super) fn topic_failed(&self, topic: &Topic, why: String) {
        let now = self.clock.elapsed();
        let mut state = self.state.lock();
        let known = state.topic_troubles.get(topic.as_str());
        if known.is_none_or(|(at, known)| !self.is_fresh(*at) || *known != why) {
            tracing::warn!(%topic, %why, "a topic takes nothing; its rows wait");
        }
        let topic = topic.as_str().to_owned();
        state.topic_troubles.insert(topic, (now, why));
    }

    pub(super) fn topic_answered(&self, topic: &str) {
        let mut state = self.state.lock();
        if !state.topic_troubles.is_empty() && state.topic_troubles.remove(topic).is_some() {
            tracing::info!(topic, "the topic takes records again");
        }
    }

    /// A topic that took nothing is shown until its rows had their chance to be tried again.
    fn is_fresh(&self, at: Duration) -> bool {
        let span = Duration::from_secs(60).max(self.longest_wait) * 2;
        self.clock.elapsed().saturating_sub(at) < span
    }

    /// The table was counted.
    pub(super) fn dead_rows(&self, count: u64) {
        self.state.lock().dead_rows = count;
    }

    pub(super) fn count(&self, counts: BatchCounts, is_fenced: bool) {
        let mut state = self.state.lock();
        if !is_fenced {
            // Those are shown at once, and not only when the table is counted again.
            state.dead_rows += counts.dead;
        }
        let report = &mut state.report;
        report.batches += 1;
        report.fenced += u64::from(is_fenced);
        report.failed += counts.failed;
        if !is_fenced {
            report.sent += counts.sent;
            report.dead += counts.dead;
        }
    }

    /// A sign of life of a loop: it works, or it waits for somebody.
    pub(super) fn beat(&self, name: &str, is_waiting: bool) {
        let beat = LoopBeat {
            since: self.clock.elapsed(),
            is_waiting,
        };
        let mut state = self.state.lock();
        match state.loops.get_mut(name) {
            Some(found) => *found = beat,
            None => drop(state.loops.insert(name.to_owned(), beat)),
        }
    }

    /// A loop ended as it should.
    pub(super) fn end_loop(&self, name: &str) {
        self.state.lock().loops.remove(name);
    }

    pub(super) fn stuck(&self) -> Option<String> {
        let now = self.clock.elapsed();
        let state = self.state.lock();
        let mut loops = state.loops.iter();
        let is_stuck =
            |beat: &LoopBeat| !beat.is_waiting && now.saturating_sub(beat.since) > STUCK_AFTER;
        let found = loops.find(|(_, beat)| is_stuck(beat));
        found.map(|(name, _)| name.clone())
    }
}

/// The sign of life of one loop.
///
/// A loop that panics takes it along without [`end`](Self::end): from then on it works on nothing for ever, and
/// stands still.
#[derive(Debug)]
pub(super) struct LoopPulse {
    shared: Arc<RelayShared>,
    name: String,
    has_ended: bool,
}

impl LoopPulse {
    pub(super) fn new(shared: &Arc<RelayShared>, name: String) -> Self {
        shared.beat(&name, false);
        Self {
            shared: Arc::clone(shared),
            name,
            has_ended: false,
        }
    }

    /// Waits for somebody else, which is no standing still.
    pub(super) async fn waiting<T>(&self, work: impl Future<Output = T>) -> T {
        self.shared.beat(&self.name, true);
        let outcome = work.await;
        self.shared.beat(&self.name, false);
        outcome
    }

    pub(super) fn end(mut self) {
        self.has_ended = true;
        self.shared.end_loop(&self.name);
    }
}

impl Drop for LoopPulse {
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.beat(&self.name, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::env::Env;

    use super::*;

    fn lease(bucket: u32) -> BucketLease {
        BucketLease { bucket, token: 1 }
    }

    #[test]
    fn a_bucket_leaves_only_after_its_lane_has_settled() {
        let shared = RelayShared::new(Env::system().clock, Duration::ZERO);
        let all: Vec<BucketLease> = (0..8).map(lease).collect();
        shared.add(&all);
        assert_eq!(shared.begin(3), [lease(3), lease(7)]);
        let free = shared.take_surplus(4);
        assert_eq!(free, [lease(4), lease(5), lease(6)], "lane 3 is busy");
        assert_eq!(shared.take_surplus(4), []);
        shared.end(3);
        assert_eq!(
            shared.begin(3),
            [lease(3)],
            "it claims no more of what leaves"
        );
        shared.end(3);
        assert_eq!(shared.take_surplus(4), [lease(7)]);
        assert_eq!(shared.all_leases().len(), 4);
    }

    #[test]
    fn leases_that_were_lost_are_dropped_and_end_by_our_own_clock() {
        let shared = RelayShared::new(Env::system().clock, Duration::ZERO);
        shared.add(&[lease(0), lease(1)]);
        assert!(!shared.is_valid());
        let now = shared.clock.elapsed();
        let other = BucketLease {
            bucket: 1,
            token: 2,
        };
        shared.renewed(now, Duration::from_secs(60), &[lease(0), other], 2);
        assert!(shared.is_valid());
        assert_eq!(shared.all_leases(), [lease(0)]);
        shared.renewed(now, Duration::ZERO, &[lease(0)], 2);
        assert!(!shared.is_valid());
    }

    /// A clock that a test moves.
    #[derive(Debug, Default)]
    struct MovedClock(std::sync::atomic::AtomicU64);

    impl Clock for MovedClock {
        fn now(&self) -> std::time::SystemTime {
            std::time::UNIX_EPOCH + self.elapsed()
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(self.0.load(std::sync::atomic::Ordering::Relaxed))
        }

        fn sleep(&self, _: Duration) -> tidegate_core::env::Sleep {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn o16_a_loop_that_died_stands_still_and_one_that_waits_does_not() {
        let clock = Arc::new(MovedClock::default());
        let pass = |seconds| {
            clock
                .0
                .fetch_add(seconds, std::sync::atomic::Ordering::Relaxed)
        };
        let shared = Arc::new(RelayShared::new(
            Arc::clone(&clock) as Arc<dyn Clock>,
            Duration::ZERO,
        ));
        let lane = LoopPulse::new(&shared, "lane-0".to_owned());
        let ended = LoopPulse::new(&shared, "upkeep".to_owned());
        ended.end();
        let mut waits = Box::pin(lane.waiting(std::future::pending::<()>()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        pass(3_600);
        assert_eq!(shared.stuck(), None, "it waits for a broker");
        drop(waits);
        // A panic takes it along.
        drop(lane);
        assert_eq!(shared.stuck(), None);
        pass(31);
        assert_eq!(shared.stuck().as_deref(), Some("lane-0"));
    }
}
