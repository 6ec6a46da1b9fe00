//! A dispatcher whose answers are lost and whose events wait for each other, step by step.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::{Backoff, Code, Failure};
use tidegate_queue::conformance::{LONG, World, completed, numbers};
use tidegate_queue::model::{CallFault, QueueModel};
use tidegate_queue::port::QueueStore;
use tidegate_queue::{
    Context, Delivery, Dispatcher, DispatcherOptions, Handled, Handler, Queue, QueueEvent,
};
use tidegate_sim::{Node, Sim};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize, Deserialize)]
struct Placed {
    key: Option<String>,
}

impl QueueEvent for Placed {
    const TYPE: &'static str = "placed";

    fn key(&self) -> Option<String> {
        self.key.clone()
    }
}

/// A handler whose result is recorded in a transaction of its own.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<Vec<i64>>>);

impl Handler<Placed> for Recorded {
    fn id(&self) -> &str {
        "recorded"
    }

    async fn handle(&self, event: &Delivery<Placed>, context: &mut Context) -> Handled {
        self.0.lock().unwrap().push(event.number);
        match context.once("done").await {
            Ok(_) => Handled::Success,
            Err(error) => error.into(),
        }
    }
}

struct Scene {
    sim: Sim,
    database: Node,
    worker: Node,
    model: QueueModel,
    called: Recorded,
}

impl Scene {
    fn new() -> Self {
        let mut sim = Sim::new(1);
        let database = sim.node("database");
        let worker = sim.node("worker");
        Self {
            model: QueueModel::new(database.env().clock),
            called: Recorded::default(),
            sim,
            database,
            worker,
        }
    }

    fn publish(&mut self, count: usize, key: Option<&str>) {
        let env = self.database.env();
        let queue = Queue::on(Arc::new(self.model.clone()), &env);
        let key = key.map(str::to_owned);
        self.sim.block_on(&self.database, async move {
            let placed = Placed { key };
            for _ in 0..count {
                queue.publish(&placed).await.unwrap();
            }
        });
    }

    fn start(&self, batch_size: u32) {
        let env = self.worker.env();
        let options = DispatcherOptions {
            batch_size,
            concurrency: 4,
            lease: LEASE,
            ..DispatcherOptions::default()
        };
        let queue = Queue::on(Arc::new(self.model.clone()), &env);
        let dispatcher = Dispatcher::builder(queue).options(options);
        let dispatcher = dispatcher
            .register(self.called.clone())
            .unwrap()
            .build(&env);
        let run = dispatcher.run(std::future::pending());
        let run = async move {
            run.await;
        };
        drop(self.worker.start("dispatcher", run));
    }

    fn delivered(&self) -> i64 {
        self.model.audit().books.account().delivered
    }

    #[track_caller]
    fn wait(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..600 {
            if is_so(self) {
                return;
            }
            self.sim.run_for(SECOND / 10);
        }
        panic!("{:?}", self.model.audit().books.account());
    }
}

/// The first `count` calls of `doing` happen, and nobody hears of it.
fn lose(model: &QueueModel, doing: &'static str, count: u32) {
    let left = AtomicU32::new(count);
    model.set_faults(move |call| {
        let is_it = call == doing;
        let take = |left: u32| left.checked_sub(1);
        if is_it
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
        {
            CallFault::LoseAnswer
        } else {
            CallFault::None
        }
    });
}

#[test]
fn an_event_whose_result_may_be_recorded_is_let_go_of() {
    let mut scene = Scene::new();
    lose(&scene.model, "record", 1);
    scene.publish(1, None);
    scene.start(10);
    scene.wait(|scene| scene.delivered() == 1);
    assert_eq!(
        scene.called.0.lock().unwrap().len(),
        1,
        "its success stood in the tables"
    );
}

#[test]
fn an_event_behind_one_whose_answer_was_lost_waits_for_it() {
    let mut scene = Scene::new();
    lose(&scene.model, "record", 1);
    scene.publish(2, Some("k"));
    scene.start(10);
    let parked = |scene: &Scene| scene.model.audit().books.account().parked;
    scene.wait(|scene| parked(scene) == 1);
    assert_eq!(*scene.called.0.lock().unwrap(), [1], "the second is parked");
    scene.wait(|scene| scene.delivered() == 2);
    assert_eq!(*scene.called.0.lock().unwrap(), [1, 2]);
    let model = scene.model.clone();
    let finalized = scene.sim.block_on(&scene.database, async move {
        model.sequence(10).await.unwrap();
        let page = model.read_log(0, 10).await.unwrap();
        page.events.iter().map(|event| event.id).collect::<Vec<_>>()
    });
    assert_eq!(finalized, [1, 2], "in the order of their key");
}

/// Two processes, and a handler that takes three leases: nobody else gets its event meanwhile.
#[test]
fn a_handler_that_outlasts_its_lease_is_called_once() {
    let mut scene = Scene::new();
    let other = scene.sim.node("other");
    let calls = Arc::new(AtomicU32::new(0));
    for node in [&scene.worker, &other] {
        let (env, seen) = (node.env(), Arc::clone(&calls));
        let clock = Arc::clone(&env.clock);
        let slow = move |_: Delivery<Placed>| {
            seen.fetch_add(1, Ordering::Relaxed);
            let clock = Arc::clone(&clock);
            async move {
                clock.sleep(LEASE * 3).await;
                Handled::Success
            }
        };
        let options = DispatcherOptions {
            lease: LEASE,
            ..DispatcherOptions::default()
        };
        let queue = Queue::on(Arc::new(scene.model.clone()), &env);
        let builder = Dispatcher::builder(queue).options(options);
        let dispatcher = builder.register_fn("slow", slow).unwrap().build(&env);
        drop(node.start("dispatcher", async move {
            dispatcher.run(std::future::pending()).await;
        }));
    }
    scene.publish(3, None);
    scene.wait(|scene| scene.delivered() == 3);
    assert_eq!(calls.load(Ordering::Relaxed), 3, "each of them once");
}

