#![doc = include_str!("../README.md")]

mod base;
mod batch;
mod books;
pub mod chain;
pub mod changelog;
mod checkpoint;
mod commit_outcome;
mod component;
#[cfg(feature = "config")]
mod from_config;
mod lifecycle;
mod machine;
pub mod operators;
mod options;
mod planted_bugs;
pub mod recovery;
mod restore;
mod shard;
mod stage;
pub mod state;
mod task;
pub mod task_state;
mod telemetry;
mod timers;

pub use books::StageBooks;
pub use checkpoint::{CheckpointManifest, CheckpointOptions, CheckpointTask};
pub use component::StageComponent;
pub use lifecycle::{InitStep, StageEvent, StageState};
pub use machine::{
    Effect, Machine, MachineCounts, MachineInput, MachineOptions, NewOperators, SinkTopic,
    TaskStatus,
};
pub use options::{RestartOptions, StageOptions, StreamOptions};
#[cfg(feature = "planted-bugs")]
pub use planted_bugs::{PlantedStageBug, plant};
pub use restore::{RestoredStage, StageCheckpoints};
pub use stage::{Stage, StageFailure, StageStatus};
