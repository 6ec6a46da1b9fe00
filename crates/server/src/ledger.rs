//! The books of all components, as they are shown.

mod text;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{ComponentAccount, Ledger};
use tidegate_core::env::Clock;

use crate::future::{self, Boxed};
pub(crate) use text::render;

/// How long reading the books of one source may take. A store that hangs must not take the other
/// metrics along.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Books on their way, boxed so that sources stay object-safe.
pub type AccountsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<ComponentAccount>, AccountsUnavailable>> + Send + 'a>>;

/// Something that keeps books.
///
/// An implementation must keep: the account of each component is one snapshot, so it balances
/// whenever the books do; reading changes nothing and may be canceled at any await.
pub trait Accounts: Send + Sync + fmt::Debug {
    /// What the source is called when it cannot be read.
    fn name(&self) -> &str;

    /// The accounts of its components now.
    fn read(&self) -> AccountsFuture<'_>;
}

/// The books of a source could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountsUnavailable {
    /// What keeps them failed.
    #[error("could not read the books of `{name}`")]
    Failed {
        /// The source.
        name: String,
        /// What it said.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// What keeps them did not answer.
    #[error("the books of `{name}` gave no answer within {limit:?}")]
    TimedOut {
        /// The source.
        name: String,
        /// How long it had.
        limit: Duration,
    },
}

/// Reads all sources at once. One that fails fails the whole: a ledger without one of its
/// components would look balanced while events are missing from it.
pub(crate) async fn read(
    clock: &dyn Clock,
    sources: &[Arc<dyn Accounts>],
) -> Result<Ledger, AccountsUnavailable> {
    let reads = sources
        .iter()
        .map(|source| -> Boxed<'_, _> { Box::pin(read_one(clock, source.as_ref())) })
        .collect();
    let mut components = Vec::new();
    for part in future::all(reads).await {
        components.extend(part?);
    }
    Ok(Ledger::new(components))
}

async fn read_one(
    clock: &dyn Clock,
    source: &dyn Accounts,
) -> Result<Vec<ComponentAccount>, AccountsUnavailable> {
    tokio::select! {
        biased;
        components = source.read() => components,
        () = clock.sleep(READ_TIMEOUT) => Err(AccountsUnavailable::TimedOut {
            name: source.name().to_owned(),
            limit: READ_TIMEOUT,
        }),
    }
}
