//! Projections that are slow, hang or panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_queue::model::Model;
use tidegate_queue::port::QueueStore;
use tidegate_queue::{NewEvent, Projection, Projector, ProjectorOptions, Queue};
use tidegate_sim::{Node, Sim};

const SECOND: Duration = Duration::from_secs(1);

/// What a projection does with its first batch; the next ones are plain.
#[derive(Clone, Copy)]
enum First {
    Takes(Duration),
    Panics,
}

fn start(node: &Node, model: &Model, first: First, batches: &Arc<AtomicU32>) {
    let (env, batches) = (node.env(), Arc::clone(batches));
    let clock = Arc::clone(&env.clock);
    let projection = Projection::builder("slow")
        .timeout(SECOND * 60)
        .apply(move |_, _, _| {
            let is_first = batches.fetch_add(1, Ordering::Relaxed) == 0;
            let clock = Arc::clone(&clock);
            Box::pin(async move {
                match first {
                    First::Takes(span) if is_first => clock.sleep(span).await,
                    First::Panics if is_first => panic!("not this one"),
                    First::Takes(_) | First::Panics => {}
                }
                Ok(())
            })
        })
        .build();
    let queue = Queue::on(Arc::new(model.clone()), &env);
    let options = ProjectorOptions::default();
    let projector = Projector::new(&queue, vec![projection.unwrap()], options, &env);
    drop(node.start("projector", projector.run(std::future::pending())));
}

/// How far two processes come with three events, and with how many batches.
fn run(first: First, span: Duration) -> (i64, u32) {
    let mut sim = Sim::new(1);
    let (database, one, two) = (sim.node("database"), sim.node("one"), sim.node("two"));
    let env = database.env();
    let model = Model::new(Arc::clone(&env.clock));
    let queue = Queue::on(Arc::new(model.clone()), &env);
    sim.block_on(&database, async move {
        let event = || NewEvent::raw(queue.ids().mint(), "a", "{}").unwrap();
        queue
            .publish_all(&[event(), event(), event()])
            .await
            .unwrap();
        for event in queue.poll_batch(3).await.unwrap() {
            assert!(queue.finalize(&event, Vec::new()).await.unwrap());
        }
    });
    let batches = Arc::new(AtomicU32::new(0));
    start(&one, &model, first, &batches);
    start(&two, &model, first, &batches);
    sim.run_for(span);
    let position = sim.block_on(&database, async move { model.projection("slow").await });
    (position.unwrap(), batches.load(Ordering::Relaxed))
}

#[test]
fn a_batch_that_takes_longer_than_a_lease_stays_with_its_owner() {
    // The lease is ten seconds.
    assert_eq!(run(First::Takes(SECOND * 45), SECOND * 50), (3, 1));
}

#[test]
fn a_batch_that_hangs_is_cut_at_its_limit_and_tried_again() {
    assert_eq!(run(First::Takes(SECOND * 10_000), SECOND * 75), (3, 2));
}

#[test]
fn a_projection_that_panics_is_tried_again() {
    assert_eq!(run(First::Panics, SECOND * 20), (3, 2));
}
