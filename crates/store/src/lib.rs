#![doc = include_str!("../README.md")]

mod call_limit;
mod component;
mod error;
mod options;
mod span;

mod postgres;
mod sqlite;
mod store;
mod tx;

pub mod idempotency;
pub mod lease;
pub mod migrate;
pub mod posting;
pub mod sql;

pub use call_limit::CallLimit;
pub use component::StoreComponent;
pub use error::{OUTCOME_UNKNOWN, StoreError};
pub use options::{Dialect, StoreOptions};
pub use postgres::{PgTx, Postgres};
pub use span::span_ms;
pub use sqlite::{Sqlite, SqliteTx};
pub use store::Store;
pub use tx::StoreTx;

/// The driver, for those crates that have SQL of their own.
pub use sqlx;

/// A future in a box, as the closures over connections give it.
pub use tidegate_core::env::BoxFuture;
