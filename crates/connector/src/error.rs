//! Errors of the connector's operations.

use tidegate_core::{Classify, Code, Failure, FailureClass, NameError, Offset, Topic};
use tidegate_log::{LogError, TopicPartition};

use crate::lifecycle::{ContainerState, LifecycleCommand, RefusedTransition};

/// An operation of the connector that was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// The state of the binding does not allow the command.
    #[error("{}", RefusedTransition { from: *.state, command: *.command }.message(.binding))]
    InvalidContainerState {
        /// The binding.
        binding: String,
        /// Its state.
        state: ContainerState,
        /// The command.
        command: LifecycleCommand,
    },
    /// The name of the binding is taken.
    #[error("binding '{binding}' already exists")]
    BindingAlreadyExists {
        /// The binding.
        binding: String,
    },
    /// Another binding reads the same topic in the same group.
    #[error("topic `{topic}` and group `{group}` of binding '{binding}' are those of '{other}'")]
    BoundTwice {
        /// The binding.
        binding: String,
        /// The one that was there before.
        other: String,
        /// The topic.
        topic: Topic,
        /// The group.
        group: String,
    },
    /// There is no binding of that name.
    #[error("there is no binding '{binding}'")]
    BindingNotFound {
        /// The name.
        binding: String,
    },
    /// The options contradict each other.
    #[error("binding '{binding}' cannot work: {}", .problems.join("; "))]
    ConfigurationValidation {
        /// The binding.
        binding: String,
        /// Everything that is wrong.
        problems: Vec<String>,
    },
    /// A topic is not set up as the binding needs it.
    #[error("topic `{topic}` does not fit binding '{binding}': {why}")]
    TopicMismatch {
        /// The binding.
        binding: String,
        /// The topic.
        topic: Topic,
        /// The reason.
        why: String,
    },
    /// The dead letter topic does not exist, and must.
    #[error(
        "dead letter topic `{topic}` of binding '{binding}' does not exist (`dlt.verify: fail`)"
    )]
    DltMissing {
        /// The binding.
        binding: String,
        /// The topic.
        topic: Topic,
    },
    /// No consumer of the binding holds that record.
    #[error("binding '{binding}' holds no record at {at}, offset {offset}")]
    RecordNotHeld {
        /// The binding.
        binding: String,
        /// The partition of its topic, or of a tier.
        at: TopicPartition,
        /// The offset.
        offset: Offset,
    },
    /// The connector stops, and takes no commands any more.
    #[error("the connector is shutting down")]
    ShuttingDown,
    /// A name that is no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The log failed.
    #[error("the log does not let binding '{binding}' start")]
    Log {
        /// The binding.
        binding: String,
        /// Why not.
        #[source]
        source: LogError,
    },
}

impl ConnectorError {
    /// The code by which routes and metrics know it.
    #[must_use]
    pub fn code(&self) -> Code {
        self.row().0
    }

    fn row(&self) -> (Code, FailureClass) {
        use FailureClass::{Permanent, System, Transient};
        let (code, class) = match self {
            Self::InvalidContainerState { .. } => ("connector.invalid-state", Permanent),
            Self::BindingAlreadyExists { .. } => ("connector.binding-exists", Permanent),
            Self::BoundTwice { .. } => ("connector.bound-twice", Permanent),
            Self::BindingNotFound { .. } => ("connector.binding-not-found", Permanent),
            Self::ConfigurationValidation { .. } => ("connector.invalid-options", Permanent),
            Self::TopicMismatch { .. } => ("connector.topic-mismatch", System),
            Self::DltMissing { .. } => ("connector.dlt-missing", System),
            Self::RecordNotHeld { .. } => ("connector.record-not-held", Permanent),
            Self::ShuttingDown => ("connector.shutting-down", Transient),
            Self::Name(_) => ("connector.invalid-options", Permanent),
            Self::Log { source, .. } => return (source.code(), source.class()),
        };
        (Code::from_static(code), class)
    }

    /// A hint at what to do about it, for people.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Log { source, .. } => return source.hint(),
            Self::TopicMismatch { .. } => {
                "set the topic up like the one it belongs to, or remove it and let the binding make it"
            }
            Self::DltMissing { .. } => "make the topic, or use `dlt.verify: create`",
            Self::BoundTwice { .. } => {
                "give one of them a group of its own, or raise `concurrency`"
            }
            Self::InvalidContainerState { .. }
            | Self::BindingAlreadyExists { .. }
            | Self::BindingNotFound { .. }
            | Self::ConfigurationValidation { .. }
            | Self::RecordNotHeld { .. }
            | Self::ShuttingDown
            | Self::Name(_) => return None,
        };
        Some(hint.to_owned())
    }
}

impl Classify for ConnectorError {
    fn class(&self) -> FailureClass {
        self.row().1
    }
}

impl From<ConnectorError> for Failure {
    fn from(error: ConnectorError) -> Self {
        Self::of(&error, error.code(), error.hint())
    }
}
