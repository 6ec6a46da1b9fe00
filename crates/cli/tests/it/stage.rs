//! `tidegate run` with flows: outputs, books and the commands that show them.

use std::time::{Duration, Instant};

use crate::command::run_in;
use crate::log::lines;
use crate::log_audit::turn;
use crate::running::Running;

const FLOW: &str = "process order_totals\n    receive orders filter amount > 0\n    \
    transform state.total = state.total + amount total = state.total\n    emit to totals\n    state\n        \
    local total keyed by customer type counter\n    end\nend\n";

const CONFIG: &str = "log:\n  embedded: {path: log, journal-size: 1MiB, segment-size: 1MiB}\nflows: [ \"*.flow\" ]\n\
    streams:\n  orders: {partitions: 2}\n  totals: {}\n  order_totals_dlq: {}\n\
    resources:\n  order_totals: {epoch: {interval: 50ms}}\n";

/// A01, A08: a stage that is killed goes on where it was, and the audit finds nothing.
#[test]
fn a_flow_runs_in_the_process_and_goes_on_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("order_totals.flow"), FLOW).unwrap();
    std::fs::write(dir.join("tidegate.yaml"), CONFIG).unwrap();
    let mut sent = 0;
    for signal in ["-KILL", "-TERM"] {
        let running = Running::start(dir, &[]);
        assert!(
            running.banner.contains("order_totals"),
            "{}",
            running.banner
        );
        let url = format!("http://{}", running.address);
        wait(|| {
            let ran = run_in(dir, &["stage", "ls", "--url", &url, "-o", "json"]);
            ran.code == Some(0) && ran.json()["stages"][0]["state"] == "RUNNING"
        });
        for value in [
            r#"{"customer":"a","amount":5}"#,
            r#"{"customer":"a","amount":0}"#,
            "no JSON",
        ] {
            let ran = run_in(dir, &["send", "orders", "--key", "a", "--value", value]);
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            sent += 1;
        }
        wait(|| {
            let ran = run_in(dir, &["ledger", "--url", &url, "-o", "json"]);
            let ledger = ran.json();
            let components = ledger["components"].as_array().unwrap();
            let of_stage = components
                .iter()
                .find(|one| one["name"] == "order_totals@orders");
            of_stage.is_some_and(|one| {
                one["account"]["queued"] == 0 && one["account"]["accepted"] == sent
            })
        });
        let ran = run_in(dir, &["stage", "show", "order_totals", "--url", &url]);
        assert!(
            ran.stdout.contains("RUNNING"),
            "{}{}",
            ran.stdout,
            ran.stderr
        );
        let ran = run_in(dir, &["audit"]);
        assert_eq!(ran.code, Some(0), "live: {}{}", ran.stdout, ran.stderr);
        running.signal(signal);
        running.end();
    }
    let ran = run_in(dir, &["tail", "totals", "--until", "end", "-o", "json"]);
    let totals: Vec<String> = lines(&ran)
        .iter()
        .map(|line| line["value"].to_string())
        .collect();
    assert_eq!(totals.len(), 2, "{totals:?}");
    assert!(
        totals[1].contains("\"total\":10") || totals[1].contains("\\\"total\\\":10"),
        "{totals:?}"
    );
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("order_totals@orders"), "{}", ran.stdout);
}

/// Waits until something is so, at most a minute.
fn wait(mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "it does not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const WAITS: &str = "process waits\n    receive orders\n    receive payments\n    \
    await orders until payments arrives matching on customer timeout 1 hour emit to orphans\n    \
    emit to matched\nend\n";

const WAITS_CONFIG: &str = "log:\n  embedded: {path: log, journal-size: 1MiB, segment-size: 1MiB}\nflows: [ \"*.flow\" ]\n\
    streams:\n  orders: {partitions: 1}\n  payments: {partitions: 1}\n  orphans: {}\n  matched: {}\n  \
    waits_dlq: {}\nresources:\n  waits: {epoch: {records: 1}}\n";

/// A08: the frame of one waiting record is destroyed. The audit exits with 4 and names the record.
#[test]
fn a_destroyed_frame_of_a_waiting_record_is_a_loss_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("waits.flow"), WAITS).unwrap();
    std::fs::write(dir.join("tidegate.yaml"), WAITS_CONFIG).unwrap();
    let running = Running::start(dir, &[]);
    let url = format!("http://{}", running.address);
    wait(|| {
        let ran = run_in(dir, &["stage", "ls", "--url", &url, "-o", "json"]);
        ran.code == Some(0) && ran.json()["stages"][0]["state"] == "RUNNING"
    });
    let mut ids = Vec::new();
    for customer in ["ann", "bob", "cid"] {
        let value = format!("{{\"customer\":\"{customer}\"}}");
        let ran = run_in(
            dir,
            &[
                "send", "orders", "--key", customer, "--value", &value, "-o", "json",
            ],
        );
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ids.push(ran.json()["id"].as_str().unwrap().to_owned());
    }
    wait(|| {
        let ran = run_in(
            dir,
            &["stage", "pending", "waits", "--url", &url, "-o", "json"],
        );
        ran.json()["count"] == 3
    });
    running.signal("-TERM");
    running.end();
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let changelog = std::fs::read_dir(dir.join("log")).unwrap();
    let changelog = changelog.map(|entry| entry.unwrap().path());
    let changelog = changelog
        .filter(|path| path.to_string_lossy().contains("changelog"))
        .last()
        .unwrap();
    turn(&changelog, ".seg", "\"customer\":\"bob\"");
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains(&ids[1]), "{}", ran.stdout);
    assert!(!ran.stdout.contains(&ids[0]), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("stage.changelog.damaged"),
        "{}",
        ran.stdout
    );
}

