//! Runs a logger, from its opening to its end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Account;
use tidegate_core::breaker::Breaker;
use tidegate_core::env::{Env, Spawn, Task};
use tidegate_core::{EventIdMinter, Shutdown};
use tokio::sync::{mpsc, watch};

use crate::api::Api;
use crate::config::{LoggerConfig, SyncMode};
use crate::engine::{Engine, LossCallback, LossReport};
use crate::event::Encoder;
use crate::logger::Logger;
use crate::logger_id::LoggerId;
use crate::loss::reason;
use crate::replayer::Replayer;
use crate::sender::Sender;
use crate::spill::{Caps, Recovered, SpillError, Spool};
use crate::state::{LoggerPhase, LoggerState, Queued};
use crate::telemetry::{self, Metrics};
use crate::timers;
use crate::writer::{self, SpillWriter, WriterHandle};

/// Share of the time for stopping in which events are still sent; the rest is for the disk.
const SENDING_SHARE: f64 = 0.7;
/// Commands that wait for the writer.
const COMMANDS: usize = 16;

/// Runs a logger. Dropped without being run, it ends the logger: what was logged is reported as
/// lost.
#[must_use = "a logger sends nothing until its task is run"]
pub struct LoggerTask {
    engine: Arc<Engine>,
    /// Losses for the callback; none once it runs.
    losses: Option<mpsc::Receiver<LossReport>>,
    spool: Option<Spool>,
    spawn: Arc<dyn Spawn>,
    /// Requested when the last handle is dropped.
    is_orphan: Shutdown,
    unverifiable: i64,
    is_behind: bool,
}

impl Drop for LoggerTask {
    /// Ends a logger that was never run, and reports its losses.
    fn drop(&mut self) {
        let Some(mut losses) = self.losses.take() else {
            return;
        };
        self.engine.state().phase = LoggerPhase::Stopped;
        self.engine.lose_remaining("the logger was never run");
        self.engine.wake_all();
        while let Ok(lost) = losses.try_recv() {
            self.engine.deliver_report(&lost);
        }
    }
}

/// How a logger ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggerReport {
    /// Where all events are.
    pub account: Account,
    /// All counters.
    pub metrics: Metrics,
    /// Events that were in the memory of a process that was killed, of which nothing is known.
    pub unverifiable: i64,
    /// Why the spill directory was given up, if it was.
    pub spill_failure: Option<String>,
    /// Losses that the callback had not heard of by then: too many waited for it, or it was too
    /// slow. They are in the account and in the log.
    pub unreported: u64,
}

