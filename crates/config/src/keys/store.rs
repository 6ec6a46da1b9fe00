//! Keys of the SQL store.

use super::DefaultValue::Value;
use super::KeyKind::Url;
use super::{COUNT, Key, SPAN_ABOVE_ZERO};

pub(super) static STORE: &[Key] = keys! {
    /// The database: `sqlite://…` or `postgres://…`.
    "url": Url(&["sqlite", "postgres", "postgresql"]) => Value("sqlite://./data/tidegate.db");
    /// The size of the connection pool.
    "max-connections": COUNT => Value("10");
    /// How long one call may take, and how long a connection is waited for.
    "timeout": SPAN_ABOVE_ZERO => Value("10s");
    /// When PostgreSQL ends a transaction in which nothing happens, a handler's too.
    "idle-transaction-timeout": SPAN_ABOVE_ZERO => Value("1m");
};
