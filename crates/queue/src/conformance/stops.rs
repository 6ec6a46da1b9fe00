//! Rules of how dispatchers stop.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Code, Failure, FailureClass};
use tokio::sync::Semaphore;

use super::dispatchers::{Calls, Placed, Running, placed, quick};
use super::{LONG, World};
use crate::{Delivery, Dispatcher, DispatcherOptions, Handled};

/// A dispatcher that stops gives back what it did not begin, at once and without a lease to wait
/// for.
pub async fn stopping_gives_back_what_was_not_begun(world: &World) {
    let queue = world.queue();
    let options = DispatcherOptions {
        concurrency: 1,
        ..quick()
    };
    let (calls, gate) = (Calls::default(), Arc::new(Semaphore::new(0)));
    let (seen, opening) = (calls.clone(), Arc::clone(&gate));
    let slow = move |event: Delivery<Placed>| {
        seen.add("slow", event.event.n);
        let gate = Arc::clone(&opening);
        async move {
            gate.acquire().await.unwrap().forget();
            Handled::Success
        }
    };
    for n in 0..8 {
        queue.publish(&placed(n)).await.unwrap();
    }
    let builder = Dispatcher::builder(queue.clone()).options(options);
    let running = Running::start(world, builder.register_fn("slow", slow).unwrap());
    world.until(async || calls.of("slow", 0) == 1).await;
    let handle = running.handle.clone();
    let opening = async {
        // It has heard of the stop while its handler runs.
        world.until(async || !handle.health().is_up).await;
        gate.add_permits(8);
    };
    let (report, ()) = tokio::join!(running.stop(), opening);
    assert_eq!(report.finalized, 1, "what ran was settled: {report:?}");
    let act = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(queue).options(quick());
    let running = Running::start(world, builder.register_fn("slow", act).unwrap());
    world.finalized(8).await;
    running.stop().await;
    world.audit().await;
}

/// A handler that is past the stop timeout is cut short, and so is its transaction: on SQLite nobody else
/// writes while it is open. Its event is given back at once, like the others.
pub async fn stopping_does_not_wait_for_what_a_handler_holds(world: &World) {
    let queue = world.queue();
    let options = DispatcherOptions {
        stop_timeout: Duration::from_millis(200),
        ..quick()
    };
    let calls = Calls::default();
    let seen = calls.clone();
    let builder = Dispatcher::builder(queue.clone()).options(options);
    let builder = builder.register_raw("one", "placed", move |_, context| {
        let seen = seen.clone();
        Box::pin(async move {
            context.transaction().await.unwrap();
            seen.add("one", 0);
            std::future::pending().await
        })
    });
    let running = Running::start(world, builder.unwrap());
    queue.publish(&placed(0)).await.unwrap();
    world.until(async || calls.of("one", 0) > 0).await;
    assert_eq!(calls.of("one", 0), 1);
    // It would never end if it waited for the handler.
    running.stop().await;
    queue.publish(&placed(1)).await.unwrap();
    let act = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(queue).options(quick());
    let running = Running::start(world, builder.register_fn("one", act).unwrap());
    world.finalized(2).await;
    running.stop().await;
    world.audit().await;
}

