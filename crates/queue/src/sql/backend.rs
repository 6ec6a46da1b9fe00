//! One of the two databases, as the calls of the queue need it.
//!
//! A [`SqlBackend`] says how a database holds statements together. The statements themselves are on its
//! connection, in one trait per part of the queue.

use std::fmt;

use tidegate_store::sql::{SqlAccess, SqlFuture};
use tidegate_store::{StoreError, StoreTx};

use super::claim::{ClaimScan, ClaimStatements};
use super::inspect::InspectStatements;
use super::maintain::MaintainStatements;
use super::projection::ProjectionStatements;
use super::settle::SettleStatements;
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::Settlement;

/// A connection with all statements of the queue.
pub(super) trait QueueConnection:
    ClaimStatements + SettleStatements + MaintainStatements + ProjectionStatements + InspectStatements
{
}

impl<C> QueueConnection for C where
    C: ClaimStatements
        + SettleStatements
        + MaintainStatements
        + ProjectionStatements
        + InspectStatements
{
}

/// One of the two databases, with what the queue remembers of its tables.
pub(super) trait SqlBackend: fmt::Debug + Send + Sync + 'static {
    type Connection: QueueConnection;

    /// Makes names mean our tables again in a transaction that was lent.
    const OUR_TABLES: Option<&'static str>;
    /// Whether a result needs a transaction of its own, where none was lent.
    const RECORDS_IN_TRANSACTION: bool;

    fn call<T, F>(
        &self,
        access: SqlAccess,
        doing: &'static str,
        call: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut Self::Connection) -> SqlFuture<'c, T> + Send + 'static;

    /// The connection of a transaction; none where it is of the other database.
    fn connection(tx: &mut StoreTx) -> Option<&mut Self::Connection>;

    /// The table of side effects.
    fn inbox(&self) -> &str;

    /// How these events are published.
    fn publish_access(&self, events: &[NewEvent]) -> SqlAccess;

    /// The number that no batch is below, and the last that was seen to be given out. A database with one
    /// writer does not need to remember any of these.
    fn known_batches(&self) -> (i64, i64) {
        (0, 0)
    }

    /// A claim has ended.
    fn note_claim(&self, _scan: &ClaimScan) {}

    /// The newest version of the registry that was read.
    fn known_registry(&self) -> u64 {
        0
    }

    /// A version of the registry was read, when this one was known before.
    fn note_registry(&self, _known: u64, _version: u64) {}

    fn settle(
        &self,
        settlement: &Settlement,
        now: i64,
    ) -> impl Future<Output = Result<Vec<i64>, QueueError>> + Send;

    fn sequence(&self, limit: u32) -> impl Future<Output = Result<u64, QueueError>> + Send;

    /// A clean-up has ended.
    fn after_clean(&self) -> impl Future<Output = ()> + Send;

    fn wake(&self);
    fn wakes_sent(&self) -> impl Future<Output = ()> + Send;
    fn woken(&self) -> impl Future<Output = ()> + Send;
}
