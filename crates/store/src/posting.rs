//! The books beside the tables they are about.
//!
//! A posting is a row of `tidegate_posting`, written in the transaction of the move it describes.
//! Rows are only ever added; [`fold`] sums up what piled up, and old minutes into hours and days.

mod fold;

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Uuid;
use sqlx::{ColumnIndex, Decode, PgConnection, Row, SqliteConnection, Type};
use tidegate_core::books::{Books, Bucket, Place, Posting, Tally};

pub use fold::fold;

/// Rows that are read at once, at most.
const PAGE: i64 = 20_000;
/// Pages of the server's table that one statement goes through, at most: a statement has the time limit
/// of a call, however large the table is.
const BLOCKS: i64 = 512;

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
/// The server sums up what piled up, a stretch of the table at a time. So few rows come over, and every
/// statement is short however many rows there are.
///
/// # Errors
/// The database refused, or a row cannot be read.
pub async fn books_postgres(
    connection: &mut PgConnection,
    component: &str,
) -> Result<Books, sqlx::Error> {
    let mut books = Books::default();
    let blocks = blocks(connection).await?;
    for first in stretches(blocks) {
        let sums = "SELECT bucket, from_place, to_place, sum(count)::int8,
                 sum(('x' || substr(t, 1, 8))::bit(32)::int8)::int8,
                 sum(('x' || substr(t, 9, 8))::bit(32)::int8)::int8,
                 sum(('x' || substr(t, 17, 8))::bit(32)::int8)::int8,
                 sum(('x' || substr(t, 25, 8))::bit(32)::int8)::int8
             FROM (SELECT bucket, from_place, to_place, count, replace(id_sum::text, '-', '') AS t
                   FROM tidegate_posting
                   WHERE component = $1 AND ctid >= $2::tid AND ctid < $3::tid) p
             GROUP BY bucket, from_place, to_place";
        for row in &stretch(connection, sums, component, first).await? {
            add(&mut books, entry(row, summed(row)?)?);
        }
    }
    Ok(books)
}

/// How many blocks the table has. Whatever the transaction sees is in one of them.
async fn blocks(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT pg_relation_size('tidegate_posting') / current_setting('block_size')::int8",
    )
    .fetch_one(connection)
    .await
}

/// The first block of each stretch.
fn stretches(blocks: i64) -> impl Iterator<Item = i64> {
    (0..=(blocks - 1) / BLOCKS).map(|stretch| stretch * BLOCKS)
}

/// The rows that `select` finds in the stretch that begins at block `first`.
async fn stretch(
    connection: &mut PgConnection,
    select: &'static str,
    component: &str,
    first: i64,
) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::query(select)
        .bind(component)
        .bind(block(first))
        .bind(block(first + BLOCKS))
        .fetch_all(connection)
        .await
}

/// The place before the first row of a block.
fn block(number: i64) -> String {
    format!("({number},0)")
}

/// A sum of ids, from its four columns.
fn summed(row: &PgRow) -> Result<Uuid, sqlx::Error> {
    let mut parts = [0_i64; 4];
    for (part, column) in parts.iter_mut().zip(4..) {
        *part = row.try_get(column)?;
    }
    Ok(Uuid::from_u128(carried(parts)))
}

/// Puts four sums of 32 bits each together, the highest first; they carry into one another.
fn carried(parts: [i64; 4]) -> u128 {
    let parts = parts.map(|part| u128::try_from(part).unwrap_or(0));
    parts
        .into_iter()
        .fold(0, |sum, part| (sum << 32).wrapping_add(part))
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
        let rows = page(connection, component, &mut after).await?;
        if rows.is_empty() {
            return Ok(books);
        }
        for row in &rows {
            add(&mut books, of_sqlite(row)?);
        }
    }
}

/// The rows behind `after`, a page at most; `after` is then the last of them.
async fn page(
    connection: &mut SqliteConnection,
    component: &str,
    after: &mut i64,
) -> Result<Vec<SqliteRow>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT bucket, from_place, to_place, count, id_sum, rowid FROM tidegate_posting
         WHERE component = ? AND rowid > ? ORDER BY rowid LIMIT ?",
    )
    .bind(component)
    .bind(*after)
    .bind(PAGE)
    .fetch_all(connection)
    .await?;
    if let Some(last) = rows.last() {
        *after = last.try_get(5)?;
    }
    Ok(rows)
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
    let mut books = Books::default();
    let blocks = blocks(connection).await?;
    for first in stretches(blocks) {
        let counts = "SELECT bucket, from_place, to_place, sum(count)::int8 FROM tidegate_posting
             WHERE component = $1 AND ctid >= $2::tid AND ctid < $3::tid
             GROUP BY bucket, from_place, to_place";
        for row in &stretch(connection, counts, component, first).await? {
            add(&mut books, entry(row, Uuid::nil())?);
        }
    }
    Ok(books)
}

