//! Projections that are slow, hang or panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::env::Clock;
use tidegate_queue::model::QueueModel;
use tidegate_queue::port::QueueStore;
use tidegate_queue::{NewEvent, Projection, Projector, ProjectorOptions, Queue};
use tidegate_sim::{Node, Sim};

const SECOND: Duration = Duration::from_secs(1);

/// The first call of a projection; afterwards it is plain.
#[derive(Clone, Copy)]
enum First {
    Plain,
    Takes(Duration),
    Panics,
    /// It hangs, and panics when it is cut.
    PanicsWhenCut,
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("not to be dropped");
    }
}

/// Calls of one function of a projection, over all processes.
#[derive(Clone)]
struct Calls {
    first: First,
    count: Arc<AtomicU32>,
}

impl Calls {
    fn new(first: First) -> Self {
        let count = Arc::new(AtomicU32::new(0));
        Self { first, count }
    }

    fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    async fn call(self, clock: Arc<dyn Clock>) {
        if self.count.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        match self.first {
            First::Plain => {}
            First::Takes(span) => clock.sleep(span).await,
            First::Panics => panic!("not this one"),
            First::PanicsWhenCut => {
                let _held = PanicsWhenDropped;
                clock.sleep(SECOND * 10_000).await;
            }
        }
    }
}

/// A projection by what making its tables and applying events does at first.
#[derive(Clone)]
struct Script {
    name: &'static str,
    create: Calls,
    apply: Calls,
}

impl Script {
    fn new(name: &'static str, create: First, apply: First) -> Self {
        Self {
            name,
            create: Calls::new(create),
            apply: Calls::new(apply),
        }
    }

    fn projection(&self, clock: &Arc<dyn Clock>) -> Projection {
        let (create, apply) = (self.create.clone(), self.apply.clone());
        let (first, second) = (Arc::clone(clock), Arc::clone(clock));
        let projection = Projection::builder(self.name)
            .timeout(SECOND * 60)
            .create(move |_, _| {
                let calling = create.clone().call(Arc::clone(&first));
                Box::pin(async move {
                    calling.await;
                    Ok(())
                })
            })
            .apply(move |_, _, _| {
                let calling = apply.clone().call(Arc::clone(&second));
                Box::pin(async move {
                    calling.await;
                    Ok(())
                })
            })
            .build();
        projection.unwrap()
    }
}

fn start(node: &Node, model: &QueueModel, scripts: &[Script]) {
    let env = node.env();
    let projections = scripts.iter().map(|script| script.projection(&env.clock));
    let queue = Queue::on(Arc::new(model.clone()), &env);
    let options = ProjectorOptions::default();
    let projector = Projector::new(&queue, projections.collect(), options, &env);
    drop(node.start("projector", projector.run(std::future::pending())));
}

/// Publishes three events and finalizes them.
fn finalize_three(sim: &mut Sim, database: &Node, model: &QueueModel) {
    let queue = Queue::on(Arc::new(model.clone()), &database.env());
    sim.block_on(database, async move {
        let event = || NewEvent::raw(queue.ids().mint(), "a", "{}").unwrap();
        queue
            .publish_all(&[event(), event(), event()])
            .await
            .unwrap();
        for event in queue.poll_batch(3).await.unwrap() {
            assert!(queue.finalize(&event, Vec::new()).await.unwrap());
        }
    });
}

fn position(sim: &mut Sim, database: &Node, model: &QueueModel, name: &'static str) -> i64 {
    let model = model.clone();
    sim.block_on(database, async move { model.projection(name).await })
        .unwrap()
}

/// How far two processes come with three events, and with how many calls of each function.
fn run(create: First, apply: First, span: Duration) -> (i64, u32, u32) {
    run_in(&["one", "two"], create, apply, span)
}

/// The same for these processes.
fn run_in(processes: &[&str], create: First, apply: First, span: Duration) -> (i64, u32, u32) {
    let mut sim = Sim::new(1);
    let database = sim.node("database");
    let model = QueueModel::new(database.env().clock);
    finalize_three(&mut sim, &database, &model);
    let script = Script::new("slow", create, apply);
    for process in processes {
        let node = sim.node(process);
        start(&node, &model, std::slice::from_ref(&script));
    }
    sim.run_for(span);
    let position = position(&mut sim, &database, &model, "slow");
    (position, script.create.count(), script.apply.count())
}

#[test]
fn q20_a_batch_that_takes_longer_than_a_lease_stays_with_its_owner() {
    // The lease is ten seconds.
    let slow = First::Takes(SECOND * 45);
    assert_eq!(run(First::Plain, slow, SECOND * 50), (3, 1, 1));
}

#[test]
fn a_batch_that_hangs_is_cut_at_its_limit_and_tried_again() {
    let hangs = First::Takes(SECOND * 10_000);
    assert_eq!(run(First::Plain, hangs, SECOND * 75), (3, 1, 2));
}

#[test]
fn a_projection_that_panics_is_tried_again() {
    assert_eq!(run(First::Plain, First::Panics, SECOND * 20), (3, 1, 2));
}

#[test]
fn a_projection_that_panics_when_it_is_cut_is_tried_again() {
    // Its leadership is asked for anew, and its tables with it.
    let (position, _, applied) = run(First::Plain, First::PanicsWhenCut, SECOND * 75);
    assert_eq!((position, applied), (3, 2));
}

#[test]
fn tables_that_take_longer_than_a_lease_are_made_by_their_owner() {
    let slow = First::Takes(SECOND * 45);
    assert_eq!(run(slow, First::Plain, SECOND * 50), (3, 1, 1));
}

#[test]
fn tables_whose_making_hangs_are_tried_again() {
    // In a process alone: another one would take over.
    let hangs = First::Takes(SECOND * 10_000);
    let ran = run_in(&["one"], hangs, First::Plain, SECOND * 75);
    assert_eq!(ran, (3, 2, 1));
}

#[test]
fn tables_whose_making_panics_are_tried_again() {
    assert_eq!(run(First::Panics, First::Plain, SECOND * 20), (3, 2, 1));
}

/// How far a plain projection comes beside one of this script, with events before and after.
fn beside(script: &Script) -> i64 {
    let mut sim = Sim::new(1);
    let (database, node) = (sim.node("database"), sim.node("one"));
    let model = QueueModel::new(database.env().clock);
    let plain = Script::new("plain", First::Plain, First::Plain);
    finalize_three(&mut sim, &database, &model);
    start(&node, &model, &[script.clone(), plain]);
    sim.run_for(SECOND * 5);
    // These get their positions while the other one hangs.
    finalize_three(&mut sim, &database, &model);
    sim.run_for(SECOND * 5);
    assert_eq!(position(&mut sim, &database, &model, script.name), 0);
    position(&mut sim, &database, &model, "plain")
}

#[test]
fn a_projection_that_hangs_holds_up_neither_the_order_nor_another_one() {
    let hangs = First::Takes(SECOND * 10_000);
    assert_eq!(beside(&Script::new("hung", First::Plain, hangs)), 6);
    assert_eq!(beside(&Script::new("hung", hangs, First::Plain)), 6);
}
