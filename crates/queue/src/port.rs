//! The store of the queue: a door with three implementations.
//!
//! Each method is one transaction. A crash can come between any two calls, and inside a call the
//! database is atomic; so whatever is promised rests on the calls alone, and a simulation that
//! plays crashes between them plays them all.
//!
//! **Invariant:** an event is in exactly one place. Every method that moves it writes the posting in
//! the same transaction. A claim is a lease on an event and moves nothing: an event that is claimed
//! stays where it was in the books, and is shown as in flight while the lease is held.
//!
//! The module `conformance`, behind the feature `model`, holds the rules that an implementation must keep.

mod claim;
mod listing;
mod registry;
mod settle;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::{Account, Books};

pub(crate) use claim::first_token;
pub use claim::{
    Claim, ClaimRequest, Claimed, ClaimedEvent, HandlerFilter, LeaseId, POISON_AFTER,
    POISON_STARVATION,
};
pub use listing::{
    Cleaned, EventFilter, ListedEvent, LocationState, LogEvent, LogPage, QueueLocation, QueueStats,
    QueueStatus,
};
pub use registry::{Lane, Registry};
pub use settle::{Disposition, HandlerCommit, HandlerResult, HandlerState, Settlement, Transition};

pub use crate::recount::QueueRecount;

use crate::QueueError;
use crate::event::NewEvent;
use crate::tx::Tx;

/// The answer of a [`QueueStore`].
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, QueueError>> + Send + 'a>>;

/// A fenced right to do something alone for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leadership {
    /// The work that it is a right to.
    pub name: String,
    /// Larger than that of every owner before.
    pub token: i64,
}

/// Where the queue keeps its events.
///
/// Every method returns once what it did would survive a power cut. A canceled call, and one that
/// fails with [`may_have_happened`](QueueError::may_have_happened), may or may not have happened.
pub trait QueueStore: Send + Sync + fmt::Debug {
    /// Adds events and gives their numbers, in order. Calling it twice adds them twice.
    fn publish<'a>(&'a self, events: &'a [NewEvent]) -> StoreFuture<'a, Vec<i64>>;

    /// Adds an event unless this method added one with its id, and says whether it did. The id is remembered as
    /// long as the event is in the queue or in its log.
    fn publish_once<'a>(&'a self, event: &'a NewEvent) -> StoreFuture<'a, bool>;

