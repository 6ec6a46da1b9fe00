//! The store of the configuration, opened as a queue.

use std::io;
use std::path::{Path, PathBuf};

use tidegate_config::{Config, shown_address};
use tidegate_core::Failure;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Disk, Env, OpenMode};
use tidegate_queue::{Queue, QueueError, sql};
use tidegate_store::{Store, StoreOptions, migrate};

use crate::args::StoreAt;
use crate::report::ErrorReport;
use crate::settings;

/// The store of a configuration.
#[derive(Debug, Clone)]
pub(crate) struct StoreSettings {
    pub(crate) options: StoreOptions,
    /// Whether somebody configured it, or the queue in it.
    pub(crate) is_given: bool,
}

impl StoreSettings {
    /// The store that is configured; SQLite beside us, where nothing is said.
    pub(crate) fn of(config: &Config) -> Result<Self, ErrorReport> {
        Ok(Self {
            options: StoreOptions::from_config(config)?,
            is_given: config.is_set("store") || config.is_set("queue"),
        })
    }

    /// Whether there is something to open: a file that is not there would be made by opening it.
    /// Of a server only connecting tells.
    fn is_there(&self) -> Result<bool, ErrorReport> {
        let Some(file) = self.options.file() else {
            return Ok(true);
        };
        match std::fs::metadata(file) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => {
                let doing = format!("cannot look for the database `{}`", file.display());
                Err(ErrorReport::of("store.broken", &doing, &error))
            }
        }
    }
}

/// A copy of a database as it lies on the disk, for whoever must not write to it. It goes with this value.
#[derive(Debug)]
pub(crate) struct DatabaseView {
    dir: PathBuf,
    file: PathBuf,
}

impl DatabaseView {
    /// Copies a file, and what SQLite has written beside it and not put into it yet. Another process may write
    /// meanwhile; a copy of two moments is thrown away.
    pub(crate) fn of(file: &Path) -> Result<Self, ErrorReport> {
        Self::of_quiet(file, &mut || ())
    }

    /// The same; `between` is called between the two files.
    fn of_quiet(file: &Path, between: &mut dyn FnMut()) -> Result<Self, ErrorReport> {
        let failed = |error: io::Error| {
            let doing = format!("cannot copy the database `{}` to read it", file.display());
            ErrorReport::of("store.broken", &doing, &error)
        };
        let dir = private_dir().map_err(failed)?;
        let view = Self {
            file: dir.join("view.db"),
            dir,
        };
        for _ in 0..COPY_TRIES {
            let before = CheckpointStamp::of(file).map_err(failed)?;
            view.copy(file, between).map_err(failed)?;
            if CheckpointStamp::of(file).map_err(failed)? == before {
                return Ok(view);
            }
        }
        let message = format!(
            "the database `{}` changes while it is copied",
            file.display()
        );
        Err(ErrorReport::new("store.changing", message).with_hint(
            "try again, or run this as a user who may write to it and without `--direct`",
        ))
    }

    fn copy(&self, file: &Path, between: &mut dyn FnMut()) -> io::Result<()> {
        let log = write_ahead_log(&self.file);
        match std::fs::copy(write_ahead_log(file), &log) {
            // One of an earlier try would be read as well.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::remove_file(&log).or_else(if_there)?;
            }
            copied => drop(copied?),
        }
        between();
        std::fs::copy(file, &self.file)?;
        // A copy has the rights of its file.
        for copied in [&self.file, &log] {
            let Ok(metadata) = std::fs::metadata(copied) else {
                continue;
            };
            let mut rights = metadata.permissions();
            std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o600);
            std::fs::set_permissions(copied, rights)?;
        }
        Ok(())
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.file.display())
    }
}

/// How often a database that changes is copied.
const COPY_TRIES: usize = 5;

/// The file beside a database that has what was committed and is not in the database yet.
fn write_ahead_log(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

fn if_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound {
        return Ok(());
    }
    Err(error)
}

/// A new directory that no other user can look into or has made before.
fn private_dir() -> io::Result<PathBuf> {
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let mut number = 0;
    loop {
        let name = format!("tidegate-view-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        match builder.create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1_000 => {
                number += 1;
            }
            made => return made.map(|()| dir),
        }
    }
}

/// Tells whether pages were put into a database, or its write-ahead log was begun anew. Commits only add to
/// the log, and a half of one at its end is ignored.
#[derive(Debug, PartialEq, Eq)]
struct CheckpointStamp {
    len: u64,
    modified: std::time::SystemTime,
    log_header: Option<Vec<u8>>,
}

impl CheckpointStamp {
    /// The bytes of the header of a write-ahead log, which change when it is begun anew.
    const HEADER: usize = 32;

