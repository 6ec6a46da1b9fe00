//! How each way out of a process counts in the books.

use serde::{Deserialize, Serialize};

use super::{
    LeavePlan, OnSuccessPlan, OperatorPlan, OtherwisePlan, ProcessPlan, SelectorPlan, SlowPlan,
};

/// The place of the books that a way out leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LedgerPlace {
    /// Delivered when the epoch commits.
    Delivered,
    /// Kept until its partner, completion or timeout comes.
    Parked,
    /// Given up, with its history.
    DeadLettered,
    /// Lost by declaration.
    Lost,
}

/// A way that a record leaves by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WayOut {
    /// Where it counts.
    pub place: LedgerPlace,
    /// The statement: `emit`, `route`, `filter`, `timeout`, a kind of failure, and so on.
    pub by: String,
    /// The stream, if it goes to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The reason of a loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl WayOut {
    fn new(place: LedgerPlace, by: &str, stream: Option<&str>) -> Self {
        Self {
            place,
            by: by.to_owned(),
            stream: stream.map(str::to_owned),
            reason: None,
        }
    }

    fn lost(by: &str, reason: &str) -> Self {
        Self {
            reason: Some(reason.to_owned()),
            ..Self::new(LedgerPlace::Lost, by, None)
        }
    }

    fn leave(by: &str, leave: &LeavePlan) -> Self {
        match leave {
            LeavePlan::Emit(stream) => Self::new(LedgerPlace::Delivered, by, Some(stream)),
            LeavePlan::DeadLetter(stream) => Self::new(LedgerPlace::DeadLettered, by, Some(stream)),
            LeavePlan::Skip => Self::lost(by, "skipped"),
        }
    }
}

/// Every way out of a process.
pub(crate) fn ways_out(name: &str, process: &ProcessPlan) -> Vec<WayOut> {
    let default_dlq = format!("{name}_dlq");
    let dead = |by: &str| WayOut::new(LedgerPlace::DeadLettered, by, Some(&default_dlq));
    let to = |by: &str, stream: &str| WayOut::new(LedgerPlace::Delivered, by, Some(stream));
    let absorbed = |by: &str| WayOut::new(LedgerPlace::Delivered, by, None);
    let parked = |by: &str| WayOut::new(LedgerPlace::Parked, by, None);
    let mut ways = vec![dead("schema.invalid")];
    if process.sources.iter().any(|source| source.filter.is_some()) {
        ways.push(absorbed("filter"));
    }
    for handler in &process.handlers {
        let by = format!("{} failure", handler.failure.word());
        ways.push(WayOut::leave(&by, &handler.leave));
    }
    for step in &process.steps {
        match &step.operator {
            OperatorPlan::Validate { .. }
            | OperatorPlan::Enrich { .. }
            | OperatorPlan::Assign { .. }
            | OperatorPlan::Aggregate { .. }
            | OperatorPlan::Merge => {}
            OperatorPlan::Filter { .. } => ways.push(absorbed("filter")),
            OperatorPlan::Join { .. } => ways.push(absorbed("join")),
            OperatorPlan::Emit { stream } => ways.push(to("emit", stream)),
            OperatorPlan::Transform {
                on_success,
                on_failure,
                ..
            } => {
                for also in on_success {
                    if let OnSuccessPlan::Emit(stream) = also {
                        ways.push(to("on_success", stream));
                    }
                }
                let leave = on_failure
                    .iter()
                    .filter_map(|failure| failure.leave.as_ref());
                ways.extend(leave.map(|leave| WayOut::leave("on_failure", leave)));
            }
            OperatorPlan::Deduplicate { on_duplicate, .. } => ways.push(match on_duplicate {
                Some(leave) => WayOut::leave("duplicate", leave),
                None => absorbed("duplicate"),
            }),
            OperatorPlan::Window { late, .. } => {
                ways.push(absorbed("window"));
                if process.time.is_some() {
                    let late = late.as_ref();
                    ways.push(late.map_or_else(|| dead("late"), |stream| to("late", stream)));
                }
            }
            OperatorPlan::Await { on_timeout, .. } => {
                ways.push(parked("await"));
                ways.push(WayOut::leave("timeout", on_timeout));
            }
            OperatorPlan::Hold { on_timeout, .. } => {
                ways.push(parked("hold"));
                let leave = on_timeout.iter();
                ways.extend(leave.map(|leave| WayOut::leave("timeout", leave)));
            }
            OperatorPlan::Route {
                selector,
                arms,
                otherwise,
            } => {
                ways.extend(arms.iter().map(|arm| to("route", &arm.stream)));
                if matches!(selector, SelectorPlan::Target(_)) {
                    ways.push(absorbed("route"));
                }
                match otherwise {
                    OtherwisePlan::To(stream) => ways.push(to("route", stream)),
                    OtherwisePlan::Skip => ways.push(WayOut::lost("otherwise", "skipped")),
                    OtherwisePlan::Fail | OtherwisePlan::Continue => {}
                }
            }
        }
    }
    match &process.slow {
        SlowPlan::Block | SlowPlan::BlockAlert { .. } => {}
        SlowPlan::Drop { .. } => ways.push(WayOut::lost("when slow", "slow_drop")),
        SlowPlan::Sample { .. } => ways.push(WayOut::lost("when slow", "slow_sample")),
    }
    ways.sort();
    ways.dedup();
    ways
}
