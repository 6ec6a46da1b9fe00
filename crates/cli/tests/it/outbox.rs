//! `tidegate outbox`, and the relay in `tidegate run`, on SQLite and the embedded log.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate::core::env::Env;
use tidegate::outbox::{NewOutboxEvent, Outbox, OutboxError, OutboxOptions};
use tidegate::store::{Store, StoreOptions};

use crate::command::{Ran, run_in};
use crate::running::Running;

pub(crate) const CONFIG: &str = "store: {url: 'sqlite://./shop.db'}
log: {topics: {orders: {partitions: 2, max-record-size: 2KiB}}}
outbox: {topic: orders, dlq-topic: orders-dlq, max-attempts: 2, backoff: {initial-ms: 20, max-ms: 40}}
eventlog: {api: {enabled: false}}
";

/// A directory with a configuration, and the table.
pub(crate) fn migrated() -> tempfile::TempDir {
    migrated_with(CONFIG)
}

pub(crate) fn migrated_with(config: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
    let ran = run_in(dir.path(), &["outbox", "migrate"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    dir
}

/// Adds rows as an application does: key, type and payload, each in a transaction of its own.
pub(crate) fn add(dir: &Path, rows: &[(&str, &str, &str)]) {
    for (key, type_name, payload) in rows {
        add_events(dir, &[NewOutboxEvent::new(*key, *type_name, *payload)]);
    }
}

/// Adds rows in one transaction.
pub(crate) fn add_events(dir: &Path, events: &[NewOutboxEvent]) {
    add_events_to(
        &format!("sqlite://{}", dir.join("shop.db").display()),
        events,
    );
}

/// The same in any database.
pub(crate) fn add_events_to(url: &str, events: &[NewOutboxEvent]) {
    try_to_add(url, events).unwrap();
}

/// The same where the database may refuse them.
pub(crate) fn try_to_add(url: &str, events: &[NewOutboxEvent]) -> Result<(), OutboxError> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        let store = Store::open(&StoreOptions::new(url), &env).await?;
        let outbox = Outbox::open(&store, OutboxOptions::default(), &env).await?;
        let added = outbox.insert(events).await;
        store.close().await.ok();
        added.map(drop)
    })
}

fn with_json(dir: &Path, arguments: &[&str]) -> Ran {
    let mut all = arguments.to_vec();
    all.extend(["-o", "json"]);
    run_in(dir, &all)
}

pub(crate) fn ok(dir: &Path, arguments: &[&str]) -> Value {
    let ran = with_json(dir, arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
    ran.json()
}

fn refused(dir: &Path, arguments: &[&str], code: i32) -> String {
    let ran = with_json(dir, arguments);
    assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.stdout);
    ran.json()["error"]["code"].as_str().unwrap().to_owned()
}