/// A handler that fails with class System stops its dispatcher, whose health says so; no attempt is
/// used up, what was not begun is given back at once, and a dispatcher that works finishes it all.
pub async fn a06_a_system_failure_stops_the_dispatcher_and_loses_nothing(world: &World) {
    let queue = world.queue();
    let mut options = DispatcherOptions {
        concurrency: 2,
        // Far longer than anybody waits for the others to be given back.
        lease: LONG * 10,
        ..quick()
    };
    options.policy.retry.attempts = Some(1);
    for n in 0..15_u32 {
        let key = n.is_multiple_of(3).then(|| "k".to_owned());
        queue.publish(&Placed { n, key }).await.unwrap();
    }
    let calls = Calls::default();
    let seen = calls.clone();
    let wrong = move |event: Delivery<Placed>| {
        seen.add("wrong", event.event.n);
        let code = Code::from_static("http.unauthorized");
        async { Failure::new(FailureClass::System, code, "the token is wrong").into() }
    };
    let builder = Dispatcher::builder(queue.clone()).options(options.clone());
    let broken = Running::start(world, builder.register_fn("mail", wrong).unwrap());
    world.until(async || !broken.handle.health().is_up).await;
    let health = broken.handle.health();
    assert_eq!(health.class, Some(FailureClass::System));
    let problem = health.problem.unwrap_or_default();
    assert!(
        problem.contains("`mail`") && problem.contains("the token is wrong"),
        "{problem}"
    );
    // It takes nothing more, also when there is room and it is told.
    queue.publish(&placed(15)).await.unwrap();
    world.audit().await;
    // Another goes on at once, though the first has not ended and its leases would be long.
    let right = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(queue).options(options);
    let running = Running::start(world, builder.register_fn("mail", right).unwrap());
    world.finalized(16).await;
    running.stop().await;
    let report = broken.stop().await;
    assert_eq!(report.finalized, 0);
    // A claim that was under way may have got the last one too; it was given back with the others.
    assert!((1..=16).contains(&report.claimed), "{report:?}");
    let called: u32 = (0..16).map(|n| calls.of("wrong", n)).sum();
    assert!((1..=2).contains(&called), "{called} calls");
    assert_eq!(calls.of("wrong", 15), 0);
    assert_eq!(world.store.account().await.unwrap().delivered, 16);
    world.audit().await;
}

/// A dispatcher whose run is dropped takes its workers with it: nobody would keep their leases.
pub async fn a_dispatcher_that_is_dropped_calls_no_more_handlers(world: &World) {
    let queue = world.queue();
    for n in 0..40 {
        queue.publish(&placed(n)).await.unwrap();
    }
    let calls = Calls::default();
    let (seen, clock) = (calls.clone(), Arc::clone(&world.env.clock));
    let slow = move |event: Delivery<Placed>| {
        seen.add("slow", event.event.n);
        let clock = Arc::clone(&clock);
        async move {
            clock.sleep(Duration::from_millis(20)).await;
            Handled::Success
        }
    };
    let options = DispatcherOptions {
        concurrency: 2,
        ..quick()
    };
    let builder = Dispatcher::builder(queue).options(options);
    let dispatcher = builder.register_fn("slow", slow).unwrap();
    let dispatcher = dispatcher.build(&world.env);
    let handle = dispatcher.handle();
    let running = dispatcher.run(std::future::pending());
    let called = || -> u32 { (0..40).map(|n| calls.of("slow", n)).sum() };
    tokio::select! {
        biased;
        () = world.until(async || called() > 0) => {}
        _ = running => panic!("nobody told it to stop"),
    }
    assert!(!handle.health().is_up, "nobody works any more");
    drop(handle);
    // Every task that could call a handler has let go of it.
    world.until(async || calls.is_mine_alone()).await;
    assert!(called() < 40, "it went on without anybody to settle");
}

/// Handlers that each hold a transaction and then ask for a side effect need no second connection, however
/// many of them run at once.
pub async fn handlers_with_a_transaction_do_not_wait_for_each_other(world: &World) {
    let queue = world.queue();
    for n in 0..48 {
        queue.publish(&placed(n)).await.unwrap();
    }
    let clock = Arc::clone(&world.env.clock);
    let builder = Dispatcher::builder(queue).options(DispatcherOptions {
        concurrency: 16,
        handler_timeout: Duration::from_secs(30),
        ..quick()
    });
    let builder = builder.register_raw("one", "placed", move |_, context| {
        let clock = Arc::clone(&clock);
        Box::pin(async move {
            if let Err(error) = context.transaction().await {
                return error.into();
            }
            clock.sleep(Duration::from_millis(10)).await;
            match context.once("mail").await {
                Ok(_) => Handled::Success,
                Err(error) => error.into(),
            }
        })
    });
    let running = Running::start(world, builder.unwrap());
    world.finalized(48).await;
    running.stop().await;
    assert_eq!(world.store.account().await.unwrap().delivered, 48);
    world.audit().await;
}
