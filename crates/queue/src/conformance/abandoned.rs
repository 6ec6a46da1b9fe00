//! Rules of events whose handlers never answer, because they take their process down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::dispatchers::{Calls, Placed, placed, quick};
use super::{LONG, SHORT, World, completed, lane, numbers};
use crate::port::{
    ClaimRequest, ClaimedEvent, Disposition, HandlerFilter, LeaseId, POISON_STARVATION, QueueStatus,
};
use crate::{Delivery, Dispatcher, DispatcherOptions, Handled};

const LEASE: Duration = Duration::from_millis(100);

/// Runs dispatchers one after the other, each until its handler "kills" it, until so many events are
/// finalized or so many processes are dead; gives how many died.
async fn lives(
    world: &World,
    options: &DispatcherOptions,
    calls: &Calls,
    killer: u32,
    (finalized, deaths): (u64, u32),
) -> u32 {
    for life in 0.. {
        let is_dead = Arc::new(AtomicBool::new(false));
        let (seen, dying) = (calls.clone(), Arc::clone(&is_dead));
        let act = move |event: Delivery<Placed>| {
            let n = event.event.n;
            let dying = Arc::clone(&dying);
            // The work that a dead process still begins does not count.
            if !dying.load(Ordering::Relaxed) {
                seen.add("one", n);
            }
            async move {
                if n == killer {
                    dying.store(true, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                }
                Handled::Success
            }
        };
        let queue = world.queue().named(format!("life {life}"));
        let builder = Dispatcher::builder(queue).options(options.clone());
        let dispatcher = builder.register_fn("one", act).unwrap().build(&world.env);
        let run = async move {
            dispatcher.run(std::future::pending()).await;
        };
        let task = world.env.spawn.spawn("life", Box::pin(run));
        let is_done = async || world.store.stats().await.unwrap().finalized >= finalized;
        world
            .until(async || is_dead.load(Ordering::Relaxed) || is_done().await)
            .await;
        task.abort();
        let is_done = is_done().await;
        let died = life + u32::from(is_dead.load(Ordering::Relaxed));
        if is_done || died >= deaths {
            return died;
        }
    }
    0
}

fn options(attempts: Option<u32>) -> DispatcherOptions {
    let mut options = DispatcherOptions {
        batch_size: 20,
        lease: LEASE,
        handler_timeout: Duration::from_secs(60),
        ..quick()
    };
    options.policy.retry.attempts = attempts;
    options
}

/// An event whose handler takes the process down each time is ended after `max-attempts`, with a code
/// of its own; those that were in the batch with it are completed, also those of its key.
pub async fn q11_an_event_that_kills_its_process_is_ended(world: &World) {
    let queue = world.queue();
    for n in 0..12 {
        let key = (n % 4 == 2).then(|| "k".to_owned());
        queue.publish(&Placed { n, key }).await.unwrap();
    }
    let calls = Calls::default();
    let died = lives(world, &options(Some(3)), &calls, 2, (12, 20)).await;
    // Twice with others, then as often as it may alone. A machine that stands still for longer than a
    // lease ends one without a death.
    assert!((1..=5).contains(&died), "{died} deaths");
    assert_eq!(calls.of("one", 2), died, "each call of it was a death");
    let shown = world.store.show(3).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::CompletedWithErrors);
    let [error] = &shown.errors[..] else {
        panic!("{:?}", shown.errors);
    };
    assert_eq!(error.handler, "one");
    let text = error.error.clone().unwrap();
    assert!(text.starts_with("queue.abandoned: "), "{text}");
    assert!(text.contains('5'), "{text}");
    for id in (1..=12).filter(|id| *id != 3) {
        assert_eq!(
            world.ended(id).await,
            (QueueStatus::Completed, vec![]),
            "{id}"
        );
    }
    world.audit().await;
    // An operator gives it back like another, and it has all of its attempts again.
    world.store.redrive(3).await.unwrap();
    let died = lives(world, &options(Some(3)), &calls, 99, (12, 1)).await;
    assert_eq!((died, world.ended(3).await.0), (0, QueueStatus::Completed));
    world.audit().await;
}

