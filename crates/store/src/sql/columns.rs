//! The columns that statements give.

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Uuid;
use sqlx::{Decode, Row, Type};
use tidegate_core::{EventId, ParseEventIdError};

/// A column that both databases decode.
pub trait SqlColumn:
    Send
    + 'static
    + Type<sqlx::Postgres>
    + Type<sqlx::Sqlite>
    + for<'r> Decode<'r, sqlx::Postgres>
    + for<'r> Decode<'r, sqlx::Sqlite>
{
}

impl<T> SqlColumn for T where
    T: Send
        + 'static
        + Type<sqlx::Postgres>
        + Type<sqlx::Sqlite>
        + for<'r> Decode<'r, sqlx::Postgres>
        + for<'r> Decode<'r, sqlx::Sqlite>
{
}

/// The columns of a row, as each database has them.
pub trait OwnColumns {
    /// A value that both databases keep in the same way.
    ///
    /// # Errors
    /// The column holds something else.
    fn get<T: SqlColumn>(&self, column: usize) -> Result<T, sqlx::Error>;

    /// An id of an event.
    ///
    /// # Errors
    /// The column holds something else.
    fn event_id(&self, column: usize) -> Result<EventId, sqlx::Error>;

    /// A small number.
    ///
    /// # Errors
    /// The column holds something else.
    fn count(&self, column: usize) -> Result<u32, sqlx::Error>;

    /// A text as people are shown it, whatever a foreign program has written.
    ///
    /// # Errors
    /// There is no such column.
    fn shown(&self, column: usize) -> Result<Option<String>, sqlx::Error>;
}

impl OwnColumns for PgRow {
    fn get<T: SqlColumn>(&self, column: usize) -> Result<T, sqlx::Error> {
        self.try_get(column)
    }

    fn event_id(&self, column: usize) -> Result<EventId, sqlx::Error> {
        let id: Uuid = self.try_get(column)?;
        Ok(EventId::from_u128(id.as_u128()))
    }

    fn count(&self, column: usize) -> Result<u32, sqlx::Error> {
        Ok(small(self.try_get::<i32, _>(column)?.into()))
    }

    fn shown(&self, column: usize) -> Result<Option<String>, sqlx::Error> {
        self.try_get(column)
    }
}

impl OwnColumns for SqliteRow {
    fn get<T: SqlColumn>(&self, column: usize) -> Result<T, sqlx::Error> {
        self.try_get(column)
    }

    fn event_id(&self, column: usize) -> Result<EventId, sqlx::Error> {
        event_id(self.try_get(column)?)
    }

    fn count(&self, column: usize) -> Result<u32, sqlx::Error> {
        Ok(small(self.try_get(column)?))
    }

    fn shown(&self, column: usize) -> Result<Option<String>, sqlx::Error> {
        let bytes: Option<Vec<u8>> = self.try_get(column)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// An id of an event as SQLite keeps it.
///
/// # Errors
/// The text is none.
pub fn event_id(text: &str) -> Result<EventId, sqlx::Error> {
    let id = text.parse();
    id.map_err(|error: ParseEventIdError| sqlx::Error::Decode(Box::new(error)))
}

fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// The first columns of a row: one value, or a tuple.
pub trait FromColumns: Sized + Send + 'static {
    /// Reads them.
    ///
    /// # Errors
    /// A column holds something else.
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

scalars!(bool, i32, i64, String, Option<i64>, Option<String>);

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
