//! Keys of the connector and its bindings.

use super::DefaultValue::{By, Explained, Filled, Nothing, Nth, Required, Value};
use super::KeyKind::{Choice, Code, Flag, List, Section, Text};
use super::{COUNT, COUNT_FROM_ZERO, FACTOR, Key, PERCENT, SPAN, SPAN_ABOVE_ZERO, handler, map};

pub(super) static EVENTBUS: &[Key] = keys! {
    /// Bindings of a topic to a handler, by name.
    "bindings": map(&Section(BINDING)) => Filled;
};

static BINDING: &[Key] = keys! {
    /// The topic to read.
    "topic": Text => Required;
    /// The consumer group.
    "group-id": Text => Required;
    /// The handler of each record.
    "handler": Section(handler::HANDLER) => Nothing;
    /// Whether the handler takes records one by one or in batches.
    "listener-type": Choice(&["SINGLE", "BATCH"]) => Value("SINGLE");
    /// When the offset of a settled record is committed.
    "ack-mode": Choice(&["MANUAL", "MANUAL_IMMEDIATE"]) => Value("MANUAL_IMMEDIATE");
    /// Consumers of this binding.
    "concurrency": COUNT => Value("1");
    /// The unit that is handled in order: a partition, a key, or nothing.
    "concurrency-mode": Choice(&["PARTITION", "KEY", "UNORDERED"]) => Value("PARTITION");
    /// Records taken at once.
    "max-poll-records": COUNT =>
        By { choice: "listener-type", is: "BATCH", then: "200", otherwise: "50" };
    /// The longest time between polls.
    "max-poll-interval-ms": SPAN_ABOVE_ZERO => Value("600000");
    /// Without a heartbeat for this long, the partitions go to others.
    "session-timeout-ms": SPAN_ABOVE_ZERO => Value("45000");
    /// How often a heartbeat is sent.
    "heartbeat-interval-ms": SPAN_ABOVE_ZERO => Value("10000");
    /// Whether the binding starts with the process.
    "auto-startup": Flag => Value("true");
    /// Keep the partitions over a short restart.
    "static-membership": Flag => Value("false");
    /// The identity of a static member.
    "group-instance-id": Text => Explained("{binding}-{hostname}-{index}");
    /// The cluster the topic is on.
    "cluster": Text => Value("default");
    /// The format that a value must have before the handler sees it.
    "value-format": Choice(&["bytes", "json"]) => Value("bytes");
    /// The format that a key must have before the handler sees it.
    "key-format": Choice(&["bytes", "json"]) => Value("bytes");
    /// Where a group without a committed offset starts.
    "auto-offset-reset": Choice(&["earliest", "latest", "none"]) => Value("earliest");
    /// The deadline of one call of the handler.
    "handler-timeout": SPAN_ABOVE_ZERO => Value("5m");
    /// Whether handlers may write records in one commit with their offset.
    "transactional": Flag => Value("false");
    /// From when on an offset that does not move is an alarm.
    "stall-alarm": SPAN_ABOVE_ZERO => Value("5m");
    /// Calls of the handler under way at once, for each consumer.
    "max-in-flight": COUNT => Value("256");
    /// Records that a partition may run ahead of its committed offset.
    "max-ahead": COUNT => Value("100000");
    /// How a record moves to a tier or the dead letters.
    "hand-off": Choice(&["transactional", "at-least-once"]) => Value("transactional");
    /// The fate of the rest of a batch when one record fails.
    "batch-failure-strategy": Choice(&["SEEK_TO_FAILED", "DLQ_AND_CONTINUE"]) =>
        Value("SEEK_TO_FAILED");
    /// The order that is kept when a record fails.
    "ordering-mode": Choice(&["RELAXED_IN_RETRY", "STRICT", "KEY_ORDERED"]) =>
        Value("RELAXED_IN_RETRY");
    /// Settings of the ordering mode STRICT.
    "strict": Section(STRICT) => Filled;
    /// Settings of the ordering mode KEY_ORDERED.
    "key-ordered": Section(KEY_ORDERED) => Filled;
    /// Retries after a transient failure.
    "retry": Section(RETRY) => Filled;
    /// When a failing dependency pauses the binding.
    "circuit-breaker": Section(BREAKER) => Filled;
    /// The dead letter topic.
    "dlt": Section(DLT) => Filled;
    /// Records that were handled before are passed by.
    "idempotency": Section(IDEMPOTENCY) => Nothing;
};

