//! Rules of settlements in which one event comes twice: of a process that stood still for longer than
//! its lease, and has an old and a new claim of the same event.

use std::collections::BTreeSet;
use std::time::Duration;

use super::settles::commit;
use super::{LONG, SHORT, World, lane, numbers};
use crate::port::{
    ClaimedEvent, Disposition, HandlerResult, HandlerState, LeaseId, QueueStatus, Settlement,
    Transition,
};

/// Completed, with the handlers' own states to say who did it.
fn completed() -> Disposition {
    Disposition::Finalize {
        errors: Vec::new(),
        handlers: None,
    }
}

fn retried() -> Disposition {
    Disposition::Retry {
        after: LONG,
        lane: lane(),
    }
}

/// Moves an event, and remembers that `handler` succeeded.
fn moved(event: &ClaimedEvent, to: &Disposition, handler: &str) -> Transition {
    Transition {
        claim: event.claim.clone(),
        key: event.key.clone(),
        to: to.clone(),
        states: vec![HandlerState {
            handler: handler.to_owned(),
            result: HandlerResult::Success,
            attempts: 1,
            error: None,
        }],
    }
}

async fn settle(world: &World, transitions: Vec<Transition>) -> Vec<i64> {
    let finished = transitions.iter().map(|one| one.claim.lease).collect();
    let settlement = Settlement {
        registry: None,
        transitions,
        finished,
    };
    world.store.settle(&settlement).await.unwrap()
}

/// The outcomes of the first and the second claim, and whether the first is settled first.
type Disagreement = (Disposition, Disposition, bool);

/// Every way in which two claims can disagree, and the order they come in.
fn disagreements() -> impl Iterator<Item = Disagreement> {
    let verdicts = [
        (completed(), retried()),
        (retried(), completed()),
        (completed(), completed()),
        (retried(), retried()),
    ];
    let both = verdicts
        .into_iter()
        .map(|(old, new)| [(old.clone(), new.clone(), true), (old, new, false)]);
    both.flatten()
}

fn status_after(to: &Disposition) -> QueueStatus {
    match to {
        Disposition::Finalize { .. } => QueueStatus::Completed,
        Disposition::Retry { .. } | Disposition::Defer { .. } | Disposition::Park { .. } => {
            QueueStatus::Pending
        }
    }
}

/// Settles an old and a new claim of these events at once: what the new one says is done, and nothing of
/// what the old one says.
async fn settle_both(
    world: &World,
    (old, new): (&[ClaimedEvent], &[ClaimedEvent]),
    (first, second, is_old_first): Disagreement,
) {
    assert_eq!(numbers(old), numbers(new));
    let mut transitions: Vec<Transition> =
        old.iter().map(|one| moved(one, &first, "old")).collect();
    transitions.extend(new.iter().map(|one| moved(one, &second, "new")));
    if !is_old_first {
        transitions.reverse();
    }
    let mut stale = settle(world, transitions).await;
    stale.sort_unstable();
    assert_eq!(stale, numbers(old), "{first:?}, then {second:?}");
    for id in numbers(new) {
        let shown = world.store.show(id).await.unwrap().unwrap();
        assert_eq!(shown.status, status_after(&second));
        let spoke: Vec<&str> = shown.states.iter().map(|s| s.handler.as_str()).collect();
        assert_eq!(spoke, ["new"]);
    }
    world.audit().await;
}

/// Of two claims of one row, each counts by its own token.
pub async fn a04_q07_of_two_claims_of_one_event_only_the_newest_is_settled(world: &World) {
    let mut claims = Vec::new();
    for disagreement in disagreements() {
        world.publish("a", 2).await;
        let fresh = world.claim(2, LONG).await;
        let again = Disposition::Retry {
            after: Duration::ZERO,
            lane: lane(),
        };
        assert_eq!(world.settle(&fresh, &again).await, [0_i64; 0]);
        world.wait(Duration::from_millis(5)).await;
        let old = world.claim(2, LONG).await;
        assert_eq!(numbers(&old), numbers(&fresh));
        claims.push((old, disagreement));
    }
    settle_all_twice(world, claims).await;
}

/// Claims what there is a second time, when the claims of two events each that hold now have run out, and
/// settles both.
async fn settle_all_twice(world: &World, old: Vec<(Vec<ClaimedEvent>, Disagreement)>) {
    let held = old.iter().flat_map(|(old, _)| old);
    let held: BTreeSet<LeaseId> = held.map(|one| one.claim.lease).collect();
    let held: Vec<LeaseId> = held.into_iter().collect();
    assert_eq!(world.store.renew(&held, SHORT).await.unwrap(), []);
    world.wait(SHORT * 2).await;
    for (old, disagreement) in old {
        let new = world.claim(2, LONG).await;
        settle_both(world, (&old, &new), disagreement).await;
    }
}

