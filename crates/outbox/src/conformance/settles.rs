//! Settling.

use std::time::Duration;

use super::{LONG_LEASE, OutboxWorld, USUAL_TOPIC, dead, retry_in};
use crate::NewOutboxEvent;
use crate::port::{OutboxStatus, RowSelection, Settled, SettledTo};

/// A relay that lost its buckets cannot mark rows.
pub async fn o03_a_settle_after_the_buckets_were_taken_over_changes_nothing(world: &OutboxWorld) {
    let event = world.add("a").await;
    let first = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&first, 10).await;
    let second = world.take_over(&first, "two").await;
    for to in [SettledTo::Sent, retry_in(LONG_LEASE), dead()] {
        let settled = world.settle(&first, &claimed.rows, to).await;
        assert_eq!(settled, Settled::Fenced);
    }
    let row = world
        .store
        .show(&RowSelection::Event(event))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((row.status, row.attempts), (OutboxStatus::Pending, 0));
    assert_eq!(world.send_all(&second).await, [event]);
    world.audit().await;
}

/// Attempts, error and next attempt are written down.
pub async fn o07_a_failed_attempt_is_written_down_and_waits(world: &OutboxWorld) {
    let event = world.add("a").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let wait = Duration::from_secs(40);
    let claimed = world.claim(&relay, 10).await;
    assert_eq!(
        world.settle(&relay, &claimed.rows, retry_in(wait)).await,
        Settled::Done
    );
    let row = world
        .store
        .show(&RowSelection::Event(event))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (row.status, row.attempts, row.sent),
        (OutboxStatus::Pending, 1, false)
    );
    assert_eq!(row.last_error.as_deref(), Some("why"));
    let waits = row.next_attempt_at.unwrap() - row.last_error_at.unwrap();
    assert!((39_900..=40_100).contains(&waits), "{waits}");
    assert!(world.claim(&relay, 10).await.rows.is_empty());
    let account = world.store.account().await.unwrap();
    assert_eq!((account.queued, account.retrying), (0, 1));
    world.audit().await;
}

/// A dead row is neither sent nor claimed again.
pub async fn o08_a_row_that_is_given_up_on_is_dead_and_not_sent(world: &OutboxWorld) {
    let event = world.add("a").await;
    let next = world.add("a").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 1).await;
    assert_eq!(
        world.settle(&relay, &claimed.rows, dead()).await,
        Settled::Done
    );
    let row = world
        .store
        .show(&RowSelection::Event(event))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (row.status, row.sent, row.sent_at),
        (OutboxStatus::Dead, false, None)
    );
    assert_eq!(world.send_all(&relay).await, [next], "its key goes on");
    let account = world.store.account().await.unwrap();
    assert_eq!((account.dead_lettered, account.delivered), (1, 1));
    world.audit().await;
}

/// Somebody retried a row by hand while it was claimed: it is left alone, and the rest is settled.
pub async fn rows_that_somebody_else_has_removed_are_told_and_the_others_settled(
    world: &OutboxWorld,
) {
    let first = world.add("a").await;
    let second = world.add("b").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 10).await;
    // The first row fails elsewhere, so that it is not as it was claimed.
    world
        .settle(&relay, &claimed.rows[..1], retry_in(LONG_LEASE))
        .await;
    let settled = world.settle(&relay, &claimed.rows, SettledTo::Sent).await;
    assert_eq!(settled, Settled::Foreign(vec![claimed.rows[0].id]));
    let status = async |id| {
        let row = world.store.show(&RowSelection::Event(id)).await.unwrap();
        row.unwrap().status
    };
    assert_eq!(status(first).await, OutboxStatus::Pending);
    assert_eq!(status(second).await, OutboxStatus::Sent);
    world.audit().await;
}

/// An answer that was lost is asked for again, and nothing is posted twice.
pub async fn a04_a_second_settle_changes_nothing(world: &OutboxWorld) {
    world.add("a").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 10).await;
    let again = [SettledTo::Sent, SettledTo::Sent];
    let mut outcomes = Vec::new();
    for to in again {
        outcomes.push(world.settle(&relay, &claimed.rows, to).await);
    }
    let id = claimed.rows[0].id;
    assert_eq!(outcomes, [Settled::Done, Settled::Foreign(vec![id])]);
    assert_eq!(world.store.account().await.unwrap().delivered, 1);
    world.audit().await;
}

/// The topic of the relay may be another one later. A row that is not sent goes to the one of that time.
pub async fn a01_a_row_that_is_sent_names_the_topic_that_it_went_to(world: &OutboxWorld) {
    let plain = |key| NewOutboxEvent::new(key, "T", "{}");
    let events = [plain("a"), plain("b").topic("own"), plain("c"), plain("d")];
    world.store.insert(&events).await.unwrap();
    let relay = world.relay("one", LONG_LEASE).await;
    let rows = world.claim(&relay, 10).await.rows;
    world.settle(&relay, &rows[..2], SettledTo::Sent).await;
    let wait = retry_in(LONG_LEASE);
    world.settle(&relay, &rows[2..3], wait).await;
    world.settle(&relay, &rows[3..], dead()).await;
    let mut topics = Vec::new();
    for row in &rows {
        let which = RowSelection::Id(row.id);
        topics.push(world.store.show(&which).await.unwrap().unwrap().topic);
    }
    let named = |topic: &str| Some(topic.to_owned());
    assert_eq!(topics, [named(USUAL_TOPIC), named("own"), None, None]);
    world.audit().await;
}
