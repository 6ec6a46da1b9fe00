//! `tidegate outbox`: the rows of an outbox, as operators see them.

mod list;
mod mend;
mod migrate;
mod row;

use tidegate_config::Config;
use tidegate_core::Failure;
use tidegate_core::env::Env;
use tidegate_outbox::{Outbox, OutboxError, OutboxOptions, RowSelection, pending};
use tidegate_store::Store;

use crate::args::{EventRef, OutboxArgs, OutboxAt, Output};
use crate::report::{ErrorReport, Exit};
use crate::{settings, store, table};

pub(crate) async fn run(command: &OutboxArgs, output: Output) -> Result<Exit, ErrorReport> {
    match command {
        OutboxArgs::Ls(arguments) => list::list(arguments, output).await,
        OutboxArgs::Show { row, at } => list::show(*row, at, output).await,
        OutboxArgs::Stats(at) => list::stats(at, output).await,
        OutboxArgs::Retry(arguments) => mend::retry(arguments, output).await,
        OutboxArgs::Purge(arguments) => mend::purge(arguments, output).await,
        OutboxArgs::Migrate {
            print: true,
            dialect,
            at,
        } => migrate::print(*dialect, at, output),
        OutboxArgs::Migrate { at, .. } => migrate::migrate(at, output).await,
    }
}

/// An outbox whose tables are there.
struct OpenedOutbox {
    outbox: Outbox,
    store: Store,
    /// The address in messages, without what is secret in it.
    shown: String,
}

impl OpenedOutbox {
    /// The result of a call, or the report of its failure.
    fn checked<T>(&self, result: Result<T, OutboxError>) -> Result<T, ErrorReport> {
        result.map_err(|error| report(&self.shown, &error))
    }

    /// Ends the use of it: SQLite's file alone is the whole database then.
    async fn close(&self) {
        if let Err(error) = self.store.close().await {
            tracing::debug!(%error, "could not checkpoint; the journal stays beside the file");
        }
    }
}

/// Opens the outbox that is meant. Makes neither a file nor a table.
async fn open(at: &OutboxAt) -> Result<OpenedOutbox, ErrorReport> {
    let options = meant(at)?;
    let env = Env::system();
    let settings = store::named(&at.store)?;
    let Some((store, shown)) = store::open_database(&settings, &env).await? else {
        let message = format!(
            "there is no database yet at `{}`",
            settings.options.shown_url()
        );
        return Err(ErrorReport::new("store.missing", message)
            .with_hint("`tidegate outbox migrate` makes it; another one is named by `store.url`"));
    };
    let missing = pending(&store, &options).await;
    let missing = missing.map_err(|error| report(&shown, &error))?;
    if missing > 0 {
        let count = table::counted(missing as u64, "migration");
        let message = format!(
            "the tables of the outbox in `{shown}` are not there, or not up to date: {count} to run"
        );
        return Err(ErrorReport::new("store.schema", message)
            .with_hint("run `tidegate outbox migrate`; `--print` shows the SQL instead"));
    }
    let outbox = Outbox::open(&store, options, &env).await;
    let outbox = outbox.map_err(|error| report(&shown, &error))?;
    Ok(OpenedOutbox {
        outbox,
        store,
        shown,
    })
}

/// The settings of the relay that is meant: the one that is named, or the only one. Without a section
/// `outbox` it is the usual table.
fn meant(at: &OutboxAt) -> Result<OutboxOptions, ErrorReport> {
    choose(&settings::quietly(&at.store.file)?, at.relay.as_deref())
}

fn choose(config: &Config, named: Option<&str>) -> Result<OutboxOptions, ErrorReport> {
    let mut relays = OutboxOptions::from_config(config)?;
    if relays.is_empty() {
        relays.push(OutboxOptions::default());
    }
    let names = || {
        let names = relays.iter().map(|relay| format!("`{}`", relay.name));
        names.collect::<Vec<_>>().join(", ")
    };
    let message = match (named, relays.as_slice()) {
        (None, [only]) => return Ok(only.clone()),
        (None, _) => format!("there are several relays: {}", names()),
        (Some(name), _) => match relays.iter().find(|relay| relay.name == name) {
            Some(relay) => return Ok(relay.clone()),
            None => format!("there is no relay `{name}`, but {}", names()),
        },
    };
    let hint = "name one of them with `--relay`";
    Err(ErrorReport::new("usage.relay", message)
        .with_hint(hint)
        .with_exit(Exit::Usage))
}

fn selection(row: EventRef) -> RowSelection {
    match row {
        EventRef::Number(number) => RowSelection::Id(number),
        EventRef::Id(id) => RowSelection::Event(id),
    }
}

/// The report of a failure, which says which database it is about.
fn report(shown: &str, error: &OutboxError) -> ErrorReport {
    let mut failure = Failure::from(error);
    if failure.code.as_str().starts_with("store.") {
        failure.message = format!("store `{shown}`: {}", failure.message);
    }
    failure.into()
}

#[cfg(test)]
mod tests {
    use tidegate_config::{Inputs, load};

    use super::*;

    #[test]
    fn the_relay_is_the_named_one_or_the_only_one() {
        let chosen = |text: &str, named: Option<&str>| {
            let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
            choose(&config, named).map(|options| options.name).ok()
        };
        let two = "outbox: {loans: {table: a}, bills: {table: b}}\n";
        assert_eq!(chosen("", None).as_deref(), Some("default"));
        assert_eq!(
            chosen("outbox: {loans: {}}\n", None).as_deref(),
            Some("loans")
        );
        assert_eq!(chosen(two, Some("bills")).as_deref(), Some("bills"));
        assert_eq!(chosen(two, None), None);
        assert_eq!(chosen(two, Some("other")), None);
    }
}
