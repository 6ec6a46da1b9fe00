//! The queue on SQLite: the same tables, one writer, the clock of this host.

mod claim;
mod held;
mod inspect;
mod maintain;
mod projection;
mod publish;
mod settle;
mod unreadable;

use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use tidegate_core::EventId;
use tidegate_core::books::Account;
use tidegate_store::{Sqlite, Store, lease, sqlx};
use tokio::sync::Notify;

use super::columns::ParkedKeys;
use crate::QueueError;
use crate::event::NewEvent;
use crate::port::{
    Answer, ClaimRequest, Claimed, Cleaned, Filter, HandlerCommit, Held, Listed, LogPage,
    QueueStore, Recount, Registry, Settlement, Sighting, Stats, Turn,
};
use crate::tx::Tx;

pub(super) use publish::insert;

/// The queue's tables on SQLite.
#[derive(Debug)]
pub struct SqliteQueue {
    sqlite: Sqlite,
    store: Store,
    /// Only this process hears it; others find their work by polling.
    wakes: Notify,
    parked: Mutex<ParkedKeys>,
}

impl SqliteQueue {
    /// The queue in this file, whose tables are up to date.
    #[must_use]
    pub fn new(sqlite: Sqlite) -> Self {
        Self {
            store: Store::Sqlite(sqlite.clone()),
            sqlite,
            wakes: Notify::new(),
            parked: Mutex::default(),
        }
    }
}

impl QueueStore for SqliteQueue {
    fn publish<'a>(&'a self, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>> {
        Box::pin(self.publish_own(events))
    }

