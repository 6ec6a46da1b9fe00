//! The fate of stored state when a plan replaces another.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::{FieldPlan, FlowPlan, ProcessPlan, StateKind, StatePlan};

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

/// As one line: `process: state/seen: TG0901: was a counter and is a map`.
impl fmt::Display for PlanChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.process, self.id)?;
        if let Some(code) = self.code {
            write!(f, "{code}: ")?;
        }
        f.write_str(&self.text)
    }
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
    let mut add = |process: &str, id: &str, kind, code, text: &str| {
        changes.push(PlanChange {
            process: process.to_owned(),
            id: id.to_owned(),
            kind,
            code,
            text: text.to_owned(),
        });
    };
    let none = ProcessPlan::default();
    for (name, plan) in &new.processes {
        for source in &plan.sources {
            let counts = partitions.get(&source.stream);
            if let Some((then, now)) = counts.filter(|(then, now)| then != now) {
                let text = format!("had {then} partitions at the last checkpoint and has {now}");
                let kind = PlanChangeKind::Repartitioned;
                add(name, &source.stream, kind, Some("TG0709"), &text);
            }
        }
        let before = &old.processes.get(name).unwrap_or(&none).state;
        for state in &plan.state {
            let stored = before.iter().find(|stored| stored.id == state.id);
            match stored.map(|stored| difference(stored, state)) {
                None => add(name, &state.id, PlanChangeKind::Added, None, "is new"),
                Some(None) => add(name, &state.id, PlanChangeKind::Kept, None, "is kept"),
                Some(Some((code, text))) => {
                    let kind = PlanChangeKind::NeedsMigration;
                    add(name, &state.id, kind, Some(code), &text);
                }
            }
        }
    }
    for (name, plan) in &old.processes {
        let (now, text) = match new.processes.get(name) {
            Some(now) => (now, "is no longer declared"),
            None => (&none, "belongs to a process that is no longer declared"),
        };
        for stored in &plan.state {
            if !now.state.iter().any(|state| state.id == stored.id) {
                let kind = PlanChangeKind::Dropped;
                add(name, &stored.id, kind, Some("TG0902"), text);
            }
        }
    }
    let is_gone = |name: &str| !new.processes.contains_key(name);
    changes.sort_by_cached_key(|change| (is_gone(&change.process), change.process.clone()));
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
        let text = format!("was keyed by {before} and is keyed by {now}");
        return Some(("TG0903", text));
    }
    if stored.kind != declared.kind {
        let (before, now) = (words(&stored.kind), words(&declared.kind));
        return Some(("TG0901", format!("was {before} and is {now}")));
    }
    if let (Some(before), Some(now)) = (&stored.made_by, &declared.made_by)
        && before != now
    {
        let text = format!("was made by {before}, and is made by {now}");
        return Some(("TG0901", text));
    }
    let find =
        |fields: &[FieldPlan], name: &str| fields.iter().find(|field| field.name == name).cloned();
    let changed = declared.fields.iter().find_map(|field| {
        let text = match find(&stored.fields, &field.name) {
            Some(before) if before.kind != field.kind => "has another type",
            Some(before) if !before.is_required() && field.is_required() => "is required now",
            None if field.is_required() => "is new and required",
            Some(_) | None => return None,
        };
        Some(format!("field `{}` {text}", field.name))
    });
    let removed = stored
        .fields
        .iter()
        .find(|field| field.is_required() && find(&declared.fields, &field.name).is_none());
    let removed = removed.map(|field| format!("required field `{}` was removed", field.name));
    changed.or(removed).map(|text| ("TG0901", text))
}
