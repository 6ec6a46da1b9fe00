#![doc = include_str!("../README.md")]

mod config;
mod token;

mod code;
mod problem;

mod components;
mod health;

mod exporter;
mod telemetry;

mod guard;
mod in_flight;
mod long_body;
mod parameters;
mod request;

mod api;
pub mod eventlog;
mod idempotency;
pub mod log;
pub mod outbox;
mod serve;
mod server;
pub mod stage;

pub use code::ProblemCode;
pub use config::{Limits, ServerConfig};
pub use exporter::{Exporter, InstallError};
pub use health::{CHECK_TIMEOUT, Health, Heartbeat, RESULT_LIFETIME};
pub use idempotency::IdempotencyKeys;
pub use problem::{ApiProblem, OwnBody};
pub use serve::ServeReport;
pub use server::{BindError, Routes, Server, ServerBuilder};
pub use token::{Token, TokenError};
