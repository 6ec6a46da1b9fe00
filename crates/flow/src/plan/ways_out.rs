//! How each way out of a process counts in the books.

use serde::{Deserialize, Serialize};

use super::{LeavePlan, OperatorPlan, OtherwisePlan, ProcessPlan, SelectorPlan, SlowPlan};

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
    let delivered =
        |by: &str, stream: Option<&str>| WayOut::new(LedgerPlace::Delivered, by, stream);
    let parked = |by: &str| WayOut::new(LedgerPlace::Parked, by, None);
    let mut ways: Vec<WayOut> = Vec::new();
    ways.push(WayOut::new(
        LedgerPlace::DeadLettered,
        "schema.invalid",
        Some(&default_dlq),
    ));
    if process.sources.iter().any(|source| source.filter.is_some()) {
        ways.push(delivered("filter", None));
    }
    for handler in &process.handlers {
        let word = super::FailureKind::ALL
            .iter()
            .find(|(kind, _)| *kind == handler.failure);
        let by = format!("{} failure", word.map_or("", |word| word.1));
        ways.push(WayOut::leave(&by, &handler.leave));
    }
    for step in &process.steps {
        match &step.operator {
            OperatorPlan::Filter { .. } => ways.push(delivered("filter", None)),
            OperatorPlan::Validate { .. }
            | OperatorPlan::Enrich { .. }
            | OperatorPlan::Assign { .. } => {}
            OperatorPlan::Aggregate { .. } | OperatorPlan::Merge => {}
            OperatorPlan::Transform {
                on_success,
                on_failure,
                ..
            } => {
                for also in on_success {
                    if let super::OnSuccessPlan::Emit(stream) = also {
                        ways.push(delivered("on_success", Some(stream)));
                    }
                }
                if let Some(leave) = on_failure
                    .as_ref()
                    .and_then(|failure| failure.leave.as_ref())
                {
                    ways.push(WayOut::leave("on_failure", leave));
                }
            }
            OperatorPlan::Deduplicate { on_duplicate, .. } => ways.push(match on_duplicate {
                Some(leave) => WayOut::leave("duplicate", leave),
                None => delivered("duplicate", None),
            }),
            OperatorPlan::Window { late, .. } => {
                ways.push(delivered("window", None));
                if process.time.is_some() {
                    ways.push(match late {
                        Some(stream) => delivered("late", Some(stream)),
                        None => WayOut::new(LedgerPlace::DeadLettered, "late", Some(&default_dlq)),
                    });
                }
            }
            OperatorPlan::Join { .. } => ways.push(delivered("join", None)),
            OperatorPlan::Await { on_timeout, .. } => {
                ways.push(parked("await"));
                ways.push(WayOut::leave("timeout", on_timeout));
            }
            OperatorPlan::Hold { on_timeout, .. } => {
                ways.push(parked("hold"));
                ways.extend(
                    on_timeout
                        .as_ref()
                        .map(|leave| WayOut::leave("timeout", leave)),
                );
            }
            OperatorPlan::Route {
                selector,
                arms,
                otherwise,
            } => {
                ways.extend(arms.iter().map(|arm| delivered("route", Some(&arm.stream))));
                if matches!(selector, SelectorPlan::Target(_)) {
                    ways.push(delivered("route", None));
                }
                match otherwise {
                    OtherwisePlan::To(stream) => ways.push(delivered("route", Some(stream))),
                    OtherwisePlan::Skip => ways.push(WayOut::lost("otherwise", "skipped")),
                    OtherwisePlan::Fail | OtherwisePlan::Continue => {}
                }
            }
            OperatorPlan::Emit { stream } => ways.push(delivered("emit", Some(stream))),
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
