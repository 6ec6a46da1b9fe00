//! Rules of claiming.

use std::time::Duration;

use super::{LONG, SHORT, World, completed, handler_filter, lane, numbers};
use crate::port::{Disposition, Lane, QueueStatus};

/// Publish then claim gives the event, PROCESSING, attempts 1; a second claim gives none.
pub async fn q01_a_published_event_is_claimed_once(world: &World) {
    let ids = world.publish("a", 1).await;
    let claimed = world.claim(10, LONG).await;
    assert_eq!(numbers(&claimed), ids);
    assert_eq!(claimed[0].attempts, 1);
    assert_eq!(claimed[0].payload, r#"{"n":1}"#);
    let shown = world.store.show(ids[0]).await.unwrap().unwrap();
    assert_eq!((shown.status, shown.attempts), (QueueStatus::Processing, 1));
    assert_eq!(shown.locked_by.as_deref(), Some("tester"));
    assert!(world.claim(10, LONG).await.is_empty());
    world.audit().await;
}

/// Log lines about an event name its trace, wherever it waited before.
pub async fn a_claim_names_the_trace_of_its_event(world: &World) {
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let traced = world.event("a").with_header("traceparent", parent);
    let broken = world.event("a").with_header("traceparent", "no trace");
    let events = [traced, broken, world.event("a")];
    world.store.publish(&events).await.unwrap();
    let claimed = world.claim(10, LONG).await;
    let traces = claimed.iter().map(|event| event.claim.trace_id);
    let traces: Vec<_> = traces.map(|id| id.map(|id| id.to_string())).collect();
    assert_eq!(traces, [Some(trace.to_owned()), None, None]);
}

/// Five concurrent claims of one event have one winner.
pub async fn q02_of_five_claims_of_one_event_one_wins(world: &World) {
    world.publish("a", 1).await;
    let claims = tokio::join!(
        world.claim(1, LONG),
        world.claim(1, LONG),
        world.claim(1, LONG),
        world.claim(1, LONG),
        world.claim(1, LONG),
    );
    let claims = [claims.0, claims.1, claims.2, claims.3, claims.4];
    assert_eq!(claims.iter().map(Vec::len).sum::<usize>(), 1);
}

/// A claim never gives more than asked for, and the oldest first.
pub async fn q03_a_claim_gives_at_most_what_was_asked_for_oldest_first(world: &World) {
    let ids = world.publish("a", 7).await;
    assert_eq!(numbers(&world.claim(3, LONG).await), ids[..3]);
    assert_eq!(numbers(&world.claim(3, LONG).await), ids[3..6]);
    assert_eq!(numbers(&world.claim(3, LONG).await), ids[6..]);
}

/// Claimers side by side share the events without overlap.
pub async fn q03_no_event_goes_to_two_claimers(world: &World) {
    let ids = world.publish("a", 40).await;
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let claims = tokio::join!(
            world.claim(3, LONG),
            world.claim(5, LONG),
            world.claim(2, LONG),
        );
        let before = seen.len();
        for claimed in [claims.0, claims.1, claims.2] {
            seen.extend(numbers(&claimed));
        }
        assert!(seen.len() > before, "somebody gets something");
    }
    seen.sort_unstable();
    assert_eq!(seen, ids);
}

/// An abandoned event is not there before its lease ends, and is there after, with attempts 2.
pub async fn q04_an_abandoned_event_comes_back_when_its_lease_ends(world: &World) {
    let ids = world.publish("a", 2).await;
    let abandoned = world.claim(2, LONG).await;
    assert!(world.claim(2, LONG).await.is_empty());
    // The lease ends soon from here on.
    let held = [abandoned[0].claim.lease];
    assert_eq!(world.store.renew(&held, SHORT).await.unwrap(), []);
    world.wait(SHORT * 2).await;
    let again = world.claim(2, LONG).await;
    assert_eq!(numbers(&again), ids);
    assert!(again.iter().all(|event| event.attempts == 2));
    assert!(world.claim(2, LONG).await.is_empty());
    world.settle(&again, &completed()).await;
    world.audit().await;
}

/// Also when newer events wait.
pub async fn q04_an_abandoned_event_comes_back_before_newer_ones(world: &World) {
    let old = world.publish("a", 1).await;
    world.claim(1, SHORT).await;
    let new = world.publish("a", 1).await;
    world.wait(SHORT * 2).await;
    let claimed = numbers(&world.claim(10, LONG).await);
    assert_eq!(claimed, [old, new].concat());
}