/// Waits until so many rows have this status.
pub(crate) fn wait_for(dir: &Path, status: &str, count: usize) -> Value {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let listed = ok(dir, &["outbox", "ls", "--status", status]);
        if listed["rows"].as_array().unwrap().len() == count {
            return listed;
        }
        assert!(Instant::now() < limit, "{listed}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn before_the_migration_every_command_names_it() {
    let dir = tempfile::tempdir().unwrap();
    for command in [
        &["outbox", "ls"][..],
        &["outbox", "show", "1"],
        &["outbox", "stats"],
        &["outbox", "retry", "1"],
        &[
            "outbox", "purge", "--status", "sent", "--before", "-1h", "--yes",
        ],
    ] {
        let ran = run_in(dir.path(), command);
        assert_eq!(ran.code, Some(1), "{command:?}");
        assert!(
            ran.stderr.contains("error[store.missing]")
                && ran.stderr.contains("`tidegate outbox migrate`"),
            "{}",
            ran.stderr
        );
    }
    let queue = run_in(dir.path(), &["queue", "migrate"]);
    assert_eq!(queue.code, Some(0));
    let ran = run_in(
        dir.path(),
        &["outbox", "ls", "--store", "sqlite://./data/tidegate.db"],
    );
    assert!(ran.stderr.contains("error[store.schema]"), "{}", ran.stderr);
}

#[test]
fn rows_are_listed_shown_and_counted() {
    let dir = migrated();
    let dir = dir.path();
    add(
        dir,
        &[
            ("order-1", "OrderPlaced", r#"{"order": 1}"#),
            ("order-2", "OrderPlaced", r#"{"order": 2}"#),
            ("order-1", "OrderPaid", r#"{"order": 1}"#),
        ],
    );
    let listed = ok(dir, &["outbox", "ls", "--limit", "2"]);
    let rows = listed["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &listed["next"]), (2, &rows[1]["id"]));
    let after = rows[1]["id"].to_string();
    let rest = ok(dir, &["outbox", "ls", "--after", &after]);
    assert_eq!(rest["rows"][0]["type"], "OrderPaid");
    let of_key = ok(dir, &["outbox", "ls", "--key", "order-1"]);
    assert_eq!(of_key["rows"].as_array().unwrap().len(), 2);
    let id = rows[0]["event_id"].as_str().unwrap();
    let shown = ok(dir, &["outbox", "show", id]);
    assert_eq!(shown["payload"], r#"{"order": 1}"#);
    assert_eq!(shown["status"], "PENDING");
    assert_eq!(ok(dir, &["outbox", "stats"])["pending"], 3);
    let text = run_in(dir, &["outbox", "ls"]).stdout;
    assert!(
        text.contains("order-2") && text.contains("3 rows"),
        "{text}"
    );

    assert_eq!(refused(dir, &["outbox", "show", "99"], 1), "outbox.unknown");
    assert_eq!(
        refused(dir, &["outbox", "ls", "--relay", "other"], 2),
        "usage.relay"
    );
    let ran = with_json(dir, &["outbox", "retry", "1", "99"]);
    assert_eq!(ran.code, Some(1));
    let codes = ran.json()["refused"].as_array().unwrap().len();
    assert_eq!(
        codes, 2,
        "one is due already, one is not there: {}",
        ran.stdout
    );
}

#[test]
fn o19_purge_removes_finished_rows_alone_by_command_and_over_http() {
    let dir = migrated();
    let dir = dir.path();
    add(
        dir,
        &[
            ("order-1", "OrderPlaced", "1"),
            ("order-2", "OrderPlaced", "2"),
        ],
    );
    let purge = [
        "outbox",
        "purge",
        "--status",
        "sent",
        "--before",
        "2999-01-01T00:00:00Z",
    ];
    assert_eq!(refused(dir, &purge, 2), "purge.unconfirmed");
    let yes: Vec<&str> = purge.iter().copied().chain(["--yes"]).collect();
    assert_eq!(ok(dir, &yes)["purged"], 0, "nothing is sent yet");

    let running = Running::start(dir, &[]);
    assert!(running.banner.contains("✓ outbox"), "{}", running.banner);
    wait_for(dir, "sent", 2);
    let body = r#"{"status": "SENT", "before": "2999-01-01T00:00:00Z"}"#;
    let ask = |body: &str| {
        let path = "/tidegate/outbox/default/purge HTTP/1.1\r\nIdempotency-Key: p1\r\nX-Unused:";
        running.post(path, body)
    };
    let first = ask(body);
    assert!(
        first.contains("200 OK") && first.ends_with(r#"{"purged":2}"#),
        "{first}"
    );
    let again = ask(body);
    assert!(
        again.ends_with(r#"{"purged":2}"#),
        "the same answer: {again}"
    );
    let wrong = running.post(
        "/tidegate/outbox/default/purge",
        r#"{"status": "PENDING", "before": "x"}"#,
    );
    assert!(wrong.contains("400 Bad Request"), "{wrong}");
    let nobody = running.post("/tidegate/outbox/nobody/purge", body);
    assert!(nobody.contains("404 Not Found"), "{nobody}");
    assert!(
        running
            .get("/openapi.json")
            .contains("/tidegate/outbox/{name}/purge")
    );
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    let listed = ok(dir, &["outbox", "ls", "--status", "sent"]);
    assert_eq!(listed["rows"].as_array().unwrap().len(), 0);
    assert_eq!(
        run_in(dir, &["audit"]).code,
        Some(0),
        "a purged row is explained"
    );
}

#[test]
fn o09_a_poison_row_is_listed_explained_retried_and_purged() {
    let dir = migrated();
    let dir = dir.path();
    let large = "x".repeat(4_096);
    add(
        dir,
        &[
            ("order-1", "OrderPlaced", large.as_str()),
            ("order-1", "OrderPaid", "fine"),
            ("order-2", "OrderPlaced", "fine"),
        ],
    );
    let running = Running::start(dir, &[]);
    wait_for(dir, "sent", 2);
    let dead = wait_for(dir, "dead", 1);
    let row = &dead["rows"][0];
    assert_eq!(
        (&row["sent"], &row["aggregate_id"]),
        (&false.into(), &"order-1".into())
    );
    let error = row["last_error"].as_str().unwrap();
    assert!(error.contains("log.record-too-large"), "{error}");
    let id = row["id"].to_string();
    let shown = run_in(dir, &["outbox", "show", &id]).stdout;
    assert!(shown.contains("docs/errors/outbox.dead.md"), "{shown}");
    assert_eq!(run_in(dir, &["audit"]).code, Some(0));
    let event = row["event_id"].as_str().unwrap();
    let place = ok(dir, &["where", event]);
    assert_eq!(place["place"], "dead_lettered", "{place}");

    assert_eq!(ok(dir, &["outbox", "retry", &id])["retried"], 1);
    wait_for(dir, "dead", 1);
    let purged = ok(
        dir,
        &[
            "outbox",
            "purge",
            "--status",
            "dead",
            "--before",
            "2999-01-01T00:00:00Z",
            "--yes",
        ],
    );
    assert_eq!(purged["purged"], 1);
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn a02_a_purged_dead_row_is_lost_with_its_reason_and_a_wrong_request_uses_up_no_key() {
    let dir = migrated();
    let url = format!("sqlite://{}", dir.path().join("shop.db").display());
    a_purged_row_is_lost(dir.path(), &url);
}

fn a_purged_row_is_lost(dir: &Path, url: &str) {
    add_events_to(
        url,
        &[NewOutboxEvent::new("order-1", "T", "1").topic("no topic")],
    );
    let running = Running::start(dir, &[]);
    wait_for(dir, "dead", 1);
    let purge = |status: &str| {
        let path = "/tidegate/outbox/default/purge HTTP/1.1\r\nIdempotency-Key: p1\r\nX-Unused:";
        let body = format!(r#"{{"status": "{status}", "before": "2999-01-01T00:00:00Z"}}"#);
        running.post(path, &body)
    };
    let wrong = purge("PENDING");
    assert!(wrong.contains("400 Bad Request"), "{wrong}");
    let right = purge("DEAD");
    assert!(right.ends_with(r#"{"purged":1}"#), "{right}");
    let again = purge("DEAD");
    assert!(
        again.ends_with(r#"{"purged":1}"#),
        "the same answer: {again}"
    );
    let metrics = running.get("/metrics");
    let lost = r#"tidegate_lost_total{component="outbox.default",reason="purged"} 1"#;
    assert!(metrics.contains(lost), "{metrics}");
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    assert_eq!(run_in(dir, &["audit"]).code, Some(0));
}

/// Adds an event of each key to the table of a relay.
fn add_to(dir: &Path, relay: &str, table: &str, keys: &[&str]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        let url = format!("sqlite://{}", dir.join("shop.db").display());
        let store = Store::open(&StoreOptions::new(url), &env).await.unwrap();
        let options = OutboxOptions {
            table: table.to_owned(),
            ..OutboxOptions::new(relay)
        };
        let outbox = Outbox::open(&store, options, &env).await.unwrap();
        let event = |key: &&str| NewOutboxEvent::new(*key, "T", "1");
        let events: Vec<_> = keys.iter().map(event).collect();
        outbox.insert(&events).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn two_relays_by_name_publish_their_own_tables_in_one_process() {
    let config = "store: {url: 'sqlite://./shop.db'}
log: {topics: {loans: {partitions: 2}, cards: {partitions: 2}}}
outbox:
  loans: {table: loan_outbox, topic: loans}
  cards: {table: card_outbox, topic: cards, metrics-prefix: card_outbox}
eventlog: {api: {enabled: false}}
";
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("tidegate.yaml"), config).unwrap();
    let relays = [
        ("loans", "loan_outbox", &["a", "b", "c"][..]),
        ("cards", "card_outbox", &["x", "y"][..]),
    ];
    for (relay, table, keys) in relays {
        ok(dir, &["outbox", "migrate", "--relay", relay]);
        add_to(dir, relay, table, keys);
    }
    let running = Running::start(dir, &[]);
    for (relay, table, keys) in relays {
        let line = format!("relay `{relay}` publishes table `{table}`");
        assert!(running.banner.contains(&line), "{}", running.banner);
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let listed = ok(dir, &["outbox", "ls", "--relay", relay, "--status", "sent"]);
            let rows = listed["rows"].as_array().unwrap();
            if rows.len() == keys.len() {
                assert!(rows.iter().all(|row| row["topic"] == relay), "{listed}");
                break;
            }
            assert!(Instant::now() < limit, "{listed}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let metrics = running.get("/metrics");
    for line in [
        "outbox_publish_success_total{component=\"outbox.loans\"} 3",
        "card_outbox_publish_success_total{component=\"outbox.cards\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let several = run_in(dir, &["outbox", "ls"]);
    assert_eq!(several.code, Some(2), "{}", several.stderr);
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    let audit = ok(dir, &["audit"]);
    let all = audit["components"].as_array().unwrap();
    for (relay, _, keys) in relays {
        let of = |name: &str| all.iter().find(|one| one["name"] == name).unwrap();
        let delivered = &of(&format!("outbox.{relay}"))["recount"]["delivered"];
        assert_eq!(*delivered, keys.len(), "{audit}");
        assert_eq!(of(relay)["recount"]["queued"], keys.len(), "{audit}");
    }
}

mod needs_postgres {
    use super::*;
    use crate::queue_live::needs_postgres::with;

    /// PostgreSQL with the embedded log.
    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a02_a_purged_dead_row_is_lost_with_its_reason_on_postgres_with_the_embedded_log() {
        with(|url| {
            let dir = migrated_with(&CONFIG.replace("sqlite://./shop.db", url));
            let dir = dir.path();
            a_purged_row_is_lost(dir, url);
            add_events_to(url, &[NewOutboxEvent::new("order-1", "T", "1")]);
            let running = Running::start(dir, &[]);
            wait_for(dir, "sent", 1);
            running.signal("-TERM");
            assert_eq!(running.end().0, Some(0));
            let audit = ok(dir, &["audit"]);
            let all = audit["components"].as_array().unwrap();
            let topic = all.iter().find(|one| one["name"] == "orders");
            assert_eq!(topic.unwrap()["recount"]["queued"], 1, "{audit}");
        });
    }
}

#[test]
fn the_sql_can_be_printed_for_migrations_of_ones_own() {
    let dir = tempfile::tempdir().unwrap();
    for (dialect, text) in [("postgres", "jsonb"), ("sqlite", "AUTOINCREMENT")] {
        let ran = run_in(
            dir.path(),
            &["outbox", "migrate", "--print", "--dialect", dialect],
        );
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.contains("CREATE TABLE outbox_event") && ran.stdout.contains(text));
    }
    assert!(!dir.path().join("data").exists(), "nothing was made");
}

#[test]
fn the_help_of_each_command_has_an_example() {
    let ran = crate::command::run(&["outbox", "-h"]);
    insta::assert_snapshot!("outbox_help", ran.stdout);
    for command in ["ls", "show", "stats", "retry", "purge", "migrate"] {
        let ran = crate::command::run(&["outbox", command, "--help"]);
        assert!(
            ran.stdout.contains(&format!("tidegate outbox {command}")),
            "{command}"
        );
    }
}
