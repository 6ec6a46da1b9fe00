//! The tables of one outbox.
//!
//! The SQL names the table, the relay and the buckets, so it is made for each outbox. Those settings are
//! remembered beside the migration: they cannot be changed under the rows.

use tidegate_store::migrate as steps;
use tidegate_store::sql::{SqlAccess, SqlConnection, SqlDatabase};
use tidegate_store::sqlx::{self, AssertSqlSafe};
use tidegate_store::{Dialect, Store, StoreError};

use crate::{EventOrder, OutboxError, OutboxOptions};

const VERSION: i32 = 1;
const REMEMBER: &str = "INSERT INTO tidegate_migration (part, version, name) VALUES ($1, $2, $3)";
const REMEMBERED: &str = "SELECT name FROM tidegate_migration WHERE part = $1 AND version = $2";

/// Brings the tables of this outbox up to date, those of the store beneath them included, and gives how
/// many migrations ran.
///
/// Returns once they are committed. Two processes at once take turns; calling it again does nothing.
///
/// # Errors
/// The table was made with other settings; the database is away, or refused.
pub async fn migrate(store: &Store, options: &OutboxOptions) -> Result<usize, OutboxError> {
    options.check()?;
    let own = steps::migrate(store, "outbox", &[]).await?;
    if made_with(store, options).await?.is_none() {
        let made = match store {
            Store::Postgres(postgres) => make(postgres, Dialect::Postgres, options).await,
            Store::Sqlite(sqlite) => make(sqlite, Dialect::Sqlite, options).await,
        };
        if let Err(error) = made {
            // Another process may have been quicker, or the table may be that of another program.
            if made_with(store, options).await?.is_none() {
                return Err(match is_there(store, &options.table).await {
                    true => OutboxError::OtherTable {
                        table: options.table.clone(),
                        made: "migrations of another program".to_owned(),
                        wanted: settings_of(options),
                    },
                    false => error.into(),
                });
            }
        }
        return Ok(own + 1);
    }
    check(store, options).await?;
    Ok(own)
}

/// How many migrations of this outbox have not run yet. Changes nothing.
///
/// # Errors
/// The database is away, or refused.
pub async fn pending(store: &Store, options: &OutboxOptions) -> Result<usize, OutboxError> {
    let own = steps::pending(store, "outbox", &[]).await?;
    let made = made_with(store, options).await?;
    Ok(own + usize::from(made.is_none()))
}

/// The SQL of all migrations, for the user's own.
///
/// # Errors
/// The settings cannot be used.
pub fn migration_sql(dialect: Dialect, options: &OutboxOptions) -> Result<String, OutboxError> {
    options.check()?;
    let (part, settings) = (part_of(options), settings_of(options));
    let store = steps::print(dialect, "outbox", &[]);
    let own = own_sql(dialect, options);
    Ok(format!(
        "{store}\n-- {part} {VERSION}: {settings}\n{own}\nINSERT INTO tidegate_migration (part, version, \
         name) VALUES ('{part}', {VERSION}, '{settings}');\n"
    ))
}

/// Whether the table was made with these settings.
pub(super) async fn check(store: &Store, options: &OutboxOptions) -> Result<(), OutboxError> {
    options.check()?;
    let wanted = settings_of(options);
    match made_with(store, options).await? {
        Some(made) if made == wanted => Ok(()),
        Some(made) => Err(OutboxError::OtherTable {
            table: options.table.clone(),
            made,
            wanted,
        }),
        None => Err(OutboxError::Store(StoreError::Schema {
            doing: "open the outbox",
            source: sqlx::Error::RowNotFound,
        })),
    }
}

async fn make<D: SqlDatabase>(
    database: &D,
    dialect: Dialect,
    options: &OutboxOptions,
) -> Result<(), StoreError> {
    let (part, settings) = (part_of(options), settings_of(options));
    let sql = own_sql(dialect, options);
    let doing = "make the tables of the outbox";
    let made = database.call(SqlAccess::Transact, doing, move |connection| {
        Box::pin(async move {
            connection.execute_raw(AssertSqlSafe(sql)).await?;
            let row = connection.execute(REMEMBER, &[&part, &VERSION, &settings]);
            row.await.map(drop)
        })
    });
    made.await
}

/// The settings that the table was made with; none where it was not made yet.
async fn made_with(store: &Store, options: &OutboxOptions) -> Result<Option<String>, OutboxError> {
    let part = part_of(options);
    let doing = "look how the outbox was made";
    let found = match store {
        Store::Postgres(postgres) => {
            let ask = postgres.run(doing, move |connection| {
                Box::pin(async move {
                    connection
                        .fetch_optional(REMEMBERED, &[&part, &VERSION])
                        .await
                })
            });
            ask.await
        }
        Store::Sqlite(sqlite) => {
            let ask = sqlite.read(doing, move |connection| {
                Box::pin(async move {
                    connection
                        .fetch_optional(REMEMBERED, &[&part, &VERSION])
                        .await
                })
            });
            ask.await
        }
    };
    match found {
        // Without the table that remembers them none has run.
        Err(StoreError::Schema { .. }) => Ok(None),
        found => Ok(found?),
    }
}

/// Whether there is a table of this name, whoever made it.
async fn is_there(store: &Store, table: &str) -> bool {
    let doing = "look whether there is a table";
    let ask = AssertSqlSafe(format!("SELECT count(*) FROM {table} WHERE false"));
    let counted: Result<i64, StoreError> = match store {
        Store::Postgres(postgres) => {
            let ask = postgres.run(doing, move |connection| {
                Box::pin(async move { connection.fetch_one(ask, &[]).await })
            });
            ask.await
        }
        Store::Sqlite(sqlite) => {
            let ask = sqlite.read(doing, move |connection| {
                Box::pin(async move { connection.fetch_one(ask, &[]).await })
            });
            ask.await
        }
    };
    counted.is_ok()
}

fn part_of(options: &OutboxOptions) -> String {
    format!("outbox:{}", options.table)
}

/// The settings that the tables have in them.
fn settings_of(options: &OutboxOptions) -> String {
    let order = match options.order {
        EventOrder::ById => "by-id",
        EventOrder::Strict => "strict",
    };
    format!(
        "relay {}, {} buckets, order {order}",
        options.name, options.buckets
    )
}

fn own_sql(dialect: Dialect, options: &OutboxOptions) -> String {
    let mut text = match dialect {
        Dialect::Postgres => include_str!("outbox-1.postgres.sql").to_owned(),
        Dialect::Sqlite => include_str!("outbox-1.sqlite.sql").to_owned(),
    };
    if (dialect, options.order) == (Dialect::Postgres, EventOrder::Strict) {
        text.push_str(include_str!("outbox-1-strict.postgres.sql"));
    }
    text.replace("{table}", &options.table)
        .replace("{component}", &options.component())
        .replace("{buckets}", &options.buckets.to_string())
}
