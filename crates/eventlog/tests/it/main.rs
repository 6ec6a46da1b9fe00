//! The event log from outside, on every database.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read addresses from the environment and run in real time"
)]

mod conformance;
mod databases;
mod disk_full;
mod paths;

/// Each rule as a test of its own on SQLite, and in `needs_postgres` on PostgreSQL.
macro_rules! on_every_database {
    ($($rule:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[test]
                fn $rule() {
                    crate::databases::on_sqlite(super::$rule);
                }
            )*
        }

        mod needs_postgres {
            $(
                #[test]
                #[ignore = "needs PostgreSQL"]
                fn $rule() {
                    crate::databases::on_postgres(super::$rule);
                }
            )*
        }
    };
}
pub(crate) use on_every_database;
