//! Posting, also at the same time, again, and in another order.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use tidegate_core::EventId;
use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_eventlog::{EventLog, EventLogError, EventLogOptions, PageRequest, PostOrigin};

use crate::databases::{batch, event, id};

crate::on_every_database!(
    p01_a_post_reads_back_with_its_unknown_properties,
    p02_a_repeat_gets_the_first_answer_and_another_content_is_refused,
    p03_a_batch_is_judged_event_by_event,
    p04_two_equal_keys_in_a_batch_are_one_row,
    p12_a_batch_with_a_key_is_stored_once_also_when_its_answer_was_forgotten,
    posts_at_the_same_time_store_each_key_once,
    two_apis_on_one_database_store_each_event_once,
    repeated_and_reordered_posts_store_each_event_once,
    a_batch_above_the_limit_is_refused_whole,
);

const ID: &str = "019a8f3e-5c00-7abc-8def-0123456789ab";

async fn count(log: &EventLog) -> i64 {
    let page = PageRequest::default();
    let found = log.correlation("a1b2c3d4".to_owned(), &page).await.unwrap();
    found.page.total_count
}

async fn p01_a_post_reads_back_with_its_unknown_properties(log: EventLog) {
    let json = event(json!({ "_id": ID, "mood": { "tail": "wagging" } }));
    let answer = log.post_one(&json, PostOrigin::default()).await.unwrap();
    assert_eq!(answer.correlation_id, "a1b2c3d4");
    let page = PageRequest::default();
    let found = log.correlation("a1b2c3d4".to_owned(), &page).await.unwrap();
    let shown = serde_json::to_value(&found.page.events[0]).unwrap();
    assert_eq!(shown["mood"]["tail"], "wagging");
    assert_eq!(shown["eventId"], ID);
    assert_eq!(shown["executionId"], answer.execution_ids[0].to_string());
    assert!(shown.get("_id").is_none(), "{shown}");
}

async fn p02_a_repeat_gets_the_first_answer_and_another_content_is_refused(log: EventLog) {
    let post = |json: String| {
        let log = log.clone();
        async move { log.post_one(&json, PostOrigin::default()).await }
    };
    let first = post(event(json!({ "_id": ID }))).await.unwrap();
    let again = post(event(json!({ "_id": ID, "_seq": 7 }))).await.unwrap();
    assert_eq!(first, again);
    let other = post(event(json!({ "_id": ID, "details": "other" }))).await;
    assert!(matches!(other, Err(EventLogError::Conflict { .. })));
    let page = PageRequest::default();
    let found = log.correlation("a1b2c3d4".to_owned(), &page).await.unwrap();
    assert_eq!(found.page.total_count, 1);
    let kept = serde_json::to_value(&found.page.events[0]).unwrap();
    assert_eq!(kept["details"], "Booking BK-1 created");
}

async fn p03_a_batch_is_judged_event_by_event(log: EventLog) {
    let events: Vec<String> = (0..100)
        .map(|n| match n % 40 {
            7 => event(json!({ "processStatus": null })),
            _ => event(json!({ "result": format!("number {n}") })),
        })
        .collect();
    let json = batch(&events, Some("nightly-7"));
    let answer = log.post_batch(&json, PostOrigin::default()).await.unwrap();
    assert!(!answer.success);
    assert_eq!((answer.total_received, answer.total_inserted), (100, 97));
    let refused: Vec<usize> = answer.errors.iter().map(|one| one.index).collect();
    assert_eq!(refused, [7, 47, 87]);
    for error in &answer.errors {
        assert_eq!((error.code, error.class), ("event.invalid", "Permanent"));
    }
    let page = PageRequest::default();
    let found = log
        .batch("nightly-7".to_owned(), None, &page)
        .await
        .unwrap();
    assert_eq!((found.page.total_count, found.page.has_more), (97, true));
}

/// A crash came between the commit of the events and that of the answer: the request comes again.
async fn p12_a_batch_with_a_key_is_stored_once_also_when_its_answer_was_forgotten(log: EventLog) {
    let same = event(json!({ "result": "one" }));
    let events = [
        same.clone(),
        same,
        event(json!({ "result": "two", "_id": ID })),
    ];
    let post = async |key: &str| {
        let origin = PostOrigin {
            key: Some(key.to_owned()),
            ..PostOrigin::default()
        };
        log.post_batch(&batch(&events, None), origin).await.unwrap()
    };
    let (first, again) = (post("k").await, post("k").await);
    assert_eq!((first.total_inserted, first.total_duplicates), (3, 0));
    assert_eq!((again.total_inserted, again.total_duplicates), (0, 3));
    assert_eq!(first.execution_ids, again.execution_ids);
    assert_eq!(post("other").await.total_inserted, 2, "another request");
    assert_eq!(count(&log).await, 5);
}

