//! `tidegate bench`: a small load on the log or the queue as they are configured, and how long each call took.
//!
//! It has a topic and an event type of its own. Its records are removed at the end, and its events are handled, so
//! that the books stay in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::env::Env;
use tidegate_core::{EventIds, Mutex, Topic};
use tidegate_log::admin::{AdminMode, TopicRemoval};
use tidegate_log::{Append, Log, LogError, Read, Record, TopicConfig, TopicPartition};
use tidegate_queue::{Dispatcher, DispatcherOptions, Handled, NewEvent};
use tokio::sync::oneshot;

use super::queue;
use crate::args::{BenchArgs, BenchTarget, Output, StoreAt};
use crate::report::{ErrorReport, Exit};
use crate::signals::Signals;
use crate::{log, settings, table};

/// The topic and the event type of a bench, the header of its records, and the id of its handler.
const NAME: &str = "tidegate-bench";
/// The partitions of the topic, which never change.
const PARTITIONS: u32 = 4;
/// How long the handlers may take for what is left when the last event was published.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// The result.
#[derive(Debug, Serialize)]
struct BenchReport {
    bench: &'static str,
    events: u64,
    seconds: f64,
    per_second: f64,
    latencies: Vec<LatencyRow>,
}

/// How long calls of one kind took, in milliseconds.
#[derive(Debug, Serialize)]
struct LatencyRow {
    of: &'static str,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// How long calls of one kind took.
#[derive(Debug, Default)]
struct Latencies(Mutex<Vec<Duration>>);

impl Latencies {
    fn add(&self, took: Duration) {
        self.0.lock().push(took);
    }

