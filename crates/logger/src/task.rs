//! What runs a logger, from its opening to its end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::EventIdMinter;
use tidegate_core::books::{Account, Books};
use tidegate_core::breaker::Breaker;
use tidegate_core::env::{Env, Spawn, Task};
use tokio::sync::{mpsc, watch};

use crate::api::Api;
use crate::config::{LoggerConfig, SyncMode};
use crate::event::Encoder;
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
pub(crate) struct HandleGuard(pub(crate) watch::Sender<bool>);

impl Drop for HandleGuard {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Runs a logger. Dropped without being run, it ends the logger: what was logged is reported as
/// lost.
#[must_use = "a logger sends nothing until its task is run"]
pub struct LoggerTask {
    shared: Arc<Hub>,
    losses: Unheard,
    spool: Option<Spool>,
    spawn: Arc<dyn Spawn>,
    is_orphan: watch::Receiver<bool>,
    unverifiable: i64,
    is_behind: bool,
}

/// Losses that nobody is told of yet, because the logger does not run.
struct Unheard {
    shared: Arc<Hub>,
    losses: Option<mpsc::Receiver<Lost>>,
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let Some(mut losses) = self.losses.take() else {
            return;
        };
        self.shared.state().phase = Phase::Stopped;
        self.shared.lose_what_is_left("the logger was never run");
        self.shared.ring_all();
        while let Ok(lost) = losses.try_recv() {
            self.shared.tell(&lost);
        }
    }
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
    /// Losses that the callback had not heard of by then: too many waited for it, or it was too
    /// slow. They are in the account and in the log.
    pub untold: u64,
}

impl Logger {
    /// Opens a logger: takes its spill directory over and recovers what an earlier process left
    /// there. Nothing runs before the task does.
    ///
    /// `on_loss` is told of each event that is lost or set aside, once, on a thread of its own; its
    /// panic is caught and it may be slow. While twice the queue capacity, at least 1,024, of them
    /// wait for it, further ones are counted, logged and not told. An event that `log` hands back is
    /// told of on the thread that logs.
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
                    is_behind: false,
                },
            ),
        };
        let breaker = Breaker::new(config.breaker.clone());
        let ids = EventIdMinter::new(env.entropy.fork("ids"));
        let mut state = State::new(ids, breaker, recovered.books, recovered.backlog);
        state.backlog_bytes = spool.as_ref().map_or(0, Spool::bytes);
        let (shared, losses) =
            Hub::new(config, env.clock, env.entropy.as_ref(), api, state, on_loss);
        let (gone, is_orphan) = watch::channel(false);
        let logger = Self {
            shared: Arc::clone(&shared),
            _guard: Arc::new(HandleGuard(gone)),
        };
        let losses = Unheard {
            shared: Arc::clone(&shared),
            losses: Some(losses),
        };
        let task = LoggerTask {
            shared,
            losses,
            spool,
            spawn: env.spawn,
            is_orphan,
            unverifiable: recovered.unverifiable,
            is_behind: recovered.is_behind,
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
    /// spill it is reported as lost.
    ///
    /// If canceled, the logger takes no more events on and gives up its requests; what it holds is
    /// spilled, or without a spill reported as lost, by the threads that are left, which then end and
    /// let go of the directory.
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
        let (commands, asked) = mpsc::channel(COMMANDS);
        let handle = WriterHandle(commands);
        let (reported, mut stopped) = watch::channel(false);
        let alive = Arc::new(Alive {
            shared: Arc::clone(shared),
            is_over: reported,
        });
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
                is_dirty: self.is_behind,
                blocked_until: None,
                is_asked: true,
                has_ended: false,
                helper,
                encoder: Encoder::new(&shared.config.defaults),
                _alive: Arc::clone(&alive),
            };
            self.spawn
                .spawn_thread("eventlog-spill", Box::pin(writer.run()))
        });
        let has_spill = writer.is_some();
        let replayer = has_spill.then(|| {
            let replayer = Replayer {
                shared: Arc::clone(shared),
                writer: handle.clone(),
                _alive: Arc::clone(&alive),
            };
            self.spawn
                .spawn("eventlog-replay", Box::pin(replayer.run()))
        });
        let senders = (0..shared.config.sender_threads)
            .map(|_| {
                let sender = Sender {
                    shared: Arc::clone(shared),
                    writer: has_spill.then(|| handle.clone()),
                    has_lingered: false,
                    _alive: Arc::clone(&alive),
                };
                self.spawn.spawn("eventlog-send", Box::pin(sender.run()))
            })
            .collect();
        let keeper = self
            .spawn
            .spawn("eventlog-keep", Box::pin(keeper::run(Arc::clone(shared))));
        let reporter = self.losses.losses.take().map(|mut losses| {
            let shared = Arc::clone(shared);
            let telling = async move {
                loop {
                    tokio::select! {
                        biased;
                        lost = losses.recv() => match lost {
                            Some(lost) => shared.tell(&lost),
                            None => return,
                        },
                        _ = stopped.wait_for(|is_set| *is_set) => return,
                    }
                }
            };
            self.spawn
                .spawn_thread("eventlog-losses", Box::pin(telling))
        });
        Running {
            alive,
            senders,
            keeper,
            replayer,
            writer,
            reporter,
            is_over: false,
        }
    }
}

