//! Rules of what is too long, malformed or refused: one event never stops others.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::{Classify, Code, EventId, Failure, FailureClass};
use tokio::sync::Semaphore;

use super::dispatchers::{Calls, Running, quick};
use super::{LONG, World, completed, lane};
use crate::port::{Claim, Disposition, LeaseId, QueueStatus, QueueStore, Settlement, Transition};
use crate::{Dispatcher, DispatcherOptions, Handled, QueueError};

/// A text that no compression makes short.
fn long_text(bytes: usize) -> String {
    let mut state = 7_u64;
    let letter = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'a' + u8::try_from((state >> 33) % 26).unwrap())
    };
    (0..bytes).map(letter).collect()
}

/// A zero byte in what a handler says is replaced, and the event ends like another.
pub async fn a_failure_with_a_zero_byte_in_its_text_harms_nobody(world: &World) {
    let ids = world.publish("a", 5).await;
    let bad = ids[2];
    let calls = Calls::default();
    let counted = calls.clone();
    let builder = Dispatcher::builder(world.queue()).options(quick());
    let builder = builder.register_raw("one", "a", move |event, _| {
        let number = event.number();
        counted.add("one", u32::try_from(number).unwrap());
        Box::pin(async move {
            if number != bad {
                return Handled::Success;
            }
            let text = format!("nul: \0 {}", long_text(100_000));
            let failure = Failure::permanent(Code::from_static("test.bad"), text);
            Handled::UnrecoverableError(failure)
        })
    });
    let running = Running::start(world, builder.unwrap());
    world.finalized(5).await;
    running.stop().await;
    for id in ids {
        assert_eq!(calls.of("one", u32::try_from(id).unwrap()), 1);
    }
    let shown = world.store.show(bad).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::CompletedWithErrors);
    let text = shown.errors[0].error.clone().unwrap();
    assert!(text.contains("nul: \u{fffd}"), "{}", &text[..40]);
    assert!(text.len() < 20_000, "{}", text.len());
    world.audit().await;
}

/// An event that left its batch behind the dispatcher's back is dropped; the others of the batch are
/// handled once and settled, long before the lease ends.
pub async fn one_stale_event_does_not_cost_its_batch(world: &World) {
    let events: Vec<_> = (0..5).map(|_| world.event("a")).collect();
    let ids = world.store.publish(&events).await.unwrap();
    let (gone, gone_id) = (ids[0], events[0].event_id);
    let calls = Calls::default();
    let counted = calls.clone();
    let gate = Arc::new(Semaphore::new(0));
    let (store, opening) = (Arc::clone(&world.store), Arc::clone(&gate));
    let options = DispatcherOptions {
        concurrency: 1,
        ..quick()
    };
    let builder = Dispatcher::builder(world.queue()).options(options);
    let builder = builder.register_raw("one", "a", move |event, _| {
        let number = event.number();
        counted.add("one", u32::try_from(number).unwrap());
        let (store, gate) = (Arc::clone(&store), Arc::clone(&opening));
        Box::pin(async move {
            if number == gone {
                finalize_behind_the_back(&*store, number, gone_id).await;
            } else {
                gate.acquire().await.unwrap().forget();
            }
            Handled::Success
        })
    });
    let running = Running::start(world, builder.unwrap());
    // The first one is settled alone.
    world
        .until(async || running.handle.report().stale == 1)
        .await;
    gate.add_permits(4);
    world.finalized(5).await;
    let report = running.stop().await;
    assert_eq!((report.stale, report.finalized), (1, 4), "{report:?}");
    for id in ids {
        assert_eq!(calls.of("one", u32::try_from(id).unwrap()), 1);
    }
    world.audit().await;
}

/// Finalizes an event by the right of whoever holds it in a batch.
async fn finalize_behind_the_back(store: &dyn QueueStore, id: i64, event_id: EventId) {
    for (batch, token) in (1..=20).flat_map(|batch| (1..=20).map(move |token| (batch, token))) {
        let claim = Claim {
            id,
            event_id,
            lease: LeaseId::Batch { batch, token },
            place: Place::Queued,
            trace_id: None,
        };
        let settlement = Settlement {
            registry: None,
            transitions: vec![Transition {
                claim,
                key: None,
                to: completed(),
                states: Vec::new(),
            }],
            finished: Vec::new(),
        };
        if store.settle(&settlement).await.unwrap().is_empty() {
            return;
        }
    }
    panic!("no batch holds event {id}");
}

