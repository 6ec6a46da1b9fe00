//! Leases of buckets.

use super::{BUCKETS, LONG_LEASE, OutboxWorld, SHORT_LEASE};

/// No bucket is given twice while it is held; after its lease it is, with a larger token.
pub async fn every_bucket_has_one_owner_and_its_token_grows(world: &OutboxWorld) {
    let some = world.store.acquire("one", 3, LONG_LEASE).await.unwrap();
    let rest = world.store.acquire("two", 100, SHORT_LEASE).await.unwrap();
    assert_eq!(some.len() + rest.len(), usize::try_from(BUCKETS).unwrap());
    assert!(
        some.iter()
            .all(|lease| rest.iter().all(|other| other.bucket != lease.bucket))
    );
    let mut taken = Vec::new();
    while taken.len() < rest.len() {
        taken.extend(world.store.acquire("three", 100, LONG_LEASE).await.unwrap());
    }
    for lease in &taken {
        let before = rest.iter().find(|one| one.bucket == lease.bucket).unwrap();
        assert!(lease.token > before.token);
    }
    let renewed = world.store.renew("two", &rest, LONG_LEASE).await.unwrap();
    assert_eq!(renewed.held, []);
    let renewed = world.store.renew("one", &some, LONG_LEASE).await.unwrap();
    assert_eq!(renewed.held, some);
}

/// A relay that stops leaves nothing to wait for.
pub async fn o17_what_is_released_can_be_taken_at_once(world: &OutboxWorld) {
    let relay = world.relay("one", LONG_LEASE).await;
    world
        .store
        .release("one", &relay.leases, true)
        .await
        .unwrap();
    let mut taken = world
        .store
        .acquire("two", BUCKETS, LONG_LEASE)
        .await
        .unwrap();
    // The clock of a database may not have moved on since.
    while taken.len() < relay.leases.len() {
        taken.extend(
            world
                .store
                .acquire("two", BUCKETS, LONG_LEASE)
                .await
                .unwrap(),
        );
    }
    let renewed = world.store.renew("two", &taken, LONG_LEASE).await.unwrap();
    assert_eq!((renewed.held.len(), renewed.relays), (taken.len(), 1));
}

/// A relay counts while its lease holds.
pub async fn relays_that_are_alive_are_counted(world: &OutboxWorld) {
    world.store.renew("one", &[], LONG_LEASE).await.unwrap();
    let two = world.store.renew("two", &[], LONG_LEASE).await.unwrap();
    assert_eq!(two.relays, 2);
    world.store.renew("two", &[], SHORT_LEASE).await.unwrap();
    while world
        .store
        .renew("one", &[], LONG_LEASE)
        .await
        .unwrap()
        .relays
        > 1
    {}
    assert_eq!(world.store.stats().await.unwrap().relays, 1);
}