    fn publish_in<'a>(&'a self, tx: &'a mut Tx, events: &'a [NewEvent]) -> Answer<'a, Vec<i64>> {
        Box::pin(async move {
            crate::limit::check_events(events)?;
            let (limit, now) = (tx.limit()?, self.sqlite.now_ms());
            let connection = tx.sqlite().ok_or(QueueError::ForeignTransaction)?;
            let publishing = publish::insert(connection, events, now);
            Ok(limit.run("publish events", publishing).await?)
        })
    }

    fn begin(&self) -> Answer<'_, Tx> {
        Box::pin(async move { Ok(Tx::Sql(self.store.begin().await?)) })
    }

    fn claim<'a>(&'a self, request: &'a ClaimRequest) -> Answer<'a, Claimed> {
        Box::pin(self.claim_due(request))
    }

    fn renew<'a>(&'a self, held: &'a [Held], lease: Duration) -> Answer<'a, Vec<Held>> {
        Box::pin(self.renew_leases(held, lease))
    }

    fn reopen(&self, batch: i64, token: i64) -> Answer<'_, Option<(i64, Vec<i64>)>> {
        Box::pin(self.reopen_batch(batch, token))
    }

    fn settle<'a>(&'a self, settlement: &'a Settlement) -> Answer<'a, Vec<i64>> {
        Box::pin(self.settle_moves(settlement))
    }

    fn record<'a>(&'a self, tx: Option<Tx>, commit: &'a HandlerCommit) -> Answer<'a, bool> {
        Box::pin(self.record_result(tx, commit))
    }

    fn is_done<'a>(
        &'a self,
        tx: Option<&'a mut Tx>,
        handler: &'a str,
        event: EventId,
        sub_task: &'a str,
    ) -> Answer<'a, bool> {
        Box::pin(self.is_recorded(tx, handler, event, sub_task))
    }

    fn register<'a>(&'a self, handlers: &'a [(String, String)]) -> Answer<'a, ()> {
        Box::pin(self.register_handlers(handlers))
    }

    fn unregister<'a>(&'a self, type_name: &'a str, handler: &'a str) -> Answer<'a, bool> {
        Box::pin(self.unregister_handler(type_name, handler))
    }

    fn registry(&self) -> Answer<'_, Registry> {
        Box::pin(self.read_registry())
    }

    fn take_turn<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        span: Duration,
    ) -> Answer<'a, Option<Turn>> {
        Box::pin(async move {
            let taken = lease::acquire(&self.store, name, owner, span).await?;
            Ok(taken.map(|lease| Turn {
                name: lease.name,
                token: lease.token,
            }))
        })
    }

    fn keep_turn<'a>(&'a self, turn: &'a Turn, span: Duration) -> Answer<'a, bool> {
        Box::pin(async move { Ok(lease::renew(&self.store, &lease_of(turn), span).await?) })
    }

    fn sequence(&self, limit: u32) -> Answer<'_, u64> {
        Box::pin(self.give_positions(limit))
    }

    fn read_log(&self, after: i64, limit: u32) -> Answer<'_, LogPage> {
        Box::pin(self.read_positions(after, limit))
    }

    fn has_removed(&self) -> Answer<'_, bool> {
        Box::pin(self.has_removed_events())
    }

    fn projection<'a>(&'a self, name: &'a str) -> Answer<'a, i64> {
        Box::pin(self.position_of(name))
    }

    fn projections(&self) -> Answer<'_, Vec<(String, i64)>> {
        Box::pin(self.positions())
    }

    fn rebuilds<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        Box::pin(self.rebuilds_of(name))
    }

    fn note_position<'a>(&'a self, of: &'a str, name: &'a str, position: i64) -> Answer<'a, bool> {
        Box::pin(self.note(of, name, position))
    }

    fn advance<'a>(
        &'a self,
        tx: Tx,
        turn: &'a Turn,
        name: &'a str,
        from: i64,
        to: i64,
    ) -> Answer<'a, bool> {
        Box::pin(self.advance_in(tx, turn, name, from, to))
    }

    fn forget_projection<'a>(
        &'a self,
        turn: Option<&'a Turn>,
        names: &'a [String],
        tables: &'a [String],
    ) -> Answer<'a, bool> {
        Box::pin(self.forget(turn, names, tables))
    }

    fn swap<'a>(
        &'a self,
        turn: &'a Turn,
        name: &'a str,
        shadow: &'a str,
        tables: &'a [String],
        marks: &'a [String],
    ) -> Answer<'a, bool> {
        Box::pin(self.swap_tables(turn, name, shadow, tables, marks))
    }

    fn clean(&self, retention: Option<Duration>) -> Answer<'_, Cleaned> {
        Box::pin(self.clean_up(retention))
    }

    fn redrive(&self, id: i64) -> Answer<'_, ()> {
        Box::pin(self.redrive_event(id))
    }

    fn cancel(&self, id: i64) -> Answer<'_, ()> {
        Box::pin(self.cancel_event(id))
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Answer<'a, Vec<Listed>> {
        Box::pin(self.list_events(filter))
    }

    fn show(&self, id: i64) -> Answer<'_, Option<Listed>> {
        Box::pin(self.show_event(id))
    }

    fn find(&self, event: EventId) -> Answer<'_, Option<Sighting>> {
        Box::pin(self.find_event(event))
    }

    fn stats(&self) -> Answer<'_, Stats> {
        Box::pin(self.read_stats())
    }

    fn account(&self) -> Answer<'_, Account> {
        Box::pin(self.read_account())
    }

    fn recount(&self) -> Answer<'_, Recount> {
        Box::pin(self.count_tables())
    }

    fn wake(&self) {
        self.wakes.notify_waiters();
        self.wakes.notify_one();
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.wakes.notified())
    }
}

fn lease_of(turn: &Turn) -> lease::Lease {
    lease::Lease {
        name: turn.name.clone(),
        token: turn.token,
    }
}

fn event_id(text: &str) -> Result<EventId, sqlx::Error> {
    text.parse()
        .map_err(|error: tidegate_core::ParseEventIdError| sqlx::Error::Decode(Box::new(error)))
}

/// A text as people are shown it, whatever a foreign program has written.
fn lossy(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// A list as a statement takes it.
fn json<T: serde::Serialize>(list: &T) -> String {
    // Numbers and texts always have a JSON form.
    serde_json::to_string(list).unwrap_or_default()
}
