//! `tidegate audit`.

use std::path::Path;

use serde_json::Value;

use crate::command::{Ran, run_in};
use crate::spill::{Spilling, cut_line, ids, spilled};

fn audit(dir: &Path) -> Ran {
    run_in(
        Path::new("/"),
        &["audit", "-o", "json", "--spill", &dir.display().to_string()],
    )
}

#[test]
fn events_that_a_logger_left_behind_are_all_there() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 120);
    let ran = audit(dir.path());
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    let audit = ran.json();
    assert_eq!(audit["unaccounted"], 0);
    let component = &audit["components"][0];
    assert_eq!(
        component["name"],
        format!("logger:{}", dir.path().display())
    );
    assert_eq!(component["kind"], "logger");
    for side in ["books", "recount"] {
        assert_eq!(component[side]["spilled"], 120, "{side}: {component}");
        assert_eq!(component[side]["lost"]["total"], 0, "{side}");
    }
    assert_eq!(component["removed"]["accepted"], 0);
    assert_eq!(component["unverifiable"], 0);
    assert_eq!(component["missing"], serde_json::json!([]));
    // The keys and their order are the contract.
    assert!(
        ran.stdout
            .starts_with("{\"components\":[{\"name\":\"logger:"),
        "{}",
        ran.stdout
    );
    let keys = ["kind", "books", "recount", "removed", "unverifiable"];
    let places: Vec<_> = keys
        .iter()
        .map(|key| ran.stdout.find(&format!("\"{key}\":")).unwrap())
        .collect();
    assert!(places.is_sorted(), "{}", ran.stdout);
}

#[test]
fn one_line_that_was_cut_out_is_named() {
    for position in [0, 60, 119] {
        let dir = tempfile::tempdir().unwrap();
        spilled(dir.path(), 120);
        let id = cut_line(dir.path(), position);
        let ran = audit(dir.path());
        assert_eq!(ran.code, Some(4), "{}", ran.stdout);
        let audit = ran.json();
        assert_eq!(audit["unaccounted"], 1);
        let missing = &audit["components"][0]["missing"];
        assert_eq!(missing.as_array().unwrap().len(), 1, "{missing}");
        assert_eq!(missing[0]["id"], id, "line {position}");
        assert_eq!(missing[0]["place"], "spilled");
        assert_eq!(missing[0]["count"], 1);
        assert!(missing[0]["bucket"].as_str().unwrap().starts_with('m'));
        // For people, the same.
        let path = dir.path().display().to_string();
        let ran = run_in(Path::new("/"), &["audit", "--spill", &path]);
        assert_eq!(ran.code, Some(4));
        assert!(
            ran.stdout.contains(&format!("event {id} is missing")),
            "{}",
            ran.stdout
        );
        assert!(
            ran.stdout.ends_with("1 event is NOT accounted for\n"),
            "{}",
            ran.stdout
        );
    }
}

#[test]
fn two_lines_that_were_cut_out_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 20);
    cut_line(dir.path(), 3);
    cut_line(dir.path(), 9);
    let ran = audit(dir.path());
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    assert_eq!(ran.json()["unaccounted"], 2, "{}", ran.stdout);
}

#[test]
fn it_runs_beside_a_logger_that_keeps_spilling() {
    let dir = tempfile::tempdir().unwrap();
    let spilling = Spilling::start(dir.path());
    let mut counts = Vec::new();
    // At least eight times, and until it has spilled more meanwhile.
    while counts.len() < 8 || (counts.first() == counts.last() && counts.len() < 200) {
        let ran = audit(dir.path());
        assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
        let found = ran.json()["components"][0]["recount"]["spilled"].as_u64();
        counts.push(found.unwrap());
    }
    spilling.stop();
    assert!(counts.is_sorted(), "{counts:?}");
    assert!(counts.first() < counts.last(), "{counts:?}");
    assert_eq!(audit(dir.path()).code, Some(0));
}