    fn of(file: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(file)?;
        let log_header = match SystemDisk.open(&write_ahead_log(file), OpenMode::Read) {
            Err(error) => if_there(error).map(|()| None)?,
            Ok(log) => {
                let mut header = vec![0; Self::HEADER];
                let read = log.read_at(0, &mut header)?;
                header.truncate(read);
                Some(header)
            }
        };
        Ok(Self {
            len: metadata.len(),
            modified: metadata.modified()?,
            log_header,
        })
    }
}

impl Drop for DatabaseView {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::debug!(%error, "could not remove the copy of a database");
        }
    }
}

/// The database of the configuration, with the queue that is in it. Clones are the same ones.
#[derive(Debug, Clone)]
pub(crate) struct OpenedStore {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    /// The address in messages, without what is secret in it.
    pub(crate) shown: String,
}

impl OpenedStore {
    /// The queue in this database, whether or not its tables are there.
    pub(crate) async fn on(store: Store, shown: String, env: &Env) -> Result<Self, ErrorReport> {
        let queue = sql::queue_store(store.clone(), env).await;
        let queue = queue.map_err(|error| report(&shown, &error))?;
        Ok(Self {
            queue: Queue::on(queue, env),
            store,
            shown,
        })
    }

    /// The result of a call of the queue, or the report of its failure.
    pub(crate) fn checked<T>(&self, result: Result<T, QueueError>) -> Result<T, ErrorReport> {
        result.map_err(|error| self.report(&error))
    }

    /// The report of a queue that does not do what it is asked.
    pub(crate) fn report(&self, error: &QueueError) -> ErrorReport {
        report(&self.shown, error)
    }

    /// Ends the use of it: SQLite's file alone is the whole database then. The next one that opens it
    /// does the same, so that a failure is not worth a word to people.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.store.close().await {
            tracing::debug!(%error, "could not checkpoint; the journal stays beside the file");
        }
    }
}

/// The report of a failure, which says which database it is about.
pub(crate) fn report(shown: &str, error: &QueueError) -> ErrorReport {
    let mut failure = Failure::from(error);
    if failure.code.as_str().starts_with("store.") {
        failure.message = format!("store `{shown}`: {}", failure.message);
    }
    failure.into()
}

/// The store that is named, else that of the configuration.
pub(crate) fn named(at: &StoreAt) -> Result<StoreSettings, ErrorReport> {
    match &at.store {
        None => StoreSettings::of(&settings::quietly(&at.file)?),
        Some(url) => Ok(StoreSettings {
            options: StoreOptions::new(url),
            is_given: true,
        }),
    }
}

/// Opens a store whose tables are there. Makes neither a file nor a table.
pub(crate) async fn open(settings: &StoreSettings, env: &Env) -> Result<OpenedStore, ErrorReport> {
    if !settings.is_there()? {
        return Err(missing(settings));
    }
    let (opened, count) = connect(settings, env).await?;
    if count == 0 {
        return Ok(opened);
    }
    must_be_new(&opened).await?;
    Err(outdated(&opened.shown, count))
}

/// A database without the list of its migrations holds no tables of ours, or it was damaged: running the
/// migrations would make it look well.
async fn must_be_new(opened: &OpenedStore) -> Result<(), ErrorReport> {
    let own = migrate::pending_of_part(&opened.store, sql::COMPONENT, sql::MIGRATIONS).await;
    let own = own.map_err(|error| report(&opened.shown, &error.into()))?;
    let is_there = opened.store.has_table("tidegate_event").await;
    let is_there = is_there.map_err(|error| report(&opened.shown, &error.into()))?;
    match own == sql::MIGRATIONS.len() && is_there {
        true => Err(damaged(&format!(
            "the database `{}` has tables of a queue, and the list of its migrations is empty",
            opened.shown
        ))),
        false => Ok(()),
    }
}

/// The report of a database that is not as it was written.
fn damaged(message: &str) -> ErrorReport {
    // error-page: store.damaged
    ErrorReport::new("store.damaged", message).with_hint(
        "copy the file and its `-wal` before anything else, then restore a backup; do not run migrations",
    )
}

/// Opens a store if there is one and the queue has tables in it. Makes neither a file nor a table.
pub(crate) async fn open_if_there(
    settings: &StoreSettings,
    env: &Env,
) -> Result<Option<OpenedStore>, ErrorReport> {
    if !settings.is_there()? {
        return Ok(None);
    }
    let (opened, count) = connect(settings, env).await?;
    if count == 0 {
        return Ok(Some(opened));
    }
    let own = migrate::pending_of_part(&opened.store, sql::COMPONENT, sql::MIGRATIONS).await;
    let own = own.map_err(|error| report(&opened.shown, &error.into()))?;
    match own < sql::MIGRATIONS.len() {
        true => Err(outdated(&opened.shown, count)),
        // None of its own has run: the database is there for something else.
        false => must_be_new(&opened).await.map(|()| None),
    }
}

