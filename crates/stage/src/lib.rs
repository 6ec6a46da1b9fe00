#![doc = include_str!("../README.md")]

pub mod task_state;
