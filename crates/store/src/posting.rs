//! The books beside the tables they are about.
//!
//! A posting is a row of `tidegate_posting`, written in the transaction of the move it describes.
//! Rows are only ever added; [`fold`] sums up what piled up, and old minutes into hours and days.

use std::collections::BTreeMap;

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Uuid;
use sqlx::{PgConnection, Row, SqliteConnection};
use tidegate_core::books::{Books, Bucket, Place, Posting, Tally};

use crate::{Store, StoreError};

/// Rows that one round of [`fold`] takes, and that are read at once, at most.
const FOLD_LIMIT: i64 = 20_000;
/// Rounds of one [`fold`] at most. What is left then, a million rows on, is left to the next one.
const FOLD_ROUNDS: i64 = 50;
/// Fewer rows than this are not worth summing up.
const FOLD_FLOOR: i64 = 200;

/// Postings as columns, the way a statement for many rows takes them.
#[derive(Debug, Default, Clone)]
pub struct Columns {
    /// The buckets.
    pub buckets: Vec<String>,
    /// Where the events were.
    pub froms: Vec<Option<String>>,
    /// Where they are now.
    pub tos: Vec<Option<String>>,
    /// How many.
    pub counts: Vec<i64>,
    /// The sums of their ids, in the shape of an id.
    pub sums: Vec<Uuid>,
}

impl Columns {
    /// These postings as columns.
    #[must_use]
    pub fn of(postings: &[Posting]) -> Self {
        let mut columns = Self::default();
        for posting in postings {
            columns.buckets.push(posting.bucket.to_string());
            columns
                .froms
                .push(posting.from.as_ref().map(Place::to_string));
            columns.tos.push(posting.to.as_ref().map(Place::to_string));
            columns
                .counts
                .push(i64::try_from(posting.count).unwrap_or(i64::MAX));
            columns.sums.push(Uuid::from_u128(posting.id_sum));
        }
        columns
    }
}

/// Writes postings in the transaction that `connection` is in.
///
/// # Errors
/// The database refused.
pub async fn write_postgres(
    connection: &mut PgConnection,
    component: &str,
    postings: &[Posting],
) -> Result<(), sqlx::Error> {
    if postings.is_empty() {
        return Ok(());
    }
    let columns = Columns::of(postings);
    sqlx::query(
        "INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
         SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::int8[], $6::uuid[])",
    )
    .bind(component)
    .bind(columns.buckets)
    .bind(columns.froms)
    .bind(columns.tos)
    .bind(columns.counts)
    .bind(columns.sums)
    .execute(connection)
    .await?;
    Ok(())
}

