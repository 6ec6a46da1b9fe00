//! Rules of settling.

use tidegate_core::{Classify, FailureClass};

use super::{LONG, SHORT, World, completed, lane, numbers};
use crate::QueueError;
use crate::port::{
    ClaimedEvent, Disposition, HandlerCommit, HandlerResult, HandlerState, QueueStatus, Settlement,
    Transition,
};

fn state(handler: &str, result: HandlerResult) -> HandlerState {
    HandlerState {
        handler: handler.to_owned(),
        result,
        attempts: 1,
        error: (result != HandlerResult::Success).then(|| "broken".to_owned()),
    }
}

pub(super) fn commit(event: &ClaimedEvent, handler: &str, world: &World) -> HandlerCommit {
    HandlerCommit {
        claim: event.claim.clone(),
        state: state(handler, HandlerResult::Success),
        follow_ups: vec![world.event("next")],
        done: vec!["mail".to_owned()],
        event_id: event.claim.event_id,
    }
}

/// Finalizing moves the event to the log, with its errors, and out of the queue.
pub async fn q06_finalizing_moves_an_event_to_the_log(world: &World) {
    let ids = world.publish("a", 2).await;
    let claimed = world.claim(2, LONG).await;
    let failed = Disposition::Finalize {
        errors: vec![state("one", HandlerResult::UnrecoverableError)],
        handlers: None,
    };
    assert_eq!(world.settle(&claimed[..1], &completed()).await, [0_i64; 0]);
    // The rest of the batch stays claimed, although it was called finished.
    let status = world.store.show(ids[0]).await.unwrap().unwrap().status;
    assert_eq!(status, QueueStatus::Completed);
    world.audit().await;
    assert_eq!(world.settle(&claimed[1..], &failed).await, [0_i64; 0]);
    let shown = world.store.show(ids[1]).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::CompletedWithErrors);
    assert_eq!(
        shown.errors,
        [state("one", HandlerResult::UnrecoverableError)]
    );
    assert!(shown.finalized_ms.is_some() && shown.locked_by.is_none());
    world.audit().await;
}

/// Finalizing twice gives one row in the log, and says that the second one was stale.
pub async fn q06_finalizing_twice_gives_one_row(world: &World) {
    let ids = world.publish("a", 3).await;
    let claimed = world.claim(3, LONG).await;
    assert_eq!(world.settle(&claimed, &completed()).await, [0_i64; 0]);
    assert_eq!(world.settle(&claimed, &completed()).await, ids);
    let stats = world.store.stats().await.unwrap();
    assert_eq!(
        (stats.finalized, stats.pending, stats.processing),
        (3, 0, 0)
    );
    assert_eq!(world.store.account().await.unwrap().delivered, 3);
    world.audit().await;
}

/// By hand it is the same: the second time changes nothing and says so, and a number that no event
/// has is an error.
pub async fn q06_an_unknown_number_is_an_error(world: &World) {
    let queue = world.queue();
    world.publish("a", 1).await;
    let mut event = queue.poll().await.unwrap().unwrap();
    assert!(queue.finalize(&event, Vec::new()).await.unwrap());
    assert!(!queue.finalize(&event, Vec::new()).await.unwrap());
    event.claim.id = 99_999;
    let unknown = queue.finalize(&event, Vec::new()).await;
    assert!(
        matches!(unknown, Err(QueueError::UnknownEvent { id: 99_999 })),
        "{unknown:?}"
    );
    assert_eq!(world.store.stats().await.unwrap().finalized, 1);
    world.audit().await;
}

