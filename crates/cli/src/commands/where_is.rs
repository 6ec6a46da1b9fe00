//! `tidegate where`.

use serde_json::{Map, Value};
use tidegate_core::env::Env;
use tidegate_core::{EventId, EventLocation, EventTrace};

use super::input::InputLines;
use crate::args::{AuditArgs, Output, WhereArg};
use crate::parts::InspectionTargets;
use crate::report::{ErrorReport, Exit, print_bytes};
use crate::table;

pub(crate) async fn run(
    asked: WhereArg,
    arguments: &AuditArgs,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let inspection = InspectionTargets::of(arguments, Env::system()).await?;
    let WhereArg::Event(id) = asked else {
        return each_of_input(&inspection, output).await;
    };
    let Some(trace) = locate(&inspection, id).await? else {
        return Err(unknown(id, &inspection));
    };
    output.print(&trace, || text(&trace))?;
    Ok(Exit::Ok)
}

async fn locate(
    inspection: &InspectionTargets,
    id: EventId,
) -> Result<Option<EventTrace>, ErrorReport> {
    let mut history = Vec::new();
    for component in &inspection.components {
        history.extend(component.locate(id).await?);
    }
    Ok(EventTrace::new(id, history))
}

/// One line for each id of standard input. The exit code is 1 if one of them is nowhere.
async fn each_of_input(
    inspection: &InspectionTargets,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let mut input = InputLines::new(std::io::stdin().lock());
    let mut exit = Exit::Ok;
    while let Some(lines) = input.next_batch()? {
        for line in lines {
            let line = String::from_utf8_lossy(&line);
            let given = line.trim();
            if given.is_empty() {
                continue;
            }
            let id: EventId = given.parse().map_err(|error| {
                ErrorReport::new("usage.id", format!("`{given}` is no id: {error}"))
                    .with_exit(Exit::Usage)
            })?;
            let mut shown = Vec::new();
            match locate(inspection, id).await? {
                Some(trace) => output.add_line(&mut shown, &trace, || brief(&trace))?,
                None => {
                    exit = Exit::Failed;
                    let document = serde_json::json!({ "id": id, "place": null });
                    output.add_line(&mut shown, &document, || format!("{id} was not found"))?;
                }
            }
            print_bytes(&shown)?;
        }
    }
    Ok(exit)
}

fn brief(trace: &EventTrace) -> String {
    let now = trace.history.last().map_or_else(String::new, place);
    let at = trace.at.as_deref().unwrap_or("an unknown time");
    let place = now.replace('_', " ");
    table::plain(&format!(
        "{} is {place} at {}, since {at}",
        trace.id, trace.component
    ))
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
    .with_hint(hint(inspection))
}

/// Where an event may have been that is not there any more, of what was looked at.
fn hint(inspection: &InspectionTargets) -> String {
    let looked_at = |is_one: fn(&str) -> bool| {
        let mut names = inspection.components.iter().map(|one| one.name());
        names.any(is_one)
    };
    let mut may = Vec::new();
    if looked_at(|name| name.starts_with("logger:")) {
        may.push(
            "a delivered event leaves no trace in a spill directory once its file is done; the Event Log API \
             knows it by the same id",
        );
    }
    if looked_at(|name| name == "log" || name == "queue") {
        may.push("retention removes events from a topic and from the log of a queue");
    }
    may.push("one that `tidegate audit` names is missing");
    may.join("; ")
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
