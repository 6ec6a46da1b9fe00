//! `tidegate where`.

use serde::Serialize;
use tidegate_core::EventId;
use tidegate_core::books::Place;
use tidegate_core::env::Env;
use tidegate_core::env::system::SystemDisk;
use tidegate_logger::spill::{Sighting, find};
use tidegate_queue::port::{HandlerState, Status};
use tidegate_server::log::Sighting as Lying;

use crate::args::{Books, Output};
use crate::commands::audit::{self, Asked};
use crate::commands::spill;
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
    Queued(Box<Queued>),
}

/// What the queue's tables have of an event.
#[derive(Debug, Serialize)]
struct Queued {
    component: String,
    place: Place,
    /// Its number in the tables.
    number: i64,
    status: Status,
    #[serde(rename = "type")]
    type_name: String,
    key: Option<String>,
    attempts: u32,
    at: Option<String>,
    /// When it is tried again.
    next_attempt_at: Option<String>,
    /// Who handles it, and until when.
    locked_by: Option<String>,
    locked_until: Option<String>,
    /// Its place in the order of projections.
    position: Option<i64>,
    /// What its handlers said.
    handlers: Vec<HandlerState>,
    /// The numbers of other events with the same id.
    others: Vec<i64>,
}

impl Queued {
    fn of(seen: tidegate_queue::port::Sighting) -> Self {
        let time = |ms: i64| table::time(u64::try_from(ms).ok()?);
        Self {
            component: tidegate_queue::sql::COMPONENT.to_owned(),
            place: seen.place,
            number: seen.number,
            status: seen.status,
            type_name: seen.type_name,
            key: seen.key,
            attempts: seen.attempts,
            at: time(seen.at_ms),
            next_attempt_at: seen.next_attempt_ms.and_then(time),
            locked_by: seen.locked_by,
            locked_until: seen.locked_until_ms.and_then(time),
            position: seen.position,
            handlers: seen.states,
            others: seen.others,
        }
    }
}

#[derive(Debug, Serialize)]
struct Spilled {
    component: String,
    #[serde(flatten)]
    sighting: Sighting,
}

pub(crate) async fn run(id: EventId, arguments: &Books, output: Output) -> Result<Exit, Report> {
    let asked = Asked::by(arguments);
    let mut looked = Vec::new();
    let mut seen = Seen::default();
    if asked.spills {
        for dir in &spill::directories(&arguments.spills)? {
            let found = find(&SystemDisk, dir, id);
            let found = found.map_err(|error| spill::unreadable("cannot search", dir, &error))?;
            looked.push(format!("`{}`", dir.display()));
            seen.spilled
                .extend(found.into_iter().map(|sighting| Spilled {
                    component: spill::component(dir),
                    sighting,
                }));
        }
    }
    if asked.log {
        seen.lying = find_in_log(id, arguments, &mut looked).await?;
    }
    if asked.store {
        seen.queued = find_in_queue(id, arguments, &mut looked).await?;
    }
    let Some(located) = located(id, seen) else {
        return Err(unknown(id, &looked));
    };
    match output {
        Output::Json => print_json(&located)?,
        Output::Table => print(&text(&located))?,
    }
    Ok(Exit::Ok)
}

/// Where an event was seen.
#[derive(Debug, Default)]
struct Seen {
    spilled: Vec<Spilled>,
    lying: Option<tidegate_server::log::Located>,
    queued: Option<Queued>,
}

/// A topic comes after a spill on the way of an event, and a queue after a topic, so the last of
/// them that has it decides.
fn located(id: EventId, seen: Seen) -> Option<Located> {
    let last = seen.spilled.last();
    let spilled = last.and_then(|last| last.sighting.attempts);
    let attempts = seen.queued.as_ref().map(|queued| queued.attempts);
    let (place, component, at) = match (&seen.queued, &seen.lying, last) {
        (Some(queued), ..) => (
            queued.place.clone(),
            queued.component.clone(),
            queued.at.clone(),
        ),
        (None, Some(lying), _) => (
            lying.place.clone(),
            lying.component.clone(),
            lying.at.clone(),
        ),
        (None, None, Some(last)) => (
            last.sighting.place.clone(),
            last.component.clone(),
            last.sighting.rejected_at.clone(),
        ),
        (None, None, None) => return None,
    };
    let lying = seen.lying.map(|lying| lying.history).unwrap_or_default();
    let history = seen.spilled.into_iter().map(Step::Spilled);
    let history = history.chain(lying.into_iter().map(Step::Lying));
    let queued = seen.queued.map(Box::new).map(Step::Queued);
    Some(Located {
        id,
        place,
        component,
        at: at.or_else(|| id.born_ms().and_then(table::time)),
        attempts: attempts.or(spilled),
        history: history.chain(queued).collect(),
    })
}

