//! `tidegate audit` and `tidegate where` on an outbox whose rows or records somebody has taken away.

use std::path::Path;

use serde_json::Value;
use tidegate::core::env::Env;
use tidegate::store::sqlx::{AssertSqlSafe, raw_sql};
use tidegate::store::{Store, StoreOptions};

use crate::command::run_in;
use crate::log_audit::turn;
use crate::outbox::{CONFIG, add, migrated, ok, wait_for};
use crate::running::Running;

const ROWS: [(&str, &str, &str); 3] = [
    ("order-1", "OrderPlaced", "first-payload"),
    ("order-2", "OrderPlaced", "second-payload"),
    ("order-1", "OrderPaid", "third-payload"),
];

/// Rows that were sent; the process is gone. Gives the id of the second one.
fn sent() -> (tempfile::TempDir, String) {
    let dir = migrated();
    add(dir.path(), &ROWS);
    let running = Running::start(dir.path(), &[]);
    let listed = wait_for(dir.path(), "sent", ROWS.len());
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    let rows = listed["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["aggregate_id"] == "order-2");
    let id = row.unwrap()["event_id"].as_str().unwrap().to_owned();
    let ran = run_in(dir.path(), &["audit"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(!ran.stdout.contains("NOT compared"), "{}", ran.stdout);
    (dir, id)
}

/// The audit finds a loss, and every one of these components names the event. Gives the whole of it.
fn is_named(dir: &Path, id: &str, components: &[&str]) -> Value {
    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
    let audit = ran.json();
    for name in components {
        let all = audit["components"].as_array().unwrap();
        let component = all.iter().find(|one| one["name"] == *name).unwrap();
        let missing = component["missing"].as_array().unwrap();
        assert!(
            missing.len() == 1 && missing[0]["id"] == id,
            "{name}: {component}"
        );
    }
    let text = run_in(dir, &["audit"]).stdout;
    assert!(
        text.contains(&format!("event {id} is missing")) && text.contains("NOT accounted for"),
        "{text}"
    );
    audit
}

fn delete_by_hand(dir: &Path, id: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let url = format!("sqlite://{}", dir.join("shop.db").display());
        let store = Store::open(&StoreOptions::new(url), &Env::system()).await;
        let Store::Sqlite(sqlite) = store.unwrap() else {
            panic!("it is SQLite");
        };
        let sql = format!("DELETE FROM outbox_event WHERE event_id = '{id}'");
        let deleted = sqlite.write("delete a row", move |connection| {
            let sql = raw_sql(AssertSqlSafe(sql));
            Box::pin(async move {
                sql.execute(connection)
                    .await
                    .map(|done| done.rows_affected())
            })
        });
        assert_eq!(deleted.await.unwrap(), 1);
    });
}

#[test]
fn a01_a_sent_row_that_was_deleted_by_hand_is_named() {
    let (dir, id) = sent();
    let dir = dir.path();
    delete_by_hand(dir, &id);
    is_named(dir, &id, &["outbox.default"]);
    // Its record is still there.
    let place = ok(dir, &["where", &id]);
    assert_eq!(place["component"], "orders", "{place}");
    // A process that runs tells the same.
    let running = Running::start(dir, &[]);
    is_named(dir, &id, &["outbox.default"]);
    drop(running);
}

#[test]
fn a01_a_topic_that_is_gone_is_a_finding_with_its_exit_code() {
    let (dir, _) = sent();
    let dir = dir.path();
    // Another log, in which there is no such topic.
    let config = CONFIG
        .replace(
            "orders: {partitions: 2, max-record-size: 2KiB}",
            "others: {}",
        )
        .replace("\nlog: {", "\nlog: {embedded: {path: ./data/other}, ");
    std::fs::write(dir.join("tidegate.yaml"), config).unwrap();
    let running = Running::start(dir, &[]);
    let is_told = || {
        let ran = run_in(dir, &["audit"]);
        assert_eq!(ran.code, Some(3), "{}{}", ran.stdout, ran.stderr);
        for part in [
            "topic `orders` does not exist",
            "outbox.topic-gone",
            "NOT compared",
        ] {
            assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
        }
    };
    is_told();
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    is_told();
}

#[test]
fn a01_a_sent_record_that_was_destroyed_in_the_log_is_named_by_the_outbox_and_by_the_log() {
    let (dir, id) = sent();
    let dir = dir.path();
    let seen = ok(dir, &["where", &id])["history"].clone();
    let at: Vec<&str> = (0..2)
        .map(|at| seen[at]["component"].as_str().unwrap())
        .collect();
    assert_eq!(at, ["outbox.default", "orders"], "row and record: {seen}");

    let log = dir.join("data/log");
    turn(&log.join("topic-orders"), ".seg", "second-payload");
    turn(&log, "/journal-", "second-payload");
    is_named(dir, &id, &["outbox.default", "orders"]);
    let seen = ok(dir, &["where", &id])["history"].clone();
    assert_eq!(
        seen.as_array().unwrap().len(),
        1,
        "only the row is left: {seen}"
    );
    assert_eq!(seen[0]["status"], "SENT", "{seen}");
    // The repair posts the loss in the books of the log. The outbox still calls the row sent.
    assert_eq!(run_in(dir, &["log", "repair", "--yes"]).code, Some(0));
    let audit = is_named(dir, &id, &["outbox.default"]);
    assert_eq!(audit["unaccounted"], 1, "{audit}");
}

mod needs_kafka {
    mod needs_postgres {
        use tidegate::outbox::NewOutboxEvent;

        use super::super::*;
        use crate::broker::Broker;
        use crate::outbox::{add_events_to, migrated_with};
        use crate::queue_live::needs_postgres::with;

        /// The binary on PostgreSQL and Kafka, beside a running process and without one.
        #[test]
        #[ignore = "needs PostgreSQL and Kafka"]
        fn a01_a_sent_row_that_was_deleted_by_hand_is_named_on_postgres_and_kafka() {
            with(|url| {
                // One of its own: an audit asks for every group that a broker has.
                let broker = Broker::start();
                let servers = broker.servers();
                let dir = migrated_with(&format!(
                    "store: {{url: '{url}'}}\nlog: {{clusters: {{default: {{bootstrap-servers: \
                     [\"{servers}\"]}}}}, topics: {{orders: {{partitions: 2}}}}}}\n\
                     outbox: {{topic: orders}}\neventlog: {{api: {{enabled: false}}}}\n"
                ));
                let dir = dir.path();
                let events =
                    ROWS.map(|(key, kind, payload)| NewOutboxEvent::new(key, kind, payload));
                add_events_to(url, &events);
                let running = Running::start(dir, &[]);
                let listed = wait_for(dir, "sent", ROWS.len());
                let ran = run_in(dir, &["audit"]);
                assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
                let id = listed["rows"][1]["event_id"].as_str().unwrap();
                delete_from(url, id);
                is_named(dir, id, &["outbox.default"]);
                running.signal("-TERM");
                assert_eq!(running.end().0, Some(0));
                is_named(dir, id, &["outbox.default"]);
                let seen = ok(dir, &["where", id]);
                assert_eq!(seen["component"], "orders", "{seen}");
            });
        }

        fn delete_from(url: &str, id: &str) {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let store = Store::open(&StoreOptions::new(url), &Env::system()).await;
                let mut tx = store.unwrap().begin().await.unwrap();
                let sql = format!("DELETE FROM outbox_event WHERE event_id = '{id}'");
                let sql = raw_sql(AssertSqlSafe(sql));
                let deleted = sql.execute(tx.postgres().unwrap()).await.unwrap();
                assert_eq!(deleted.rows_affected(), 1);
                tx.commit().await.unwrap();
            });
        }
    }
}
