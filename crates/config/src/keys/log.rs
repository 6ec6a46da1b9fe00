//! Keys of the log.

use super::DefaultValue::{Filled, Nothing, Required, Value};
use super::KeyKind::{Address, Flag, List, Property, Section, Text};
use super::{COUNT, Key, SIZE, SPAN, SPAN_ABOVE_ZERO, map};

pub(super) static LOG: &[Key] = keys! {
    /// The log in files of this process.
    "embedded": Section(EMBEDDED) => Filled;
    /// Topics by name, made at start where missing.
    "topics": map(&Section(TOPIC)) => Filled;
    /// Kafka clusters by name; `default` is used unless a part names another.
    "clusters": map(&Section(CLUSTER)) => Filled;
};

static EMBEDDED: &[Key] = keys! {
    /// The directory of the files.
    "path": Text => Value("./data/log");
    /// How large one segment file grows.
    "segment-size": SIZE => Value("64MiB");
    /// How large one journal file grows.
    "journal-size": SIZE => Value("64MiB");
    /// Appends are refused above this.
    "max-size": SIZE => Value("10GiB");
    /// Room kept for commits when appends are refused.
    "reserve": SIZE => Value("64MiB");
    /// The limit of one commit.
    "max-commit-size": SIZE => Value("64MiB");
    /// The limit of one record.
    "max-record-size": SIZE => Value("4MiB");
    /// How long a sync waits for company.
    "group-commit-delay": SPAN => Value("0ms");
    /// Commits are refused when more bytes of them wait for the disk.
    "max-queued-size": SIZE => Value("256MiB");
    /// How many bytes of fresh records stay in memory; writes wait at four times that.
    "cache-size": SIZE => Value("16MiB");
    /// How many bytes of keys one round of compaction may hold.
    "compaction-memory": SIZE => Value("64MiB");
    /// How long records are kept, unless a topic says otherwise; dead letters stay.
    "retention": SPAN_ABOVE_ZERO => Value("7d"), accepts_none: true;
    /// How many bytes of a topic are kept.
    "retention-size": SIZE => Nothing;
};

static TOPIC: &[Key] = keys! {
    /// The number of partitions.
    "partitions": COUNT => Value("4");
    /// How long records are kept; left out, the log's own retention holds.
    "retention": SPAN_ABOVE_ZERO => Nothing;
    /// How many bytes are kept.
    "retention-size": SIZE => Nothing;
    /// Keep only the newest record of each key.
    "compact": Flag => Value("false");
    /// The limit of one record; left out, the log's own limit holds.
    "max-record-size": SIZE => Nothing;
};

static CLUSTER: &[Key] = keys! {
    /// Brokers to connect to first.
    "bootstrap-servers": List(&Address) => Required;
    /// Client properties, handed on as they are.
    "properties": map(&Property) => Filled;
    /// The deadline of one call.
    "request-timeout": SPAN_ABOVE_ZERO => Value("30s");
    /// The limit of one append or commit.
    "max-commit-size": SIZE => Value("64MiB");
    /// How many bytes of appends may wait for an answer; further appends wait.
    "max-in-flight": SIZE => Value("64MiB");
    /// How many bytes of records a member of a group holds ready.
    "session-buffer": SIZE => Value("16MiB");
    /// When a partition that hands over nothing is checked from outside.
    "stall-after": SPAN_ABOVE_ZERO => Value("30s");
    /// Copies of each partition of a topic that is made; left out, the broker decides.
    "replication": COUNT => Nothing;
};
