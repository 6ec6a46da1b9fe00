//! The queue as seen from outside: listings, places, numbers, the recount.

use sqlx::AssertSqlSafe;
use tidegate_core::EventId;
use tidegate_core::books::{Account, Books};
use tidegate_store::sql::{SqlConnection, SqlList};
use tidegate_store::sqlx;

use super::claim::ClaimStatements;
use super::columns::place_of;
use super::decode::{QueueRow, sighting};
use super::projection::HEAD;
use super::stats::{StatsFacts, unwanted};
use crate::port::{EventFilter, ListedEvent, QueueLocation, QueueRecount, QueueStats, QueueStatus};
use crate::recount::Count;

/// Numbers that one step of a recount covers.
const COUNTED_AT_ONCE: i64 = 50_000;

/// The statements that look at the queue.
pub(super) trait InspectStatements: SqlConnection {
    /// The columns of a [`ListedEvent`] from `event_queue`.
    const QUEUE_COLUMNS: &'static str;
    /// The same from `event_log`.
    const LOG_COLUMNS: &'static str;
    /// The time of the server; none where it is that of this host.
    const SERVER_TIME: &'static str;
    /// True for a row of the alias `r` that is parked.
    const IS_PARKED: &'static str;
    /// Every event from `$1` to `$2` by where the tables have it.
    const RECOUNT: &'static str;

    /// When the event with the lowest number of all that are not finalized was published.
    fn oldest() -> String;
    /// How many events batches hold.
    fn in_batches() -> String;

    /// The books without their sums of ids.
    fn counts(&mut self) -> impl Future<Output = Result<Books, sqlx::Error>> + Send;
    fn books(&mut self) -> impl Future<Output = Result<Books, sqlx::Error>> + Send;
}

pub(super) async fn list<C: InspectStatements>(
    db: &mut C,
    filter: EventFilter,
) -> Result<Vec<ListedEvent>, sqlx::Error> {
    let columns = match filter.status {
        Some(QueueStatus::Completed | QueueStatus::CompletedWithErrors) => C::LOG_COLUMNS,
        Some(QueueStatus::Pending | QueueStatus::Processing) | None => C::QUEUE_COLUMNS,
    };
    let sql = format!(
        "{columns} WHERE (CAST($1 AS text) IS NULL OR status = $1)
         AND (CAST($2 AS text) IS NULL OR type = $2) AND id > $3 ORDER BY id LIMIT $4"
    );
    let status = filter.status.map(QueueStatus::as_str);
    let (type_name, limit) = (&filter.type_name, i64::from(filter.limit));
    let rows = db.rows(
        AssertSqlSafe(sql),
        &[&status, type_name, &filter.after, &limit],
    );
    rows.await?.iter().map(QueueRow::listed).collect()
}

pub(super) async fn show<C: InspectStatements>(
    db: &mut C,
    id: i64,
) -> Result<Option<ListedEvent>, sqlx::Error> {
    for columns in [C::QUEUE_COLUMNS, C::LOG_COLUMNS] {
        let sql = format!("{columns} WHERE id = $1");
        if let Some(row) = db.first_row(AssertSqlSafe(sql), &[&id]).await? {
            let mut shown = row.listed()?;
            let sql = "SELECT handler_id, result, attempts, error FROM event_handler_state
                WHERE id = $1 ORDER BY handler_id";
            let states = db.rows(sql, &[&id]).await?;
            let states = states.iter().map(|row| row.handler_state(0));
            shown.states = states.collect::<Result<_, _>>()?;
            return Ok(Some(shown));
        }
    }
    Ok(None)
}

pub(super) async fn find<C: InspectStatements>(
    db: &mut C,
    event: EventId,
) -> Result<Option<QueueLocation>, sqlx::Error> {
    let sql = "SELECT id FROM tidegate_event WHERE event_id = $1 ORDER BY id";
    let ids: Vec<i64> = db.fetch_all(sql, &[&event]).await?;
    let mut found = None;
    for id in &ids {
        let Some(shown) = show(db, *id).await? else {
            continue;
        };
        let sql = "SELECT place FROM tidegate_event_row WHERE id = $1";
        let row: Option<String> = db.fetch_optional(sql, &[id]).await?;
        let seen = sighting(shown, row.as_deref());
        let is_open = !seen.is_finalized();
        found = Some(seen);
        if is_open {
            break;
        }
    }
    Ok(found.map(|seen| seen.among(&ids)))
}

