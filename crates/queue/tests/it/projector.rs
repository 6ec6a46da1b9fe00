//! A projector that has nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_queue::conformance::CountedSleeps;
use tidegate_queue::model::{CallFault, QueueModel};
use tidegate_queue::port::QueueStore;
use tidegate_queue::{Projector, ProjectorOptions, Queue, sql};
use tidegate_sim::{Node, Sim};

use crate::stores::{runtime, sqlite};

const SECOND: Duration = Duration::from_secs(1);

fn start(node: &Node, model: &QueueModel, options: &ProjectorOptions) {
    let env = node.env();
    let queue = Queue::on(Arc::new(model.clone()), &env);
    let projector = Projector::new(&queue, Vec::new(), options.clone(), &env);
    drop(node.start("projector", projector.run(std::future::pending())));
}

#[test]
fn a_turn_is_renewed_three_times_per_lease_and_stays_with_its_owner() {
    let mut sim = Sim::new(1);
    let database = sim.node("database");
    let model = QueueModel::new(database.env().clock);
    let renewals = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&renewals);
    model.set_faults(move |call| {
        seen.fetch_add(u32::from(call == "renew_leadership"), Ordering::Relaxed);
        CallFault::None
    });
    let options = ProjectorOptions::default();
    let (one, two) = (sim.node("one"), sim.node("two"));
    start(&one, &model, &options);
    start(&two, &model, &options);
    sim.run_for(SECOND * 100);
    let renewals = renewals.load(Ordering::Relaxed);
    assert!((25..=35).contains(&renewals), "{renewals} renewals");
    sim.crash(&one);
    sim.crash(&two);
    sim.run_for(options.lease * 2);
    let leadership = sim.block_on(&database, async move {
        model
            .acquire_leadership("queue.sequencer", "three", SECOND)
            .await
    });
    let leadership = leadership.unwrap().unwrap();
    assert_eq!(leadership.token, 2, "one owner had it all the time");
}

#[test]
fn an_idle_projector_writes_nothing_to_sqlite() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let mut env = Env::system();
        let store = sql::queue_store(store, &env).await.unwrap();
        let sleeps = CountedSleeps::of(&mut env);
        let queue = Queue::on(store, &env);
        let options = ProjectorOptions {
            poll_delay: Duration::from_millis(5),
            lease: Duration::from_secs(60),
            ..ProjectorOptions::default()
        };
        let projector = Projector::new(&queue, Vec::new(), options, &env);
        let running = tokio::spawn(projector.run(std::future::pending()));
        // Every change is added to this file first.
        let wal = dir.path().join("queue.db-wal");
        let written = || std::fs::metadata(&wal).unwrap().len();
        let taken = queue.store();
        while taken
            .acquire_leadership("queue.sequencer", "tester", Duration::ZERO)
            .await
            .unwrap()
            .is_some()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (before, slept) = (written(), sleeps.count());
        // It looks for work before it sleeps.
        while sleeps.count() < slept + 30 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(written(), before);
        running.abort();
    });
}
