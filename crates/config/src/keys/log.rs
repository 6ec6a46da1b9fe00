//! Keys of the log.

use super::{
    COUNT, Key, KeyKind, SIZE, SPAN, SPAN_ABOVE_ZERO, key, map, optional, required, section,
};

pub(super) static LOG: &[Key] = &[
    section("embedded", EMBEDDED, "The log in files of this process."),
    map(
        "topics",
        &KeyKind::Section(TOPIC),
        "Topics by name, made at start where missing.",
    ),
    map(
        "clusters",
        &KeyKind::Section(CLUSTER),
        "Kafka clusters by name; `default` is used unless a part names another.",
    ),
];

static EMBEDDED: &[Key] = &[
    key(
        "path",
        KeyKind::Text,
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
        KeyKind::Flag,
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
        KeyKind::List(&KeyKind::Address),
        "Brokers to connect to first.",
    ),
    map(
        "properties",
        &KeyKind::Property,
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
