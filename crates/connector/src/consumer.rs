//! One consumer: a member of a group, the partitions that it has, and the loop over what happens to them.
//!
//! Everything about a partition is owned by this one task. Handlers run beside it, and their results come
//! back as messages that name the assignment they belong to. So a result of a partition that is somebody
//! else's by now changes nothing.

mod assign;
mod copies;
mod park;
mod refused;
mod results;
mod settle;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::env::BoxFuture;
use tidegate_core::{Backoff, Classify, GroupName, Offset, TierIndex, Topic};
use tidegate_log::{Join, LogError, Session, TopicPartition};
use tokio::sync::{mpsc, oneshot};

use crate::attempt::{LaneRun, RunReport};
use crate::binding::BindingContext;
use crate::commit::{CommitPart, CommitPlan, CommitRoom, CommitScope, Committer, FailedCommit};
use crate::handler::ConsumerName;
use crate::lanes::{DueTime, LaneKey, PartitionWork, RunningLane};
use crate::options::{ConcurrencyMode, HandOff};
use crate::parked::PartitionPark;
use crate::planted_bugs::{PlantedBug, is};
use crate::telemetry::RunTelemetry;
use copies::{SearchUnderWay, searched};
use park::{StoreCallUnderWay, answered};

pub(crate) use copies::{KnownCopies, unwritten};

/// Bytes of records that a consumer of the main topic holds per partition.
const MAX_HELD_BYTES: usize = 16 * 1024 * 1024;
/// The same for a consumer of a tier.
const MAX_HELD_TIER_BYTES: usize = 4 * 1024 * 1024;
/// An idle group commits again before a broker forgets it.
pub(crate) const IDLE_COMMIT: Duration = Duration::from_secs(3_600);
/// The pause after a poll that failed.
const POLL_PAUSE: Duration = Duration::from_millis(100);
/// The longest time that partitions which are to be let go are waited for.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// The part of that in which handlers may end: the rest is for the commit.
const RELEASE_SHARE: f64 = 0.8;

/// Something that an operator wants of one record.
pub(crate) struct GiveUpRequest {
    pub(crate) at: TopicPartition,
    pub(crate) offset: Offset,
    pub(crate) answer: oneshot::Sender<bool>,
}

/// Which consumer it is.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerSeat {
    pub(crate) tier: TierIndex,
    pub(crate) index: u32,
    pub(crate) topic: Topic,
    pub(crate) group: GroupName,
}

impl ConsumerSeat {
    /// Where its records are by the books.
    pub(crate) fn place(&self) -> Place {
        match self.tier.0 {
            0 => Place::Queued,
            _ => Place::Retrying,
        }
    }

    /// The host and the number of the consumer.
    pub(crate) fn instance(&self, host: &str) -> String {
        format!("{host}-{}", self.index)
    }
}

/// How the run of a consumer ended.
enum SessionEnd {
    /// It was asked to.
    Stopped,
    /// The session is gone; another one may be joined.
    Lost(LogError),
    /// The binding must not go on by itself.
    Fatal(String),
}

/// Joins the group and works, until the binding stops; joins again after an error.
pub(crate) async fn consume(
    binding: Arc<BindingContext>,
    seat: ConsumerSeat,
    mut requests: mpsc::UnboundedReceiver<GiveUpRequest>,
) {
    let backoff = Backoff::exponential(Duration::from_millis(200), 2.0, Duration::from_secs(30));
    let mut failures = 0;
    while !binding.stop.is_set() {
        let joined = tokio::select! {
            biased;
            () = binding.stop.requested() => continue,
            joined = binding.log.join(join(&binding, &seat)) => joined,
        };
        let error = match joined {
            Ok(session) => {
                binding.status.lock().joined(&seat);
                failures = 0;
                let mut consumer = Consumer::new(Arc::clone(&binding), seat.clone(), session);
                let end = consumer.run(&mut requests).await;
                if let SessionEnd::Lost(_) = &end {
                    consumer.end_commit().await;
                }
                consumer.forget_all();
                match end {
                    SessionEnd::Stopped => break,
                    SessionEnd::Fatal(why) => {
                        tracing::error!(binding = binding.options.name, why, "stopped");
                        binding.status.lock().fatal = Some(why);
                        binding.gate.end();
                        binding.stop_all();
                        consumer.session.close().await.ok();
                        break;
                    }
                    SessionEnd::Lost(error) => error,
                }
            }
            Err(error) => error,
        };
        failures += 1;
        tracing::warn!(binding = binding.options.name, %error, "not a member");
        binding.status.lock().not_joined(&seat, error.to_string());
        let wait = backoff.wait_without_jitter(failures - 1);
        tokio::select! {
            biased;
            () = binding.stop.requested() => {}
            () = binding.clock.sleep(wait) => {}
        }
    }
    binding.status.lock().left(&seat);
}

