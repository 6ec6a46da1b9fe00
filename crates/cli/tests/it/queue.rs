//! `tidegate queue` on SQLite.

use std::path::Path;

use serde_json::{Value, json};

use crate::command::{Ran, run_in, run_with_input};
use crate::log::lines;

/// A directory in which the tables are made, where the configuration says nothing.
fn migrated() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let ran = run_in(dir.path(), &["queue", "migrate"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    dir
}

/// Runs a command that must succeed, with `-o json`.
fn ok(dir: &Path, arguments: &[&str]) -> Value {
    let ran = with_json(dir, arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
    ran.json()
}

fn with_json(dir: &Path, arguments: &[&str]) -> Ran {
    let mut all = arguments.to_vec();
    all.extend(["-o", "json"]);
    run_in(dir, &all)
}

/// The code of a command that must fail with exit code `code`.
fn refused(dir: &Path, arguments: &[&str], code: i32) -> String {
    let ran = with_json(dir, arguments);
    assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.stdout);
    assert!(ran.stderr.contains("error["), "{}", ran.stderr);
    ran.json()["error"]["code"].as_str().unwrap().to_owned()
}

#[test]
fn before_the_migration_every_command_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for command in [
        &["queue", "ls"][..],
        &["queue", "show", "1"],
        &["queue", "stats"],
        &["queue", "retry", "1"],
        &["queue", "cancel", "1"],
        &["queue", "publish", "A", "{}"],
        &["queue", "handlers"],
        &["queue", "unregister", "A", "one", "--yes"],
        &["projection", "ls"],
        &["projection", "rebuild", "totals"],
        &["projection", "forget", "totals", "--yes"],
    ] {
        let ran = run_in(dir, command);
        assert_eq!(ran.code, Some(1), "{command:?}");
        assert!(
            ran.stderr.contains("error[store.missing]")
                && ran.stderr.contains("`tidegate queue migrate`"),
            "{command:?}: {}",
            ran.stderr
        );
    }
    assert!(
        std::fs::metadata(dir.join("data")).is_err(),
        "looking makes nothing"
    );
    // A database that is there, and has no tables of the queue.
    assert_eq!(ok(dir, &["outbox", "migrate"])["table"], "outbox_event");
    assert_eq!(refused(dir, &["queue", "ls"], 1), "store.schema");
    // The tables of the store are there.
    assert_eq!(ok(dir, &["queue", "migrate"])["ran"], 1);
    assert_eq!(ok(dir, &["queue", "migrate"])["ran"], 0);
    assert_eq!(
        ok(dir, &["queue", "ls"]),
        json!({ "events": [], "next": null })
    );
}

#[test]
fn a_database_that_is_away_or_not_one_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let at = |url: &'static str| ["queue", "ls", "--store", url];
    assert_eq!(refused(dir, &at("mysql://db/x"), 3), "store.address");
    let away = "postgres://me:hunter2@127.0.0.1:1/orders";
    let ran = run_in(dir, &at(away));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("error[store.away]") && !ran.stderr.contains("hunter2"),
        "{}",
        ran.stderr
    );
    std::fs::write(
        dir.join("text.db"),
        "this is no database, and long enough to be read so",
    )
    .unwrap();
    assert_eq!(refused(dir, &at("sqlite://text.db"), 1), "store.damaged");
    // The configuration has the same rule, and its problems come first.
    let wrong = ["queue", "ls", "--set", "store.url=mysql://db/x"];
    assert_eq!(refused(dir, &wrong, 3), "config.invalid");
}

#[test]
fn the_printed_sql_is_for_the_database_that_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ran = run_in(dir, &["queue", "migrate", "--print"]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.stdout
            .starts_with("CREATE TABLE IF NOT EXISTS tidegate_migration")
            && !ran.stdout.contains("timestamptz"),
        "{}",
        ran.stdout
    );
    let away = "store.url=postgres://127.0.0.1:1/orders";
    let printed = ok(dir, &["queue", "migrate", "--print", "--set", away]);
    assert_eq!(printed["dialect"], "postgres");
    assert!(printed["sql"].as_str().unwrap().contains("timestamptz"));
    let named = ok(
        dir,
        &["queue", "migrate", "--print", "--dialect", "postgres"],
    );
    assert_eq!(named, printed);
    assert!(
        std::fs::metadata(dir.join("data")).is_err(),
        "printing makes nothing"
    );
}

