//! The view and the commands of operators.

use std::time::Duration;

use super::{LONG_LEASE, OutboxWorld, dead, events, retry_in};
use crate::port::{OutboxFilter, OutboxStatus, PurgeRequest, RowSelection, SettledTo};

const LATER: i64 = i64::MAX / 2;

/// Lists by status and key leave payloads out; one row is shown whole.
pub async fn rows_are_listed_by_status_and_key_and_shown_whole(world: &OutboxWorld) {
    for n in 0..6 {
        world.add(&format!("k{}", n % 2)).await;
    }
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 2).await;
    world
        .settle(&relay, &claimed.rows[..1], SettledTo::Sent)
        .await;
    world.settle(&relay, &claimed.rows[1..], dead()).await;
    let list = async |status, key: Option<&str>, limit| {
        let filter = OutboxFilter {
            status,
            aggregate_id: key.map(str::to_owned),
            limit,
            ..OutboxFilter::default()
        };
        world.store.list(&filter).await.unwrap()
    };
    assert_eq!(list(Some(OutboxStatus::Sent), None, 100).await.len(), 1);
    assert_eq!(list(Some(OutboxStatus::Dead), None, 100).await.len(), 1);
    assert_eq!(list(Some(OutboxStatus::Pending), None, 100).await.len(), 4);
    assert_eq!(list(None, None, 100).await.len(), 5, "all that is not sent");
    assert_eq!(list(None, Some("k0"), 100).await.len(), 2);
    let few = list(None, None, 2).await;
    assert_eq!((few.len(), few[0].payload.as_ref()), (2, None));
    assert_eq!(few[0].payload_bytes, 2);
    let filter = OutboxFilter {
        after: few[1].id,
        ..OutboxFilter::default()
    };
    assert_eq!(world.store.list(&filter).await.unwrap().len(), 3);
    let row = world
        .store
        .show(&RowSelection::Id(few[0].id))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(row.payload.as_deref(), Some("{}"));
    assert_eq!(
        (row.type_name.as_str(), row.topic.as_deref()),
        ("T", Some("t"))
    );
    assert_eq!(
        world.store.show(&RowSelection::Id(9_999)).await.unwrap(),
        None
    );
}

/// Dead rows come back, and rows that wait are due at once.
pub async fn o09_dead_rows_are_retried_by_number_by_event_and_all(world: &OutboxWorld) {
    for n in 0..4 {
        world.add(&format!("k{n}")).await;
    }
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 10).await;
    world.settle(&relay, &claimed.rows[..3], dead()).await;
    world
        .settle(&relay, &claimed.rows[3..], retry_in(LONG_LEASE))
        .await;
    let by_number = RowSelection::Id(claimed.rows[0].id);
    assert_eq!(world.store.retry(&by_number).await.unwrap(), 1);
    let by_event = RowSelection::Event(claimed.rows[1].event_id);
    assert_eq!(world.store.retry(&by_event).await.unwrap(), 1);
    assert_eq!(world.claim(&relay, 10).await.rows.len(), 2);
    assert_eq!(world.store.retry(&RowSelection::All).await.unwrap(), 2);
    let again = world.claim(&relay, 10).await;
    assert_eq!(again.rows.len(), 4);
    assert!(again.rows.iter().all(|row| row.attempts == 0));
    world.audit().await;
    world.settle(&relay, &again.rows, SettledTo::Sent).await;
    assert_eq!(world.store.retry(&RowSelection::All).await.unwrap(), 0);
    world.audit().await;
}

/// A dead row that comes back goes before the rows of its key behind it, also where a claim has passed it.
pub async fn o09_a_retried_row_keeps_its_place_in_its_key(world: &OutboxWorld) {
    let (first, second) = (world.add("a").await, world.add("a").await);
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 1).await;
    assert_eq!(events(&claimed), [first]);
    world.settle(&relay, &claimed.rows, dead()).await;
    let which = RowSelection::Event(first);
    assert_eq!(world.store.retry(&which).await.unwrap(), 1);
    let passed = claimed.rows[0].id;
    let behind = world.claim_between(&relay, passed, None, 10).await;
    // A database with one writer reads from the beginning each time.
    let seen = events(&behind);
    assert!(seen.is_empty() || seen == [first, second], "{seen:?}");
    assert_eq!(events(&world.claim(&relay, 10).await), [first, second]);
}

/// A row whose wait is over is on its way, and keeps its attempts.
pub async fn o09_a_row_that_is_due_already_is_left_alone_by_a_retry(world: &OutboxWorld) {
    let event = world.add("a").await;
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 10).await;
    let due = retry_in(Duration::ZERO);
    world.settle(&relay, &claimed.rows, due).await;
    let which = RowSelection::Event(event);
    for which in [&which, &RowSelection::All] {
        assert_eq!(world.store.retry(which).await.unwrap(), 0);
    }
    let row = world.store.show(&which).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (OutboxStatus::Pending, 1));
    world.audit().await;
}

/// Purge and clean-up remove finished rows of the age that was asked for, and post them.
pub async fn o19_purge_and_clean_up_remove_only_what_is_finished(world: &OutboxWorld) {
    for n in 0..6 {
        world.add(&format!("k{n}")).await;
    }
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 5).await;
    world
        .settle(&relay, &claimed.rows[..3], SettledTo::Sent)
        .await;
    world.settle(&relay, &claimed.rows[3..4], dead()).await;
    world
        .settle(&relay, &claimed.rows[4..], retry_in(LONG_LEASE))
        .await;
    let purge = async |status, before_ms, limit| {
        let request = PurgeRequest {
            status,
            before_ms,
            limit,
        };
        world.store.purge(request).await.unwrap()
    };
    assert_eq!(
        purge(OutboxStatus::Sent, 0, 100).await,
        0,
        "none is that old"
    );
    assert_eq!(purge(OutboxStatus::Sent, LATER, 1).await, 1);
    world.audit().await;
    assert_eq!(world.store.clean(Some(LONG_LEASE), 100).await.unwrap(), 0);
    assert_eq!(world.store.clean(None, 100).await.unwrap(), 0);
    let mut cleaned = 0;
    // Until the clock has moved on.
    while cleaned < 2 {
        cleaned += world.store.clean(Some(Duration::ZERO), 100).await.unwrap();
    }
    world.audit().await;
    assert_eq!(purge(OutboxStatus::Dead, LATER, 100).await, 1);
    world.audit().await;
    let left = world.store.list(&OutboxFilter::default()).await.unwrap();
    assert_eq!(left.len(), 2, "what is not finished stays");
    let account = world.store.account().await.unwrap();
    assert_eq!((account.delivered, account.lost.total()), (3, 1));
}

/// The numbers of the table.
pub async fn stats_count_what_waits(world: &OutboxWorld) {
    for n in 0..5 {
        world.add(&format!("k{n}")).await;
    }
    let relay = world.relay("one", LONG_LEASE).await;
    let claimed = world.claim(&relay, 3).await;
    world.settle(&relay, &claimed.rows[..1], dead()).await;
    world
        .settle(&relay, &claimed.rows[1..2], retry_in(LONG_LEASE))
        .await;
    let stats = world.store.stats().await.unwrap();
    assert_eq!(
        (stats.pending, stats.retrying, stats.dead, stats.relays),
        (4, 1, 1, 1)
    );
    assert!(stats.oldest_age_ms.is_some());
    let claimed = world.claim(&relay, 2).await.rows.len();
    let stats = world.store.stats().await.unwrap();
    assert_eq!((stats.claimed, stats.pending), (2, 4 - 2));
    assert_eq!(claimed, 2);
}