/// An event that was settled is not the batch's any more, also while others keep the batch open: a
/// second settle changes nothing of it, wherever it went since.
pub async fn q07_an_event_that_left_its_batch_is_not_settled_by_it_again(world: &World) {
    let ids = world.publish("a", 3).await;
    let batch = world.claim(3, LONG).await;
    let failed = Disposition::Finalize {
        errors: vec![state("one", HandlerResult::UnrecoverableError)],
        handlers: None,
    };
    assert_eq!(world.settle(&batch[..1], &failed).await, [0_i64; 0]);
    assert_eq!(world.settle(&batch[..1], &completed()).await, ids[..1]);
    assert_eq!(world.store.account().await.unwrap().dead_lettered, 1);
    // Given back, it is somebody else's.
    world.store.redrive(ids[0]).await.unwrap();
    assert_eq!(world.settle(&batch[..1], &completed()).await, ids[..1]);
    let again = commit(&batch[0], "one", world);
    assert!(!world.store.record(None, &again).await.unwrap());
    world.audit().await;
    // Together with one that is the batch's, only that one is settled.
    assert_eq!(world.settle(&batch[..2], &completed()).await, ids[..1]);
    let account = world.store.account().await.unwrap();
    assert_eq!(
        (account.delivered, account.queued, account.in_flight),
        (1, 1, 1)
    );
    world.audit().await;
    let row = world.claim(10, LONG).await;
    assert_eq!(numbers(&row), ids[..1]);
    assert_eq!(world.settle(&batch, &completed()).await, ids[..2]);
    assert_eq!(world.settle(&row, &completed()).await, [0_i64; 0]);
    assert_eq!(world.store.account().await.unwrap().delivered, 3);
    world.audit().await;
}

/// A claim that was taken over settles nothing, and says so; by batch and by row.
pub async fn a04_q07_a_stale_claim_settles_nothing(world: &World) {
    let ids = world.publish("a", 2).await;
    let first = world.claim(2, SHORT).await;
    world.wait(SHORT * 2).await;
    let second = world.claim(2, LONG).await;
    assert_eq!(world.settle(&first, &completed()).await, ids);
    assert_eq!(world.store.account().await.unwrap().in_flight, 2);
    let retry = Disposition::Retry {
        after: std::time::Duration::ZERO,
        lane: lane(),
    };
    assert_eq!(world.settle(&second, &retry).await, [0_i64; 0]);
    let third = world.claim(2, SHORT).await;
    assert_eq!(numbers(&third), ids);
    world.wait(SHORT * 2).await;
    let fourth = world.claim(2, LONG).await;
    assert_eq!(numbers(&fourth), ids);
    assert_eq!(world.settle(&third, &completed()).await, ids);
    assert_eq!(world.settle(&fourth, &completed()).await, [0_i64; 0]);
    assert_eq!(world.store.account().await.unwrap().delivered, 2);
    world.audit().await;
}

/// Nor does it renew or record anything.
pub async fn q07_a_stale_claim_renews_and_records_nothing(world: &World) {
    world.publish("a", 1).await;
    let first = world.claim(1, SHORT).await;
    world.wait(SHORT * 2).await;
    let second = world.claim(1, LONG).await;
    let held = first[0].claim.lease;
    assert_eq!(world.store.renew(&[held], LONG).await.unwrap(), [held]);
    let stale = commit(&first[0], "one", world);
    assert!(!world.store.record(None, &stale).await.unwrap());
    assert!(
        world.claim(10, LONG).await.is_empty(),
        "no follow-up was published"
    );
    let fresh = commit(&second[0], "one", world);
    assert!(world.store.record(None, &fresh).await.unwrap());
    assert_eq!(world.claim(10, LONG).await.len(), 1);
    world.audit().await;
}

