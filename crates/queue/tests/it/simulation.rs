//! Dispatchers under everything at once: they crash between any two calls, calls are refused, hang or
//! lose their answer, clocks jump, and handlers fail, panic and hang.
//!
//! Safety is checked all the time: the books agree with the tables, and nothing is in a batch that is
//! gone. At the end the faults stop, and liveness is checked:
//!
//! - Every event is finalized.
//! - Every handler of a completed event has succeeded.
//! - Effects of handlers through their context happened once.
//! - Keys are in order.
//! - The projection applied every completed event exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_core::{Backoff, Code, Failure};
use tidegate_queue::model::{CallFault, QueueModel};
use tidegate_queue::port::{EventFilter, QueueStatus, QueueStore};
use tidegate_queue::{
    Context, Delivery, Dispatcher, DispatcherOptions, Handled, Handler, Projection, Projector,
    ProjectorOptions, Queue, QueueEvent,
};
use tidegate_sim::{Node, Sim, is_long, seeds};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Placed {
    n: u64,
    key: Option<String>,
}

impl QueueEvent for Placed {
    const TYPE: &'static str = "placed";

    fn key(&self) -> Option<String> {
        self.key.clone()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Shipped {
    n: u64,
}

impl QueueEvent for Shipped {
    const TYPE: &'static str = "shipped";
}

/// The history, kept outside of the nodes.
#[derive(Default, Clone)]
struct Witness {
    published: Arc<Mutex<BTreeSet<u64>>>,
    /// Those that were not published in a transaction that stayed open for a while.
    at_once: Arc<Mutex<BTreeSet<u64>>>,
    /// Successful calls, in their order.
    handled: Arc<Mutex<Vec<(&'static str, u64)>>>,
    is_calm: Arc<AtomicBool>,
    random: Arc<Mutex<Option<Stream>>>,
}

impl Witness {
    fn draw(&self, bound: u64) -> u64 {
        let mut random = self.random.lock().unwrap();
        let stream: &mut dyn Entropy = random.as_mut().unwrap();
        stream.below(bound)
    }

    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }
}

fn failure(text: &str) -> Failure {
    Failure::transient(Code::from_static("test.broken"), text)
}

/// A handler that fails in every way while the storm lasts, and ships what it is given.
struct Stormy {
    id: &'static str,
    witness: Witness,
    env: Env,
}

impl Handler<Placed> for Stormy {
    fn id(&self) -> &str {
        self.id
    }

    async fn handle(&self, event: &Delivery<Placed>, context: &mut Context) -> Handled {
        let n = event.event.n;
        let roll = if self.witness.is_calm() {
            99
        } else {
            self.witness.draw(100)
        };
        match roll {
            0..15 => return Handled::TransientError(failure("not yet")),
            15..20 => panic!("handlers panic"),
            20..24 => std::future::pending().await,
            24..40 => {
                let ms = self.witness.draw(4_000);
                self.env.clock.sleep(Duration::from_millis(ms)).await;
            }
            _ => {}
        }
        // Every seventeenth is hopeless for one of the handlers.
        if n % 17 == 16 && self.id == "one" {
            let code = Code::from_static("test.fatal");
            return Handled::UnrecoverableError(Failure::permanent(code, "never"));
        }
        if self.id == "two" && n.is_multiple_of(3) {
            match context.once("ship").await {
                Ok(true) => {}
                Ok(false) => return Handled::Success,
                Err(error) => return error.into(),
            }
            if let Err(error) = context.publish(&Shipped { n }) {
                return error.into();
            }
        }
        self.witness.handled.lock().unwrap().push((self.id, n));
        Handled::Success
    }
}

fn options() -> DispatcherOptions {
    let mut options = DispatcherOptions {
        poll_delay: Duration::from_millis(100),
        batch_size: 8,
        concurrency: 3,
        lease: Duration::from_secs(3),
        handler_timeout: Duration::from_secs(2),
        stop_timeout: Duration::from_secs(4),
        cleanup_interval: Duration::from_secs(7),
        ..DispatcherOptions::default()
    };
    options.policy.retry.backoff = Backoff::steps([Duration::from_millis(300)]).with_jitter(0.1);
    options.policy.on_fatal = tidegate_queue::OnFatal::AwaitOthers;
    options
}

fn counting() -> Projection {
    Projection::builder("counting")
        .table("seen")
        .batch_size(5)
        .apply(|tx, target, events| {
            Box::pin(async move {
                let table = target.table("seen");
                let tx = tx.model().ok_or_else(|| failure("not a model"))?;
                for event in events {
                    let key = event.id.to_string();
                    let times = tx.get(&table, &key).and_then(|t| t.parse::<u32>().ok());
                    tx.put(&table, &key, (times.unwrap_or(0) + 1).to_string());
                }
                Ok(())
            })
        })
        .build()
        .unwrap()
}

/// Starts a dispatcher and a projector in a node's present life.
fn start(
    node: &Node,
    model: &QueueModel,
    witness: &Witness,
    handlers: &[&'static str],
    stop: Duration,
) {
    let env = node.env();
    let queue = Queue::on(Arc::new(model.clone()), &env);
    let mut builder = Dispatcher::builder(queue.clone()).options(options());
    for id in handlers {
        let handler = Stormy {
            id,
            witness: witness.clone(),
            env: env.fork(id),
        };
        builder = builder.register(handler).unwrap();
    }
    let shipped = |_: Delivery<Shipped>| async { Handled::Success };
    let dispatcher = builder.register_fn("shipped", shipped).unwrap().build(&env);
    let clock = Arc::clone(&env.clock);
    drop(node.start("dispatcher", async move {
        dispatcher.run(async move { clock.sleep(stop).await }).await;
    }));
    let options = ProjectorOptions {
        poll_delay: Duration::from_millis(150),
        lease: Duration::from_secs(2),
        ..ProjectorOptions::default()
    };
    let projector = Projector::new(&queue, vec![counting()], options, &env);
    drop(node.start("projector", projector.run(std::future::pending())));
}

/// Publishes until the storm is over; in transactions of its own, late or not at all, too.
async fn publish(queue: Queue, env: Env, witness: Witness) {
    let mut random = env.entropy.fork("publisher");
    for n in 0_u64.. {
        env.clock
            .sleep(Duration::from_millis(random.below(300)))
            .await;
        if witness.is_calm() {
            return;
        }
        let key = (random.below(3) == 0).then(|| format!("k{}", random.below(3)));
        let event = Placed { n, key };
        if random.below(4) > 0 {
            witness.at_once.lock().unwrap().insert(n);
            if queue.publish(&event).await.is_ok() {
                witness.published.lock().unwrap().insert(n);
            }
            continue;
        }
        let Ok(mut tx) = queue.begin().await else {
            continue;
        };
        if queue.publish_in(&mut tx, &event).await.is_err() {
            continue;
        }
        env.clock
            .sleep(Duration::from_millis(random.below(2_000)))
            .await;
        if random.below(3) > 0 && tx.commit().await.is_ok() {
            witness.published.lock().unwrap().insert(n);
        }
    }
}

fn storm(model: &QueueModel, witness: &Witness, seed: u64) {
    let mut random = Stream::new(seed).stream("faults");
    let is_calm = Arc::clone(&witness.is_calm);
    model.set_faults(move |_| {
        let random: &mut dyn Entropy = &mut random;
        if is_calm.load(Ordering::Relaxed) {
            return CallFault::None;
        }
        match random.below(100) {
            0..4 => CallFault::Refuse,
            4..8 => CallFault::LoseAnswer,
            8 => CallFault::Hang,
            9..40 => CallFault::Delay(Duration::from_millis(random.below(60))),
            _ => CallFault::None,
        }
    });
}

fn check(model: &QueueModel, sim: &Sim) {
    let problems = model.problems();
    assert!(problems.is_empty(), "at {:?}: {problems:?}", sim.now());
}

fn simulate(seed: u64) {
    let mut sim = Sim::new(seed);
    let mut script = sim.entropy("script");
    let database = sim.node("database");
    let model = QueueModel::new(database.env().clock);
    let witness = Witness::default();
    *witness.random.lock().unwrap() = Some(sim.entropy("handlers"));
    // Both handlers are known from the first event on: one that registers later misses what was
    // finalized before.
    let known = model.clone();
    sim.block_on(&database, async move {
        let both = ["one", "two"].map(|id| (Placed::TYPE.to_owned(), id.to_owned()));
        known.register(&both).await.unwrap();
    });
    storm(&model, &witness, seed);
    let publisher = sim.node("publisher");
    let env = publisher.env();
    let queue = Queue::on(Arc::new(model.clone()), &env);
    drop(publisher.start("publisher", publish(queue, env, witness.clone())));
    // The third has another set of handlers, so that events are shared between processes.
    let sets: [&[&'static str]; 3] = [&["one", "two"], &["one", "two"], &["two"]];
    let nodes: Vec<Node> = (0..3).map(|n| sim.node(&format!("worker {n}"))).collect();
    for (node, handlers) in nodes.iter().zip(sets) {
        start(node, &model, &witness, handlers, Duration::MAX / 4);
    }
    for _ in 0..40 {
        let script: &mut dyn Entropy = &mut script;
        sim.run_for(Duration::from_millis(script.below(2_000)));
        check(&model, &sim);
        let which = usize::try_from(script.below(3)).unwrap();
        let node = &nodes[which];
        match script.below(5) {
            // A crash, between whatever two calls it was at.
            0 | 1 => {
                sim.crash(node);
                check(&model, &sim);
                sim.run_for(Duration::from_millis(script.below(3_000)));
                sim.restart(node);
                let stop = Duration::from_millis(2_000 + script.below(60_000));
                start(node, &model, &witness, sets[which], stop);
            }
            // A clock that jumps by up to ten minutes, in either direction.
            2 => node.set_clock_offset_ms(script.below(1_200_000) as i64 - 600_000),
            _ => {}
        }
    }
    // The storm is over: fresh processes finish the rest. Some of the old ones live on beside them,
    // so that whatever they forgot to let go of would stay.
    witness.is_calm.store(true, Ordering::Relaxed);
    for (node, handlers) in nodes.iter().zip(sets) {
        let script: &mut dyn Entropy = &mut script;
        if script.below(2) == 0 {
            sim.crash(node);
            sim.restart(node);
        }
        node.set_clock_offset_ms(0);
        start(node, &model, &witness, handlers, Duration::MAX / 4);
    }
    let is_done = || {
        let account = sim_account(&model);
        account == 0
    };
    assert!(
        sim.run_until(SECOND * 300, is_done),
        "{:?}",
        model.audit().books.account()
    );
    sim.run_for(SECOND * 10);
    check(&model, &sim);
    let listed = sim.block_on(&database, list(model.clone()));
    verify(&model, &witness, &listed);
}

/// How many events are not finalized.
fn sim_account(model: &QueueModel) -> i64 {
    let account = model.audit().books.account();
    account.accepted - account.delivered - account.dead_lettered
}

type Ended = (i64, String, String, QueueStatus);

async fn list(model: QueueModel) -> Vec<Ended> {
    let mut all = Vec::new();
    for status in [QueueStatus::Completed, QueueStatus::CompletedWithErrors] {
        let filter = EventFilter {
            status: Some(status),
            type_name: None,
            after: 0,
            limit: u32::MAX,
        };
        for one in model.list(&filter).await.unwrap() {
            all.push((one.id, one.type_name, one.payload.get().to_owned(), status));
        }
    }
    all.sort_by_key(|one| one.0);
    all
}

fn verify(model: &QueueModel, witness: &Witness, listed: &[Ended]) {
    let handled = witness.handled.lock().unwrap().clone();
    let mut placed: BTreeMap<u64, (Placed, QueueStatus)> = BTreeMap::new();
    let mut shipped: BTreeMap<u64, u32> = BTreeMap::new();
    for (id, type_name, payload, status) in listed {
        let expect = (*status == QueueStatus::Completed).then(|| "1".to_owned());
        assert_eq!(
            model.value("seen", &id.to_string()),
            expect,
            "projection of {id}"
        );
        if type_name == Shipped::TYPE {
            let event: Shipped = serde_json::from_str(payload).unwrap();
            *shipped.entry(event.n).or_default() += 1;
        } else {
            let event: Placed = serde_json::from_str(payload).unwrap();
            placed.insert(event.n, (event, *status));
        }
    }
    for n in witness.published.lock().unwrap().iter() {
        assert!(
            placed.contains_key(n),
            "event {n} was published and is gone"
        );
    }
    for (n, (_, status)) in &placed {
        let is_fatal = n % 17 == 16;
        assert_eq!(
            *status == QueueStatus::CompletedWithErrors,
            is_fatal,
            "event {n}"
        );
        let has = |id: &str| {
            handled
                .iter()
                .any(|(handler, of)| *handler == id && of == n)
        };
        assert!(
            is_fatal || has("one"),
            "handler one never succeeded for {n}"
        );
        assert!(has("two"), "handler two never succeeded for {n}");
        let expect = u32::from(n.is_multiple_of(3));
        assert_eq!(
            shipped.get(n).copied().unwrap_or(0),
            expect,
            "follow-ups of {n}"
        );
    }
    // Events of one key, by the first success of each handler. Those whose transaction committed late
    // have a lower number than what was there before them, and are left out.
    let at_once = witness.at_once.lock().unwrap().clone();
    for id in ["one", "two"] {
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for (_, n) in handled
            .iter()
            .filter(|(handler, n)| *handler == id && at_once.contains(n))
        {
            let key = placed.get(n).and_then(|(event, _)| event.key.as_deref());
            if let (Some(key), true) = (key, seen.insert(*n)) {
                let before = last.insert(key, *n);
                assert!(
                    before.is_none_or(|before| before < *n),
                    "{key}: {n} after {before:?}"
                );
            }
        }
    }
}

#[test]
fn a08_dispatchers_survive_everything() {
    seeds!(if is_long() { 3_000 } else { 50 }, simulate);
}

#[test]
fn one_seed_gives_one_trace() {
    let trace = |seed| {
        let mut sim = Sim::new(seed);
        let database = sim.node("database");
        let model = QueueModel::new(database.env().clock);
        let witness = Witness::default();
        *witness.random.lock().unwrap() = Some(sim.entropy("handlers"));
        storm(&model, &witness, seed);
        let node = sim.node("worker");
        start(&node, &model, &witness, &["one", "two"], SECOND * 20);
        let env = node.env();
        let queue = Queue::on(Arc::new(model.clone()), &env);
        drop(node.start("publisher", publish(queue, env, witness.clone())));
        sim.run_for(SECOND * 30);
        sim.trace().hash()
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}
