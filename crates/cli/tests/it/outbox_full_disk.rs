//! A relay on a file system that really has no room left: below its table, and below its log.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use tidegate::outbox::NewOutboxEvent;

use crate::outbox::{CONFIG, add_events, add_events_to, migrated_with, ok, try_to_add, wait_for};
use crate::outbox_trouble::{drained, stop, told};
use crate::running::Running;
use crate::small_room::{fill_up, room, run_in_small_room};

#[test]
fn o16_a_full_file_system_below_the_table_is_told_and_rows_go_on_when_there_is_room() {
    run_in_small_room("outbox_full_disk::child_process_entry::below_the_table", 16);
}

#[test]
fn o11_a_full_file_system_below_the_log_costs_no_attempt_and_rows_go_on_when_there_is_room() {
    run_in_small_room("outbox_full_disk::child_process_entry::below_the_log", 48);
}

/// The program that the tests above run in a process of its own.
mod child_process_entry {
    use super::{room, with_full_log, with_full_table};

    #[test]
    #[ignore = "not a test: does nothing without a room"]
    fn below_the_table() {
        room().iter().for_each(|room| with_full_table(room));
    }

    #[test]
    #[ignore = "not a test: does nothing without a room"]
    fn below_the_log() {
        room().iter().for_each(|room| with_full_log(room));
    }
}

/// Events of these numbers, each with a payload of so many bytes.
fn events(numbers: Range<usize>, bytes: usize) -> Vec<NewOutboxEvent> {
    let event = |number: usize| {
        let payload = format!("{number:0>bytes$}");
        NewOutboxEvent::new(format!("order-{}", number % 7), "T", payload)
    };
    numbers.map(event).collect()
}

/// Health names the code, the process goes on answering, and no row is blamed.
fn is_told(running: &Running, dir: &Path, code: &str) {
    let health = told(running, code);
    assert_eq!(health["status"], "DEGRADED", "{health}");
    assert!(running.get("/livez").starts_with("HTTP/1.1 200"));
    let waiting = ok(dir, &["outbox", "ls", "--limit", "10000"]);
    let rows = waiting["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["attempts"] == 0), "{waiting}");
}

/// All rows are sent after all, health is back, and the audit finds everything.
fn is_mended(running: Running, dir: &Path, rows: usize) {
    assert_eq!(drained(dir)["dead"], 0);
    let limit = Instant::now() + Duration::from_secs(60);
    while told(&running, "")["status"] != "UP" {
        assert!(Instant::now() < limit, "{}", told(&running, ""));
        std::thread::sleep(Duration::from_millis(50));
    }
    let list = ["outbox", "ls", "--status", "sent", "--limit", "10000"];
    let sent = ok(dir, &list)["rows"].as_array().unwrap().len();
    assert_eq!(sent, rows);
    let lines = stop(running);
    let told = |line: &&str| line.contains("WARN") && line.contains("rows wait");
    let warnings = lines.lines().filter(told).count();
    assert!((1..10).contains(&warnings), "{warnings} in {lines}");
    ok(dir, &["audit"]);
}

fn with_full_table(room: &Path) {
    let url = format!("sqlite://{}", room.join("shop.db").display());
    let dir = migrated_with(&CONFIG.replace("sqlite://./shop.db", &url));
    let dir = dir.path();
    let mut rows = 50;
    add_events_to(&url, &events(0..rows, 500));
    let running = Running::start(dir, &[]);
    wait_for(dir, "sent", rows);
    let ballast = fill_up(room);
    // Until there is no room for one more. The relay goes on as long as it can.
    for at_once in [50, 1] {
        loop {
            match try_to_add(&url, &events(rows..rows + at_once, 500)) {
                Ok(()) => rows += at_once,
                Err(refusal) => {
                    assert_eq!(refusal.code().as_str(), "store.broken", "{refusal}");
                    break;
                }
            }
            assert!(rows < 9_000, "it is never full");
        }
    }
    is_told(&running, dir, "store.broken: ");
    std::fs::remove_file(ballast).unwrap();
    is_mended(running, dir, rows);
}

fn with_full_log(room: &Path) {
    const ROWS: usize = 200;
    let sizes = "journal-size: 1MiB, segment-size: 1MiB, reserve: 64KiB";
    let path = room.join("log").display().to_string();
    let config = CONFIG
        .replace(
            "\nlog: {",
            &format!("\nlog: {{embedded: {{path: '{path}', {sizes}}}, "),
        )
        .replace("2KiB", "200KiB");
    let dir = migrated_with(&config);
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    let ballast = fill_up(room);
    // Far more than the files have that are there already.
    add_events(dir, &events(0..ROWS, 50_000));
    is_told(&running, dir, "log.disk: ");
    let waiting = ok(dir, &["outbox", "ls"]);
    assert!(!waiting["rows"].as_array().unwrap().is_empty());
    std::fs::remove_file(ballast).unwrap();
    is_mended(running, dir, ROWS);
}
