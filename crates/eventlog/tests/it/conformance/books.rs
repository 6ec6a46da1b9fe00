//! Books, recount and removal.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate_core::books::{Books, Place, undelivered};
use tidegate_core::env::Env;
use tidegate_core::{Component, Shutdown};
use tidegate_eventlog::{
    CorrelationLink, EventLog, EventLogComponent, EventLogOptions, PageRequest, PostOrigin,
};

use crate::databases::{batch, event, id, run};

crate::on_every_database!(
    a01_the_recount_agrees_and_names_a_row_that_was_deleted,
    a_logger_has_books_of_its_own,
    a_repeat_with_another_id_is_known_under_both,
    cleared_events_stay_in_the_books,
    retention_removes_what_nobody_marked_to_stay,
);

async fn post(log: &EventLog, ids: &[u128], logger: Option<&str>) {
    let events: Vec<String> = ids
        .iter()
        .map(|n| event(json!({ "_id": id(*n).to_string() })))
        .collect();
    let origin = PostOrigin {
        logger: logger.map(str::to_owned),
        ..PostOrigin::default()
    };
    let answer = log.post_batch(&batch(&events, None), origin).await.unwrap();
    assert!(answer.success, "{answer:?}");
}

async fn a01_the_recount_agrees_and_names_a_row_that_was_deleted(log: EventLog) {
    post(&log, &[1, 2, 3], None).await;
    post(&log, &[3, 4], Some("spill-1")).await;
    let audited = log.audit().await.unwrap();
    // The third counts once more, for the logger that repeated it.
    assert_eq!((audited.unaccounted, audited.books.delivered), (0, 5));
    assert_eq!(audited.unverifiable, 3, "their sender keeps no books");
    let sql = format!("DELETE FROM tidegate_eventlog WHERE key = '{}'", id(4));
    run(log.store(), sql).await;
    let audited = log.audit().await.unwrap();
    assert_eq!(audited.unaccounted, 1);
    assert_eq!(audited.missing[0].id, Some(id(4)));
    assert!(log.locate(id(4)).await.unwrap().is_none());
    assert!(log.locate(id(3)).await.unwrap().is_some());
}

async fn a_logger_has_books_of_its_own(log: EventLog) {
    post(&log, &[1, 2], Some("spill-1")).await;
    post(&log, &[3], Some("spill-2")).await;
    let mut logger = Books::default();
    for n in [1, 2, 9] {
        logger.move_one(id(n), None, Some(Place::Delivered));
    }
    let stored = log.logger_books("spill-1").await.unwrap();
    let found = undelivered(&logger, &stored);
    assert_eq!((found.len(), found[0].id), (1, Some(id(9))));
    let mut names = log.loggers().await.unwrap();
    names.sort();
    assert_eq!(names, ["spill-1", "spill-2"]);
}

async fn a_repeat_with_another_id_is_known_under_both(log: EventLog) {
    let of = |n: u128| event(json!({ "_id": id(n).to_string(), "idempotencyKey": "k" }));
    let origin = PostOrigin {
        logger: Some("spill-1".to_owned()),
        ..PostOrigin::default()
    };
    let first = log.post_one(&of(1), origin.clone()).await.unwrap();
    for _ in 0..2 {
        let again = log.post_one(&of(2), origin.clone()).await.unwrap();
        assert_eq!(first, again);
    }
    for n in [1, 2] {
        let seen = log.locate(id(n)).await.unwrap().unwrap();
        let execution = first.execution_ids[0].to_string();
        assert_eq!(seen.details["executionId"], execution);
    }
    let stored = log.logger_books("spill-1").await.unwrap();
    assert_eq!(stored.in_place(&Place::Delivered), 2);
    assert_eq!(log.audit().await.unwrap().unaccounted, 0);
}

async fn cleared_events_stay_in_the_books(log: EventLog) {
    post(&log, &[1, 2, 3], Some("spill-1")).await;
    assert_eq!(log.clear().await.unwrap(), 3);
    let audited = log.audit().await.unwrap();
    assert_eq!((audited.unaccounted, audited.removed.delivered), (0, 3));
    assert_eq!(log.account().await.unwrap().delivered, 3);
    post(&log, &[1], Some("spill-1")).await;
}

async fn retention_removes_what_nobody_marked_to_stay(log: EventLog) {
    // A row from a time when the clock was years ahead. It stays, and those behind it go.
    let ahead = event(json!({ "correlationId": "ahead" }));
    log.post_one(&ahead, PostOrigin::default()).await.unwrap();
    let sql = "UPDATE tidegate_eventlog SET created_at = 9000000000000".to_owned();
    run(log.store(), sql).await;
    let kept = event(json!({ "correlationId": "kept", "details": "stays" }));
    log.post_one(&kept, PostOrigin::default()).await.unwrap();
    post(&log, &[1, 2, 3], Some("spill-1")).await;
    let link = CorrelationLink {
        correlation_id: "kept".to_owned(),
        account_id: "A".to_owned(),
        application_id: None,
        customer_id: None,
        card_number_last4: None,
        retain: true,
    };
    log.link(link).await.unwrap();
    let env = Env::system();
    let options = EventLogOptions {
        retention: Some(Duration::from_millis(1)),
        cleanup_interval: Duration::from_millis(5),
        ..EventLogOptions::default()
    };
    let cleaned = EventLog::on(log.store().clone(), options, &env);
    let component = Arc::new(EventLogComponent::new(cleaned, &env));
    let (trigger, stop) = Shutdown::new();
    let running = tokio::spawn(component.run(stop));
    let page = PageRequest::default();
    let gone = async {
        while log
            .correlation("a1b2c3d4".to_owned(), &page)
            .await
            .unwrap()
            .page
            .total_count
            > 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, gone).await.unwrap();
    trigger.stop();
    running.await.unwrap();
    for stays in ["ahead", "kept"] {
        let found = log.correlation(stays.to_owned(), &page).await.unwrap();
        assert_eq!(found.page.total_count, 1, "{stays}");
    }
    let audited = log.audit().await.unwrap();
    assert_eq!((audited.unaccounted, audited.removed.delivered), (0, 3));
    // The logger has them as delivered, and they were there.
    let mut logger = Books::default();
    for n in [1, 2, 3] {
        logger.move_one(id(n), None, Some(Place::Delivered));
    }
    let stored = log.logger_books("spill-1").await.unwrap();
    assert_eq!(undelivered(&logger, &stored), []);
}
