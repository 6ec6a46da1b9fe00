//! The plan: what a stage does, as data.
//!
//! The runtime and the model run a plan and nothing else. Its JSON is versioned; ids come from kinds and declared
//! names, so moving a step renames nothing. Expressions are their text there; a plan of the checker also has them
//! ready to be evaluated.

mod compare;
mod conform;
mod expression;
mod operator;
mod process;
mod schema;
mod ways_out;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use compare::{PlanChange, PlanChangeKind, compare};
pub(crate) use conform::{conform, has_fitting_default, is_literal};
pub use expression::PlanExpression;
pub use operator::{
    AggregatePlan, ArmPlan, AssignPlan, BodyPlan, CheckPlan, CompletePlan, JoinKind, LeavePlan,
    OnFailurePlan, OnSuccessPlan, OperatorPlan, OtherwisePlan, RowPlan, SelectorPlan, StepPlan,
    TablePlan, TargetPlan, TransformPlan, TrimPlan, WindowShape,
};
pub use process::{
    BackoffPlan, CheckpointPlan, CompletionPlan, FailureKind, HandlerPlan, HoldInputPlan,
    MetricKind, MetricPlan, ModePlan, ParallelismPlan, ProcessPlan, RetryPlan, SinkPlan, SlowPlan,
    SourcePlan, StateKind, StatePlan, TimePlan, TopicKind, TopicPlan, TtlPlan,
};
pub(crate) use schema::object_type;
pub use schema::{
    ConstraintPlan, FieldPlan, FieldType, LiteralPlan, LookupPlan, PatternPlan, SchemaPlan,
};
pub(crate) use ways_out::ways_out;
pub use ways_out::{LedgerPlace, WayOut};

/// The version of the JSON.
pub const PLAN_VERSION: u32 = 1;

/// Everything that the files of a deployment declare, checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FlowPlan {
    /// The version of the JSON, [`PLAN_VERSION`].
    pub version: u32,
    /// The processes by their names.
    pub processes: BTreeMap<String, ProcessPlan>,
    /// The schemas by their names.
    pub schemas: BTreeMap<String, SchemaPlan>,
    /// The lookups by their names.
    pub lookups: BTreeMap<String, LookupPlan>,
}

impl FlowPlan {
    /// The plan as JSON, with keys in one order.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        // The plan has neither maps with other keys than text nor numbers that JSON lacks.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// A name for what the plan does: the same for texts that differ in white space and comments alone.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        Uuid::new_v5(&Uuid::NAMESPACE_OID, self.to_json().to_string().as_bytes()).to_string()
    }
}
