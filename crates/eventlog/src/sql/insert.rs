//! Storing a group of events.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tidegate_core::EventId;
use tidegate_core::books::{Place, postings};
use tidegate_store::sql::{FromColumns, OwnColumns, SqlAccess, SqlConnection, SqlList};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, StoreError, sqlx};

use super::{EventLogStatements, NO_LOGGER, NewRow, books_name, on_either};
use crate::ingest::judge::{KnownEvent, PostVerdict, judge};
use crate::ingest::{IncomingEvent, PostOutcome};

/// Stores the new events of a group with their postings, in one transaction, and gives the outcome of each.
///
/// Returns once it would survive a power cut. Calling it again stores nothing and gives the same ids.
pub(crate) async fn store_events(
    store: &Store,
    events: Arc<[IncomingEvent]>,
    now_ms: i64,
) -> Result<Vec<PostOutcome>, StoreError> {
    on_either!(store, SqlAccess::Transact, "store events", db => store_group(db, events, now_ms))
}

async fn store_group<C: EventLogStatements>(
    db: &mut C,
    events: Arc<[IncomingEvent]>,
    now_ms: i64,
) -> Result<Vec<PostOutcome>, sqlx::Error> {
    let keys = events.iter().map(|incoming| incoming.event.key.clone());
    let mut known = known_events(db, keys.collect()).await?;
    let mut verdicts = judge(&events, &known);
    let loggers = logger_numbers(db, &events, now_ms).await?;
    let number = |incoming: &IncomingEvent| {
        let logger = incoming.logger.as_ref()?;
        loggers.get(logger).copied()
    };
    let mut rows = Vec::new();
    let is_new = |verdict: &PostVerdict| *verdict == PostVerdict::New;
    let count = verdicts.iter().filter(|verdict| is_new(verdict)).count();
    let mut ids = db.next_ids(count).await?.into_iter();
    for (incoming, _) in events.iter().zip(&verdicts).filter(|(_, one)| is_new(one)) {
        let id = ids.next().ok_or(sqlx::Error::RowNotFound)?;
        rows.push(NewRow {
            id,
            logger: number(incoming),
            created_ms: now_ms,
            incoming,
        });
    }
    // Two processes that store the same keys wait for each other in one order, and never in a circle.
    rows.sort_by(|a, b| a.incoming.event.key.cmp(&b.incoming.event.key));
    let mut stored = Vec::new();
    while !rows.is_empty() {
        let added: HashSet<i64> = db.insert(&rows).await?.into_iter().collect();
        let (new, lost): (Vec<NewRow<'_>>, Vec<NewRow<'_>>) =
            rows.into_iter().partition(|row| added.contains(&row.id));
        stored.extend(new);
        if !lost.is_empty() {
            // Another process was faster with these; its rows are committed and can be seen now.
            let keys = lost.iter().map(|row| row.incoming.event.key.clone());
            known.extend(known_events(db, keys.collect()).await?);
            verdicts = judge(&events, &known);
        }
        // A row that was removed again by now stands in nobody's way.
        rows = lost;
        rows.retain(|row| !known.contains_key(&row.incoming.event.key));
    }
    let placed: HashMap<&str, i64> = stored
        .iter()
        .map(|row| (row.incoming.event.key.as_str(), row.id))
        .collect();

    let (mut outcomes, mut aliases) = (Vec::with_capacity(events.len()), Vec::new());
    let mut counted: BTreeMap<Option<&str>, Vec<EventId>> = BTreeMap::new();
    for (incoming, verdict) in events.iter().zip(&verdicts) {
        let event = &incoming.event;
        let at = placed.get(event.key.as_str()).copied();
        let (outcome, alias) = match verdict {
            PostVerdict::New => {
                let execution_id = incoming.execution_id;
                let logger = incoming.logger.as_deref();
                counted.entry(logger).or_default().push(event.event_id);
                let is_key = event.key == event.event_id.to_string();
                let alias = at.filter(|_| !is_key).map(|id| (id, false));
                (PostOutcome::Stored { execution_id }, alias)
            }
            PostVerdict::Repeat {
                id,
                execution_id,
                is_alias,
            } => {
                let execution_id = *execution_id;
                let alias = is_alias.then_some((*id, true));
                (PostOutcome::Repeated { execution_id }, alias)
            }
            PostVerdict::RepeatOf { index, is_alias } => {
                let execution_id = events[*index].execution_id;
                let alias = at.filter(|_| *is_alias).map(|id| (id, true));
                (PostOutcome::Repeated { execution_id }, alias)
            }
            PostVerdict::Conflict => (PostOutcome::Conflict, None),
        };
        if let Some((id, is_repeat)) = alias {
            aliases.push((event.event_id, id, number(incoming), is_repeat, incoming));
        }
        outcomes.push(outcome);
    }
    // In one order, as the rows.
    aliases.sort_by_key(|(event_id, id, logger, ..)| (*event_id, *id, *logger));
    for (event_id, id, logger, is_repeat, incoming) in aliases {
        let sql = "INSERT INTO tidegate_eventlog_alias (event_id, event, logger, is_repeat)
            VALUES ($1, $2, $3, $4) ON CONFLICT (event_id, event, logger) DO NOTHING";
        let logger = logger.unwrap_or(NO_LOGGER);
        let added = db.execute(sql, &[&event_id, &id, &logger, &is_repeat]);
        if added.await? > 0 && is_repeat {
            let logger = incoming.logger.as_deref();
            counted.entry(logger).or_default().push(event_id);
        }
    }
    for (logger, ids) in counted {
        let moved = postings(ids, None, Some(Place::Delivered));
        db.post(&books_name(logger), &moved).await?;
    }
    Ok(outcomes)
}