/// The results of handlers are there at the next attempt, and cleaned up after the event completed.
pub async fn q09_handler_states_are_kept_and_cleaned_up(world: &World) {
    let ids = world.publish("a", 1).await;
    let claimed = world.claim(1, LONG).await;
    let told = vec![
        state("one", HandlerResult::Success),
        state("two", HandlerResult::TransientError),
    ];
    let settlement = Settlement {
        registry: None,
        transitions: vec![Transition {
            claim: claimed[0].claim.clone(),
            key: None,
            to: Disposition::Retry {
                after: std::time::Duration::ZERO,
                lane: lane(),
            },
            states: told.clone(),
        }],
        finished: vec![claimed[0].claim.lease],
    };
    world.store.settle(&settlement).await.unwrap();
    let again = world.claim(1, LONG).await;
    assert_eq!(again[0].states, told);
    let done = Disposition::Finalize {
        errors: Vec::new(),
        handlers: None,
    };
    let settlement = Settlement {
        registry: None,
        transitions: vec![Transition {
            claim: again[0].claim.clone(),
            key: None,
            to: done,
            states: vec![state("two", HandlerResult::Success)],
        }],
        finished: Vec::new(),
    };
    world.store.settle(&settlement).await.unwrap();
    let shown = world.store.show(ids[0]).await.unwrap().unwrap();
    assert_eq!(shown.status, QueueStatus::Completed);
    assert_eq!(shown.states.len(), 2);
    world.wait(std::time::Duration::from_millis(5)).await;
    assert_eq!(world.store.clean(None).await.unwrap().states, 2);
    let shown = world.store.show(ids[0]).await.unwrap().unwrap();
    assert_eq!(shown.states, []);
    world.audit().await;
}

/// Result, guard and follow-up event are there together, or none of them is.
pub async fn q16_result_guard_and_follow_up_come_together_or_not_at_all(world: &World) {
    world.publish("a", 1).await;
    let claimed = world.claim(1, LONG).await;
    let event = claimed[0].claim.event_id;
    // A handler whose process ends before the commit.
    let mut tx = world.store.begin().await.unwrap();
    let follow_up = [world.event("next")];
    world.store.publish_in(&mut tx, &follow_up).await.unwrap();
    drop(tx);
    assert!(
        !world
            .store
            .is_done(None, "one", event, "mail")
            .await
            .unwrap()
    );
    assert!(world.claim(10, LONG).await.is_empty());
    // And one that reaches it, in its own transaction.
    let mut tx = world.store.begin().await.unwrap();
    world.store.publish_in(&mut tx, &follow_up).await.unwrap();
    let told = commit(&claimed[0], "one", world);
    assert!(world.store.record(Some(tx), &told).await.unwrap());
    assert!(
        world
            .store
            .is_done(None, "one", event, "mail")
            .await
            .unwrap()
    );
    assert_eq!(world.claim(10, LONG).await.len(), 2);
    world.audit().await;
}

/// A guard of one sub-task says nothing of another, of another handler or of another event.
pub async fn q17_a_guard_holds_for_its_own_sub_task_only(world: &World) {
    world.publish("a", 2).await;
    let claimed = world.claim(2, LONG).await;
    let told = commit(&claimed[0], "one", world);
    world.store.record(None, &told).await.unwrap();
    let (first, second) = (claimed[0].claim.event_id, claimed[1].claim.event_id);
    let store = &world.store;
    assert!(store.is_done(None, "one", first, "mail").await.unwrap());
    assert!(!store.is_done(None, "one", first, "invoice").await.unwrap());
    assert!(!store.is_done(None, "two", first, "mail").await.unwrap());
    assert!(!store.is_done(None, "one", second, "mail").await.unwrap());
}

