//! The fate of stored state when a plan replaces another.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{FieldPlan, FlowPlan, StateKind, StatePlan};

/// The fate of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanChangeKind {
    /// It is used as it is.
    Kept,
    /// It is new and empty.
    Added,
    /// It is no longer declared.
    Dropped,
    /// It cannot be used as it is.
    NeedsMigration,
    /// An input has another number of partitions.
    Repartitioned,
}

/// The fate of one state, with the code that refuses the start if it holds data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlanChange {
    /// The process.
    pub process: String,
    /// The id of the state, or the stream.
    pub id: String,
    /// Its fate.
    pub kind: PlanChangeKind,
    /// The code, where the runtime must refuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The change in words.
    pub text: String,
}

/// Compares a new plan with the one that wrote the stored state.
///
/// `partitions` gives the count of a stream then and now, where the runtime knows both. A dropped state is refused
/// only while it holds data, which the runtime knows.
#[must_use]
pub fn compare(
    old: &FlowPlan,
    new: &FlowPlan,
    partitions: &BTreeMap<String, (u32, u32)>,
) -> Vec<PlanChange> {
    let mut changes = Vec::new();
    for (process, plan) in &new.processes {
        let change = |id: &str, kind, code, text: String| PlanChange {
            process: process.clone(),
            id: id.to_owned(),
            kind,
            code,
            text,
        };
        for source in &plan.sources {
            if let Some((then, now)) = partitions
                .get(&source.stream)
                .filter(|(then, now)| then != now)
            {
                let text = format!("had {then} partitions at the last checkpoint and has {now}");
                changes.push(change(
                    &source.stream,
                    PlanChangeKind::Repartitioned,
                    Some("TG0709"),
                    text,
                ));
            }
        }
        let before = old
            .processes
            .get(process)
            .map_or(&[][..], |plan| &plan.state);
        for state in &plan.state {
            changes.push(match before.iter().find(|stored| stored.id == state.id) {
                None => change(&state.id, PlanChangeKind::Added, None, "is new".to_owned()),
                Some(stored) => match difference(stored, state) {
                    None => change(&state.id, PlanChangeKind::Kept, None, "is kept".to_owned()),
                    Some((code, text)) => {
                        change(&state.id, PlanChangeKind::NeedsMigration, Some(code), text)
                    }
                },
            });
        }
        for stored in before
            .iter()
            .filter(|stored| !plan.state.iter().any(|state| state.id == stored.id))
        {
            let text = "is no longer declared".to_owned();
            changes.push(change(
                &stored.id,
                PlanChangeKind::Dropped,
                Some("TG0902"),
                text,
            ));
        }
    }
    for (process, plan) in old
        .processes
        .iter()
        .filter(|(name, _)| !new.processes.contains_key(*name))
    {
        changes.extend(plan.state.iter().map(|state| PlanChange {
            process: process.clone(),
            id: state.id.clone(),
            kind: PlanChangeKind::Dropped,
            code: Some("TG0902"),
            text: "belongs to a process that is no longer declared".to_owned(),
        }));
    }
    changes
}

/// The kind of a state in words.
fn words(kind: &StateKind) -> String {
    match kind {
        StateKind::Local(kind) => format!("a {kind}"),
        StateKind::Hold(Some(order)) => format!("a hold in the order {order}"),
        StateKind::Hold(None) => "a hold in the order of arrival".to_owned(),
        StateKind::Uses => "registered".to_owned(),
        StateKind::Await | StateKind::Join | StateKind::Window | StateKind::Deduplicate => {
            format!("{kind:?}").to_lowercase()
        }
    }
}

/// Why stored state cannot be used as it is. An optional field may come and go.
fn difference(stored: &StatePlan, declared: &StatePlan) -> Option<(&'static str, String)> {
    if stored.key != declared.key {
        let (before, now) = (stored.key.join(", "), declared.key.join(", "));
        return Some((
            "TG0903",
            format!("was keyed by {before} and is keyed by {now}"),
        ));
    }
    if stored.kind != declared.kind {
        return Some((
            "TG0901",
            format!(
                "was {} and is {}",
                words(&stored.kind),
                words(&declared.kind)
            ),
        ));
    }
    let find =
        |fields: &[FieldPlan], name: &str| fields.iter().find(|field| field.name == name).cloned();
    for field in &declared.fields {
        let text = match find(&stored.fields, &field.name) {
            Some(before) if before.kind != field.kind => "has another type",
            Some(before) if !before.is_required() && field.is_required() => "is required now",
            None if field.is_required() => "is new and required",
            Some(_) | None => continue,
        };
        return Some(("TG0901", format!("field `{}` {text}", field.name)));
    }
    let removed = stored
        .fields
        .iter()
        .find(|field| field.is_required() && find(&declared.fields, &field.name).is_none());
    removed.map(|field| {
        (
            "TG0901",
            format!("required field `{}` was removed", field.name),
        )
    })
}