impl Logger {
    /// Opens a logger: takes its spill directory over and recovers what an earlier process left
    /// there. Nothing runs before the task does.
    ///
    /// `on_loss` is called for each event that is lost or set aside, once, on a thread of its own. Its
    /// panic is caught and it may be slow. While twice the queue capacity, at least 1,024, of them
    /// wait for it, further ones are counted and logged only. For an event that `log` hands back it
    /// is called on the thread of the caller.
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
            events: config.options.max_spillover_events,
            bytes: config.options.max_spillover_bytes,
        };
        let is_synced = config.options.sync == SyncMode::Group;
        let (spool, recovered) = match &config.options.spillover_path {
            Some(path) if config.enabled => {
                let new_id = LoggerId::mint(&*env.clock, &*env.entropy);
                let disk = Arc::clone(&env.disk);
                let (spool, recovered) = Spool::open(disk, path, caps, is_synced, new_id)?;
                (Some(spool), recovered)
            }
            Some(_) | None => (None, Recovered::default()),
        };
        let breaker = Breaker::new(config.options.breaker_rule());
        let ids = EventIdMinter::new(env.entropy.fork("ids"));
        let mut state = LoggerState::new(ids, breaker, recovered.books, recovered.backlog);
        state.backlog_bytes = spool.as_ref().map_or(0, Spool::bytes);
        let (engine, losses) = Engine::new(
            config,
            env.clock,
            env.entropy.as_ref(),
            api,
            spool.as_ref().map(Spool::id),
            state,
            on_loss,
        );
        let (trigger, is_orphan) = Shutdown::new();
        let logger = Self {
            engine: Arc::clone(&engine),
            _trigger: Arc::new(trigger),
        };
        let task = LoggerTask {
            engine,
            losses: Some(losses),
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
    /// Draining takes at most the shutdown timeout and a moment. Events are sent while that works,
    /// then everything that is left is spilled, also what is in requests on their way. Without a
    /// spill it is reported as lost.
    ///
    /// If canceled, the logger takes no more events on and gives up its requests. The threads that are
    /// left spill its events, or report them as lost where there is no spill. Then they end and let go
    /// of the directory.
    pub async fn run(mut self, shutdown: impl Future<Output = ()> + Send) -> LoggerReport {
        let running = self.start();
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.is_orphan.clone().requested() => {}
        }
        self.stop(running).await
    }

    fn start(&mut self) -> Running {
        let engine = &self.engine;
        let (commands, asked) = mpsc::channel(COMMANDS);
        let handle = WriterHandle(commands);
        let (reported, mut stopped) = watch::channel(false);
        let shutdown_guard = Arc::new(ShutdownGuard {
            engine: Arc::clone(engine),
            is_over: reported,
        });
        let now = engine.clock.elapsed();
        let writer = self.spool.take().map(|spool| {
            let (sync_thread, sync) = writer::sync_thread();
            // Ends by itself when the writer does.
            drop(self.spawn.spawn_thread("eventlog-sync", Box::pin(sync)));
            let writer = SpillWriter {
                engine: Arc::clone(engine),
                spool,
                commands: asked,
                last_sync: now,
                last_books: now,
                is_dirty: self.is_behind,
                blocked_until: None,
                has_clients: true,
                has_ended: false,
                sync_thread,
                encoder: Encoder::new(&engine.config.defaults),
                _shutdown_guard: Arc::clone(&shutdown_guard),
            };
            self.spawn
                .spawn_thread("eventlog-spill", Box::pin(writer.run()))
        });
        let has_spill = writer.is_some();
        let replayer = has_spill.then(|| {
            let replayer = Replayer {
                engine: Arc::clone(engine),
                writer: handle.clone(),
                _shutdown_guard: Arc::clone(&shutdown_guard),
            };
            self.spawn
                .spawn("eventlog-replay", Box::pin(replayer.run()))
        });
        let senders = (0..engine.config.options.sender_threads)
            .map(|_| {
                let sender = Sender {
                    engine: Arc::clone(engine),
                    writer: has_spill.then(|| handle.clone()),
                    has_lingered: false,
                    _shutdown_guard: Arc::clone(&shutdown_guard),
                };
                self.spawn.spawn("eventlog-send", Box::pin(sender.run()))
            })
            .collect();
        let timers = self
            .spawn
            .spawn("eventlog-timers", Box::pin(timers::run(Arc::clone(engine))));
        let reporter = self.losses.take().map(|mut losses| {
            let engine = Arc::clone(engine);
            let reporting = async move {
                loop {
                    tokio::select! {
                        biased;
                        lost = losses.recv() => match lost {
                            Some(lost) => engine.deliver_report(&lost),
                            None => return,
                        },
                        _ = stopped.wait_for(|is_set| *is_set) => return,
                    }
                }
            };
            self.spawn
                .spawn_thread("eventlog-losses", Box::pin(reporting))
        });
        Running {
            shutdown_guard,
            senders,
            timers,
            replayer,
            writer,
            reporter,
            is_over: false,
        }
    }
}

/// Held by every task that may still find a loss. Dropping the last one ends the reporting of losses.
pub(crate) struct ShutdownGuard {
    engine: Arc<Engine>,
    is_over: watch::Sender<bool>,
}

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.engine.state().phase = LoggerPhase::Stopped;
        // Nothing, unless a task panicked or the logger was dropped without its disk.
        self.engine.lose_remaining("the logger was dropped");
        self.engine.wake_all();
        self.is_over.send_replace(true);
    }
}

