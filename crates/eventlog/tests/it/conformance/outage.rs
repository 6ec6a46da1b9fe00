//! A database that does not answer for a while.

use std::time::Duration;

use serde_json::json;
use tidegate_core::{Classify, FailureClass};
use tidegate_eventlog::{EventLog, PageRequest, PostOrigin};
use tidegate_store::sqlx;

use crate::databases::{batch, event, id, on_postgres_within, on_sqlite_within};

/// How long a call of the store may take here.
const SHORT: Duration = Duration::from_millis(1_500);

mod sqlite {
    #[test]
    fn p13_a10_posts_end_while_the_store_stands_still_and_nothing_is_half_stored() {
        super::on_sqlite_within(super::SHORT, super::posts_end_while_the_store_stands_still);
    }
}

mod needs_postgres {
    #[test]
    #[ignore = "needs PostgreSQL"]
    fn p13_a10_posts_end_while_the_store_stands_still_and_nothing_is_half_stored() {
        super::on_postgres_within(super::SHORT, super::posts_end_while_the_store_stands_still);
    }
}

/// Somebody holds the table, or on SQLite the file, and lets it go after the posts have ended.
async fn posts_end_while_the_store_stands_still(log: EventLog) {
    let events: Vec<String> = (0..50)
        .map(|n| event(json!({ "_id": id(n).to_string() })))
        .collect();
    let json = batch(&events, None);
    let mut held = log.store().begin().await.unwrap();
    if let Some(connection) = held.postgres() {
        let lock = sqlx::raw_sql("LOCK TABLE tidegate_eventlog IN ACCESS EXCLUSIVE MODE");
        lock.execute(connection).await.unwrap();
    }
    let refused = log.post_batch(&json, PostOrigin::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.class(), FailureClass::Transient, "{refused:?}");
    let single = log.post_one(&events[0], PostOrigin::default()).await;
    assert_eq!(single.unwrap_err().class(), FailureClass::Transient);
    held.rollback().await.unwrap();
    // The server may still be busy with the posts that were given up.
    let mut answer = log.post_batch(&json, PostOrigin::default()).await;
    for _ in 0..20 {
        let Err(error) = &answer else { break };
        assert_eq!(error.class(), FailureClass::Transient, "{error:?}");
        answer = log.post_batch(&json, PostOrigin::default()).await;
    }
    let answer = answer.unwrap();
    assert!(answer.success);
    // A commit whose answer was late may be there, and then it is there whole.
    let (new, old) = (answer.total_inserted, answer.total_duplicates);
    assert!(
        matches!((new, old), (50, 0) | (49, 1) | (0, 50)),
        "{answer:?}"
    );
    let page = PageRequest::default();
    let found = log.correlation("a1b2c3d4".to_owned(), &page).await.unwrap();
    assert_eq!(found.page.total_count, 50);
    let audited = log.audit().await.unwrap();
    assert_eq!((audited.unaccounted, audited.books.delivered), (0, 50));
}
