//! The binary, used as its users use it.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "tests write the files that the binary reads"
)]

mod audit;
mod bench;
mod bindings;
mod bindings_audit;
mod bindings_handlers;
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod check;
mod child;
mod command;
mod config;
mod damage;
#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "demo")]
mod demo_outage;
mod event_log;
mod flow;
mod flow_test;
mod groups;
mod guides;
mod help;
mod log;
mod log_audit;
mod log_kafka;
mod log_live;
mod logger_path;
mod outbox;
mod outbox_audit;
mod outbox_full_disk;
mod outbox_trouble;
mod parked;
mod queue;
mod queue_books;
mod queue_live;
mod readme;
mod run;
mod run_store;
mod running;
#[path = "../../../log/tests/space/small_room.rs"]
mod small_room;
mod spill;
mod stage;
mod terminal;
mod where_is;
mod witness;
