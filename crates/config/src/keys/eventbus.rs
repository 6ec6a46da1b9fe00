//! Keys of the connector and its bindings.

use super::{
    COUNT, COUNT_FROM_ZERO, DefaultValue, FACTOR, Key, KeyKind, PERCENT, SPAN, SPAN_ABOVE_ZERO,
    explained, handler, key, map, optional, required, section,
};

pub(super) static EVENTBUS: &[Key] = &[map(
    "bindings",
    &KeyKind::Section(BINDING),
    "Bindings of a topic to a handler, by name.",
)];

static BINDING: &[Key] = &[
    required("topic", KeyKind::Text, "The topic to read."),
    required("group-id", KeyKind::Text, "The consumer group."),
    optional(
        "handler",
        KeyKind::Section(handler::HANDLER),
        "What each record is given to.",
    ),
    key(
        "listener-type",
        KeyKind::Choice(&["SINGLE", "BATCH"]),
        "SINGLE",
        "Whether the handler takes records one by one or in batches.",
    ),
    key(
        "ack-mode",
        KeyKind::Choice(&["MANUAL", "MANUAL_IMMEDIATE"]),
        "MANUAL_IMMEDIATE",
        "When the offset of a settled record is committed.",
    ),
    key("concurrency", COUNT, "1", "Consumers of this binding."),
    key(
        "concurrency-mode",
        KeyKind::Choice(&["PARTITION", "KEY", "UNORDERED"]),
        "PARTITION",
        "What is handled in order: a partition, a key, or nothing.",
    ),
    Key::new(
        "max-poll-records",
        COUNT,
        DefaultValue::By {
            choice: "listener-type",
            cases: &[("BATCH", "200")],
            otherwise: "50",
        },
        "Records taken at once.",
    ),
    key(
        "max-poll-interval-ms",
        SPAN_ABOVE_ZERO,
        "600000",
        "The longest time between polls.",
    ),
    key(
        "session-timeout-ms",
        SPAN_ABOVE_ZERO,
        "45000",
        "Without a heartbeat for this long, the partitions go to others.",
    ),
    key(
        "heartbeat-interval-ms",
        SPAN_ABOVE_ZERO,
        "10000",
        "How often a heartbeat is sent.",
    ),
    key(
        "auto-startup",
        KeyKind::Flag,
        "true",
        "Whether the binding starts with the process.",
    ),
    key(
        "static-membership",
        KeyKind::Flag,
        "false",
        "Keep the partitions over a short restart.",
    ),
    explained(
        "group-instance-id",
        KeyKind::Text,
        "{binding}-{hostname}-{index}",
        "The identity of a static member.",
    ),
    key(
        "cluster",
        KeyKind::Text,
        "default",
        "The cluster the topic is on.",
    ),
    key(
        "value-format",
        KeyKind::Choice(&["bytes", "json"]),
        "bytes",
        "What a value must be before the handler sees it.",
    ),
    key(
        "hand-off",
        KeyKind::Choice(&["transactional", "at-least-once"]),
        "transactional",
        "How a record moves to a tier or the dead letters.",
    ),
    key(
        "batch-failure-strategy",
        KeyKind::Choice(&["SEEK_TO_FAILED", "DLQ_AND_CONTINUE"]),
        "SEEK_TO_FAILED",
        "What happens to the rest of a batch when one record fails.",
    ),
    key(
        "ordering-mode",
        KeyKind::Choice(&["RELAXED_IN_RETRY", "STRICT", "KEY_ORDERED"]),
        "RELAXED_IN_RETRY",
        "What order is kept when a record fails.",
    ),
    section("strict", STRICT, "Settings of the ordering mode STRICT."),
    section(
        "key-ordered",
        KEY_ORDERED,
        "Settings of the ordering mode KEY_ORDERED.",
    ),
    section("retry", RETRY, "What happens after a transient failure."),
    section(
        "circuit-breaker",
        BREAKER,
        "When a failing dependency pauses the binding.",
    ),
    section("dlt", DLT, "The dead letter topic."),
];

static STRICT: &[Key] = &[key(
    "on-exhausted",
    KeyKind::Choice(&["dead-letter", "pause"]),
    "dead-letter",
    "What happens to a record that used up its attempts.",
)];