/// Who published an id twice has it twice. Of two that are handled at once, both are told that a side effect is
/// to be done; one records it, and of the other nothing happens, so that its next attempt finds it done.
pub async fn q17_of_two_events_with_the_same_id_one_does_the_side_effect(world: &World) {
    let event = world.event("a");
    let twins = [event.clone(), event];
    world.store.publish(&twins).await.unwrap();
    let claimed = world.claim(2, LONG).await;
    let first = commit(&claimed[0], "one", world);
    assert!(world.store.record(None, &first).await.unwrap());
    for is_in_tx in [false, true] {
        let tx = match is_in_tx {
            true => Some(world.store.begin().await.unwrap()),
            false => None,
        };
        let second = commit(&claimed[1], "one", world);
        let refused = world.store.record(tx, &second).await.unwrap_err();
        assert!(
            matches!(refused, QueueError::SideEffectExists { event_id } if event_id == second.event_id),
            "{refused:?}"
        );
        assert_eq!(refused.class(), FailureClass::Transient);
        assert!(!refused.may_have_happened());
    }
    let shown = world
        .store
        .show(claimed[1].claim.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(shown.states, []);
    assert_eq!(world.claim(10, LONG).await.len(), 1, "one follow-up");
    world.audit().await;
}

/// Parts of a batch are settled while the rest goes on, and only the rest comes back.
pub async fn a_batch_is_settled_in_parts(world: &World) {
    let ids = world.publish("a", 4).await;
    let batch = world.claim(4, SHORT).await;
    let part = |events: &[ClaimedEvent], to: Disposition| Settlement {
        registry: None,
        transitions: events
            .iter()
            .map(|event| Transition {
                claim: event.claim.clone(),
                key: None,
                to: to.clone(),
                states: Vec::new(),
            })
            .collect(),
        finished: Vec::new(),
    };
    let settled = world
        .store
        .settle(&part(&batch[..1], completed()))
        .await
        .unwrap();
    assert_eq!(settled, [0_i64; 0]);
    let later = Disposition::Retry {
        after: LONG,
        lane: lane(),
    };
    world
        .store
        .settle(&part(&batch[1..2], later))
        .await
        .unwrap();
    world.audit().await;
    world.wait(SHORT * 2).await;
    let rest = world.claim(10, LONG).await;
    assert_eq!(numbers(&rest), ids[2..]);
    world.settle(&rest, &completed()).await;
    let account = world.store.account().await.unwrap();
    assert_eq!((account.delivered, account.retrying), (3, 1));
    world.audit().await;
}

/// After an answer that was lost, a batch is reopened: the old token is worthless, and what is left
/// is known.
pub async fn a_batch_that_is_reopened_has_what_is_left(world: &World) {
    let ids = world.publish("a", 3).await;
    let batch = world.claim(3, LONG).await;
    let settlement = Settlement {
        registry: None,
        transitions: vec![Transition {
            claim: batch[0].claim.clone(),
            key: None,
            to: completed(),
            states: Vec::new(),
        }],
        finished: Vec::new(),
    };
    world.store.settle(&settlement).await.unwrap();
    let crate::port::LeaseId::Batch {
        batch: number,
        token,
    } = batch[0].claim.lease
    else {
        panic!("fresh events are claimed in batches");
    };
    let (next, left) = world.store.reopen(number, token).await.unwrap().unwrap();
    assert!(next > token);
    assert_eq!(left, ids[1..]);
    assert_eq!(world.store.reopen(number, token).await.unwrap(), None);
    assert_eq!(world.settle(&batch[1..], &completed()).await, ids[1..]);
    world.audit().await;
}

/// Whatever moves, books and tables agree.
pub async fn a01_the_books_follow_every_move(world: &World) {
    world.publish("a", 6).await;
    world.publish_keyed("a", "k").await;
    world.audit().await;
    let batch = world.claim(10, LONG).await;
    world.audit().await;
    let account = world.store.account().await.unwrap();
    assert_eq!(
        (account.accepted, account.in_flight, account.queued),
        (7, 7, 0)
    );
    let failed = Disposition::Finalize {
        errors: vec![state("one", HandlerResult::UnrecoverableError)],
        handlers: None,
    };
    let retry = Disposition::Retry {
        after: LONG,
        lane: lane(),
    };
    let transitions = [
        completed(),
        failed,
        retry,
        Disposition::Defer { lane: lane() },
        completed(),
        completed(),
        Disposition::Park { lane: lane() },
    ];
    let transitions = batch.iter().zip(transitions).map(|(event, to)| Transition {
        claim: event.claim.clone(),
        key: event.key.clone(),
        to,
        states: Vec::new(),
    });
    let settlement = Settlement {
        registry: None,
        transitions: transitions.collect(),
        finished: vec![batch[0].claim.lease],
    };
    world.store.settle(&settlement).await.unwrap();
    world.audit().await;
    let account = world.store.account().await.unwrap();
    let places = (
        account.delivered,
        account.dead_lettered,
        account.retrying,
        account.parked,
    );
    assert_eq!(places, (3, 1, 1, 1));
    assert_eq!(account.queued, 1);
}
