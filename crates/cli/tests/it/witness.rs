//! `tidegate audit --witness`, and the witness that `tidegate run` writes.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{Ran, run_in};
use crate::log::{CONFIG, configured, send_one};
use crate::running::Running;
use crate::spill::{spill_more, spilled};

fn audit(dir: &Path, more: &[&str]) -> Ran {
    let mut arguments = vec!["audit", "-o", "json", "--witness", "../witness"];
    arguments.extend(more);
    run_in(dir, &arguments)
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), &to).unwrap()),
        }
    }
}

fn restore(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).unwrap();
    copy_dir(from, to);
}

/// A log in a directory of its own, so that the witness lies beside it.
fn log() -> (tempfile::TempDir, std::path::PathBuf) {
    let parent = configured("");
    let dir = parent.path().join("base");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("tidegate.yaml"), CONFIG).unwrap();
    (parent, dir)
}

fn missing(ran: &Ran) -> Vec<Value> {
    ran.json()["witness"]["missing"].as_array().unwrap().clone()
}

#[test]
fn an_old_copy_of_a_log_is_found_with_the_event_and_the_witness_stays() {
    let (parent, dir) = log();
    send_one(&dir, "one");
    copy_dir(&dir.join("log"), &parent.path().join("yesterday"));
    let id = send_one(&dir, "two");
    let ran = audit(&dir, &[]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    assert_eq!(ran.json()["witness"]["written"], true);
    let file = parent.path().join("witness");
    assert_eq!(audit(&dir, &[]).json()["witness"]["compared"], 2);
    let witness = std::fs::read(&file).unwrap();

    restore(&parent.path().join("yesterday"), &dir.join("log"));
    assert_eq!(
        run_in(&dir, &["audit"]).code,
        Some(0),
        "its books agree with it"
    );
    for _ in 0..2 {
        let ran = audit(&dir, &[]);
        assert_eq!(ran.code, Some(4), "{}", ran.stdout);
        let missing = missing(&ran);
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert_eq!(
            (
                &missing[0]["component"],
                &missing[0]["id"],
                &missing[0]["change"]
            ),
            (&"orders".into(), &id.as_str().into(), &"shrank".into())
        );
        assert_eq!(ran.json()["unaccounted"], 1);
    }
    let shown = run_in(&dir, &["audit", "--witness", "../witness"]);
    assert!(
        shown.stdout.contains(&format!("event {id} is gone")),
        "{}",
        shown.stdout
    );
    assert!(
        shown.stdout.ends_with("1 event is NOT accounted for\n"),
        "{}",
        shown.stdout
    );
    assert_eq!(std::fs::read(&file).unwrap(), witness, "untouched");
    assert!(parent.path().join("witness.new").exists());

    // Accepting it is a decision of its own.
    let ran = audit(&dir, &["--accept"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert_eq!(ran.json()["error"]["code"], "witness.unconfirmed");
    let ran = audit(&dir, &["--accept", "--yes"]);
    assert_eq!(
        (ran.code, ran.json()["unaccounted"].clone()),
        (Some(0), 0.into())
    );
    assert!(!parent.path().join("witness.new").exists());
    assert_eq!(audit(&dir, &[]).code, Some(0));
}

#[test]
fn a_removed_log_directory_is_found() {
    let (_parent, dir) = log();
    for value in ["one", "two"] {
        send_one(&dir, value);
    }
    assert_eq!(audit(&dir, &[]).code, Some(0));
    std::fs::remove_dir_all(dir.join("log")).unwrap();
    let ran = audit(&dir, &[]);
    assert_eq!(ran.code, Some(4), "{} {}", ran.stdout, ran.stderr);
    let counts: u64 = missing(&ran)
        .iter()
        .map(|one| one["count"].as_u64().unwrap())
        .sum();
    assert_eq!((counts, &missing(&ran)[0]["change"]), (2, &"gone".into()));
    // Only what was looked at is compared.
    let spill = dir.join("spill");
    spilled(&spill, 3);
    let ran = audit(&dir, &["--spill", "spill"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    assert_eq!(
        ran.json()["witness"]["not_looked_at"],
        serde_json::json!(["orders"])
    );
    assert_eq!(
        audit(&dir, &["--spill", "spill"]).json()["witness"]["compared"],
        3
    );
}

#[test]
fn an_emptied_or_replaced_spill_directory_is_found() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("base");
    let spill = dir.join("spill");
    spilled(&spill, 5);
    copy_dir(&spill, &parent.path().join("yesterday"));
    spill_more(&spill, 1);
    let arguments = ["--spill", "spill"];
    assert_eq!(audit(&dir, &arguments).code, Some(0));
    restore(&parent.path().join("yesterday"), &spill);
    let ran = audit(&dir, &arguments);
    assert_eq!(ran.code, Some(4), "{} {}", ran.stdout, ran.stderr);
    let lost = missing(&ran);
    assert_eq!((lost.len(), &lost[0]["count"]), (1, &1.into()));
    assert!(lost[0]["id"].is_string(), "{lost:?}");
    std::fs::remove_dir_all(&spill).unwrap();
    std::fs::create_dir(&spill).unwrap();
    assert_eq!(audit(&dir, &arguments).code, Some(4));
    std::fs::remove_dir(&spill).unwrap();
    assert_eq!(audit(&dir, &arguments).code, Some(4));
}

#[test]
fn a_damaged_witness_is_an_error_and_is_not_written_over() {
    let (parent, dir) = log();
    send_one(&dir, "one");
    assert_eq!(audit(&dir, &[]).code, Some(0));
    let file = parent.path().join("witness");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let ran = audit(&dir, &[]);
    assert_eq!(ran.code, Some(3), "{} {}", ran.stdout, ran.stderr);
    assert_eq!(ran.json()["error"]["code"], "witness.unreadable");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

#[test]
fn run_writes_the_witness_at_its_start_and_end_and_is_degraded_when_events_are_gone() {
    let (parent, dir) = log();
    let config = format!("{CONFIG}audit: {{witness: ../witness}}\n");
    std::fs::write(dir.join("tidegate.yaml"), config).unwrap();
    let file = parent.path().join("witness");
    let running = Running::start(&dir, &[]);
    let limit = Instant::now() + Duration::from_secs(30);
    while !file.exists() {
        assert!(Instant::now() < limit, "no witness is written");
        std::thread::sleep(Duration::from_millis(10));
    }
    send_one(&dir, "one");
    running.signal("-TERM");
    let (code, ..) = running.end();
    assert_eq!(code, Some(0));
    let written = String::from_utf8(std::fs::read(&file).unwrap()).unwrap();
    assert!(written.contains("\"orders\""), "{written}");

    copy_dir(&dir.join("log"), &parent.path().join("yesterday"));
    let running = Running::start(&dir, &[]);
    send_one(&dir, "two");
    // The running process is asked for its numbers.
    let ran = audit(&dir, &[]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    running.signal("-TERM");
    running.end();
    restore(&parent.path().join("yesterday"), &dir.join("log"));
    // Without `--witness` the configured one is compared, and not written.
    let ran = run_in(&dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    assert_eq!(missing(&ran).len(), 1);
    let witness = std::fs::read(&file).unwrap();
    let running = Running::start(&dir, &[]);
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        let health = running.get("/health");
        if health.contains("DEGRADED") {
            assert!(
                health.contains("it knows of 1 event in `orders`"),
                "{health}"
            );
            break;
        }
        assert!(Instant::now() < limit, "{health}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(std::fs::read(&file).unwrap(), witness);
    assert!(parent.path().join("witness.new").exists());
}
