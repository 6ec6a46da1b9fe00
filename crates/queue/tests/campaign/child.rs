//! A dispatcher process: this very test program, started again with a role.
//!
//! `calm` on its standard input ends the storm; the end of the input stops it.

use std::io::Write as _;
use std::process::{Child, ChildStdin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tidegate_core::Backoff;
use tidegate_core::env::system::SystemClock;
use tidegate_core::env::{Clock, Env, Sleep};
use tidegate_queue::{
    Delivery, Dispatcher, DispatcherOptions, Handled, OnFatal, Projection, Projector,
    ProjectorOptions, Queue, QueueError, sql,
};
use tidegate_store::{Store, StoreError, StoreOptions, sqlx};
use tidegate_testkit::child::{self, say};
use tokio::sync::oneshot;

use crate::events::{Mood, Reporting, Shipped};
use crate::watched::Watched;

/// The lease of stormy processes.
pub(crate) const LEASE: Duration = Duration::from_millis(1_500);

const ROLE: &str = "TIDEGATE_CAMPAIGN_ROLE";
const URL: &str = "TIDEGATE_CAMPAIGN_URL";

/// The work of a child.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    /// Its name, in `locked_by` too. Each life has its own name.
    pub(crate) name: String,
    /// Its handlers of placed events.
    pub(crate) handlers: &'static str,
    /// Their behavior: `plain`, `slow` with milliseconds, or `stormy` with a seed.
    pub(crate) mood: String,
    /// Its lease.
    pub(crate) lease: Duration,
    /// By how much its clock is ahead.
    pub(crate) ahead: Duration,
}

impl Role {
    fn write(&self) -> String {
        let (lease, ahead) = (self.lease.as_millis(), self.ahead.as_millis());
        format!(
            "{};{};{};{lease};{ahead}",
            self.name, self.handlers, self.mood
        )
    }
}

/// A running child.
pub(crate) struct Process {
    pub(crate) role: Role,
    child: Child,
    input: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

/// Everything that children said, with who said it.
pub(crate) type Lines = Arc<Mutex<Vec<(String, String)>>>;

impl Process {
    /// Starts a child against the database at `url`.
    pub(crate) fn start(role: Role, url: &str, lines: &Lines) -> Self {
        let variables = [(ROLE, &*role.write()), (URL, url)];
        let variables = variables.map(|(name, value)| (name, value.as_ref()));
        let (mut child, said) = child::start(&variables).unwrap();
        let (name, lines) = (role.name.clone(), Arc::clone(lines));
        let reader = std::thread::spawn(move || {
            for line in said {
                lines.lock().unwrap().push((name.clone(), line));
            }
        });
        Self {
            role,
            input: child.stdin.take(),
            child,
            reader: Some(reader),
        }
    }

    /// Lets it stand still.
    pub(crate) fn pause(&self) {
        child::pause(&self.child).unwrap();
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        child::resume(&self.child).unwrap();
    }

    /// Ends the storm in it.
    pub(crate) fn calm(&mut self) {
        let input = self.input.as_mut().unwrap();
        input.write_all(b"calm\n").unwrap();
    }

    /// Kills it with -9.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Asks it to stop, and waits for its end.
    pub(crate) fn stop(mut self) {
        drop(self.input.take());
        let begin = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            let starvation = Duration::from_secs(60);
            assert!(begin.elapsed() < starvation, "{} stops", self.role.name);
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{} ended with {status}", self.role.name);
        self.reader.take().unwrap().join().unwrap();
    }

    /// Also of one that stands still; what it said before is read to the end.
    fn end(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A clock that is ahead of the machine's.
#[derive(Debug)]
struct Ahead(SystemClock, Duration);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        self.0.now() + self.1
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }
}

/// Not a test of its own: without a role it does nothing.
#[test]
fn child_process_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let url = std::env::var(URL).unwrap();
    let words: Vec<&str> = role.split(';').collect();
    let [name, handlers, mood, lease, ahead] = words[..] else {
        panic!("no role `{role}`");
    };
    let ms = |text: &str| Duration::from_millis(text.parse().unwrap());
    let is_calm = Arc::new(AtomicBool::new(false));
    let mood = match mood.split_once(' ') {
        None => Mood::Plain,
        Some(("slow", span)) => Mood::Slow(ms(span)),
        Some((_, seed)) => Mood::Stormy {
            seed: seed.parse().unwrap(),
            is_calm: Arc::clone(&is_calm),
        },
    };
    // Handlers that panic on purpose need not say where.
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or_default();
        if text != "handlers panic" {
            eprintln!("{info}");
        }
    }));
    let mut env = Env::system();
    env.clock = Arc::new(Ahead(SystemClock::new(), ms(ahead)));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let stop = listen(is_calm);
    runtime.block_on(live(name, handlers, &mood, ms(lease), &url, &env, stop));
}

