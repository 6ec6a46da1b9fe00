//! Keys of the event logger and the Event Log API.

use super::DefaultValue::{Filled, Nothing, Value};
use super::KeyKind::{Choice, Duration, Flag, Section, Text};
use super::{COUNT, COUNT_FROM_ZERO, HTTP, Key, SIZE, SPAN, SPAN_ABOVE_ZERO};

pub(super) static EVENTLOG: &[Key] = keys! {
    /// Off, logging an event is a counted no-op.
    "enabled": Flag => Value("true");
    /// The Event Log API to send to.
    "base-url": HTTP => Nothing;
    /// The application events are logged for.
    "application-id": Text => Nothing;
    /// Queue, retries and spillover of the logger.
    "async": Section(ASYNC) => Filled;
    /// Metrics of the logger.
    "metrics": Section(METRICS) => Filled;
    /// The Event Log API of this process.
    "api": Section(API) => Filled;
};

static ASYNC: &[Key] = keys! {
    /// Off, an event is sent on the caller's task.
    "enabled": Flag => Value("true");
    /// Events the queue in memory holds.
    "queue-capacity": COUNT => Value("10000");
    /// Retries after the first send, before spillover.
    "max-retries": COUNT_FROM_ZERO => Value("3");
    /// The first wait; doubled with each retry.
    "base-retry-delay-ms": SPAN => Value("1000");
    /// The longest wait.
    "max-retry-delay-ms": SPAN => Value("30000");
    /// Failures in a row that open the breaker.
    "circuit-breaker-threshold": COUNT => Value("5");
    /// How long it stays open before a probe.
    "circuit-breaker-reset-ms": SPAN_ABOVE_ZERO => Value("30000");
    /// The spill directory; left out, nothing spills.
    "spillover-path": Text => Nothing;
    /// How often spilled events are replayed.
    "replay-interval-ms": Duration { min_ms: 1_000 } => Value("10000");
    /// Events the active spill file holds.
    "max-spillover-events": COUNT => Value("10000");
    /// How large the active spill file grows.
    "max-spillover-size-mb": SIZE => Value("50");
    /// A setting of the Java client.
    "virtual-threads": Flag => Value("false"),
        unused: Some("it chooses between kinds of Java threads, and there are none here");
    /// Events in one request.
    "batch-size": COUNT => Value("50");
    /// Requests under way at once.
    "sender-threads": COUNT => Value("1");
    /// How long a batch waits to fill up.
    "max-batch-wait-ms": SPAN => Value("100");
    /// The fate of an event when every cap is hit; a drop is reported.
    "on-full": Choice(&["drop-newest", "block"]) => Value("drop-newest");
    /// After this, requests still in flight are spilled too.
    "shutdown-timeout": SPAN => Value("10s");
    /// Whether spilled events are synced to disk, in groups.
    "sync": Choice(&["group", "none"]) => Value("group");
};

static METRICS: &[Key] = keys! {
    /// Whether the logger reports metrics.
    "enabled": Flag => Value("true");
};

static API: &[Key] = keys! {
    /// Whether this process serves the API.
    "enabled": Flag => Value("true");
    /// Events one request may carry.
    "max-batch": COUNT => Value("1000");
    /// How long events are kept.
    "retention": SPAN_ABOVE_ZERO => Nothing;
    /// Events each application may send in a second.
    "rate-limit": COUNT => Nothing;
    /// Whether the debug endpoint that removes everything is there.
    "debug": Flag => Value("false");
};
