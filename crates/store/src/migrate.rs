//! Brings tables up to date.
//!
//! A part has a list of migrations; each runs once, in its order and in one transaction with the
//! row of `tidegate_migration` that remembers it. The table has a name of ours, because we live in
//! the user's database beside migrations of theirs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, PgConnection, Row, SqliteConnection};

use crate::{Dialect, Store, StoreError};

/// One step of a part's tables.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Its number within the part, counted from 1.
    pub version: i32,
    /// Its purpose, in a few words.
    pub name: &'static str,
    /// Its SQL for PostgreSQL.
    pub postgres: &'static str,
    /// Its SQL for SQLite.
    pub sqlite: &'static str,
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS tidegate_migration (\n    \
    part text NOT NULL,\n    version integer NOT NULL,\n    name text NOT NULL,\n    \
    PRIMARY KEY (part, version)\n)";

/// The tables every part stands on: leases, postings, and the answers of repeated requests.
pub const STORE_MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "leases and postings",
        postgres: include_str!("migrate/store-1.postgres.sql"),
        sqlite: include_str!("migrate/store-1.sqlite.sql"),
    },
    Migration {
        version: 2,
        name: "idempotency keys",
        postgres: include_str!("migrate/store-2.postgres.sql"),
        sqlite: include_str!("migrate/store-2.sqlite.sql"),
    },
];

/// The name under which [`STORE_MIGRATIONS`] is remembered.
pub const STORE_PART: &str = "store";

/// Runs what has not run yet of `migrations`, after [`STORE_MIGRATIONS`], and gives how many ran.
///
/// Returns once they are committed. Two processes at once take turns; calling it again does
/// nothing. If canceled, the migration that is running is taken back whole.
///
/// # Errors
/// The database is away or refused a statement; the migrations before it stay.
pub async fn migrate(
    store: &Store,
    part: &'static str,
    migrations: &'static [Migration],
) -> Result<usize, StoreError> {
    let own = run(store, STORE_PART, STORE_MIGRATIONS).await?;
    Ok(own + run(store, part, migrations).await?)
}

/// How many of `migrations`, and of [`STORE_MIGRATIONS`] beneath them, have not run yet. Changes nothing.
///
/// # Errors
/// The database is away or refused.
pub async fn pending(
    store: &Store,
    part: &'static str,
    migrations: &'static [Migration],
) -> Result<usize, StoreError> {
    let own = pending_of_part(store, STORE_PART, STORE_MIGRATIONS).await?;
    Ok(own + pending_of_part(store, part, migrations).await?)
}

/// The same as SQL text, for the user's own migrations.
#[must_use]
pub fn print(dialect: Dialect, part: &str, migrations: &[Migration]) -> String {
    let mut text = format!("{TABLE};\n");
    for (part, migrations) in [(STORE_PART, STORE_MIGRATIONS), (part, migrations)] {
        for migration in migrations {
            let sql = sql_of(migration, dialect);
            let Migration { version, name, .. } = migration;
            // Writing to a text cannot fail.
            write!(
                text,
                "\n-- {part} {version}: {name}\n{sql}\nINSERT INTO tidegate_migration (part, \
                 version, name) VALUES ('{part}', {version}, '{name}');\n"
            )
            .ok();
        }
    }
    text
}

fn sql_of(migration: &Migration, dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => migration.postgres,
        Dialect::Sqlite => migration.sqlite,
    }
}

/// How many of `migrations` alone have not run yet. Changes nothing.
///
/// All of them are pending in a database that is there for something else.
///
/// # Errors
/// The database is away or refused.
pub async fn pending_of_part(
    store: &Store,
    part: &'static str,
    migrations: &'static [Migration],
) -> Result<usize, StoreError> {
    let doing = "look which migrations have run";
    let done: Result<Vec<i32>, StoreError> = match store {
        Store::Postgres(postgres) => {
            let ask = sqlx::query_scalar("SELECT version FROM tidegate_migration WHERE part = $1");
            postgres
                .run(doing, move |connection| {
                    Box::pin(ask.bind(part).fetch_all(connection))
                })
                .await
        }
        Store::Sqlite(sqlite) => {
            let ask = sqlx::query_scalar("SELECT version FROM tidegate_migration WHERE part = ?");
            sqlite
                .read(doing, move |connection| {
                    Box::pin(ask.bind(part).fetch_all(connection))
                })
                .await
        }
    };
    let done = match done {
        // Without the table that remembers them none has run.
        Err(StoreError::Schema { .. }) => Vec::new(),
        answered => answered?,
    };
    let open = migrations.iter().filter(|m| !done.contains(&m.version));
    Ok(open.count())
}

async fn run(
    store: &Store,
    part: &'static str,
    migrations: &'static [Migration],
) -> Result<usize, StoreError> {
    let doing = "bring the tables up to date";
    match store {
        Store::Postgres(postgres) => {
            postgres
                .transact(doing, move |connection| {
                    Box::pin(on_postgres(connection, part, migrations))
                })
                .await
        }
        Store::Sqlite(sqlite) => {
            sqlite
                .write(doing, move |connection| {
                    Box::pin(on_sqlite(connection, part, migrations))
                })
                .await
        }
    }
}

async fn on_postgres(
    connection: &mut PgConnection,
    part: &str,
    migrations: &[Migration],
) -> Result<usize, sqlx::Error> {
    // Released with the transaction; the number is ours alone.
    sqlx::raw_sql("SELECT pg_advisory_xact_lock(7461657467617465)")
        .execute(&mut *connection)
        .await?;
    sqlx::raw_sql(TABLE).execute(&mut *connection).await?;
    let done = sqlx::query("SELECT version FROM tidegate_migration WHERE part = $1")
        .bind(part)
        .fetch_all(&mut *connection)
        .await?;
    let done: BTreeSet<i32> = done.iter().map(|row| row.get(0)).collect();
    let mut ran = 0;
    for migration in migrations.iter().filter(|m| !done.contains(&m.version)) {
        sqlx::raw_sql(migration.postgres)
            .execute(&mut *connection)
            .await?;
        sqlx::query("INSERT INTO tidegate_migration (part, version, name) VALUES ($1, $2, $3)")
            .bind(part)
            .bind(migration.version)
            .bind(migration.name)
            .execute(&mut *connection)
            .await?;
        ran += 1;
    }
    Ok(ran)
}

async fn on_sqlite(
    connection: &mut SqliteConnection,
    part: &str,
    migrations: &[Migration],
) -> Result<usize, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(TABLE))
        .execute(&mut *connection)
        .await?;
    let done = sqlx::query("SELECT version FROM tidegate_migration WHERE part = ?")
        .bind(part)
        .fetch_all(&mut *connection)
        .await?;
    let done: BTreeSet<i32> = done.iter().map(|row| row.get(0)).collect();
    let mut ran = 0;
    for migration in migrations.iter().filter(|m| !done.contains(&m.version)) {
        sqlx::raw_sql(migration.sqlite)
            .execute(&mut *connection)
            .await?;
        sqlx::query("INSERT INTO tidegate_migration (part, version, name) VALUES (?, ?, ?)")
            .bind(part)
            .bind(migration.version)
            .bind(migration.name)
            .execute(&mut *connection)
            .await?;
        ran += 1;
    }
    Ok(ran)
}
