use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_sim::Sim;

use super::*;
use crate::model::QueueModel;
use crate::port::Claim;
use crate::{Dispatcher, DispatcherOptions, Queue};

/// The state of a dispatcher with batches of ten, in a world whose time stands still.
fn shared(sim: &mut Sim) -> Arc<Shared> {
    let env = sim.node("one").env();
    let queue = Queue::on(Arc::new(QueueModel::new(Arc::clone(&env.clock))), &env);
    let options = DispatcherOptions {
        batch_size: 10,
        ..DispatcherOptions::default()
    };
    let dispatcher = Dispatcher::builder(queue).options(options).build(&env);
    dispatcher.shared
}

fn event(id: i64, attempts: u32, abandoned: u32) -> ClaimedEvent {
    ClaimedEvent {
        claim: Claim {
            id,
            event_id: EventId::from_u128(1),
            lease: LeaseId::Batch {
                batch: id,
                token: 1,
            },
            place: Place::Queued,
            trace_id: None,
        },
        type_name: "a".to_owned(),
        key: None,
        payload: String::new(),
        headers: BTreeMap::new(),
        created_ms: 0,
        attempts,
        abandoned,
        is_blocked: false,
        states: Vec::new(),
    }
}

fn claimed(event: ClaimedEvent) -> Result<Claimed, QueueError> {
    Ok(Claimed {
        events: vec![event],
        is_isolated: false,
        registry: 0,
        now_ms: 0,
    })
}

#[test]
fn two_batches_have_room_and_small_claims_wait_for_half_of_one() {
    let expect = [
        (0, 10),
        (9, 10),
        (10, 10),
        (11, 9),
        (15, 5),
        (16, 0),
        (20, 0),
        (30, 0),
    ];
    for (count, expect) in expect {
        let mut sim = Sim::new(1);
        let shared = shared(&mut sim);
        let events = (0..count).map(|id| event(id, 1, 0)).collect();
        shared.state().add(events, false);
        assert_eq!(room(&shared), expect, "beside {count}");
    }
}

#[test]
fn a_suspect_that_is_to_stay_alone_leaves_no_room() {
    let mut sim = Sim::new(1);
    let shared = shared(&mut sim);
    shared.state().add(vec![event(1, 3, 2)], true);
    assert_eq!(room(&shared), 0);
}

#[test]
fn rows_and_what_ran_out_are_looked_for_when_their_time_has_come() {
    let mut sim = Sim::new(1);
    let shared = shared(&mut sim);
    let mut schedule = PollSchedule::new(&shared);
    let mut look = |sim: &mut Sim, wait| {
        sim.run_for(wait);
        let request = schedule.request(&shared, 10);
        (request.include_delayed, request.reclaim_expired)
    };
    let millisecond = Duration::from_millis(1);
    assert_eq!(look(&mut sim, Duration::ZERO), (true, true), "the first");
    assert_eq!(look(&mut sim, Duration::ZERO), (false, false));
    assert_eq!(look(&mut sim, DELAYED_EVERY - millisecond), (false, false));
    assert_eq!(look(&mut sim, millisecond), (true, false));
    let reclaim_every = shared.options.rescue_interval;
    assert_eq!(look(&mut sim, reclaim_every - DELAYED_EVERY), (true, true));
}

#[test]
fn a_process_that_left_something_behind_may_have_left_more() {
    let mut sim = Sim::new(1);
    let shared = shared(&mut sim);
    let mut schedule = PollSchedule::new(&shared);
    schedule.request(&shared, 10);
    // A fresh event tells nothing of others, and one that was taken over does.
    for (found, reclaim_expired) in [
        (event(1, 1, 0), false),
        (event(1, 2, 1), true),
        (event(1, 2, 2), true),
    ] {
        schedule.note(&claimed(found));
        assert_eq!(
            schedule.request(&shared, 10).reclaim_expired,
            reclaim_expired
        );
        assert!(!schedule.request(&shared, 10).reclaim_expired, "once");
    }
    // A row has its attempts by itself, unless its leases ran out.
    let row = |abandoned| {
        let mut row = event(1, 5, abandoned);
        row.claim.lease = LeaseId::Row { id: 1, token: 1 };
        claimed(row)
    };
    schedule.note(&row(1));
    assert!(!schedule.request(&shared, 10).reclaim_expired);
    schedule.note(&row(2));
    let request = schedule.request(&shared, 10);
    assert!(request.reclaim_expired && request.include_poison && request.isolate);
}

#[test]
fn no_suspect_is_taken_beside_what_ran_out() {
    let mut sim = Sim::new(1);
    let shared = shared(&mut sim);
    let mut schedule = PollSchedule::new(&shared);
    shared.state().add(vec![event(1, 2, 1)], false);
    let request = schedule.request(&shared, 10);
    assert!(request.reclaim_expired && !request.include_poison && !request.isolate);
    schedule.note(&claimed(event(2, 3, 2)));
    // The one that was found waits until nothing is held that ran out.
    schedule.last_reclaim = Some(shared.env.clock.elapsed());
    assert!(!schedule.request(&shared, 10).reclaim_expired);
    shared
        .state()
        .settled(LeaseId::Batch { batch: 1, token: 1 }, 1);
    let request = schedule.request(&shared, 10);
    assert!(request.reclaim_expired && request.include_poison && request.isolate);
}