static KEY_ORDERED: &[Key] = &[key(
    "on-exhausted",
    KeyKind::Choice(&["dead-letter", "block-key"]),
    "dead-letter",
    "What happens to a record that used up its attempts.",
)];

static RETRY: &[Key] = &[
    section("tier0", TIER0, "Retries in memory."),
    Key::new(
        "tiers",
        KeyKind::List(&KeyKind::Section(TIER)),
        DefaultValue::By {
            choice: "ordering-mode",
            cases: &[("STRICT", "[]")],
            otherwise: "[{}, {}, {}]",
        },
        "Retries by way of a topic each, with growing delays.",
    ),
    explained(
        "retryable-exceptions",
        KeyKind::List(&KeyKind::Code),
        "every transient failure",
        "Failure codes that are retried.",
    ),
    key(
        "non-retryable-exceptions",
        KeyKind::List(&KeyKind::Code),
        "[]",
        "Failure codes that go to the dead letters at once.",
    ),
    map(
        "skip-to-tier-mapping",
        &COUNT,
        "The tier a failure code goes to at once; 1 is the first of `tiers`.",
    ),
];

static TIER0: &[Key] = &[
    key(
        "max-attempts",
        COUNT,
        "3",
        "Calls of the handler, the first included.",
    ),
    key("initial-backoff-ms", SPAN, "100", "The first wait."),
    key(
        "multiplier",
        FACTOR,
        "2.0",
        "How much each wait is longer than the one before.",
    ),
    key("max-backoff-ms", SPAN, "2000", "The longest wait."),
];

static TIER: &[Key] = &[
    Key::new(
        "delay-ms",
        SPAN,
        DefaultValue::Nth(&["10000", "60000", "300000"]),
        "How long a record waits in this tier.",
    ),
    key("max-attempts", COUNT, "3", "Deliveries in this tier."),
    key(
        "topic-suffix",
        KeyKind::Text,
        "retry-{n}",
        "What is added to the topic's name.",
    ),
    key("concurrency", COUNT, "1", "Consumers of this tier."),
];

static BREAKER: &[Key] = &[
    key(
        "enabled",
        KeyKind::Flag,
        "false",
        "Whether the breaker watches the handler.",
    ),
    key(
        "failure-rate-threshold",
        PERCENT,
        "50.0",
        "Percentage of failed calls that opens it.",
    ),
    key(
        "slow-call-rate-threshold",
        PERCENT,
        "80.0",
        "Percentage of slow calls that opens it.",
    ),
    key(
        "slow-call-duration-ms",
        SPAN_ABOVE_ZERO,
        "5000",
        "From when on a call is slow.",
    ),
    key(
        "wait-duration-in-open-state-ms",
        SPAN,
        "60000",
        "How long it stays open.",
    ),
    key(
        "sliding-window-size",
        COUNT,
        "100",
        "Calls the rates are computed over.",
    ),
    key(
        "minimum-number-of-calls",
        COUNT,
        "10",
        "Calls needed before it may open.",
    ),
    key(
        "permitted-number-of-calls-in-half-open-state",
        COUNT,
        "5",
        "Records let through to probe the dependency.",
    ),
    key(
        "automatic-pause-on-open",
        KeyKind::Flag,
        "true",
        "Pause while open; off, records fail with the code `breaker.open`.",
    ),
];

static DLT: &[Key] = &[
    key(
        "topic-suffix",
        KeyKind::Text,
        "DLT",
        "What is added to the topic's name.",
    ),
    key(
        "strategy",
        KeyKind::Choice(&[
            "STORE_ONLY",
            "ALERT_AND_STORE",
            "SCHEDULED_REPLAY",
            "CUSTOM",
        ]),
        "STORE_ONLY",
        "What is done with dead letters.",
    ),
    section("replay", REPLAY, "Limits of a replay."),
];

static REPLAY: &[Key] = &[
    key(
        "max-replays",
        COUNT_FROM_ZERO,
        "3",
        "How often one record may be replayed.",
    ),
    key(
        "cooldown-ms",
        SPAN,
        "3600000",
        "How long a record rests between replays.",
    ),
    key("batch-size", COUNT, "100", "Records replayed at once."),
];
