//! The store of bindings in a database: PostgreSQL or SQLite, by the same statements.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tidegate_core::books::{Books, Place, Posting, postings};
use tidegate_core::env::{Clock, Env};
use tidegate_core::{EventId, Offset, TierIndex, Topic};
use tidegate_log::{Headers, Record, TopicPartition};
use tidegate_store::migrate::{self as steps, Migration};
use tidegate_store::sql::{OwnColumns, SqlAccess, SqlConnection, SqlDatabase, SqlFuture, SqlValue};
use tidegate_store::sqlx::{self, AssertSqlSafe, PgConnection, SqliteConnection};
use tidegate_store::{Dialect, Postgres, Sqlite, Store, StoreError, lease, posting};

use super::{
    GoneProgress, ParkLease, ParkedChanges, ParkedCount, ParkedFuture, ParkedIn, ParkedRow,
    ParkedStore, ProgressRow,
};

const PART: &str = "connector";
const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "parked records and progress",
    postgres: include_str!("connector-1.postgres.sql"),
    sqlite: include_str!("connector-1.sqlite.sql"),
}];

/// Rows that are read at once.
const PAGE: i64 = 500;

const PUT: &str =
    "INSERT INTO eventbus_parked (component, topic, partition, record_offset, event_id, key,
        value, headers, timestamp_ms, tier, delivery, due_ms, target)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    ON CONFLICT (component, topic, partition, record_offset) DO UPDATE SET
        event_id = excluded.event_id, key = excluded.key, value = excluded.value,
        headers = excluded.headers, timestamp_ms = excluded.timestamp_ms, tier = excluded.tier,
        delivery = excluded.delivery, due_ms = excluded.due_ms, target = excluded.target";
const REMOVE: &str = "DELETE FROM eventbus_parked
    WHERE component = $1 AND topic = $2 AND partition = $3 AND record_offset = $4 RETURNING event_id";
const COLUMNS: &str =
    "record_offset, event_id, key, value, headers, timestamp_ms, tier, delivery, due_ms,
    target, topic, partition";
const COUNT: &str = "SELECT topic, partition, record_offset, event_id FROM eventbus_parked
    WHERE component = $1 ORDER BY topic, partition, record_offset";
const PUT_PROGRESS: &str =
    "INSERT INTO eventbus_progress (component, topic, partition, id, next_offset,
        lengths) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (component, topic, partition, id) DO NOTHING";
const PROGRESS: &str = "SELECT next_offset, lengths FROM eventbus_progress
    WHERE component = $1 AND topic = $2 AND partition = $3 AND id = $4";
const DROP_PROGRESS: &str = "DELETE FROM eventbus_progress
    WHERE component = $1 AND topic = $2 AND partition = $3
      AND (id = $4 OR next_offset < $5 AND id <> $6)";

/// Brings the tables of bindings up to date, and gives how many migrations ran.
///
/// # Errors
/// The database is away, or refused.
pub async fn migrate(store: &Store) -> Result<usize, StoreError> {
    steps::migrate(store, PART, MIGRATIONS).await
}

/// How many migrations have not run yet. Changes nothing.
///
/// # Errors
/// The database is away, or refused.
pub async fn pending(store: &Store) -> Result<usize, StoreError> {
    steps::pending_of_part(store, PART, MIGRATIONS).await
}

/// The SQL of all migrations, for the user's own.
#[must_use]
pub fn migration_sql(dialect: Dialect) -> String {
    steps::print(dialect, PART, MIGRATIONS)
}

/// The store of bindings in this database, whose tables are up to date.
#[must_use]
pub fn parked_store(store: Store, env: &Env) -> Arc<dyn ParkedStore> {
    let clock = Arc::clone(&env.clock);
    match store.clone() {
        Store::Postgres(database) => Arc::new(SqlParked {
            database,
            store,
            clock,
        }),
        Store::Sqlite(database) => Arc::new(SqlParked {
            database,
            store,
            clock,
        }),
    }
}

