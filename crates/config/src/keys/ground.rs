//! Keys of the log, the store, the server and its console.

use super::{
    COUNT, HTTP, Key, Kind, SIZE, SPAN, SPAN_ABOVE_ZERO, TEXTS, key, map, optional, required,
    section,
};

pub(super) static LOG: &[Key] = &[
    section("embedded", EMBEDDED, "The log in files of this process."),
    map(
        "topics",
        &Kind::Section(TOPIC),
        "Topics by name, made at start where missing.",
    ),
    map(
        "clusters",
        &Kind::Section(CLUSTER),
        "Kafka clusters by name; `default` is used unless a part names another.",
    ),
];

static EMBEDDED: &[Key] = &[
    key(
        "path",
        Kind::Text,
        "./data/log",
        "The directory of the files.",
    ),
    key(
        "segment-size",
        SIZE,
        "64MiB",
        "How large one segment file grows.",
    ),
    key(
        "journal-size",
        SIZE,
        "64MiB",
        "How large one journal file grows.",
    ),
    key("max-size", SIZE, "10GiB", "Appends are refused above this."),
    key(
        "reserve",
        SIZE,
        "64MiB",
        "Room kept for commits when appends are refused.",
    ),
    key("max-commit-size", SIZE, "64MiB", "The limit of one commit."),
    key("max-record-size", SIZE, "4MiB", "The limit of one record."),
    key(
        "group-commit-delay",
        SPAN,
        "0ms",
        "How long a sync waits for company.",
    ),
    key(
        "max-queued-size",
        SIZE,
        "256MiB",
        "Commits are refused when more bytes of them wait for the disk.",
    ),
    key(
        "cache-size",
        SIZE,
        "16MiB",
        "How many bytes of fresh records stay in memory; writes wait at four times that.",
    ),
    key(
        "compaction-memory",
        SIZE,
        "64MiB",
        "How many bytes of keys one round of compaction may hold.",
    ),
    key(
        "retention",
        SPAN_ABOVE_ZERO,
        "7d",
        "How long records are kept, unless a topic says otherwise; dead letters stay.",
    )
    .or_none(),
    optional(
        "retention-size",
        SIZE,
        "How many bytes of a topic are kept.",
    ),
];

static TOPIC: &[Key] = &[
    key("partitions", COUNT, "4", "The number of partitions."),
    optional(
        "retention",
        SPAN_ABOVE_ZERO,
        "How long records are kept; left out, the log's own retention holds.",
    ),
    optional("retention-size", SIZE, "How many bytes are kept."),
    key(
        "compact",
        Kind::Flag,
        "false",
        "Keep only the newest record of each key.",
    ),
    optional(
        "max-record-size",
        SIZE,
        "The limit of one record; left out, the log's own limit holds.",
    ),
];

static CLUSTER: &[Key] = &[
    required(
        "bootstrap-servers",
        Kind::List(&Kind::Address),
        "Brokers to connect to first.",
    ),
    map(
        "properties",
        &Kind::Property,
        "Client properties, handed on as they are.",
    ),
    key(
        "request-timeout",
        SPAN_ABOVE_ZERO,
        "30s",
        "The deadline of one call.",
    ),
    key(
        "max-commit-size",
        SIZE,
        "64MiB",
        "The limit of one append or commit.",
    ),
    key(
        "max-in-flight",
        SIZE,
        "64MiB",
        "How many bytes of appends may wait for an answer; further appends wait.",
    ),
    key(
        "session-buffer",
        SIZE,
        "16MiB",
        "How many bytes of records a member of a group holds ready.",
    ),
    key(
        "stall-after",
        SPAN_ABOVE_ZERO,
        "30s",
        "When a partition that hands over nothing is checked from outside.",
    ),
    optional(
        "replication",
        COUNT,
        "Copies of each partition of a topic that is made; left out, the broker decides.",
    ),
];

pub(super) static STORE: &[Key] = &[
    key(
        "url",
        Kind::Url(&["sqlite", "postgres", "postgresql"]),
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

pub(super) static SERVER: &[Key] = &[
    key(
        "listen",
        Kind::Address,
        "127.0.0.1:8080",
        "The address to listen on.",
    ),
    optional(
        "token",
        Kind::Secret,
        "The bearer token; required off loopback.",
    ),
    key(
        "read-only",
        Kind::Flag,
        "false",
        "Refuse every request that changes something.",
    ),
    key("max-body", SIZE, "1MiB", "The limit of one request body."),
    key(
        "max-header",
        Kind::Size { min: 1024 },
        "32KiB",
        "The limit of one request head, start line included.",
    ),
    key(
        "max-connections",
        COUNT,
        "1024",
        "Connections open at once; beyond, the longest idle one is closed.",
    ),
    key(
        "header-timeout",
        SPAN_ABOVE_ZERO,
        "10s",
        "How long a request head may take, and how long a connection may idle.",
    ),
    key(
        "request-timeout",
        SPAN_ABOVE_ZERO,
        "30s",
        "How long a request may take until its response begins.",
    ),
];

pub(super) static CONSOLE: &[Key] = &[
    optional(
        "saved-filters",
        Kind::List(&Kind::Section(SAVED_FILTER)),
        "Filters that the console offers by name.",
    ),
    key(
        "mask",
        TEXTS,
        "[]",
        "Paths in records that the console hides; `*` stands for any name.",
    ),
];

static SAVED_FILTER: &[Key] = &[
    required("name", Kind::Text, "What the filter is called."),
    required("cel", Kind::Text, "The condition, in CEL."),
];

/// Handlers that are built in; as a library, handlers are Rust.
pub(super) static HANDLER: &[Key] = &[
    optional(
        "http",
        Kind::Section(HANDLER_HTTP),
        "Post each record; the status decides.",
    ),
    optional(
        "forward",
        Kind::Section(HANDLER_FORWARD),
        "Write each record to a topic.",
    ),
    optional(
        "queue",
        Kind::Section(&[]),
        "Publish each record into the durable queue.",
    ),
    optional(
        "log",
        Kind::Section(&[]),
        "Write each record to the program's log.",
    ),
];

static HANDLER_HTTP: &[Key] = &[required("url", HTTP, "Where records are posted to.")];

static HANDLER_FORWARD: &[Key] = &[required("topic", Kind::Text, "The topic to write to.")];