    fn row(&self, of: &'static str) -> LatencyRow {
        let mut all = self.0.lock().clone();
        all.sort_unstable();
        let at = |share: f64| {
            let last = all.len().saturating_sub(1);
            let index = (share * last as f64).ceil() as usize;
            all.get(index)
                .map_or(0.0, |took| took.as_secs_f64() * 1_000.0)
        };
        LatencyRow {
            of,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            max_ms: at(1.0),
        }
    }
}

/// The work that is left, and what came of it.
#[derive(Debug)]
struct Load {
    left: AtomicU64,
    done: AtomicU64,
    is_stopped: AtomicBool,
    failure: Mutex<Option<ErrorReport>>,
    calls: Latencies,
}

impl Load {
    fn of(events: u64) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(events),
            done: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
            calls: Latencies::default(),
        })
    }

    /// The number of events of the next call; none when nothing is left.
    fn take(&self, batch: u64) -> Option<u64> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return None;
        }
        let take = |left: u64| (left > 0).then(|| left.saturating_sub(batch));
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.ok().map(|before| before.min(batch))
    }

    /// A call has ended.
    fn note(&self, events: u64, took: Duration, result: Result<(), ErrorReport>) {
        match result {
            Ok(()) => {
                self.done.fetch_add(events, Ordering::Relaxed);
                self.calls.add(took);
            }
            Err(report) => {
                self.failure.lock().get_or_insert(report);
                self.is_stopped.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Has so many tasks make calls until nothing is left, somebody stops the command, or a call fails.
    async fn run<F, C>(self: &Arc<Self>, asked: &BenchArgs, env: &Env, call: C)
    where
        C: Fn(u64) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<(), ErrorReport>> + Send + 'static,
    {
        let tasks = (0..asked.concurrency).map(|_| {
            let (load, call) = (Arc::clone(self), call.clone());
            let (clock, batch) = (Arc::clone(&env.clock), asked.batch);
            let work = async move {
                while let Some(events) = load.take(batch) {
                    let begun = clock.elapsed();
                    let result = call(events).await;
                    load.note(events, clock.elapsed().saturating_sub(begun), result);
                }
            };
            env.spawn.spawn("bench", Box::pin(work))
        });
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            task.join().await;
        }
    }

    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn report(
        &self,
        bench: &'static str,
        took: Duration,
        latencies: Vec<LatencyRow>,
    ) -> BenchReport {
        let events = self.done.load(Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        BenchReport {
            bench,
            events,
            seconds,
            per_second: events as f64 / seconds.max(f64::MIN_POSITIVE),
            latencies,
        }
    }
}

pub(crate) async fn run(asked: &BenchArgs, output: Output) -> Result<Exit, ErrorReport> {
    let mut signals = Signals::register()?;
    let report = match asked.target {
        BenchTarget::Log => bench_log(asked, &mut signals).await?,
        BenchTarget::Queue => bench_queue(asked, &mut signals).await?,
    };
    output.print(&report, || text(&report))?;
    Ok(Exit::Ok)
}

fn text(report: &BenchReport) -> String {
    let ms = |ms: f64| format!("{ms:.2}");
    let rows = report.latencies.iter().map(|row| {
        let mut cells = vec![row.of.to_owned()];
        cells.extend([row.p50_ms, row.p90_ms, row.p99_ms, row.max_ms].map(ms));
        cells
    });
    let header = ["milliseconds", "p50", "p90", "p99", "max"];
    let grid = table::grid(&header, rows.collect());
    let events = table::counted(report.events, "event");
    let (seconds, rate) = (report.seconds, report.per_second);
    format!("{grid}\n{events} in {seconds:.1} s, {rate:.0} per second; none of them is left")
}

/// Runs the load, and has it end at the first signal.
async fn until_signal(signals: &mut Signals, load: &Load, running: impl Future<Output = ()>) {
    let mut running = std::pin::pin!(running);
    tokio::select! {
        biased;
        () = &mut running => {}
        () = signals.next() => {
            load.stop();
            running.await;
        }
    }
}

async fn bench_log(asked: &BenchArgs, signals: &mut Signals) -> Result<BenchReport, ErrorReport> {
    let config = settings::quietly(&asked.file)?;
    if config.names("log.topics").contains(&NAME) {
        return Err(taken(&format!("`{NAME}` is a topic of the configuration")));
    }
    let env = Env::system();
    let topic = Topic::new(NAME).map_err(|error| taken(&error.to_string()))?;
    let reached = log::reach(&asked.file, &asked.at, None, &env).await?;
    let (log, admin) = (reached.log(), reached.admin());
    let removal = || TopicRemoval {
        topic: topic.clone(),
        is_forced: false,
        mode: AdminMode::Apply,
    };
    let ran = async {
        if holds_other_records(&*log, &topic).await? {
            return Err(taken(&format!(
                "the topic `{NAME}` has records that no bench wrote"
            )));
        }
        match admin.remove_topic(removal()).await {
            // One that was killed has left it.
            Ok(_) | Err(LogError::UnknownTopic { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        log.create_topic(&topic, TopicConfig::new(PARTITIONS))
            .await?;
        let load = Load::of(asked.events);
        let ids = Arc::new(EventIds::new(
            Arc::clone(&env.clock),
            env.entropy.fork("bench"),
        ));
        let value = "x".repeat(asked.size);
        let call = {
            let (log, topic, ids) = (Arc::clone(&log), topic.clone(), Arc::clone(&ids));
            move |events: u64| {
                let records = (0..events).map(|_| {
                    let record = Record::new(value.clone()).header(NAME, "1");
                    let id = ids.mint();
                    let partition = i32::try_from(id.as_u128() % u128::from(PARTITIONS));
                    Append::new(topic.clone(), record.event_id(id))
                        .partition(partition.unwrap_or_default())
                });
                let (log, records) = (Arc::clone(&log), records.collect());
                async move { Ok(log.append(records).await.map(drop)?) }
            }
        };
        let begun = env.clock.elapsed();
        until_signal(signals, &load, load.run(asked, &env, call)).await;
        let took = env.clock.elapsed().saturating_sub(begun);
        // Also after a failure: nothing of it stays.
        admin.remove_topic(removal()).await?;
        if let Some(report) = load.failure.lock().take() {
            return Err(report);
        }
        Ok(load.report("log", took, vec![load.calls.row("append, durable")]))
    };
    let ran = ran.await;
    drop(log);
    reached.close().await;
    ran
}

/// Whether a topic has records that no bench wrote.
async fn holds_other_records(log: &dyn Log, topic: &Topic) -> Result<bool, ErrorReport> {
    let described = match log.describe(topic).await {
        Err(LogError::UnknownTopic { .. }) => return Ok(false),
        described => described?,
    };
    for found in described.partitions {
        let at = TopicPartition::new(topic.clone(), found.partition.0);
        let read = Read {
            max_records: 1,
            ..Read::new(at, found.start)
        };
        let first = log.read(read).await?;
        let mut records = first.records.iter();
        let is_ours = |name: &str| name == NAME;
        if records.any(|one| !one.record.headers.iter().any(|(name, _)| is_ours(name))) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn taken(why: &str) -> ErrorReport {
    ErrorReport::new("bench.taken", format!("{why}: nothing was written"))
        .with_hint(format!(
            "a bench has the topic and the event type `{NAME}` to itself"
        ))
        .with_exit(Exit::Usage)
}

async fn bench_queue(asked: &BenchArgs, signals: &mut Signals) -> Result<BenchReport, ErrorReport> {
    let env = Env::system();
    let opened = queue::open(&StoreAt {
        file: asked.file.clone(),
        store: asked.store.clone(),
    })
    .await?;
    let registry = opened.checked(opened.queue.store().registry().await)?;
    let mut others = registry.handlers.get(NAME).into_iter().flatten();
    if others.any(|handler| handler != NAME) {
        return Err(taken(&format!(
            "events of the type `{NAME}` have a handler already"
        )));
    }
    let handled = Arc::new((AtomicU64::new(0), Latencies::default()));
    let dispatcher = {
        let (handled, clock) = (Arc::clone(&handled), Arc::clone(&env.clock));
        let builder = Dispatcher::builder(opened.queue.clone().named(NAME));
        let options = DispatcherOptions::from_config(&settings::quietly(&asked.file)?)?;
        let built = builder
            .options(options)
            .register_raw(NAME, NAME, move |raw, _| {
                let (handled, now) = (Arc::clone(&handled), clock.elapsed());
                let payload: Result<Payload, _> = serde_json::from_str(raw.payload());
                Box::pin(async move {
                    // One of a bench that was killed has the time of another process.
                    if let Ok(payload) = payload {
                        let published = Duration::from_nanos(payload.at);
                        handled.1.add(now.saturating_sub(published));
                    }
                    handled.0.fetch_add(1, Ordering::Relaxed);
                    Handled::Success
                })
            });
        let built = built.map_err(|error| ErrorReport::of("internal", "no handler", &error))?;
        built.build(&env)
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let work = dispatcher.run(async {
        stopped.await.ok();
    });
    let dispatching = env.spawn.spawn(
        "bench-dispatcher",
        Box::pin(async {
            work.await;
        }),
    );
    let load = Load::of(asked.events);
    let call = {
        let (opened, clock, size) = (opened.clone(), Arc::clone(&env.clock), asked.size);
        move |events: u64| {
            let (opened, clock) = (opened.clone(), Arc::clone(&clock));
            async move {
                let at = u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let payload = Payload {
                    at,
                    pad: "x".repeat(size),
                };
                let payload = serde_json::to_string(&payload)
                    .map_err(|error| ErrorReport::of("internal", "cannot write JSON", &error))?;
                let ids = opened.queue.ids();
                let new = (0..events).map(|_| NewEvent::raw(ids.mint(), NAME, &payload));
                let new = opened.checked(new.collect::<Result<Vec<_>, _>>())?;
                opened.checked(opened.queue.publish_all(&new).await)?;
                Ok(())
            }
        }
    };
    let begun = env.clock.elapsed();
    until_signal(signals, &load, load.run(asked, &env, call)).await;
    let published = load.done.load(Ordering::Relaxed);
    let last = env.clock.elapsed();
    while handled.0.load(Ordering::Relaxed) < published
        && env.clock.elapsed().saturating_sub(last) < PATIENCE
    {
        env.clock.sleep(LOOK).await;
    }
    let took = env.clock.elapsed().saturating_sub(begun);
    stop.send(()).ok();
    dispatching.join().await;
    let unregistered = opened.queue.store().unregister(NAME, NAME).await;
    let left = published.saturating_sub(handled.0.load(Ordering::Relaxed));
    opened.close().await;
    opened.checked(unregistered)?;
    if let Some(report) = load.failure.lock().take() {
        return Err(report);
    }
    if left > 0 {
        let left = table::counted(left, "event");
        return Err(
            ErrorReport::new("bench.unhandled", format!("{left} wait in the queue"))
                .with_hint("the next bench handles them"),
        );
    }
    let rows = vec![
        load.calls.row("publish, durable"),
        handled.1.row("published to handled"),
    ];
    Ok(load.report("queue", took, rows))
}

/// The payload of an event: when it was published, by the clock of the process, and bytes.
#[derive(Debug, Serialize, serde::Deserialize)]
struct Payload {
    at: u64,
    pad: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_latencies_are_those_of_the_calls() {
        let latencies = Latencies::default();
        (1..=100).for_each(|ms| latencies.add(Duration::from_millis(ms)));
        let row = latencies.row("x");
        let found = [row.p50_ms, row.p90_ms, row.p99_ms, row.max_ms];
        assert_eq!(found.map(f64::round), [51.0, 91.0, 100.0, 100.0]);
        assert_eq!(Latencies::default().row("x").max_ms, 0.0);
    }

    #[test]
    fn each_event_is_sent_once_whatever_the_batch() {
        let load = Load::of(7);
        let taken: Vec<u64> = std::iter::from_fn(|| load.take(3)).collect();
        assert_eq!(taken, [3, 3, 1]);
        load.stop();
        assert_eq!(Load::of(7).take(10), Some(7));
        assert_eq!(load.take(1), None);
    }
}
