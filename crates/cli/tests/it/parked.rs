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
const CONFIG: &str = "log: {topics: {orders: {partitions: 1}}}
store: {url: \"sqlite://shop.db\"}
eventbus:
  bindings:
    shipping:
      topic: orders
      group-id: shipping
      ordering-mode: KEY_ORDERED
      handler: {http: {url: \"http://127.0.0.1:1/\"}}
      retry: {tier0: {max-attempts: 1}, tiers: [{delay: 1h}]}
";

fn delete_by_hand(dir: &Path, id: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let url = format!("sqlite://{}", dir.join("shop.db").display());
        let store = Store::open(&StoreOptions::new(url), &Env::system()).await;
        let Store::Sqlite(sqlite) = store.unwrap() else {
            panic!("it is SQLite");
        };
        let sql = format!("DELETE FROM eventbus_parked WHERE event_id = '{id}'");
        let deleted = sqlite.write("delete a row", move |connection| {
            let sql = raw_sql(AssertSqlSafe(sql));
            Box::pin(async move { sql.execute(connection).await.map(drop) })
        });
        deleted.await.unwrap();
    });
}

#[test]
fn c33_a_parked_record_is_found_and_missed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("tidegate.yaml"), CONFIG).unwrap();
    let running = Running::start(dir, &[]);
    let mut ids = Vec::new();
    for value in ["one", "two"] {
        let sent = ok(dir, &["send", "orders", "--key", "k", "--value", value]);
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
    delete_by_hand(dir, second);
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(second), "{}", ran.stdout);
}
