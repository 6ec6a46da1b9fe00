//! `tidegate check`.

use std::path::Path;

use crate::command::{Ran, run, run_in, run_with_input, tidegate};
use crate::running::Running;

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
    assert_eq!(ran.stdout, "tidegate.yaml: 10 problems, 1 warning\n");
    assert!(
        ran.stderr.contains("lisen: 127.0.0.1:8080"),
        "{}",
        ran.stderr
    );
}

#[test]
fn g08_configurations_of_the_systems_before_load_unchanged() {
    for (name, is_built) in [
        ("eventlog-full.yaml", true),
        ("eventlog-pet-resort.yaml", true),
        ("outbox.yaml", true),
        ("eventbus-full.yaml", false),
        ("eventbus-minimal.yaml", false),
    ] {
        let ran = run(&["check", &fixture(name), "-o", "json"]);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stdout);
        assert_eq!(
            ran.json()["problems"].as_array().unwrap().len(),
            0,
            "{name}"
        );
        if is_built {
            let dir = tempfile::tempdir().unwrap();
            let running = Running::start(dir.path(), &["-c", &fixture(name)]);
            running.signal("-TERM");
            let (code, _, stderr) = running.end();
            assert_eq!(code, Some(0), "{name}: {stderr}");
            continue;
        }
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

#[test]
fn a_configuration_may_come_from_a_pipe() {
    const WRONG: &str = "server:\n  lisen: 127.0.0.1:0\n";
    let dir = tempfile::tempdir().unwrap();
    for (file, name) in [("-", "standard input"), ("/dev/stdin", "/dev/stdin")] {
        let ran = run_with_input(dir.path(), &["check", file, "-o", "json"], WRONG);
        assert_eq!(ran.code, Some(3), "{file}: {}", ran.stdout);
        let problem = &ran.json()["problems"][0];
        assert_eq!(
            (&problem["file"], &problem["line"]),
            (&name.into(), &2.into())
        );
        let ran = run_with_input(
            dir.path(),
            &["config", "show", "-c", file],
            "shutdown-timeout: 7s",
        );
        assert!(
            ran.stdout.contains("shutdown-timeout: 7s"),
            "{file}: {}",
            ran.stdout
        );
    }
    // A shell makes this of `<(…)`: a pipe under a name of its own.
    std::fs::write(dir.path().join("wrong.yaml"), WRONG).unwrap();
    let script = "cat wrong.yaml | { \"$0\" check /dev/fd/3 -o json 3<&0 </dev/null; }";
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_tidegate")])
        .current_dir(dir.path())
        .output();
    let ran = Ran::from(output.unwrap());
    assert_eq!(
        ran.json()["problems"].as_array().unwrap().len(),
        1,
        "{}",
        ran.stdout
    );
}

#[test]
fn a_body_that_never_ends_is_too_large() {
    let ran = run(&["check", "/dev/zero", "-o", "json"]);
    assert_eq!(ran.code, Some(1));
    let message = ran.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("too large"), "{message}");
}

/// `run` must take every token that `check` lets through: it is sent in a header.
#[test]
fn a_token_that_run_would_refuse_is_a_problem_of_check() {
    let dir = tempfile::tempdir().unwrap();
    for (token, is_good) in [
        ("sesame", true),
        ("s3.cret~!", true),
        ("open sesame", false),
        ("tab\tbed", false),
        ("café", false),
        ("***", false),
    ] {
        assert_eq!(
            tidegate::server::Token::new(token).is_ok() && token != "***",
            is_good,
            "{token}"
        );
        let text = format!("server:\n  token: {}\n", serde_json::json!(token));
        std::fs::write(dir.path().join("tidegate.yaml"), text).unwrap();
        let ran = run_in(dir.path(), &["check", "-o", "json"]);
        assert_eq!(ran.code, Some(if is_good { 0 } else { 3 }), "{token}");
        if !is_good {
            let problem = &ran.json()["problems"][0];
            assert_eq!(
                (&problem["line"], &problem["column"], &problem["path"]),
                (&2.into(), &10.into(), &"server.token".into())
            );
            let ran = run_in(dir.path(), &["run", "-o", "json"]);
            assert_eq!(ran.code, Some(3), "{token}: {}", ran.stderr);
            assert_eq!(ran.json()["problems"][0], *problem);
        }
    }
}

