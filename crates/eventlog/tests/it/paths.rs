//! The path from a logger to the API, as an audit follows it.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{
    AcceptedEvents, Audit, Audited, Books, ComponentAccount, ComponentKind,
};
use tidegate_core::books::{AuditedPath, DeliveredEvents, NotCompared, Place};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding, audit_components};
use tidegate_eventlog::{EventLog, EventLogComponent, PostOrigin};

use crate::databases::{event, run};

crate::on_every_database!(
    a_path_is_closed_when_every_delivered_event_is_stored,
    a_surplus_is_no_finding_and_no_proof,
    a_stored_row_that_was_deleted_is_named_by_the_books_of_the_api,
    a_row_that_was_deleted_with_its_posting_is_named_by_the_path,
    events_that_were_removed_are_no_finding,
    an_event_that_two_loggers_sent_counts_for_both,
    a_logger_that_is_not_known_has_everything_missing,
);

const LOGGER: &str = "019a8f3e-5c00-7abc-8def-0123456789ab";

fn id(n: u128) -> EventId {
    EventId::from_u128((0x019a_8f3e_5c00 << 80) | (7 << 76) | (0b10 << 62) | n)
}

/// Posts these events, each by itself, so that each has a posting of its own.
async fn post(log: &EventLog, ids: &[u128], logger: Option<&str>) {
    for n in ids {
        let origin = PostOrigin {
            logger: logger.map(str::to_owned),
            ..PostOrigin::default()
        };
        let json = event(json!({ "_id": id(*n).to_string() }));
        log.post_one(&json, origin).await.unwrap();
    }
}

/// A logger that calls these events delivered.
#[derive(Debug)]
struct Sender {
    origin: Option<&'static str>,
    books: Books,
}

impl Sender {
    fn of(origin: &'static str, ids: &[u128]) -> Self {
        let mut books = Books::default();
        for n in ids {
            books.move_one(id(*n), None, Some(Place::Delivered));
        }
        let origin = Some(origin);
        Self { origin, books }
    }
}

impl Component for Sender {
    fn name(&self) -> &str {
        "logger:test"
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        let (name, kind) = (self.name().to_owned(), ComponentKind::Logger);
        let audited = Audited::new(name, kind, &self.books, &self.books, Vec::new());
        Box::pin(async { Ok(vec![audited]) })
    }

    fn delivered(&self) -> BoxFuture<'_, Result<Vec<DeliveredEvents>, Failure>> {
        let delivered = DeliveredEvents {
            from: self.name().to_owned(),
            to: ComponentKind::EventLog,
            origin: self.origin.map(str::to_owned),
            books: self.books.clone(),
        };
        Box::pin(async { Ok(vec![delivered]) })
    }

    fn locate(&self, _: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }
}

async fn audit(log: &EventLog, sender: Sender) -> Audit {
    let env = Env::system();
    let api = EventLogComponent::new(log.clone(), &env);
    let all: [Arc<dyn Component>; 2] = [Arc::new(sender), Arc::new(api)];
    let asked: Vec<_> = all.iter().collect();
    audit_components(&asked, &all).await.unwrap()
}

fn path(audit: &Audit) -> &AuditedPath {
    &audit.components[0].paths[0]
}

async fn a_path_is_closed_when_every_delivered_event_is_stored(log: EventLog) {
    post(&log, &[1, 2], Some(LOGGER)).await;
    // It came from elsewhere.
    post(&log, &[4], None).await;
    let audit = audit(&log, Sender::of(LOGGER, &[1, 2])).await;
    assert_eq!(audit.unaccounted, 0, "{audit:?}");
    let path = path(&audit);
    assert_eq!(
        (path.compared, path.not_compared, path.reason),
        (2, 0, None)
    );
    assert_eq!(path.to.as_deref(), Some("eventlog"));
    assert_eq!(path.origin.as_deref(), Some(LOGGER));
}

async fn a_surplus_is_no_finding_and_no_proof(log: EventLog) {
    // The answer to the third has not come back yet.
    post(&log, &[1, 2, 3], Some(LOGGER)).await;
    let audit = audit(&log, Sender::of(LOGGER, &[1, 2])).await;
    assert_eq!(audit.unaccounted, 0, "{audit:?}");
    let path = path(&audit);
    assert_eq!((path.compared, path.not_compared), (0, 2));
    assert_eq!(path.reason, Some(NotCompared::MoreReceived));
}

