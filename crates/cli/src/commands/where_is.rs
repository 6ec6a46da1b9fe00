//! `tidegate where`.

use serde::Serialize;
use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_core::env::system::SystemDisk;
use tidegate_logger::spill::{Sighting, find};

use crate::args::{Output, Spills};
use crate::commands::spill;
use crate::report::{Exit, Report, print, print_json};
use crate::table;

/// Where an event is.
#[derive(Debug, Serialize)]
struct Located {
    id: EventId,
    place: Place,
    component: String,
    /// Since when it is there, as far as anything tells: when it was refused, else when it was
    /// born.
    at: Option<String>,
    /// How often it was sent, where that was written down.
    attempts: Option<u32>,
    /// Where it was seen, in the order in which it passed there.
    history: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Step {
    component: String,
    #[serde(flatten)]
    sighting: Sighting,
}

pub(crate) fn run(id: EventId, arguments: &Spills, output: Output) -> Result<Exit, Report> {
    let directories = spill::directories(arguments)?;
    let mut history = Vec::new();
    for dir in &directories {
        let found = find(&SystemDisk, dir, id);
        let found = found.map_err(|error| spill::unreadable("cannot search", dir, &error))?;
        history.extend(found.into_iter().map(|sighting| Step {
            component: spill::component(dir),
            sighting,
        }));
    }
    let Some(last) = history.last() else {
        let looked = match directories.len() {
            0 => "no spill directory is configured or given with `--spill DIR`".to_owned(),
            1 => format!("it is not in `{}`", directories[0].display()),
            count => format!("it is in none of the {count} spill directories"),
        };
        return Err(Report::new(
            "where.unknown",
            format!("event {id} was not found: {looked}"),
        )
        .with_hint(
            "an event that was delivered leaves no trace in a spill directory once its file \
                 is done; the Event Log API knows it by the same id",
        ));
    };
    let born = id.born_ms().and_then(table::time);
    let located = Located {
        id,
        place: last.sighting.place.clone(),
        component: last.component.clone(),
        at: last.sighting.rejected_at.clone().or(born),
        attempts: last.sighting.attempts,
        history,
    };
    match output {
        Output::Json => print_json(&located)?,
        Output::Table => print(&text(&located))?,
    }
    Ok(Exit::Ok)
}

fn text(located: &Located) -> String {
    let mut lines = vec![format!(
        "{} is {} at {}, since {}",
        located.id,
        located.place.to_string().replace('_', " "),
        located.component,
        located.at.as_deref().unwrap_or("an unknown time")
    )];
    for Step {
        component,
        sighting,
    } in &located.history
    {
        let mut line = format!(
            "  {}  {component}/{}:{}",
            sighting.place, sighting.file, sighting.line
        );
        if !sighting.is_readable {
            line.push_str("  the line names it and cannot be read");
        }
        if let Some(code) = &sighting.code {
            let status = sighting.status.map(|status| format!(" ({status})"));
            line.push_str(&format!("  {code}{}", status.unwrap_or_default()));
        }
        if let Some(message) = &sighting.message {
            line.push_str(&format!(": {message}"));
        }
        if let Some(attempts) = sighting.attempts {
            line.push_str(&format!("  attempts {attempts}"));
        }
        lines.push(line);
    }
    lines.join("\n")
}