#[test]
fn the_sample_of_every_section_has_warnings_only() {
    const SAMPLE: &str = r#"
log:      { embedded: { path: ./data/log } }
store:    { url: "sqlite:./data/tidegate.db" }
server:   { listen: 127.0.0.1:8080, read-only: false }
eventlog: { enabled: true, base-url: "${EVENTLOG_URL}", async: { spillover-path: ./spillover } }
queue:    { abandonment-timeout: 1m, poll-delay-ms: 200 }
outbox:   { loans: { batch-size: 100, max-attempts: 8, backoff: { initial-ms: 200, max-ms: 60000 } } }
eventbus: { bindings: { notifications: { topic: notification.events, group-id: notification-group } } }
flows:    [ ./flows/*.flow ]
console:  { saved-filters: [ { name: Declined, cel: "value.status == 'DECLINED'" } ], mask: [ "value.card.*" ] }
imports:  [ conf.d/*.yaml ]
"#;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tidegate.yaml"), SAMPLE).unwrap();
    let output = tidegate(dir.path(), &["check", "-o", "json"])
        .env("EVENTLOG_URL", "http://localhost:8081")
        .output();
    let ran = Ran::from(output.unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    let warnings = ran.json()["warnings"].as_array().unwrap().clone();
    let paths: Vec<&str> = warnings
        .iter()
        .map(|w| w["path"].as_str().unwrap())
        .collect();
    assert!(
        paths.contains(&"console") && paths.contains(&"imports[0]"),
        "{paths:?}"
    );
}

#[test]
fn imported_files_stand_under_the_one_that_imports_them() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    std::fs::create_dir_all(dir.path().join("etc/conf.d/sub.yaml")).unwrap();
    write(
        "etc/tidegate.yaml",
        "imports: [conf.d/*.yaml]\nshutdown-timeout: 1s\n",
    );
    write(
        "etc/conf.d/10.yaml",
        "shutdown-timeout: 2s\nserver: {max-body: 2MiB, max-header: 2KiB}\n",
    );
    write("etc/conf.d/20.yaml", "server:\n  max-body: 3MiB\n");
    write("etc/conf.d/.hidden.yaml", "wrong: 1\n");
    write("etc/conf.d/30.yml", "wrong: 1\n");
    let show = ["config", "show", "--origin", "-c", "etc/tidegate.yaml"];
    let ran = run_in(dir.path(), &show);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for expect in [
        "shutdown-timeout: 1s # etc/tidegate.yaml:2:19",
        "max-body: 3MiB # etc/conf.d/20.yaml:2:13",
        "max-header: 2KiB # etc/conf.d/10.yaml:2:38",
    ] {
        assert!(ran.stdout.contains(expect), "{expect}: {}", ran.stdout);
    }
    // A mistake is reported in the file that has it, a circle and a missing file where they are
    // asked for.
    write("etc/conf.d/20.yaml", "server:\n  max-body: much\n");
    write(
        "etc/conf.d/40.yaml",
        "imports: [../tidegate.yaml, gone.yaml, c*/d.yaml, ./10.yaml]\n",
    );
    let ran = run_in(dir.path(), &["check", "etc/tidegate.yaml", "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let problems = ran.json()["problems"].as_array().unwrap().clone();
    let places: Vec<String> = problems
        .iter()
        .map(|p| format!("{} {} {}", p["file"], p["line"], p["path"]).replace('"', ""))
        .collect();
    assert!(
        places.contains(&"etc/conf.d/20.yaml 2 server.max-body".to_owned()),
        "{places:?}"
    );
    let imports = places.iter().filter(|place| place.contains("imports"));
    assert!(imports.count() >= 3, "{problems:#?}");
}

#[test]
fn init_writes_a_file_that_holds_and_never_changes_one() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run_in(dir.path(), &["check", "-o", "json"]);
    assert_eq!(ran.json()["error"]["code"], "config.unreadable");
    assert!(ran.stderr.contains("tidegate init"), "{}", ran.stderr);
    assert_eq!(run_in(dir.path(), &["init"]).code, Some(0));
    let ran = run_in(dir.path(), &["check"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    let file = dir.path().join("tidegate.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    // The blocks that are commented out hold as well.
    let (whole, commented) = text.split_once("\n# audit:\n").unwrap();
    let commented: String = commented
        .lines()
        .filter(|line| !line.starts_with("# Bindings"))
        .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line)))
        .collect();
    std::fs::write(&file, format!("{whole}\naudit:\n{commented}")).unwrap();
    let ran = run_in(dir.path(), &["check"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    std::fs::write(&file, "log: {}\n").unwrap();
    let ran = run_in(dir.path(), &["init", "-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(1), &"init.exists".into())
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "log: {}\n");
}

#[test]
fn doctor_says_of_each_thing_whether_it_is_well_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, "server: {listen: \"127.0.0.1:0\"}\n").unwrap();
    let doctor = || run_in(dir.path(), &["doctor", "-o", "json"]);
    let ran = doctor();
    assert_eq!(ran.code, Some(0), "{} {}", ran.stdout, ran.stderr);
    let checks = ran.json()["checks"].clone();
    let names: Vec<_> = checks
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["config", "clock", "log", "store", "server"]);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is made: {left:?}");
    // Everything that is wrong is said, with what to do.
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = busy.local_addr().unwrap();
    let text = format!(
        "server: {{listen: \"{listen}\"}}\naudit: {{witness: ./witness}}\nlog: {{embedded: {{path: ./log, \
         journal-size: 900000GiB}}}}\nstore: {{url: \"sqlite://./x.db\"}}\n"
    );
    std::fs::write(&file, text).unwrap();
    std::fs::write(dir.path().join("x.db"), "this is no database".repeat(100)).unwrap();
    let ran = doctor();
    assert_eq!(ran.code, Some(3), "{} {}", ran.stdout, ran.stderr);
    let checks = ran.json()["checks"].clone();
    let wrong = checks
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["ok"] == false);
    let wrong: Vec<_> = wrong
        .map(|one| {
            assert!(one["todo"].is_string(), "{one}");
            &one["name"]
        })
        .collect();
    assert_eq!(wrong, ["log", "store", "server", "witness"], "{checks}");
    drop(busy);
    let shown = run_in(dir.path(), &["doctor"]).stdout;
    assert!(
        shown.contains("✓ clock") && shown.contains("✗ witness") && shown.contains("→ "),
        "{shown}"
    );
}

