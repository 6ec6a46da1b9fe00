//! The seven states of a stage, and the one table of how they follow each other.

use std::fmt;

use serde::Serialize;

/// The state of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StageState {
    /// It exists, and nothing was started.
    Created,
    /// It starts: topics, state, sinks.
    Initializing,
    /// It handles records.
    Running,
    /// It handles records, and a snapshot of its state is taken.
    Checkpointing,
    /// It takes no new records, and finishes those it has.
    Draining,
    /// It ended as it should.
    Stopped,
    /// It ended by an error.
    Failed,
}

impl StageState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Created,
        Self::Initializing,
        Self::Running,
        Self::Checkpointing,
        Self::Draining,
        Self::Stopped,
        Self::Failed,
    ];

    /// The state that an event leads to; none where it cannot happen in this one.
    ///
    /// ```
    /// use tidegate_stage::{StageEvent, StageState};
    /// assert_eq!(StageState::Created.after(StageEvent::Start), Some(StageState::Initializing));
    /// assert_eq!(StageState::Stopped.after(StageEvent::Start), None);
    /// ```
    #[must_use]
    pub const fn after(self, event: StageEvent) -> Option<Self> {
        use StageEvent as Event;
        match (self, event) {
            (Self::Created, Event::Start) => Some(Self::Initializing),
            (Self::Initializing, Event::Ready) | (Self::Checkpointing, Event::CheckpointEnd) => {
                Some(Self::Running)
            }
            (Self::Running, Event::CheckpointBegin) => Some(Self::Checkpointing),
            (Self::Running, Event::Drain) => Some(Self::Draining),
            (Self::Draining, Event::Drained) => Some(Self::Stopped),
            (
                Self::Initializing | Self::Running | Self::Checkpointing | Self::Draining,
                Event::Fail,
            ) => Some(Self::Failed),
            _ => None,
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed)
    }

    /// The word that metrics, routes and commands show.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Initializing => "INITIALIZING",
            Self::Running => "RUNNING",
            Self::Checkpointing => "CHECKPOINTING",
            Self::Draining => "DRAINING",
            Self::Stopped => "STOPPED",
            Self::Failed => "FAILED",
        }
    }
}

impl fmt::Display for StageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What happens to a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageEvent {
    /// It is told to start.
    Start,
    /// All steps of its start are done.
    Ready,
    /// A snapshot begins.
    CheckpointBegin,
    /// A snapshot is complete, or was given up.
    CheckpointEnd,
    /// It is told to stop.
    Drain,
    /// Everything is finished.
    Drained,
    /// Something failed for good.
    Fail,
}

/// The steps of a start, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InitStep {
    /// The plan, and the names of its streams.
    Configuration,
    /// Metrics are described.
    Metrics,
    /// The input topics are there and fit together.
    Sources,
    /// The output topics are there.
    Sinks,
    /// The changelog is there and fits.
    State,
    /// Lookups over the network.
    Services,
    /// Data that is read ahead.
    WarmUp,
    /// Shards take records.
    Ready,
}

impl InitStep {
    /// The word in logs and codes.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Metrics => "metrics",
            Self::Sources => "sources",
            Self::Sinks => "sinks",
            Self::State => "state",
            Self::Services => "services",
            Self::WarmUp => "warm-up",
            Self::Ready => "ready",
        }
    }

    /// The code of a failure in this step.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Configuration => "stage.init.configuration",
            Self::Metrics => "stage.init.metrics",
            Self::Sources => "stage.init.sources",
            Self::Sinks => "stage.init.sinks",
            Self::State => "stage.init.state",
            Self::Services => "stage.init.services",
            Self::WarmUp => "stage.init.warm-up",
            Self::Ready => "stage.init.ready",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R01: the transitions are those of the table, and no others.
    #[test]
    fn r01_the_transitions_are_those_of_the_table() {
        use StageState as S;
        let events = [
            StageEvent::Start,
            StageEvent::Ready,
            StageEvent::CheckpointBegin,
            StageEvent::CheckpointEnd,
            StageEvent::Drain,
            StageEvent::Drained,
            StageEvent::Fail,
        ];
        let table = [
            (S::Created, vec![S::Initializing]),
            (S::Initializing, vec![S::Running, S::Failed]),
            (S::Running, vec![S::Checkpointing, S::Draining, S::Failed]),
            (S::Checkpointing, vec![S::Running, S::Failed]),
            (S::Draining, vec![S::Stopped, S::Failed]),
            (S::Stopped, vec![]),
            (S::Failed, vec![]),
        ];
        for (from, expected) in table {
            let found = events.iter().filter_map(|event| from.after(*event));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{from}");
            assert_eq!(from.is_terminal(), expected.is_empty(), "{from}");
        }
    }
}
