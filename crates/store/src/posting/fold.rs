//! Summing up what piled up.

use std::collections::BTreeMap;

use sqlx::{PgConnection, Row, SqliteConnection};
use tidegate_core::books::{Bucket, Place, Posting, Tally};

use super::{
    Entry, blocks, of_postgres, of_sqlite, page, stretch, stretches, write_postgres, write_sqlite,
};
use crate::{Store, StoreError};

/// Rows that one transaction sums up, at most.
const AT_ONCE: usize = 20_000;
/// Rows that are looked at before they are summed up, at most: they are kept in memory meanwhile.
const LOOKED_AT: usize = 100_000;
/// Looks of one [`fold`] at most. Rows beyond that, a million rows on, are left to the next one.
const LOOKS: u32 = 10;
/// Fewer rows than this are not worth summing up.
const FLOOR: usize = 200;

/// The key by which rows are summed up.
type Sum = (Bucket, Option<Place>, Option<Place>);

/// Sums up the postings of `component` that piled up, old buckets into coarser ones; gives how many
/// rows fewer there are. The books stay what they are, whatever runs beside it.
///
/// Rows that are alone in their sum are left as they are. It works in rounds that are transactions of
/// their own. If canceled, the rounds before stand.
///
/// # Errors
/// The database is away or refused; the rounds before stand.
pub async fn fold(store: &Store, component: &str, now_ms: u64) -> Result<u64, StoreError> {
    let mut fewer = 0;
    for _ in 0..LOOKS {
        let rows = look(store, component).await?;
        if rows.len() < FLOOR {
            break;
        }
        let (before, is_all) = (fewer, rows.len() < LOOKED_AT);
        for round in piled(rows, now_ms).chunks(AT_ONCE) {
            fewer += fold_once(store, component, now_ms, round.to_vec()).await?;
        }
        if is_all || fewer == before {
            break;
        }
    }
    Ok(fewer)
}

/// The rows that share their sum with others, those of one sum side by side.
fn piled(rows: Vec<(String, Entry)>, now_ms: u64) -> Vec<String> {
    let mut sums: BTreeMap<Sum, Vec<String>> = BTreeMap::new();
    for (at, entry) in rows {
        let sum = (entry.bucket.folded(now_ms), entry.from, entry.to);
        sums.entry(sum).or_default().push(at);
    }
    let piled = sums.into_values().filter(|rows| rows.len() > 1);
    piled.flatten().collect()
}

/// The rows there are, each with the place it is at.
async fn look(store: &Store, component: &str) -> Result<Vec<(String, Entry)>, StoreError> {
    let doing = "look at postings";
    let component = component.to_owned();
    match store {
        Store::Postgres(postgres) => {
            postgres
                .long_snapshot(doing, move |connection| {
                    Box::pin(async move { look_postgres(connection, &component).await })
                })
                .await
        }
        Store::Sqlite(sqlite) => {
            sqlite
                .long_read(doing, move |connection| {
                    Box::pin(async move { look_sqlite(connection, &component).await })
                })
                .await
        }
    }
}

async fn look_postgres(
    connection: &mut PgConnection,
    component: &str,
) -> Result<Vec<(String, Entry)>, sqlx::Error> {
    let mut found = Vec::new();
    let blocks = blocks(connection).await?;
    let mut stretches = stretches(blocks);
    while let Some(first) = stretches.next().filter(|_| found.len() < LOOKED_AT) {
        let rows = "SELECT bucket, from_place, to_place, count, id_sum, ctid::text
             FROM tidegate_posting
             WHERE component = $1 AND ctid >= $2::tid AND ctid < $3::tid";
        for row in &stretch(connection, rows, component, first).await? {
            found.push((row.try_get(5)?, of_postgres(row)?));
        }
    }
    Ok(found)
}

async fn look_sqlite(
    connection: &mut SqliteConnection,
    component: &str,
) -> Result<Vec<(String, Entry)>, sqlx::Error> {
    let mut found = Vec::new();
    let mut after = i64::MIN;
    while found.len() < LOOKED_AT {
        let rows = page(connection, component, &mut after).await?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            let at: i64 = row.try_get(5)?;
            found.push((at.to_string(), of_sqlite(row)?));
        }
    }
    Ok(found)
}

