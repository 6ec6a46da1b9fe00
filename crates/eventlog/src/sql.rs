//! The SQL of the Event Log API.
//!
//! All of it is here, written once for both databases where it can be. `EventLogStatements` has the
//! statements that differ; the modules `postgres` and `sqlite` implement it.

mod catalog;
mod insert;
mod listing;
mod maintain;
mod postgres;
mod sqlite;
mod summary;
mod traces;

use tidegate_core::books::{Books, Posting};
use tidegate_logger::{ProcessStatus, StepStatus};
use tidegate_store::migrate::{self, Migration};
use tidegate_store::sql::SqlConnection;
use tidegate_store::{Dialect, Store, sqlx};

pub(crate) use catalog::{find_link, insert_process, list_processes, upsert_link};
pub(crate) use insert::store_events;
pub(crate) use listing::{Conditions, EventListing, ListOrder, list_events};
pub(crate) use maintain::{
    FoundEvent, account, books, clear, find_event, logger_books, loggers, recount, remove_range,
};
pub(crate) use summary::{
    account_summary, batch_events, batch_summary, correlation_events, dashboard_stats, trace_events,
};
pub(crate) use traces::{TraceListing, list_traces};

use crate::EventLogError;
use crate::ingest::IncomingEvent;

/// The name under which the books and the migrations of the event log stand.
pub const COMPONENT: &str = "eventlog";

/// The tables of the event log.
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "events, links and processes",
    postgres: include_str!("sql/eventlog-1.postgres.sql"),
    sqlite: include_str!("sql/eventlog-1.sqlite.sql"),
}];

/// Brings the tables of the event log up to date and gives how many migrations ran.
///
/// # Errors
/// The database is away, or refused.
pub async fn migrate(store: &Store) -> Result<usize, EventLogError> {
    Ok(migrate::migrate(store, COMPONENT, MIGRATIONS).await?)
}

/// How many migrations of the event log's own tables have not run yet. Changes nothing.
///
/// # Errors
/// The database is away, or refused.
pub async fn pending(store: &Store) -> Result<usize, EventLogError> {
    Ok(migrate::pending_of_part(store, COMPONENT, MIGRATIONS).await?)
}

/// The SQL of all migrations, for the user's own.
#[must_use]
pub fn print_migrations(dialect: Dialect) -> String {
    migrate::print(dialect, COMPONENT, MIGRATIONS)
}

/// The logger of an alias whose event came without one: a key has no place for NULL.
const NO_LOGGER: i64 = 0;

/// The name of the books of a logger's events; those of the API's own without a logger.
pub(crate) fn books_name(logger: Option<&str>) -> String {
    match logger {
        Some(logger) => format!("{COMPONENT}:{logger}"),
        None => COMPONENT.to_owned(),
    }
}

/// Every outcome. Its number in the tables is its place here, counted from 1.
pub(crate) const OUTCOMES: [StepStatus; 5] = [
    StepStatus::Success,
    StepStatus::Failure,
    StepStatus::InProgress,
    StepStatus::Skipped,
    StepStatus::Warning,
];

/// The number of an outcome in the tables.
pub(crate) const fn outcome_number(outcome: StepStatus) -> i16 {
    match outcome {
        StepStatus::Success => 1,
        StepStatus::Failure => 2,
        StepStatus::InProgress => 3,
        StepStatus::Skipped => 4,
        StepStatus::Warning => 5,
    }
}

/// The number of a kind in the tables.
pub(crate) const fn kind_number(kind: ProcessStatus) -> i16 {
    match kind {
        ProcessStatus::ProcessStart => 1,
        ProcessStatus::Step => 2,
        ProcessStatus::ProcessEnd => 3,
        ProcessStatus::Error => 4,
    }
}

/// An event with its number, ready to become a row.
#[derive(Debug, Clone, Copy)]
struct NewRow<'a> {
    id: i64,
    logger: Option<i64>,
    created_ms: i64,
    incoming: &'a IncomingEvent,
}

/// The statements that differ between the databases.
trait EventLogStatements: SqlConnection {
    /// Keeps the rows `e` of a SELECT from being removed until the end of the transaction.
    const KEPT: &'static str;

    /// Takes numbers for new events, in growing order.
    fn next_ids(
        &mut self,
        count: usize,
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// Adds rows whose keys are not there, with their words, and gives the numbers of those that were added.
    fn insert(
        &mut self,
        rows: &[NewRow<'_>],
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// Removes the words of events, where they are not in the row itself.
    fn remove_words(&mut self, ids: &[i64])
    -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Writes postings.
    fn post(
        &mut self,
        component: &str,
        postings: &[Posting],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Reads the books.
    fn books(&mut self, component: &str)
    -> impl Future<Output = Result<Books, sqlx::Error>> + Send;

    /// The books without their sums of ids.
    fn counts(
        &mut self,
        component: &str,
    ) -> impl Future<Output = Result<Books, sqlx::Error>> + Send;
}

/// Runs a call on whichever database the store is.
macro_rules! on_either {
    ($store:expr, $access:expr, $doing:expr, $db:ident => $call:expr) => {{
        use ::tidegate_store::sql::SqlDatabase as _;
        match $store {
            ::tidegate_store::Store::Sqlite(sqlite) => {
                sqlite
                    .call($access, $doing, move |$db| Box::pin($call))
                    .await
            }
            ::tidegate_store::Store::Postgres(postgres) => {
                postgres
                    .call($access, $doing, move |$db| Box::pin($call))
                    .await
            }
        }
    }};
}
use on_either;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_has_the_number_of_its_place() {
        for (place, outcome) in OUTCOMES.into_iter().enumerate() {
            assert_eq!(i16::try_from(place + 1).unwrap(), outcome_number(outcome));
        }
    }

    #[test]
    fn the_books_of_a_logger_stand_beside_those_of_the_api() {
        assert_eq!(books_name(None), "eventlog");
        assert_eq!(books_name(Some("pet-resort")), "eventlog:pet-resort");
    }
}
