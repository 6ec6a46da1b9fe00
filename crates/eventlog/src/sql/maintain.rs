//! Books, recount, search by id, and the removal of events.

use std::collections::BTreeMap;

use tidegate_core::EventId;
use tidegate_core::books::{Account, Books, Place, postings};
use tidegate_store::sql::{FromColumns, OwnColumns, SqlAccess, SqlConnection, SqlList};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, sqlx};

use super::{EventLogStatements, NO_LOGGER, books_name, on_either};
use crate::EventLogError;
use crate::limit::{COUNTED_AT_ONCE, REMOVED_AT_ONCE};
use crate::recount::EventLogRecount;

/// The names of all loggers that events came from.
pub(crate) async fn loggers(store: &Store) -> Result<Vec<String>, EventLogError> {
    let names = on_either!(store, SqlAccess::Read, "list loggers", db => logger_names(db));
    Ok(names?.into_values().collect())
}

async fn logger_names<C: SqlConnection>(db: &mut C) -> Result<BTreeMap<i64, String>, sqlx::Error> {
    let sql = "SELECT id, name FROM tidegate_eventlog_logger";
    let names: Vec<(i64, String)> = db.fetch_all(sql, &[]).await?;
    Ok(names.into_iter().collect())
}

/// How many events are where.
pub(crate) async fn account(store: &Store) -> Result<Account, EventLogError> {
    let account = on_either!(store, SqlAccess::Snapshot, "count events", db => sum_up(db));
    Ok(account?)
}

async fn sum_up<C: EventLogStatements>(db: &mut C) -> Result<Account, sqlx::Error> {
    let mut books = db.counts(&books_name(None)).await?;
    for logger in logger_names(db).await?.values() {
        books.merge(&db.counts(&books_name(Some(logger))).await?);
    }
    Ok(books.account())
}

/// The books of the events of all loggers.
pub(crate) async fn books(store: &Store) -> Result<Books, EventLogError> {
    let books =
        on_either!(store, SqlAccess::LongSnapshot, "read the books", db => merged_books(db));
    Ok(books?)
}

async fn merged_books<C: EventLogStatements>(db: &mut C) -> Result<Books, sqlx::Error> {
    let mut books = db.books(&books_name(None)).await?;
    for logger in logger_names(db).await?.values() {
        books.merge(&db.books(&books_name(Some(logger))).await?);
    }
    Ok(books)
}

/// The books of the events of one logger.
pub(crate) async fn logger_books(store: &Store, logger: String) -> Result<Books, EventLogError> {
    let books = on_either!(store, SqlAccess::LongSnapshot, "read the books of a logger",
        db => read_books(db, logger));
    Ok(books?)
}

async fn read_books<C: EventLogStatements>(
    db: &mut C,
    logger: String,
) -> Result<Books, sqlx::Error> {
    db.books(&books_name(Some(&logger))).await
}

/// An event with the logger that it came from.
struct OwnedEvent {
    event_id: EventId,
    logger: Option<i64>,
}

impl FromColumns for OwnedEvent {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok(Self {
            event_id: row.event_id(0)?,
            logger: row
                .get::<Option<i64>>(1)?
                .filter(|number| *number != NO_LOGGER),
        })
    }
}

/// Counts the tables, as of one moment, beside the books of every logger.
pub(crate) async fn recount(store: &Store, now_ms: u64) -> Result<EventLogRecount, EventLogError> {
    let counted = on_either!(store, SqlAccess::LongSnapshot, "recount events",
        db => count_rows(db, now_ms));
    Ok(counted?)
}