/// A connection as the books need it.
trait ParkedConnection: SqlConnection + 'static {
    fn post<'c>(&'c mut self, component: &'c str, postings: &'c [Posting]) -> SqlFuture<'c, ()>;
    fn books<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books>;
}

impl ParkedConnection for PgConnection {
    fn post<'c>(&'c mut self, component: &'c str, postings: &'c [Posting]) -> SqlFuture<'c, ()> {
        Box::pin(posting::write_postgres(self, component, postings))
    }

    fn books<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books> {
        Box::pin(posting::books_postgres(self, component))
    }
}

impl ParkedConnection for SqliteConnection {
    fn post<'c>(&'c mut self, component: &'c str, postings: &'c [Posting]) -> SqlFuture<'c, ()> {
        Box::pin(posting::write_sqlite(self, component, postings))
    }

    fn books<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books> {
        Box::pin(posting::books_sqlite(self, component))
    }
}

trait ParkedDatabase: SqlDatabase<Connection: ParkedConnection> + std::fmt::Debug + 'static {}
impl ParkedDatabase for Postgres {}
impl ParkedDatabase for Sqlite {}

#[derive(Debug)]
struct SqlParked<D> {
    database: D,
    store: Store,
    clock: Arc<dyn Clock>,
}

/// Headers as a list of names and base64, so that people can read them.
fn headers_text(headers: &Headers) -> String {
    let list: Vec<(&str, Option<String>)> = headers
        .iter()
        .map(|(name, value)| (name, value.map(|value| STANDARD.encode(value))))
        .collect();
    // A list of texts always has a JSON form.
    serde_json::to_string(&list).unwrap_or_default()
}

fn read_headers(text: &str) -> Result<Headers, sqlx::Error> {
    let list: Vec<(String, Option<String>)> =
        serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let mut headers = Headers::default();
    for (name, value) in list {
        let value = value.map(|value| STANDARD.decode(value)).transpose();
        let value = value.map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        headers.push(&name, value.as_deref());
    }
    Ok(headers)
}