#[test]
fn the_configured_directory_is_audited_unless_others_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = "eventlog:\n  async:\n    spillover-path: ./spillover\n";
    std::fs::write(dir.path().join("tidegate.yaml"), yaml).unwrap();
    // Nobody can say whether anything was ever spilled.
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert_eq!(
        ran.json()["components"][0]["findings"][0]["code"],
        "spill.missing"
    );
    spilled(&dir.path().join("spillover"), 5);
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let components = ran.json()["components"].as_array().unwrap().clone();
    assert_eq!(components[0]["name"], "logger:./spillover");
    assert_eq!(components[0]["books"]["spilled"], 5);
    // Two directories, one of them short of an event.
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    spilled(&one, 3);
    spilled(&two, 4);
    cut_line(&two, 1);
    let arguments = [
        "audit", "-o", "json", "--spill", "one", "--spill", "two", "--spill", "one",
    ];
    let ran = run_in(dir.path(), &arguments);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    let unaccounted: Vec<Value> = ran.json()["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|component| component["unaccounted"].clone())
        .collect();
    assert_eq!(unaccounted, [0, 1]);
}

#[test]
fn nothing_to_audit_is_said_and_a_directory_that_cannot_be_read_fails() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run_in(dir.path(), &["audit"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("nothing was audited"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--spill DIR"), "{}", ran.stderr);
    let ran = run_in(dir.path(), &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(ran.json()["error"]["code"], "audit.nothing");
    std::fs::write(dir.path().join("file"), "x").unwrap();
    for name in ["missing", "file"] {
        let ran = run_in(dir.path(), &["audit", "--spill", name, "-o", "json"]);
        assert_eq!(ran.code, Some(1), "{name}");
        assert_eq!(ran.json()["error"]["code"], "spill.unreadable", "{name}");
    }
    std::fs::write(
        dir.path().join("tidegate.yaml"),
        "eventlog: { async: { batch-size: no } }",
    )
    .unwrap();
    assert_eq!(run_in(dir.path(), &["audit"]).code, Some(3));
}

#[test]
fn a_line_that_cannot_be_read_is_missing_and_named() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 10);
    let path = dir.path().join("eventlog-spillover.jsonl");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let ran = audit(dir.path());
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    let component = &ran.json()["components"][0];
    assert_eq!(component["unaccounted"], 1);
    assert_eq!(component["missing"][0]["id"], ids(dir.path())[0]);
    assert_eq!(component["findings"][0]["code"], "line.unreadable");
}

#[test]
fn a_directory_without_books_or_files_is_not_approved() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 10);
    std::fs::remove_file(dir.path().join("eventlog-spillover.jsonl")).unwrap();
    std::fs::remove_file(dir.path().join("eventlog-spillover.books")).unwrap();
    let first = |ran: &Ran| ran.json()["components"][0]["findings"][0]["code"].clone();
    let ran = audit(dir.path());
    assert_eq!((ran.code, first(&ran)), (Some(3), "books.missing".into()));
    std::fs::remove_file(dir.path().join("eventlog-spillover.lock")).unwrap();
    let ran = audit(dir.path());
    assert_eq!((ran.code, first(&ran)), (Some(3), "spill.missing".into()));
    let path = dir.path().display().to_string();
    let ran = run_in(Path::new("/"), &["audit", "--spill", &path]);
    assert!(!ran.stdout.contains('✓'), "{}", ran.stdout);
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_spill_file_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 3);
    for name in [
        "eventlog-spillover.jsonl",
        "eventlog-spillover.rejected.jsonl",
    ] {
        let path = dir.path().join(name);
        std::fs::remove_file(&path).ok();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let ran = audit(dir.path());
        assert_eq!(ran.code, Some(1), "{}", ran.stdout);
        assert_eq!(ran.json()["error"]["code"], "spill.unreadable");
    }
}