/// Without a limit it goes on, alone, and holds nobody up: what is published later is completed, and
/// nobody else is given up on.
pub async fn an_event_that_kills_its_process_holds_nobody_up(world: &World) {
    let queue = world.queue();
    for n in 0..8 {
        queue.publish(&placed(n)).await.unwrap();
    }
    // One at a time: whatever is behind it in its process is not begun.
    let options = DispatcherOptions {
        concurrency: 1,
        ..options(None)
    };
    let calls = Calls::default();
    assert_eq!(lives(world, &options, &calls, 1, (8, 3)).await, 3);
    for n in 8..16 {
        queue.publish(&placed(n)).await.unwrap();
    }
    let died = lives(world, &options, &calls, 1, (15, 8)).await;
    assert!(died < 8, "it takes all others with it");
    let account = world.store.account().await.unwrap();
    assert_eq!((account.delivered, account.dead_lettered), (15, 0));
    let shown = world.store.show(2).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::Processing);
    world.audit().await;
}

/// Claims, says that it was heard, and is never heard of again.
async fn abandon(world: &World, limit: u32) -> Vec<ClaimedEvent> {
    let claimed = world.claim(limit, SHORT).await;
    let held: Vec<LeaseId> = claimed.iter().map(|event| event.claim.lease).collect();
    world.store.renew(&held, SHORT).await.unwrap();
    claimed
}

fn counts(events: &[ClaimedEvent]) -> Vec<(i64, u32)> {
    let counts = events.iter().map(|e| (e.claim.id, e.abandoned));
    counts.collect()
}

/// A batch that was abandoned twice is handed out one event at a time, to those who ask for poison
/// candidates. Only then does a lease that runs out count against an event. Each time the event comes
/// one lease later.
pub async fn events_abandoned_twice_are_handed_out_one_at_a_time(world: &World) {
    let ids = world.publish("a", 3).await;
    assert_eq!(counts(&abandon(world, 9).await), [(1, 0), (2, 0), (3, 0)]);
    world.wait(SHORT * 2).await;
    assert_eq!(counts(&abandon(world, 9).await), [(1, 1), (2, 1), (3, 1)]);
    world.wait(SHORT * 2).await;
    let request = ClaimRequest {
        owner: "busy".to_owned(),
        limit: 9,
        lease: LONG,
        filter: HandlerFilter::All,
        reclaim_expired: true,
        include_delayed: true,
        include_poison: false,
        isolate: false,
    };
    let none = world.store.claim(&request).await.unwrap().events;
    assert!(none.is_empty(), "{none:?}");
    // Other events that wait come with it.
    let fresh = world.publish("a", 1).await[0];
    let first = abandon(world, 9).await;
    assert_eq!(counts(&first), [(1, 2), (fresh, 0)]);
    world.settle(&first[1..], &completed()).await;
    let others = [world.claim(9, LONG).await, world.claim(9, LONG).await];
    assert_eq!(counts(&others.concat()), [(2, 2), (3, 2)]);
    assert!(world.claim(9, LONG).await.is_empty());
    for other in &others {
        assert_eq!(world.settle(other, &completed()).await, [0_i64; 0]);
    }
    world.audit().await;
    world.wait(SHORT * 2 + SHORT / 2).await;
    assert_eq!(counts(&abandon(world, 9).await), [(1, 3)]);
    world.wait(SHORT * 4).await;
    // Its lease is over, and twice as long after that it is its turn: that is far off by a long lease.
    assert!(world.claim(9, LONG).await.is_empty());
    let last = world.claim(9, SHORT).await;
    assert_eq!(counts(&last), [(ids[0], 4)]);
    world.settle(&last, &completed()).await;
    assert_eq!(world.store.account().await.unwrap().delivered, 4);
    world.audit().await;
}

/// A lease that was given back did not run out, however often; nor does one count against a poison candidate that
/// nobody is known to have heard of.
pub async fn an_event_given_back_or_unknown_is_not_abandoned(world: &World) {
    let ids = world.publish("a", 2).await;
    for _ in 0..4 {
        let claimed = world.claim(9, LONG).await;
        assert_eq!(counts(&claimed), [(ids[0], 0), (ids[1], 0)]);
        let held = [claimed[0].claim.lease];
        let given = world.store.renew(&held, Duration::ZERO).await;
        assert_eq!(given.unwrap(), []);
        world.wait(Duration::from_millis(5)).await;
    }
    // A row of its own is no different.
    let claimed = world.claim(9, LONG).await;
    world.settle(&claimed[..1], &completed()).await;
    let retry = Disposition::Retry {
        after: Duration::ZERO,
        lane: lane(),
    };
    world.settle(&claimed[1..], &retry).await;
    for _ in 0..4 {
        world.wait(Duration::from_millis(5)).await;
        let claimed = world.claim(9, LONG).await;
        assert_eq!(counts(&claimed), [(ids[1], 0)]);
        let held = [claimed[0].claim.lease];
        world.store.renew(&held, Duration::ZERO).await.unwrap();
    }
    for count in [0, 1, 2, 2, 2] {
        world.wait(SHORT * 2).await;
        assert_eq!(counts(&world.claim(9, SHORT).await), [(ids[1], count)]);
    }
    world.audit().await;
}

