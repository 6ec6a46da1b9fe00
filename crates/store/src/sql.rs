//! Statements on either database: the values they take, the columns they give, how they are held together.
//!
//! A part writes its Rust once, generic over [`SqlConnection`], and runs it through [`SqlDatabase::call`].
//! Placeholders are `$1`, `$2` on both databases, and columns go by number.

mod columns;

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::types::Uuid;
use sqlx::{Arguments, PgConnection, SqlSafeStr, SqliteConnection};
use tidegate_core::EventId;

pub use columns::{FromColumns, OwnColumns, SqlColumn, event_id};

use crate::{BoxFuture, StoreError};

/// How the statements of one call are held together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlAccess {
    /// One statement that changes nothing.
    Read,
    /// Several statements that see one moment and change nothing.
    Snapshot,
    /// The same over whole tables.
    LongSnapshot,
    /// One statement, or several that need no transaction.
    Write,
    /// Several statements that happen together.
    Transact,
}

/// A handle on one of the two databases, which runs calls on its connections.
pub trait SqlDatabase: Send + Sync {
    /// Its connections.
    type Connection: SqlConnection;

    /// Runs `call` with its statements held together as `access` says.
    ///
    /// A call that writes returns once it would survive a power cut. If canceled, it may or may not happen.
    ///
    /// # Errors
    /// The database is away, took too long, or refused.
    fn call<T, F>(
        &self,
        access: SqlAccess,
        doing: &'static str,
        call: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Self::Connection) -> SqlFuture<'c, T> + Send + 'static;
}

impl SqlDatabase for crate::Sqlite {
    type Connection = SqliteConnection;

    async fn call<T, F>(
        &self,
        access: SqlAccess,
        doing: &'static str,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> SqlFuture<'c, T> + Send + 'static,
    {
        match access {
            SqlAccess::Read | SqlAccess::Snapshot => self.read(doing, call).await,
            SqlAccess::LongSnapshot => self.long_read(doing, call).await,
            SqlAccess::Write | SqlAccess::Transact => self.write(doing, call).await,
        }
    }
}

impl SqlDatabase for crate::Postgres {
    type Connection = PgConnection;

    async fn call<T, F>(
        &self,
        access: SqlAccess,
        doing: &'static str,
        call: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> SqlFuture<'c, T> + Send + 'static,
    {
        match access {
            SqlAccess::Read | SqlAccess::Write => self.run(doing, call).await,
            SqlAccess::Transact => self.transact(doing, call).await,
            SqlAccess::Snapshot => self.snapshot(doing, call).await,
            SqlAccess::LongSnapshot => self.long_snapshot(doing, call).await,
        }
    }
}

/// A value that a statement takes.
pub trait SqlValue: Sync {
    /// Adds it to the values for PostgreSQL.
    ///
    /// # Errors
    /// It has no form there.
    fn to_postgres(&self, into: &mut PgArguments) -> Result<(), BoxDynError>;

    /// Adds it to the values for SQLite.
    ///
    /// # Errors
    /// It has no form there.
    fn to_sqlite(&self, into: &mut SqliteArguments) -> Result<(), BoxDynError>;
}

/// The values of a statement, by number.
pub type SqlValues<'a> = [&'a dyn SqlValue];

macro_rules! values {
    ($($value:ty),*) => {$(
        impl SqlValue for $value {
            fn to_postgres(&self, into: &mut PgArguments) -> Result<(), BoxDynError> {
                into.add(self)
            }

            fn to_sqlite(&self, into: &mut SqliteArguments) -> Result<(), BoxDynError> {
                into.add(self)
            }
        }
    )*};
}

values!(
    bool,
    i32,
    i64,
    &str,
    String,
    Option<&str>,
    Option<i64>,
    Option<String>,
    Option<&[u8]>
);

impl SqlValue for EventId {
    fn to_postgres(&self, into: &mut PgArguments) -> Result<(), BoxDynError> {
        into.add(Uuid::from_u128(self.as_u128()))
    }

    fn to_sqlite(&self, into: &mut SqliteArguments) -> Result<(), BoxDynError> {
        into.add(self.to_string())
    }
}

/// A list as a statement takes it: an array on PostgreSQL, JSON on SQLite.
#[derive(Debug)]
pub struct SqlList<'a, T>(pub &'a [T]);

macro_rules! lists {
    ($($item:ty),*) => {$(
        impl SqlValue for SqlList<'_, $item> {
            fn to_postgres(&self, into: &mut PgArguments) -> Result<(), BoxDynError> {
                into.add(self.0)
            }

            fn to_sqlite(&self, into: &mut SqliteArguments) -> Result<(), BoxDynError> {
                into.add(serde_json::to_string(self.0)?)
            }
        }
    )*};
}

lists!(i64, String);

