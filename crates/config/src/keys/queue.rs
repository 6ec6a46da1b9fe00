//! Keys of the durable queue and of the outbox relays.

use super::{
    COUNT, FACTOR, Key, KeyKind, SPAN, SPAN_ABOVE_ZERO, explained, key, optional, section,
};

pub(super) static QUEUE: &[Key] = &[
    key(
        "poll-delay-ms",
        SPAN_ABOVE_ZERO,
        "200",
        "How long the dispatcher waits between polls.",
    ),
    key("batch-size", COUNT, "200", "Events claimed at once."),
    key("concurrency", COUNT, "16", "Handlers running at once."),
    key(
        "abandonment-timeout",
        SPAN_ABOVE_ZERO,
        "1m",
        "The lease of a claim, renewed while a handler runs.",
    ),
    key(
        "handler-timeout",
        SPAN_ABOVE_ZERO,
        "5m",
        "The deadline of one handler call.",
    ),
    key(
        "rescue-interval",
        SPAN_ABOVE_ZERO,
        "1s",
        "How often claims that ran out are looked for, at least twice per lease.",
    ),
    section("retry", RETRY, "What happens after a transient failure."),
    optional(
        "max-attempts",
        COUNT,
        "Attempts before an event is finalized with its error.",
    ),
    key(
        "on-fatal",
        KeyKind::Choice(&["finalize", "await-others"]),
        "finalize",
        "When an event with an unrecoverable error is finalized.",
    ),
    key(
        "unhandled",
        KeyKind::Choice(&["keep", "complete"]),
        "keep",
        "What happens to an event no handler wants.",
    ),
    key(
        "cleanup-interval",
        SPAN_ABOVE_ZERO,
        "1m",
        "How often old handler states are removed.",
    ),
    optional(
        "event-log-retention",
        SPAN_ABOVE_ZERO,
        "How long finalized events are kept; never past a projection.",
    ),
    section(
        "projection",
        PROJECTION,
        "Projections, and the order of finalized events.",
    ),
];

static PROJECTION: &[Key] = &[
    key(
        "lease",
        SPAN_ABOVE_ZERO,
        "10s",
        "How long leadership holds without renewal; after a crash work stops for this long.",
    ),
    key(
        "timeout",
        SPAN_ABOVE_ZERO,
        "5m",
        "How long one batch may take, where the projection says nothing else.",
    ),
];

static RETRY: &[Key] = &[
    key("initial-ms", SPAN, "1000", "The first wait."),
    key("max-ms", SPAN, "60000", "The longest wait."),
    key(
        "multiplier",
        FACTOR,
        "2",
        "How much each wait is longer than the one before.",
    ),
    key(
        "jitter",
        KeyKind::Float { min: 0.0, max: 1.0 },
        "0.125",
        "The random share of a wait.",
    ),
];

pub(super) static RELAY: &[Key] = &[
    key("table", KeyKind::Text, "outbox_event", "The outbox table."),
    explained(
        "topic",
        KeyKind::Text,
        "from the row",
        "The topic rows are published to.",
    ),
    key("batch-size", COUNT, "100", "Rows claimed at once."),
    key(
        "max-attempts",
        COUNT,
        "10",
        "Attempts before a row is given up.",
    ),
    section("backoff", BACKOFF, "Waits between the attempts of a row."),
    key(
        "lease",
        SPAN_ABOVE_ZERO,
        "30s",
        "How long a claim holds without renewal.",
    ),
    key(
        "order",
        KeyKind::Choice(&["by-id", "strict"]),
        "by-id",
        "`strict` keeps commit order even between overlapping writers.",
    ),
    key(
        "on-exhausted",
        KeyKind::Choice(&["dead-letter", "block-key"]),
        "dead-letter",
        "What happens to a row that used up its attempts.",
    ),
    key(
        "dlq-topic",
        KeyKind::Text,
        "{topic}-dlq",
        "Where rows that are given up go.",
    ),
    optional("retention", SPAN_ABOVE_ZERO, "How long sent rows are kept."),
    key(
        "buckets",
        COUNT,
        "64",
        "Key buckets shared out among the relays.",
    ),
    key(
        "poll-delay-ms",
        SPAN_ABOVE_ZERO,
        "20",
        "How long the relay waits between polls.",
    ),
    key(
        "metrics-prefix",
        KeyKind::Text,
        "outbox",
        "How the names of its metrics begin.",
    ),
];

static BACKOFF: &[Key] = &[
    key(
        "initial-ms",
        SPAN,
        "1000",
        "The first wait; doubled with each attempt.",
    ),
    key("max-ms", SPAN, "60000", "The longest wait."),
];
