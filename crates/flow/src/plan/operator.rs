//! The steps of a process.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{LiteralPlan, PlanExpression};
use crate::value::paths::{keep, remove};
use crate::value::{FlowType, JsonRecord, ObjectType};

/// A step, the stream or streams that it reads, and the one that it continues.
///
/// Streams inside of a process have the names of aliases and `into` results; a result without a name is called
/// after its inputs, `a+b`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StepPlan {
    /// The streams whose records it takes.
    pub inputs: Vec<String>,
    /// The stream that its records go on in.
    pub output: String,
    /// The id of its state, if it keeps any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The inputs that pass a topic of the stage's own first, because the step has another key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repartition: Vec<String>,
    /// Its work.
    #[serde(flatten)]
    pub operator: OperatorPlan,
}

/// The work of a step on a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "step",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum OperatorPlan {
    /// Keeps records where the condition is true.
    Filter {
        /// The condition.
        condition: PlanExpression,
    },
    /// A condition that is false is a rule failure.
    Validate {
        /// The conditions in their order.
        checks: Vec<CheckPlan>,
    },
    /// Adds the answer of a lookup.
    Enrich {
        /// The lookup.
        lookup: String,
        /// The fields that it is asked by.
        on: Vec<String>,
        /// The fields that are copied to the top; without any, the answer is nested under its name.
        select: Vec<String>,
    },
    /// Applies a transform, a decision table or a Rust function.
    Transform {
        /// The transform.
        transform: TransformPlan,
        /// The other things that happen to a record that went through.
        on_success: Vec<OnSuccessPlan>,
        /// The fate of a failure, in place of the handlers of the process.
        on_failure: Option<OnFailurePlan>,
    },
    /// Sets fields and state, each seeing the ones before.
    Assign {
        /// The assignments in their order.
        assignments: Vec<AssignPlan>,
    },
    /// Drops later records with the same key, counted from the first one.
    Deduplicate {
        /// The fields of the key.
        by: Vec<String>,
        /// How long a key is remembered.
        window_ms: u64,
        /// Where a duplicate goes; nowhere by default.
        on_duplicate: Option<LeavePlan>,
    },
    /// One result per key and window.
    Window {
        /// Where windows begin and end.
        shape: WindowShape,
        /// The fields of the key.
        key: Vec<String>,
        /// How long after its end a record still corrects the window.
        lateness_ms: u64,
        /// Where later records go; without it, to the dead letter stream.
        late: Option<String>,
        /// The results.
        aggregates: Vec<AggregatePlan>,
        /// The transform that makes the result from all `records`, in place of aggregates.
        using: Option<TransformPlan>,
    },
    /// Applies a transform to a completed hold.
    Aggregate {
        /// The transform.
        using: TransformPlan,
    },
    /// Pairs records of two inputs whose times are near.
    Join {
        /// The fields of the key.
        on: Vec<String>,
        /// How far their times may be apart.
        within_ms: u64,
        /// Which sides may be alone.
        join: JoinKind,
    },
    /// The records of all inputs, in no order between them.
    Merge,
    /// A record of the first input waits for one of the second.
    Await {
        /// The fields of the key.
        on: Vec<String>,
        /// How long it waits.
        timeout_ms: u64,
        /// The action of the timeout.
        on_timeout: LeavePlan,
    },
    /// Records of one key are held together.
    Hold {
        /// The name of the hold.
        hold: String,
        /// The fields of the key.
        key: Vec<String>,
        /// When an entry is complete.
        complete: CompletePlan,
        /// How long an entry is held.
        timeout_ms: u64,
        /// The action of the timeout; nothing where the timeout completes the entry.
        on_timeout: Option<LeavePlan>,
    },
    /// Sends each record to one stream, or to several by a table that collects.
    Route {
        /// How the arm is found.
        selector: SelectorPlan,
        /// The arms in their order.
        arms: Vec<ArmPlan>,
        /// The fate of a record without one.
        otherwise: OtherwisePlan,
    },
    /// Writes each record to a stream, and goes on.
    Emit {
        /// The stream.
        stream: String,
    },
}

/// A condition and the message of its failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckPlan {
    /// The condition.
    pub require: PlanExpression,
    /// The message where it is false.
    pub message: String,
}

/// The place that an assignment writes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetPlan {
    /// A field by its path.
    Field(String),
    /// A state, or one entry of a map.
    State {
        /// The declared name.
        name: String,
        /// The key of the entry.
        key: Option<PlanExpression>,
    },
}

/// An assignment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssignPlan {
    /// Where the value goes.
    pub target: TargetPlan,
    /// The value.
    pub value: PlanExpression,
}

/// Where a record leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeavePlan {
    /// To a stream.
    Emit(String),
    /// To a dead letter stream, with its history.
    DeadLetter(String),
    /// Nowhere, as a loss by declaration.
    Skip,
}