/// R06: a checkpoint by command, a look into the state, and the way back.
#[test]
fn r06_a_stage_is_taken_back_to_a_checkpoint_by_command() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("order_totals.flow"), FLOW).unwrap();
    let config = format!("{CONFIG}checkpoints: {{default: {{path: kept}}}}\n");
    std::fs::write(dir.join("tidegate.yaml"), config).unwrap();
    let running = Running::start(dir, &[]);
    let url = format!("http://{}", running.address);
    let total = || {
        let ran = run_in(
            dir,
            &[
                "stage",
                "state",
                "get",
                "order_totals",
                "total",
                "a b",
                "--url",
                &url,
                "-o",
                "json",
            ],
        );
        ran.json()["values"]["a b"].as_u64()
    };
    let send = || {
        let value = r#"{"customer":"a b","amount":5}"#;
        let ran = run_in(dir, &["send", "orders", "--key", "a", "--value", value]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    };
    send();
    wait(|| total() == Some(5));
    // A checkpoint has the state of committed epochs.
    wait(|| {
        let ran = run_in(dir, &["stage", "ls", "--url", &url, "-o", "json"]);
        ran.json()["stages"][0]["records-in"] == 1
    });
    // A repeated request with a key takes no other one.
    let keyed =
        "/tidegate/stages/order_totals/checkpoint HTTP/1.1\r\nIdempotency-Key: k1\r\nX-Unused:";
    let taken = [(); 2].map(|()| running.post(keyed, ""));
    for answer in taken {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["number"], 1, "{answer}");
    }
    let ran = run_in(
        dir,
        &[
            "stage",
            "checkpoint",
            "order_totals",
            "--url",
            &url,
            "-o",
            "json",
        ],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.json()["number"], 2);
    send();
    wait(|| total() == Some(10));
    let back = [
        "stage",
        "restore",
        "order_totals",
        "--checkpoint",
        "2",
        "--yes",
    ];
    let ran = run_in(dir, &back);
    assert_ne!(ran.code, Some(0), "it runs: {}", ran.stdout);
    let ran = run_in(dir, &["stage", "drain", "order_totals", "--url", &url]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    wait(|| {
        let ran = run_in(dir, &["stage", "show", "order_totals", "--url", &url]);
        ran.stdout.contains("STOPPED")
    });
    running.signal("-TERM");
    running.end();
    let ran = run_in(dir, &back);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("1 record"), "{}", ran.stdout);
    let running = Running::start(dir, &[]);
    let url = format!("http://{}", running.address);
    wait(|| {
        let ran = run_in(dir, &["ledger", "--url", &url, "-o", "json"]);
        let ledger = ran.json();
        let components = ledger["components"].as_array().cloned().unwrap_or_default();
        let of_stage = components
            .iter()
            .find(|one| one["name"] == "order_totals@orders");
        of_stage.is_some_and(|one| one["account"]["queued"] == 0)
    });
    running.signal("-TERM");
    running.end();
    let ran = run_in(dir, &["tail", "totals", "--until", "end", "-o", "json"]);
    let found = lines(&ran);
    assert_eq!(found.len(), 3, "the second output came again: {found:?}");
    assert_eq!(found[1]["id"], found[2]["id"], "with the same id");
    assert_eq!(found[1]["value"], found[2]["value"]);
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
}