impl LoggerTask {
    async fn stop(self, mut running: Running) -> LoggerReport {
        let engine = &self.engine;
        let clock = &engine.clock;
        let timeout = engine.config.options.shutdown_timeout;
        let began = clock.elapsed();
        let waiting: Vec<Queued> = {
            let mut state = engine.state();
            state.phase = LoggerPhase::Stopping;
            state.take_retries()
        };
        engine.wake_all();
        // They had their chance; waiting for their next one is not what stopping is for.
        engine.spill_or_lose_now(waiting, &reason::SHUTDOWN_PENDING_RETRY);
        let sending_until = timeout.mul_f64(SENDING_SHARE);
        engine
            .wait_until(sending_until, LoggerState::is_quiet)
            .await;
        engine.state().phase = LoggerPhase::Draining;
        engine.abandoned.set();
        engine.wake_all();
        let left: Vec<Queued> = engine.state().queue.drain(..).collect();
        engine.spill_or_lose_now(left, &reason::SHUTDOWN_QUEUED);
        let limit = || {
            timeout
                .saturating_sub(clock.elapsed().saturating_sub(began))
                .max(GRACE)
        };
        // A disk that hangs must not keep us: what it does not take is reported below.
        join_within(clock.sleep(limit()), std::mem::take(&mut running.senders)).await;
        // Its last request was answered, or given up together with those of the senders.
        join_within(clock.sleep(limit()), running.replayer.take()).await;
        engine.state().phase = LoggerPhase::Stopped;
        engine.wake_all();
        join_within(clock.sleep(limit()), running.writer.take()).await;
        // Whatever is still in memory now stays there: the disk did not take it in time.
        engine.lose_remaining("the disk did not answer in time");
        running.timers.abort();
        running.is_over = true;
        running.shutdown_guard.is_over.send_replace(true);
        // A callback that is slow, or hangs, keeps us no longer than the disk may.
        join_within(clock.sleep(limit()), running.reporter.take()).await;
        telemetry::gauges(engine);
        let report = self.report();
        telemetry::stopped(&report);
        report
    }

    fn report(&self) -> LoggerReport {
        let mut state = self.engine.state();
        LoggerReport {
            account: state.account(),
            metrics: Metrics::of(&state),
            unverifiable: self.unverifiable,
            spill_failure: state.spill_failure.clone(),
            unreported: self.engine.unreported(&state),
        }
    }
}

/// The least time for each step of a stop, however late it is.
const GRACE: Duration = Duration::from_millis(500);

/// The tasks of a running logger.
struct Running {
    shutdown_guard: Arc<ShutdownGuard>,
    senders: Vec<Task>,
    timers: Task,
    replayer: Option<Task>,
    writer: Option<Task>,
    reporter: Option<Task>,
    /// Whether it was stopped in good order.
    is_over: bool,
}

impl Drop for Running {
    /// The task of the logger was canceled: nothing more is taken on or sent, and what is in memory
    /// goes to the disk. The writer ends after all others, and so releases the directory.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let engine = &self.shutdown_guard.engine;
        let (waiting, queued) = {
            let mut state = engine.state();
            state.phase = state.phase.max(LoggerPhase::Draining);
            state.is_canceled = true;
            state.take_unsent()
        };
        engine.abandoned.set();
        engine.spill_or_lose_now(waiting, &reason::SHUTDOWN_PENDING_RETRY);
        engine.spill_or_lose_now(queued, &reason::SHUTDOWN_QUEUED);
        for task in self.senders.iter().chain(&self.replayer) {
            task.abort();
        }
        self.timers.abort();
        engine.wake_all();
    }
}

/// Waits for these tasks, until `limit`.
async fn join_within(limit: impl Future<Output = ()>, tasks: impl IntoIterator<Item = Task>) {
    let joined = async {
        for task in tasks {
            task.join().await;
        }
    };
    tokio::select! {
        biased;
        () = joined => {}
        () = limit => {}
    }
}

impl std::fmt::Debug for LoggerTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoggerTask")
    }
}
