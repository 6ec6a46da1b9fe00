#![doc = include_str!("../README.md")]

mod crash_points;
mod disk;
mod disk_proxy;
mod executor;
mod log;
mod node;
mod node_log;
mod seed;
mod stray;
mod time;
mod trace;

pub use crash_points::{Explored, crash_points, crash_points_of_two_lives};
pub use disk::{Fault, FaultKind, Operation, SimDisk, Survivors};
pub use disk_proxy::{DiskHook, DiskProxy};
pub use executor::Sim;
pub use log::{LogFault, LogRates, SimLog};
pub use node::{Node, SimSpawn};
pub use node_log::{LogKill, NodeLog};
pub use seed::{for_each_seed, is_long, is_one_seed, scaled};
pub use time::SimClock;
pub use trace::Trace;
