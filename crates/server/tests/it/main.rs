//! The promises of the server, each kept over a real TCP connection.

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails its test")]

mod client;
mod fixture;

mod access;
mod documented_answers;
mod drain;
mod endpoints;
mod event_log;
mod failures;
mod health;
mod limits;
mod openapi;
mod protocol;