/// Nothing of what only its owner should know is in the file that a helper gets.
#[test]
fn a_bundle_has_no_secret_and_nothing_of_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let planted = [
        "planted-token",
        "planted-password",
        "planted-key",
        "planted-value",
        "planted-name",
        "planted-header",
        "planted-payload",
        "planted-detail",
    ];
    let config = "server: {token: planted-token, listen: \"127.0.0.1:0\"}\nlog: {embedded: {path: log, \
                  journal-size: 1MiB}, topics: {orders: {partitions: 1}}}\nstore: {url: \"sqlite://./queue.db\"}\n\
                  eventlog: {base-url: \"http://u:planted-password@127.0.0.1:1/\", async: \
                  {enabled: true, spillover-path: ./spill}}\n";
    std::fs::write(dir.join("tidegate.yaml"), config).unwrap();
    let ok = |arguments: &[&str]| {
        let ran = run_in(dir, arguments);
        assert_eq!(
            ran.code,
            Some(0),
            "{arguments:?}: {}{}",
            ran.stdout,
            ran.stderr
        );
        ran
    };
    let header = "planted-name=planted-header";
    ok(&[
        "send",
        "orders",
        "--key",
        "planted-key",
        "--value",
        "planted-value",
        "--header",
        header,
    ]);
    ok(&["queue", "migrate"]);
    let publish = [
        "queue",
        "publish",
        "A",
        r#"{"x":"planted-payload"}"#,
        "--key",
        "planted-key",
    ];
    ok(&[&publish[..], &["--header", header]].concat());
    crate::spill::spilled(&dir.join("spill"), 3);
    let line = std::fs::read_to_string(dir.join("spill/eventlog-spillover.jsonl")).unwrap();
    let details = serde_json::from_str::<serde_json::Value>(line.lines().next().unwrap()).unwrap();
    let details = details["details"].as_str().unwrap().to_owned();
    let check = |name: &str| {
        let bundle = std::fs::read_to_string(dir.join(name)).unwrap();
        for secret in planted.iter().copied().chain([details.as_str()]) {
            assert!(!bundle.contains(secret), "{secret} is in {bundle}");
        }
        let document: serde_json::Value = serde_json::from_str(&bundle).unwrap();
        assert_eq!(document["log"]["topics"][0]["topic"], "orders");
        assert_eq!(document["queue"]["stats"]["pending"], 1, "{bundle}");
        assert!(document["config"].to_string().contains("***"), "{bundle}");
        assert!(bundle.contains("eventlog-spillover.jsonl"), "{bundle}");
        document
    };
    ok(&["doctor", "--bundle", "still.json"]);
    check("still.json");
    // A file that is there is not written over.
    let again = run_in(dir, &["doctor", "--bundle", "still.json", "-o", "json"]);
    assert_eq!(
        (again.code, &again.json()["error"]["code"]),
        (Some(1), &"bundle.unwritable".into())
    );
    let running = crate::running::Running::start(dir, &[]);
    let listen = format!("server.listen={}", running.address);
    ok(&["doctor", "--bundle", "live.json", "--set", &listen]);
    let live = check("live.json");
    assert!(
        live["process"]["metrics"]
            .as_str()
            .unwrap()
            .contains("# HELP"),
        "{live}"
    );
}
