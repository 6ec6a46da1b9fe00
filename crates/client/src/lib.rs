#![doc = include_str!("../README.md")]

#[cfg(feature = "http")]
mod component;
#[cfg(feature = "http")]
mod process;
#[cfg(feature = "http")]
mod remote_log;
pub mod wire;

#[cfg(feature = "http")]
pub use component::RemoteComponent;
#[cfg(feature = "http")]
pub use process::{ClientError, ProcessClient, reachable};
#[cfg(feature = "http")]
pub use remote_log::RemoteLog;