async fn p04_two_equal_keys_in_a_batch_are_one_row(log: EventLog) {
    let one = event(json!({ "idempotencyKey": "k" }));
    let json = batch(&[one.clone(), one], None);
    let answer = log.post_batch(&json, PostOrigin::default()).await.unwrap();
    assert!(answer.success);
    assert_eq!((answer.total_inserted, answer.total_duplicates), (1, 1));
    assert_eq!(answer.execution_ids[0], answer.execution_ids[1]);
    assert_eq!(count(&log).await, 1);
}

async fn posts_at_the_same_time_store_each_key_once(log: EventLog) {
    let mut posts = tokio::task::JoinSet::new();
    for n in 0..200 {
        let log = log.clone();
        posts.spawn(async move {
            let json = event(json!({ "idempotencyKey": format!("k{}", n % 50) }));
            log.post_one(&json, PostOrigin::default()).await.unwrap()
        });
    }
    let answers = posts.join_all().await;
    let mut ids: Vec<_> = answers.iter().map(|one| one.execution_ids[0]).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), count(&log).await), (50, 50));
}

/// A second API has a writer of its own; the database alone decides between them.
async fn two_apis_on_one_database_store_each_event_once(log: EventLog) {
    let other = EventLog::on(
        log.store().clone(),
        EventLogOptions::default(),
        &Env::system(),
    );
    let mut posts = tokio::task::JoinSet::new();
    for round in 0..20_u128 {
        for (api, of) in [(0, log.clone()), (1, other.clone())] {
            posts.spawn(async move {
                // One API gets each lot in the reverse order.
                let mut numbers: Vec<u128> = (round * 10..round * 10 + 30).collect();
                if api == 1 {
                    numbers.reverse();
                }
                let events: Vec<String> = numbers.iter().map(|n| numbered(*n)).collect();
                let json = batch(&events, None);
                let answer = of.post_batch(&json, PostOrigin::default()).await.unwrap();
                assert!(answer.success, "{answer:?}");
                numbers
                    .into_iter()
                    .zip(answer.execution_ids)
                    .collect::<Vec<_>>()
            });
        }
    }
    let mut answers: BTreeMap<u128, BTreeSet<EventId>> = BTreeMap::new();
    for (number, execution) in posts.join_all().await.into_iter().flatten() {
        answers.entry(number).or_default().insert(execution);
    }
    assert_eq!(answers.len(), 220);
    for (number, executions) in &answers {
        assert_eq!(executions.len(), 1, "event {number} has one answer");
    }
    let audited = log.audit().await.unwrap();
    assert_eq!((audited.unaccounted, audited.recount.delivered), (0, 220));
}

fn numbered(n: u128) -> String {
    event(json!({ "_id": id(n).to_string(), "result": format!("number {n}") }))
}

async fn repeated_and_reordered_posts_store_each_event_once(log: EventLog) {
    let mut random = Stream::new(15);
    let mut answers: BTreeMap<u128, EventId> = BTreeMap::new();
    for _ in 0..40 {
        let length = 1 + random.next_u64() % 30;
        let numbers: Vec<u128> = (0..length)
            .map(|_| u128::from(random.next_u64() % 100))
            .collect();
        let events: Vec<String> = numbers.iter().map(|n| numbered(*n)).collect();
        let json = batch(&events, None);
        let answer = log.post_batch(&json, PostOrigin::default()).await.unwrap();
        let outcomes = answer.total_inserted + answer.total_duplicates;
        assert_eq!((outcomes, answer.errors.len()), (numbers.len(), 0));
        for (number, execution) in numbers.into_iter().zip(answer.execution_ids) {
            let first = answers.entry(number).or_insert(execution);
            assert_eq!(*first, execution, "the first answer to event {number}");
        }
    }
    let stored = i64::try_from(answers.len()).unwrap();
    assert_eq!(count(&log).await, stored);
    let audited = log.audit().await.unwrap();
    assert_eq!((audited.unaccounted, audited.books.delivered), (0, stored));
}

async fn a_batch_above_the_limit_is_refused_whole(log: EventLog) {
    let events = vec![event(json!({})); 1_001];
    let all = batch(&events, None);
    let refused = log.post_batch(&all, PostOrigin::default());
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.code().as_str(), "body.too_large");
    for wrong in ["", "[]", r#"{"events":[]}"#, r#"{"events":7}"#] {
        let refused = log.post_batch(wrong, PostOrigin::default()).await;
        assert!(matches!(refused, Err(EventLogError::Request(_))), "{wrong}");
    }
    assert_eq!(count(&log).await, 0);
}
