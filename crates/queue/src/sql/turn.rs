//! Turns, as leases of the database.

use std::time::Duration;

use tidegate_store::lease::{self, Lease};
use tidegate_store::{Store, Tx};

use crate::QueueError;
use crate::port::Turn;

pub(super) async fn take(
    store: &Store,
    name: &str,
    owner: &str,
    span: Duration,
) -> Result<Option<Turn>, QueueError> {
    let taken = lease::acquire(store, name, owner, span).await?;
    Ok(taken.map(|Lease { name, token }| Turn { name, token }))
}

pub(super) async fn keep(store: &Store, turn: &Turn, span: Duration) -> Result<bool, QueueError> {
    Ok(lease::renew(store, &lease_of(turn), span).await?)
}

/// A transaction for whoever has this turn; none where it is not held any more.
pub(super) async fn begin(store: &Store, turn: &Turn) -> Result<Option<Tx>, QueueError> {
    checked(store.begin_own().await?, turn).await
}

/// This transaction, or none where the turn is not held any more: it is rolled back then.
pub(super) async fn checked(mut tx: Tx, turn: &Turn) -> Result<Option<Tx>, QueueError> {
    if lease::holds(&mut tx, &lease_of(turn)).await? {
        return Ok(Some(tx));
    }
    tx.rollback().await?;
    Ok(None)
}

fn lease_of(turn: &Turn) -> Lease {
    Lease {
        name: turn.name.clone(),
        token: turn.token,
    }
}
