#![doc = include_str!("../README.md")]

mod base;
pub mod chain;
pub mod changelog;
mod lifecycle;
mod machine;
pub mod operators;
mod planted_bugs;
pub mod recovery;
mod shard;
pub mod state;
mod task;
pub mod task_state;
mod timers;

pub use lifecycle::{InitStep, StageEvent, StageState};
pub use machine::{
    DEAD_LETTER_INPUT, Effect, Machine, MachineCounts, MachineInput, MachineOptions, NewOperators,
    SinkTopic, TaskStatus,
};
#[cfg(feature = "planted-bugs")]
pub use planted_bugs::{PlantedBug, plant};
