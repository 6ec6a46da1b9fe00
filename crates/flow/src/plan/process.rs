//! A process of a plan.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Backoff;

use super::{FieldPlan, LeavePlan, PlanExpression, StepPlan, TrimPlan, WayOut};

/// A process: one stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessPlan {
    /// Tasks at once, if the flow says so.
    pub parallelism: Option<ParallelismPlan>,
    /// The fields of the stage's key; empty for the key of the input records.
    pub partition_by: Vec<String>,
    /// Event time; processing time without it.
    pub time: Option<TimePlan>,
    /// How the input is read.
    pub mode: ModePlan,
    /// The inputs in their order.
    pub sources: Vec<SourcePlan>,
    /// The steps in their order.
    pub steps: Vec<StepPlan>,
    /// Every stream that is written to, with its options.
    pub sinks: Vec<SinkPlan>,
    /// Records that tell about a commit.
    pub completions: Vec<CompletionPlan>,
    /// One handler per kind of failure, defaults included.
    pub handlers: Vec<HandlerPlan>,
    /// Everything that is kept between records, by id.
    pub state: Vec<StatePlan>,
    /// The declared metrics.
    pub metrics: Vec<MetricPlan>,
    /// When snapshots are taken.
    pub checkpoint: CheckpointPlan,
    /// The strategy when records come faster than they leave.
    pub slow: SlowPlan,
    /// Topics that the stage makes for itself.
    pub topics: Vec<TopicPlan>,
    /// Every way that a record can leave by.
    pub ways_out: Vec<WayOut>,
}

/// Tasks of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ParallelismPlan {
    /// How many at most.
    pub tasks: u64,
    /// Whether the runtime may take fewer.
    pub is_hint: bool,
}

/// Event time of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TimePlan {
    /// The field; none where each input has the one of its schema.
    pub field: Option<String>,
    /// How far the watermark stays behind the newest record.
    pub watermark_delay_ms: u64,
    /// The default of windows.
    pub lateness_ms: u64,
    /// The default of windows.
    pub late: Option<String>,
}

/// How the input is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModePlan {
    /// For ever.
    #[default]
    Stream,
    /// Up to the ends that were seen at the start.
    Batch,
    /// For ever, with an epoch of so many milliseconds.
    MicroBatch(u64),
}

/// An input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SourcePlan {
    /// The name inside of the process.
    pub alias: String,
    /// The stream.
    pub stream: String,
    /// The schema that its records must hold.
    pub schema: Option<String>,
    /// The field of the event time.
    pub time: Option<String>,
    /// The fields that stay.
    pub project: Option<TrimPlan>,
    /// The condition for a record to come in.
    pub filter: Option<PlanExpression>,
    /// The hold that it feeds.
    pub hold: Option<HoldInputPlan>,
    /// The topic that its records pass first, because the stage has another key.
    pub repartition: Option<String>,
}

/// The hold that an input feeds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HoldInputPlan {
    /// The name of the hold.
    pub hold: String,
    /// The fields of the key in this input.
    pub key: Vec<String>,
    /// Whether its records complete the entry.
    pub is_marker: bool,
}

/// A stream that is written to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SinkPlan {
    /// The stream.
    pub stream: String,
    /// The schema that its records must hold.
    pub schema: Option<String>,
    /// `broadcast` or `round_robin`; by key without it.
    pub fanout: Option<String>,
    /// The fields of the key; empty for the key of the record.
    pub key: Vec<String>,
}

/// A record that tells about a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CompletionPlan {
    /// Whether it tells about a failure.
    pub on_failure: bool,
    /// Where it is written to.
    pub stream: String,
    /// The field that names the request.
    pub correlation: String,
    /// Fields that are copied.
    pub include: Vec<String>,
    /// The schema that it must hold.
    pub schema: Option<String>,
}

/// The kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// An expression or a transform failed, or an output broke its schema.
    Transform,
    /// A lookup did not answer.
    Lookup,
    /// A check was false, no row matched, or no arm did.
    Rule,
    /// A trigger had no record that waits.
    Correlation,
}

impl FailureKind {
    /// Every kind with the word of the language, in its order.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Transform, "transform"),
        (Self::Lookup, "lookup"),
        (Self::Rule, "rule"),
        (Self::Correlation, "correlation"),
    ];

    /// The word of the language.
    #[must_use]
    pub fn word(self) -> &'static str {
        let row = Self::ALL.iter().find(|(kind, _)| *kind == self);
        row.map_or("", |(_, word)| word)
    }
}

/// The fate of a kind of failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HandlerPlan {
    /// The kind.
    pub failure: FailureKind,
    /// Attempts before the action, for transient failures.
    pub retry: Option<RetryPlan>,
    /// The action.
    pub leave: LeavePlan,
    /// Whether the flow wrote it.
    pub is_declared: bool,
}

