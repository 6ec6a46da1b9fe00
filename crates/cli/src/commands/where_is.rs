//! `tidegate where`.

use serde::Serialize;
use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemDisk;
use tidegate_logger::spill::{Sighting, find};
use tidegate_server::log::Sighting as Lying;

use crate::args::{Books, Output};
use crate::commands::{audit, spill};
use crate::log::{self, Backend, Opened, Reached};
use crate::report::{Exit, Report, print, print_json};
use crate::table;

/// Where an event is.
#[derive(Debug, Serialize)]
struct Located {
    id: EventId,
    place: Place,
    component: String,
    /// Since when it is there, as far as anything tells: when it was refused, when its record was
    /// made, else when it was born.
    at: Option<String>,
    /// How often it was sent, where that was written down.
    attempts: Option<u32>,
    /// Where it was seen, in the order in which it passed there.
    history: Vec<Step>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Step {
    Spilled(Spilled),
    Lying(Lying),
}

#[derive(Debug, Serialize)]
struct Spilled {
    component: String,
    #[serde(flatten)]
    sighting: Sighting,
}

pub(crate) async fn run(id: EventId, arguments: &Books, output: Output) -> Result<Exit, Report> {
    let mut looked = Vec::new();
    let mut spilled = Vec::new();
    if audit::asks_for_spills(arguments) {
        for dir in &spill::directories(&arguments.spills)? {
            let found = find(&SystemDisk, dir, id);
            let found = found.map_err(|error| spill::unreadable("cannot search", dir, &error))?;
            looked.push(format!("`{}`", dir.display()));
            spilled.extend(found.into_iter().map(|sighting| Spilled {
                component: spill::component(dir),
                sighting,
            }));
        }
    }
    let mut lying = None;
    if audit::asks_for_log(arguments) {
        lying = find_in_log(id, arguments, &mut looked).await?;
    }
    let Some(located) = located(id, spilled, lying) else {
        return Err(unknown(id, &looked));
    };
    match output {
        Output::Json => print_json(&located)?,
        Output::Table => print(&text(&located))?,
    }
    Ok(Exit::Ok)
}

/// A topic comes after a spill on the way of an event, so what a log has of it decides.
fn located(
    id: EventId,
    spilled: Vec<Spilled>,
    lying: Option<tidegate_server::log::Located>,
) -> Option<Located> {
    let last = spilled.last();
    let attempts = last.and_then(|last| last.sighting.attempts);
    let (place, component, at) = match (&lying, last) {
        (Some(lying), _) => (
            lying.place.clone(),
            lying.component.clone(),
            lying.at.clone(),
        ),
        (None, Some(last)) => (
            last.sighting.place.clone(),
            last.component.clone(),
            last.sighting.rejected_at.clone(),
        ),
        (None, None) => return None,
    };
    let lying = lying.map(|lying| lying.history).unwrap_or_default();
    let history = spilled.into_iter().map(Step::Spilled);
    Some(Located {
        id,
        place,
        component,
        at: at.or_else(|| id.born_ms().and_then(table::time)),
        attempts,
        history: history.chain(lying.into_iter().map(Step::Lying)).collect(),
    })
}

fn unknown(id: EventId, looked: &[String]) -> Report {
    let looked = match looked {
        [] => "no spill directory and no log is configured or named".to_owned(),
        [one] => format!("it is not in {one}"),
        several => format!("it is in none of {}", several.join(", ")),
    };
    Report::new(
        "where.unknown",
        format!("event {id} was not found: {looked}"),
    )
    .with_hint(
        "an event that was delivered leaves no trace in a spill directory once its file is done, \
         nor in a topic once retention has removed it; the Event Log API knows it by the same id",
    )
}

async fn find_in_log(
    id: EventId,
    arguments: &Books,
    looked: &mut Vec<String>,
) -> Result<Option<tidegate_server::log::Located>, Report> {
    let (file, at) = (&arguments.spills.file, &arguments.at);
    let failed = |error| log::report(&error);
    let env = Env::system();
    if let Some(url) = &at.url {
        looked.push(format!(
            "the log of {}",
            tidegate_config::shown_address(url)
        ));
        return match log::reach(file, at, None, &env).await? {
            Reached::There(remote) => remote.find(id).await.map_err(failed),
            Reached::Here(_) => Ok(None),
        };
    }
    let (settings, config) = log::configured(file, at.dir.as_deref())?;
    if let Backend::Embedded(embedded) = &settings.backend {
        if !log::must_be_there(&embedded.dir, at)? {
            return Ok(None);
        }
        looked.push(format!("`{}`", embedded.dir.display()));
        if let Some(remote) = log::holding(&embedded.dir, at, &config).await? {
            return remote.find(id).await.map_err(failed);
        }
    } else {
        looked.push("the topics on Kafka".to_owned());
    }
    let opened = Opened::open(&settings, &env, None).await.map_err(failed)?;
    let found = opened.find(id).await;
    opened.close().await;
    found.map_err(failed)
}

fn text(located: &Located) -> String {
    let mut lines = vec![format!(
        "{} is {} at {}, since {}",
        located.id,
        located.place.to_string().replace('_', " "),
        located.component,
        located.at.as_deref().unwrap_or("an unknown time")
    )];
    for step in &located.history {
        lines.push(match step {
            Step::Spilled(spilled) => spilled_line(spilled),
            Step::Lying(lying) => format!(
                "  {}  {} in {}-{} at {}",
                lying.place, lying.component, lying.topic, lying.partition, lying.offset
            ),
        });
    }
    lines.join("\n")
}

fn spilled_line(
    Spilled {
        component,
        sighting,
    }: &Spilled,
) -> String {
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
    line
}
