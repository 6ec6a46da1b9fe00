//! Statements on either database: the values they take and the columns they give.

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::types::Uuid;
use sqlx::{Arguments, Decode, PgConnection, Postgres, SqlSafeStr, Sqlite, SqliteConnection, Type};
use tidegate_core::EventId;
use tidegate_store::{BoxFuture, sqlx};

use super::decode::{OwnColumns, QueueRow};

/// A value that a statement takes.
pub(super) trait SqlValue: Sync {
    fn to_postgres(&self, into: &mut PgArguments) -> Result<(), BoxDynError>;
    fn to_sqlite(&self, into: &mut SqliteArguments) -> Result<(), BoxDynError>;
}

/// The values of a statement, by number.
pub(super) type SqlValues<'a> = [&'a dyn SqlValue];

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
    Option<String>
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
pub(super) struct SqlList<'a, T>(pub(super) &'a [T]);

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

/// A column that both databases decode.
pub(super) trait SqlColumn:
    Send
    + 'static
    + Type<Postgres>
    + Type<Sqlite>
    + for<'r> Decode<'r, Postgres>
    + for<'r> Decode<'r, Sqlite>
{
}

impl<T> SqlColumn for T where
    T: Send
        + 'static
        + Type<Postgres>
        + Type<Sqlite>
        + for<'r> Decode<'r, Postgres>
        + for<'r> Decode<'r, Sqlite>
{
}

/// The first columns of a row: one value, or a tuple.
pub(super) trait FromColumns: Sized + Send + 'static {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error>;
}

macro_rules! scalars {
    ($($scalar:ty),*) => {$(
        impl FromColumns for $scalar {
            fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
                row.get(0)
            }
        }
    )*};
}

scalars!(bool, i32, i64, String, Option<i64>);

impl<A: SqlColumn, B: SqlColumn> FromColumns for (A, B) {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok((row.get(0)?, row.get(1)?))
    }
}

impl<A: SqlColumn, B: SqlColumn, C: SqlColumn> FromColumns for (A, B, C) {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    }
}

/// A call on a connection, on its way.
pub(super) type SqlFuture<'c, T> = BoxFuture<'c, Result<T, sqlx::Error>>;

/// A connection to either database.
pub(super) trait SqlConnection: Send {
    type Row: QueueRow + Send + Sync;

    /// True for what is in the list `$1`.
    const IN_LIST: &'static str;

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

    fn one_row(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Self::Row> {
        let row = self.first_row(sql, values);
        Box::pin(async move { row.await?.ok_or(sqlx::Error::RowNotFound) })
    }

    fn fetch_all<T: FromColumns>(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Vec<T>> {
        let rows = self.rows(sql, values);
        Box::pin(async move { rows.await?.iter().map(T::from_columns).collect() })
    }

    fn fetch_optional<T: FromColumns>(
        &mut self,
        sql: impl SqlSafeStr,
        values: &SqlValues<'_>,
    ) -> SqlFuture<'_, Option<T>> {
        let row = self.first_row(sql, values);
        Box::pin(async move { row.await?.as_ref().map(T::from_columns).transpose() })
    }

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
    ($connection:ty, $row:ty, $add:ident, $in_list:literal) => {
        impl SqlConnection for $connection {
            type Row = $row;

            const IN_LIST: &'static str = $in_list;

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

connection!(PgConnection, PgRow, to_postgres, "= ANY ($1)");
connection!(
    SqliteConnection,
    SqliteRow,
    to_sqlite,
    "IN (SELECT value FROM json_each($1))"
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
