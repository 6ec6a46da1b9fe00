//! Ordered keys in the binary: records that wait in the store.

use std::path::Path;
use std::time::{Duration, Instant};

use tidegate::core::env::Env;
use tidegate::store::sqlx::{AssertSqlSafe, raw_sql};
use tidegate::store::{Store, StoreOptions};

use crate::command::run_in;
use crate::outbox::ok;
use crate::running::Running;

/// Nobody listens at that port, so that every record fails.
fn config(log: &str, store: &str, topic: &str) -> String {
    format!(
        "log: {{{log}topics: {{{topic}: {{partitions: 1}}}}}}
store: {{url: \"{store}\"}}
eventbus:
  bindings:
    shipping:
      topic: {topic}
      group-id: shipping-{topic}
      ordering-mode: KEY_ORDERED
      handler: {{http: {{url: \"http://127.0.0.1:1/\"}}}}
      retry: {{tier0: {{max-attempts: 1}}, tiers: [{{delay: 1h}}]}}
"
    )
}

/// Removes the row of an event from the store at this address, as somebody does by hand.
fn delete_by_hand(url: &str, id: &str) {
    let sql = format!("DELETE FROM eventbus_parked WHERE event_id = '{id}'");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = Store::open(&StoreOptions::new(url), &Env::system()).await;
        match store.unwrap() {
            Store::Sqlite(sqlite) => {
                let deleted = sqlite.write("delete a row", move |connection| {
                    let sql = raw_sql(AssertSqlSafe(sql));
                    Box::pin(async move { sql.execute(connection).await.map(drop) })
                });
                deleted.await.unwrap();
            }
            Store::Postgres(postgres) => {
                let deleted = postgres.run("delete a row", move |connection| {
                    let sql = raw_sql(AssertSqlSafe(sql.clone()));
                    Box::pin(async move { sql.execute(connection).await.map(drop) })
                });
                deleted.await.unwrap();
            }
        }
    });
}

#[test]
fn c33_a_parked_record_is_found_and_missed() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("", "sqlite://shop.db", "orders");
    let url = format!("sqlite://{}", dir.path().join("shop.db").display());
    is_found_and_missed(dir.path(), &config, "orders", &url);
}

fn is_found_and_missed(dir: &Path, config: &str, topic: &str, store: &str) {
    std::fs::write(dir.join("tidegate.yaml"), config).unwrap();
    let running = Running::start(dir, &[]);
    let mut ids = Vec::new();
    for value in ["one", "two"] {
        let sent = ok(dir, &["send", topic, "--key", "k", "--value", value]);
        ids.push(sent["id"].as_str().unwrap().to_owned());
    }
    let second = &ids[1];
    let limit = Instant::now() + Duration::from_secs(60);
    let place = loop {
        let place = ok(dir, &["where", second]);
        if place["place"] == "parked" {
            break place;
        }
        assert!(Instant::now() < limit, "{place}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(place.to_string().contains("offset 0 of its key"), "{place}");
    let live = run_in(dir, &["audit"]);
    assert_eq!(live.code, Some(0), "{}{}", live.stdout, live.stderr);
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    // The same without a process that runs.
    assert_eq!(ok(dir, &["where", second])["place"], "parked");
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    delete_by_hand(store, second);
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(second), "{}", ran.stdout);
}

mod needs_kafka {
    mod needs_postgres {
        use super::super::*;
        use crate::queue_live::needs_postgres::with;

        #[test]
        #[ignore = "needs Kafka and PostgreSQL"]
        fn c33_a_parked_record_is_found_and_missed_on_servers() {
            with(|url| {
                let dir = tempfile::tempdir().unwrap();
                let servers = std::env::var("KAFKA_BOOTSTRAP").unwrap();
                let log =
                    format!("clusters: {{default: {{bootstrap-servers: [\"{servers}\"]}}}}, ");
                let since = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
                let topic = format!("cli.parked.{since}");
                let config = config(&log, url, &topic);
                is_found_and_missed(dir.path(), &config, &topic, url);
            });
        }
    }
}
