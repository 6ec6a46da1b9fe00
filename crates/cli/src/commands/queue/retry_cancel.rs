//! The commands `retry` and `cancel`.

use serde::Serialize;
use tidegate_queue::QueueError;
use tidegate_queue::port::{EventFilter, QueueStatus};

use super::{is_about_the_event, number_of, open};
use crate::args::{EventRef, Output, QueueRetry, StoreAt};
use crate::report::{ErrorReport, Exit, MessageFormat};
use crate::store::OpenedStore;
use crate::table;

/// Events that are looked at at once.
const PAGE: u32 = 500;

/// The result of a command for a list of events.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// The numbers of those with which it worked.
    done: Vec<i64>,
    refused: Vec<serde_json::Value>,
}

impl Outcome {
    /// Notes the result of one event. A failure that is not about the event ends the command.
    fn note(
        &mut self,
        opened: &OpenedStore,
        id: i64,
        outcome: Result<(), QueueError>,
    ) -> Result<(), ErrorReport> {
        match outcome {
            Ok(()) => self.done.push(id),
            Err(error) if is_about_the_event(&error) => {
                self.refuse(&id.to_string(), &explained(opened, &error));
            }
            Err(error) => return Err(opened.report(&error)),
        }
        Ok(())
    }

    fn refuse(&mut self, event: &str, report: &ErrorReport) {
        report.tell(MessageFormat::Text);
        let mut refused = report.to_json();
        refused["event"] = event.into();
        self.refused.push(refused);
    }

    fn end(&self, did: &str, output: Output) -> Result<Exit, ErrorReport> {
        output.print(self, || {
            let done = table::counted(self.done.len() as u64, "event");
            format!("{done} {did}, {} refused", self.refused.len())
        })?;
        Ok(Exit::Failed.unless(self.refused.is_empty()))
    }
}

/// The report of an event with which it did not work.
fn explained(opened: &OpenedStore, error: &QueueError) -> ErrorReport {
    let report = opened.report(error);
    let QueueError::WrongState {
        state,
        wanted: "tried again",
        ..
    } = error
    else {
        return report;
    };
    report.with_hint(match *state {
        "PENDING" => {
            "it is due already: it waits for a process with its handler, or behind an earlier event \
             of its key"
        }
        "PROCESSING" => "it is being tried right now",
        _ => "it has done what it should; publish it anew, if it must be",
    })
}

pub(super) async fn retry(arguments: &QueueRetry, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(&arguments.at).await?;
    let mut outcome = Outcome::default();
    if arguments.all {
        retry_all(&opened, arguments.type_name.as_deref(), &mut outcome).await?;
    }
    for event in &arguments.events {
        match number_of(&opened, *event).await? {
            Ok(id) => {
                let redriven = opened.queue.store().redrive(id).await;
                outcome.note(&opened, id, redriven)?;
            }
            Err(unknown) => outcome.refuse(&name_of(*event), &unknown),
        }
    }
    opened.queue.store().wake();
    opened.queue.wakes_sent().await;
    opened.close().await;
    outcome.end("given back", output)
}

async fn retry_all(
    opened: &OpenedStore,
    type_name: Option<&str>,
    outcome: &mut Outcome,
) -> Result<(), ErrorReport> {
    let store = opened.queue.store();
    let mut after = 0;
    loop {
        // One that fails again meanwhile is above nobody: each is given back once.
        let filter = EventFilter {
            status: Some(QueueStatus::CompletedWithErrors),
            type_name: type_name.map(str::to_owned),
            after,
            limit: PAGE,
        };
        let page = opened.checked(store.list(&filter).await)?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after = last.id;
        for event in page {
            let redriven = store.redrive(event.id).await;
            outcome.note(opened, event.id, redriven)?;
        }
    }
}

pub(super) async fn cancel(
    events: &[EventRef],
    at: &StoreAt,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let mut outcome = Outcome::default();
    for event in events {
        match number_of(&opened, *event).await? {
            Ok(id) => {
                let canceled = opened.queue.store().cancel(id).await;
                outcome.note(&opened, id, canceled)?;
            }
            Err(unknown) => outcome.refuse(&name_of(*event), &unknown),
        }
    }
    outcome.end("canceled", output)
}

fn name_of(event: EventRef) -> String {
    match event {
        EventRef::Number(number) => number.to_string(),
        EventRef::Id(id) => id.to_string(),
    }
}
