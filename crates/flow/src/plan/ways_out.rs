//! How each way out of a process counts in the books.

use std::collections::BTreeSet;

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
    let mut ways: BTreeSet<WayOut> = BTreeSet::new();
    ways.insert(WayOut::new(
        LedgerPlace::DeadLettered,
        "schema.invalid",
        Some(&default_dlq),
    ));
    if process.sources.iter().any(|source| source.filter.is_some()) {
        ways.insert(delivered("filter", None));
    }
    for handler in &process.handlers {
        let word = super::FailureKind::ALL
            .iter()
            .find(|(kind, _)| *kind == handler.failure);
        let by = format!("{} failure", word.map_or("", |word| word.1));
        ways.insert(WayOut::leave(&by, &handler.leave));
    }
    for step in &process.steps {
        match &step.operator {
            OperatorPlan::Filter { .. } => drop(ways.insert(delivered("filter", None))),
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
                        ways.insert(delivered("on_success", Some(stream)));
                    }
                }
                if let Some(leave) = on_failure
                    .as_ref()
                    .and_then(|failure| failure.leave.as_ref())
                {
                    ways.insert(WayOut::leave("on_failure", leave));
                }
            }
            OperatorPlan::Deduplicate { on_duplicate, .. } => {
                drop(ways.insert(match on_duplicate {
                    Some(leave) => WayOut::leave("duplicate", leave),
                    None => delivered("duplicate", None),
                }))
            }
            OperatorPlan::Window { late, .. } => {
                ways.insert(delivered("window", None));
                if process.time.is_some() {
                    ways.insert(match late {
                        Some(stream) => delivered("late", Some(stream)),
                        None => WayOut::new(LedgerPlace::DeadLettered, "late", Some(&default_dlq)),
                    });
                }
            }
            OperatorPlan::Join { .. } => drop(ways.insert(delivered("join", None))),
            OperatorPlan::Await { on_timeout, .. } => {
                ways.insert(parked("await"));
                ways.insert(WayOut::leave("timeout", on_timeout));
            }
            OperatorPlan::Hold { on_timeout, .. } => {
                ways.insert(parked("hold"));
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
                    ways.insert(delivered("route", None));
                }
                match otherwise {
                    OtherwisePlan::To(stream) => {
                        drop(ways.insert(delivered("route", Some(stream))))
                    }
                    OtherwisePlan::Skip => drop(ways.insert(WayOut::lost("otherwise", "skipped"))),
                    OtherwisePlan::Fail | OtherwisePlan::Continue => {}
                }
            }
            OperatorPlan::Emit { stream } => drop(ways.insert(delivered("emit", Some(stream)))),
        }
    }
    match &process.slow {
        SlowPlan::Block | SlowPlan::BlockAlert { .. } => {}
        SlowPlan::Drop { .. } => drop(ways.insert(WayOut::lost("when slow", "slow_drop"))),
        SlowPlan::Sample { .. } => drop(ways.insert(WayOut::lost("when slow", "slow_sample"))),
    }
    ways.into_iter().collect()
}
