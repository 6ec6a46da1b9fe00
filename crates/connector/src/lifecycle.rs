//! The states of a binding, and the commands that change them.

use std::fmt;

use serde::Serialize;

/// The state of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ContainerState {
    /// Registered and never started.
    Created,
    /// It takes records.
    Running,
    /// It is a member of its groups and takes no records.
    Paused,
    /// It is no member of its groups.
    Stopped,
    /// It is gone.
    Destroyed,
}

impl ContainerState {
    /// All states, in the order of their numbers in `eventbus.container.state`.
    pub const ALL: [Self; 5] = [
        Self::Created,
        Self::Running,
        Self::Paused,
        Self::Stopped,
        Self::Destroyed,
    ];

    /// The name users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Running => "RUNNING",
            Self::Paused => "PAUSED",
            Self::Stopped => "STOPPED",
            Self::Destroyed => "DESTROYED",
        }
    }

    /// The state after a command.
    ///
    /// # Errors
    /// The command is not allowed in this state.
    pub(crate) fn next(self, command: LifecycleCommand) -> Result<Self, RefusedTransition> {
        use ContainerState::{Created, Destroyed, Paused, Running, Stopped};
        use LifecycleCommand::{Destroy, Pause, Resume, Start, Stop};
        match (self, command) {
            (Created | Stopped, Start) | (Paused, Resume) => Ok(Running),
            (Running, Pause) => Ok(Paused),
            (Running | Paused, Stop) => Ok(Stopped),
            (Created | Running | Paused | Stopped, Destroy) => Ok(Destroyed),
            (from, command) => Err(RefusedTransition { from, command }),
        }
    }
}

impl fmt::Display for ContainerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A command of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifecycleCommand {
    /// Join the groups and take records.
    Start,
    /// Finish what is in hand and leave the groups.
    Stop,
    /// Take no more records, and stay in the groups.
    Pause,
    /// Take records again.
    Resume,
    /// Stop, and forget the binding.
    Destroy,
}

impl LifecycleCommand {
    /// All commands.
    pub const ALL: [Self; 5] = [
        Self::Start,
        Self::Stop,
        Self::Pause,
        Self::Resume,
        Self::Destroy,
    ];

    /// The name users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Destroy => "destroy",
        }
    }

    /// The states in which it is allowed, as text.
    fn requires(self) -> &'static str {
        match self {
            Self::Start => "CREATED or STOPPED",
            Self::Stop => "RUNNING or PAUSED",
            Self::Pause => "RUNNING",
            Self::Resume => "PAUSED",
            Self::Destroy => "any state before DESTROYED",
        }
    }
}

/// A command in a state that does not allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedTransition {
    pub(crate) from: ContainerState,
    pub(crate) command: LifecycleCommand,
}

impl RefusedTransition {
    /// The message that users see.
    pub(crate) fn message(self, binding: &str) -> String {
        let Self { from, command } = self;
        let name = command.as_str();
        format!(
            "Cannot {name} binding '{binding}': current state is {from}, {name} requires {}",
            command.requires()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c44_every_transition_is_allowed_or_refused_with_its_message() {
        let mut table = String::new();
        for state in ContainerState::ALL {
            for command in LifecycleCommand::ALL {
                let after = match state.next(command) {
                    Ok(after) => format!("{state} + {} -> {after}", command.as_str()),
                    Err(refused) => refused.message("orders"),
                };
                table.push_str(&after);
                table.push('\n');
            }
        }
        insta::assert_snapshot!(table, @r"
        CREATED + start -> RUNNING
        Cannot stop binding 'orders': current state is CREATED, stop requires RUNNING or PAUSED
        Cannot pause binding 'orders': current state is CREATED, pause requires RUNNING
        Cannot resume binding 'orders': current state is CREATED, resume requires PAUSED
        CREATED + destroy -> DESTROYED
        Cannot start binding 'orders': current state is RUNNING, start requires CREATED or STOPPED
        RUNNING + stop -> STOPPED
        RUNNING + pause -> PAUSED
        Cannot resume binding 'orders': current state is RUNNING, resume requires PAUSED
        RUNNING + destroy -> DESTROYED
        Cannot start binding 'orders': current state is PAUSED, start requires CREATED or STOPPED
        PAUSED + stop -> STOPPED
        Cannot pause binding 'orders': current state is PAUSED, pause requires RUNNING
        PAUSED + resume -> RUNNING
        PAUSED + destroy -> DESTROYED
        STOPPED + start -> RUNNING
        Cannot stop binding 'orders': current state is STOPPED, stop requires RUNNING or PAUSED
        Cannot pause binding 'orders': current state is STOPPED, pause requires RUNNING
        Cannot resume binding 'orders': current state is STOPPED, resume requires PAUSED
        STOPPED + destroy -> DESTROYED
        Cannot start binding 'orders': current state is DESTROYED, start requires CREATED or STOPPED
        Cannot stop binding 'orders': current state is DESTROYED, stop requires RUNNING or PAUSED
        Cannot pause binding 'orders': current state is DESTROYED, pause requires RUNNING
        Cannot resume binding 'orders': current state is DESTROYED, resume requires PAUSED
        Cannot destroy binding 'orders': current state is DESTROYED, destroy requires any state before DESTROYED
        ");
    }
}
