//! The database as a component of a process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{
    AcceptedEvents, AuditFinding, Audited, Books, ComponentAccount, ComponentKind,
};
use tidegate_core::env::{BoxFuture, CatchPanic, Clock, Disk, Env};
use tidegate_core::{
    Component, EventId, EventLocation, Failure, HealthFinding, Shutdown, error_chain,
};

use crate::{Store, StoreOptions, idempotency};

const NAME: &str = "store";
/// The pause between two removals of old idempotency keys.
const CLEAN_EVERY: Duration = Duration::from_secs(60);

/// The database that other components keep their events in. It keeps no books of its own. Its background work
/// removes idempotency keys whose time is over.
#[derive(Debug)]
pub struct StoreComponent {
    store: Store,
    /// Of SQLite.
    file: Option<PathBuf>,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
}

impl StoreComponent {
    /// The component of this database.
    #[must_use]
    pub fn new(store: Store, options: &StoreOptions, env: &Env) -> Self {
        Self {
            store,
            file: options.file().map(ToOwned::to_owned),
            disk: Arc::clone(&env.disk),
            clock: Arc::clone(&env.clock),
        }
    }

    /// A file that was removed can still be written to, and all of it is gone with the process. It is not
    /// opened here: closing it again would end the locks of SQLite.
    fn is_file_there(&self) -> io::Result<bool> {
        let Some((file, name)) = self
            .file
            .as_deref()
            .and_then(|file| Some((file, file.file_name()?)))
        else {
            return Ok(true);
        };
        let dir = file.parent().filter(|dir| *dir != Path::new(""));
        let entries = self.disk.list(dir.unwrap_or(Path::new(".")))?;
        Ok(entries.iter().any(|entry| name == entry.name.as_str()))
    }
}

impl Component for StoreComponent {
    fn name(&self) -> &str {
        NAME
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The components in it have the events.
    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The file itself, where it is SQLite's: damage to what no count reads.
    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async {
            let problems = self.store.check_file().await?;
            if problems.is_empty() {
                return Ok(Vec::new());
            }
            let findings = problems
                .into_iter()
                .map(|problem| AuditFinding::new("store.damaged", problem));
            let (kind, nothing) = (ComponentKind::Queue, Books::default());
            let audited = Audited::new(NAME.to_owned(), kind, &nothing, &nothing, Vec::new());
            Ok(vec![audited.with_findings(findings)])
        })
    }

    fn locate(&self, _: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async {
            match self.is_file_there() {
                Ok(true) => {}
                Ok(false) => {
                    return HealthFinding::down("the file of the database was removed");
                }
                Err(_) => {
                    return HealthFinding::down("the file of the database cannot be looked at");
                }
            }
            match self.store.ping().await {
                Ok(()) => HealthFinding::up(),
                Err(error) => HealthFinding::down(error_chain(&error)),
            }
        })
    }

    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            let cleaning = async {
                loop {
                    self.clock.sleep(CLEAN_EVERY).await;
                    let cleaning = idempotency::clean(&self.store, self.clock.now_ms());
                    match CatchPanic(Box::pin(cleaning)).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => {
                            tracing::warn!(%error, "could not remove old idempotency keys; retrying");
                        }
                        Err(panic) => {
                            tracing::error!(panic, "the removal of idempotency keys panicked");
                        }
                    }
                }
            };
            tokio::select! {
                biased;
                () = stop.requested() => {}
                () = cleaning => {}
            }
        })
    }

    /// The file of SQLite alone is the whole database then. The next process to open it does the same,
    /// so that a failure is not worth a word to people.
    fn close(&self) -> BoxFuture<'_> {
        Box::pin(async {
            if let Err(error) = self.store.close().await {
                tracing::debug!(%error, "could not checkpoint; the journal stays beside the file");
            }
        })
    }
}
