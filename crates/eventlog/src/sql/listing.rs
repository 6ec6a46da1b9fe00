//! Pages of events.

use tidegate_logger::StepStatus;
use tidegate_store::sql::{FromColumns, OwnColumns, SqlAccess, SqlConnection, SqlValue};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::sqlx::error::BoxDynError;
use tidegate_store::sqlx::postgres::PgArguments;
use tidegate_store::sqlx::sqlite::SqliteArguments;
use tidegate_store::{Dialect, Store, sqlx};

use super::{on_either, outcome_number};
use crate::EventLogError;
use crate::event::StoredEvent;
use crate::page::{EventPage, PageCursor, Paging, not_a_cursor};
use crate::query::TimeWindow;

/// A value of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SqlParam {
    Text(String),
    Number(i64),
}

impl SqlValue for SqlParam {
    fn to_postgres(&self, into: &mut PgArguments) -> Result<(), BoxDynError> {
        match self {
            Self::Text(text) => text.to_postgres(into),
            Self::Number(number) => number.to_postgres(into),
        }
    }

    fn to_sqlite(&self, into: &mut SqliteArguments) -> Result<(), BoxDynError> {
        match self {
            Self::Text(text) => text.to_sqlite(into),
            Self::Number(number) => number.to_sqlite(into),
        }
    }
}

/// Conditions on events, all of which must hold. Texts of ours become SQL, those of clients values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    sql: String,
    values: Vec<SqlParam>,
    /// How the rows are found, if they are found by their words.
    by_words: Option<Dialect>,
}

impl Conditions {
    /// The events whose `column` is `text`.
    pub(crate) fn of(column: &'static str, text: &str) -> Self {
        Self::default().and_is(column, Some(text))
    }

    /// And whose `column` is `text`, if one is given.
    pub(crate) fn and_is(self, column: &'static str, text: Option<&str>) -> Self {
        match text {
            Some(text) if text.contains('\0') => self.and_none(),
            Some(text) => {
                let value = SqlParam::Text(text.to_owned());
                self.and(&format!("{column} = "), value, "")
            }
            None => self,
        }
    }

    /// No event. A zero character stands in no column, and PostgreSQL takes none in a value.
    fn and_none(mut self) -> Self {
        self.sql.push_str(" AND false");
        self
    }

    /// And with this outcome, if one is given.
    pub(crate) fn and_outcome(mut self, outcome: Option<StepStatus>) -> Self {
        if let Some(outcome) = outcome {
            let number = outcome_number(outcome);
            self.sql.push_str(&format!(" AND outcome = {number}"));
        }
        self
    }

    /// And within this window.
    pub(crate) fn and_within(mut self, window: TimeWindow) -> Self {
        if let Some(start) = window.start_us {
            self = self.and("at >= ", SqlParam::Number(start), "");
        }
        if let Some(end) = window.end_us {
            self = self.and("at <= ", SqlParam::Number(end), "");
        }
        self
    }

    /// And of this account, or of a correlation that is linked to it.
    pub(crate) fn and_linked(self, account: &str) -> Self {
        if account.contains('\0') {
            return self.and_none();
        }
        // Two ways into the table, each by its own index; `OR` would go through all of it.
        let value = SqlParam::Text(account.to_owned());
        let own = "id IN (SELECT o.id FROM tidegate_eventlog o WHERE o.account_id = ";
        let number = self.values.len() + 1;
        let linked = format!(
            " UNION SELECT l.id FROM tidegate_eventlog l JOIN tidegate_correlation_link k
              ON k.correlation_id = l.correlation_id WHERE k.account_id = ${number})"
        );
        self.and(own, value, &linked)
    }

    /// And with words that begin with each of these.
    pub(crate) fn and_words(mut self, dialect: Dialect, words: &[String]) -> Self {
        self.by_words = Some(dialect);
        // Words hold letters and digits alone, so that nothing in them means anything to either parser.
        match dialect {
            Dialect::Sqlite => {
                let terms: Vec<String> = words.iter().map(|word| format!("\"{word}\"*")).collect();
                let value = SqlParam::Text(terms.join(" AND "));
                let before = "id IN (SELECT rowid FROM tidegate_eventlog_words
                    WHERE tidegate_eventlog_words MATCH ";
                self.and(before, value, ")")
            }
            Dialect::Postgres => {
                let terms: Vec<String> = words.iter().map(|word| format!("'{word}':*")).collect();
                let value = SqlParam::Text(terms.join(" & "));
                self.and("words @@ CAST(", value, " AS tsquery)")
            }
        }
    }

    fn and(mut self, before: &str, value: SqlParam, after: &str) -> Self {
        self.values.push(value);
        let number = self.values.len();
        self.sql.push_str(&format!(" AND {before}${number}{after}"));
        self
    }

    /// And behind a cursor, in the order of these columns.
    pub(super) fn and_behind(mut self, order: &str, is_down: bool, cursor: &PageCursor) -> Self {
        let first = self.values.len() + 1;
        let numbers = cursor.0.iter().map(|number| SqlParam::Number(*number));
        self.values.extend(numbers);
        let marks: Vec<String> = (first..=self.values.len())
            .map(|number| format!("${number}"))
            .collect();
        let compare = if is_down { "<" } else { ">" };
        let marks = marks.join(", ");
        self.sql
            .push_str(&format!(" AND ({order}) {compare} ({marks})"));
        self
    }

    /// The SQL, which begins with ` AND ` unless it is empty.
    pub(super) fn sql(&self) -> &str {
        &self.sql
    }

    /// The values, as a statement takes them.
    pub(super) fn values(&self) -> Vec<&dyn SqlValue> {
        let values = self.values.iter();
        values.map(|value| value as &dyn SqlValue).collect()
    }
}