fn join(binding: &BindingContext, seat: &ConsumerSeat) -> Join {
    let options = &binding.options;
    let instance = options.static_membership.then(|| {
        let name = match (&options.group_instance_id, seat.index) {
            (Some(id), 0) => id.clone(),
            (Some(id), index) => format!("{id}-{index}"),
            (None, index) => format!("{}-{}-{index}", options.name, binding.host),
        };
        match seat.tier.0 {
            0 => name,
            tier => format!("{name}-retry-{tier}"),
        }
    });
    Join {
        instance,
        // A tier that is read for the first time may hold records already.
        start: match seat.tier.0 {
            0 => options.start_at,
            _ => tidegate_log::StartAt::Earliest,
        },
        name: Some(options.container_name(seat.tier)),
        max_poll_records: options.max_poll_records,
        buffer: (seat.tier.0 > 0).then_some(MAX_HELD_TIER_BYTES),
        session_timeout: options.session_timeout,
        max_heartbeat: options.heartbeat_interval,
        release_timeout: RELEASE_TIMEOUT,
        ..Join::new(seat.group.clone(), vec![seat.topic.clone()])
    }
}

/// A commit on its way.
struct CommitUnderWay {
    future: BoxFuture<'static, Result<(), FailedCommit>>,
    parts: Vec<CommitPart>,
    has_hand_offs: bool,
}

/// A commit failed: nothing new begins until one succeeds.
struct CommitTrouble {
    retries: u32,
    /// When everything is tried again.
    until: Duration,
    /// Whether the rest is tried without the hand-offs before that.
    tries_without: bool,
}

/// One member of a group and its partitions.
struct Consumer {
    binding: Arc<BindingContext>,
    seat: ConsumerSeat,
    name: Arc<ConsumerName>,
    telemetry: Arc<RunTelemetry>,
    session: Arc<dyn Session>,
    committer: Committer,
    partitions: BTreeMap<TopicPartition, PartitionWork>,
    /// Lanes that may have something to begin.
    ready: VecDeque<(TopicPartition, LaneKey)>,
    timers: BTreeMap<(Duration, u64), (TopicPartition, LaneKey)>,
    timer_count: u64,
    running: usize,
    report_to: mpsc::UnboundedSender<RunReport>,
    reports: mpsc::UnboundedReceiver<RunReport>,
    commit: Option<CommitUnderWay>,
    commit_due: Option<Duration>,
    trouble: Option<CommitTrouble>,
    /// The room of a commit, which shrinks when the log refuses one.
    room: CommitRoom,
    /// Why the binding must not go on, found while a partition was assigned.
    must_stop: Option<String>,
    stop_by: Option<Duration>,
    poll_after: Duration,
    search: Option<SearchUnderWay>,
    store_call: Option<StoreCallUnderWay>,
    /// The partition that the store was last asked about.
    store_turn: Option<TopicPartition>,
}

impl Consumer {
    fn new(binding: Arc<BindingContext>, seat: ConsumerSeat, session: Arc<dyn Session>) -> Self {
        let (report_to, reports) = mpsc::unbounded_channel();
        let name = ConsumerName {
            binding: binding.options.name.clone(),
            container: binding.options.container_name(seat.tier),
            group: seat.group.to_string(),
            instance: seat.instance(&binding.host),
        };
        let committer = Committer {
            session: Arc::clone(&session),
            log: Arc::clone(&binding.log),
            group: seat.group.clone(),
            hand_off: binding.options.hand_off,
            owner: binding.options.group.clone(),
            is_in_doubt: false,
            clock: Arc::clone(&binding.clock),
            store: binding.store.clone(),
        };
        let options = &binding.options;
        let telemetry = RunTelemetry::new(&options.name, options.listener_type, seat.tier);
        Self {
            binding,
            seat,
            name: Arc::new(name),
            telemetry: Arc::new(telemetry),
            session,
            committer,
            partitions: BTreeMap::new(),
            ready: VecDeque::new(),
            timers: BTreeMap::new(),
            timer_count: 0,
            running: 0,
            report_to,
            reports,
            commit: None,
            commit_due: None,
            trouble: None,
            room: CommitRoom::default(),
            must_stop: None,
            stop_by: None,
            poll_after: Duration::ZERO,
            search: None,
            store_call: None,
            store_turn: None,
        }
    }

