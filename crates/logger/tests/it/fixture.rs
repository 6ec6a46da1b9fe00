//! A logger in a simulated world, and what is asked of it after every scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_core::env::{Disk, OpenMode};
use tidegate_logger::spill::{SpillError, SpillRecount, recount};
use tidegate_logger::{
    Event, Logger, LoggerConfig, LoggerConfigBuilder, LoggerReport, LossCallback, Metrics, Payload,
};
use tidegate_sim::{Node, Sim, SimDisk};
use tidegate_testkit::{Script, ScriptedApi};
use tokio::sync::oneshot;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// The spill directory of every simulated logger.
pub(crate) fn dir() -> &'static Path {
    Path::new("/var/spill")
}

/// A configuration with a spill.
pub(crate) fn spilling() -> LoggerConfigBuilder {
    LoggerConfig::builder().spillover_path(dir())
}

/// A configuration without a spill.
pub(crate) fn memory_only() -> LoggerConfigBuilder {
    LoggerConfig::builder()
}

/// The event with this number.
pub(crate) fn event(number: u64) -> Event {
    event_saying(format!("event {number}"))
}

pub(crate) fn event_saying(details: impl Into<String>) -> Event {
    Event::step("CreateBooking", "BookingCreated", details.into()).correlation_id("a1b2c3d4")
}

pub(crate) fn texts(numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers.into_iter().map(|n| format!("event {n}")).collect()
}

/// `details` of an event as it is sent.
pub(crate) fn details(json: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(json).unwrap();
    value["details"].as_str().unwrap_or_default().to_owned()
}

/// A loss as the callback got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportedLoss {
    pub(crate) id: Option<EventId>,
    pub(crate) details: Option<String>,
    pub(crate) reason: String,
}

/// A callback that remembers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses(Arc<Mutex<Vec<ReportedLoss>>>);

impl Losses {
    pub(crate) fn callback(&self) -> LossCallback {
        let reported = Arc::clone(&self.0);
        Arc::new(move |loss| {
            reported.lock().unwrap().push(ReportedLoss {
                id: loss.id,
                details: loss
                    .event
                    .and_then(|e| e.details.as_deref().map(str::to_owned)),
                reason: loss.reason.to_string(),
            });
        })
    }

    pub(crate) fn all(&self) -> Vec<ReportedLoss> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn reasons(&self) -> Vec<String> {
        self.all()
            .into_iter()
            .map(|reported| reported.reason)
            .collect()
    }

    pub(crate) fn by_reason(&self) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        for reason in self.reasons() {
            *counts.entry(reason).or_default() += 1;
        }
        counts
    }
}

/// A request that went out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) at: Duration,
    pub(crate) details: Vec<String>,
}

type Play = dyn Fn(&[Payload], u64) -> Script + Send + Sync;

/// One machine with a logger, and an API that follows a script.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) node: Node,
    pub(crate) api: Arc<ScriptedApi>,
    pub(crate) losses: Losses,
    calls: Arc<Mutex<Vec<Call>>>,
    logger: Option<Logger>,
    stop: Option<oneshot::Sender<()>>,
    report: Arc<Mutex<Option<LoggerReport>>>,
    /// Whether books of an earlier life are in the account.
    has_past: bool,
    callback: Option<LossCallback>,
}

impl World {
    /// A world whose API always works.
    pub(crate) fn new(seed: u64) -> Self {
        Self::scripted(seed, |_, _| Script::Serve)
    }

    /// A world whose API follows a script.
    pub(crate) fn scripted(
        seed: u64,
        script: impl Fn(&[Payload], u64) -> Script + Send + Sync + 'static,
    ) -> Self {
        let mut sim = Sim::new(seed);
        let node = sim.node("app");
        // A machine of its own, so that its clock outlives the crashes of the other.
        let clock = sim.node("api").env().clock;
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let noted = Arc::clone(&calls);
        let now = Arc::clone(&clock);
        let script: Box<Play> = Box::new(script);
        let api = Arc::new(ScriptedApi::new(clock, move |batch, call| {
            noted.lock().unwrap().push(Call {
                at: now.elapsed(),
                details: batch.iter().map(|p| details(&p.json)).collect(),
            });
            script(batch, call)
        }));
        Self {
            sim,
            node,
            api,
            losses: Losses::default(),
            calls,
            logger: None,
            stop: None,
            report: Arc::default(),
            has_past: false,
            callback: None,
        }
    }

    /// A world in which nobody listens.
    pub(crate) fn down(seed: u64) -> Self {
        let world = Self::new(seed);
        world.api.down();
        world
    }

    pub(crate) fn with_callback(mut self, callback: LossCallback) -> Self {
        self.callback = Some(callback);
        self
    }

    /// Opens a logger and runs it.
    pub(crate) fn start(&mut self, config: LoggerConfigBuilder) {
        self.try_start(config).unwrap();
    }

