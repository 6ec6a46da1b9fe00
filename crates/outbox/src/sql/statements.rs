//! The statements on one outbox, in the words of its database.
//!
//! On PostgreSQL the time is the server's. On SQLite, which has one host, it is the last value of a statement.

use std::sync::Arc;

use tidegate_store::sqlx::AssertSqlSafe;

use crate::OutboxOptions;

/// A statement that names the table of its outbox.
#[derive(Debug, Clone)]
pub(super) struct Statement(Arc<str>);

impl Statement {
    /// The text, for the driver. The names in it were checked with the options.
    pub(super) fn sql(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.0))
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) renew_relay: Statement,
    pub(super) renew_buckets: Statement,
    pub(super) count_relays: Statement,
    pub(super) acquire: Statement,
    pub(super) release: Statement,
    pub(super) leave: [Statement; 2],
    pub(super) claim: Statement,
    pub(super) note_claim: Statement,
    pub(super) forget_claim: Statement,
    pub(super) held: Statement,
    pub(super) settle_batch: Statement,
    pub(super) settle_row: Statement,
    pub(super) list: Statement,
    pub(super) show: Statement,
    pub(super) retry: Statement,
    pub(super) retry_row: Statement,
    pub(super) purge: Statement,
    pub(super) clean: Statement,
    pub(super) forget_relays: [Statement; 2],
    pub(super) waiting: Statement,
    pub(super) dead: Statement,
    pub(super) claimed: Statement,
    pub(super) recount: Statement,
}

/// The words in which the two databases differ.
pub(super) struct Words {
    pub(super) table: String,
    pub(super) component: String,
    pub(super) buckets: u32,
}

impl Words {
    pub(super) fn of(options: &OutboxOptions) -> Self {
        Self {
            table: options.table.clone(),
            component: options.component(),
            buckets: options.buckets,
        }
    }

    /// A statement with its names filled in.
    pub(super) fn fill(&self, text: &str) -> Statement {
        let text = text
            .replace("{table}", &self.table)
            .replace("{lease}", &format!("'{}/'", self.component))
            .replace("{buckets}", &self.buckets.to_string());
        Statement(text.into())
    }
}
