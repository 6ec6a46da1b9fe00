//! Events that take down whatever process handles them, among many that do not, while calls are refused
//! or lose their answer and handlers register late.
//!
//! At the end every event is finalized: those that kill with `queue.abandoned`, where attempts are limited,
//! and all others completed by every handler that was registered before they were. Nobody is given up on
//! for having been near.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Backoff;
use tidegate_core::env::{Entropy, Stream};
use tidegate_queue::model::{CallFault, QueueModel};
use tidegate_queue::port::{EventFilter, ListedEvent, QueueStatus, QueueStore};
use tidegate_queue::{
    Delivery, Dispatcher, DispatcherOptions, Handled, NewEvent, Queue, QueueEvent,
};
use tidegate_sim::{Node, Sim, is_long, seeds};

const EVENTS: u64 = 40;
const PROCESSES: usize = 3;

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

/// The history, kept outside of the processes.
#[derive(Clone, Default)]
struct Witness {
    /// Which processes are dead and were not taken away yet.
    dead: Arc<Mutex<BTreeSet<usize>>>,
    /// Which events kill.
    killers: Arc<Mutex<BTreeSet<u64>>>,
    handled: Arc<Mutex<BTreeSet<(&'static str, u64)>>>,
    deaths: Arc<Mutex<BTreeMap<u64, u32>>>,
}

fn options(attempts: Option<u32>) -> DispatcherOptions {
    let mut options = DispatcherOptions {
        poll_delay: Duration::from_millis(100),
        batch_size: 8,
        concurrency: 3,
        lease: Duration::from_secs(2),
        handler_timeout: Duration::from_secs(600),
        ..DispatcherOptions::default()
    };
    options.policy.retry.attempts = attempts;
    options.policy.retry.backoff = Backoff::steps([Duration::from_millis(300)]);
    options
}

fn start(
    node: &Node,
    number: usize,
    model: &QueueModel,
    witness: &Witness,
    handlers: &[&'static str],
    attempts: Option<u32>,
) {
    let env = node.env();
    let queue = Queue::on(Arc::new(model.clone()), &env).named(format!("process {number}"));
    let mut builder = Dispatcher::builder(queue).options(options(attempts));
    for id in handlers {
        let (witness, id, clock) = (witness.clone(), *id, Arc::clone(&env.clock));
        let act = move |event: Delivery<Placed>| {
            let (witness, clock, n) = (witness.clone(), Arc::clone(&clock), event.event.n);
            async move {
                clock.sleep(Duration::from_millis(n * 37 % 400)).await;
                if witness.dead.lock().unwrap().contains(&number) {
                    return std::future::pending().await;
                }
                if id == "one" && witness.killers.lock().unwrap().contains(&n) {
                    witness.dead.lock().unwrap().insert(number);
                    *witness.deaths.lock().unwrap().entry(n).or_default() += 1;
                    return std::future::pending().await;
                }
                witness.handled.lock().unwrap().insert((id, n));
                Handled::Success
            }
        };
        builder = builder.register_fn(id, act).unwrap();
    }
    let dispatcher = builder.build(&env);
    drop(node.start("dispatcher", async move {
        dispatcher.run(std::future::pending()).await;
    }));
}

fn simulate(seed: u64) {
    let mut sim = Sim::new(seed);
    let mut script = sim.entropy("script");
    let script: &mut dyn Entropy = &mut script;
    let database = sim.node("database");
    let model = QueueModel::new(database.env().clock);
    let witness = Witness::default();
    let attempts = Some(1 + u32::try_from(script.below(4)).unwrap());
    for _ in 0..=script.below(3) {
        witness.killers.lock().unwrap().insert(script.below(EVENTS));
    }
    let is_calm = Arc::new(AtomicBool::new(false));
    let mut random = Stream::new(seed).stream("faults");
    let calm = Arc::clone(&is_calm);
    model.set_faults(move |doing| {
        let random: &mut dyn Entropy = &mut random;
        match random.below(100) {
            _ if calm.load(Ordering::Relaxed) => CallFault::None,
            0..3 => CallFault::Refuse,
            // Those of the claim above all: nobody has heard of what was claimed then.
            3..8 if doing == "claim" => CallFault::LoseAnswer,
            8..20 => CallFault::Delay(Duration::from_millis(random.below(60))),
            _ => CallFault::None,
        }
    });
    let known = model.clone();
    let queue = Queue::on(Arc::new(model.clone()), &database.env());
    sim.block_on(&database, async move {
        let one = [(Placed::TYPE.to_owned(), "one".to_owned())];
        while known.register(&one).await.is_err() {}
        for n in 0..EVENTS {
            let key = (n % 5 == 0).then(|| "k".to_owned());
            let event = Placed { n, key };
            while queue.publish(&event).await.is_err() {}
        }
    });
    let nodes: Vec<Node> = (0..PROCESSES)
        .map(|n| sim.node(&format!("process {n}")))
        .collect();
    let mut sets: Vec<&[&'static str]> = vec![&["one"]; PROCESSES];
    for (number, node) in nodes.iter().enumerate() {
        start(node, number, &model, &witness, sets[number], attempts);
    }
    let late_at = script.below(200);
    let mut before = None;
    for round in 0..60_000_u64 {
        sim.run_for(Duration::from_millis(20));
        let dead = std::mem::take(&mut *witness.dead.lock().unwrap());
        for number in dead {
            sim.crash(&nodes[number]);
            sim.restart(&nodes[number]);
            start(
                &nodes[number],
                number,
                &model,
                &witness,
                sets[number],
                attempts,
            );
        }
        if round == late_at {
            // Somebody else registers; what is finalized before that it does not get.
            let late = model.clone();
            sim.block_on(&database, async move {
                let late_one = [(Placed::TYPE.to_owned(), "late".to_owned())];
                while late.register(&late_one).await.is_err() {}
            });
            let ended = sim.block_on(&database, list(model.clone()));
            before = Some(ended.iter().map(|one| one.id).collect::<BTreeSet<i64>>());
            sets[0] = &["one", "late"];
            sim.crash(&nodes[0]);
            sim.restart(&nodes[0]);
            start(&nodes[0], 0, &model, &witness, sets[0], attempts);
        }
        is_calm.store(round > 2_000, Ordering::Relaxed);
        let problems = model.problems();
        assert!(problems.is_empty(), "at {:?}: {problems:?}", sim.now());
        let account = model.audit().books.account();
        let left = account.accepted - account.delivered - account.dead_lettered;
        if left == 0 && round > late_at {
            break;
        }
    }
    let ended = sim.block_on(&database, list(model.clone()));
    verify(&witness, &ended, &before.unwrap(), attempts);
}

fn verify(witness: &Witness, ended: &[ListedEvent], before: &BTreeSet<i64>, attempts: Option<u32>) {
    let killers = witness.killers.lock().unwrap().clone();
    let handled = witness.handled.lock().unwrap().clone();
    let deaths = witness.deaths.lock().unwrap().clone();
    let mut seen = BTreeSet::new();
    for one in ended {
        let event: Placed = serde_json::from_str(one.payload.get()).unwrap();
        let n = event.n;
        seen.insert(n);
        if killers.contains(&n) {
            assert_eq!(one.status, QueueStatus::CompletedWithErrors, "event {n}");
            let text = one.errors[0].error.clone().unwrap();
            assert!(text.starts_with("queue.abandoned: "), "{text}");
            // A poison event that nobody suspects yet may take down the process of one that is suspected. That
            // death counts for both, so not each of them is the event's own.
            let own = deaths.get(&n).copied().unwrap_or(0);
            let all: u32 = deaths.values().sum();
            let alone = attempts.unwrap_or(u32::MAX).max(2);
            assert!(own >= 1, "{n} is given up on and killed nobody");
            assert!(all >= alone, "{n} is given up on after {all} deaths");
            continue;
        }
        assert_eq!(
            one.status,
            QueueStatus::Completed,
            "event {n}: {:?}",
            one.errors
        );
        assert!(handled.contains(&("one", n)), "event {n}");
        let is_late = before.contains(&one.id) || handled.contains(&("late", n));
        assert!(is_late, "event {n} was finalized without the late one");
    }
    assert_eq!(seen.len() as u64, EVENTS, "not all are finalized: {seen:?}");
}

async fn list(model: QueueModel) -> Vec<ListedEvent> {
    let mut all = Vec::new();
    for status in [QueueStatus::Completed, QueueStatus::CompletedWithErrors] {
        let filter = EventFilter {
            status: Some(status),
            type_name: None,
            after: 0,
            limit: u32::MAX,
        };
        loop {
            if let Ok(listed) = model.list(&filter).await {
                all.extend(listed);
                break;
            }
        }
    }
    all
}

#[test]
fn a08_events_that_kill_their_process_are_ended_and_nobody_else() {
    seeds!(if is_long() { 1_000 } else { 20 }, simulate);
}

/// The lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_line_about_a_poison_event_names_its_trace() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let mut sim = Sim::new(1);
    let (database, process) = (sim.node("database"), sim.node("process"));
    let model = QueueModel::new(database.env().clock);
    let queue = Queue::on(Arc::new(model.clone()), &database.env());
    let known = model.clone();
    sim.block_on(&database, async move {
        let one = [(Placed::TYPE.to_owned(), "one".to_owned())];
        known.register(&one).await.unwrap();
        let event =
            NewEvent::raw(queue.ids().mint(), Placed::TYPE, r#"{"n":0,"key":null}"#).unwrap();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let event = event.with_header("traceparent", parent);
        known.publish(&[event]).await.unwrap();
    });
    let witness = Witness::default();
    witness.killers.lock().unwrap().insert(0);
    for _ in 0..20 {
        start(&process, 0, &model, &witness, &["one"], Some(2));
        // Past the lease of whoever died before.
        sim.run_for(Duration::from_secs(5));
        if model.audit().books.account().dead_lettered == 1 {
            break;
        }
        witness.dead.lock().unwrap().clear();
        sim.crash(&process);
        sim.restart(&process);
    }
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("poison event; its handler"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains("trace_id=4bf92f3577b34da6a3ce929d0e0e4736"),
        "{line}"
    );
}
