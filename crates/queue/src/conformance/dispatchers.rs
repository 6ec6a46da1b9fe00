//! Rules of dispatching.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::{Backoff, Code, Failure, Retry};
use tokio::sync::{Semaphore, oneshot};

use super::World;
use crate::port::{HandlerResult, QueueStatus};
use crate::{
    Context, Delivery, DispatchReport, Dispatcher, DispatcherBuilder, DispatcherHandle,
    DispatcherOptions, Handled, Handler, OnFatal, Policy, Queue, QueueEvent, Unhandled,
};

/// An event of the rules.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Placed {
    /// The number that tells it from others.
    pub n: u32,
    /// Its key; events of one key are handled in order.
    pub key: Option<String>,
}

impl QueueEvent for Placed {
    const TYPE: &'static str = "placed";

    fn key(&self) -> Option<String> {
        self.key.clone()
    }
}

/// An event that follows from another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shipped {
    /// Of which one.
    pub n: u32,
}

impl QueueEvent for Shipped {
    const TYPE: &'static str = "shipped";
}

/// An event without a key.
#[must_use]
pub fn placed(n: u32) -> Placed {
    Placed { n, key: None }
}

/// Options with short waits.
#[must_use]
pub fn quick() -> DispatcherOptions {
    DispatcherOptions {
        poll_delay: Duration::from_millis(5),
        batch_size: 10,
        concurrency: 4,
        // No machine stands still for that long, so nobody loses what it has.
        lease: super::LONG,
        handler_timeout: super::LONG,
        stop_timeout: super::LONG,
        // A released event is found soon, also by a claimer that looked in the same millisecond.
        rescue_interval: Duration::from_millis(100),
        policy: Policy {
            retry: Retry {
                attempts: None,
                backoff: Backoff::steps([Duration::from_millis(10)]),
            },
            ..Policy::default()
        },
        ..DispatcherOptions::default()
    }
}

/// A dispatcher that runs.
pub struct Running {
    /// How it is.
    pub handle: DispatcherHandle,
    stop: oneshot::Sender<()>,
    done: oneshot::Receiver<DispatchReport>,
}

impl Running {
    /// Starts a dispatcher.
    pub fn start(world: &World, builder: DispatcherBuilder) -> Self {
        let dispatcher = builder.build(&world.env);
        let handle = dispatcher.handle();
        let (stop, stopped) = oneshot::channel();
        let (tell, done) = oneshot::channel();
        let run = async move {
            let report = dispatcher.run(async { drop(stopped.await) }).await;
            tell.send(report).ok();
        };
        drop(world.env.spawn.spawn("dispatcher", Box::pin(run)));
        Self { handle, stop, done }
    }

    /// Stops it and waits for its end.
    pub async fn stop(self) -> DispatchReport {
        self.stop.send(()).ok();
        self.done.await.unwrap()
    }
}

/// Calls that were seen, by handler and event.
#[derive(Debug, Clone, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<(String, u32), u32>>>);

impl Calls {
    /// Counts a call and gives how many there were.
    pub fn add(&self, handler: &str, n: u32) -> u32 {
        let mut calls = self.0.lock().unwrap();
        let count = calls.entry((handler.to_owned(), n)).or_default();
        *count += 1;
        *count
    }

    /// Whether nobody else can count any more.
    pub(super) fn is_mine_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// How many there were.
    #[must_use]
    pub fn of(&self, handler: &str, n: u32) -> u32 {
        let calls = self.0.lock().unwrap();
        calls.get(&(handler.to_owned(), n)).copied().unwrap_or(0)
    }
}

fn broken() -> Failure {
    Failure::transient(Code::from_static("test.broken"), "not yet")
}

fn fatal() -> Failure {
    Failure::permanent(Code::from_static("test.fatal"), "never")
}

impl World {
    /// The queue on this world's store.
    #[must_use]
    pub fn queue(&self) -> Queue {
        Queue::on(Arc::clone(&self.store), &self.env)
    }

