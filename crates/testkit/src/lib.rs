#![doc = include_str!("../README.md")]

pub mod child;
mod recording;
mod reply;
mod scripted;
mod stored;
mod stub;

pub use recording::RecordingLogger;
pub use scripted::{Script, ScriptedApi};
pub use stored::Stored;
pub use stub::{Fault, Request, StubApi};