async fn count_rows<C: EventLogStatements>(
    db: &mut C,
    now_ms: u64,
) -> Result<EventLogRecount, sqlx::Error> {
    let names = logger_names(db).await?;
    let mut recount = EventLogRecount::new(db.books(&books_name(None)).await?);
    for (number, name) in &names {
        let books = db.books(&books_name(Some(name))).await?;
        recount.add_logger(*number, books);
    }
    let mut last = 0;
    loop {
        let sql = "SELECT min(id) FROM tidegate_eventlog WHERE id > $1";
        let Some(first) = db.fetch_one::<Option<i64>>(sql, &[&last]).await? else {
            return Ok(recount);
        };
        last = first.saturating_add(COUNTED_AT_ONCE - 1);
        for sql in [
            "SELECT event_id, logger FROM tidegate_eventlog WHERE id BETWEEN $1 AND $2",
            "SELECT a.event_id, a.logger FROM tidegate_eventlog_alias a
             JOIN tidegate_eventlog e ON e.id = a.event
             WHERE a.event BETWEEN $1 AND $2 AND a.is_repeat",
        ] {
            let rows: Vec<OwnedEvent> = db.fetch_all(sql, &[&first, &last]).await?;
            for row in rows {
                recount.found(row.logger, row.event_id);
            }
        }
        recount.end_page(now_ms);
    }
}

/// An event that was found by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundEvent {
    pub(crate) id: i64,
    pub(crate) execution_id: EventId,
    pub(crate) created_ms: i64,
    pub(crate) key: String,
    pub(crate) process_name: String,
    pub(crate) correlation_id: String,
    pub(crate) logger: Option<String>,
}

impl FromColumns for FoundEvent {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            execution_id: row.event_id(1)?,
            created_ms: row.get(2)?,
            key: row.get(3)?,
            process_name: row.get(4)?,
            correlation_id: row.get(5)?,
            logger: row.get(6)?,
        })
    }
}

/// The event with this id, also one that came as a repeat of another.
pub(crate) async fn find_event(
    store: &Store,
    event_id: EventId,
) -> Result<Option<FoundEvent>, EventLogError> {
    let found = on_either!(store, SqlAccess::Snapshot, "find an event", db => find(db, event_id));
    Ok(found?)
}

async fn find<C: SqlConnection>(
    db: &mut C,
    event_id: EventId,
) -> Result<Option<FoundEvent>, sqlx::Error> {
    const COLUMNS: &str = "e.id, e.execution_id, e.created_at, e.key, e.process_name,
        e.correlation_id, l.name FROM tidegate_eventlog e
        LEFT JOIN tidegate_eventlog_logger l ON l.id = e.logger";
    // The id is the key of most events; of the others the aliases tell.
    let key = event_id.to_string();
    let sql = format!("SELECT {COLUMNS} WHERE e.key = $1 AND e.event_id = $2");
    let found = db.fetch_optional(AssertSqlSafe(sql), &[&key, &event_id]);
    if let Some(found) = found.await? {
        return Ok(Some(found));
    }
    let sql = format!(
        "SELECT {COLUMNS} JOIN tidegate_eventlog_alias a ON a.event = e.id
         WHERE a.event_id = $1 ORDER BY e.id LIMIT 1"
    );
    db.fetch_optional(AssertSqlSafe(sql), &[&event_id]).await
}

/// Which events go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// Those stored before this time that nobody marked to stay.
    Before { before_ms: i64, now_ms: i64 },
    /// All of them.
    All,
}

/// Removes old events behind the number `after`, a bounded number of them, and posts that.
///
/// Gives the last number that was looked at and how many events went; none when nothing older is left.
pub(crate) async fn remove_range(
    store: &Store,
    after: i64,
    before_ms: i64,
    now_ms: i64,
) -> Result<Option<(i64, u64)>, EventLogError> {
    let removal = Removal::Before { before_ms, now_ms };
    let removed = on_either!(store, SqlAccess::Transact, "remove old events",
        db => remove(db, after, removal));
    Ok(removed?)
}

