#![doc = include_str!("../README.md")]

pub mod chain;
pub mod operators;
pub mod task_state;
mod timers;