struct KnownRow(String, KnownEvent);

impl FromColumns for KnownRow {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        let known = KnownEvent {
            id: row.get(1)?,
            event_id: row.event_id(2)?,
            execution_id: row.event_id(3)?,
            body: row.get(4)?,
            logger: row.get(5)?,
        };
        Ok(Self(row.get(0)?, known))
    }
}

/// The events that are stored under these keys. No other process removes them before the transaction ends: a
/// repeat is answered by the row that it repeats.
async fn known_events<C: EventLogStatements>(
    db: &mut C,
    keys: Vec<String>,
) -> Result<HashMap<String, KnownEvent>, sqlx::Error> {
    let sql = format!(
        "SELECT e.key, e.id, e.event_id, e.execution_id, e.body, l.name FROM tidegate_eventlog e
         LEFT JOIN tidegate_eventlog_logger l ON l.id = e.logger WHERE e.key {} {}",
        C::IN_LIST,
        C::KEPT
    );
    let rows: Vec<KnownRow> = db.fetch_all(AssertSqlSafe(sql), &[&SqlList(&keys)]).await?;
    Ok(rows
        .into_iter()
        .map(|KnownRow(key, known)| (key, known))
        .collect())
}

/// The numbers of the loggers of a group; one that is new gets its number here.
async fn logger_numbers<C: SqlConnection>(
    db: &mut C,
    events: &[IncomingEvent],
    now_ms: i64,
) -> Result<HashMap<Arc<str>, i64>, sqlx::Error> {
    let mut numbers: HashMap<Arc<str>, i64> = HashMap::new();
    for name in events
        .iter()
        .filter_map(|incoming| incoming.logger.as_ref())
    {
        if numbers.contains_key(name) {
            continue;
        }
        let text: &str = name;
        let select = "SELECT id FROM tidegate_eventlog_logger WHERE name = $1";
        let number = match db.fetch_optional(select, &[&text]).await? {
            Some(number) => number,
            None => {
                let insert = "INSERT INTO tidegate_eventlog_logger (name, first_seen_at)
                    VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
                db.execute(insert, &[&text, &now_ms]).await?;
                db.fetch_one(select, &[&text]).await?
            }
        };
        numbers.insert(Arc::clone(name), number);
    }
    Ok(numbers)
}
