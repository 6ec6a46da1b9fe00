//! What runs a logger, from its opening to its end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Account, Books, Place};
use tidegate_core::breaker::Breaker;
use tidegate_core::env::{Env, Spawn, Task};
use tokio::sync::{mpsc, watch};

use crate::api::Api;
use crate::config::{LoggerConfig, SyncMode};
use crate::hub::{Hub, LossCallback, Lost};
use crate::keeper;
use crate::logger::{Logger, Metrics};
use crate::loss::reason;
use crate::replayer::Replayer;
use crate::sender::Sender;
use crate::spill::{Caps, Recovered, SpillError, Spool};
use crate::state::{Phase, Queued, State};
use crate::telemetry;
use crate::writer::{self, Writer, WriterHandle};

/// Share of the time for stopping in which events are still sent; the rest is for the disk.
const SENDING_SHARE: f64 = 0.7;
/// Commands that wait for the writer.
const COMMANDS: usize = 16;

/// Tells the task that the last handle is gone.
#[derive(Debug)]
pub(crate) struct HandleGuard(watch::Sender<bool>);

impl Drop for HandleGuard {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Runs a logger.
#[must_use = "a logger sends nothing until its task is run"]
pub struct LoggerTask {
    shared: Arc<Hub>,
    losses: mpsc::Receiver<Lost>,
    spool: Option<Spool>,
    spawn: Arc<dyn Spawn>,
    is_orphan: watch::Receiver<bool>,
    unverifiable: i64,
}

/// How a logger ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Where all events are.
    pub account: Account,
    /// What was counted.
    pub metrics: Metrics,
    /// Events that were in the memory of a process that was killed, of which nothing is known.
    pub unverifiable: i64,
    /// Why the spill directory was given up, if it was.
    pub spill_failure: Option<String>,
}

impl Logger {
    /// Opens a logger: takes its spill directory over and recovers what an earlier process left
    /// there. Nothing runs before the task does.
    ///
    /// `on_loss` is told of each event that is lost or set aside, once; its panic is caught and it
    /// may be slow.
    ///
    /// # Errors
    /// The spill directory cannot be used, or another process uses it.
    pub fn open(
        config: LoggerConfig,
        api: Arc<dyn Api>,
        env: Env,
        on_loss: Option<LossCallback>,
    ) -> Result<(Self, LoggerTask), SpillError> {
        let caps = Caps {
            events: config.max_spillover_events,
            bytes: config.max_spillover_bytes,
        };
        let is_synced = config.sync == SyncMode::Group;
        let (spool, recovered) = match &config.spillover_path {
            Some(path) if config.enabled => {
                let (spool, recovered) = Spool::open(Arc::clone(&env.disk), path, caps, is_synced)?;
                (Some(spool), recovered)
            }
            Some(_) | None => (
                None,
                Recovered {
                    books: Books::default(),
                    backlog: 0,
                    unverifiable: 0,
                },
            ),
        };
        let breaker = Breaker::new(config.breaker.clone());
        let state = State::new(breaker, recovered.books, recovered.backlog);
        let (shared, losses) =
            Hub::new(config, env.clock, env.entropy.as_ref(), api, state, on_loss);
        let (gone, is_orphan) = watch::channel(false);
        let logger = Self {
            shared: Arc::clone(&shared),
            _guard: Arc::new(HandleGuard(gone)),
        };
        let unverifiable = recovered.unverifiable;
        let task = LoggerTask {
            shared,
            losses,
            spool,
            spawn: env.spawn,
            is_orphan,
            unverifiable,
        };
        Ok((logger, task))
    }
}

impl LoggerTask {
    /// Runs the logger until `shutdown` completes or the last handle is dropped, then drains it and
    /// returns.
    ///
    /// Draining takes at most the shutdown timeout and a moment: events are sent while that works,
    /// then everything that is left is spilled, also what is in requests on their way. Without a
    /// spill it is reported as lost. If canceled, what is in memory is lost without a report.
    pub async fn run(mut self, shutdown: impl Future<Output = ()> + Send) -> Report {
        let running = self.start();
        let Self {
            shared,
            mut is_orphan,
            unverifiable,
            ..
        } = self;
        tokio::select! {
            biased;
            () = shutdown => {}
            _ = is_orphan.wait_for(|is_set| *is_set) => {}
        }
        Stopping {
            shared,
            unverifiable,
        }
        .stop(running)
        .await
    }

