//! `tidegate where`.

use std::path::Path;

use tidegate_testkit::{Stored, StubApi};

use crate::command::{Ran, run_in};
use crate::spill::{ids, log_to, replay, spilled};

fn where_is(dir: &Path, id: &str) -> Ran {
    let dir = dir.display().to_string();
    run_in(
        Path::new("/"),
        &["where", id, "--spill", &dir, "-o", "json"],
    )
}

#[test]
fn a_spilled_event_is_found_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 30);
    let all = ids(dir.path());
    let ran = where_is(dir.path(), &all[17]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let found = ran.json();
    assert_eq!(found["id"], all[17].as_str());
    assert_eq!(found["place"], "spilled");
    assert_eq!(
        found["component"],
        format!("logger:{}", dir.path().display())
    );
    assert!(found["at"].as_str().unwrap().ends_with('Z'), "{found}");
    assert_eq!(found["attempts"], serde_json::Value::Null);
    assert_eq!(found["history"][0]["file"], "eventlog-spillover.jsonl");
    assert_eq!(found["history"][0]["line"], 18);
    // For people.
    let path = dir.path().display().to_string();
    let ran = run_in(Path::new("/"), &["where", &all[17], "--spill", &path]);
    assert!(
        ran.stdout.contains("is spilled at logger:")
            && ran.stdout.contains("file eventlog-spillover.jsonl")
            && ran.stdout.contains("line 18"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_settled_line_of_the_snapshot_is_delivered_and_the_others_wait() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 500);
    let all = ids(dir.path());
    // The first request of the replay is answered, then the API is gone.
    let api = StubApi::start().unwrap();
    api.fail_by({
        let seen = std::sync::atomic::AtomicU32::new(0);
        move |_| {
            let before = seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            (before > 0).then(|| tidegate_testkit::Fault::status(503))
        }
    });
    let ran = replay(dir.path(), &api.url(), &["--yes"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let delivered = api.ids();
    assert!(!delivered.is_empty() && delivered.len() < 500);
    for (id, place) in [(&all[0], "delivered"), (&all[499], "spilled")] {
        let found = where_is(dir.path(), id).json();
        assert_eq!(found["place"], place, "{found}");
        assert_eq!(
            found["history"][0]["file"],
            "eventlog-spillover.replay.jsonl"
        );
    }
    assert_eq!(
        crate::spill::run(&["spill", "ls"], dir.path()).json()["waiting"],
        500 - delivered.len()
    );
}

#[test]
fn a_rejected_event_is_dead_lettered_with_why() {
    let dir = tempfile::tempdir().unwrap();
    let stored = Stored::rejecting(|event| event["details"] == "event 7");
    let api = StubApi::start_with(stored).unwrap();
    log_to(dir.path(), None, 20);
    let all = ids(dir.path());
    let ran = replay(dir.path(), &api.url(), &["--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.json()["components"][0]["account"]["dead_lettered"], 1);
    let found = where_is(dir.path(), &all[7]).json();
    assert_eq!(found["place"], "dead_lettered", "{found}");
    assert_eq!(found["attempts"], 1);
    let last = found["history"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["file"], "eventlog-spillover.rejected.jsonl");
    assert!(last["code"].is_string() && last["message"].is_string());
    let places = found["history"].as_array().unwrap().iter();
    assert!(
        places
            .map(|step| &step["place"])
            .all(|place| place != "delivered")
    );
    assert_eq!(found["at"], last["rejected_at"]);
    // One that was delivered is known only as long as its file is there.
    let ran = where_is(dir.path(), &all[8]);
    assert!(
        ran.code == Some(1) || ran.json()["place"] == "delivered",
        "{}",
        ran.stdout
    );
}

#[test]
fn an_unknown_event_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 3);
    let id = "019a8f3e-5c00-7abc-8def-0123456789ab";
    let ran = where_is(dir.path(), id);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json()["error"]["code"], "where.unknown");
    assert_eq!(run_in(dir.path(), &["where", id]).code, Some(1));
    let ran = run_in(dir.path(), &["where", "7"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("is not an event id"), "{}", ran.stderr);
}

#[test]
fn a_line_that_cannot_be_read_still_names_its_event() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 3);
    let all = ids(dir.path());
    let path = dir.path().join("eventlog-spillover.jsonl");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let found = where_is(dir.path(), &all[0]).json();
    assert_eq!(found["place"], "spilled");
    assert_eq!(found["history"][0]["is_readable"], false);
    let api = StubApi::start().unwrap();
    assert_eq!(replay(dir.path(), &api.url(), &["--yes"]).code, Some(0));
    let found = where_is(dir.path(), &all[0]).json();
    assert_eq!(found["place"], "dead_lettered");
    let last = found["history"].as_array().unwrap().last().unwrap();
    assert_eq!(last["file"], "eventlog-spillover.corrupt.jsonl");
}