    fn now(&self) -> Duration {
        self.binding.clock.elapsed()
    }

    async fn run(&mut self, requests: &mut mpsc::UnboundedReceiver<GiveUpRequest>) -> SessionEnd {
        let binding = Arc::clone(&self.binding);
        loop {
            let seen = binding.gate.changes().version();
            if binding.stop.is_set() && self.stop_by.is_none() {
                self.begin_stop();
            }
            self.look_at_clock();
            self.hand_back().await;
            self.begin_runs();
            self.begin_commit();
            self.begin_search();
            self.begin_store_call();
            if let Some(why) = self.must_stop.take() {
                return SessionEnd::Fatal(why);
            }
            if let Some(end) = self.pass_lost().await {
                return end;
            }
            if let Some(end) = self.let_go().await {
                return end;
            }
            self.regulate().await;
            let clock = Arc::clone(&self.binding.clock);
            let now = clock.elapsed();
            let wake = self.next_wake().saturating_sub(now);
            let is_polling = self.poll_after <= now;
            let session = Arc::clone(&self.session);
            tokio::select! {
                biased;
                () = binding.stop.requested(), if self.stop_by.is_none() => {}
                polled = session.poll(), if is_polling => match polled {
                    Ok(event) => self.on_event(event),
                    Err(error) => if let Some(end) = self.on_poll_error(error) {
                        return end;
                    },
                },
                made = made(&mut self.commit) => if let Some(end) = self.on_commit(made) {
                    return end;
                },
                (call, answer) = answered(&mut self.store_call) => {
                    if let Some(end) = self.on_store(call, answer) {
                        return end;
                    }
                }
                (at, fence, found) = searched(&mut self.search) => {
                    if let Some(end) = self.on_searched(&at, fence, found) {
                        return end;
                    }
                }
                Some(report) = self.reports.recv() => {
                    self.on_report(report);
                    while let Ok(report) = self.reports.try_recv() {
                        self.on_report(report);
                    }
                }
                Some(request) = requests.recv() => self.give_up(request),
                () = binding.gate.changes().after(seen) => {}
                () = clock.sleep(wake) => {}
            }
        }
    }

    /// Waits for a commit that may write copies: they must lie there before they are looked for.
    async fn end_commit(&mut self) {
        let is_early = self.binding.options.hand_off == HandOff::AtLeastOnce;
        if is_early && self.commit.is_some() {
            let clock = Arc::clone(&self.binding.clock);
            clock.within(RELEASE_TIMEOUT, made(&mut self.commit)).await;
        }
    }

