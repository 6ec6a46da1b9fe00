//! Keys of the event logger and the Event Log API.

use super::{
    COUNT, COUNT_FROM_ZERO, HTTP, Key, KeyKind, SIZE, SPAN, SPAN_ABOVE_ZERO, key, optional, section,
};

pub(super) static EVENTLOG: &[Key] = &[
    key(
        "enabled",
        KeyKind::Flag,
        "true",
        "Off, logging an event is a counted no-op.",
    ),
    optional("base-url", HTTP, "The Event Log API to send to."),
    optional(
        "application-id",
        KeyKind::Text,
        "The application events are logged for.",
    ),
    section(
        "async",
        ASYNC,
        "Queue, retries and spillover of the logger.",
    ),
    section("metrics", METRICS, "Metrics of the logger."),
    section("api", API, "The Event Log API of this process."),
];

static ASYNC: &[Key] = &[
    key(
        "enabled",
        KeyKind::Flag,
        "true",
        "Off, an event is sent on the caller's task.",
    ),
    key(
        "queue-capacity",
        COUNT,
        "10000",
        "Events the queue in memory holds.",
    ),
    key(
        "max-retries",
        COUNT_FROM_ZERO,
        "3",
        "Retries after the first send, before spillover.",
    ),
    key(
        "base-retry-delay-ms",
        SPAN,
        "1000",
        "The first wait; doubled with each retry.",
    ),
    key("max-retry-delay-ms", SPAN, "30000", "The longest wait."),
    key(
        "circuit-breaker-threshold",
        COUNT,
        "5",
        "Failures in a row that open the breaker.",
    ),
    key(
        "circuit-breaker-reset-ms",
        SPAN_ABOVE_ZERO,
        "30000",
        "How long it stays open before a probe.",
    ),
    optional(
        "spillover-path",
        KeyKind::Text,
        "The spill directory; left out, nothing spills.",
    ),
    key(
        "replay-interval-ms",
        KeyKind::Duration { min_ms: 1_000 },
        "10000",
        "How often spilled events are replayed.",
    ),
    key(
        "max-spillover-events",
        COUNT,
        "10000",
        "Events the active spill file holds.",
    ),
    key(
        "max-spillover-size-mb",
        SIZE,
        "50",
        "How large the active spill file grows.",
    ),
    key(
        "virtual-threads",
        KeyKind::Flag,
        "false",
        "A setting of the Java client.",
    )
    .unused("it chooses between kinds of Java threads, and there are none here"),
    key("batch-size", COUNT, "50", "Events in one request."),
    key("sender-threads", COUNT, "1", "Requests under way at once."),
    key(
        "max-batch-wait-ms",
        SPAN,
        "100",
        "How long a batch waits to fill up.",
    ),
    key(
        "on-full",
        KeyKind::Choice(&["drop-newest", "block"]),
        "drop-newest",
        "What happens to an event when every cap is hit; a drop is reported.",
    ),
    key(
        "shutdown-timeout",
        SPAN,
        "10s",
        "After this, requests still in flight are spilled too.",
    ),
    key(
        "sync",
        KeyKind::Choice(&["group", "none"]),
        "group",
        "Whether spilled events are synced to disk, in groups.",
    ),
];

static METRICS: &[Key] = &[key(
    "enabled",
    KeyKind::Flag,
    "true",
    "Whether the logger reports metrics.",
)];

static API: &[Key] = &[
    key(
        "enabled",
        KeyKind::Flag,
        "true",
        "Whether this process serves the API.",
    ),
    key("max-batch", COUNT, "1000", "Events one request may carry."),
    optional("retention", SPAN_ABOVE_ZERO, "How long events are kept."),
];
