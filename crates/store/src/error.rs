//! Answers of a database other than rows.

use std::time::Duration;

use sqlx::error::ErrorKind;
use tidegate_core::{Classify, Code, Failure, FailureClass};

/// A call to the database that gave no rows.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address names no database we know.
    #[error("store address `{url}` cannot be used: {why}")]
    Address {
        /// The address, without its password.
        url: String,
        /// The problem with it.
        why: String,
    },
    /// The database could not be reached, or went away in the middle.
    #[error("the database is away while trying to {doing}")]
    Away {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the driver.
        #[source]
        source: sqlx::Error,
    },
    /// No answer came in time.
    #[error("the database gave no answer within {limit:?} while trying to {doing}")]
    Timeout {
        /// The operation that failed.
        doing: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It lost against somebody else at the same time; nothing happened.
    #[error("another transaction was in the way while trying to {doing}")]
    Conflict {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the driver.
        #[source]
        source: sqlx::Error,
    },
    /// A table or column is not there: the migrations have not run.
    #[error("the tables do not fit while trying to {doing}; have the migrations run?")]
    Schema {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the driver.
        #[source]
        source: sqlx::Error,
    },
    /// The database looked at it and refused.
    #[error("the database refused to {doing}")]
    Refused {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the driver.
        #[source]
        source: sqlx::Error,
    },
    /// It failed before the commit was asked for, so nothing of the transaction happened.
    #[error("nothing of the transaction happened")]
    Undone {
        /// The error that came first.
        #[source]
        source: Box<StoreError>,
    },
    /// The file is no database, or does not hold the pages that the database has written.
    #[error("the database is damaged, as was seen while trying to {doing}")]
    Damaged {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the driver.
        #[source]
        source: sqlx::Error,
    },
    /// The database cannot write: it is full or read-only.
    #[error("the database cannot be used, as was seen while trying to {doing}")]
    Broken {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the driver.
        #[source]
        source: sqlx::Error,
    },
}

impl StoreError {
    /// Whether it may have been carried out all the same: the answer is what got lost.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::Away { source, .. } => !matches!(
                source,
                sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Configuration(_)
            ),
            Self::Timeout { .. } => true,
            Self::Undone { .. }
            | Self::Address { .. }
            | Self::Conflict { .. }
            | Self::Schema { .. }
            | Self::Refused { .. }
            | Self::Damaged { .. }
            | Self::Broken { .. } => false,
        }
    }

    /// The same, where the commit was not asked for yet: whatever failed, nothing happened.
    #[must_use]
    pub fn undone(self) -> Self {
        if self.may_have_happened() {
            let source = Box::new(self);
            Self::Undone { source }
        } else {
            self
        }
    }

    /// The same for each of those whose commit failed together: an error that is shared cannot be moved,
    /// so what is beneath is its text.
    pub(crate) fn like(doing: &'static str, shared: &sqlx::Error) -> Self {
        let source = sqlx::Error::Io(std::io::Error::other(shared.to_string()));
        let code = shared.as_database_error().and_then(|error| error.code());
        let code = code.and_then(|code| code.parse::<u32>().ok());
        // A disk that fails in the middle of a commit tells nobody what it has kept.
        if code.is_some_and(|code| code & 0xff == 10) {
            return Self::Away { doing, source };
        }
        Self::of_kind(kind(shared), doing, source)
    }

    /// An operation panicked before its commit, and nothing of it happened. It would do so again.
    pub(crate) fn panicked(doing: &'static str, panic: String) -> Self {
        let source = sqlx::Error::Io(std::io::Error::other(panic));
        Self::Refused { doing, source }
    }

    /// The driver's error in our words.
    pub fn of(doing: &'static str, source: sqlx::Error) -> Self {
        Self::of_kind(kind(&source), doing, source)
    }

    fn of_kind(kind: Kind, doing: &'static str, source: sqlx::Error) -> Self {
        match kind {
            Kind::Away => Self::Away { doing, source },
            Kind::Conflict => Self::Conflict { doing, source },
            Kind::Schema => Self::Schema { doing, source },
            Kind::Refused => Self::Refused { doing, source },
            Kind::Broken => Self::Broken { doing, source },
            Kind::Damaged => Self::Damaged { doing, source },
        }
    }
}

impl StoreError {
    /// The code by which people and metrics know it.
    #[must_use]
    pub fn code(&self) -> Code {
        Code::from_static(match self {
            Self::Address { .. } => "store.address",
            // error-page: store.away
            Self::Away { .. } | Self::Undone { .. } => "store.away",
            // error-page: store.timeout
            Self::Timeout { .. } => "store.timeout",
            Self::Conflict { .. } => "store.conflict",
            Self::Schema { .. } => "store.schema",
            Self::Refused { .. } => "store.refused",
            // error-page: store.broken
            Self::Broken { .. } => "store.broken",
            // error-page: store.damaged
            Self::Damaged { .. } => "store.damaged",
        })
    }