    fn start(&mut self) -> Running {
        let shared = &self.shared;
        let (abandon, abandoned) = watch::channel(false);
        let (commands, asked) = mpsc::channel(COMMANDS);
        let handle = WriterHandle(commands);
        let now = shared.clock.elapsed();
        let writer = self.spool.take().map(|spool| {
            let (helper, help) = writer::help();
            // Ends by itself when the writer does.
            drop(self.spawn.spawn_thread("eventlog-sync", Box::pin(help)));
            let writer = Writer {
                shared: Arc::clone(shared),
                spool,
                commands: asked,
                last_sync: now,
                last_books: now,
                is_dirty: false,
                blocked_until: None,
                is_asked: true,
                helper,
            };
            self.spawn
                .spawn_thread("eventlog-spill", Box::pin(writer.run()))
        });
        let has_spill = writer.is_some();
        let replayer = has_spill.then(|| {
            let replayer = Replayer {
                shared: Arc::clone(shared),
                writer: handle.clone(),
                abandon: abandoned.clone(),
            };
            self.spawn
                .spawn("eventlog-replay", Box::pin(replayer.run()))
        });
        let senders = (0..shared.config.sender_threads)
            .map(|_| {
                let sender = Sender {
                    shared: Arc::clone(shared),
                    writer: has_spill.then(|| handle.clone()),
                    abandon: abandoned.clone(),
                    has_lingered: false,
                };
                self.spawn.spawn("eventlog-send", Box::pin(sender.run()))
            })
            .collect();
        let keeper = self
            .spawn
            .spawn("eventlog-keep", Box::pin(keeper::run(Arc::clone(shared))));
        let reporter = {
            let shared = Arc::clone(shared);
            let (_, empty) = mpsc::channel(1);
            let mut losses = std::mem::replace(&mut self.losses, empty);
            let (stop, mut stopped) = watch::channel(false);
            let task = self.spawn.spawn_thread(
                "eventlog-losses",
                Box::pin(async move {
                    loop {
                        tokio::select! {
                            biased;
                            lost = losses.recv() => match lost {
                                Some(lost) => shared.call_back(&lost),
                                None => return,
                            },
                            _ = stopped.wait_for(|is_set| *is_set) => return,
                        }
                    }
                }),
            );
            (task, stop)
        };
        Running {
            abandon,
            senders,
            keeper,
            replayer,
            writer,
            reporter,
        }
    }
}

/// A logger on its way down.
struct Stopping {
    shared: Arc<Hub>,
    unverifiable: i64,
}

impl Stopping {
    async fn stop(self, running: Running) -> Report {
        let shared = &self.shared;
        let clock = &shared.clock;
        let timeout = shared.config.shutdown_timeout;
        let began = clock.elapsed();
        let waiting: Vec<Queued> = {
            let mut state = shared.state();
            state.phase = Phase::Stopping;
            let waiting: Vec<Queued> = std::mem::take(&mut state.retries).into_values().collect();
            state.post(
                waiting.iter().map(|q| q.id),
                Place::Retrying,
                Place::InFlight,
            );
            waiting
        };
        shared.ring_all();
        // They had their chance; waiting for their next one is not what stopping is for.
        shared
            .spill_or_lose(waiting, reason::SHUTDOWN_PENDING_RETRY)
            .await;
        let sending_until = timeout.mul_f64(SENDING_SHARE);
        self.wait_until(sending_until, || shared.state().is_quiet())
            .await;
        shared.state().phase = Phase::Draining;
        running.abandon.send_replace(true);
        shared.ring_all();
        let left: Vec<Queued> = shared.state().queue.drain(..).collect();
        let limit = || {
            timeout
                .saturating_sub(clock.elapsed().saturating_sub(began))
                .max(GRACE)
        };
        let rest = async {
            shared.spill_or_lose(left, reason::SHUTDOWN_QUEUED).await;
            for sender in running.senders {
                sender.join().await;
            }
        };
        // A disk that hangs must not keep us: what it does not take is reported below.
        within(clock.sleep(limit()), rest).await;
        // Its last request was answered, or given up together with those of the senders.
        if let Some(replayer) = running.replayer {
            within(clock.sleep(limit()), async { drop(replayer.join().await) }).await;
        }
        shared.state().phase = Phase::Stopped;
        shared.ring_all();
        if let Some(writer) = running.writer {
            within(clock.sleep(limit()), async { drop(writer.join().await) }).await;
        }
        self.report_what_is_left();
        running.keeper.abort();
        running.reporter.1.send_replace(true);
        within(clock.sleep(GRACE), async {
            drop(running.reporter.0.join().await)
        })
        .await;
        telemetry::gauges(shared);
        let report = self.report();
        telemetry::stopped(&report);
        report
    }

    /// Whatever is still in memory now stays there: the disk did not take it in time.
    fn report_what_is_left(&self) {
        let shared = &self.shared;
        let left: Vec<Queued> = {
            let mut hand = shared.hand();
            let mut state = shared.state();
            state.spilling = 0;
            let mut left = hand.give_up();
            left.extend(state.spill.drain(..));
            left.extend(state.queue.drain(..));
            if !left.is_empty() {
                let why = "the disk did not answer in time".to_owned();
                state.spill_failure.get_or_insert(why);
            }
            left
        };
        shared.lose(left, Place::InFlight, reason::SPILLOVER_WRITE_ERROR);
    }

    /// Waits for a fact, at most so long.
    async fn wait_until(&self, limit: Duration, is_true: impl Fn() -> bool) {
        let mut limit = self.shared.clock.sleep(limit);
        loop {
            let progress = self.shared.progress.notified();
            if is_true() {
                return;
            }
            tokio::select! {
                biased;
                () = progress => {}
                () = &mut limit => return,
            }
        }
    }

    fn report(&self) -> Report {
        let mut state = self.shared.state();
        Report {
            account: state.account(),
            metrics: Metrics::of(&state),
            unverifiable: self.unverifiable,
            spill_failure: state.spill_failure.clone(),
        }
    }
}

/// What each step of stopping gets at least, however late it is.
const GRACE: Duration = Duration::from_millis(500);

/// The tasks of a running logger.
struct Running {
    abandon: watch::Sender<bool>,
    senders: Vec<Task>,
    keeper: Task,
    replayer: Option<Task>,
    writer: Option<Task>,
    reporter: (Task, watch::Sender<bool>),
}

/// Waits for `work`, until `limit`.
async fn within(limit: impl Future<Output = ()>, work: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = work => {}
        () = limit => {}
    }
}

impl std::fmt::Debug for LoggerTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoggerTask")
    }
}