async fn delete_row(log: &EventLog, n: u128) {
    let sql = format!("DELETE FROM tidegate_eventlog WHERE key = '{}'", id(n));
    run(log.store(), sql).await;
}

async fn a_stored_row_that_was_deleted_is_named_by_the_books_of_the_api(log: EventLog) {
    post(&log, &[1, 2, 3], Some(LOGGER)).await;
    delete_row(&log, 2).await;
    let audit = audit(&log, Sender::of(LOGGER, &[1, 2, 3])).await;
    // It is missing once: the logger and the books of the API still agree.
    assert_eq!(audit.unaccounted, 1, "{audit:?}");
    assert_eq!(audit.components[1].missing[0].id, Some(id(2)));
    assert_eq!(path(&audit).missing, []);
}

async fn a_row_that_was_deleted_with_its_posting_is_named_by_the_path(log: EventLog) {
    post(&log, &[1, 2, 3], Some(LOGGER)).await;
    delete_row(&log, 2).await;
    let gone = id(2);
    let sql = format!("DELETE FROM tidegate_posting WHERE id_sum = '{gone}'");
    run(log.store(), sql).await;
    assert_eq!(log.audit().await.unwrap().unaccounted, 0);
    let audit = audit(&log, Sender::of(LOGGER, &[1, 2, 3])).await;
    assert_eq!(audit.unaccounted, 1, "{audit:?}");
    assert_eq!(audit.components[0].unaccounted, 1);
    assert_eq!(path(&audit).missing[0].id, Some(gone));
    assert_eq!(path(&audit).missing[0].place, Place::Delivered);
}

async fn events_that_were_removed_are_no_finding(log: EventLog) {
    post(&log, &[1, 2, 3], Some(LOGGER)).await;
    assert_eq!(log.clear().await.unwrap(), 3);
    let audit = audit(&log, Sender::of(LOGGER, &[1, 2, 3])).await;
    assert_eq!(audit.unaccounted, 0, "{audit:?}");
    assert_eq!(path(&audit).compared, 3);
}

/// A directory that lost its books has a new id, and sends events again that were stored under the old one.
async fn an_event_that_two_loggers_sent_counts_for_both(log: EventLog) {
    const NEW: &str = "019a8f3e-5c00-7abc-8def-0123456789ac";
    let with_key = |logger: &str| PostOrigin {
        key: Some("k".to_owned()),
        logger: Some(logger.to_owned()),
        ..PostOrigin::default()
    };
    post(&log, &[1], None).await;
    post(&log, &[2], Some(LOGGER)).await;
    let keyed = event(json!({ "_id": id(3).to_string() }));
    log.post_one(&keyed, with_key(LOGGER)).await.unwrap();
    for _ in 0..2 {
        post(&log, &[1, 2], Some(NEW)).await;
        log.post_one(&keyed, with_key(NEW)).await.unwrap();
    }
    for (logger, ids) in [(LOGGER, &[2, 3][..]), (NEW, &[1, 2, 3])] {
        let audit = audit(&log, Sender::of(logger, ids)).await;
        assert_eq!(audit.unaccounted, 0, "{audit:?}");
        let stored = log.logger_books(logger).await.unwrap();
        let count = i64::try_from(ids.len()).unwrap();
        assert_eq!(stored.in_place(&Place::Delivered), count);
    }
    let page = Default::default();
    let found = log.correlation("a1b2c3d4".to_owned(), &page).await.unwrap();
    assert_eq!(found.page.total_count, 3);
    log.clear().await.unwrap();
    assert_eq!(log.audit().await.unwrap().unaccounted, 0);
}

async fn a_logger_that_is_not_known_has_everything_missing(log: EventLog) {
    post(&log, &[1], None).await;
    let audit = audit(&log, Sender::of(LOGGER, &[1, 2])).await;
    assert_eq!(audit.unaccounted, 2, "{audit:?}");
    let mut without_id = Sender::of(LOGGER, &[1, 2]);
    without_id.origin = None;
    let audit = self::audit(&log, without_id).await;
    assert_eq!(audit.unaccounted, 0);
    assert_eq!(path(&audit).reason, Some(NotCompared::NoOrigin));
}