    /// Waits until so many events are finalized.
    pub async fn finalized(&self, count: u64) {
        let finalized = async || self.store.stats().await.unwrap().finalized;
        self.until(async || finalized().await >= count).await;
    }

    /// The status, the attempts and the errors of an event in the log.
    pub async fn ended(&self, id: i64) -> (QueueStatus, Vec<(String, HandlerResult)>) {
        let shown = self.store.show(id).await.unwrap().unwrap();
        let errors = shown.errors.into_iter().map(|e| (e.handler, e.result));
        (shown.status, errors.collect())
    }
}

/// Every handler of a type gets every event, and the report counts them.
pub async fn every_handler_gets_every_event(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let mut builder = Dispatcher::builder(queue.clone()).options(quick());
    for id in ["one", "two"] {
        let calls = calls.clone();
        let act = move |event: Delivery<Placed>| {
            calls.add(id, event.event.n);
            async { Handled::Success }
        };
        builder = builder.register_fn(id, act).unwrap();
    }
    let running = Running::start(world, builder);
    for n in 0..50 {
        queue.publish(&placed(n)).await.unwrap();
    }
    world.finalized(50).await;
    let report = running.stop().await;
    assert_eq!((report.finalized, report.stale), (50, 0));
    assert!((0..50).all(|n| calls.of("one", n) == 1 && calls.of("two", n) == 1));
    world.audit().await;
    let shown = world.store.show(1).await.unwrap().unwrap();
    let told: Vec<&str> = shown.states.iter().map(|s| s.handler.as_str()).collect();
    assert_eq!(told, ["one", "two"], "each has a result for each event");
}

/// The lease of a handler that runs is renewed before it ends, until it answers: there is no second run.
pub async fn q05_a_slow_handler_keeps_its_lease(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let options = DispatcherOptions {
        lease: Duration::from_secs(6),
        ..quick()
    };
    let gate = Arc::new(Semaphore::new(0));
    let start = |name: &str| {
        let (calls, gate) = (calls.clone(), Arc::clone(&gate));
        let act = move |event: Delivery<Placed>| {
            calls.add("slow", event.event.n);
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Handled::Success
            }
        };
        let builder = Dispatcher::builder(queue.clone().named(name)).options(options.clone());
        Running::start(world, builder.register_fn("slow", act).unwrap())
    };
    let (one, two) = (start("one"), start("two"));
    for n in 0..3 {
        queue.publish(&placed(n)).await.unwrap();
    }
    let ends = async || {
        let mut ends = Vec::new();
        for id in 1..=3 {
            ends.extend(world.store.show(id).await.unwrap().unwrap().locked_until_ms);
        }
        ends
    };
    world.until(async || ends().await.len() == 3).await;
    let first = ends().await;
    let are_later = |ends: Vec<i64>| ends.iter().zip(&first).all(|(end, first)| end > first);
    world.until(async || are_later(ends().await)).await;
    gate.add_permits(3);
    world.finalized(3).await;
    one.stop().await;
    two.stop().await;
    assert!((0..3).all(|n| calls.of("slow", n) == 1), "{calls:?}");
    world.audit().await;
}

/// Two handlers succeed, one is transient: only that one runs again; then COMPLETED.
pub async fn q09_only_the_handler_that_failed_runs_again(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let mut builder = Dispatcher::builder(queue.clone()).options(quick());
    for id in ["one", "shaky", "two"] {
        let calls = calls.clone();
        let act = move |event: Delivery<Placed>| {
            let count = calls.add(id, event.event.n);
            let is_early = id == "shaky" && count < 3;
            assert_eq!(event.attempt, count);
            async move {
                if is_early {
                    Handled::TransientError(broken())
                } else {
                    Handled::Success
                }
            }
        };
        builder = builder.register_fn(id, act).unwrap();
    }
    let running = Running::start(world, builder);
    queue.publish(&placed(7)).await.unwrap();
    world.finalized(1).await;
    running.stop().await;
    let count = |id| calls.of(id, 7);
    assert_eq!((count("one"), count("shaky"), count("two")), (1, 3, 1));
    assert_eq!(world.ended(1).await, (QueueStatus::Completed, vec![]));
    world.wait(Duration::from_millis(5)).await;
    assert_eq!(world.store.clean(None).await.unwrap().states, 3);
    world.audit().await;
}

