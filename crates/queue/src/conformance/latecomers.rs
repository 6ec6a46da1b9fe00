//! Rules of handlers that register while others are at work.

use std::sync::Arc;

use tokio::sync::Semaphore;

use tidegate_core::{Code, Failure};

use super::World;
use super::dispatchers::{Calls, Placed, Running, quick};
use crate::port::{HandlerResult, QueueStatus};
use crate::{Delivery, Dispatcher, DispatcherOptions, Handled, QueueEvent};

/// A handler that registers while another one has an event gets that event too: it was not finalized
/// then.
pub async fn a_handler_that_registers_late_gets_what_is_not_finalized(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let gate = Arc::new(Semaphore::new(0));
    let slow = {
        let (calls, gate) = (calls.clone(), Arc::clone(&gate));
        move |event: Delivery<Placed>| {
            calls.add("early", event.event.n);
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Handled::Success
            }
        }
    };
    // So little room that it claims nothing, and hears nothing, while its handlers run.
    let options = DispatcherOptions {
        batch_size: 1,
        concurrency: 2,
        ..quick()
    };
    for n in 0..6 {
        // Two of a key, so that one of them waits in memory for the other.
        let key = (n < 4).then(|| format!("k{}", n % 2));
        queue.publish(&Placed { n, key }).await.unwrap();
    }
    let builder = Dispatcher::builder(queue.clone()).options(options);
    let early = Running::start(world, builder.register_fn("early", slow).unwrap());
    world.until(async || calls.of("early", 1) == 1).await;
    let late = [(Placed::TYPE.to_owned(), "late".to_owned())];
    world.store.register(&late).await.unwrap();
    gate.add_permits(6);
    // The second ones of their keys wait for the first, which wait for whoever is late.
    let are_called = async || [0, 1, 4, 5].iter().all(|n| calls.of("early", *n) == 1);
    world.until(are_called).await;
    let seen = calls.clone();
    let act = move |event: Delivery<Placed>| {
        seen.add("late", event.event.n);
        async { Handled::Success }
    };
    let builder = Dispatcher::builder(queue.clone()).options(quick());
    let running = Running::start(world, builder.register_fn("late", act).unwrap());
    world.finalized(6).await;
    early.stop().await;
    running.stop().await;
    for n in 0..6 {
        let called = (calls.of("early", n), calls.of("late", n));
        assert_eq!(called, (1, 1), "event {n}");
    }
    world.audit().await;
}

/// A handler that is unregistered while it has an event, and then says that it failed, did not succeed:
/// with nobody else registered the event is kept and tried again, and where the others are done it is
/// ended with the error.
pub async fn a_handler_that_is_unregistered_while_it_fails_did_not_succeed(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let gate = Arc::new(Semaphore::new(0));
    let fails_first = |handler: &'static str| {
        let (calls, gate) = (calls.clone(), Arc::clone(&gate));
        move |event: Delivery<Placed>| {
            let is_first = calls.add(handler, event.event.n) == 1;
            let gate = Arc::clone(&gate);
            async move {
                if !is_first {
                    return Handled::Success;
                }
                gate.acquire().await.unwrap().forget();
                let code = Code::from_static("test.not_yet");
                Handled::TransientError(Failure::transient(code, "not yet"))
            }
        }
    };
    let unregister = async |handler: &str, n: u32| {
        world.until(async || calls.of(handler, n) == 1).await;
        let is_gone = world.store.unregister(Placed::TYPE, handler).await;
        assert!(is_gone.unwrap());
        gate.add_permits(1);
    };
    let builder = Dispatcher::builder(queue.clone()).options(quick());
    let builder = builder.register_fn("alone", fails_first("alone")).unwrap();
    let running = Running::start(world, builder);
    queue.publish(&Placed { n: 1, key: None }).await.unwrap();
    unregister("alone", 1).await;
    world.finalized(1).await;
    running.stop().await;
    assert_eq!(calls.of("alone", 1), 2, "it was tried again");
    assert_eq!(world.ended(1).await.0, QueueStatus::Completed);

    let builder = Dispatcher::builder(queue.clone()).options(quick());
    let builder = builder.register_fn("gone", fails_first("gone")).unwrap();
    let steady = |_: Delivery<Placed>| async { Handled::Success };
    let builder = builder.register_fn("steady", steady).unwrap();
    let running = Running::start(world, builder);
    queue.publish(&Placed { n: 2, key: None }).await.unwrap();
    unregister("gone", 2).await;
    world.finalized(2).await;
    running.stop().await;
    let errors = vec![("gone".to_owned(), HandlerResult::TransientError)];
    let ended = world.ended(2).await;
    assert_eq!(ended, (QueueStatus::CompletedWithErrors, errors));
    world.audit().await;
}
