//! The store of the configuration, opened as a queue.

mod failure;
mod settings;
mod tend;

use std::path::Path;

use tidegate_config::shown_address;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, Env};
use tidegate_queue::{Queue, sql};
use tidegate_store::{Store, StoreOptions};

use crate::args::{ConfigFile, StoreAt};
use crate::report::{Report, Voice};
use crate::settings as configuration;

pub(crate) use failure::report;
pub(crate) use settings::StoreSettings;
pub(crate) use tend::{QueueWitness, Tending, component, finding};

/// The database of the configuration, with the queue that is in it. Clones are the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    /// What messages call it: the address without what is secret in it.
    pub(crate) shown: String,
}

impl Opened {
    /// What people are told when the queue does not do what it is asked.
    pub(crate) fn report(&self, error: &tidegate_queue::QueueError) -> Report {
        report(&self.shown, error)
    }

    /// Ends the use of it: SQLite's file alone is the whole database then. Whoever opens it next does the
    /// same, so that a failure is not worth a word to people.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.store.close().await {
            tracing::debug!(%error, "the journal stays beside the file");
        }
    }
}

/// The store that a command line means: that of the configuration.
pub(crate) fn configured(file: &ConfigFile) -> Result<StoreSettings, Report> {
    let loaded = configuration::read(file)?.loaded;
    // Warnings are about what `run` would make of the file, and nothing is run here.
    let config = if loaded.problems.is_empty() {
        loaded.config
    } else {
        configuration::checked(loaded, Voice::Text)?
    };
    Ok(StoreSettings::of(&config))
}

/// The store that is named, else that of the configuration.
pub(crate) fn named(at: &StoreAt) -> Result<StoreSettings, Report> {
    match &at.store {
        None => configured(&at.file),
        Some(url) => Ok(StoreSettings {
            options: StoreOptions::new(url),
            is_given: true,
        }),
    }
}

/// Opens a store whose tables are there. Makes neither a file nor a table.
pub(crate) async fn open(settings: &StoreSettings, env: &Env) -> Result<Opened, Report> {
    if !settings.is_there()? {
        return Err(missing(settings));
    }
    let opened = connect(settings, env).await?;
    let pending = sql::pending(&opened.store).await;
    match pending.map_err(|error| opened.report(&error))? {
        0 => Ok(opened),
        count => Err(outdated(&opened.shown, count)),
    }
}

/// Opens a store if there is one and the queue has tables in it. Makes neither a file nor a table.
pub(crate) async fn open_if_there(
    settings: &StoreSettings,
    env: &Env,
) -> Result<Option<Opened>, Report> {
    if !settings.is_there()? {
        return Ok(None);
    }
    let opened = connect(settings, env).await?;
    let pending = sql::pending(&opened.store).await;
    match pending.map_err(|error| opened.report(&error))? {
        0 => Ok(Some(opened)),
        // None of them has run: the database is there for something else.
        count if count >= sql::MIGRATIONS.len() => Ok(None),
        count => Err(outdated(&opened.shown, count)),
    }
}

/// Opens a store; makes what is missing of its file and of its tables, and says how many
/// migrations ran.
pub(crate) async fn open_and_migrate(
    settings: &StoreSettings,
    env: &Env,
) -> Result<(Opened, usize), Report> {
    if let Some(dir) = settings.options.file().and_then(Path::parent)
        && dir != Path::new("")
    {
        let disk: &dyn Disk = &SystemDisk;
        disk.create_dir_all(dir).map_err(|error| {
            let doing = format!("cannot make the directory `{}` of the store", dir.display());
            Report::of("store.broken", &doing, &error)
        })?;
    }
    let opened = connect(settings, env).await?;
    let ran = sql::migrate(&opened.store).await;
    let ran = ran.map_err(|error| opened.report(&error))?;
    Ok((opened, ran))
}

async fn connect(settings: &StoreSettings, env: &Env) -> Result<Opened, Report> {
    let shown = shown_address(&settings.options.url).into_owned();
    let opening = async {
        let store = Store::open(&settings.options, env).await?;
        let queue = sql::queue_store(store.clone(), env).await?;
        Ok((store, Queue::on(queue, env)))
    };
    let (store, queue) = opening.await.map_err(|error| report(&shown, &error))?;
    Ok(Opened {
        store,
        queue,
        shown,
    })
}

fn outdated(shown: &str, count: usize) -> Report {
    let count = crate::table::counted(count as u64, "migration");
    Report::new(
        "store.schema",
        format!(
            "the tables of the queue in `{shown}` are not there, or not up to date: {count} to run"
        ),
    )
    .with_hint("run `tidegate queue migrate`; `--print` shows the SQL instead")
}

fn missing(settings: &StoreSettings) -> Report {
    Report::new(
        "store.missing",
        format!(
            "there is no database yet at `{}`",
            shown_address(&settings.options.url)
        ),
    )
    .with_hint("`tidegate queue migrate` makes it; another one is named by `store.url`")
}