fn small(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn millis(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn topic_of(name: String) -> Result<Topic, sqlx::Error> {
    Topic::new(name).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn read_row(row: &impl OwnColumns) -> Result<ParkedRow, sqlx::Error> {
    let number =
        |column| Ok::<u64, sqlx::Error>(u64::try_from(row.get::<i64>(column)?).unwrap_or(0));
    let target: Option<String> = row.get(9)?;
    Ok(ParkedRow {
        offset: Offset(row.get(0)?),
        event_id: row.event_id(1)?,
        record: Record {
            key: row.get::<Option<Vec<u8>>>(2)?.map(Into::into),
            value: row.get::<Option<Vec<u8>>>(3)?.map(Into::into),
            headers: read_headers(&row.get::<String>(4)?)?,
            timestamp_ms: number(5)?,
        },
        tier: TierIndex(row.count(6)?),
        delivery: row.count(7)?,
        due_ms: number(8)?,
        target: target.map(topic_of).transpose()?,
    })
}

/// The values that name a partition, for the first three places of a statement.
fn place(of: &ParkedIn) -> (String, String, i32) {
    let topic = of.at.topic.to_string();
    (of.component.clone(), topic, of.at.partition.0)
}

async fn change<C: ParkedConnection>(
    connection: &mut C,
    lease: &ParkLease,
    changes: &ParkedChanges,
) -> Result<bool, sqlx::Error> {
    let held = format!(
        "SELECT token FROM tidegate_lease WHERE name = $1 {}",
        C::FOR_UPDATE
    );
    let name = lease.of.lease_name();
    let token: Option<i64> = connection
        .fetch_optional(AssertSqlSafe(held), &[&name])
        .await?;
    if token != Some(lease.token) {
        return Ok(false);
    }
    let (component, topic, partition) = place(&lease.of);
    for row in changes.puts.values() {
        let record = &row.record;
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let headers = headers_text(&record.headers);
        let target = row.target.as_ref().map(Topic::to_string);
        let values: [&dyn SqlValue; 13] = [
            &component,
            &topic,
            &partition,
            &row.offset.0,
            &row.event_id,
            &key,
            &value,
            &headers,
            &millis(record.timestamp_ms),
            &small(row.tier.0),
            &small(row.delivery),
            &millis(row.due_ms),
            &target,
        ];
        connection.execute(PUT, &values).await?;
    }
    let mut delivered = Vec::new();
    for (offsets, is_posted) in [(&changes.delivered, true), (&changes.removed, false)] {
        for offset in offsets {
            let gone = connection.first_row(REMOVE, &[&component, &topic, &partition, offset]);
            if let Some(gone) = gone.await?
                && is_posted
            {
                delivered.push(gone.event_id(0)?);
            }
        }
    }
    let posted = postings(delivered, Some(Place::Parked), Some(Place::Delivered));
    connection.post(&component, &posted).await?;
    Ok(true)
}

impl<D: ParkedDatabase> SqlParked<D> {
    async fn select(
        &self,
        doing: &'static str,
        condition: &'static str,
        values: Vec<Box<dyn SqlValue + Send>>,
    ) -> Result<Vec<(TopicPartition, ParkedRow)>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM eventbus_parked WHERE component = $1 {condition}");
        let call = self.database.call(SqlAccess::Read, doing, move |c| {
            Box::pin(async move {
                let values: Vec<&dyn SqlValue> =
                    values.iter().map(|v| &**v as &dyn SqlValue).collect();
                let rows = c.rows(AssertSqlSafe(sql), &values).await?;
                rows.iter().map(read_placed).collect()
            })
        });
        call.await
    }
}

fn read_placed(row: &impl OwnColumns) -> Result<(TopicPartition, ParkedRow), sqlx::Error> {
    let at = TopicPartition::new(topic_of(row.get(10)?)?, row.get(11)?);
    Ok((at, read_row(row)?))
}

impl<D: ParkedDatabase> ParkedStore for SqlParked<D> {
    fn is_shared(&self) -> bool {
        match &self.store {
            Store::Postgres(_) => true,
            Store::Sqlite(_) => false,
        }
    }

    fn acquire<'a>(
        &'a self,
        of: &'a ParkedIn,
        owner: &'a str,
        span: Duration,
    ) -> ParkedFuture<'a, Option<ParkLease>> {
        Box::pin(async move {
            let taken = lease::acquire(&self.store, &of.lease_name(), owner, span).await?;
            Ok(taken.map(|taken| ParkLease {
                of: of.clone(),
                token: taken.token,
            }))
        })
    }

    fn renew<'a>(&'a self, lease: &'a ParkLease, span: Duration) -> ParkedFuture<'a, bool> {
        let held = lease::Lease {
            name: lease.of.lease_name(),
            token: lease.token,
        };
        Box::pin(async move { lease::renew(&self.store, &held, span).await })
    }

    fn release<'a>(&'a self, lease: &'a ParkLease) -> ParkedFuture<'a, ()> {
        let held = lease::Lease {
            name: lease.of.lease_name(),
            token: lease.token,
        };
        Box::pin(async move { lease::release(&self.store, held).await })
    }

    fn rows<'a>(&'a self, of: &'a ParkedIn, above: i64) -> ParkedFuture<'a, Vec<ParkedRow>> {
        Box::pin(async move {
            let (component, topic, partition) = place(of);
            let condition = "AND topic = $2 AND partition = $3 AND record_offset > $4
                ORDER BY record_offset LIMIT $5";
            let values: Vec<Box<dyn SqlValue + Send>> = vec![
                Box::new(component),
                Box::new(topic),
                Box::new(partition),
                Box::new(above),
                Box::new(PAGE),
            ];
            let found = self
                .select("read parked records", condition, values)
                .await?;
            Ok(found.into_iter().map(|(_, row)| row).collect())
        })
    }

    fn change<'a>(
        &'a self,
        lease: &'a ParkLease,
        changes: &'a ParkedChanges,
    ) -> ParkedFuture<'a, bool> {
        let (lease, changes) = (lease.clone(), changes.clone());
        let doing = "change parked records";
        Box::pin(self.database.call(SqlAccess::Transact, doing, move |c| {
            Box::pin(async move { change(c, &lease, &changes).await })
        }))
    }

    fn put_progress<'a>(&'a self, of: &'a ParkedIn, row: &'a ProgressRow) -> ParkedFuture<'a, ()> {
        let ((component, topic, partition), row) = (place(of), row.clone());
        let doing = "write progress";
        Box::pin(self.database.call(SqlAccess::Write, doing, move |c| {
            Box::pin(async move {
                let values: [&dyn SqlValue; 6] = [
                    &component,
                    &topic,
                    &partition,
                    &row.id,
                    &row.next,
                    &Some(row.lengths.as_slice()),
                ];
                c.execute(PUT_PROGRESS, &values).await.map(drop)
            })
        }))
    }

    fn progress<'a>(&'a self, of: &'a ParkedIn, id: i64) -> ParkedFuture<'a, Option<ProgressRow>> {
        let (component, topic, partition) = place(of);
        let doing = "read progress";
        Box::pin(self.database.call(SqlAccess::Read, doing, move |c| {
            Box::pin(async move {
                let values: [&dyn SqlValue; 4] = [&component, &topic, &partition, &id];
                let found: Option<(i64, Vec<u8>)> = c.fetch_optional(PROGRESS, &values).await?;
                Ok(found.map(|(next, lengths)| ProgressRow { id, next, lengths }))
            })
        }))
    }

    fn drop_progress<'a>(&'a self, of: &'a ParkedIn, gone: GoneProgress) -> ParkedFuture<'a, ()> {
        let (component, topic, partition) = place(of);
        let (id, but) = (gone.id.unwrap_or(-1), gone.but.unwrap_or(-1));
        let doing = "remove progress";
        Box::pin(self.database.call(SqlAccess::Write, doing, move |c| {
            Box::pin(async move {
                let values: [&dyn SqlValue; 6] =
                    [&component, &topic, &partition, &id, &gone.below, &but];
                c.execute(DROP_PROGRESS, &values).await.map(drop)
            })
        }))
    }

    fn count<'a>(&'a self, component: &'a str) -> ParkedFuture<'a, ParkedCount> {
        let component = component.to_owned();
        let doing = "count parked records";
        let access = SqlAccess::LongSnapshot;
        Box::pin(self.database.call(access, doing, move |c| {
            Box::pin(async move {
                let books = c.books(&component).await?;
                let rows = c.rows(COUNT, &[&component]).await?;
                let read = |row: &<D::Connection as SqlConnection>::Row| {
                    let at = TopicPartition::new(topic_of(row.get(0)?)?, row.get(1)?);
                    Ok((at, Offset(row.get(2)?), row.event_id(3)?))
                };
                let rows: Result<_, sqlx::Error> = rows.iter().map(read).collect();
                Ok(ParkedCount { rows: rows?, books })
            })
        }))
    }

    fn find<'a>(
        &'a self,
        component: &'a str,
        id: EventId,
    ) -> ParkedFuture<'a, Vec<(TopicPartition, ParkedRow)>> {
        let values: Vec<Box<dyn SqlValue + Send>> =
            vec![Box::new(component.to_owned()), Box::new(id)];
        Box::pin(self.select("look for a parked record", "AND event_id = $2", values))
    }

    fn fold<'a>(&'a self, component: &'a str) -> ParkedFuture<'a, ()> {
        Box::pin(async move {
            posting::fold(&self.store, component, self.clock.now_ms()).await?;
            Ok(())
        })
    }
}