/// The waits between attempts are those of the back-off, each longer than the one before. The lease has
/// no part in them: it lasts longer than this rule.
pub async fn q10_each_wait_is_longer_and_none_is_the_lease(world: &World) {
    let waits = [Duration::from_millis(40), Duration::from_millis(160)];
    let queue = world.queue();
    let mut options = DispatcherOptions {
        lease: super::LONG,
        ..quick()
    };
    options.policy.retry.backoff = Backoff::steps(waits);
    let called: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let (seen, clock) = (Arc::clone(&called), Arc::clone(&world.env.clock));
    let act = move |_: Delivery<Placed>| {
        let mut seen = seen.lock().unwrap();
        seen.push(clock.elapsed());
        let is_early = seen.len() < 3;
        async move {
            if is_early {
                Handled::TransientError(broken())
            } else {
                Handled::Success
            }
        }
    };
    let builder = Dispatcher::builder(queue.clone()).options(options);
    let running = Running::start(world, builder.register_fn("shaky", act).unwrap());
    queue.publish(&placed(1)).await.unwrap();
    world.finalized(1).await;
    running.stop().await;
    let called = called.lock().unwrap().clone();
    let waited: Vec<Duration> = called.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waited.len(), waits.len());
    // The store's clock may count whole milliseconds.
    let early = Duration::from_millis(2);
    assert!(
        waited
            .iter()
            .zip(waits)
            .all(|(waited, wait)| *waited + early >= wait),
        "{waited:?}"
    );
    world.audit().await;
}

/// After `max-attempts` the event is completed with its errors.
pub async fn q11_attempts_that_are_used_up_end_the_event(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let mut options = quick();
    options.policy.retry.attempts = Some(3);
    let seen = calls.clone();
    let act = move |event: Delivery<Placed>| {
        seen.add("bad", event.event.n);
        async { Handled::TransientError(broken()) }
    };
    let builder = Dispatcher::builder(queue.clone()).options(options);
    let running = Running::start(world, builder.register_fn("bad", act).unwrap());
    queue.publish(&placed(1)).await.unwrap();
    world.finalized(1).await;
    running.stop().await;
    assert_eq!(calls.of("bad", 1), 3);
    let (status, errors) = world.ended(1).await;
    assert_eq!(status, QueueStatus::CompletedWithErrors);
    assert_eq!(errors, [("bad".to_owned(), HandlerResult::TransientError)]);
    world.audit().await;
}

/// A fatal error ends the event at once, or when the others are done.
pub async fn q12_a_fatal_error_ends_the_event(world: &World) {
    for (on_fatal, expect) in [(OnFatal::Finalize, 1), (OnFatal::AwaitOthers, 3)] {
        let queue = world.queue();
        let calls = Calls::default();
        let mut options = quick();
        options.policy.on_fatal = on_fatal;
        let seen = calls.clone();
        let shaky = move |event: Delivery<Placed>| {
            let count = seen.add("shaky", event.event.n);
            async move {
                if count < 3 {
                    Handled::TransientError(broken())
                } else {
                    Handled::Success
                }
            }
        };
        let dead = |_: Delivery<Placed>| async { Handled::UnrecoverableError(fatal()) };
        let builder = Dispatcher::builder(queue.clone()).options(options);
        let builder = builder.register_fn("dead", dead).unwrap();
        let running = Running::start(world, builder.register_fn("shaky", shaky).unwrap());
        let before = world.store.stats().await.unwrap().finalized;
        queue.publish(&placed(1)).await.unwrap();
        world.finalized(before + 1).await;
        running.stop().await;
        assert_eq!(calls.of("shaky", 1), expect, "{on_fatal:?}");
    }
    let account = world.store.account().await.unwrap();
    assert_eq!(account.dead_lettered, 2);
    world.audit().await;
}

