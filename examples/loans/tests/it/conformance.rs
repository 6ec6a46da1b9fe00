//! The promises of the service, on SQLite with the embedded log and on PostgreSQL with Kafka.

mod lifecycle;
mod repeats;