/// Keys and types that no index holds are refused where they come in.
pub async fn a_key_or_type_that_is_too_long_is_refused(world: &World) {
    let refused = [
        world.event("a").with_key(long_text(4_000)),
        world.event("a").with_key("a\0b"),
        world.event(&long_text(1_000)),
    ];
    for event in refused {
        let good = world.event("a");
        let published = world.store.publish(&[good, event.clone()]).await;
        assert_eq!(published.unwrap_err().class(), FailureClass::Permanent);
        let mut tx = world.store.begin().await.unwrap();
        let published = world.store.publish_in(&mut tx, &[event]).await;
        assert_eq!(published.unwrap_err().class(), FailureClass::Permanent);
        tx.rollback().await.unwrap();
    }
    assert_eq!(world.store.account().await.unwrap().accepted, 0);
    // The longest that is allowed goes all the way.
    let longest = world.event(&long_text(255)).with_key(long_text(1_024));
    world.store.publish(&[longest]).await.unwrap();
    let claimed = world.claim(1, LONG).await;
    let retry = Disposition::Retry {
        after: Duration::ZERO,
        lane: crate::port::Lane::new(&claimed[0].type_name, ["one"]),
    };
    assert_eq!(world.settle(&claimed, &retry).await, [0_i64; 0]);
    let again = world.claim(1, LONG).await;
    assert_eq!(again.len(), 1);
    assert_eq!(world.settle(&again, &completed()).await, [0_i64; 0]);
    world.audit().await;
}

/// However many keys wait for good reason: one whose release was lost comes free.
pub async fn a_lost_release_is_found_among_many_parked_keys(world: &World) {
    const KEYS: usize = 1_200;
    let mut events = Vec::new();
    for n in 0..KEYS {
        for _ in 0..2 {
            events.push(world.event("a").with_key(format!("k{n:05}")));
        }
    }
    for n in 0..5 {
        for _ in 0..2 {
            events.push(world.event("a").with_key(format!("z{n}")));
        }
    }
    let count = events.len();
    world.store.publish(&events).await.unwrap();
    let claimed = world.claim(u32::try_from(count).unwrap(), LONG).await;
    assert_eq!(claimed.len(), count);
    // The second of each key is parked behind the first, which stays claimed.
    let second = claimed.iter().skip(1).step_by(2);
    let parked = second.map(|event| Transition {
        claim: event.claim.clone(),
        key: event.key.clone(),
        to: Disposition::Park { lane: lane() },
        states: Vec::new(),
    });
    let parked = Settlement {
        registry: None,
        transitions: parked.collect(),
        finished: Vec::new(),
    };
    assert_eq!(world.store.settle(&parked).await.unwrap(), [0_i64; 0]);
    // The first of the last keys is finished by somebody who dies before the release.
    let is_last = |key: &Option<String>| key.as_ref().is_some_and(|key| key.starts_with('z'));
    let firsts = claimed
        .iter()
        .step_by(2)
        .filter(|event| is_last(&event.key));
    let died = firsts.map(|event| Transition {
        claim: event.claim.clone(),
        key: None,
        to: completed(),
        states: Vec::new(),
    });
    let died = Settlement {
        registry: None,
        transitions: died.collect(),
        finished: Vec::new(),
    };
    assert_eq!(world.store.settle(&died).await.unwrap(), [0_i64; 0]);
    let mut freed = Vec::new();
    for _ in 0..10 {
        freed.extend(world.claim(100, LONG).await);
        if freed.len() == 5 {
            break;
        }
    }
    assert_eq!(freed.len(), 5, "of 5 keys whose release was lost");
    assert!(freed.iter().all(|event| is_last(&event.key)));
    assert!(matches!(freed[0].claim.lease, LeaseId::Row { .. }));
    world.audit().await;
}

/// A header that PostgreSQL cannot keep is refused everywhere, and the error names it.
pub async fn a_header_with_a_zero_byte_is_refused(world: &World) {
    for (name, value) in [("trace", "a\0b"), ("tr\0ace", "b")] {
        let mut event = world.event("a");
        event.headers.insert(name.to_owned(), value.to_owned());
        let refused = world.store.publish(&[event]).await.unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, QueueError::InvalidName { .. }), "{text}");
        assert!(text.contains("tr") && text.contains("zero byte"), "{text}");
    }
    assert_eq!(world.store.account().await.unwrap().accepted, 0);
}