/// A panic is a transient failure: of the handler and of the closure that makes its future; the
/// others go on. So is a handler that does not end.
pub async fn q13_a_panic_or_a_hang_is_a_transient_failure(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let mut options = quick();
    options.handler_timeout = Duration::from_millis(50);
    let bad = |id: &'static str| {
        let calls = calls.clone();
        move |event: Delivery<Placed>| {
            let is_first = calls.add(id, event.event.n) == 1;
            assert!(!(is_first && id == "early"), "it breaks before it begins");
            async move {
                assert!(!(is_first && id == "late"), "it breaks in the middle");
                if is_first && id == "hangs" {
                    std::future::pending::<()>().await;
                }
                Handled::Success
            }
        }
    };
    let builder = Dispatcher::builder(queue.clone()).options(options);
    let builder = builder.register_fn("early", bad("early")).unwrap();
    let builder = builder.register_fn("late", bad("late")).unwrap();
    let builder = builder.register_fn("hangs", bad("hangs")).unwrap();
    let builder = builder.register_fn("good", bad("good")).unwrap();
    let running = Running::start(world, builder);
    for n in 0..3 {
        queue.publish(&placed(n)).await.unwrap();
    }
    world.finalized(3).await;
    running.stop().await;
    for n in 0..3 {
        let count = |id| calls.of(id, n);
        assert_eq!(["early", "late", "hangs", "good"].map(count), [2, 2, 2, 1]);
    }
    world.audit().await;
}

/// An event without handler is kept and counted until somebody registers, or completed by policy.
pub async fn q14_an_event_without_handler_is_kept_or_completed(world: &World) {
    let queue = world.queue();
    let nobody = Dispatcher::builder(queue.clone()).options(quick());
    let running = Running::start(world, nobody);
    queue.publish(&placed(1)).await.unwrap();
    let unhandled = async || world.store.stats().await.unwrap().unhandled;
    world
        .until(async || unhandled().await.get("placed") == Some(&1))
        .await;
    running.stop().await;
    assert_eq!(world.store.account().await.unwrap().queued, 1);
    let act = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(queue.clone()).options(quick());
    let running = Running::start(world, builder.register_fn("late", act).unwrap());
    world.finalized(1).await;
    running.stop().await;
    let mut options = quick();
    options.policy.unhandled = Unhandled::Complete;
    let running = Running::start(world, Dispatcher::builder(queue.clone()).options(options));
    queue.publish(&Shipped { n: 1 }).await.unwrap();
    world.finalized(2).await;
    running.stop().await;
    assert_eq!(world.ended(2).await, (QueueStatus::Completed, vec![]));
    world.audit().await;
}

/// A handler id can be registered once.
pub async fn q15_a_handler_id_is_refused_twice(world: &World) {
    let act = |_: Delivery<Placed>| async { Handled::Success };
    let builder = Dispatcher::builder(world.queue())
        .register_fn("X", act)
        .unwrap();
    let error = builder.register_fn("X", act).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Handler with id 'X' is already registered"
    );
    let error = Dispatcher::builder(world.queue())
        .register_fn("a,b", act)
        .unwrap_err();
    assert!(error.to_string().contains("`a,b`"), "{error}");
}

struct Ship {
    calls: Calls,
}

impl Handler<Placed> for Ship {
    fn id(&self) -> &str {
        "ship"
    }

    async fn handle(&self, event: &Delivery<Placed>, context: &mut Context) -> Handled {
        let n = event.event.n;
        match context.once("label").await {
            Ok(true) => {
                self.calls.add("label", n);
            }
            Ok(false) => {}
            Err(error) => return error.into(),
        }
        if let Err(error) = context.publish(&Shipped { n }) {
            return error.into();
        }
        // The first attempt fails after all of that: nothing of it may have happened.
        if self.calls.add("ship", n) == 1 {
            return Handled::TransientError(broken());
        }
        Handled::Success
    }
}

