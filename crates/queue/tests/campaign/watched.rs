//! A store that says by which claim events were finalized.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_queue::port::{
    Answer, ClaimRequest, Claimed, Cleaned, Disposition, Filter, HandlerCommit, Held, Listed,
    LogPage, QueueStore, Recount, Registry, Settlement, Sighting, Stats, Turn,
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
    fn settle<'a>(&'a self, settlement: &'a Settlement) -> Answer<'a, Vec<i64>> {
        Box::pin(async move {
            let stale = self.0.settle(settlement).await?;
            for one in &settlement.moves {
                let is_end = matches!(one.to, Disposition::Finalize { .. });
                if is_end && !stale.contains(&one.claim.id) {
                    say(&ended(one.claim.id, one.claim.held));
                }
            }
            Ok(stale)
        })
    }

    fn wake(&self) {
        self.0.wake();
    }

    pass_on! {
        fn publish<'a>(&'a self, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>>;
        fn publish_in<'a>(&'a self, tx: &'a mut Tx, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>>;
        fn begin<'a>(&'a self) -> Answer<'a, Tx>;
        fn claim<'a>(&'a self, request: &'a ClaimRequest) -> Answer<'a, Claimed>;
        fn renew<'a>(&'a self, held: &'a [Held], lease: Duration) -> Answer<'a, Vec<Held>>;
        fn reopen<'a>(&'a self, batch: i64, token: i64) -> Answer<'a, Option<(i64, Vec<i64>)>>;
        fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> Answer<'a, bool>;
        fn is_done<'a>(&'a self, tx: Option<&'a mut Tx>, handler: &'a str, event: EventId,
            sub_task: &'a str) -> Answer<'a, bool>;
        fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> Answer<'a, ()>;
        fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> Answer<'a, bool>;
        fn registry<'a>(&'a self) -> Answer<'a, Registry>;
        fn take_turn<'a>(&'a self, name: &'a str, owner: &'a str, span: Duration)
            -> Answer<'a, Option<Turn>>;
        fn keep_turn<'a>(&'a self, turn: &'a Turn, span: Duration) -> Answer<'a, bool>;
        fn sequence<'a>(&'a self, limit: u32) -> Answer<'a, u64>;
        fn read_log<'a>(&'a self, after: i64, limit: u32) -> Answer<'a, LogPage>;
        fn has_removed<'a>(&'a self) -> Answer<'a, bool>;
        fn projection<'a>(&'a self, name: &'a str) -> Answer<'a, i64>;
        fn projections<'a>(&'a self) -> Answer<'a, Vec<(String, i64)>>;
        fn advance<'a>(&'a self, tx: Tx, turn: &'a Turn, name: &'a str, from: i64, to: i64)
            -> Answer<'a, bool>;
        fn forget_projection<'a>(&'a self, turn: Option<&'a Turn>, names: &'a [String],
            tables: &'a [String]) -> Answer<'a, bool>;
        fn swap<'a>(&'a self, turn: &'a Turn, name: &'a str, shadow: &'a str,
            tables: &'a [String], marks: &'a [String]) -> Answer<'a, bool>;
        fn rebuilds<'a>(&'a self, name: &'a str) -> Answer<'a, u64>;
        fn note_position<'a>(&'a self, of: &'a str, name: &'a str, position: i64) -> Answer<'a, bool>;
        fn clean<'a>(&'a self, retention: Option<Duration>) -> Answer<'a, Cleaned>;
        fn redrive<'a>(&'a self, id: i64) -> Answer<'a, ()>;
        fn cancel<'a>(&'a self, id: i64) -> Answer<'a, ()>;
        fn list<'a>(&'a self, filter: &'a Filter) -> Answer<'a, Vec<Listed>>;
        fn show<'a>(&'a self, id: i64) -> Answer<'a, Option<Listed>>;
        fn find<'a>(&'a self, event: EventId) -> Answer<'a, Option<Sighting>>;
        fn stats<'a>(&'a self) -> Answer<'a, Stats>;
        fn account<'a>(&'a self) -> Answer<'a, Account>;
        fn recount<'a>(&'a self) -> Answer<'a, Recount>;
        fn woken<'a>(&'a self) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    }
}

fn ended(id: i64, held: Held) -> String {
    match held {
        Held::Batch { batch, token } => format!("ended {id} batch {batch} {token}"),
        Held::Row { id: row, token } => format!("ended {id} row {row} {token}"),
    }
}