/// Writes postings in the transaction that `connection` is in.
///
/// # Errors
/// The database refused.
pub async fn write_sqlite(
    connection: &mut SqliteConnection,
    component: &str,
    postings: &[Posting],
) -> Result<(), sqlx::Error> {
    for posting in postings {
        sqlx::query(
            "INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
             VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(component)
        .bind(posting.bucket.to_string())
        .bind(posting.from.as_ref().map(Place::to_string))
        .bind(posting.to.as_ref().map(Place::to_string))
        .bind(i64::try_from(posting.count).unwrap_or(i64::MAX))
        .bind(Uuid::from_u128(posting.id_sum).to_string())
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// The books of `component`, as the transaction of `connection` sees them.
///
/// The server sums up what piled up, so that few rows come over however many there are.
///
/// # Errors
/// The database refused, or a row cannot be read.
pub async fn books_postgres(
    connection: &mut PgConnection,
    component: &str,
) -> Result<Books, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT bucket, from_place, to_place, sum(count)::int8,
             sum(('x' || substr(t, 1, 8))::bit(32)::int8)::int8,
             sum(('x' || substr(t, 9, 8))::bit(32)::int8)::int8,
             sum(('x' || substr(t, 17, 8))::bit(32)::int8)::int8,
             sum(('x' || substr(t, 25, 8))::bit(32)::int8)::int8
         FROM (SELECT bucket, from_place, to_place, count, replace(id_sum::text, '-', '') AS t
               FROM tidegate_posting WHERE component = $1) p
         GROUP BY bucket, from_place, to_place",
    )
    .bind(component)
    .fetch_all(connection)
    .await?;
    let mut books = Books::default();
    for row in &rows {
        // Four sums of 32 bits each, which carry into one another.
        let mut id_sum = 0_u128;
        for column in 4..8 {
            let part: i64 = row.try_get(column)?;
            let part = u128::try_from(part).unwrap_or(0);
            id_sum = (id_sum << 32).wrapping_add(part);
        }
        let id_sum = Uuid::from_u128(id_sum);
        let (bucket, from, to) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        add(
            &mut books,
            entry(bucket, from, to, row.try_get(3)?, id_sum)?,
        );
    }
    Ok(books)
}

/// The books of `component`, as the transaction of `connection` sees them. They are read a page at a
/// time, so that few rows are in memory however many there are.
///
/// # Errors
/// The database refused, or a row cannot be read.
pub async fn books_sqlite(
    connection: &mut SqliteConnection,
    component: &str,
) -> Result<Books, sqlx::Error> {
    let mut books = Books::default();
    let mut after = i64::MIN;
    loop {
        let rows = sqlx::query(
            "SELECT bucket, from_place, to_place, count, id_sum, rowid FROM tidegate_posting
             WHERE component = ? AND rowid > ? ORDER BY rowid LIMIT ?",
        )
        .bind(component)
        .bind(after)
        .bind(FOLD_LIMIT)
        .fetch_all(&mut *connection)
        .await?;
        let Some(last) = rows.last() else {
            return Ok(books);
        };
        after = last.try_get(5)?;
        for row in &rows {
            add(&mut books, of_sqlite(row)?);
        }
    }
}

/// How many events moved from where to where, by bucket: the books of `component` with all sums of
/// ids left at zero, for numbers that are wanted often. They cannot be audited.
///
/// # Errors
/// The database refused, or a row cannot be read.
pub async fn counts_postgres(
    connection: &mut PgConnection,
    component: &str,
) -> Result<Books, sqlx::Error> {
    let rows: Vec<CountRow> = sqlx::query_as(
        "SELECT bucket, from_place, to_place, sum(count)::int8 FROM tidegate_posting
         WHERE component = $1 GROUP BY bucket, from_place, to_place",
    )
    .bind(component)
    .fetch_all(connection)
    .await?;
    counts(rows)
}

/// The same on SQLite.
///
/// # Errors
/// The database refused, or a row cannot be read.
pub async fn counts_sqlite(
    connection: &mut SqliteConnection,
    component: &str,
) -> Result<Books, sqlx::Error> {
    let rows: Vec<CountRow> = sqlx::query_as(
        "SELECT bucket, from_place, to_place, sum(count) FROM tidegate_posting
         WHERE component = ? GROUP BY bucket, from_place, to_place",
    )
    .bind(component)
    .fetch_all(connection)
    .await?;
    counts(rows)
}

/// Bucket, from where, to where, how many.
type CountRow = (String, Option<String>, Option<String>, i64);

fn counts(rows: Vec<CountRow>) -> Result<Books, sqlx::Error> {
    let mut books = Books::default();
    for (bucket, from, to, count) in rows {
        let none = Uuid::nil();
        let entry = entry(&bucket, from.as_deref(), to.as_deref(), count, none)?;
        add(&mut books, entry);
    }
    Ok(books)
}

/// Sums up the postings of `component` that piled up, old buckets into coarser ones; gives how many
/// rows fewer there are. The books stay what they are, whatever runs beside it.
///
/// It goes once through all that is there when it begins, in rounds that are transactions of their
/// own. If canceled, the rounds before stand.
///
/// # Errors
/// The database is away or refused; the rounds before stand.
pub async fn fold(store: &Store, component: &str, now_ms: u64) -> Result<u64, StoreError> {
    let piled = count(store, component).await?;
    if piled < FOLD_FLOOR {
        return Ok(0);
    }
    // What a round has summed up is added behind the rest, so as many rounds as this come by
    // everything; going on until nothing gets fewer would write the same sums again and again.
    let rounds = (piled - 1) / FOLD_LIMIT + 1;
    let mut fewer = 0;
    for _ in 0..rounds.min(FOLD_ROUNDS) {
        fewer += fold_once(store, component, now_ms).await?;
    }
    Ok(fewer)
}

async fn count(store: &Store, component: &str) -> Result<i64, StoreError> {
    let doing = "count postings";
    let component = component.to_owned();
    match store {
        Store::Postgres(postgres) => {
            let ask = "SELECT count(*) FROM tidegate_posting WHERE component = $1";
            let ask = sqlx::query_scalar(ask).bind(component);
            postgres
                .run(doing, move |connection| Box::pin(ask.fetch_one(connection)))
                .await
        }
        Store::Sqlite(sqlite) => {
            let ask = "SELECT count(*) FROM tidegate_posting WHERE component = ?";
            let ask = sqlx::query_scalar(ask).bind(component);
            sqlite
                .read(doing, move |connection| Box::pin(ask.fetch_one(connection)))
                .await
        }
    }
}

/// One round: the first rows there are become few.
async fn fold_once(store: &Store, component: &str, now_ms: u64) -> Result<u64, StoreError> {
    let doing = "sum up postings";
    let component = component.to_owned();
    match store {
        Store::Postgres(postgres) => {
            postgres
                .transact(doing, move |connection| {
                    Box::pin(async move { fold_postgres(connection, &component, now_ms).await })
                })
                .await
        }
        Store::Sqlite(sqlite) => {
            sqlite
                .write(doing, move |connection| {
                    Box::pin(async move { fold_sqlite(connection, &component, now_ms).await })
                })
                .await
        }
    }
}

async fn fold_postgres(
    connection: &mut PgConnection,
    component: &str,
    now_ms: u64,
) -> Result<u64, sqlx::Error> {
    let taken = sqlx::query(
        "WITH piled AS MATERIALIZED (
             SELECT ctid FROM tidegate_posting WHERE component = $1
             LIMIT $2 FOR UPDATE SKIP LOCKED
         )
         DELETE FROM tidegate_posting p USING piled
         WHERE p.ctid = piled.ctid AND (SELECT count(*) FROM piled) >= $3
         RETURNING bucket, from_place, to_place, count, id_sum",
    )
    .bind(component)
    .bind(FOLD_LIMIT)
    .bind(FOLD_FLOOR)
    .fetch_all(&mut *connection)
    .await?;
    let entries: Vec<Entry> = taken.iter().map(of_postgres).collect::<Result<_, _>>()?;
    let before = entries.len();
    let sums = folded(entries, now_ms);
    write_postgres(connection, component, &sums).await?;
    Ok((before - sums.len()) as u64)
}