    /// Adds events in the caller's transaction: they are there when it commits.
    fn publish_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        events: &'a [NewEvent],
    ) -> StoreFuture<'a, Vec<i64>>;

    /// Begins a transaction.
    fn begin(&self) -> StoreFuture<'_, Tx>;

    /// Claims events that are due, oldest first, never more than asked for.
    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> StoreFuture<'a, Claimed>;

    /// Extends leases by `lease` from now, and gives those that were lost. A lease of zero gives them
    /// back: others take them at once, and they did not run out.
    fn renew<'a>(&'a self, leases: &'a [LeaseId], lease: Duration)
    -> StoreFuture<'a, Vec<LeaseId>>;

    /// Gives a batch a new token, where `token` is still its newest, and says which of its events
    /// are not settled: what to do after a settle nobody answered. None when the batch is gone.
    fn reopen(&self, batch: i64, token: i64) -> StoreFuture<'_, Option<(i64, Vec<i64>)>>;

    /// Moves claimed events on, each only where its claim still holds, and gives the numbers of
    /// those that were not ours any more. Of several claims of one event each is looked at by itself,
    /// and one at most holds; the numbers do not tell them apart. Nothing moves, and the answer is
    /// [`RegistryChanged`](QueueError::RegistryChanged), where the registry is not the one that the
    /// settlement names, or while somebody registers. Once [`register`](Self::register) has
    /// returned, nothing is finalized any more that was decided without whom it added.
    fn settle<'a>(&'a self, settlement: &'a Settlement) -> StoreFuture<'a, Vec<i64>>;

    /// Writes the result of one handler together with what it published and which of its side effects
    /// it did, and commits. It does so in `tx` if there is one. Says whether the claim still held;
    /// nothing is written otherwise.
    fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> StoreFuture<'a, bool>;

    /// Whether a side effect was recorded before; looked up in `tx` if there is one, which needs no
    /// second connection.
    fn is_done<'a>(
        &'a self,
        tx: Option<&'a mut Tx>,
        handler: &'a str,
        event: EventId,
        sub_task: &'a str,
    ) -> StoreFuture<'a, bool>;

    /// Adds handlers to the registry; those that are there stay.
    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> StoreFuture<'a, ()>;

    /// Takes a handler out of the registry, and says whether it was there.
    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> StoreFuture<'a, bool>;

    /// Which handlers every type has, in all processes.
    fn registry(&self) -> StoreFuture<'_, Registry>;

    /// Takes the leadership of `name` for `span`, when nobody has it.
    fn acquire_leadership<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        span: Duration,
    ) -> StoreFuture<'a, Option<Leadership>>;

    /// Keeps leadership for `span` from now, and says whether it was still ours. A span of zero gives
    /// it back.
    fn renew_leadership<'a>(
        &'a self,
        leadership: &'a Leadership,
        span: Duration,
    ) -> StoreFuture<'a, bool>;

    /// Gives positions to events that were finalized since; at most `limit` groups of them. The
    /// caller holds the sequencer's leadership; should two call it all the same, one of them fails.
    fn sequence(&self, limit: u32) -> StoreFuture<'_, u64>;

    /// Events of the log above position `after`, in the order of positions.
    fn read_log(&self, after: i64, limit: u32) -> StoreFuture<'_, LogPage>;

    /// Whether retention has removed completed events: the log does not begin with the first then.
    fn has_removed(&self) -> StoreFuture<'_, bool>;

    /// The position of a projection; 0 for one that has not begun.
    fn projection<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64>;

    /// The positions of all projections.
    fn projections(&self) -> StoreFuture<'_, Vec<(String, i64)>>;

    /// How often a rebuild of a projection was swapped in.
    fn rebuilds<'a>(&'a self, name: &'a str) -> StoreFuture<'a, u64>;

    /// Notes a position for the mark `name` of the projection `of`, unless one that is as low is noted:
    /// once it has returned, nothing above is removed from the log. Says whether the projection has a
    /// position; nothing is noted otherwise, since nobody would take the mark away. It needs no leadership, and
    /// doing it again changes nothing.
    fn note_position<'a>(
        &'a self,
        of: &'a str,
        name: &'a str,
        position: i64,
    ) -> StoreFuture<'a, bool>;

    /// Moves a projection from one position to the next in the transaction that changed its read
    /// model, and commits; nothing of either happens when the leadership or the position is not ours any
    /// more. Says whether it did.
    fn advance<'a>(
        &'a self,
        tx: Tx,
        leadership: &'a Leadership,
        name: &'a str,
        from: i64,
        to: i64,
    ) -> StoreFuture<'a, bool>;

    /// Forgets these positions at once, and drops what is left of a rebuild of these tables. A projection
    /// comes before its marks: whoever notes one beside that is waited for, or finds no projection. Says
    /// whether the leadership, if one is given, still held; nothing happens otherwise.
    fn forget_projection<'a>(
        &'a self,
        leadership: Option<&'a Leadership>,
        names: &'a [String],
        tables: &'a [String],
    ) -> StoreFuture<'a, bool>;

    /// Puts the projection `shadow`, its tables with it, in the place of `name`, forgets the positions
    /// `marks` by which that was asked for, and commits. Says whether it did: nothing happens where the
    /// leadership does not hold any more, or `shadow` has no position.
    fn swap<'a>(
        &'a self,
        leadership: &'a Leadership,
        name: &'a str,
        shadow: &'a str,
        tables: &'a [String],
        marks: &'a [String],
    ) -> StoreFuture<'a, bool>;

    /// Removes handler states of events that completed, and finalized events that are older than
    /// `retention` and behind every projection; sums up postings.
    fn clean(&self, retention: Option<Duration>) -> StoreFuture<'_, Cleaned>;

    /// Gives an event that was completed with errors back to the handlers that failed, and makes one
    /// that waits for its next attempt due now.
    fn redrive(&self, id: i64) -> StoreFuture<'_, ()>;

    /// Ends an event that nobody handles just now, as completed with errors; also one whose lease is
    /// over. Its owner settles nothing of it any more.
    fn cancel(&self, id: i64) -> StoreFuture<'_, ()>;

    /// Events of the queue or of its log, oldest first.
    fn list<'a>(&'a self, filter: &'a EventFilter) -> StoreFuture<'a, Vec<ListedEvent>>;

    /// One event, wherever it is.
    fn show(&self, id: i64) -> StoreFuture<'_, Option<ListedEvent>>;

    /// Where an event is, by its id. Of several that were published with the same id, it is the first
    /// that is not finalized, else the last.
    fn find(&self, event: EventId) -> StoreFuture<'_, Option<QueueLocation>>;

    /// Numbers for gauges. Their cost does not grow with the backlog.
    fn stats(&self) -> StoreFuture<'_, QueueStats>;

    /// How many events are where: the books, with what is claimed shown as in flight.
    fn account(&self) -> StoreFuture<'_, Account>;

    /// The books with their sums of ids, without a look at an event.
    fn books(&self) -> StoreFuture<'_, Books>;

    /// Counts the tables and compares them with the books, as of one moment.
    fn recount(&self) -> StoreFuture<'_, QueueRecount>;

    /// Tells dispatchers that there may be work; best effort.
    fn wake(&self);

    /// Waits until every [`wake`](Self::wake) of this process was sent to the others, or could not
    /// be.
    fn wakes_sent(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        // Where processes do not tell each other there is nothing to wait for.
        Box::pin(std::future::ready(()))
    }

    /// Waits until [`wake`](Self::wake) was called anywhere since the last wait, as far as that can
    /// be known. It may wait for ever; polling is the safety net.
    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}