    /// Advice for people.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Address { .. } => Some(
                "write `store.url` as sqlite://./data/tidegate.db or postgres://user:password@host/database",
            ),
            Self::Away { .. } => Some(
                "is the server up, and are host, user, password and database of `store.url` right?",
            ),
            Self::Timeout { .. } => Some(OUTCOME_UNKNOWN),
            Self::Conflict { .. } | Self::Undone { .. } => Some("nothing happened; try again"),
            Self::Schema { .. } => {
                Some("run `tidegate queue migrate`; `--print` shows the SQL instead")
            }
            Self::Refused { .. } => None,
            Self::Damaged { .. } => Some(
                "stop everything that uses it and copy the file and its `-wal` before anything else; \
                 then restore a backup, or save with `sqlite3 FILE .recover` whatever can be read",
            ),
            Self::Broken { .. } => Some(
                "see to the disk and the rights of the database; nothing that was acknowledged is lost",
            ),
        }
    }
}

/// The advice where the answer got lost.
pub const OUTCOME_UNKNOWN: &str = "it may or may not have happened; look before doing it again";

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::of(&error, error.code(), error.hint().map(str::to_owned))
    }
}

impl Classify for StoreError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Away { .. } | Self::Timeout { .. } | Self::Conflict { .. } => {
                FailureClass::Transient
            }
            Self::Undone { source } => source.class(),
            Self::Refused { .. } => FailureClass::Permanent,
            Self::Address { .. }
            | Self::Schema { .. }
            | Self::Damaged { .. }
            | Self::Broken { .. } => FailureClass::System,
        }
    }
}

enum Kind {
    Away,
    Conflict,
    Schema,
    Refused,
    Broken,
    Damaged,
}

fn kind(error: &sqlx::Error) -> Kind {
    let Some(database) = error.as_database_error() else {
        // Whatever else the driver says without the database is about the connection.
        let is_about_rows = matches!(
            error,
            sqlx::Error::RowNotFound
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::Encode(_)
                | sqlx::Error::TypeNotFound { .. }
        );
        let is_about_tables = matches!(
            error,
            sqlx::Error::ColumnNotFound(_) | sqlx::Error::ColumnIndexOutOfBounds { .. }
        );
        return match (is_about_rows, is_about_tables) {
            (true, _) => Kind::Refused,
            (false, true) => Kind::Schema,
            (false, false) => Kind::Away,
        };
    };
    if !matches!(database.kind(), ErrorKind::Other) {
        return Kind::Refused;
    }
    let code = database.code().unwrap_or_default();
    if database
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .is_some()
    {
        postgres_kind(&code)
    } else {
        sqlite_kind(&code, database.message())
    }
}

/// A statement that was prepared, and is not any more.
const UNKNOWN_STATEMENT: &str = "26000";

/// Whether the connection has lost what the driver had prepared on it.
pub(crate) fn is_unknown_statement(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some(UNKNOWN_STATEMENT)
}

fn postgres_kind(code: &str) -> Kind {
    match code {
        // Serialization, deadlock, and a lock that was not had in time.
        "40001" | "40P01" | "55P03" => Kind::Conflict,
        // The prepared statements are gone: a caller had the connection. Another connection has its own.
        UNKNOWN_STATEMENT => Kind::Conflict,
        // Canceled by its own time limit: somebody else was in the way, or the server is slow.
        "57014" => Kind::Conflict,
        "53100" | "25006" => Kind::Broken,
        // Corrupted data, and a corrupted index.
        "XX001" | "XX002" => Kind::Damaged,
        // A statement of the transaction failed before, and whoever sent it went on.
        "25P02" => Kind::Refused,
        _ => match code.get(..2).unwrap_or_default() {
            // Connections, resources, operator intervention, an ended idle transaction.
            "08" | "53" | "57" | "25" => Kind::Away,
            "28" => Kind::Away,
            "42" | "3F" => Kind::Schema,
            "58" | "XX" => Kind::Broken,
            _ => Kind::Refused,
        },
    }
}

fn sqlite_kind(code: &str, message: &str) -> Kind {
    // The primary code is the low byte of the extended one.
    match code.parse::<u32>().unwrap_or(0) & 0xff {
        5 | 6 => Kind::Conflict,
        // Malformed, and no database at all.
        11 | 26 => Kind::Damaged,
        8 | 10 | 13 | 14 => Kind::Broken,
        1 if message.starts_with("no such") => Kind::Schema,
        _ => Kind::Refused,
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection, SqliteConnection};

    use super::*;

    #[test]
    fn a_commit_that_failed_for_many_is_told_to_each_by_its_kind() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let failure = runtime.map(|runtime| {
            runtime.block_on(async {
                let mut connection = SqliteConnection::connect("sqlite::memory:").await?;
                let full = "PRAGMA max_page_count = 2; CREATE TABLE a (b); CREATE TABLE c (d)";
                sqlx::raw_sql(full).execute(&mut connection).await
            })
        });
        let Ok(Err(full)) = failure else {
            panic!("a full database took it");
        };
        let told = StoreError::like("commit", &full);
        assert!(matches!(told, StoreError::Broken { .. }), "{told:?}");
        assert_eq!(told.class(), FailureClass::System);
        assert!(!told.may_have_happened());
        let lost = sqlx::Error::WorkerCrashed;
        assert!(StoreError::like("commit", &lost).may_have_happened());
    }
}