async fn fold_sqlite(
    connection: &mut SqliteConnection,
    component: &str,
    now_ms: u64,
) -> Result<u64, sqlx::Error> {
    let taken = sqlx::query(
        "DELETE FROM tidegate_posting WHERE rowid IN
             (SELECT rowid FROM tidegate_posting WHERE component = ?1 LIMIT ?2)
         AND (SELECT count(*) FROM tidegate_posting WHERE component = ?1) >= ?3
         RETURNING bucket, from_place, to_place, count, id_sum",
    )
    .bind(component)
    .bind(FOLD_LIMIT)
    .bind(FOLD_FLOOR)
    .fetch_all(&mut *connection)
    .await?;
    let entries: Vec<Entry> = taken.iter().map(of_sqlite).collect::<Result<_, _>>()?;
    let before = entries.len();
    let sums = folded(entries, now_ms);
    write_sqlite(connection, component, &sums).await?;
    Ok((before - sums.len()) as u64)
}

struct Entry {
    bucket: Bucket,
    from: Option<Place>,
    to: Option<Place>,
    tally: Tally,
}

fn of_postgres(row: &PgRow) -> Result<Entry, sqlx::Error> {
    let id_sum: Uuid = row.try_get(4)?;
    entry(
        row.try_get(0)?,
        row.try_get(1)?,
        row.try_get(2)?,
        row.try_get(3)?,
        id_sum,
    )
}

fn of_sqlite(row: &SqliteRow) -> Result<Entry, sqlx::Error> {
    let id_sum: &str = row.try_get(4)?;
    let id_sum = Uuid::try_parse(id_sum).map_err(|error| sqlx::Error::Decode(error.into()))?;
    entry(
        row.try_get(0)?,
        row.try_get(1)?,
        row.try_get(2)?,
        row.try_get(3)?,
        id_sum,
    )
}

fn entry(
    bucket: &str,
    from: Option<&str>,
    to: Option<&str>,
    count: i64,
    id_sum: Uuid,
) -> Result<Entry, sqlx::Error> {
    let place = |text: Option<&str>| text.map(str::parse::<Place>).transpose();
    let unreadable = |error: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(error);
    Ok(Entry {
        bucket: bucket
            .parse()
            .map_err(|error| unreadable(Box::new(error)))?,
        from: place(from).map_err(|error| unreadable(Box::new(error)))?,
        to: place(to).map_err(|error| unreadable(Box::new(error)))?,
        tally: Tally {
            count,
            id_sum: id_sum.as_u128(),
        },
    })
}

fn add(books: &mut Books, entry: Entry) {
    books.move_tally(entry.bucket, entry.from, entry.to, entry.tally);
}

fn folded(entries: Vec<Entry>, now_ms: u64) -> Vec<Posting> {
    let mut sums: BTreeMap<(Bucket, Option<Place>, Option<Place>), Tally> = BTreeMap::new();
    for entry in entries {
        let key = (entry.bucket.folded(now_ms), entry.from, entry.to);
        let tally = sums.entry(key).or_default();
        *tally = tally.plus(entry.tally);
    }
    sums.into_iter()
        .map(|((bucket, from, to), tally)| Posting {
            bucket,
            from,
            to,
            count: u64::try_from(tally.count).unwrap_or(0),
            id_sum: tally.id_sum,
        })
        .collect()
}