/// The order of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListOrder {
    /// The newest first.
    Newest,
    /// The oldest first.
    Oldest,
    /// By the sequence of steps, then by time; events without a sequence are last.
    Sequence,
    /// As they were stored.
    Number,
}

const SEQUENCE: &str = "coalesce(step_sequence, 9223372036854775807)";

impl ListOrder {
    /// The columns, as a list in SQL, and how many they are.
    fn columns(self) -> (String, usize) {
        match self {
            Self::Newest | Self::Oldest => ("at, id".to_owned(), 2),
            Self::Sequence => (format!("{SEQUENCE}, at, id"), 3),
            Self::Number => ("id".to_owned(), 1),
        }
    }

    fn is_down(self) -> bool {
        match self {
            Self::Newest => true,
            Self::Oldest | Self::Sequence | Self::Number => false,
        }
    }

    /// The columns for `ORDER BY`.
    fn order_by(self) -> String {
        match self {
            Self::Newest => "at DESC, id DESC".to_owned(),
            Self::Oldest | Self::Sequence | Self::Number => self.columns().0,
        }
    }

    fn cursor(self, row: &ListedRow) -> PageCursor {
        let (at, id) = (row.at_us, row.event.id);
        PageCursor(match self {
            Self::Newest | Self::Oldest => vec![at, id],
            Self::Sequence => vec![row.sequence, at, id],
            Self::Number => vec![id],
        })
    }
}

/// A page to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventListing {
    conditions: Conditions,
    order: ListOrder,
    paging: Paging,
}

impl EventListing {
    /// # Errors
    /// The page begins at a place of another listing.
    pub(crate) fn new(
        conditions: Conditions,
        order: ListOrder,
        paging: Paging,
    ) -> Result<Self, EventLogError> {
        let (_, columns) = order.columns();
        match &paging.after {
            Some(cursor) if cursor.0.len() != columns => Err(not_a_cursor()),
            Some(_) | None => Ok(Self {
                conditions,
                order,
                paging,
            }),
        }
    }
}

/// An event with the columns that it is sorted by.
struct ListedRow {
    event: StoredEvent,
    at_us: i64,
    sequence: i64,
}

impl FromColumns for ListedRow {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok(Self {
            event: StoredEvent {
                id: row.get(0)?,
                event_id: row.event_id(1)?,
                execution_id: row.event_id(2)?,
                created_ms: row.get(3)?,
                body: row.get(4)?,
            },
            at_us: row.get(5)?,
            sequence: row.get(6)?,
        })
    }
}

/// The same with the count of all events of the listing.
struct CountedRow {
    listed: ListedRow,
    total_count: i64,
}

impl FromColumns for CountedRow {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok(Self {
            listed: ListedRow::from_columns(row)?,
            total_count: row.get(7)?,
        })
    }
}

/// A page of events.
pub(crate) async fn list_events(
    store: &Store,
    listing: EventListing,
) -> Result<EventPage, EventLogError> {
    let page = on_either!(store, SqlAccess::Snapshot, "list events", db => list(db, listing));
    Ok(page?)
}

/// The same on a connection.
pub(super) async fn list<C: SqlConnection>(
    db: &mut C,
    listing: EventListing,
) -> Result<EventPage, sqlx::Error> {
    let EventListing {
        conditions,
        order,
        paging,
    } = listing;
    let (mut rows, total_count) = match conditions.by_words {
        Some(dialect) => rows_by_words(db, dialect, conditions, order, &paging).await?,
        None => {
            let total_count = count(db, "", &conditions).await?;
            let shown = match &paging.after {
                Some(cursor) => conditions.and_behind(&order.columns().0, order.is_down(), cursor),
                None => conditions,
            };
            let rows = rows(db, &shown, order, paging.limit(), paging.offset()).await?;
            (rows, total_count)
        }
    };
    let has_more = paging.cut(&mut rows);
    let next_after = rows
        .last()
        .filter(|_| has_more)
        .map(|row| order.cursor(row));
    Ok(EventPage {
        events: rows.into_iter().map(|row| row.event).collect(),
        total_count,
        page: paging.page,
        page_size: paging.page_size,
        has_more,
        next_after,
    })
}