/// Held by everybody who may still find a loss. The last one to let go ends the telling of losses.
pub(crate) struct Alive {
    shared: Arc<Hub>,
    is_over: watch::Sender<bool>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.shared.state().phase = Phase::Stopped;
        // Nothing, unless somebody panicked or the logger was dropped without its disk.
        self.shared.lose_what_is_left("the logger was dropped");
        self.shared.ring_all();
        self.is_over.send_replace(true);
    }
}

/// A logger on its way down.
struct Stopping {
    shared: Arc<Hub>,
    unverifiable: i64,
}

impl Stopping {
    async fn stop(self, mut running: Running) -> Report {
        let shared = &self.shared;
        let clock = &shared.clock;
        let timeout = shared.config.shutdown_timeout;
        let began = clock.elapsed();
        let waiting: Vec<Queued> = {
            let mut state = shared.state();
            state.phase = Phase::Stopping;
            state.take_retries()
        };
        shared.ring_all();
        // They had their chance; waiting for their next one is not what stopping is for.
        shared.spill_or_lose_now(waiting, reason::SHUTDOWN_PENDING_RETRY);
        let sending_until = timeout.mul_f64(SENDING_SHARE);
        self.wait_until(sending_until, || shared.state().is_quiet())
            .await;
        shared.state().phase = Phase::Draining;
        shared.abandoned.set();
        shared.ring_all();
        let left: Vec<Queued> = shared.state().queue.drain(..).collect();
        shared.spill_or_lose_now(left, reason::SHUTDOWN_QUEUED);
        let limit = || {
            timeout
                .saturating_sub(clock.elapsed().saturating_sub(began))
                .max(GRACE)
        };
        let senders = std::mem::take(&mut running.senders);
        let ended = async {
            for sender in senders {
                sender.join().await;
            }
        };
        // A disk that hangs must not keep us: what it does not take is reported below.
        within(clock.sleep(limit()), ended).await;
        // Its last request was answered, or given up together with those of the senders.
        if let Some(replayer) = running.replayer.take() {
            within(clock.sleep(limit()), async { drop(replayer.join().await) }).await;
        }
        shared.state().phase = Phase::Stopped;
        shared.ring_all();
        if let Some(writer) = running.writer.take() {
            within(clock.sleep(limit()), async { drop(writer.join().await) }).await;
        }
        // Whatever is still in memory now stays there: the disk did not take it in time.
        shared.lose_what_is_left("the disk did not answer in time");
        running.keeper.abort();
        running.is_over = true;
        running.alive.is_over.send_replace(true);
        // A callback that is slow, or hangs, keeps us no longer than the disk may.
        if let Some(reporter) = running.reporter.take() {
            within(clock.sleep(limit()), async { drop(reporter.join().await) }).await;
        }
        telemetry::gauges(shared);
        let report = self.report();
        telemetry::stopped(&report);
        report
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
            untold: self.shared.untold(&state),
        }
    }
}

/// What each step of stopping gets at least, however late it is.
const GRACE: Duration = Duration::from_millis(500);

/// The tasks of a running logger.
struct Running {
    alive: Arc<Alive>,
    senders: Vec<Task>,
    keeper: Task,
    replayer: Option<Task>,
    writer: Option<Task>,
    reporter: Option<Task>,
    /// Whether it was stopped in good order.
    is_over: bool,
}

impl Drop for Running {
    /// Whoever ran the logger was canceled: nothing more is taken on or sent, and what is in memory
    /// goes to the disk. The writer ends when everybody else has, and so lets go of the directory.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let shared = &self.alive.shared;
        let (waiting, queued) = {
            let mut state = shared.state();
            state.phase = state.phase.max(Phase::Draining);
            state.is_canceled = true;
            state.take_unsent()
        };
        shared.abandoned.set();
        shared.spill_or_lose_now(waiting, reason::SHUTDOWN_PENDING_RETRY);
        shared.spill_or_lose_now(queued, reason::SHUTDOWN_QUEUED);
        for task in self.senders.iter().chain(&self.replayer) {
            task.abort();
        }
        self.keeper.abort();
        shared.ring_all();
    }
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
