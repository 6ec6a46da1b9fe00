//! `tidegate check`.

use std::path::Path;

use crate::command::{run, run_in};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../config/tests/fixtures")
        .join(name);
    path.canonicalize().unwrap().display().to_string()
}

/// Ten different mistakes, each with the line and column where it stands.
const TEN_MISTAKES: &str = "\
server:
  lisen: 127.0.0.1:8080
  max-body: plenty
  read-only: maybe
store:
  max-connections: 0
shutdown-timeout: soon
log:
  embedded: { path: ${NOWHERE} }
eventbus:
  bindings:
    orders:
      topic: orders.events
      topic: orders.again
      ack-mode: SOMETIMES
      group-id: g
      session-timeout-ms: 1000
      heartbeat-interval-ms: 900
      retry: { tiers: [ { delay-ms: 10, delay: 10ms } ] }
";

#[test]
fn g07_ten_mistakes_are_ten_problems_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tidegate.yaml"), TEN_MISTAKES).unwrap();
    let ran = run_in(dir.path(), &["check", "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let problems = ran.json()["problems"].as_array().unwrap().clone();
    let places: Vec<String> = problems
        .iter()
        .map(|p| {
            format!(
                "{}:{} {}",
                p["line"],
                p["column"],
                p["path"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            "2:3 server.lisen",
            "3:13 server.max-body",
            "4:14 server.read-only",
            "6:20 store.max-connections",
            "7:19 shutdown-timeout",
            "9:21 log.embedded.path",
            "14:7 eventbus.bindings.orders.topic",
            "15:17 eventbus.bindings.orders.ack-mode",
            "17:27 eventbus.bindings.orders.session-timeout-ms",
            "19:41 eventbus.bindings.orders.retry.tiers[0].delay",
        ]
    );
    assert_eq!(problems[0]["hint"], "did you mean `listen`?");
    // For people, the same with the lines themselves.
    let ran = run_in(dir.path(), &["check", "tidegate.yaml"]);
    assert_eq!(ran.code, Some(3));
    assert_eq!(ran.stdout, "tidegate.yaml: 10 problems, 3 warnings\n");
    assert!(
        ran.stderr.contains("lisen: 127.0.0.1:8080"),
        "{}",
        ran.stderr
    );
}

#[test]
fn g08_configurations_of_the_systems_before_load_unchanged() {
    for name in [
        "eventlog-full.yaml",
        "eventlog-pet-resort.yaml",
        "eventbus-full.yaml",
        "eventbus-minimal.yaml",
        "outbox.yaml",
    ] {
        let ran = run(&["check", &fixture(name), "-o", "json"]);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stdout);
        assert_eq!(
            ran.json()["problems"].as_array().unwrap().len(),
            0,
            "{name}"
        );
        // Parts that are not built are warned about, and refused by `run`.
        assert!(
            !ran.json()["warnings"].as_array().unwrap().is_empty(),
            "{name}"
        );
        let ran = run(&["run", "-c", &fixture(name)]);
        assert_eq!(ran.code, Some(3), "{name}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("config.invalid"),
            "{name}: {}",
            ran.stderr
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("latin.yaml"), b"server: { token: caf\xe9 }").unwrap();
    std::fs::write(dir.path().join("large.yaml"), vec![b'#'; 2 << 20]).unwrap();
    let check = |file: &str, expect: &str| {
        let ran = run_in(dir.path(), &["check", file, "-o", "json"]);
        assert_eq!(ran.code, Some(1), "{file}");
        let message = ran.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(expect), "{file}: {message}");
    };
    check("missing.yaml", "cannot read `missing.yaml`");
    check("latin.yaml", "byte 20 is not UTF-8");
    check("large.yaml", "2097152 bytes");
    check(".", "cannot read `.`");
}