async fn count<C: SqlConnection>(
    db: &mut C,
    hint: &str,
    conditions: &Conditions,
) -> Result<i64, sqlx::Error> {
    let sql = format!(
        "SELECT count(*) FROM tidegate_eventlog{hint} WHERE true{}",
        conditions.sql()
    );
    db.fetch_one(AssertSqlSafe(sql), &conditions.values()).await
}

/// The rows of a page and the count of all, with one way through the rows that have the words: each of these
/// is a page of the file somewhere else.
async fn rows_by_words<C: SqlConnection>(
    db: &mut C,
    dialect: Dialect,
    conditions: Conditions,
    order: ListOrder,
    paging: &Paging,
) -> Result<(Vec<ListedRow>, i64), sqlx::Error> {
    // Few events have the words, and many belong to a process. SQLite does not know that.
    let hint = match dialect {
        Dialect::Sqlite => " NOT INDEXED",
        Dialect::Postgres => "",
    };
    let found = conditions.sql().to_owned();
    let shown = match &paging.after {
        Some(cursor) => conditions
            .clone()
            .and_behind(&order.columns().0, order.is_down(), cursor),
        None => conditions.clone(),
    };
    let behind = shown.sql().get(found.len()..).unwrap_or_default();
    let sql = format!(
        "WITH hits AS MATERIALIZED (
             SELECT id, at, step_sequence FROM tidegate_eventlog{hint} WHERE true{found}),
         page AS (
             SELECT id AS hit FROM hits WHERE true{behind} ORDER BY {by} LIMIT {limit} OFFSET {offset})
         SELECT id, event_id, execution_id, created_at, body, at, {SEQUENCE},
             (SELECT count(*) FROM hits)
         FROM page JOIN tidegate_eventlog ON id = hit ORDER BY {by}",
        by = order.order_by(),
        limit = paging.limit(),
        offset = paging.offset(),
    );
    let rows: Vec<CountedRow> = db.fetch_all(AssertSqlSafe(sql), &shown.values()).await?;
    let total_count = match rows.first() {
        Some(row) => row.total_count,
        // A page behind the last one has no row that could tell.
        None => count(db, hint, &conditions).await?,
    };
    Ok((
        rows.into_iter().map(|row| row.listed).collect(),
        total_count,
    ))
}

/// The first events in an order.
pub(super) async fn first_events<C: SqlConnection>(
    db: &mut C,
    conditions: &Conditions,
    order: ListOrder,
    limit: i64,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let rows = rows(db, conditions, order, limit, 0).await?;
    Ok(rows.into_iter().map(|row| row.event).collect())
}

async fn rows<C: SqlConnection>(
    db: &mut C,
    conditions: &Conditions,
    order: ListOrder,
    limit: i64,
    offset: i64,
) -> Result<Vec<ListedRow>, sqlx::Error> {
    let sql = format!(
        "SELECT id, event_id, execution_id, created_at, body, at, {SEQUENCE}
         FROM tidegate_eventlog WHERE true{} ORDER BY {} LIMIT {limit} OFFSET {offset}",
        conditions.sql(),
        order.order_by()
    );
    db.fetch_all(AssertSqlSafe(sql), &conditions.values()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_number_their_values() {
        let window = TimeWindow {
            start_us: Some(1),
            end_us: Some(2),
        };
        let conditions = Conditions::of("process_name", "CheckIn")
            .and_is("batch_id", None)
            .and_outcome(Some(StepStatus::Failure))
            .and_within(window);
        assert_eq!(
            conditions.sql(),
            " AND process_name = $1 AND outcome = 2 AND at >= $2 AND at <= $3"
        );
        assert_eq!(conditions.values().len(), 3);
        let behind =
            Conditions::of("trace_id", "a").and_behind("at, id", true, &PageCursor(vec![7, 8]));
        assert_eq!(behind.sql(), " AND trace_id = $1 AND (at, id) < ($2, $3)");
    }

    #[test]
    fn words_are_quoted_for_both_databases() {
        let words = ["bk".to_owned(), "über".to_owned()];
        let of = |dialect| Conditions::default().and_words(dialect, &words).values;
        let text = |text: &str| vec![SqlParam::Text(text.to_owned())];
        assert_eq!(of(Dialect::Sqlite), text(r#""bk"* AND "über"*"#));
        assert_eq!(of(Dialect::Postgres), text("'bk':* & 'über':*"));
    }

    #[test]
    fn a_cursor_fits_its_listing_alone() {
        let paging = |cursor: &[i64]| Paging {
            page: 1,
            page_size: 20,
            after: Some(PageCursor(cursor.to_vec())),
        };
        let of = |order, cursor: &[i64]| {
            EventListing::new(Conditions::default(), order, paging(cursor)).is_ok()
        };
        assert!(of(ListOrder::Newest, &[1, 2]));
        assert!(of(ListOrder::Sequence, &[1, 2, 3]));
        assert!(!of(ListOrder::Number, &[1, 2]));
    }
}