static IDEMPOTENCY: &[Key] = keys! {
    /// Where handled ids are kept.
    "store": Choice(&["sql", "redis"]) => Value("sql");
    /// How long a handled id is kept.
    "ttl": SPAN_ABOVE_ZERO => Value("24h");
    /// How long a record is claimed while it is handled.
    "lease": SPAN_ABOVE_ZERO => Value("1m");
    /// The address of Redis.
    "redis-url": Text => Nothing;
    /// Ids that a filter in front of the store holds.
    "bloom-capacity": COUNT => Nothing;
};

static STRICT: &[Key] = keys! {
    /// The fate of a record that used up its attempts.
    "on-exhausted": Choice(&["dead-letter", "pause"]) => Value("dead-letter");
};

static KEY_ORDERED: &[Key] = keys! {
    /// The fate of a record that used up its attempts.
    "on-exhausted": Choice(&["dead-letter", "block-key"]) => Value("dead-letter");
    /// Records of a partition that may be parked.
    "max-parked": COUNT => Value("100000");
};

static RETRY: &[Key] = keys! {
    /// Retries in memory.
    "tier0": Section(TIER0) => Filled;
    /// Retries by way of a topic each, with growing delays.
    "tiers": List(&Section(TIER)) =>
        By { choice: "ordering-mode", is: "STRICT", then: "[]", otherwise: "[{}, {}, {}]" };
    /// Failure codes that are retried.
    "retryable-exceptions": List(&Code) => Explained("every transient failure");
    /// Failure codes that go to the dead letters at once.
    "non-retryable-exceptions": List(&Code) => Value("[]");
    /// The tier a failure code goes to at once; 1 is the first of `tiers`.
    "skip-to-tier-mapping": map(&COUNT) => Filled;
    /// Failure codes that pause the binding until somebody resumes it.
    "pause-on": List(&Code) => Value("[]");
    /// A ladder by name.
    "preset": Choice(&["consumer-ladder"]) => Nothing;
};

static TIER0: &[Key] = keys! {
    /// Calls of the handler, the first included.
    "max-attempts": COUNT => Value("3");
    /// The first wait.
    "initial-backoff-ms": SPAN => Value("100");
    /// How much each wait is longer than the one before.
    "multiplier": FACTOR => Value("2.0");
    /// The longest wait.
    "max-backoff-ms": SPAN => Value("2000");
};

static TIER: &[Key] = keys! {
    /// How long a record waits in this tier.
    "delay-ms": SPAN => Nth(&["10000", "60000", "300000"]);
    /// Deliveries in this tier.
    "max-attempts": COUNT => Value("3");
    /// The suffix of the topic's name.
    "topic-suffix": Text => Value("retry-{n}");
    /// Consumers of this tier.
    "concurrency": COUNT => Value("1");
};

static BREAKER: &[Key] = keys! {
    /// Whether the breaker watches the handler.
    "enabled": Flag => Value("false");
    /// Percentage of failed calls that opens it.
    "failure-rate-threshold": PERCENT => Value("50.0");
    /// Percentage of slow calls that opens it.
    "slow-call-rate-threshold": PERCENT => Value("80.0");
    /// From when on a call is slow.
    "slow-call-duration-ms": SPAN_ABOVE_ZERO => Value("5000");
    /// How long it stays open.
    "wait-duration-in-open-state-ms": SPAN => Value("60000");
    /// Calls the rates are computed over.
    "sliding-window-size": COUNT => Value("100");
    /// Calls needed before it may open.
    "minimum-number-of-calls": COUNT => Value("10");
    /// Records let through to probe the dependency.
    "permitted-number-of-calls-in-half-open-state": COUNT => Value("5");
    /// Pause while open; off, records fail with the code `breaker.open`.
    "automatic-pause-on-open": Flag => Value("true");
};

static DLT: &[Key] = keys! {
    /// The suffix of the topic's name.
    "topic-suffix": Text => Value("DLT");
    /// The whole name of the topic.
    "topic": Text => Explained("{topic}.{topic-suffix}");
    /// The step when the topic does not exist.
    "verify": Choice(&["create", "warn", "fail"]) => Value("create");
    /// The handler of dead letters, for ALERT_AND_STORE and CUSTOM.
    "handler": Section(handler::HANDLER) => Nothing;
    /// How dead letters are handled.
    "strategy": Choice(&["STORE_ONLY", "ALERT_AND_STORE", "SCHEDULED_REPLAY", "CUSTOM"]) =>
        Value("STORE_ONLY");
    /// Limits of a replay.
    "replay": Section(REPLAY) => Filled;
};

static REPLAY: &[Key] = keys! {
    /// How often one record may be replayed.
    "max-replays": COUNT_FROM_ZERO => Value("3");
    /// How long a record rests between replays.
    "cooldown-ms": SPAN => Value("3600000");
    /// Records replayed at once.
    "batch-size": COUNT => Value("100");
};
