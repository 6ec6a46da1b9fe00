//! Keys of the durable queue and of the outbox relays.

use super::DefaultValue::{Explained, Filled, Nothing, Value};
use super::KeyKind::{Choice, Flag, Float, Section, Text};
use super::{COUNT, FACTOR, Key, SPAN, SPAN_ABOVE_ZERO};

pub(super) static QUEUE: &[Key] = keys! {
    /// How long the dispatcher waits between polls.
    "poll-delay-ms": SPAN_ABOVE_ZERO => Value("200");
    /// Events claimed at once.
    "batch-size": COUNT => Value("200");
    /// Handlers running at once.
    "concurrency": COUNT => Value("16");
    /// The lease of a claim, renewed while a handler runs.
    "abandonment-timeout": SPAN_ABOVE_ZERO => Value("1m");
    /// The deadline of one handler call.
    "handler-timeout": SPAN_ABOVE_ZERO => Value("5m");
    /// How often claims that ran out are looked for, at least twice per lease.
    "rescue-interval": SPAN_ABOVE_ZERO => Value("1s");
    /// Retries after a transient failure.
    "retry": Section(RETRY) => Filled;
    /// Attempts before an event is finalized with its error.
    "max-attempts": COUNT => Nothing;
    /// When an event with an unrecoverable error is finalized.
    "on-fatal": Choice(&["finalize", "await-others"]) => Value("finalize");
    /// The fate of an event that no handler wants.
    "unhandled": Choice(&["keep", "complete"]) => Value("keep");
    /// How often old handler states are removed.
    "cleanup-interval": SPAN_ABOVE_ZERO => Value("1m");
    /// How long finalized events are kept; never past a projection.
    "event-log-retention": SPAN_ABOVE_ZERO => Nothing;
    /// Projections, and the order of finalized events.
    "projection": Section(PROJECTION) => Filled;
};

static PROJECTION: &[Key] = keys! {
    /// How long leadership holds without renewal; after a crash work stops for this long.
    "lease": SPAN_ABOVE_ZERO => Value("10s");
    /// How long one batch may take, where the projection says nothing else.
    "timeout": SPAN_ABOVE_ZERO => Value("5m");
};

static RETRY: &[Key] = keys! {
    /// The first wait.
    "initial-ms": SPAN => Value("1000");
    /// The longest wait.
    "max-ms": SPAN => Value("60000");
    /// How much each wait is longer than the one before.
    "multiplier": FACTOR => Value("2");
    /// The random share of a wait.
    "jitter": Float { min: 0.0, max: 1.0 } => Value("0.125");
};

pub(super) static RELAY: &[Key] = keys! {
    /// Whether the relay runs.
    "enabled": Flag => Value("true");
    /// The outbox table.
    "table": Text => Value("outbox_event");
    /// The topic rows are published to.
    "topic": Text => Explained("from the row");
    /// Rows claimed at once.
    "batch-size": COUNT => Value("100");
    /// Attempts before a row is given up.
    "max-attempts": COUNT => Value("10");
    /// Waits between the attempts of a row.
    "backoff": Section(BACKOFF) => Filled;
    /// How long a claim holds without renewal.
    "lease": SPAN_ABOVE_ZERO => Value("30s");
    /// `strict` keeps commit order even between overlapping writers.
    "order": Choice(&["by-id", "strict"]) => Value("by-id");
    /// The fate of a row that used up its attempts.
    "on-exhausted": Choice(&["dead-letter", "block-key"]) => Value("dead-letter");
    /// Where rows that are given up go.
    "dlq-topic": Text => Value("{topic}-dlq");
    /// How long sent rows are kept.
    "retention": SPAN_ABOVE_ZERO => Nothing;
    /// Key buckets shared out among the relays.
    "buckets": COUNT => Value("64");
    /// How long the relay waits between polls.
    "poll-delay-ms": SPAN_ABOVE_ZERO => Value("20");
    /// How the names of its metrics begin.
    "metrics-prefix": Text => Value("outbox");
};

static BACKOFF: &[Key] = keys! {
    /// The first wait; doubled with each attempt.
    "initial-ms": SPAN => Value("1000");
    /// The longest wait.
    "max-ms": SPAN => Value("60000");
};
