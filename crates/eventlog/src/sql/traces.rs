//! The list of traces.

use tidegate_logger::{ProcessStatus, StepStatus};
use tidegate_store::sql::{FromColumns, OwnColumns, SqlAccess, SqlConnection};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, sqlx};

use super::summary::duration_ms;
use super::{Conditions, kind_number, on_either, outcome_number};
use crate::EventLogError;
use crate::event::iso_us;
use crate::page::{PageCursor, Paging, not_a_cursor};
use crate::summary::{TraceFacts, TracePage, TraceRow};

const SUCCESS: i16 = outcome_number(StepStatus::Success);
const FAILURE: i16 = outcome_number(StepStatus::Failure);
const IN_PROGRESS: i16 = outcome_number(StepStatus::InProgress);
const WARNING: i16 = outcome_number(StepStatus::Warning);
const END: i16 = kind_number(ProcessStatus::ProcessEnd);

/// Which traces to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceListing {
    /// One event at least fulfills these.
    events: Conditions,
    /// The latest status is one of these; empty for any.
    statuses: Vec<StepStatus>,
    has_errors: Option<bool>,
    paging: Paging,
}

impl TraceListing {
    /// # Errors
    /// The page begins at a place of another listing.
    pub(crate) fn new(
        events: Conditions,
        statuses: Vec<StepStatus>,
        has_errors: Option<bool>,
        paging: Paging,
    ) -> Result<Self, EventLogError> {
        match &paging.after {
            Some(cursor) if cursor.0.len() != 2 => Err(not_a_cursor()),
            Some(_) | None => Ok(Self {
                events,
                statuses,
                has_errors,
                paging,
            }),
        }
    }

    /// The statement that counts the traces. Without a condition it need not look at each event.
    fn counting(&self) -> String {
        let is_plain = self.events.sql().is_empty() && self.statuses.is_empty();
        if is_plain && self.has_errors.is_none() {
            return "SELECT count(*) FROM (SELECT DISTINCT trace_id FROM tidegate_eventlog
                WHERE trace_id IS NOT NULL) g"
                .to_owned();
        }
        format!("SELECT count(*) FROM {}", self.matching())
    }

    /// The traces that fulfill everything, as the rest of a statement behind `FROM`.
    fn matching(&self) -> String {
        let which = match self.events.sql() {
            "" => String::new(),
            conditions => format!(
                " AND t.trace_id IN (SELECT trace_id FROM tidegate_eventlog
                    WHERE trace_id IS NOT NULL{conditions})"
            ),
        };
        let mut sql = format!(
            "(SELECT t.trace_id, count(*) AS events,
                max(CASE WHEN t.kind = {END} AND t.outcome = {SUCCESS} THEN 1 ELSE 0 END)
                    AS ended_well,
                max(CASE WHEN t.outcome = {FAILURE} THEN 1 ELSE 0 END) AS failed,
                max(CASE WHEN t.outcome = {WARNING} THEN 1 ELSE 0 END) AS warned,
                min(t.at) AS first_at, max(t.at) AS last_at, min(t.id) AS first_id
              FROM tidegate_eventlog t WHERE t.trace_id IS NOT NULL{which}
              GROUP BY t.trace_id) g WHERE true"
        );
        if !self.statuses.is_empty() {
            let numbers = self.statuses.iter();
            let numbers: Vec<String> = numbers.map(|s| outcome_number(*s).to_string()).collect();
            sql.push_str(&format!(
                " AND CASE WHEN ended_well = 1 THEN {SUCCESS} WHEN failed = 1 THEN {FAILURE}
                  WHEN warned = 1 THEN {WARNING} ELSE {IN_PROGRESS} END IN ({})",
                numbers.join(", ")
            ));
        }
        match self.has_errors {
            Some(true) => sql.push_str(" AND failed = 1"),
            Some(false) => sql.push_str(" AND failed = 0"),
            None => {}
        }
        sql
    }
}

/// A trace with the columns that it is sorted by.
struct ListedTrace {
    row: TraceRow,
    first_us: i64,
    first_id: i64,
}

impl FromColumns for ListedTrace {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        let is = |column| Ok::<bool, sqlx::Error>(row.get::<i64>(column)? == 1);
        let facts = TraceFacts {
            ended_well: is(2)?,
            failed: is(3)?,
            warned: is(4)?,
        };
        let (first_us, last_us): (i64, i64) = (row.get(5)?, row.get(6)?);
        Ok(Self {
            row: TraceRow {
                trace_id: row.get(0)?,
                event_count: row.get(1)?,
                has_errors: facts.failed,
                latest_status: facts.latest_status().as_str(),
                duration_ms: duration_ms(Some(first_us), Some(last_us)),
                process_name: row.get(8)?,
                account_id: row.get(9)?,
                start_time: iso_us(first_us),
                end_time: iso_us(last_us),
            },
            first_us,
            first_id: row.get(7)?,
        })
    }
}

/// A page of traces, the newest first.
pub(crate) async fn list_traces(
    store: &Store,
    listing: TraceListing,
) -> Result<TracePage, EventLogError> {
    let page = on_either!(store, SqlAccess::Snapshot, "list traces", db => list(db, listing));
    Ok(page?)
}

async fn list<C: SqlConnection>(
    db: &mut C,
    listing: TraceListing,
) -> Result<TracePage, sqlx::Error> {
    let matching = listing.matching();
    let counting = AssertSqlSafe(listing.counting());
    let total_count = db.fetch_one(counting, &listing.events.values());
    let total_count = total_count.await?;
    let paging = &listing.paging;
    let behind = match &paging.after {
        Some(cursor) => {
            let numbers = listing.events.clone();
            let known = numbers.sql().len();
            let numbers = numbers.and_behind("first_at, first_id", true, cursor);
            Some((numbers.sql()[known..].to_owned(), numbers))
        }
        None => None,
    };
    let (more, values) = match &behind {
        Some((sql, conditions)) => (sql.as_str(), conditions.values()),
        None => ("", listing.events.values()),
    };
    let (limit, offset) = (paging.limit(), paging.offset());
    let order = "first_at DESC, first_id DESC";
    // The names are looked up for the traces of the page alone.
    let sql = format!(
        "SELECT p.trace_id, p.events, CAST(p.ended_well AS bigint), CAST(p.failed AS bigint),
             CAST(p.warned AS bigint), p.first_at, p.last_at, p.first_id,
             (SELECT e.process_name FROM tidegate_eventlog e WHERE e.trace_id = p.trace_id
              ORDER BY e.at, e.id LIMIT 1),
             (SELECT e.account_id FROM tidegate_eventlog e
              WHERE e.trace_id = p.trace_id AND e.account_id IS NOT NULL
              ORDER BY e.at, e.id LIMIT 1)
         FROM (SELECT * FROM {matching}{more} ORDER BY {order} LIMIT {limit} OFFSET {offset}) p
         ORDER BY p.first_at DESC, p.first_id DESC"
    );
    let mut rows: Vec<ListedTrace> = db.fetch_all(AssertSqlSafe(sql), &values).await?;
    let has_more = paging.cut(&mut rows);
    let last = rows.last().filter(|_| has_more);
    let next_after = last.map(|row| PageCursor(vec![row.first_us, row.first_id]));
    Ok(TracePage {
        traces: rows.into_iter().map(|listed| listed.row).collect(),
        total_count,
        page: paging.page,
        page_size: paging.page_size,
        has_more,
        next_after,
    })
}