impl SqlValue for SqlList<'_, EventId> {
    fn to_postgres(&self, into: &mut PgArguments) -> Result<(), BoxDynError> {
        let ids = self.0.iter().map(|id| Uuid::from_u128(id.as_u128()));
        into.add(ids.collect::<Vec<Uuid>>())
    }

    fn to_sqlite(&self, into: &mut SqliteArguments) -> Result<(), BoxDynError> {
        into.add(serde_json::to_string(self.0)?)
    }
}

/// A call on a connection, on its way.
pub type SqlFuture<'c, T> = BoxFuture<'c, Result<T, sqlx::Error>>;

/// A connection to either database.
pub trait SqlConnection: Send {
    /// Its rows.
    type Row: OwnColumns + Send + Sync;

    /// True for what is in the list `$1`.
    const IN_LIST: &'static str;
    /// Locks the rows of a SELECT until the end of the transaction; SQLite has one writer anyway.
    const FOR_UPDATE: &'static str;

    /// All rows of a statement.
    fn rows(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Vec<Self::Row>>;

    /// The first row of a statement, if there is one.
    fn first_row(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Option<Self::Row>>;

    /// Runs a statement, and says how many rows it changed.
    fn execute(&mut self, sql: impl SqlSafeStr, values: &SqlValues<'_>) -> SqlFuture<'_, u64>;

    /// Runs several statements that take no values.
    fn execute_raw(&mut self, sql: impl SqlSafeStr) -> SqlFuture<'_, ()>;

    /// The first row of a statement, which must be there.
    fn one_row(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Self::Row> {
        let row = self.first_row(sql, values);
        Box::pin(async move { row.await?.ok_or(sqlx::Error::RowNotFound) })
    }

    /// The first columns of all rows.
    fn fetch_all<T: FromColumns>(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Vec<T>> {
        let rows = self.rows(sql, values);
        Box::pin(async move { rows.await?.iter().map(T::from_columns).collect() })
    }

    /// The first columns of the first row, if there is one.
    fn fetch_optional<T: FromColumns>(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Option<T>> {
        let row = self.first_row(sql, values);
        Box::pin(async move { row.await?.as_ref().map(T::from_columns).transpose() })
    }

    /// The first columns of the first row, which must be there.
    fn fetch_one<T: FromColumns>(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, T> {
        let row = self.one_row(sql, values);
        Box::pin(async move { T::from_columns(&row.await?) })
    }
}

macro_rules! connection {
    ($connection:ty, $row:ty, $add:ident, $in_list:literal, $for_update:literal) => {
        impl SqlConnection for $connection {
            type Row = $row;

            const IN_LIST: &'static str = $in_list;
            const FOR_UPDATE: &'static str = $for_update;

            fn rows(
                &mut self,
                sql: impl SqlSafeStr,
                values: &SqlValues<'_>,
            ) -> SqlFuture<'_, Vec<$row>> {
                let (sql, values) = (
                    sql.into_sql_str(),
                    arguments(values, |value, into| value.$add(into)),
                );
                Box::pin(async move { sqlx::query_with(sql, values?).fetch_all(self).await })
            }

            fn first_row(
                &mut self,
                sql: impl SqlSafeStr,
                values: &SqlValues<'_>,
            ) -> SqlFuture<'_, Option<$row>> {
                let (sql, values) = (
                    sql.into_sql_str(),
                    arguments(values, |value, into| value.$add(into)),
                );
                Box::pin(async move { sqlx::query_with(sql, values?).fetch_optional(self).await })
            }

            fn execute(
                &mut self,
                sql: impl SqlSafeStr,
                values: &SqlValues<'_>,
            ) -> SqlFuture<'_, u64> {
                let (sql, values) = (
                    sql.into_sql_str(),
                    arguments(values, |value, into| value.$add(into)),
                );
                let done = async move { sqlx::query_with(sql, values?).execute(self).await };
                Box::pin(async move { Ok(done.await?.rows_affected()) })
            }

            fn execute_raw(&mut self, sql: impl SqlSafeStr) -> SqlFuture<'_, ()> {
                let sql = sqlx::raw_sql(sql.into_sql_str());
                Box::pin(async move { sql.execute(self).await.map(drop) })
            }
        }
    };
}

connection!(PgConnection, PgRow, to_postgres, "= ANY ($1)", "FOR UPDATE");
connection!(
    SqliteConnection,
    SqliteRow,
    to_sqlite,
    "IN (SELECT value FROM json_each($1))",
    ""
);

fn arguments<A: Arguments>(
    values: &SqlValues<'_>,
    add: impl Fn(&dyn SqlValue, &mut A) -> Result<(), BoxDynError>,
) -> Result<A, sqlx::Error> {
    let mut arguments = A::default();
    for value in values {
        add(*value, &mut arguments).map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}