pub(super) async fn stats<C: InspectStatements + ClaimStatements>(
    db: &mut C,
    now: i64,
) -> Result<QueueStats, sqlx::Error> {
    let books = db.counts().await?;
    let claimed = claimed(db).await?;
    let oldest_ms = db.fetch_optional(AssertSqlSafe(C::oldest()), &[]).await?;
    let sql = format!(
        "SELECT {}, (SELECT count(*) FROM tidegate_handler_state), ({HEAD})",
        C::SERVER_TIME
    );
    let (server_ms, handler_states, head): (Option<i64>, i64, i64) =
        db.fetch_one(AssertSqlSafe(sql), &[]).await?;
    let sql = "SELECT name, position FROM event_projection";
    let projections = db.fetch_all(sql, &[]).await?;
    let lanes = unwanted(db.fetch_all(C::LANES, &[]).await?);
    let sql = format!(
        "SELECT lane, count(*) FROM tidegate_event_row WHERE lane {} GROUP BY lane",
        C::IN_LIST
    );
    let unwanted = db.fetch_all(AssertSqlSafe(sql), &[&SqlList(&lanes)]);
    let unwanted = unwanted.await?;
    let (is_parked, in_list) = (C::IS_PARKED, C::IN_LIST);
    let sql = format!(
        "SELECT count(*) FROM tidegate_event_row r WHERE {is_parked}
           AND NOT (r.lane {in_list}) AND r.key IN (
               SELECT u.key FROM tidegate_event_row u WHERE u.lane {in_list} AND u.key IS NOT NULL)"
    );
    let held_up = db.fetch_one(AssertSqlSafe(sql), &[&SqlList(&lanes)]);
    let facts = StatsFacts {
        books,
        now_ms: server_ms.unwrap_or(now),
        claimed,
        oldest_ms,
        handler_states,
        head,
        projections,
        unwanted,
        held_up: held_up.await?,
    };
    Ok(facts.stats())
}

/// How many events are claimed, by the place they have in the books.
async fn claimed<C: InspectStatements>(db: &mut C) -> Result<Vec<(String, i64)>, sqlx::Error> {
    let sql = format!(
        "SELECT 'queued', count(*) FROM {}
         UNION ALL
         SELECT r.place, count(*) FROM tidegate_event_row r WHERE r.locked_by IS NOT NULL
         GROUP BY r.place",
        C::in_batches()
    );
    db.fetch_all(AssertSqlSafe(sql), &[]).await
}

pub(super) async fn account<C: InspectStatements>(db: &mut C) -> Result<Account, sqlx::Error> {
    let mut account = db.counts().await?.account();
    for (place, count) in claimed(db).await? {
        crate::account::show_in_flight(&mut account, &place_of(&place), count);
    }
    Ok(account)
}

pub(super) async fn books<C: InspectStatements>(db: &mut C) -> Result<Books, sqlx::Error> {
    db.books().await
}

/// Every event by where the tables say that it is, a stretch of numbers at a time.
pub(super) async fn recount<C: InspectStatements>(
    db: &mut C,
    now_ms: u64,
) -> Result<QueueRecount, sqlx::Error> {
    let books = db.books().await?;
    let mut count = Count::default();
    let mut last = i64::MIN;
    loop {
        let sql = "SELECT min(id) FROM tidegate_event WHERE id > $1";
        let Some(first) = db.fetch_one::<Option<i64>>(sql, &[&last]).await? else {
            return Ok(count.finish(books));
        };
        last = first.saturating_add(COUNTED_AT_ONCE - 1);
        for row in db.rows(C::RECOUNT, &[&first, &last]).await? {
            let (event, seen) = row.counted()?;
            count.add(event, &seen);
        }
        count.end_page(now_ms);
    }
}
