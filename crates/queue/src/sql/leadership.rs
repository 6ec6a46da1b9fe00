//! Turns, as leases of the database.

use std::time::Duration;

use tidegate_store::lease::{self, Lease};
use tidegate_store::{Store, StoreTx};

use crate::QueueError;
use crate::port::Leadership;

pub(super) async fn acquire(
    store: &Store,
    name: &str,
    owner: &str,
    span: Duration,
) -> Result<Option<Leadership>, QueueError> {
    let taken = lease::acquire(store, name, owner, span).await?;
    Ok(taken.map(|Lease { name, token }| Leadership { name, token }))
}

pub(super) async fn renew(
    store: &Store,
    leadership: &Leadership,
    span: Duration,
) -> Result<bool, QueueError> {
    Ok(lease::renew(store, &lease_of(leadership), span).await?)
}

/// A transaction for whoever has this leadership; none where it is not held any more.
pub(super) async fn begin(
    store: &Store,
    leadership: &Leadership,
) -> Result<Option<StoreTx>, QueueError> {
    checked(store.begin_own().await?, leadership).await
}

/// This transaction, or none where the leadership is not held any more: it is rolled back then.
pub(super) async fn checked(
    mut tx: StoreTx,
    leadership: &Leadership,
) -> Result<Option<StoreTx>, QueueError> {
    if lease::holds(&mut tx, &lease_of(leadership)).await? {
        return Ok(Some(tx));
    }
    tx.rollback().await?;
    Ok(None)
}

fn lease_of(leadership: &Leadership) -> Lease {
    Lease {
        name: leadership.name.clone(),
        token: leadership.token,
    }
}
