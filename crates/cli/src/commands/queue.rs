//! `tidegate queue`: the durable queue, as operators see it.

mod event;
mod list;
mod mend;
mod migrate;
mod publish;
mod registry;

use tidegate_core::env::Env;
use tidegate_queue::QueueError;

use crate::args::{EventRef, Output, Queue, StoreAt};
use crate::report::{Exit, Report};
use crate::store::{self, Opened};

pub(crate) async fn run(command: &Queue, output: Output) -> Result<Exit, Report> {
    match command {
        Queue::Ls(arguments) => list::list(arguments, output).await,
        Queue::Show { event, at } => list::show(*event, at, output).await,
        Queue::Stats(at) => list::stats(at, output).await,
        Queue::Retry(arguments) => mend::retry(arguments, output).await,
        Queue::Cancel { events, at } => mend::cancel(events, at, output).await,
        Queue::Publish(arguments) => publish::publish(arguments, output).await,
        Queue::Handlers(at) => registry::handlers(at, output).await,
        Queue::Unregister {
            type_name,
            handler,
            yes,
            at,
        } => registry::unregister((type_name, handler), *yes, at, output).await,
        Queue::Migrate {
            print: true,
            dialect,
            at,
        } => migrate::print(*dialect, at, output),
        Queue::Migrate { at, .. } => migrate::migrate(at, output).await,
    }
}

/// The queue of the configuration, whose tables are there.
pub(super) async fn open(at: &StoreAt) -> Result<Opened, Report> {
    let settings = store::named(at)?;
    store::open(&settings, &Env::system()).await
}

/// The number of an event that was named by either.
async fn number_of(opened: &Opened, event: EventRef) -> Result<Result<i64, Report>, Report> {
    let id = match event {
        EventRef::Number(number) => return Ok(Ok(number)),
        EventRef::Id(id) => id,
    };
    let found = opened.queue.store().find(id).await;
    let found = found.map_err(|error| opened.report(&error))?;
    Ok(found.map(|sighting| sighting.number).ok_or_else(|| {
        Report::new(
            "queue.unknown",
            format!("there is no event {id} in the queue or in its log"),
        )
        .with_hint("`tidegate where` looks everywhere else as well")
    }))
}

/// Whether a failure is about the event alone, so that others may still work.
fn is_about_the_event(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::UnknownEvent { .. } | QueueError::Busy { .. } | QueueError::WrongState { .. }
    )
}