/// How waits grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackoffPlan {
    /// Doubled each time.
    Exponential,
    /// Longer by the first one each time.
    Linear,
    /// Always the first one.
    Fixed,
}

/// Attempts at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RetryPlan {
    /// All of them, the first included.
    pub attempts: u64,
    /// The first wait.
    pub delay_ms: u64,
    /// How waits grow.
    pub backoff: BackoffPlan,
    /// The longest wait.
    pub max_delay_ms: u64,
}

impl RetryPlan {
    /// The waits between the attempts, without jitter.
    #[must_use]
    pub fn waits(&self) -> Backoff {
        let [delay, most] = [self.delay_ms, self.max_delay_ms].map(Duration::from_millis);
        match self.backoff {
            BackoffPlan::Exponential => Backoff::exponential(delay, 2.0, most),
            BackoffPlan::Linear => Backoff::linear(delay, most),
            BackoffPlan::Fixed => Backoff::exponential(delay, 1.0, most),
        }
    }
}

/// The purpose of a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateKind {
    /// Declared, of this type.
    Local(String),
    /// Registered in Rust or bound in the configuration.
    Uses,
    /// Records that wait for a trigger.
    Await,
    /// Records that are held; with the order of their declared buffer.
    Hold(Option<String>),
    /// Records that may still find a pair.
    Join,
    /// Windows that are open.
    Window,
    /// Keys that were seen.
    Deduplicate,
}

/// Something that is kept between records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StatePlan {
    /// Its id, from its kind and declared names.
    pub id: String,
    /// Its purpose.
    pub kind: StateKind,
    /// The fields of its key.
    pub key: Vec<String>,
    /// How long a value lives.
    pub ttl: Option<TtlPlan>,
    /// `on_checkpoint`, `on_access` or `background`.
    pub cleanup: Option<String>,
    /// When its timer fires, counted from the first record.
    pub timer_ms: Option<u64>,
    /// The fields of the records inside, where their schema is known.
    pub fields: Vec<FieldPlan>,
    /// How stored values were made, where another way could not go on with them: the shape and the aggregates of a
    /// window, the type of a join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// Bytes that an entry is likely to take.
    pub entry_bytes: u64,
}

impl StatePlan {
    pub(crate) fn new(id: String, kind: StateKind, key: Vec<String>, entry_bytes: u64) -> Self {
        Self {
            id,
            kind,
            key,
            ttl: None,
            cleanup: None,
            timer_ms: None,
            fields: Vec::new(),
            made_by: None,
            entry_bytes,
        }
    }
}

/// How long a value lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TtlPlan {
    /// `write`, `access` (sliding) or `creation` (absolute).
    pub since: String,
    /// How long.
    pub after_ms: u64,
    /// Whether event time counts.
    pub is_event_time: bool,
}

/// The kinds of metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum MetricKind {
    /// Counts records.
    Counter,
    /// The last value.
    Gauge,
    /// Records per second.
    Rate {
        /// Over this time.
        window_ms: u64,
    },
    /// How values are spread.
    Histogram {
        /// The bounds, rising.
        buckets: Vec<String>,
    },
}

/// A metric, evaluated on every record that leaves by `emit` or `route`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MetricPlan {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: MetricKind,
    /// The condition or value; without one it is fed from Rust.
    pub expression: Option<PlanExpression>,
}

/// When snapshots are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointPlan {
    /// After so long.
    pub every_ms: Option<u64>,
    /// After so many records.
    pub records: Option<u64>,
    /// The binding of where they are kept.
    pub to: String,
}

impl Default for CheckpointPlan {
    fn default() -> Self {
        Self {
            every_ms: Some(300_000),
            records: None,
            to: "default".to_owned(),
        }
    }
}

/// The strategy when records come faster than they leave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum SlowPlan {
    /// The input waits.
    #[default]
    Block,
    /// The input waits, and somebody is told after so long.
    BlockAlert {
        /// How long.
        alert_ms: u64,
    },
    /// The newest records are dropped.
    Drop {
        /// After how long somebody is told.
        alert_ms: Option<u64>,
    },
    /// A share of the records is kept, by the hash of the event id.
    Sample {
        /// The share as it is written.
        rate: String,
        /// After how long somebody is told.
        alert_ms: Option<u64>,
    },
}

/// A topic of the stage's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TopicPlan {
    /// Its purpose.
    pub kind: TopicKind,
    /// Its name.
    pub name: String,
}

/// The purpose of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopicKind {
    /// Records of an input under the key of the stage.
    Repartition,
    /// Changes of state.
    Changelog,
    /// Records that were given up.
    DeadLetter,
}
