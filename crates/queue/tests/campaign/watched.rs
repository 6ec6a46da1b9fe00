//! A store that says by which claim events were finalized.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::{Account, Books};
use tidegate_queue::port::{
    ClaimRequest, Claimed, Cleaned, Disposition, EventFilter, HandlerCommit, Leadership, LeaseId,
    ListedEvent, LogPage, QueueLocation, QueueRecount, QueueStats, QueueStore, Registry,
    Settlement, StoreFuture,
};
use tidegate_queue::{NewEvent, Tx};
use tidegate_testkit::child::say;

#[derive(Debug)]
pub(crate) struct Watched(pub(crate) Arc<dyn QueueStore>);

/// Methods that only pass the call on.
macro_rules! pass_on {
    ($(fn $name:ident<$life:lifetime>(&$own:lifetime self $(, $argument:ident: $kind:ty)* $(,)?)
        -> $answer:ty;)*) => {
        $(fn $name<$life>(&$own self $(, $argument: $kind)*) -> $answer {
            self.0.$name($($argument),*)
        })*
    };
}

impl QueueStore for Watched {
    fn settle<'a>(&'a self, settlement: &'a Settlement) -> StoreFuture<'a, Vec<i64>> {
        Box::pin(async move {
            let stale = self.0.settle(settlement).await?;
            for one in &settlement.transitions {
                let is_end = matches!(one.to, Disposition::Finalize { .. });
                if is_end && !stale.contains(&one.claim.id) {
                    say(&ended(one.claim.id, one.claim.lease));
                }
            }
            Ok(stale)
        })
    }

    fn wake(&self) {
        self.0.wake();
    }

    pass_on! {
        fn publish<'a>(&'a self, events: &'a [NewEvent]) -> StoreFuture<'a, Vec<i64>>;
        fn publish_once<'a>(&'a self, event: &'a NewEvent) -> StoreFuture<'a, bool>;
        fn publish_in<'a>(&'a self, tx: &'a mut Tx, events: &'a [NewEvent]) -> StoreFuture<'a, Vec<i64>>;
        fn begin<'a>(&'a self) -> StoreFuture<'a, Tx>;
        fn claim<'a>(&'a self, request: &'a ClaimRequest) -> StoreFuture<'a, Claimed>;
        fn renew<'a>(&'a self, leases: &'a [LeaseId], lease: Duration) -> StoreFuture<'a, Vec<LeaseId>>;
        fn reopen<'a>(&'a self, batch: i64, token: i64) -> StoreFuture<'a, Option<(i64, Vec<i64>)>>;
        fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> StoreFuture<'a, bool>;
        fn is_done<'a>(&'a self, tx: Option<&'a mut Tx>, handler: &'a str, event: EventId,
            sub_task: &'a str) -> StoreFuture<'a, bool>;
        fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> StoreFuture<'a, ()>;
        fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> StoreFuture<'a, bool>;
        fn registry<'a>(&'a self) -> StoreFuture<'a, Registry>;
        fn acquire_leadership<'a>(&'a self, name: &'a str, owner: &'a str, span: Duration)
            -> StoreFuture<'a, Option<Leadership>>;
        fn renew_leadership<'a>(&'a self, leadership: &'a Leadership, span: Duration) -> StoreFuture<'a, bool>;
        fn sequence<'a>(&'a self, limit: u32) -> StoreFuture<'a, u64>;
        fn read_log<'a>(&'a self, after: i64, limit: u32) -> StoreFuture<'a, LogPage>;
        fn has_removed<'a>(&'a self) -> StoreFuture<'a, bool>;
        fn projection<'a>(&'a self, name: &'a str) -> StoreFuture<'a, i64>;
        fn projections<'a>(&'a self) -> StoreFuture<'a, Vec<(String, i64)>>;
        fn advance<'a>(&'a self, tx: Tx, leadership: &'a Leadership, name: &'a str, from: i64, to: i64)
            -> StoreFuture<'a, bool>;
        fn forget_projection<'a>(&'a self, leadership: Option<&'a Leadership>, names: &'a [String],
            tables: &'a [String]) -> StoreFuture<'a, bool>;
        fn swap<'a>(&'a self, leadership: &'a Leadership, name: &'a str, shadow: &'a str,
            tables: &'a [String], marks: &'a [String]) -> StoreFuture<'a, bool>;
        fn rebuilds<'a>(&'a self, name: &'a str) -> StoreFuture<'a, u64>;
        fn note_position<'a>(&'a self, of: &'a str, name: &'a str, position: i64) -> StoreFuture<'a, bool>;
        fn clean<'a>(&'a self, retention: Option<Duration>) -> StoreFuture<'a, Cleaned>;
        fn redrive<'a>(&'a self, id: i64) -> StoreFuture<'a, ()>;
        fn cancel<'a>(&'a self, id: i64) -> StoreFuture<'a, ()>;
        fn list<'a>(&'a self, filter: &'a EventFilter) -> StoreFuture<'a, Vec<ListedEvent>>;
        fn show<'a>(&'a self, id: i64) -> StoreFuture<'a, Option<ListedEvent>>;
        fn find<'a>(&'a self, event: EventId) -> StoreFuture<'a, Option<QueueLocation>>;
        fn stats<'a>(&'a self) -> StoreFuture<'a, QueueStats>;
        fn account<'a>(&'a self) -> StoreFuture<'a, Account>;
        fn books<'a>(&'a self) -> StoreFuture<'a, Books>;
        fn recount<'a>(&'a self) -> StoreFuture<'a, QueueRecount>;
        fn woken<'a>(&'a self) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    }
}

fn ended(id: i64, held: LeaseId) -> String {
    match held {
        LeaseId::Batch { batch, token } => format!("ended {id} batch {batch} {token}"),
        LeaseId::Row { id: row, token } => format!("ended {id} row {row} {token}"),
    }
}