/// Removes everything, in bounded transactions, and posts the events that went.
pub(crate) async fn clear(store: &Store) -> Result<u64, EventLogError> {
    let (mut after, mut events) = (0, 0);
    loop {
        let removed = on_either!(store, SqlAccess::Transact, "remove all events",
            db => remove(db, after, Removal::All));
        let Some((last, count)) = removed? else {
            break;
        };
        (after, events) = (last, events + count);
    }
    let cleared = on_either!(store, SqlAccess::Transact, "remove links and processes",
        db => db.execute_raw("DELETE FROM tidegate_correlation_link; DELETE FROM tidegate_process"));
    cleared?;
    Ok(events)
}

async fn remove<C: EventLogStatements>(
    db: &mut C,
    after: i64,
    removal: Removal,
) -> Result<Option<(i64, u64)>, sqlx::Error> {
    let (before_ms, now_ms) = match removal {
        Removal::Before { before_ms, now_ms } => (before_ms, now_ms),
        Removal::All => (i64::MAX, i64::MAX),
    };
    // Numbers grow with time, so that the first young row ends it. A row of the future was stored while the
    // clock was wrong, and says nothing about those behind it.
    let sql = "SELECT id, created_at FROM tidegate_eventlog WHERE id > $1 AND created_at <= $2
        ORDER BY id LIMIT 1";
    let found = db.fetch_optional::<(i64, i64)>(sql, &[&after, &now_ms]);
    let first = match found.await? {
        Some((first, created_ms)) if created_ms < before_ms => first,
        Some(_) | None => return Ok(None),
    };
    let unless_kept = match removal {
        Removal::All => "",
        Removal::Before { .. } => {
            " AND NOT EXISTS (SELECT 1 FROM tidegate_correlation_link k
                  WHERE k.correlation_id = e.correlation_id AND k.retain)
              AND NOT EXISTS (SELECT 1 FROM tidegate_process p
                  WHERE p.process_name = e.process_name AND p.retain)"
        }
    };
    let last = first.saturating_add(REMOVED_AT_ONCE - 1);
    // Only rows that this statement removed are posted, whoever else removes at the same time.
    let sql = format!(
        "DELETE FROM tidegate_eventlog WHERE id IN (
             SELECT e.id FROM tidegate_eventlog e
             WHERE e.id BETWEEN $1 AND $2 AND e.created_at < $3{unless_kept})
         RETURNING event_id, logger, id"
    );
    let rows = db.rows(AssertSqlSafe(sql), &[&first, &last, &before_ms]);
    let (mut ids, mut gone) = (Vec::new(), Vec::new());
    for row in rows.await? {
        gone.push(OwnedEvent::from_columns(&row)?);
        ids.push(row.get::<i64>(2)?);
    }
    let count = u64::try_from(ids.len()).unwrap_or(u64::MAX);
    if ids.is_empty() {
        return Ok(Some((last, 0)));
    }
    db.remove_words(&ids).await?;
    let sql = format!(
        "DELETE FROM tidegate_eventlog_alias WHERE event {} RETURNING event_id, logger, is_repeat",
        C::IN_LIST
    );
    for row in db.rows(AssertSqlSafe(sql), &[&SqlList(&ids)]).await? {
        if row.get::<bool>(2)? {
            gone.push(OwnedEvent::from_columns(&row)?);
        }
    }
    post_removed(db, gone).await?;
    Ok(Some((last, count)))
}

async fn post_removed<C: EventLogStatements>(
    db: &mut C,
    gone: Vec<OwnedEvent>,
) -> Result<(), sqlx::Error> {
    let names = logger_names(db).await?;
    let mut by_logger: BTreeMap<Option<i64>, Vec<EventId>> = BTreeMap::new();
    for event in gone {
        by_logger
            .entry(event.logger)
            .or_default()
            .push(event.event_id);
    }
    for (logger, events) in by_logger {
        let name = logger.and_then(|number| names.get(&number));
        let moved = postings(events, Some(Place::Delivered), None);
        db.post(&books_name(name.map(String::as_str)), &moved)
            .await?;
    }
    Ok(())
}
