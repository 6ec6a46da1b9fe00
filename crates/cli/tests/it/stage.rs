//! `tidegate run` with flows: outputs, books and the commands that show them.

use std::time::{Duration, Instant};

use crate::command::run_in;
use crate::log::lines;
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