/// And so it is with two claims of one batch.
pub async fn a04_q07_of_two_claims_of_one_batch_only_the_newest_is_settled(world: &World) {
    let mut claims = Vec::new();
    for disagreement in disagreements() {
        world.publish("a", 2).await;
        claims.push((world.claim(2, LONG).await, disagreement));
    }
    settle_all_twice(world, claims).await;
}

/// Half of a batch that ran out is taken over by somebody who asks for less: whoever had it has no say in
/// that half any more, nor in the rest, which is nobody's until somebody asks for it.
pub async fn a04_q07_a_claim_of_a_batch_that_was_taken_over_in_part_is_stale(world: &World) {
    let ids = world.publish("a", 3).await;
    let old = world.claim(3, SHORT).await;
    assert_eq!(numbers(&old), ids);
    world.wait(SHORT * 2).await;
    let part = world.claim(1, LONG).await;
    assert_eq!(numbers(&part), ids[..1]);
    let books = world.store.account().await.unwrap();
    for one in &old {
        let record = commit(one, "old", world);
        assert!(!world.store.record(None, &record).await.unwrap());
    }
    let transitions = old.iter().map(|one| moved(one, &completed(), "old"));
    let mut stale = settle(world, transitions.collect()).await;
    stale.sort_unstable();
    assert_eq!(stale, ids, "it settles nothing of the batch");
    let held = old[0].claim.lease;
    assert_eq!(world.store.renew(&[held], LONG).await.unwrap(), [held]);
    assert_eq!(world.store.account().await.unwrap(), books, "nothing moved");
    world.audit().await;
    let rest = world.claim(9, LONG).await;
    assert_eq!(numbers(&rest), ids[1..]);
    for one in part.iter().chain(&rest) {
        assert_eq!(one.states, [], "nothing was recorded");
        let transitions = vec![moved(one, &completed(), "new")];
        assert_eq!(settle(world, transitions).await, [0_i64; 0]);
    }
    assert_eq!(world.store.account().await.unwrap().delivered, 3);
    world.audit().await;
}

/// The same claim twice in one settlement: the first counts, and the second is stale.
pub async fn a04_q07_a_claim_that_is_settled_twice_at_once_moves_its_event_once(world: &World) {
    for (first, second, is_row) in disagreements() {
        let ids = world.publish("a", 1).await;
        let mut claimed = world.claim(1, LONG).await;
        if is_row {
            let again = Disposition::Retry {
                after: Duration::ZERO,
                lane: lane(),
            };
            assert_eq!(world.settle(&claimed, &again).await, [0_i64; 0]);
            world.wait(Duration::from_millis(5)).await;
            claimed = world.claim(1, LONG).await;
        }
        let transitions = vec![
            moved(&claimed[0], &first, "first"),
            moved(&claimed[0], &second, "second"),
        ];
        assert_eq!(settle(world, transitions).await, ids);
        let shown = world.store.show(ids[0]).await.unwrap().unwrap();
        assert_eq!(shown.status, status_after(&first));
        assert_eq!(shown.states.len(), 1);
        assert_eq!(shown.states[0].handler, "first");
        world.audit().await;
    }
}

/// An event of which the lease was over is canceled and given back: whoever had it, by batch or by row,
/// changes nothing of it any more, whatever the claims of it are called since.
pub async fn a04_q07_a_claim_from_before_an_event_was_given_back_is_stale(world: &World) {
    let ids = world.publish("a", 1).await;
    let mut earlier = world.claim(1, LONG).await;
    let again = Disposition::Retry {
        after: Duration::ZERO,
        lane: lane(),
    };
    assert_eq!(world.settle(&earlier, &again).await, [0_i64; 0]);
    world.wait(Duration::from_millis(5)).await;
    for _ in 0..2 {
        let late = world.claim(1, SHORT).await;
        assert_eq!(numbers(&late), ids);
        earlier.extend(late);
        world.wait(SHORT * 2).await;
        world.store.cancel(ids[0]).await.unwrap();
        world.store.redrive(ids[0]).await.unwrap();
    }
    let newest = world.claim(1, LONG).await;
    assert_eq!(numbers(&newest), ids);
    for old in &earlier {
        let held = old.claim.lease;
        assert_eq!(world.store.renew(&[held], LONG).await.unwrap(), [held]);
        let record = commit(old, "one", world);
        assert!(!world.store.record(None, &record).await.unwrap());
        let transitions = vec![moved(old, &completed(), "old")];
        assert_eq!(settle(world, transitions).await, ids);
    }
    world.audit().await;
    let held = newest[0].claim.lease;
    assert_eq!(world.store.renew(&[held], LONG).await.unwrap(), []);
    let transitions = vec![moved(&newest[0], &completed(), "new")];
    assert_eq!(settle(world, transitions).await, [0_i64; 0]);
    let shown = world.store.show(ids[0]).await.unwrap().unwrap();
    let spoke: Vec<&str> = shown.states.iter().map(|s| s.handler.as_str()).collect();
    assert_eq!((shown.status, spoke), (QueueStatus::Completed, vec!["new"]));
    world.audit().await;
}