fn unknown(id: EventId, looked: &[String]) -> Report {
    let looked = match looked {
        [] => "no spill directory, no log and no queue is configured or named".to_owned(),
        [one] => format!("it is not in {one}"),
        several => format!("it is in none of {}", several.join(", ")),
    };
    Report::new(
        "where.unknown",
        format!("event {id} was not found: {looked}"),
    )
    .with_hint(
        "an event that was delivered leaves no trace in a spill directory once its file is done, \
         nor in a topic or a queue's log once retention has removed it; the Event Log API knows it by \
         the same id. One that `tidegate audit` names is missing",
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

async fn find_in_queue(
    id: EventId,
    arguments: &Books,
    looked: &mut Vec<String>,
) -> Result<Option<Queued>, Report> {
    let Some(opened) = audit::open_queue(arguments).await? else {
        return Ok(None);
    };
    looked.push(format!("the queue in `{}`", opened.shown));
    let found = opened.queue.store().find(id).await;
    let found = found.map_err(|error| opened.report(&error))?;
    Ok(found.map(Queued::of))
}

/// The place of an event in a topic; where its group has put events of that time in several, all of
/// them: nobody but the group can say which.
fn lying_place(lying: &Lying) -> String {
    if lying.among.is_empty() {
        return lying.place.to_string();
    }
    let among: Vec<String> = lying.among.iter().map(ToString::to_string).collect();
    format!("settled, as one of {}", among.join(", "))
}

fn text(located: &Located) -> String {
    let place = located.history.iter().rev().find_map(|step| match step {
        Step::Lying(lying) if lying.component == located.component => Some(lying_place(lying)),
        Step::Lying(_) | Step::Spilled(_) | Step::Queued(_) => None,
    });
    let place = place.unwrap_or_else(|| located.place.to_string());
    let mut lines = vec![format!(
        "{} is {} at {}, since {}",
        located.id,
        place.replace('_', " "),
        located.component,
        located.at.as_deref().unwrap_or("an unknown time")
    )];
    for step in &located.history {
        match step {
            Step::Spilled(spilled) => lines.push(spilled_line(spilled)),
            Step::Lying(lying) => lines.push(format!(
                "  {}  {} in {}-{} at {}",
                lying_place(lying),
                lying.component,
                lying.topic,
                lying.partition,
                lying.offset
            )),
            Step::Queued(queued) => lines.extend(queued_lines(queued)),
        }
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

fn queued_lines(queued: &Queued) -> Vec<String> {
    let mut line = format!(
        "  {}  {} number {}, type {}, {}, attempts {}",
        queued.place,
        queued.component,
        queued.number,
        queued.type_name,
        queued.status.as_str(),
        queued.attempts
    );
    if let Some(key) = &queued.key {
        line.push_str(&format!(", key {key}"));
    }
    if let Some(owner) = &queued.locked_by {
        let until = queued.locked_until.as_deref().unwrap_or("an unknown time");
        line.push_str(&format!(", handled by {owner} until {until}"));
    }
    if let Some(next) = &queued.next_attempt_at {
        line.push_str(&format!(", tried again at {next}"));
    }
    if let Some(position) = queued.position {
        line.push_str(&format!(", position {position}"));
    }
    let handlers = queued.handlers.iter().map(|state| {
        let error = state.error.as_ref().map(|error| format!(": {error}"));
        format!(
            "    {}  {}  attempts {}{}",
            state.handler,
            state.result.as_str(),
            state.attempts,
            error.unwrap_or_default()
        )
    });
    let others = queued.others.iter().map(|other| {
        format!("    number {other} was published with the same id: `tidegate queue show {other}`")
    });
    let lines = std::iter::once(line).chain(handlers).chain(others);
    lines.map(|line| table::plain(&line)).collect()
}
