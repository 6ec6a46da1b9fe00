#![doc = include_str!("../README.md")]

pub mod chain;
pub mod task_state;
