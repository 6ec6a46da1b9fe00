//! An event that was in batches with others that took their processes down, while more of those keep coming.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::env::Clock;
use tidegate_queue::model::QueueModel;
use tidegate_queue::port::{QueueStatus, QueueStore};
use tidegate_queue::{Delivery, Dispatcher, DispatcherOptions, Handled, Queue, QueueEvent};
use tidegate_sim::{Node, Sim};

const INNOCENT: u64 = 0;

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Placed {
    n: u64,
}

impl QueueEvent for Placed {
    const TYPE: &'static str = "placed";
}

/// Who has died, by the number of its life.
#[derive(Default, Clone)]
struct Deaths {
    last: Arc<AtomicU64>,
    calls: Arc<Mutex<Vec<u64>>>,
}

async fn handle(n: u64, life: u64, deaths: Deaths, clock: Arc<dyn Clock>) -> Handled {
    deaths.calls.lock().unwrap().push(n);
    // The innocent one takes longer than it takes the others to end their process.
    let takes = if n == INNOCENT { 900 } else { 700 };
    clock.sleep(Duration::from_millis(takes)).await;
    if n != INNOCENT {
        deaths.last.store(life, Ordering::Relaxed);
        std::future::pending::<()>().await;
    }
    Handled::Success
}

fn start(node: &Node, life: u64, model: &QueueModel, deaths: &Deaths) {
    let env = node.env();
    let queue = Queue::on(Arc::new(model.clone()), &env).named(format!("life {life}"));
    let mut options = DispatcherOptions {
        lease: Duration::from_millis(300),
        poll_delay: Duration::from_millis(20),
        rescue_interval: Duration::from_millis(50),
        ..DispatcherOptions::default()
    };
    options.policy.retry.attempts = Some(2);
    let (deaths, clock) = (deaths.clone(), Arc::clone(&env.clock));
    let act = move |event: Delivery<Placed>| {
        handle(event.event.n, life, deaths.clone(), Arc::clone(&clock))
    };
    let builder = Dispatcher::builder(queue).options(options);
    let dispatcher = builder.register_fn("one", act).unwrap().build(&env);
    drop(node.start("dispatcher", async move {
        dispatcher.run(std::future::pending()).await;
    }));
}

#[test]
fn an_innocent_event_is_done_although_new_killers_keep_coming() {
    let mut sim = Sim::new(1);
    let (database, node) = (sim.node("database"), sim.node("one"));
    let model = QueueModel::new(database.env().clock);
    let queue = Queue::on(Arc::new(model.clone()), &database.env());
    let publish = |sim: &mut Sim, n| {
        let queue = queue.clone();
        sim.block_on(&database, async move { queue.publish(&Placed { n }).await })
            .unwrap();
    };
    publish(&mut sim, INNOCENT);
    let deaths = Deaths::default();
    for life in 1..=30_u64 {
        publish(&mut sim, life);
        start(&node, life, &model, &deaths);
        for _ in 0..1_000 {
            sim.run_for(Duration::from_millis(10));
            if deaths.last.load(Ordering::Relaxed) == life {
                break;
            }
        }
        assert_eq!(deaths.last.load(Ordering::Relaxed), life, "nobody died");
        sim.crash(&node);
        sim.restart(&node);
        sim.run_for(Duration::from_millis(400));
        let store = model.clone();
        let shown = sim.block_on(&database, async move { store.show(1).await });
        let shown = shown.unwrap().unwrap();
        if shown.finalized_ms.is_some() {
            assert_eq!(shown.status, QueueStatus::Completed, "{:?}", shown.errors);
            return;
        }
    }
    panic!("it starves: {:?}", deaths.calls.lock().unwrap());
}
