//! Keys that bind the names of flows: streams, lookups, breakers, checkpoints, state, resources.

use super::DefaultValue::{Explained, Filled, Nothing, Required, Value};
use super::KeyKind::{Choice, Flag, Json, Section, Text};
use super::{COUNT, COUNT_FROM_ZERO, FACTOR, Key, SIZE, SPAN, SPAN_ABOVE_ZERO};

pub(super) static STREAM: &[Key] = keys! {
    /// The topic.
    "topic": Text => Explained("the name of the stream");
    /// The cluster that the topic is on.
    "cluster": Text => Value("default");
    /// The consumer group.
    "group-id": Text => Explained("the name of the process");
    /// Where a group without an offset begins; `error` once the stage has state.
    "auto-offset-reset": Choice(&["error", "earliest", "latest"]) => Value("error");
    /// The format of the records.
    "format": Choice(&["json", "bytes"]) => Value("json");
    /// Partitions of the topic: checked, and used when it is made.
    "partitions": COUNT => Nothing;
    /// How long an input without records holds back the watermark.
    "idle-timeout": SPAN_ABOVE_ZERO => Value("30s");
};

pub(super) static LOOKUP: &[Key] = keys! {
    /// Where the answers come from.
    "type": Choice(&["postgres", "sqlite", "redis", "http", "file", "rust", "mongodb"]) => Required;
    /// The address of the service.
    "url": Text => Nothing;
    /// The query of a database, with the key fields as `$1` and so on.
    "query": Text => Nothing;
    /// The file.
    "path": Text => Nothing;
    /// How long one call may take.
    "timeout": SPAN_ABOVE_ZERO => Value("500ms");
    /// The answer where the key is not found: null fields, or a failure.
    "on-missing": Choice(&["null", "fail"]) => Value("null");
    /// Answers that are kept.
    "cache": Section(CACHE) => Filled;
    /// The circuit breaker.
    "breaker": Text => Nothing;
    /// The answer while the breaker is open.
    "fallback": Choice(&["return_cached", "return_default", "fail_fast", "queue_for_retry", "degrade_gracefully"]) =>
        Value("fail_fast");
    /// The answer of `return_default`.
    "default": Json => Nothing;
};

static CACHE: &[Key] = keys! {
    /// How long an answer is kept.
    "ttl": SPAN_ABOVE_ZERO => Nothing;
    /// Answers kept at most.
    "max-entries": COUNT => Value("100000");
    /// Whether an old answer is better than none.
    "serve-stale": Flag => Value("false");
};

pub(super) static BREAKER: &[Key] = keys! {
    /// Failures that open it.
    "failure-threshold": COUNT => Value("5");
    /// The time in which they are counted.
    "failure-window": SPAN_ABOVE_ZERO => Value("10s");
    /// Successes that close it.
    "success-threshold": COUNT => Value("3");
    /// How long it stays open.
    "open-timeout": SPAN_ABOVE_ZERO => Value("30s");
};

pub(super) static CHECKPOINT: &[Key] = keys! {
    /// Where snapshots are kept.
    "type": Choice(&["filesystem", "s3"]) => Value("filesystem");
    /// The directory.
    "path": Text => Value("./data/checkpoints");
    /// The bucket of an object store; `path` is the beginning of the names in it.
    "bucket": Text => Nothing;
    /// The address of an object store, where it is not that of AWS.
    "endpoint": Text => Nothing;
    /// Whether every host reaches them, so that a start may read one.
    "shared": Flag => Value("false");
    /// Whether a snapshot has everything, or what changed.
    "mode": Choice(&["full", "incremental"]) => Value("incremental");
    /// How long one may take.
    "timeout": SPAN_ABOVE_ZERO => Value("60s");
    /// The pause after one.
    "min-pause": SPAN => Value("1s");
    /// Snapshots kept.
    "retain": COUNT => Value("3");
};

pub(super) static STATE_BACKEND: &[Key] = keys! {
    /// Where state lives; `rocksdb` is read as `disk`.
    "type": Choice(&["hashmap", "disk", "remote", "rocksdb"]) => Value("hashmap");
    /// The bytes that it may take.
    "budget": SIZE => Value("1GiB");
    /// The directory.
    "path": Text => Nothing;
    /// The address of a remote one.
    "url": Text => Nothing;
    /// Whether every task has all of it.
    "broadcast": Flag => Value("false");
};

pub(super) static RESOURCES: &[Key] = keys! {
    /// Tasks at once; wins over the flow.
    "parallelism": COUNT => Nothing;
    /// The name of this program among those that run the process; each shard adds its number.
    "instance": Text => Explained("{host}-{process}");
    /// The promise about each output.
    "delivery": Choice(&["exactly-once", "at-least-once", "at-most-once"]) => Value("exactly-once");
    /// Records that commit together.
    "epoch": Section(EPOCH) => Filled;
    /// Where the state of the process lives.
    "state-backend": Text => Value("default");
    /// How long the start may take.
    "init-timeout": SPAN_ABOVE_ZERO => Value("5m");
    /// How long the stop may take.
    "drain-timeout": SPAN_ABOVE_ZERO => Value("10m");
    /// When a key is poison.
    "poison": Section(POISON) => Filled;
    /// How a failed stage starts again.
    "restart": Section(RESTART) => Filled;
};

static EPOCH: &[Key] = keys! {
    /// Records of one epoch at most.
    "records": COUNT => Value("10000");
    /// The longest epoch.
    "interval": SPAN_ABOVE_ZERO => Value("1s");
};

static POISON: &[Key] = keys! {
    /// Failures of one key that are allowed.
    "threshold": COUNT => Value("5");
    /// The time in which they are counted.
    "window": SPAN_ABOVE_ZERO => Value("1m");
};

static RESTART: &[Key] = keys! {
    /// The first wait.
    "initial-delay": SPAN => Value("1s");
    /// The longest wait.
    "max-delay": SPAN => Value("60s");
    /// How much each wait is longer than the one before.
    "multiplier": FACTOR => Value("2");
    /// Starts in a row; 0 is no limit.
    "max-attempts": COUNT_FROM_ZERO => Value("0");
};
