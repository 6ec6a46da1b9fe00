use std::collections::BTreeMap;

use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_core::env::Env;

use super::*;

fn hub() -> Hub {
    Hub::new(Env::system().entropy.fork("test"))
}

fn event(id: i64, held: Held) -> ClaimedEvent {
    ClaimedEvent {
        claim: Claim {
            id,
            event_id: EventId::from_u128(1),
            held,
            place: Place::Retrying,
        },
        type_name: "a".to_owned(),
        key: None,
        payload: String::new(),
        headers: BTreeMap::new(),
        created_ms: 0,
        attempts: 1,
        abandoned: 0,
        is_blocked: false,
        states: Vec::new(),
    }
}

fn row(id: i64, token: i64) -> ClaimedEvent {
    event(id, Held::Row { id, token })
}

fn of_batch(id: i64, batch: i64, token: i64) -> ClaimedEvent {
    event(id, Held::Batch { batch, token })
}

/// A worker takes the next event and finishes it.
fn finish(hub: &mut Hub) {
    let event = hub.take().expect("there is something to handle");
    let to = Disposition::Finalize {
        errors: Vec::new(),
        handlers: None,
    };
    let said = Said {
        version: 0,
        type_name: event.type_name,
        states: Vec::new(),
        spoken: Vec::new(),
        has_history: false,
    };
    hub.decided(event.claim, event.key, (to, Vec::new()), said);
}

#[test]
fn two_claims_of_one_row_are_never_settled_together() {
    let mut hub = hub();
    hub.add(vec![row(1, 3), row(2, 8)], false);
    finish(&mut hub);
    hub.add(vec![row(1, 4)], false);
    finish(&mut hub);
    finish(&mut hub);
    let outcomes: Vec<Held> = hub.outcomes().into_keys().collect();
    let newest = [Held::Row { id: 1, token: 4 }, Held::Row { id: 2, token: 8 }];
    assert_eq!(outcomes, newest);
    assert_eq!(hub.report.stale, 1);
}

#[test]
fn what_was_claimed_again_before_it_was_begun_is_handled_once() {
    let mut hub = hub();
    hub.add(vec![row(1, 3)], false);
    hub.add(vec![row(1, 4)], false);
    finish(&mut hub);
    assert!(hub.take().is_none());
    assert_eq!(hub.held(), [Held::Row { id: 1, token: 4 }]);
    assert_eq!(hub.report.stale, 1);
}

#[test]
fn a_batch_that_was_claimed_again_is_held_by_its_newest_token() {
    let mut hub = hub();
    let (first, reopened) = (
        Held::Batch { batch: 7, token: 1 },
        Held::Batch { batch: 7, token: 2 },
    );
    hub.add(vec![of_batch(1, 7, 1), of_batch(2, 7, 1)], false);
    hub.add(vec![of_batch(3, 8, 1)], false);
    hub.reopened(first, reopened, 2);
    hub.add(vec![of_batch(1, 7, 3), of_batch(2, 7, 3)], false);
    let newest = [
        Held::Batch { batch: 7, token: 3 },
        Held::Batch { batch: 8, token: 1 },
    ];
    assert_eq!(hub.held(), newest);
    assert_eq!(hub.ready.len(), 3);
}
