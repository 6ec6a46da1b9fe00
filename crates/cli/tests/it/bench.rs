//! `tidegate bench`.

use serde_json::json;

use crate::command::run_in;
use crate::log::{CONFIG, configured};
use crate::running::Running;

#[test]
fn a_bench_leaves_nothing_and_the_audit_finds_nothing() {
    let dir = configured(&format!(
        "{CONFIG}store: {{url: \"sqlite://./queue.db\"}}\n"
    ));
    let dir = dir.path();
    assert_eq!(run_in(dir, &["queue", "migrate"]).code, Some(0));
    let bench = |target: &str| {
        let ran = run_in(dir, &["bench", target, "--events", "50", "-o", "json"]);
        assert_eq!(ran.code, Some(0), "{target}: {}{}", ran.stdout, ran.stderr);
        let report = ran.json();
        assert_eq!(
            (&report["bench"], &report["events"]),
            (&json!(target), &json!(50))
        );
        for row in report["latencies"].as_array().unwrap() {
            let of = |name: &str| row[name].as_f64().unwrap();
            assert!(of("p50_ms") > 0.0 && of("p50_ms") <= of("p99_ms"), "{row}");
            assert!(of("p99_ms") <= of("max_ms"), "{row}");
        }
    };
    ["log", "queue", "log"].into_iter().for_each(bench);
    let shown = run_in(dir, &["bench", "log", "--events", "5"]).stdout;
    assert!(
        shown.contains("p99") && shown.contains("5 events in"),
        "{shown}"
    );
    // Beside a process, too.
    let running = Running::start(dir, &[]);
    bench("log");
    drop(running);
    let audit = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(audit.code, Some(0), "{}", audit.stdout);
    let topics = run_in(dir, &["topic", "ls", "-o", "json"]).json();
    assert_eq!(topics["topics"][0]["name"], "orders");
    assert_eq!(topics["topics"].as_array().map(Vec::len), Some(1));
    let stats = run_in(dir, &["queue", "stats", "-o", "json"]).json();
    assert_eq!(
        (&stats["pending"], &stats["processing"]),
        (&json!(0), &json!(0))
    );
    let handlers = run_in(dir, &["queue", "handlers", "-o", "json"]).json();
    assert_eq!(handlers["handlers"], json!([]));
}

#[test]
fn a_bench_is_refused_on_a_topic_of_the_user() {
    let dir = configured(&CONFIG.replace("orders:", "tidegate-bench:"));
    let ran = run_in(dir.path(), &["bench", "log", "-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(2), &json!("bench.taken"))
    );
    // One that is in no configuration, and has records.
    let sent = ["send", "tidegate-bench", "--value", "mine"];
    assert_eq!(run_in(dir.path(), &sent).code, Some(0));
    std::fs::write(dir.path().join("tidegate.yaml"), CONFIG).unwrap();
    let ran = run_in(dir.path(), &["bench", "log", "-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(2), &json!("bench.taken"))
    );
    let tail = run_in(dir.path(), &["tail", "tidegate-bench", "--until", "end"]);
    assert!(tail.stdout.contains("mine"), "{}", tail.stdout);
}