/// The events and guards of a handler happen with its success, and only then.
pub async fn q16_follow_ups_come_with_the_success(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let seen = calls.clone();
    let shipped = move |event: Delivery<Shipped>| {
        seen.add("shipped", event.event.n);
        async { Handled::Success }
    };
    let ship = Ship {
        calls: calls.clone(),
    };
    let builder = Dispatcher::builder(queue.clone())
        .options(quick())
        .register(ship)
        .unwrap();
    let running = Running::start(world, builder.register_fn("shipped", shipped).unwrap());
    let id = queue.publish(&placed(3)).await.unwrap();
    world.finalized(2).await;
    running.stop().await;
    assert_eq!((calls.of("ship", 3), calls.of("shipped", 3)), (2, 1));
    assert!(
        world
            .store
            .is_done(None, "ship", id, "label")
            .await
            .unwrap()
    );
    assert_eq!(world.store.account().await.unwrap().delivered, 2);
    world.audit().await;
}

/// Two processes with different handlers for one type: both handlers run for every event.
pub async fn two_processes_with_different_handlers_share_an_event(world: &World) {
    let queue = world.queue();
    let calls = Calls::default();
    let start = |id: &'static str| {
        let calls = calls.clone();
        let act = move |event: Delivery<Placed>| {
            calls.add(id, event.event.n);
            async { Handled::Success }
        };
        let builder = Dispatcher::builder(queue.clone().named(id)).options(quick());
        Running::start(world, builder.register_fn(id, act).unwrap())
    };
    let (one, two) = (start("one"), start("two"));
    let registry = async || world.store.registry().await.unwrap();
    world
        .until(async || registry().await.of("placed").count() == 2)
        .await;
    for n in 0..30 {
        queue.publish(&placed(n)).await.unwrap();
    }
    world.finalized(30).await;
    one.stop().await;
    two.stop().await;
    assert!(
        (0..30).all(|n| calls.of("one", n) == 1 && calls.of("two", n) == 1),
        "{calls:?}"
    );
    assert_eq!(world.store.account().await.unwrap().delivered, 30);
    world.audit().await;
}

/// Events of one key are handled in order by two dispatchers, also when one of them fails first;
/// other keys go on meanwhile.
pub async fn events_of_one_key_are_handled_in_order(world: &World) {
    let queue = world.queue();
    let seen: Arc<Mutex<Vec<(String, u32)>>> = Arc::default();
    let calls = Calls::default();
    let start = |name: &str| {
        let (calls, seen) = (calls.clone(), Arc::clone(&seen));
        let act = move |event: Delivery<Placed>| {
            let n = event.event.n;
            let is_bad = n % 5 == 2 && calls.add("keyed", n) == 1;
            if !is_bad {
                let key = event.event.key.clone().unwrap_or_default();
                seen.lock().unwrap().push((key, n));
            }
            async move {
                if is_bad {
                    Handled::TransientError(broken())
                } else {
                    Handled::Success
                }
            }
        };
        let options = DispatcherOptions {
            batch_size: 3,
            ..quick()
        };
        let builder = Dispatcher::builder(queue.clone().named(name)).options(options);
        Running::start(world, builder.register_fn("keyed", act).unwrap())
    };
    let events: Vec<Placed> = (0..40)
        .map(|n| Placed {
            n,
            key: Some(format!("k{}", n % 3)),
        })
        .collect();
    for event in &events {
        queue.publish(event).await.unwrap();
    }
    let (one, two) = (start("one"), start("two"));
    world.finalized(40).await;
    one.stop().await;
    two.stop().await;
    let seen = seen.lock().unwrap().clone();
    for key in ["k0", "k1", "k2"] {
        let order: Vec<u32> = seen
            .iter()
            .filter(|(k, _)| k == key)
            .map(|(_, n)| *n)
            .collect();
        assert!(order.is_sorted(), "{key}: {order:?}");
    }
    assert_eq!(seen.len(), 40);
    world.audit().await;
}