#[test]
fn events_are_published_listed_and_shown() {
    let dir = migrated();
    let dir = dir.path();
    let one = run_in(
        dir,
        &[
            "queue",
            "publish",
            "OrderPlaced",
            r#"{"order": 7}"#,
            "--key",
            "ada",
            "--header",
            "source=web",
            "-o",
            "json",
        ],
    );
    assert_eq!(one.code, Some(0), "{}", one.stderr);
    let one = one.json();
    assert_eq!(
        (&one["id"], &one["type"]),
        (&json!(1), &json!("OrderPlaced"))
    );
    let many = run_with_input(
        dir,
        &["queue", "publish", "OrderPaid", "-o", "json"],
        "{\"n\":1}\n\n  [2]\n\"three\"",
    );
    assert_eq!(many.code, Some(0), "{}", many.stderr);
    assert_eq!(lines(&many).len(), 3);
    let page = ok(dir, &["queue", "ls", "--limit", "3"]);
    let ids: Vec<i64> = page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["id"].as_i64().unwrap())
        .collect();
    assert_eq!((ids, &page["next"]), (vec![1, 2, 3], &json!(3)));
    let page = ok(dir, &["queue", "ls", "--after", "3"]);
    assert_eq!(
        (page["events"].as_array().unwrap().len(), &page["next"]),
        (1, &Value::Null)
    );
    let page = ok(
        dir,
        &[
            "queue",
            "ls",
            "--type",
            "OrderPlaced",
            "--status",
            "pending",
        ],
    );
    assert_eq!(page["events"][0]["event_id"], one["event_id"]);
    assert_eq!(
        ok(dir, &["queue", "ls", "--status", "completed"])["events"],
        json!([])
    );
    let by_number = ok(dir, &["queue", "show", "1"]);
    let by_id = ok(dir, &["queue", "show", one["event_id"].as_str().unwrap()]);
    assert_eq!(by_number, by_id);
    for (name, value) in [
        ("status", json!("PENDING")),
        ("key", json!("ada")),
        ("headers", json!({ "source": "web" })),
        ("payload", json!({ "order": 7 })),
        ("handlers", json!([])),
        ("attempts", json!(0)),
    ] {
        assert_eq!(by_number[name], value, "{name}");
    }
    assert_eq!(refused(dir, &["queue", "show", "99"], 1), "queue.unknown");
    let nobody = "019a0000-0000-7000-8000-000000000000";
    assert_eq!(refused(dir, &["queue", "show", nobody], 1), "queue.unknown");
    let ran = run_in(dir, &["queue", "show", "x"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(ok(dir, &["queue", "stats"])["pending"], 4);
    let text = run_in(dir, &["queue", "ls", "--limit", "1"]).stdout;
    assert!(
        text.contains("OrderPlaced") && text.contains("more with `--after 1`"),
        "{text}"
    );
}

#[test]
fn a_line_that_is_no_json_ends_publishing_and_what_was_before_it_stands() {
    let dir = migrated();
    let dir = dir.path();
    let ran = run_with_input(dir, &["queue", "publish", "A"], "{}\n{]\n{}\n");
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("error[queue.payload]: line 2"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    assert_eq!(ok(dir, &["queue", "stats"])["pending"], 1);
    assert_eq!(
        refused(dir, &["queue", "publish", "A", "{"], 1),
        "queue.payload"
    );
    assert_eq!(
        refused(dir, &["queue", "publish", "", "{}"], 2),
        "usage.name"
    );
}

#[test]
fn a_line_that_is_no_utf8_is_refused_and_never_changed() {
    let dir = migrated();
    let dir = dir.path();
    let input = b"{\"a\":1}\n\n{\"a\":2}\n{\"a\":\"\xff\"}\n{\"a\":3}\n";
    let ran = run_with_input(dir, &["queue", "publish", "A"], input);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(
        ran.stderr
            .contains("error[queue.payload]: line 4 is no UTF-8")
            && ran.stderr.contains("the 2 events before it are published"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.stdout);
    assert_eq!(ok(dir, &["queue", "stats"])["pending"], 2);
    // Of a first line nothing is published, and that is said.
    let ran = run_with_input(dir, &["queue", "publish", "A"], b"\xff\n{}\n");
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("nothing was published"),
        "{}",
        ran.stderr
    );
    assert_eq!(ok(dir, &["queue", "stats"])["pending"], 2);
}

#[test]
fn canceled_events_are_given_back_and_refusals_are_told_one_by_one() {
    let dir = migrated();
    let dir = dir.path();
    run_with_input(dir, &["queue", "publish", "A"], "1\n2\n3\n");
    let canceled = ok(dir, &["queue", "cancel", "1", "3"]);
    assert_eq!(canceled, json!({ "done": [1, 3], "refused": [] }));
    let failed = ["queue", "ls", "--status", "completed-with-errors"];
    assert_eq!(ok(dir, &failed)["events"].as_array().unwrap().len(), 2);
    let shown = ok(dir, &["queue", "show", "3"]);
    assert_eq!(shown["errors"][0]["error"], "canceled");
    let ran = with_json(dir, &["queue", "retry", "1", "2", "99"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let outcome = ran.json();
    assert_eq!(outcome["done"], json!([1]));
    let codes: Vec<&str> = outcome["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["error"]["code"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["queue.wrong-state", "queue.unknown"]);
    assert_eq!(outcome["refused"][0]["event"], "2");
    let all = ["queue", "retry", "--all"];
    let other = ok(dir, &[&all[..], &["--type", "B"]].concat());
    assert_eq!(other["done"], json!([]));
    assert_eq!(ok(dir, &all)["done"], json!([3]));
    assert_eq!(ok(dir, &["queue", "stats"])["pending"], 3);
    assert_eq!(run_in(dir, &["queue", "retry"]).code, Some(2));
    assert_eq!(run_in(dir, &["queue", "cancel"]).code, Some(2));
}

#[test]
fn the_help_of_each_command_has_an_example() {
    let ran = crate::command::run(&["queue", "-h"]);
    insta::assert_snapshot!("queue_help", ran.stdout);
    let ran = crate::command::run(&["projection", "-h"]);
    insta::assert_snapshot!("projection_help", ran.stdout);
    for command in [
        "queue ls",
        "queue show",
        "queue stats",
        "queue retry",
        "queue cancel",
        "queue publish",
        "queue handlers",
        "queue unregister",
        "queue migrate",
        "projection ls",
        "projection rebuild",
        "projection forget",
    ] {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.push("-h");
        let ran = crate::command::run(&arguments);
        assert_eq!(ran.code, Some(0), "{command}");
        let example = format!("tidegate {command}");
        let after = ran.stdout.split("Example").nth(1).unwrap_or_default();
        assert!(after.contains(&example), "{command}: {}", ran.stdout);
    }
}
