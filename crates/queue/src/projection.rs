//! Projections: read models built from the log of finalized events.
//!
//! **Invariant:** position and read model change in one transaction, which is fenced by the leadership of
//! the projection; so every completed event is applied exactly once, in the order of positions,
//! whatever dies in between.

mod guard;
mod rebuild;
mod request;
mod run;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Failure;

use crate::QueueError;
use crate::port::LogEvent;
use crate::tx::Tx;

pub use rebuild::RebuildError;
pub use request::{ProjectionState, Rebuild};
pub(crate) use run::{GROUPS, SEQUENCER};
pub use run::{Projector, ProjectorOptions};

/// The end of a table's name while it is rebuilt.
const REBUILD: &str = "__rebuild";

/// The tables and views of the queue with other names than `tidegate_…`.
const OURS: [&str; 6] = [
    "event_queue",
    "event_log",
    "event_handler",
    "event_handler_state",
    "event_projection",
    "event_inbox",
];

/// Which tables a projection writes to: those that readers see, or those that are being rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The tables that readers see.
    Live,
    /// The tables that will be swapped in.
    Rebuild,
}

impl Target {
    /// The name of the table to use for `table`.
    #[must_use]
    pub fn table(self, table: &str) -> String {
        match self {
            Self::Live => table.to_owned(),
            Self::Rebuild => format!("{table}{REBUILD}"),
        }
    }
}

/// The answer of a projection.
pub type ProjectionFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

type Create = dyn for<'a> Fn(&'a mut Tx, Target) -> ProjectionFuture<'a> + Send + Sync;
type Apply =
    dyn for<'a> Fn(&'a mut Tx, Target, &'a [LogEvent]) -> ProjectionFuture<'a> + Send + Sync;

/// A read model: its name, its tables, and how events change them.
///
/// ```
/// use tidegate_queue::Projection;
/// let projection = Projection::builder("order_totals")
///     .table("order_totals")
///     .batch_size(500)
///     .create(|tx, target| Box::pin(async move {
///         // CREATE TABLE IF NOT EXISTS {target.table("order_totals")} …
///         let _ = (tx, target);
///         Ok(())
///     }))
///     .apply(|tx, target, events| Box::pin(async move {
///         for event in events {
///             let _ = (&tx, target, &event.payload);
///         }
///         Ok(())
///     }))
///     .build()?;
/// assert_eq!(projection.name(), "order_totals");
/// # Ok::<(), tidegate_queue::QueueError>(())
/// ```
#[derive(Clone)]
pub struct Projection {
    name: String,
    tables: Vec<String>,
    batch_size: u32,
    timeout: Option<Duration>,
    create: Arc<Create>,
    apply: Arc<Apply>,
}

impl Projection {
    /// A projection of this name.
    pub fn builder(name: impl Into<String>) -> ProjectionBuilder {
        ProjectionBuilder {
            projection: Self {
                name: name.into(),
                tables: Vec::new(),
                batch_size: 200,
                timeout: None,
                create: Arc::new(|_, _| Box::pin(async { Ok(()) })),
                apply: Arc::new(|_, _, _| Box::pin(async { Ok(()) })),
            },
            has_apply: false,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Projection({})", self.name)
    }
}

/// A projection in the making.
#[must_use = "a builder does nothing by itself"]
pub struct ProjectionBuilder {
    projection: Projection,
    has_apply: bool,
}

impl ProjectionBuilder {
    /// Adds a table that a rebuild swaps.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.projection.tables.push(table.into());
        self
    }

    /// Positions read at once.
    pub fn batch_size(mut self, batch_size: u32) -> Self {
        self.projection.batch_size = batch_size.max(1);
        self
    }

    /// How long one batch, or making its tables, may take; where nothing is said, as long as the
    /// projector's options say. A longer batch is rolled back and retried.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.projection.timeout = Some(timeout);
        self
    }

    /// How its tables are made where they are missing.
    pub fn create(
        mut self,
        create: impl for<'a> Fn(&'a mut Tx, Target) -> ProjectionFuture<'a> + Send + Sync + 'static,
    ) -> Self {
        self.projection.create = Arc::new(create);
        self
    }

    /// How events change its tables. The events are completed ones, in the order of positions, each
    /// exactly once. An error takes the whole batch back, and it is tried again.
    pub fn apply(
        mut self,
        apply: impl for<'a> Fn(&'a mut Tx, Target, &'a [LogEvent]) -> ProjectionFuture<'a>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.projection.apply = Arc::new(apply);
        self.has_apply = true;
        self
    }

    /// The projection.
    ///
    /// # Errors
    /// Its name or a table's cannot be used, or it does nothing with events.
    pub fn build(self) -> Result<Projection, QueueError> {
        let refuse = |what, name: &str, why| QueueError::InvalidName {
            what,
            name: name.to_owned(),
            why,
        };
        let Projection { name, tables, .. } = &self.projection;
        if name.is_empty() || name.contains('#') {
            return Err(refuse("projection", name, "it is empty or holds a `#`"));
        }
        // The names stand in SQL as they are.
        let is_plain = |table: &str| {
            let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            !table.is_empty() && table.bytes().all(is_word)
        };
        if let Some(table) = tables.iter().find(|table| !is_plain(table)) {
            let why = "lowercase letters, digits and `_` are allowed";
            return Err(refuse("table", table, why));
        }
        for (n, table) in tables.iter().enumerate() {
            if table.starts_with("tidegate_") || OURS.contains(&table.as_str()) {
                let why = "it is a table of the queue, which a swap would drop";
                return Err(refuse("table", table, why));
            }
            if tables[..n].contains(table) {
                return Err(refuse("table", table, "it is named twice"));
            }
            crate::limit::check("table", table, crate::limit::MAX_TABLE)?;
            if table.ends_with(REBUILD) {
                let why = "tables that end so are those of rebuilds";
                return Err(refuse("table", table, why));
            }
        }
        if !self.has_apply {
            return Err(refuse("projection", name, "it does nothing with events"));
        }
        Ok(self.projection)
    }
}

impl fmt::Debug for ProjectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProjectionBuilder({})", self.projection.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_table(table: &str) -> Result<Projection, QueueError> {
        let builder = Projection::builder("totals").table(table);
        builder.apply(|_, _, _| Box::pin(async { Ok(()) })).build()
    }

    #[test]
    fn a_table_and_its_rebuild_never_have_one_name() {
        // PostgreSQL cuts names after 63 bytes: beyond, both would be the same table.
        let longest = "t".repeat(54);
        with_table(&longest).unwrap();
        assert_eq!(Target::Rebuild.table(&longest).len(), 63);
        let error = with_table(&"t".repeat(55)).unwrap_err();
        assert_eq!(error.to_string(), "table has 55 bytes; 54 are allowed");
        assert!(with_table("totals__rebuild").is_err());
    }

    #[test]
    fn a_table_of_the_queue_is_not_taken_for_one_of_a_projection() {
        for table in ["tidegate_event", "tidegate_mine"].into_iter().chain(OURS) {
            let refused = with_table(table).unwrap_err().to_string();
            assert!(refused.contains("a table of the queue"), "{refused}");
        }
        with_table("event_totals").unwrap();
    }

    #[test]
    fn a_table_is_named_once() {
        let builder = Projection::builder("totals")
            .table("a")
            .table("b")
            .table("a");
        let built = builder.apply(|_, _, _| Box::pin(async { Ok(()) })).build();
        let refused = built.unwrap_err().to_string();
        assert!(refused.contains("it is named twice"), "{refused}");
    }
}