/// A batch that ran out is handed out in parts to whoever asks for less.
pub async fn q04_a_large_abandoned_batch_comes_back_in_parts(world: &World) {
    let ids = world.publish("a", 5).await;
    let abandoned = world.claim(5, SHORT).await;
    world.wait(SHORT * 2).await;
    let mut again = Vec::new();
    for _ in 0..3 {
        let part = world.claim(2, LONG).await;
        assert!(part.len() <= 2 && part.iter().all(|event| event.attempts == 2));
        again.extend(numbers(&part));
        assert_eq!(world.settle(&part, &completed()).await, [0_i64; 0]);
    }
    assert_eq!(again, ids);
    let stale = world.settle(&abandoned, &completed()).await;
    assert_eq!(stale, ids, "the first owner has no say any more");
    world.audit().await;
}

/// A lease that is renewed does not run out.
pub async fn q05_a_renewed_lease_is_kept(world: &World) {
    world.publish("a", 1).await;
    let claimed = world.claim(1, SHORT).await;
    let held = [claimed[0].claim.lease];
    for lease in [SHORT, SHORT, LONG] {
        assert_eq!(world.store.renew(&held, lease).await.unwrap(), []);
    }
    // All that were short are over.
    world.wait(SHORT * 2).await;
    assert!(world.claim(1, LONG).await.is_empty());
    assert_eq!(world.store.renew(&held, LONG).await.unwrap(), []);
    assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
}

/// A transaction that is rolled back publishes nothing.
pub async fn q08_rolled_back_events_were_never_published(world: &World) {
    let mut tx = world.store.begin().await.unwrap();
    let events = [world.event("a"), world.event("a")];
    world.store.publish_in(&mut tx, &events).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = world.store.begin().await.unwrap();
    world.store.publish_in(&mut tx, &events).await.unwrap();
    drop(tx);
    assert!(world.claim(10, LONG).await.is_empty());
    assert_eq!(world.store.account().await.unwrap().accepted, 0);
    let ids = world.publish("a", 1).await;
    assert_eq!(numbers(&world.claim(10, LONG).await), ids);
    world.audit().await;
}

/// Nor does one with so many events that they take another way into the table.
pub async fn q08_many_that_are_rolled_back_were_never_published(world: &World) {
    let mut tx = world.store.begin().await.unwrap();
    let events: Vec<_> = (0..2_500).map(|_| world.event("a")).collect();
    let ids = world.store.publish_in(&mut tx, &events).await.unwrap();
    assert_eq!(ids.len(), events.len());
    tx.rollback().await.unwrap();
    assert!(world.claim(10, LONG).await.is_empty());
    assert_eq!(world.store.account().await.unwrap().accepted, 0);
    let mut tx = world.store.begin().await.unwrap();
    world.store.publish_in(&mut tx, &events).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.store.account().await.unwrap().accepted, 2_500);
    world.audit().await;
}

/// A transaction that commits publishes all of it.
pub async fn q08_committed_events_are_published(world: &World) {
    let mut tx = world.store.begin().await.unwrap();
    let events = [world.event("a"), world.event("b").with_header("h", "v")];
    let ids = world.store.publish_in(&mut tx, &events).await.unwrap();
    tx.commit().await.unwrap();
    let claimed = world.claim(10, LONG).await;
    assert_eq!(numbers(&claimed), ids);
    assert_eq!(claimed[1].headers.get("h").map(String::as_str), Some("v"));
    assert_eq!(claimed[1].claim.event_id, events[1].event_id);
    world.audit().await;
}

/// A retry is due at its own time, long before its lease would have ended.
pub async fn q10_a_retry_waits_for_its_time_and_not_for_the_lease(world: &World) {
    let ids = world.publish("a", 2).await;
    let retry = |after| Disposition::Retry {
        after,
        lane: lane(),
    };
    let claimed = world.claim(1, LONG).await;
    world.settle(&claimed, &retry(LONG)).await;
    let claimed = world.claim(1, LONG).await;
    assert_eq!(numbers(&claimed), ids[1..], "the first is not due");
    world.settle(&claimed, &retry(SHORT)).await;
    let shown = world.store.show(ids[1]).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::Pending);
    assert!(shown.next_attempt_ms.is_some());
    world.wait(SHORT * 2).await;
    let again = world.claim(2, LONG).await;
    assert_eq!(numbers(&again), ids[1..]);
    assert_eq!(again[0].attempts, 2);
    world.audit().await;
}

/// An event whose transaction commits after a later one was claimed is claimed all the same.
pub async fn a_late_commit_is_not_passed_over(world: &World) {
    let mut tx = world.store.begin().await.unwrap();
    let event = [world.event("a")];
    let late = world.store.publish_in(&mut tx, &event).await.unwrap();
    // SQLite has one writer: nobody can be in between there.
    if tx.sqlite().is_some() {
        tx.commit().await.unwrap();
        assert_eq!(numbers(&world.claim(10, LONG).await), late);
        return;
    }
    let early = world.publish("a", 3).await;
    assert!(late < early);
    assert_eq!(numbers(&world.claim(10, LONG).await), early);
    assert!(world.claim(10, LONG).await.is_empty());
    world.audit().await;
    tx.commit().await.unwrap();
    assert_eq!(numbers(&world.claim(10, LONG).await), late);
    assert!(world.claim(10, LONG).await.is_empty());
    world.audit().await;
}

