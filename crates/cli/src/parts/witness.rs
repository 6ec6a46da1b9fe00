//! The witness of a running process: it writes down what its components accepted, once a minute.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::Part as Section;
use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount, ComponentKind};
use tidegate_core::env::{BoxFuture, Clock};
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding, Mutex, Shutdown};

use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::AuditArgs;
use crate::report::ErrorReport;
use crate::table;
use crate::witness::{WitnessFile, WitnessScope, accepted_by, compare};

/// How often the witness is written.
const EVERY: Duration = Duration::from_secs(60);

/// How long the components may take to tell their numbers. The round is left out otherwise: a database that
/// hangs must not hold up a stop.
const READ_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct WitnessPart;

impl Part for WitnessPart {
    fn sections(&self) -> &'static [Section] {
        &[]
    }

    /// Opened last, so that it sees every other component.
    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async {
            let Some(path) = process.config.text("audit.witness") else {
                return Ok(());
            };
            let file = WitnessFile::at(Path::new(path), &process.env);
            // A file that cannot be read is told before anything runs.
            file.read()?;
            process.banner.push(("witness", path.to_owned()));
            let component = WitnessWriter {
                file,
                watched: process.components.clone(),
                clock: Arc::clone(&process.env.clock),
                trouble: Mutex::new(None),
            };
            process.components.push(Arc::new(component));
            Ok(())
        })
    }

    fn is_named(&self, _: &AuditArgs) -> bool {
        false
    }

    fn inspect<'a>(&'a self, _: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async { Ok(()) })
    }
}

/// Writes the witness of its process.
struct WitnessWriter {
    file: WitnessFile,
    watched: Vec<Arc<dyn Component>>,
    clock: Arc<dyn Clock>,
    trouble: Mutex<Option<String>>,
}

impl fmt::Debug for WitnessWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WitnessWriter")
            .field(&self.file.path())
            .finish()
    }
}

impl WitnessWriter {
    /// Compares the numbers with the witness, and replaces it if nothing is lost.
    async fn round(&self) {
        let trouble = match self.compare().await {
            Ok(trouble) => trouble,
            Err(report) => Some(report.summary()),
        };
        let mut known = self.trouble.lock();
        if *known != trouble
            && let Some(trouble) = &trouble
        {
            tracing::error!("the witness: {trouble}");
        }
        *known = trouble;
    }

    async fn compare(&self) -> Result<Option<String>, ErrorReport> {
        let asked = self.clock.within(READ_LIMIT, accepted_by(&self.watched));
        let Some(now) = asked.await else {
            return Ok(Some("the components do not answer".to_owned()));
        };
        let now = now?;
        let earlier = self.file.read()?;
        let compared = compare(earlier.as_ref(), now, &scope());
        if compared.losses.is_empty() {
            self.file.write(compared.next)?;
            return Ok(None);
        }
        let lost = table::counted(compared.lost(), "event");
        let names = compared.losses.iter().map(|one| one.component.as_str());
        let mut names: Vec<&str> = names.collect();
        names.dedup();
        let (names, path) = (names.join("`, `"), self.file.path().display());
        self.file.write_newer(compared.next)?;
        Ok(Some(format!(
            "it knows of {lost} in `{names}` that are not there any more; run `tidegate audit --witness {path}`"
        )))
    }
}

/// Everything but spill directories: other processes have those, and this one does not look at them.
fn scope() -> WitnessScope {
    let kinds = [
        ComponentKind::Queue,
        ComponentKind::Relay,
        ComponentKind::EventLog,
        ComponentKind::Topic,
    ];
    WitnessScope::Only(kinds.map(|kind| (kind, None)).to_vec())
}

impl Component for WitnessWriter {
    fn name(&self) -> &str {
        "witness"
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn locate(&self, _: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async {
            match self.trouble.lock().clone() {
                None => HealthFinding::up(),
                Some(trouble) => HealthFinding::degraded(trouble),
            }
        })
    }

    /// The last round is after the request to stop.
    fn run(self: Arc<Self>, stop: Shutdown) -> BoxFuture<'static> {
        Box::pin(async move {
            loop {
                self.round().await;
                tokio::select! {
                    biased;
                    () = stop.clone().requested() => break,
                    () = self.clock.sleep(EVERY) => {}
                }
            }
            self.round().await;
        })
    }
}