/// Hears what the parent says; the receiver ends when the parent wants us to stop.
fn listen(is_calm: Arc<AtomicBool>) -> oneshot::Receiver<()> {
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.is_ok_and(|line| line == "calm") {
                is_calm.store(true, Ordering::Relaxed);
            }
        }
        stop.send(()).ok();
    });
    stopped
}

/// Works until it is killed or asked to stop.
async fn live(
    name: &str,
    handlers: &str,
    mood: &Mood,
    lease: Duration,
    url: &str,
    env: &Env,
    stop: oneshot::Receiver<()>,
) {
    let queue = open(name, url, env).await;
    let mut options = DispatcherOptions {
        poll_delay: Duration::from_millis(100),
        batch_size: 20,
        concurrency: 4,
        lease,
        handler_timeout: lease * 2,
        stop_timeout: Duration::from_secs(20),
        cleanup_interval: Duration::from_secs(1),
        ..DispatcherOptions::default()
    };
    options.policy.retry.backoff = Backoff::steps([Duration::from_millis(50)]).with_jitter(0.5);
    options.policy.on_fatal = OnFatal::AwaitOthers;
    let mut builder = Dispatcher::builder(queue.clone()).options(options);
    for id in handlers.split(',') {
        let handler = Reporting {
            id: id.to_owned(),
            mood: mood.clone(),
        };
        builder = builder.register(handler).unwrap();
    }
    let shipped = |_: Delivery<Shipped>| async { Handled::Success };
    let dispatcher = builder.register_fn("shipped", shipped).unwrap().build(env);
    let projector = Projector::new(
        &queue,
        vec![seen()],
        ProjectorOptions {
            poll_delay: Duration::from_millis(50),
            lease,
            ..ProjectorOptions::default()
        },
        env,
    );
    let (end, ended) = oneshot::channel::<()>();
    let projecting = tokio::spawn(projector.run(async { drop(ended.await) }));
    say("open");
    let report = dispatcher.run(async { drop(stop.await) }).await;
    drop(end);
    projecting.await.unwrap();
    say(&format!("stale {}", report.stale));
}

/// The queue, as soon as the database is there.
async fn open(name: &str, url: &str, env: &Env) -> Queue {
    loop {
        let opened = async {
            let store = Store::open(&options(url), env).await?;
            let store = sql::queue_store(store, env).await?;
            Ok::<_, QueueError>(Queue::on(Arc::new(Watched(store)), env).named(name))
        };
        match opened.await {
            Ok(queue) => return queue,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Limits that fit a short test.
pub(crate) fn options(url: &str) -> StoreOptions {
    let mut options = StoreOptions::new(url);
    options.timeout = Duration::from_secs(5);
    options.idle_transaction = Duration::from_secs(3);
    options
}

/// A read model of all completed events. Its table would take the same one twice.
fn seen() -> Projection {
    let failed = |error| -> tidegate_core::Failure {
        let code = tidegate_core::Code::from_static("test.seen");
        let error = StoreError::of("write a read model", error);
        tidegate_core::Failure::transient(code, error.to_string())
    };
    Projection::builder("seen")
        .table("seen")
        .batch_size(50)
        .apply(move |tx, target, events| {
            Box::pin(async move {
                let connection = tx.postgres().expect("it is PostgreSQL");
                let table = target.table("seen");
                let sql = format!(
                    "INSERT INTO {table} (position, id)
                     SELECT * FROM unnest($1::int8[], $2::int8[])"
                );
                let positions: Vec<i64> = events.iter().map(|event| event.position).collect();
                let ids: Vec<i64> = events.iter().map(|event| event.id).collect();
                let insert = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(positions)
                    .bind(ids);
                insert.execute(connection).await.map_err(failed)?;
                Ok(())
            })
        })
        .build()
        .unwrap()
}