/// Thousands at once, with everything that needs care on its way into a table.
pub async fn many_events_are_published_at_once(world: &World) {
    let odd = "tab\tnewline\nquote\"back\\slash\\N";
    let events: Vec<_> = (0..2_500)
        .map(|n| {
            let payload = serde_json::to_string(&(n, odd)).unwrap();
            let event = crate::NewEvent::raw(world.ids.mint(), "a\tb", payload).unwrap();
            event.with_header("x", odd).with_key(format!("k\\{n}"))
        })
        .collect();
    let ids = world.store.publish(&events).await.unwrap();
    assert_eq!(ids.len(), events.len());
    let claimed = world.claim(3_000, LONG).await;
    assert_eq!(numbers(&claimed), ids);
    for (claimed, event) in claimed.iter().zip(&events) {
        assert_eq!(claimed.payload, event.payload);
        assert_eq!(claimed.headers, event.headers);
        assert_eq!(claimed.key, event.key);
        assert_eq!(claimed.type_name, event.type_name);
        assert_eq!(claimed.claim.event_id, event.event_id);
        assert!(!claimed.is_blocked);
    }
    world.audit().await;
}

/// An event left for others is claimed by those who serve its lane, and by nobody else.
pub async fn rows_are_claimed_by_those_who_serve_their_lane(world: &World) {
    let two = [("a".to_owned(), "two".to_owned())];
    world.store.register(&two).await.unwrap();
    let ids = world.publish("a", 1).await;
    let claimed = world.claim(1, LONG).await;
    let leave = Disposition::Defer {
        lane: Lane::new("a", ["two"]),
    };
    world.settle(&claimed, &leave).await;
    for others in [
        handler_filter(&[("a", "one")]),
        handler_filter(&[("b", "two")]),
    ] {
        assert!(world.claim_as("other", 10, LONG, others).await.is_empty());
    }
    let mine = handler_filter(&[("a", "two"), ("b", "x")]);
    let claimed = world.claim_as("two", 10, LONG, mine).await;
    assert_eq!(numbers(&claimed), ids);
    // A lane that wants nobody is of a type without handlers: whoever registers gets it.
    let nobody = Disposition::Defer {
        lane: Lane::new("a", []),
    };
    world.settle(&claimed, &nobody).await;
    let stats = world.store.stats().await.unwrap();
    assert_eq!(stats.unhandled.get("a"), Some(&1));
    let late = world
        .claim_as("late", 10, LONG, handler_filter(&[("a", "new")]))
        .await;
    assert_eq!(numbers(&late), ids);
    world.audit().await;
}

/// While an event of a key is with somebody, the next one of that key is blocked for everybody.
pub async fn events_of_one_key_are_handed_out_one_after_the_other(world: &World) {
    let first = world.publish_keyed("a", "k").await;
    let one = world.claim(1, LONG).await;
    assert!(!one[0].is_blocked);
    let second = world.publish_keyed("a", "k").await;
    let other = world.publish_keyed("a", "other").await;
    let two = world.claim(10, LONG).await;
    let blocked: Vec<(i64, bool)> = two.iter().map(|e| (e.claim.id, e.is_blocked)).collect();
    assert_eq!(blocked, [(second, true), (other, false)]);
    // Two of one key in one batch are in order already.
    assert!(first < second);
    world
        .settle(&two[..1], &Disposition::Park { lane: lane() })
        .await;
    assert!(world.claim(10, LONG).await.is_empty());
    assert_eq!(world.store.account().await.unwrap().parked, 1);
    world.audit().await;
}

/// Settling the first event of a key releases the next, one at a time; a retry holds them up.
pub async fn a_key_is_released_when_its_first_event_is_done(world: &World) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.publish_keyed("a", "k").await);
    }
    let batch = world.claim(10, LONG).await;
    let park = Disposition::Park { lane: lane() };
    let retry = Disposition::Retry {
        after: Duration::from_millis(1),
        lane: lane(),
    };
    let transitions = [&retry, &park, &park];
    let transitions = batch
        .iter()
        .zip(transitions)
        .map(|(event, to)| crate::port::Transition {
            claim: event.claim.clone(),
            key: event.key.clone(),
            to: to.clone(),
            states: Vec::new(),
        });
    let settlement = crate::port::Settlement {
        registry: None,
        transitions: transitions.collect(),
        finished: vec![batch[0].claim.lease],
    };
    assert_eq!(world.store.settle(&settlement).await.unwrap(), [0_i64; 0]);
    for id in ids {
        world.wait(Duration::from_millis(10)).await;
        let claimed = world.claim(10, LONG).await;
        assert_eq!(numbers(&claimed), [id]);
        assert!(world.claim(10, LONG).await.is_empty());
        world.settle(&claimed, &completed()).await;
    }
    world.audit().await;
}