    /// Does what is due by the clock.
    fn look_at_clock(&mut self) {
        let now = self.now();
        if self.binding.gate.wakes_at().is_some_and(|at| at <= now) {
            self.binding.gate.tick();
        }
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let (at, key) = entry.remove();
            if !is(PlantedBug::LostWakeUp) {
                self.make_ready(&at, &key);
            }
        }
        let flows = self.binding.gate.flows();
        let budget = self.binding.options.poll_budget();
        for partition in self.partitions.values_mut() {
            let Some((since, _)) = &mut partition.batch else {
                continue;
            };
            if !flows || self.seat.tier.0 > 0 {
                // Time in which nothing may begin is not the batch's.
                *since = now;
            } else if now.saturating_sub(*since) > budget && !partition.is_handing_back {
                partition.is_handing_back = true;
                partition.stop_runs();
                self.commit_due = Some(now);
                let (at, next) = (&partition.at, partition.tracker.next());
                tracing::warn!(
                    binding = self.binding.options.name, %at, next,
                    "a batch takes more than 70 % of `max-poll-interval-ms`; its rest is handed back"
                );
                crate::telemetry::safety(&self.binding.options.name);
            }
        }
    }

    /// When something is next due.
    fn next_wake(&self) -> Duration {
        let now = self.now();
        let far = now + IDLE_COMMIT;
        let budget = self.binding.options.poll_budget();
        let mut wake = self
            .timers
            .first_key_value()
            .map_or(far, |((at, _), _)| *at);
        let mut until = |at: Option<Duration>| wake = wake.min(at.unwrap_or(far));
        until(self.binding.gate.wakes_at());
        until(self.stop_by);
        until((self.poll_after > now).then_some(self.poll_after));
        if self.commit.is_none() {
            until(self.trouble.as_ref().map(|trouble| trouble.until));
            until(self.commit_due.filter(|_| self.trouble.is_none()));
        }
        // While a commit is under way or fails, nothing is done about idle partitions.
        let looks_at_idle = self.commit.is_none() && self.trouble.is_none();
        for partition in self.partitions.values() {
            if self.store_call.is_none() && !partition.is_searching {
                until(partition.park.as_ref().map(PartitionPark::wakes_at));
            }
            until(partition.let_go_by);
            until(looks_at_idle.then_some(partition.committed_at + IDLE_COMMIT));
            let batch = partition.batch.filter(|_| !partition.is_handing_back);
            until(batch.map(|(since, _)| since + budget + Duration::from_millis(1)));
        }
        wake
    }

    /// Begins runs of lanes that have something to do.
    fn begin_runs(&mut self) {
        if self.stop_by.is_some() || self.trouble.is_some() {
            return;
        }
        let binding = Arc::clone(&self.binding);
        let (now, now_ms) = (binding.clock.elapsed(), binding.clock.now_ms());
        let has_permits = binding.gate.has_permits();
        let flows = binding.gate.flows() && has_permits;
        let mut kept = VecDeque::new();
        while self.running < binding.options.max_in_flight
            && let Some((at, key)) = self.ready.pop_front()
        {
            let Some(partition) = self.partitions.get_mut(&at) else {
                continue;
            };
            let is_stopping = partition.let_go_by.is_some()
                || partition.is_handing_back
                || !partition.may_begin(&key, now, &binding.options);
            let Some(lane) = partition.lanes.get_mut(&key) else {
                continue;
            };
            let is_probe = lane.probes.is_some();
            let may_probe = is_probe && has_permits && binding.gate.lets_probe_through();
            let may_go = flows || may_probe;
            if !may_go || is_stopping {
                kept.push_back((at, key));
                continue;
            }
            lane.is_ready = false;
            let Some(first) = lane.queue.front().filter(|_| lane.running.is_none()) else {
                continue;
            };
            let due = first
                .due()
                .map_or(Duration::ZERO, |due| due.wait(now_ms, now));
            let until = lane
                .wait_until
                .map_or(now + due, |until| until.max(now + due));
            if until > now {
                self.set_timer(until, at, key);
                continue;
            }
            lane.wait_until = None;
            let first = (first.offset(), first.key().cloned());
            let limit = if is_probe {
                1
            } else {
                binding.options.max_poll_records
            };
            let is_due = |due: DueTime| due.wait(now_ms, now).is_zero();
            let works = partition.take(&key, limit, is_due);
            let run = LaneRun {
                source: Arc::clone(&partition.source),
                fence: partition.fence,
                lane: key.clone(),
                is_probe,
                stop: Arc::clone(&partition.stop),
                held_until: partition.park.as_ref().and_then(PartitionPark::held_until),
                telemetry: Arc::clone(&self.telemetry),
                reports: self.report_to.clone(),
            };
            let work = run.run(works, Arc::clone(&binding));
            let task = binding.spawn.spawn(&self.name.container, Box::pin(work));
            partition.running += 1;
            self.running += 1;
            if let Some(lane) = partition.lanes.get_mut(&key) {
                lane.running = Some(RunningLane { task, first });
            }
        }
        kept.append(&mut self.ready);
        self.ready = kept;
    }

    fn make_ready(&mut self, at: &TopicPartition, key: &LaneKey) {
        let lane = self
            .partitions
            .get_mut(at)
            .and_then(|found| found.lanes.get_mut(key));
        if let Some(lane) = lane
            && !lane.is_ready
            && lane.running.is_none()
        {
            lane.is_ready = true;
            self.ready.push_back((at.clone(), key.clone()));
        }
    }

    fn set_timer(&mut self, until: Duration, at: TopicPartition, key: LaneKey) {
        self.timer_count += 1;
        self.timers.insert((until, self.timer_count), (at, key));
    }

    /// Begins a commit, if there is something to commit and it is time.
    fn begin_commit(&mut self) {
        if self.commit.is_some() {
            return;
        }
        let now = self.now();
        let is_ending =
            self.stop_by.is_some() || self.partitions.values().any(|p| p.let_go_by.is_some());
        let is_idle = |p: &PartitionWork| now.saturating_sub(p.committed_at) >= IDLE_COMMIT;
        let scope = match &mut self.trouble {
            Some(trouble) if now >= trouble.until => CommitScope::Everything,
            Some(trouble) if trouble.tries_without => {
                trouble.tries_without = false;
                CommitScope::WithoutHandOffs
            }
            Some(_) => return,
            None => {
                let is_due = self.commit_due.is_some_and(|due| due <= now);
                if !is_due && !is_ending && !self.partitions.values().any(is_idle) {
                    return;
                }
                CommitScope::Everything
            }
        };
        let binding = Arc::clone(&self.binding);
        let new_id = || binding.new_progress_id();
        let plan = CommitPlan::of(
            self.partitions.values_mut(),
            &self.seat.place(),
            scope,
            self.room,
            is_idle,
            new_id,
        );
        let Some(plan) = plan else {
            if scope == CommitScope::Everything {
                self.commit_due = None;
                self.trouble = None;
                // A group that has committed nothing has nothing to keep.
                let idle = self.partitions.values_mut().filter(|found| is_idle(found));
                idle.for_each(|found| found.committed_at = now);
            }
            return;
        };
        self.commit_due = None;
        let has_hand_offs = plan.has_hand_offs();
        let CommitPlan {
            parts,
            commit,
            progress,
            changed,
        } = plan;
        self.commit = Some(CommitUnderWay {
            future: Box::pin(self.committer.clone().make(commit, progress, changed)),
            parts,
            has_hand_offs,
        });
    }

    /// Holds partitions back of which enough is in hand, and lets others go on.
    async fn regulate(&mut self) {
        let options = &self.binding.options;
        let (poll, in_flight) = (options.max_poll_records, options.max_in_flight);
        let limit = match options.concurrency_mode {
            ConcurrencyMode::Partition => poll.saturating_mul(2),
            ConcurrencyMode::Key | ConcurrencyMode::Unordered => {
                poll.saturating_mul(2).max(in_flight.saturating_mul(8))
            }
        };
        let bytes = match self.seat.tier.0 {
            0 => MAX_HELD_BYTES,
            _ => MAX_HELD_TIER_BYTES,
        };
        let ahead = i64::try_from(options.max_ahead).unwrap_or(i64::MAX);
        let (mut hold, mut let_on) = (Vec::new(), Vec::new());
        for (at, partition) in &mut self.partitions {
            let reach = partition.tracker.reach();
            let park = partition.park.as_ref();
            let is_full = park.is_some_and(|p| p.is_full(options.key_ordered.max_parked, limit));
            let waits = is_full || !partition.is_open();
            let is_full = partition.queued >= limit
                || partition.queued_bytes >= bytes
                || reach >= ahead
                || waits;
            let has_room = partition.queued < limit.div_ceil(2)
                && partition.queued_bytes <= bytes / 2
                && reach < ahead
                && !waits;
            if is_full && !partition.is_held_back {
                partition.is_held_back = true;
                hold.push(at.clone());
            } else if has_room && partition.is_held_back {
                partition.is_held_back = false;
                let_on.push(at.clone());
            }
        }
        if !hold.is_empty() {
            // A session that is gone says so at the next poll.
            self.session.pause(&hold).await.ok();
        }
        if !let_on.is_empty() {
            self.session.resume(&let_on).await.ok();
        }
    }

    /// Gives an error of a poll its meaning.
    fn on_poll_error(&mut self, error: LogError) -> Option<SessionEnd> {
        if matches!(error, LogError::Closed | LogError::Stopped { .. }) {
            return Some(SessionEnd::Lost(error));
        }
        if let LogError::OutOfRange {
            at, asked, start, ..
        } = error
        {
            return self.on_lost_records(&at, asked, start);
        }
        let binding = &self.binding.options.name;
        if let LogError::Damaged { at, .. } = &error {
            tracing::error!(binding, %error, "a partition waits");
            let (at, why) = (at.clone(), error.to_string());
            self.binding.status.lock().damaged.insert(at, why);
            return None;
        }
        let class = error.class();
        tracing::warn!(binding, %class, %error, "a poll failed");
        self.poll_after = self.now() + POLL_PAUSE;
        None
    }
}

/// The outcome of the commit under way; never without one.
async fn made(commit: &mut Option<CommitUnderWay>) -> Result<(), FailedCommit> {
    match commit {
        Some(under_way) => under_way.future.as_mut().await,
        None => std::future::pending().await,
    }
}
