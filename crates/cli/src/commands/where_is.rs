//! `tidegate where`.

use serde_json::{Map, Value};
use tidegate_core::{EventId, EventLocation, EventTrace};

use crate::args::{AuditArgs, Output};
use crate::parts::InspectionTargets;
use crate::report::{ErrorReport, Exit};
use crate::table;

pub(crate) async fn run(
    id: EventId,
    arguments: &AuditArgs,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let inspection = InspectionTargets::of(arguments).await?;
    let mut history = Vec::new();
    for component in &inspection.components {
        history.extend(component.locate(id).await?);
    }
    let Some(trace) = EventTrace::new(id, history) else {
        return Err(unknown(id, &inspection));
    };
    output.print(&trace, || text(&trace))?;
    Ok(Exit::Ok)
}

fn unknown(id: EventId, inspection: &InspectionTargets) -> ErrorReport {
    let looked: Vec<&str> = inspection.components.iter().map(|one| one.name()).collect();
    let looked = match looked.is_empty() {
        true => "no spill directory, no log and no queue is configured or named".to_owned(),
        false => format!("it is not in {}", looked.join(", ")),
    };
    ErrorReport::new(
        "where.unknown",
        format!("event {id} was not found: {looked}"),
    )
    .with_hint(
        "an event that was delivered leaves no trace in a spill directory once its file is done, \
         nor in a topic or a queue's log once retention has removed it; the Event Log API knows it by \
         the same id. One that `tidegate audit` names is missing",
    )
}

fn text(trace: &EventTrace) -> String {
    let now = trace.history.last().map_or_else(String::new, place);
    let mut lines = vec![format!(
        "{} is {} at {}, since {}",
        trace.id,
        now.replace('_', " "),
        trace.component,
        trace.at.as_deref().unwrap_or("an unknown time")
    )];
    for seen in &trace.history {
        let attempts = seen.attempts.map(|count| format!(", attempts {count}"));
        lines.push(format!(
            "  {}  {}  {}{}",
            place(seen),
            seen.component,
            words(&seen.details),
            attempts.unwrap_or_default()
        ));
        let lists = seen.details.iter();
        let lists = lists.filter_map(|(name, value)| Some((name, value.as_array()?)));
        for (name, item) in lists.flat_map(|(name, items)| items.iter().map(move |i| (name, i))) {
            lines.push(match item.as_object() {
                Some(item) => format!("    {name}: {}", words(item)),
                None => format!("    {name}: {}", word(item).unwrap_or_default()),
            });
        }
    }
    let lines: Vec<String> = lines.iter().map(|line| table::plain(line)).collect();
    lines.join("\n")
}

/// The place of an event; where its component has put events of that time in several, all of them: only
/// the component can say which.
fn place(seen: &EventLocation) -> String {
    if seen.among.is_empty() {
        return seen.place.to_string();
    }
    let among: Vec<String> = seen.among.iter().map(ToString::to_string).collect();
    format!("settled, as one of {}", among.join(", "))
}

/// Everything that is no list, by its name.
fn words(details: &Map<String, Value>) -> String {
    let words = details.iter().filter_map(|(name, value)| {
        let name = name.replace('_', " ");
        Some(format!("{name} {}", word(value)?))
    });
    words.collect::<Vec<_>>().join(", ")
}

fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