    /// Opens a logger without running it: what is logged waits.
    pub(crate) fn open(&mut self, config: LoggerConfigBuilder) -> Opened {
        let config = config.build().unwrap();
        let callback = self
            .callback
            .clone()
            .unwrap_or_else(|| self.losses.callback());
        let api = Arc::clone(&self.api);
        let (logger, task) = Logger::open(config, api, self.node.env(), Some(callback)).unwrap();
        self.logger = Some(logger);
        Opened(task)
    }

    /// Runs what was opened.
    pub(crate) fn run(&mut self, opened: Opened) {
        let (stop, stopped) = oneshot::channel::<()>();
        self.stop = Some(stop);
        let report: Arc<Mutex<Option<LoggerReport>>> = Arc::default();
        self.report = Arc::clone(&report);
        let task = self.node.start("logger", async move {
            let ended = opened
                .0
                .run(async {
                    if stopped.await.is_err() {
                        // Only a word stops it; that nobody holds it any more is the handle's news.
                        std::future::pending::<()>().await;
                    }
                })
                .await;
            *report.lock().unwrap() = Some(ended);
        });
        drop(task);
    }

    pub(crate) fn try_start(&mut self, config: LoggerConfigBuilder) -> Result<(), SpillError> {
        let config = config.build().unwrap();
        let callback = self
            .callback
            .clone()
            .unwrap_or_else(|| self.losses.callback());
        let api = Arc::clone(&self.api);
        let (logger, task) = Logger::open(config, api, self.node.env(), Some(callback))?;
        self.logger = Some(logger);
        self.run(Opened(task));
        Ok(())
    }

    pub(crate) fn logger(&self) -> Logger {
        self.logger.clone().unwrap()
    }

