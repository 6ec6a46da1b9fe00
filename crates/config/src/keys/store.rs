//! Keys of the SQL store.

use super::{COUNT, Key, KeyKind, SPAN_ABOVE_ZERO, key};

pub(super) static STORE: &[Key] = &[
    key(
        "url",
        KeyKind::Url(&["sqlite", "postgres", "postgresql"]),
        "sqlite://./data/tidegate.db",
        "The database: `sqlite://…` or `postgres://…`.",
    ),
    key(
        "max-connections",
        COUNT,
        "10",
        "The size of the connection pool.",
    ),
    key(
        "timeout",
        SPAN_ABOVE_ZERO,
        "10s",
        "How long one call may take, and how long a connection is waited for.",
    ),
    key(
        "idle-transaction-timeout",
        SPAN_ABOVE_ZERO,
        "1m",
        "When PostgreSQL ends a transaction in which nothing happens, a handler's too.",
    ),
];