/// The same on SQLite.
///
/// # Errors
/// The database refused, or a row cannot be read.
pub async fn counts_sqlite(
    connection: &mut SqliteConnection,
    component: &str,
) -> Result<Books, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT bucket, from_place, to_place, sum(count) FROM tidegate_posting
         WHERE component = ? GROUP BY bucket, from_place, to_place",
    )
    .bind(component)
    .fetch_all(connection)
    .await?;
    let mut books = Books::default();
    for row in &rows {
        add(&mut books, entry(row, Uuid::nil())?);
    }
    Ok(books)
}

struct Entry {
    bucket: Bucket,
    from: Option<Place>,
    to: Option<Place>,
    tally: Tally,
}

fn of_postgres(row: &PgRow) -> Result<Entry, sqlx::Error> {
    entry(row, row.try_get(4)?)
}

fn of_sqlite(row: &SqliteRow) -> Result<Entry, sqlx::Error> {
    let id_sum: &str = row.try_get(4)?;
    let id_sum = Uuid::try_parse(id_sum).map_err(|error| sqlx::Error::Decode(error.into()))?;
    entry(row, id_sum)
}

/// The first four columns of a row: bucket, from where, to where, how many.
fn entry<'r, R: Row>(row: &'r R, id_sum: Uuid) -> Result<Entry, sqlx::Error>
where
    usize: ColumnIndex<R>,
    &'r str: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    Entry::read(
        row.try_get(0)?,
        row.try_get(1)?,
        row.try_get(2)?,
        Tally {
            count: row.try_get(3)?,
            id_sum: id_sum.as_u128(),
        },
    )
}

impl Entry {
    fn read(
        bucket: &str,
        from: Option<&str>,
        to: Option<&str>,
        tally: Tally,
    ) -> Result<Self, sqlx::Error> {
        let place = |text: Option<&str>| {
            let place = text.map(str::parse::<Place>).transpose();
            place.map_err(|error| sqlx::Error::Decode(error.into()))
        };
        let bucket = bucket.parse::<Bucket>();
        Ok(Self {
            bucket: bucket.map_err(|error| sqlx::Error::Decode(error.into()))?,
            from: place(from)?,
            to: place(to)?,
            tally,
        })
    }
}

fn add(books: &mut Books, entry: Entry) {
    books.move_tally(entry.bucket, entry.from, entry.to, entry.tally);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stretches_of_a_table_cover_every_block_once() {
        let of = |blocks| stretches(blocks).collect::<Vec<i64>>();
        assert_eq!(of(0), [0], "what was added meanwhile is not missed");
        assert_eq!(of(1), [0]);
        assert_eq!(of(BLOCKS), [0]);
        assert_eq!(of(BLOCKS + 1), [0, BLOCKS]);
        assert_eq!(of(BLOCKS * 3), [0, BLOCKS, BLOCKS * 2]);
        assert_eq!(block(512), "(512,0)");
    }

    #[test]
    fn sums_of_parts_carry_into_one_another() {
        assert_eq!(carried([0, 0, 0, 7]), 7);
        assert_eq!(carried([1, 2, 3, 4]), 1 << 96 | 2 << 64 | 3 << 32 | 4);
        assert_eq!(carried([0, 0, 1, 1 << 32]), 2 << 32);
        assert_eq!(carried([u32::MAX.into(), 0, 0, 0]) >> 96, 0xffff_ffff);
    }

    #[test]
    fn an_entry_says_what_stands_in_its_row() {
        let tally = Tally {
            count: 2,
            id_sum: 7,
        };
        let read = Entry::read("m3", Some("queued"), None, tally).unwrap();
        let is = (read.bucket, read.from, read.to, read.tally);
        assert_eq!(is, (Bucket::Minute(3), Some(Place::Queued), None, tally));
        for (bucket, place) in [("three", "queued"), ("m3", "nowhere at all")] {
            let read = Entry::read(bucket, Some(place), None, tally);
            assert!(
                matches!(read, Err(sqlx::Error::Decode(_))),
                "{bucket} {place}"
            );
            let read = Entry::read(bucket, None, Some(place), tally);
            assert!(
                matches!(read, Err(sqlx::Error::Decode(_))),
                "{bucket} {place}"
            );
        }
    }

    #[test]
    fn columns_have_every_posting_in_its_order() {
        let posting = |minute, from, to, count| Posting {
            bucket: Bucket::Minute(minute),
            from,
            to,
            count,
            id_sum: u128::from(minute),
        };
        let columns = Columns::of(&[
            posting(1, None, Some(Place::Queued), 3),
            posting(2, Some(Place::Queued), Some(Place::Delivered), 4),
        ]);
        assert_eq!(columns.buckets, ["m1", "m2"]);
        assert_eq!(columns.froms, [None, Some("queued".to_owned())]);
        let tos = ["queued", "delivered"].map(|to| Some(to.to_owned()));
        assert_eq!(columns.tos, tos);
        assert_eq!((columns.counts, columns.sums.len()), (vec![3, 4], 2));
        assert_eq!(columns.sums[1], Uuid::from_u128(2));
    }
}