#[test]
fn events_that_are_let_go_of_make_room_for_others() {
    let mut scene = Scene::new();
    lose(&scene.model, "record", 2);
    scene.publish(2, None);
    scene.start(1);
    scene.publish(5, None);
    scene.wait(|scene| scene.delivered() == 7);
}

#[test]
fn after_a_lost_settle_an_event_that_was_let_go_of_is_not_held_on_to() {
    let mut scene = Scene::new();
    let (records, settles) = (AtomicU32::new(0), AtomicU32::new(0));
    scene.model.set_faults(move |call| {
        let is_first = |count: &AtomicU32| count.fetch_add(1, Ordering::Relaxed) == 0;
        let is_lost = match call {
            "record" => is_first(&records),
            "settle" => is_first(&settles),
            _ => false,
        };
        if is_lost {
            CallFault::LoseAnswer
        } else {
            CallFault::None
        }
    });
    scene.publish(2, None);
    scene.start(10);
    scene.wait(|scene| scene.delivered() == 2);
}

/// A dispatcher that looks for work only when it is told to.
fn start_patient(node: &Node, model: &QueueModel, id: &str, failures: u32) {
    let env = node.env();
    let mut options = DispatcherOptions {
        poll_delay: SECOND * 20,
        ..DispatcherOptions::default()
    };
    options.policy.retry.backoff = Backoff::steps([SECOND]);
    let left = AtomicU32::new(failures);
    let handler = move |_: Delivery<Placed>| {
        let take = |left: u32| left.checked_sub(1);
        let fails = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        async move {
            match fails {
                Ok(_) => Failure::transient(Code::from_static("test.broken"), "not yet").into(),
                Err(_) => Handled::Success,
            }
        }
    };
    let queue = Queue::on(Arc::new(model.clone()), &env);
    let builder = Dispatcher::builder(queue).options(options);
    let dispatcher = builder.register_fn(id, handler).unwrap().build(&env);
    drop(node.start("dispatcher", async move {
        dispatcher.run(std::future::pending()).await;
    }));
}

#[test]
fn events_behind_one_that_failed_do_not_wait_for_polls() {
    let mut scene = Scene::new();
    scene.publish(30, Some("k"));
    start_patient(&scene.worker, &scene.model, "one", 1);
    // The retry is found by polling; those behind it follow at once.
    scene.sim.run_for(SECOND * 50);
    assert_eq!(scene.delivered(), 30);
}

#[test]
fn events_that_are_left_to_another_process_do_not_wait_for_polls() {
    let mut scene = Scene::new();
    let other = scene.sim.node("other");
    start_patient(&scene.worker, &scene.model, "one", 0);
    start_patient(&other, &scene.model, "two", 0);
    scene.sim.run_for(SECOND);
    scene.publish(5, None);
    scene.sim.run_for(SECOND * 2);
    assert_eq!(scene.delivered(), 5);
}

#[test]
fn q07_a_lost_answer_is_no_right_to_a_batch_that_somebody_took_over() {
    let mut scene = Scene::new();
    // From the first settle on the worker's calls never arrive, until the batch is somebody else's.
    let is_cut = Arc::new(AtomicBool::new(false));
    let is_other = Arc::new(AtomicBool::new(false));
    let (cut, other) = (Arc::clone(&is_cut), Arc::clone(&is_other));
    let reopens = AtomicU32::new(0);
    scene.model.set_faults(move |call| {
        if other.load(Ordering::Relaxed) {
            return CallFault::None;
        }
        if call == "settle" {
            cut.store(true, Ordering::Relaxed);
        }
        match call {
            "settle" => CallFault::Hang,
            "reopen" if reopens.fetch_add(1, Ordering::Relaxed) == 0 => CallFault::Hang,
            "claim" | "renew" if cut.load(Ordering::Relaxed) => CallFault::Refuse,
            _ => CallFault::None,
        }
    });
    scene.publish(3, None);
    scene.start(10);
    scene.wait(|_| is_cut.load(Ordering::Relaxed));
    scene.sim.run_for(LEASE * 2);
    let world = World::new(Arc::new(scene.model.clone()));
    is_other.store(true, Ordering::Relaxed);
    let claim = async move { world.claim(10, LONG * 10).await };
    let claimed = scene.sim.block_on(&scene.database, claim);
    assert_eq!(numbers(&claimed).len(), 3);
    is_other.store(false, Ordering::Relaxed);
    scene.sim.run_for(SECOND * 60);
    is_other.store(true, Ordering::Relaxed);
    scene.sim.run_for(SECOND * 20);
    assert_eq!(scene.delivered(), 0, "whoever took it over has not settled");
    let world = World::new(Arc::new(scene.model.clone()));
    let settle = async move { world.settle(&claimed, &completed()).await };
    let stale = scene.sim.block_on(&scene.database, settle);
    assert_eq!(stale, [0_i64; 0]);
    assert_eq!(scene.delivered(), 3);
}
