//! Tests of the log as a component that need servers.

mod needs_kafka;
