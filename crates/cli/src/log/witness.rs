//! The log as the server asks it.

use tidegate_core::EventId;
use tidegate_core::books::Audit;
use tidegate_log::Call;
use tidegate_server::log::{Located, Witness};
use tidegate_server::{Accounts, AccountsFuture, AccountsUnavailable};

use super::Opened;

/// The log as the server asks it.
#[derive(Debug, Clone)]
pub(crate) struct LogWitness(pub(crate) Opened);

impl Witness for LogWitness {
    fn audit(&self) -> Call<'_, Audit> {
        Box::pin(self.0.audit())
    }

    fn find(&self, id: EventId) -> Call<'_, Option<Located>> {
        Box::pin(self.0.find(id))
    }
}

impl Accounts for LogWitness {
    fn name(&self) -> &str {
        "log"
    }

    fn read(&self) -> AccountsFuture<'_> {
        Box::pin(async move {
            let components = self.0.components().await;
            components.map_err(|error| AccountsUnavailable::Failed {
                name: "log".to_owned(),
                source: Box::new(error),
            })
        })
    }
}