/// Opens a database if it is there, for whoever has tables of their own in it.
pub(crate) async fn open_database(
    settings: &StoreSettings,
    env: &Env,
) -> Result<Option<(Store, String)>, ErrorReport> {
    match settings.is_there()? {
        true => {
            must_not_be_empty(settings)?;
            open_store(settings, env).await.map(Some)
        }
        false => Ok(None),
    }
}

/// SQLite takes a file of 0 bytes for a new database, and opening it would make it one.
fn must_not_be_empty(settings: &StoreSettings) -> Result<(), ErrorReport> {
    if let Some(file) = settings.options.file()
        && std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.len() == 0)
    {
        return Err(damaged(&format!(
            "the database `{}` has 0 bytes: nothing was ever written to it, or all of it is gone",
            file.display()
        )));
    }
    Ok(())
}

/// The queue of a database, and how many migrations it still needs.
async fn connect(settings: &StoreSettings, env: &Env) -> Result<(OpenedStore, usize), ErrorReport> {
    must_not_be_empty(settings)?;
    let (store, shown) = open_store(settings, env).await?;
    let opened = OpenedStore::on(store, shown, env).await?;
    let pending = opened.checked(sql::pending(&opened.store).await)?;
    Ok((opened, pending))
}

/// Opens a database and makes its directory where that is missing. Gives its address for messages too.
pub(crate) async fn make(
    settings: &StoreSettings,
    env: &Env,
) -> Result<(Store, String), ErrorReport> {
    if let Some(dir) = settings.options.file().and_then(Path::parent)
        && dir != Path::new("")
    {
        let disk: &dyn Disk = &SystemDisk;
        disk.create_dir_all(dir).map_err(|error| {
            let doing = format!("cannot make the directory `{}` of the store", dir.display());
            ErrorReport::of("store.broken", &doing, &error)
        })?;
    }
    open_store(settings, env).await
}

async fn open_store(settings: &StoreSettings, env: &Env) -> Result<(Store, String), ErrorReport> {
    let shown = shown_address(&settings.options.url).into_owned();
    if let Some(file) = settings.options.file()
        && let Ok(found) = std::fs::metadata(file)
        && !found.is_file()
    {
        let message =
            format!("store `{shown}`: it is a directory, a pipe or a device, and no file");
        return Err(ErrorReport::new("store.broken", message));
    }
    match Store::open(&settings.options, env).await {
        Ok(store) => Ok((store, shown)),
        Err(error) => Err(report(&shown, &error.into())),
    }
}

fn outdated(shown: &str, count: usize) -> ErrorReport {
    let count = crate::table::counted(count as u64, "migration");
    let message = format!(
        "the tables of the queue in `{shown}` are not there, or not up to date: {count} to run"
    );
    ErrorReport::new("store.schema", message)
        .with_hint("run `tidegate queue migrate`; `--print` shows the SQL instead")
}

fn missing(settings: &StoreSettings) -> ErrorReport {
    let shown = shown_address(&settings.options.url);
    let message = format!("there is no database yet at `{shown}`");
    ErrorReport::new("store.missing", message)
        .with_hint("`tidegate queue migrate` makes it; another one is named by `store.url`")
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tests write the files that are copied"
)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn database() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("queue.db");
        std::fs::write(&file, b"pages").unwrap();
        std::fs::write(write_ahead_log(&file), [1; 64]).unwrap();
        (dir, file)
    }

    #[test]
    fn each_view_is_in_a_private_directory_of_its_own_and_goes_with_it() {
        let (_dir, file) = database();
        let (one, two) = (
            DatabaseView::of(&file).unwrap(),
            DatabaseView::of(&file).unwrap(),
        );
        assert_ne!(one.dir, two.dir);
        for view in [&one, &two] {
            let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&view.dir), mode(&view.file)), (0o700, 0o600));
        }
        let gone = one.dir.clone();
        drop(one);
        assert!(!gone.exists() && two.file.exists());
    }

    #[test]
    fn a_copy_that_a_checkpoint_came_between_is_made_again() {
        let (_dir, file) = database();
        let mut calls = 0;
        let view = DatabaseView::of_quiet(&file, &mut || {
            calls += 1;
            if calls == 1 {
                std::fs::write(&file, b"pages and those of the log").unwrap();
                std::fs::write(write_ahead_log(&file), [2; 64]).unwrap();
            }
        });
        let view = view.unwrap();
        assert_eq!(calls, 2);
        assert_eq!(std::fs::read(write_ahead_log(&view.file)).unwrap(), [2; 64]);
        // One that never stands still cannot be copied.
        let mut length = 0;
        let view = DatabaseView::of_quiet(&file, &mut || {
            length += 1;
            std::fs::write(&file, vec![3; length]).unwrap();
        });
        assert!(view.unwrap_err().is("store.changing"));
    }
}
