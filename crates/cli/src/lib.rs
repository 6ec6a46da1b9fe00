#![doc = include_str!("../README.md")]

pub use tidegate_client as client;
pub use tidegate_config as config;
pub use tidegate_connector as connector;
pub use tidegate_core as core;
pub use tidegate_eventlog as eventlog;
pub use tidegate_flow as flow;
pub use tidegate_log as log;
pub use tidegate_logger as logger;
pub use tidegate_outbox as outbox;
pub use tidegate_queue as queue;
pub use tidegate_server as server;
#[cfg(feature = "demo")]
pub use tidegate_sim as sim;
pub use tidegate_stage as stage;
pub use tidegate_store as store;
