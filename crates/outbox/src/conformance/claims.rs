//! Claiming.

use std::time::Duration;

use super::{LONG_LEASE, OutboxWorld, events, retry_in};
use crate::port::{OutboxStatus, RowSelection, SettledTo};

/// Events of one key come in the order in which they were added.
pub async fn events_of_a_key_are_claimed_in_their_order(world: &OutboxWorld) {
    let mut added = Vec::new();
    for n in 0..30 {
        added.push(world.add(["a", "b", "c"][n % 3]).await);
    }
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 100).await;
    assert!(claimed.is_held);
    assert_eq!(events(&claimed), added);
    let few = world.claim(&relay, 7).await;
    assert_eq!(events(&few), added[..7]);
}

/// A relay whose lease was taken over, or is of another relay, claims nothing.
pub async fn o02_a_claim_needs_the_leases_that_it_names(world: &OutboxWorld) {
    world.add("a").await;
    let first = world.relay("one", LONG_LEASE).await;
    assert_eq!(world.claim(&first, 10).await.rows.len(), 1);
    let second = world.take_over(&first, "two").await;
    let claimed = world.claim(&first, 10).await;
    assert!(!claimed.is_held && claimed.rows.is_empty());
    assert_eq!(world.claim(&second, 10).await.rows.len(), 1);
}

/// A row that waits for its next attempt holds up its key, and nothing else.
pub async fn o06_a_row_that_waits_holds_up_its_key_and_no_other(world: &OutboxWorld) {
    let (first, other) = (world.add("a").await, world.add("b").await);
    world.add("a").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 1).await;
    assert_eq!(events(&claimed), [first]);
    world
        .settle(&relay, &claimed.rows, retry_in(LONG_LEASE))
        .await;
    assert_eq!(events(&world.claim(&relay, 10).await), [other]);
    world
        .store
        .retry(&RowSelection::Event(first))
        .await
        .unwrap();
    assert_eq!(world.claim(&relay, 10).await.rows.len(), 3);
    world.audit().await;
}

/// A claim names how far it saw, and the next one goes on behind it.
pub async fn a_claim_goes_on_behind_the_one_before_up_to_where_it_saw(world: &OutboxWorld) {
    let mut added = Vec::new();
    for n in 0..10 {
        added.push(world.add(&format!("k{n}")).await);
    }
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 4).await;
    let last = claimed.rows.last().unwrap().id;
    assert!(claimed.up_to >= last);
    world.settle(&relay, &claimed.rows, SettledTo::Sent).await;
    let late = world.add("k3").await;
    let next = world
        .claim_between(&relay, last, Some(claimed.up_to), 100)
        .await;
    let mut seen = events(&claimed);
    seen.extend(events(&next).into_iter().filter(|id| *id != late));
    assert_eq!(seen, added);
    world.settle(&relay, &next.rows, SettledTo::Sent).await;
    let rest = world.claim(&relay, 100).await;
    let came_late = events(&rest).contains(&late) || events(&next).contains(&late);
    assert!(came_late, "what came later comes later");
}

/// A row that is due again is passed over behind the cursor, and so are the others of its key.
pub async fn a_due_row_behind_the_cursor_holds_up_its_key(world: &OutboxWorld) {
    let first = world.add("a").await;
    world.add("a").await;
    let other = world.add("b").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 1).await;
    world
        .settle(&relay, &claimed.rows, retry_in(Duration::ZERO))
        .await;
    let behind = world
        .claim_between(&relay, claimed.rows[0].id, None, 10)
        .await;
    // A database with one writer reads from the beginning each time.
    let seen = events(&behind);
    assert!(seen == [other] || seen.first() == Some(&first), "{seen:?}");
    assert_eq!(events(&world.claim(&relay, 10).await)[0], first);
}

/// A row that a live relay is publishing is shown as claimed, and is in flight.
pub async fn a_claimed_row_is_shown_so_and_the_books_do_not_move(world: &OutboxWorld) {
    let event = world.add("a").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 10).await;
    let which = RowSelection::Event(event);
    let row = world.store.show(&which).await.unwrap().unwrap();
    assert_eq!(row.status, OutboxStatus::Claimed);
    assert_eq!(row.locked_by.as_deref(), Some("one"));
    let account = world.store.account().await.unwrap();
    assert_eq!((account.in_flight, account.queued), (1, 0));
    world.audit().await;
    world.settle(&relay, &claimed.rows, SettledTo::Sent).await;
    let row = world.store.show(&which).await.unwrap().unwrap();
    assert_eq!((row.status, row.sent), (OutboxStatus::Sent, true));
    assert!(row.sent_at.is_some());
    let account = world.store.account().await.unwrap();
    assert_eq!((account.in_flight, account.delivered), (0, 1));
    world.audit().await;
}