/// A row of its own becomes a poison candidate as well; whoever answers for it clears it.
pub async fn a_row_that_was_abandoned_twice_is_a_suspect_until_somebody_answers(world: &World) {
    let ids = world.publish("a", 3).await;
    let claimed = world.claim(9, LONG).await;
    let retry = Disposition::Retry {
        after: Duration::ZERO,
        lane: lane(),
    };
    world.settle(&claimed, &retry).await;
    for count in [0, 1] {
        world.wait(SHORT * 2).await;
        let all = abandon(world, 9).await;
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|event| event.abandoned == count));
    }
    world.wait(SHORT * 2).await;
    let first = world.claim(9, LONG).await;
    assert_eq!(counts(&first), [(ids[0], 2)]);
    world.settle(&first, &retry).await;
    world.wait(Duration::from_millis(5)).await;
    // It was answered for, so that it comes like another; and one poison candidate with it.
    let again = world.claim(9, LONG).await;
    assert_eq!(counts(&again), [(ids[0], 0), (ids[1], 2)]);
    assert_eq!(numbers(&world.claim(9, LONG).await), [ids[2]]);
    world.audit().await;
}

/// Where something else goes on running out, a poison candidate that has waited for long comes first, and alone, to
/// a claimer that holds nothing: otherwise its turn would never come. A row of its own is no different.
pub async fn a_suspect_that_has_waited_for_long_comes_first_and_alone(world: &World) {
    let innocent = world.publish("a", 2).await;
    for _ in 0..2 {
        assert_eq!(abandon(world, 9).await.len(), 2);
        world.wait(SHORT * 2).await;
    }
    // One of them gets a row, and both are poison candidates.
    let both = [world.claim(9, LONG).await, world.claim(9, LONG).await].concat();
    assert_eq!(counts(&both), [(innocent[0], 2), (innocent[1], 2)]);
    let retry = Disposition::Retry {
        after: Duration::ZERO,
        lane: lane(),
    };
    world.settle(&both[..1], &retry).await;
    let give_back = async |events: &[ClaimedEvent]| {
        let held: Vec<LeaseId> = events.iter().map(|event| event.claim.lease).collect();
        world.store.renew(&held, Duration::ZERO).await.unwrap();
    };
    give_back(&both[1..]).await;
    let request = |include_poison, isolate, lease| ClaimRequest {
        owner: "tester".to_owned(),
        limit: 9,
        lease,
        filter: HandlerFilter::All,
        reclaim_expired: true,
        include_delayed: true,
        include_poison,
        isolate,
    };
    let claim = async |request: ClaimRequest| world.store.claim(&request).await.unwrap();
    for count in [0, 1] {
        world.wait(SHORT * 2).await;
        let row = claim(request(false, true, SHORT)).await.events;
        assert_eq!(counts(&row), [(innocent[0], count)]);
    }
    let other = world.publish("a", 1).await[0];
    // By a lease that is long, they have not waited for long.
    let early = claim(request(true, true, LONG)).await;
    assert!(!early.is_isolated && numbers(&early.events).contains(&other));
    give_back(&early.events).await;
    world.wait(SHORT * (POISON_STARVATION + 3)).await;
    for suspect in [innocent[1], innocent[0]] {
        let first = claim(request(true, true, SHORT)).await;
        let held: Vec<LeaseId> = first.events.iter().map(|event| event.claim.lease).collect();
        assert_eq!(world.store.renew(&held, LONG).await.unwrap(), []);
        assert_eq!(
            (counts(&first.events), first.is_isolated),
            (vec![(suspect, 2)], true)
        );
    }
    let next = claim(request(true, true, SHORT)).await;
    assert!(!next.is_isolated && numbers(&next.events).contains(&other));
    world.audit().await;
}
