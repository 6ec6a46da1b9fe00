//! The answers of all components, put together.

mod text;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate_core::books::{ComponentAccount, Ledger};
use tidegate_core::env::Clock;
use tidegate_core::{Component, EventId, EventTrace, Failure};

pub(crate) use text::render;

/// How long reading the books of one component may take. A store that hangs must not take the other
/// metrics along.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The books of a component could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    /// It failed.
    #[error("could not read the books of `{name}`")]
    Failed {
        name: String,
        #[source]
        source: Failure,
    },
    /// It did not answer.
    #[error("the books of `{name}` gave no answer within {limit:?}")]
    TimedOut { name: String, limit: Duration },
}

/// Reads all books at once. One that fails fails the whole: a ledger without one of its components would
/// look balanced while events are missing from it.
pub(crate) async fn ledger(
    clock: &dyn Clock,
    components: &[Arc<dyn Component>],
) -> Result<Ledger, LedgerError> {
    let reads = components
        .iter()
        .map(|component| accounts(clock, component.as_ref()));
    let mut accounts = Vec::new();
    for read in join_all(reads).await {
        accounts.extend(read?);
    }
    Ok(Ledger::new(accounts))
}

async fn accounts(
    clock: &dyn Clock,
    component: &dyn Component,
) -> Result<Vec<ComponentAccount>, LedgerError> {
    let name = component.name().to_owned();
    match clock.within(READ_TIMEOUT, component.accounts()).await {
        Some(read) => read.map_err(|source| LedgerError::Failed { name, source }),
        None => Err(LedgerError::TimedOut {
            name,
            limit: READ_TIMEOUT,
        }),
    }
}

/// Looks for an event in these components, in the order in which events pass through them.
pub(crate) async fn locate<'a>(
    components: impl Iterator<Item = &'a Arc<dyn Component>>,
    id: EventId,
) -> Result<Option<EventTrace>, Failure> {
    let mut history = Vec::new();
    for component in components {
        history.extend(component.locate(id).await?);
    }
    Ok(EventTrace::new(id, history))
}
