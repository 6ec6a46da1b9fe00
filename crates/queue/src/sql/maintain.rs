//! The registry of handlers, clean-up, and what operators do.

use tidegate_core::EventId;
use tidegate_core::books::{Place, Posting, postings};
use tidegate_store::sql::SqlConnection;
use tidegate_store::sqlx;

use super::columns::unsigned;
use crate::port::Registry;

/// The statements of the registry, of clean-up, and of operators.
pub(super) trait MaintainStatements: SqlConnection {
    fn register(
        &mut self,
        handlers: Vec<(String, String)>,
        now: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn unregister(
        &mut self,
        type_name: String,
        handler: String,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    fn clean_states(&mut self, now: i64) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Removes finalized events that are old enough and behind every projection, with a posting of
    /// what was removed from where.
    fn remove_old(
        &mut self,
        age_ms: i64,
        now: i64,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    fn redrive(
        &mut self,
        id: i64,
        now: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    fn cancel(
        &mut self,
        id: i64,
        now: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
}

pub(super) async fn read_registry<C: SqlConnection>(db: &mut C) -> Result<Registry, sqlx::Error> {
    // The outer join keeps the version when nobody is registered.
    let sql = "SELECT q.registry, h.type, h.handler_id FROM tidegate_queue q
        LEFT JOIN event_handler h ON true WHERE q.name = 'queue'";
    let rows: Vec<(i64, Option<String>, Option<String>)> = db.fetch_all(sql, &[]).await?;
    let mut registry = Registry::default();
    for (version, type_name, handler) in rows {
        registry.version = unsigned(version);
        if let (Some(type_name), Some(handler)) = (type_name, handler) {
            let of_type = registry.handlers.entry(type_name).or_default();
            of_type.insert(handler);
        }
    }
    Ok(registry)
}

/// The version of the registry.
pub(super) async fn registry_version<C: SqlConnection>(db: &mut C) -> Result<u64, sqlx::Error> {
    let sql = "SELECT registry FROM tidegate_queue WHERE name = 'queue'";
    db.fetch_one(sql, &[]).await.map(unsigned)
}

/// The postings of events that were removed, each with whether it had failed.
pub(super) fn removal_postings(removed: &[(EventId, bool)]) -> Vec<Posting> {
    let of = |is_failed: bool, from| {
        let removed = removed.iter().filter(|(_, failed)| *failed == is_failed);
        postings(removed.map(|(id, _)| *id), Some(from), None)
    };
    let mut written = of(false, Place::Delivered);
    written.extend(of(true, Place::DeadLettered));
    written
}
