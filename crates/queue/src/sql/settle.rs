//! Publishing, and the results of handlers.

use tidegate_core::EventId;
use tidegate_store::sql::SqlConnection;
use tidegate_store::sqlx;

use crate::event::NewEvent;
use crate::port::HandlerCommit;

/// The handler under which published ids are remembered; no handler can have it.
pub(super) const PUBLISHER: &str = "";

/// The outcome of recording a result.
pub(super) enum Recorded {
    /// All of it stands, once it is committed.
    Whole,
    /// The claim did not hold any more.
    Nothing,
    /// Another event of the same id has done one of the side effects meanwhile.
    Guarded,
}

/// The statements that add events and results.
pub(super) trait SettleStatements: SqlConnection {
    /// Adds events, and gives their numbers.
    fn insert(
        &mut self,
        events: &[NewEvent],
        now: i64,
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// Remembers that a publisher added the event with this id, and says whether that is new. Somebody who is about
    /// to add the same is waited for.
    fn guard(
        &mut self,
        id: EventId,
        now: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// The fence, the result, the follow-up events and the guards, in a transaction of the caller.
    fn record(
        &mut self,
        commit: &HandlerCommit,
        now: i64,
    ) -> impl Future<Output = Result<Recorded, sqlx::Error>> + Send;
}