/// One round: the rows at these places become few. The rows that are there by now count, and not those
/// that were looked at.
async fn fold_once(
    store: &Store,
    component: &str,
    now_ms: u64,
    places: Vec<String>,
) -> Result<u64, StoreError> {
    let doing = "sum up postings";
    let component = component.to_owned();
    match store {
        Store::Postgres(postgres) => {
            postgres
                .transact(doing, move |connection| {
                    Box::pin(
                        async move { fold_postgres(connection, &component, now_ms, places).await },
                    )
                })
                .await
        }
        Store::Sqlite(sqlite) => {
            sqlite
                .write(doing, move |connection| {
                    Box::pin(
                        async move { fold_sqlite(connection, &component, now_ms, places).await },
                    )
                })
                .await
        }
    }
}

async fn fold_postgres(
    connection: &mut PgConnection,
    component: &str,
    now_ms: u64,
    places: Vec<String>,
) -> Result<u64, sqlx::Error> {
    let taken = sqlx::query(
        "WITH piled AS MATERIALIZED (
             SELECT ctid FROM tidegate_posting
             WHERE component = $1 AND ctid = ANY ($2::text[]::tid[]) FOR UPDATE SKIP LOCKED
         )
         DELETE FROM tidegate_posting p USING piled WHERE p.ctid = piled.ctid
         RETURNING bucket, from_place, to_place, count, id_sum",
    )
    .bind(component)
    .bind(places)
    .fetch_all(&mut *connection)
    .await?;
    let entries = taken.iter().map(of_postgres).collect::<Result<_, _>>()?;
    let sums = folded(entries, now_ms);
    write_postgres(connection, component, &sums).await?;
    Ok((taken.len() - sums.len()) as u64)
}

async fn fold_sqlite(
    connection: &mut SqliteConnection,
    component: &str,
    now_ms: u64,
    places: Vec<String>,
) -> Result<u64, sqlx::Error> {
    let taken = sqlx::query(
        "DELETE FROM tidegate_posting
         WHERE component = ?1 AND rowid IN (SELECT value FROM json_each(?2))
         RETURNING bucket, from_place, to_place, count, id_sum",
    )
    .bind(component)
    .bind(format!("[{}]", places.join(",")))
    .fetch_all(&mut *connection)
    .await?;
    let entries = taken.iter().map(of_sqlite).collect::<Result<_, _>>()?;
    let sums = folded(entries, now_ms);
    write_sqlite(connection, component, &sums).await?;
    Ok((taken.len() - sums.len()) as u64)
}

fn folded(entries: Vec<Entry>, now_ms: u64) -> Vec<Posting> {
    let mut sums: BTreeMap<Sum, Tally> = BTreeMap::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A day after the minutes below: they fold into hours.
    const LATER: u64 = (60 * 24 + 120) * 60_000;

    fn of(minute: u64, to: Place, count: i64) -> Entry {
        Entry {
            bucket: Bucket::Minute(minute),
            from: None,
            to: Some(to),
            tally: Tally {
                count,
                id_sum: u128::from(minute) + 1,
            },
        }
    }

    fn rows() -> Vec<(String, Entry)> {
        let rows = [
            ("a", of(1, Place::Queued, 2)),
            ("b", of(1, Place::Delivered, 3)),
            ("c", of(2, Place::Queued, 4)),
            ("d", of(70, Place::Queued, 5)),
        ];
        rows.map(|(at, entry)| (at.to_owned(), entry)).into()
    }

    #[test]
    fn rows_of_one_sum_are_piled_up_and_those_that_are_alone_are_left() {
        assert_eq!(piled(rows(), LATER), ["a", "c"]);
        assert!(
            piled(rows(), 0).is_empty(),
            "minutes are told apart for a day"
        );
    }

    #[test]
    fn rows_are_summed_up_by_what_they_say() {
        let entries = rows().into_iter().map(|(_, entry)| entry).collect();
        let mut sums: Vec<(String, Option<Place>, u64, u128)> = folded(entries, LATER)
            .into_iter()
            .map(|sum| (sum.bucket.to_string(), sum.to, sum.count, sum.id_sum))
            .collect();
        sums.sort_by_key(|(_, _, count, _)| *count);
        let hour = |number: u64, to, count, id_sum| (format!("h{number}"), Some(to), count, id_sum);
        let expected = [
            hour(0, Place::Delivered, 3, 2),
            hour(1, Place::Queued, 5, 71),
            hour(0, Place::Queued, 6, 5),
        ];
        assert_eq!(sums, expected);
    }
}
