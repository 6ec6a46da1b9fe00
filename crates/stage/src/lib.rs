#![doc = include_str!("../README.md")]

mod aligner;
mod base;
mod batch;
mod books;
pub mod chain;
pub mod changelog;
mod changelog_reader;
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
#[cfg(feature = "scenario")]
pub mod scenario;
mod shard;
mod stage;
pub mod state;
mod task;
pub mod task_state;
mod telemetry;
mod timers;

pub use books::StageBooks;
pub use checkpoint::{
    CheckpointFile, CheckpointManifest, CheckpointMode, CheckpointOptions, CheckpointPart,
    CheckpointPlace, CheckpointStorage, CheckpointTask, StorageError, StorageFuture,
};
pub use component::StageComponent;
pub use lifecycle::{InitStep, StageEvent, StageState};
pub use machine::{
    AlignedTask, Effect, Machine, MachineCounts, MachineInput, MachineNews, MachineOptions,
    NewOperators, SinkTopic, TaskStatus,
};
pub use options::{RestartOptions, StageOptions, StreamOptions};
#[cfg(feature = "planted-bugs")]
pub use planted_bugs::{PlantedStageBug, plant};
pub use restore::{RestoredStage, StageCheckpoints};
pub use stage::{Stage, StageFailure, StageStatus};
