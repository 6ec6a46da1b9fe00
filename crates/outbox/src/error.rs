//! The errors of the outbox.

use std::error::Error;

use tidegate_core::{Classify, Code, Failure, FailureClass, error_chain};
use tidegate_log::LogError;
use tidegate_store::{OUTCOME_UNKNOWN, StoreError};

/// An operation of the outbox that did not work.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The database beneath.
    #[error("the outbox's store failed")]
    Store(#[from] StoreError),
    /// The log that rows are published to.
    #[error("the outbox's log failed")]
    Log(#[from] LogError),
    /// No answer came, and it may or may not have happened.
    #[error("no answer while trying to {doing}; the outcome is unknown")]
    OutcomeUnknown {
        /// The call that got no answer.
        doing: &'static str,
    },
    /// A setting that cannot be used.
    #[error("`{what}` of the outbox cannot be `{value}`: {why}")]
    Options {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// The reason.
        why: &'static str,
    },
    /// The table was made with other settings, which cannot be changed under its rows.
    #[error("table `{table}` was made with {made} and not with {wanted}")]
    OtherTable {
        /// The table.
        table: String,
        /// The settings that it was made with.
        made: String,
        /// Those of the relay.
        wanted: String,
    },
    /// No row has this number or event id.
    #[error("there is no row `{id}` in table `{table}`")]
    UnknownRow {
        /// The number or id.
        id: String,
        /// The table.
        table: String,
    },
    /// Only rows that are finished can be purged.
    #[error("rows that are {status} cannot be purged")]
    NotPurgeable {
        /// Their status.
        status: &'static str,
    },
    /// A value has no JSON form.
    #[error("the payload of an event cannot be written as JSON")]
    Encode(#[source] serde_json::Error),
    /// The transaction is of another database than the outbox.
    #[error("the transaction belongs to another database than the outbox")]
    ForeignTransaction,
}

impl OutboxError {
    /// Whether it may have been carried out all the same: the answer is what got lost.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Store(error) => error.may_have_happened(),
            Self::OutcomeUnknown { .. } => true,
            Self::Log(_)
            | Self::Options { .. }
            | Self::OtherTable { .. }
            | Self::UnknownRow { .. }
            | Self::NotPurgeable { .. }
            | Self::Encode(_)
            | Self::ForeignTransaction => false,
        }
    }

    /// The code by which people and metrics know it.
    #[must_use]
    pub fn code(&self) -> Code {
        self.facts().0
    }

    /// The way out of it, for people.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        self.facts().2
    }

    /// Its code, its class, and the way out of it.
    fn facts(&self) -> (Code, FailureClass, Option<String>) {
        use FailureClass::{Permanent, System, Transient};
        let (code, class, hint) = match self {
            Self::Store(StoreError::Schema { .. }) => (
                "store.schema",
                System,
                "run `tidegate outbox migrate`; `--print` shows the SQL instead",
            ),
            Self::Store(error) => {
                return (error.code(), error.class(), error.hint().map(str::to_owned));
            }
            Self::Log(error) => return (error.code(), error.class(), error.hint()),
            Self::OutcomeUnknown { .. } => ("store.timeout", Transient, OUTCOME_UNKNOWN),
            Self::Options { .. } => ("outbox.options", System, ""),
            Self::OtherTable { .. } => (
                "outbox.other-table",
                System,
                "set it back, or drain the table, rename it and run `tidegate outbox migrate`",
            ),
            Self::UnknownRow { .. } => (
                "outbox.unknown",
                Permanent,
                "`tidegate outbox ls` lists the rows; `tidegate audit` names one that was lost",
            ),
            Self::NotPurgeable { .. } => (
                "outbox.not-purgeable",
                Permanent,
                "only SENT and DEAD rows can be purged; the others are still to be published",
            ),
            Self::Encode(_) => ("outbox.payload", Permanent, ""),
            Self::ForeignTransaction => ("internal", Permanent, ""),
        };
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        (Code::from_static(code), class, hint)
    }
}

impl From<&OutboxError> for Failure {
    fn from(error: &OutboxError) -> Self {
        let (code, hint) = (error.code(), error.hint());
        match error {
            OutboxError::Store(beneath) => Self::of(beneath, code, hint),
            OutboxError::Log(beneath) => Self::of(beneath, code, hint),
            OutboxError::OutcomeUnknown { .. }
            | OutboxError::Options { .. }
            | OutboxError::OtherTable { .. }
            | OutboxError::UnknownRow { .. }
            | OutboxError::NotPurgeable { .. }
            | OutboxError::Encode(_)
            | OutboxError::ForeignTransaction => Self::of(error, code, hint),
        }
    }
}

impl From<OutboxError> for Failure {
    fn from(error: OutboxError) -> Self {
        Self::from(&error)
    }
}

/// An error for health and log lines, with the code under which people find its page.
pub(crate) fn with_code(code: &Code, error: &dyn Error) -> String {
    format!("{code}: {}", error_chain(error))
}

impl Classify for OutboxError {
    fn class(&self) -> FailureClass {
        self.facts().1
    }
}
