//! `tidegate queue`: the durable queue, as operators see it.

mod event;
mod list;
mod migrate;
mod publish;
mod registry;
mod retry_cancel;

use tidegate_core::env::Env;
use tidegate_queue::QueueError;

use crate::args::{EventRef, Output, QueueArgs, StoreAt};
use crate::report::{ErrorReport, Exit};
use crate::store::{self, OpenedStore};
use crate::watch;

pub(crate) async fn run(command: &QueueArgs, output: Output) -> Result<Exit, ErrorReport> {
    match command {
        QueueArgs::Ls(arguments) => list::list(arguments, output).await,
        QueueArgs::Show { event, at } => list::show(*event, at, output).await,
        QueueArgs::Stats { watch, at } => {
            watch::repeat(*watch, output, || list::stats(at, output)).await
        }
        QueueArgs::Retry(arguments) => retry_cancel::retry(arguments, output).await,
        QueueArgs::Cancel { events, at } => retry_cancel::cancel(events, at, output).await,
        QueueArgs::Publish(arguments) => publish::publish(arguments, output).await,
        QueueArgs::Handlers(at) => registry::handlers(at, output).await,
        QueueArgs::Unregister {
            type_name,
            handler,
            yes,
            at,
        } => registry::unregister((type_name, handler), *yes, at, output).await,
        QueueArgs::Migrate {
            print: true,
            dialect,
            at,
        } => migrate::print(*dialect, at, output),
        QueueArgs::Migrate { at, .. } => migrate::migrate(at, output).await,
    }
}

/// The queue of the configuration, whose tables are there.
pub(crate) async fn open(at: &StoreAt) -> Result<OpenedStore, ErrorReport> {
    let settings = store::named(at)?;
    store::open(&settings, &Env::system()).await
}

/// The number of an event that was named by either.
async fn number_of(
    opened: &OpenedStore,
    event: EventRef,
) -> Result<Result<i64, ErrorReport>, ErrorReport> {
    let id = match event {
        EventRef::Number(number) => return Ok(Ok(number)),
        EventRef::Id(id) => id,
    };
    let found = opened.checked(opened.queue.store().find(id).await)?;
    Ok(found.map(|found| found.number).ok_or_else(|| {
        let message = format!("there is no event {id} in the queue or in its log");
        ErrorReport::new("queue.unknown", message)
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
