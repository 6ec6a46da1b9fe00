//! A spill directory, as the commands read it: without a lock, also beside a logger that runs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_core::books::{
    AcceptedEvents, AuditFinding, Audited, ComponentAccount, ComponentKind, DeliveredEvents, Place,
};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{Code, Component, EventId, EventLocation, Failure, HealthFinding};

use super::books_file::BooksFile;
use super::inspect::{FindingLevel, MISSING, Role, SpillFinding, inspect_and_count};
use super::{BOOKS, LOCK, SpillError, SpillRecount, find, names};

/// How often a directory that seems to lack events is looked at, and the wait between two looks.
/// Beside a running logger, events pass from file to file while they are counted.
const LOOKS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// A spill directory. Nothing in it is changed.
#[derive(Debug)]
pub struct SpillDirectory {
    name: String,
    dir: PathBuf,
    env: Env,
}

impl SpillDirectory {
    /// The directory.
    #[must_use]
    pub fn new(dir: &Path, env: &Env) -> Self {
        Self {
            name: Self::name_of(dir),
            dir: dir.to_owned(),
            env: env.fork("spill-directory"),
        }
    }

    /// The name in the books of the logger that has this directory.
    #[must_use]
    pub fn name_of(dir: &Path) -> String {
        format!("logger:{}", dir.display())
    }

    /// Counts the directory, again while it seems to lack events and changes. One look that agrees is
    /// proof; events that were taken away lack in every look, and damage shows in every look.
    async fn count(&self) -> Result<SpillRecount, Failure> {
        let look = || {
            self.look()
                .map_err(|error| self.unreadable("count", &error))
        };
        let mut last = look()?;
        for _ in 1..LOOKS {
            if last.missing.is_empty() && last.findings.is_empty() {
                break;
            }
            self.env.clock.sleep(PAUSE).await;
            let mut next = look()?;
            let is_still = next.books == last.books && next.found == last.found;
            next.findings
                .retain(|finding| last.findings.contains(finding));
            last = next;
            if is_still {
                break;
            }
        }
        Ok(last)
    }

    /// One look. Damage that is no missing event is among the findings.
    pub(super) fn look(&self) -> Result<SpillRecount, SpillError> {
        let disk = &*self.env.disk;
        let is_there = match names(disk, &self.dir) {
            Err(SpillError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                false
            }
            listed => listed?.iter().any(|name| is_of_a_logger(name)),
        };
        if !is_there {
            let message = "no logger has written here, or all that it wrote was removed: nobody can say \
                           which";
            return Ok(SpillRecount {
                findings: vec![AuditFinding::new("spill.missing", message)],
                ..SpillRecount::default()
            });
        }
        let (inspection, mut counted) = inspect_and_count(disk, &self.dir)?;
        let problems = inspection
            .findings
            .iter()
            .filter(|finding| is_damage(finding));
        counted
            .findings
            .extend(problems.map(|finding| AuditFinding::new(finding.code, finding.to_string())));
        Ok(counted)
    }

    fn unreadable(&self, doing: &str, error: &SpillError) -> Failure {
        let mut failure = Failure::of(error, Code::from_static("spill.unreadable"), None);
        failure.message = format!(
            "cannot {doing} `{}`: {}",
            self.dir.display(),
            failure.message
        );
        failure
    }
}

fn is_of_a_logger(name: &str) -> bool {
    Role::of(name).is_some() || name == BOOKS || name == LOCK
}

/// Whether a finding is one of an audit, which names missing events by itself.
fn is_damage(finding: &SpillFinding) -> bool {
    finding.level == FindingLevel::Problem && finding.code != MISSING
}

impl Component for SpillDirectory {
    fn name(&self) -> &str {
        &self.name
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            Ok(vec![ComponentAccount {
                name: self.name.clone(),
                kind: ComponentKind::Logger,
                account: self.count().await?.books.account(),
            }])
        })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async {
            let books = self.count().await?.books;
            Ok(vec![AcceptedEvents::of(
                &self.name,
                ComponentKind::Logger,
                &books,
            )])
        })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async {
            let counted = self.count().await?;
            let (name, kind) = (self.name.clone(), ComponentKind::Logger);
            let (books, found) = (&counted.books, &counted.found);
            let audited = Audited::new(name, kind, books, found, counted.missing);
            let audited = audited.unverifiable(counted.unverifiable);
            Ok(vec![audited.with_findings(counted.findings)])
        })
    }

    /// The newest books that are on disk. A running logger has delivered at least as much.
    fn delivered(&self) -> BoxFuture<'_, Result<Vec<DeliveredEvents>, Failure>> {
        Box::pin(async {
            let written = BooksFile::peek(&*self.env.disk, &self.dir);
            let delivered = written.map(|written| DeliveredEvents {
                from: self.name.clone(),
                to: ComponentKind::EventLog,
                origin: written.id.map(|id| id.to_string()),
                books: written.books(),
            });
            let has_any = |one: &DeliveredEvents| one.books.in_place(&Place::Delivered) > 0;
            Ok(delivered.filter(has_any).into_iter().collect())
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let found = find(&*self.env.disk, &self.dir, id);
            found.map_err(|error| self.unreadable("search", &error))
        })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }
}