/// A transform at the place of its use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformPlan {
    /// Its name.
    pub name: String,
    /// Its work.
    #[serde(flatten)]
    pub body: BodyPlan,
}

/// The work of a transform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "body",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum BodyPlan {
    /// Sets fields on a copy of the record.
    Apply {
        /// Conditions that must hold first.
        checks: Vec<CheckPlan>,
        /// The assignments in their order.
        assignments: Vec<AssignPlan>,
        /// The fields that stay.
        trim: Option<TrimPlan>,
        /// The schema that the result must hold.
        output: Option<String>,
    },
    /// One record per map of a list.
    Each {
        /// Conditions that must hold first.
        checks: Vec<CheckPlan>,
        /// The list.
        each: PlanExpression,
        /// The fields that stay.
        trim: Option<TrimPlan>,
        /// The schema that each result must hold.
        output: Option<String>,
    },
    /// A decision table; its results become fields.
    Table(TablePlan),
    /// A function that is registered in Rust.
    Registered,
}

/// Fields that are kept or dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrimPlan {
    /// Only these stay.
    Keep(Vec<String>),
    /// All but these stay, after a transform.
    Drop(Vec<String>),
    /// All but these stay, of an input.
    Except(Vec<String>),
}

impl TrimPlan {
    /// Trims the fields of a record.
    pub(crate) fn trim(&self, record: &mut JsonRecord) {
        match self {
            Self::Keep(paths) => keep(record, paths),
            Self::Drop(paths) | Self::Except(paths) => remove(record, paths),
        }
    }

    /// Trims the fields that expressions see.
    pub(crate) fn trim_type(&self, record: &mut ObjectType) {
        match self {
            Self::Keep(paths) => {
                let kept = paths.iter().map(|path| {
                    let first = path.split('.').next().unwrap_or(path);
                    (first, record.field(first).unwrap_or(FlowType::Dynamic))
                });
                *record = ObjectType::closed(kept.collect::<Vec<_>>());
            }
            Self::Drop(paths) | Self::Except(paths) => {
                let paths: BTreeSet<&String> = paths.iter().collect();
                record.fields.retain(|field, _| !paths.contains(field));
            }
        }
    }
}

/// A decision table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TablePlan {
    /// Whether every row that matches counts, and results are lists.
    pub collect_all: bool,
    /// The names of the results.
    pub results: Vec<String>,
    /// The rows in their order.
    pub rows: Vec<RowPlan>,
}

/// A row of a decision table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowPlan {
    /// Conditions that must all be true.
    pub when: Vec<PlanExpression>,
    /// A value per result.
    pub then: Vec<PlanExpression>,
}

/// The other things that happen to a record that a transform let through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnSuccessPlan {
    /// It is also written to a stream.
    Emit(String),
    /// Fields are set.
    Assign(Vec<AssignPlan>),
}

/// The fate of a record that a transform failed on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OnFailurePlan {
    /// Fields that are set first.
    pub assignments: Vec<AssignPlan>,
    /// Where it leaves; none where it goes on as it was before.
    pub leave: Option<LeavePlan>,
}

/// Where windows begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum WindowShape {
    /// One after the other.
    Tumbling {
        /// The length.
        size_ms: u64,
    },
    /// Overlapping.
    Sliding {
        /// The length.
        size_ms: u64,
        /// From one start to the next.
        every_ms: u64,
    },
    /// As long as records come.
    Session {
        /// The pause that ends it.
        gap_ms: u64,
    },
}

/// A result of a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AggregatePlan {
    /// The function of the grammar: `count`, `sum`, `avg`, `min`, `max`, `first`, `last` or `collect`.
    pub function: String,
    /// The value; none for `count`.
    pub of: Option<PlanExpression>,
    /// The field of the result.
    pub name: String,
}

/// Which sides of a join may be alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinKind {
    /// None.
    Inner,
    /// The first.
    Left,
    /// The second.
    Right,
    /// Both.
    Outer,
}

/// When a hold is complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompletePlan {
    /// So many records are held.
    Count(u64),
    /// A record of a marked input arrives.
    Marker,
    /// A rule says so.
    Rule(TransformPlan),
    /// Its timeout has passed.
    Timeout,
    /// Never: only the action of the timeout ends it.
    Never,
}

/// How a route finds its arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectorPlan {
    /// By the value of a field.
    Field(String),
    /// By the result of a rule.
    Rule(TransformPlan),
    /// By the result column `target` of a rule, which names streams.
    Target(TransformPlan),
    /// By the first condition that is true.
    When,
}

/// An arm of a route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ArmPlan {
    /// The condition of a `route when`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<PlanExpression>,
    /// The value of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<LiteralPlan>,
    /// The stream.
    pub stream: String,
}

/// The fate of a record without an arm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherwisePlan {
    /// A rule failure with the code `route.unmatched`.
    Fail,
    /// To a stream.
    To(String),
    /// It goes on.
    Continue,
    /// Nowhere, as a loss by declaration.
    Skip,
}