    /// Logs the events with these numbers; all of them are taken on.
    pub(crate) fn log(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.logger().log(event(number)).unwrap();
        }
    }

    /// Logs this event durably and returns once that is promised.
    pub(crate) fn log_durable(&mut self, event: Event) -> EventId {
        let logger = self.logger();
        self.block_on(async move { logger.log_durable(event).await })
            .unwrap()
    }

    /// Logs the events with these numbers durably, all at once.
    pub(crate) fn log_all_durably(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let pending: Vec<_> = numbers
            .into_iter()
            .map(|number| {
                let logger = self.logger();
                let (done, outcome) = oneshot::channel();
                let task = self.node.start("durable", async move {
                    done.send(logger.log_durable(event(number)).await).ok();
                });
                drop(task);
                // One after the other, so that they are in their order.
                self.sim.run_for(Duration::ZERO);
                outcome
            })
            .collect();
        self.block_on(async move {
            for outcome in pending {
                outcome.await.unwrap().unwrap();
            }
        });
    }

    /// Spills the events with these numbers into one active file. The first of them meets an API
    /// that is down and opens the breaker, so that no replay begins. Then ends the process.
    pub(crate) fn leave_behind(&mut self, numbers: std::ops::Range<u64>) {
        self.api.down();
        self.start(
            spilling()
                .circuit_breaker_threshold(1)
                .max_spillover_events(1 << 30),
        );
        self.log([numbers.start]);
        self.wait_for_spilled(1);
        self.log_all_durably(numbers.start + 1..numbers.end);
        self.shut_down();
        self.new_process();
        self.api.up();
    }

    pub(crate) fn block_on<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.sim.block_on(&self.node, future)
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        self.sim.run_for(duration);
    }

    /// Runs until `fact` holds.
    #[track_caller]
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        what: &str,
        mut fact: impl FnMut(&Logger) -> bool,
    ) {
        let logger = self.logger();
        let is_so = self.sim.run_until(limit, || fact(&logger));
        assert!(
            is_so,
            "within {limit:?}: {what}; {:?} {:?}",
            logger.account(),
            logger.metrics()
        );
        // The task that reports it runs as well.
        self.sim.run_for(Duration::ZERO);
    }

    /// Runs until the API has this many events.
    #[track_caller]
    pub(crate) fn wait_for_stored(&mut self, count: usize) {
        let api = Arc::clone(&self.api);
        self.wait(
            30 * MINUTE,
            &format!("{count} stored, now {:?}", api.count()),
            |_| api.count() >= count,
        );
    }

    /// Runs until nothing is on its way any more, in memory or on disk.
    #[track_caller]
    pub(crate) fn wait_until_drained(&mut self) {
        self.wait(60 * MINUTE, "nothing is left", |logger| {
            let account = logger.account();
            account.in_flight + account.retrying + account.spilled == 0
        });
    }

    /// Runs until this many events are on disk.
    #[track_caller]
    pub(crate) fn wait_for_spilled(&mut self, count: i64) {
        self.wait(10 * MINUTE, &format!("{count} are spilled"), |logger| {
            logger.account().spilled == count
        });
    }

    /// Asks the logger to stop and returns how it ended.
    #[track_caller]
    pub(crate) fn shut_down(&mut self) -> LoggerReport {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended(MINUTE)
    }

    /// How the logger ended, within `limit`.
    #[track_caller]
    pub(crate) fn ended(&mut self, limit: Duration) -> LoggerReport {
        let report = Arc::clone(&self.report);
        let is_over = self
            .sim
            .run_until(limit, || report.lock().unwrap().is_some());
        assert!(is_over, "the logger has not ended within {limit:?}");
        self.sim.run_for(Duration::ZERO);
        let report = report.lock().unwrap().clone().unwrap();
        assert!(report.account.is_balanced(), "{report:?}");
        report
    }

    /// Lets go of the handle of the logger.
    pub(crate) fn let_go(&mut self) {
        self.logger = None;
    }

    /// Takes the power away and gives it back.
    pub(crate) fn power_cut(&mut self) {
        let node = self.node.clone();
        self.sim.crash(&node);
        self.after_the_end();
    }

    /// Kills the process (-9).
    pub(crate) fn kill(&mut self) {
        let node = self.node.clone();
        self.sim.kill(&node);
        self.after_the_end();
    }

    /// After the process has ended by itself, and its lock with it.
    pub(crate) fn new_process(&mut self) {
        self.kill();
    }

    fn after_the_end(&mut self) {
        self.logger = None;
        self.stop = None;
        self.has_past = true;
        let node = self.node.clone();
        self.sim.restart(&node);
    }

    pub(crate) fn account(&self) -> Account {
        self.logger().account()
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.logger().metrics()
    }

    /// The requests so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The events that arrived, in their order, each once.
    pub(crate) fn arrived(&self) -> Vec<String> {
        self.api
            .ids()
            .into_iter()
            .map(|id| details(&self.api.stored(id).unwrap()))
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert_arrived(&self, numbers: impl IntoIterator<Item = u64>) {
        let expect: BTreeSet<String> = texts(numbers).into_iter().collect();
        let found = self.arrived();
        let unique: BTreeSet<String> = found.iter().cloned().collect();
        assert_eq!(unique.len(), found.len(), "an event is there twice");
        assert_eq!(unique, expect);
    }

    pub(crate) fn disk(&self) -> SimDisk {
        self.node.disk()
    }

    /// The names in the spill directory.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = self.disk().list(dir()).unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }

    /// The bytes of a file; none where there is no such file.
    pub(crate) fn content(&self, name: &str) -> Vec<u8> {
        let disk = self.disk();
        (&disk as &dyn Disk)
            .read(&dir().join(name), 1 << 30)
            .unwrap_or_default()
    }

    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = String::from_utf8(self.content(name)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// How many lines a file has whose text may be anything.
    pub(crate) fn lines_lossy(&self, name: &str) -> usize {
        let bytes = self.content(name);
        bytes.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Puts a file into the spill directory, as another program would have left it there.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        let disk = self.disk();
        disk.create_dir_all(dir()).unwrap();
        let path = dir().join(name);
        let mut file = disk
            .open(&path, OpenMode::Write)
            .or_else(|_| disk.open(&path, OpenMode::CreateNew))
            .unwrap();
        file.truncate(0).unwrap();
        file.append(bytes).unwrap();
        file.sync().unwrap();
        disk.sync_dir(dir()).unwrap();
    }

    pub(crate) fn recount(&self) -> SpillRecount {
        recount(&self.disk(), dir()).unwrap()
    }

    /// Checks what must hold after every step of every scenario: the identity, both witnesses, and
    /// each loss reported and counted once (A01, A02).
    #[track_caller]
    pub(crate) fn check(&mut self) {
        self.sim.run_for(Duration::ZERO);
        let account = self.account();
        assert!(account.is_balanced(), "{account:?}");
        let recount = self.recount();
        assert_eq!(recount.unaccounted(), 0, "{:?}", recount.missing);
        self.check_losses(&account, self.metrics().events_failed);
    }

    /// The same for a logger that has ended.
    #[track_caller]
    pub(crate) fn check_report(&mut self, report: &LoggerReport) {
        assert!(report.account.is_balanced(), "{report:?}");
        let recount = self.recount();
        assert_eq!(recount.unaccounted(), 0, "{:?}", recount.missing);
        let account = &report.account;
        assert_eq!(account.in_flight + account.retrying, 0, "{account:?}");
        self.check_losses(account, report.metrics.events_failed);
    }

    #[track_caller]
    fn check_losses(&self, account: &Account, failed: u64) {
        let reported = self.losses.all();
        let mut ids: Vec<EventId> = reported.iter().filter_map(|reported| reported.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(
            ids.len(),
            count,
            "an event was reported twice: {reported:?}"
        );
        if self.has_past || self.callback.is_some() {
            return;
        }
        let lost: BTreeMap<String, i64> = account
            .lost
            .reasons()
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect();
        let mut reported = self.losses.by_reason();
        assert_eq!(
            reported.values().sum::<i64>(),
            account.lost.total() + account.dead_lettered,
            "every loss and everything set aside is reported once: {reported:?} {account:?}"
        );
        if account.dead_lettered > 0 {
            reported.remove("rejected");
            reported.remove("spillover_corrupt");
        }
        assert_eq!(reported, lost);
        assert_eq!(i64::try_from(failed).unwrap(), account.lost.total());
    }
}

/// A logger that does not run yet.
pub(crate) struct Opened(tidegate_logger::LoggerTask);
