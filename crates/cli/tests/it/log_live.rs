//! The log of a running process, and the commands that find its directory held.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use crate::command::{run_in, run_with_input, tidegate};
use crate::log::{CONFIG, configured, lines, read_all, send_one};
use crate::log_audit::turn;
use crate::running::{Running, signal};

fn stop(running: Running) -> (Option<i32>, String, String) {
    running.signal("-TERM");
    running.end()
}

/// The topic `orders` in a ledger or an audit.
fn orders(document: &serde_json::Value) -> &serde_json::Value {
    let mut components = document["components"].as_array().unwrap().iter();
    let found = components.find(|component| component["name"] == "orders");
    found.unwrap_or_else(|| panic!("{document}"))
}

#[test]
fn damage_that_a_running_process_finds_is_in_its_health_its_metrics_and_its_log() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    // A stop puts the records into segments.
    send_one(dir, "first-value");
    send_one(dir, "second-value");
    let running = Running::start(dir, &[]);
    assert!(!running.get("/health").contains("DEGRADED"));
    turn(&dir.join("log/topic-orders"), ".seg", "first-value");
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(4), "{} {}", ran.stdout, ran.stderr);
    // Health is looked at once a second.
    let is_told = || {
        let health = running.get("/health");
        health.contains("DEGRADED") && health.contains("damaged")
    };
    within(is_told, "health does not tell");
    let metrics = running.get("/metrics");
    assert!(
        metrics.contains("\ntidegate_log_damage_found_total "),
        "{metrics}"
    );
    let (_, _, said) = stop(running);
    assert!(said.contains("the log is damaged"), "{said}");
}

#[test]
fn damage_to_the_files_themselves_is_found_by_the_process_that_has_them() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    send_one(dir, "first-value");
    let running = Running::start(dir, &[]);
    let manifest = dir.join("log/manifest");
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{} {}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("\"log.manifest\""), "{}", ran.stdout);
    within(
        || running.get("/health").contains("DEGRADED"),
        "health does not tell",
    );
    stop(running);
}

#[test]
fn commands_on_a_held_directory_ask_the_process_that_holds_it() {
    let dir = configured(&format!("{CONFIG}server: {{token: sesame}}\n"));
    let dir = dir.path();
    let running = Running::start(dir, &["-o", "json"]);
    assert!(
        running.banner.contains("✓ log      embedded log"),
        "{}",
        running.banner
    );
    let id = send_one(dir, "one");
    let input = "two\nthree\n".repeat(600);
    let ran = run_with_input(dir, &["send", "orders", "-o", "json"], &input);
    assert_eq!(
        (ran.code, lines(&ran).len()),
        (Some(0), 1_200),
        "{}",
        ran.stderr
    );
    let read = read_all(dir);
    assert_eq!(read.len(), 1_201);
    assert!(
        read.iter()
            .any(|read| read["id"] == id.as_str() && read["value"] == "one")
    );
    let ran = run_in(
        dir,
        &[
            "tail", "orders", "--from", "-1h", "--max", "5", "-o", "json",
        ],
    );
    assert_eq!(lines(&ran).len(), 5, "{}", ran.stderr);

    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(orders(&ran.json())["recount"]["queued"], 1_201);
    let ran = run_in(dir, &["where", &id, "-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["place"]),
        (Some(0), &"queued".into()),
        "{}",
        ran.stderr
    );
    let nobody = "019a8f3e-5c00-7abc-8def-0123456789ab";
    assert_eq!(run_in(dir, &["where", nobody]).code, Some(1));
    let ran = run_in(dir, &["log", "ls", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(run_in(dir, &["log", "check"]).code, Some(0));
    let ran = run_in(dir, &["log", "repair", "--yes", "-o", "json"]);
    assert_eq!(ran.json()["error"]["code"], "log.locked");
    for (arguments, code) in [
        (
            &["send", "nothing", "--value", "x"][..],
            "log.unknown-topic",
        ),
        (
            &["tail", "orders", "--partition", "9"],
            "log.unknown-partition",
        ),
    ] {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        assert_eq!(
            run_in(dir, &all).json()["error"]["code"],
            code,
            "{arguments:?}"
        );
    }

    let (code, stdout, stderr) = stop(running);
    assert_eq!(code, Some(0), "{stderr}");
    let ledger: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(orders(&ledger)["account"]["queued"], 1_201);
    assert_eq!(ledger["balanced"], true);
    // The directory is free, and everything is in it.
    assert_eq!(read_all(dir).len(), 1_201);
}

#[test]
fn the_token_guards_the_log() {
    let dir = configured(&format!("{CONFIG}server: {{token: sesame}}\n"));
    let running = Running::start(dir.path(), &[]);
    for path in ["/tidegate/log", "/tidegate/log/orders/0", "/tidegate/audit"] {
        assert!(running.get(path).starts_with("HTTP/1.1 401"), "{path}");
    }
    // With another configuration there is no token to send.
    let elsewhere = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let log = log.to_str().unwrap();
    let arguments = [
        "tail",
        "orders",
        "--log-dir",
        log,
        "--max",
        "1",
        "-o",
        "json",
    ];
    let ran = run_in(elsewhere.path(), &arguments);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stderr.contains("token"), "{}", ran.stderr);
    send_one(dir.path(), "x");
    let url = format!("http://{}", running.address);
    let mut arguments = vec![
        "tail", "orders", "--url", &url, "--until", "end", "-o", "json",
    ];
    arguments.extend(["--token", "sesame"]);
    let ran = run_in(elsewhere.path(), &arguments);
    assert_eq!(lines(&ran).len(), 1, "{}", ran.stderr);
}

#[test]
fn a_log_without_room_can_be_seen_from_outside() {
    let dir = configured(
        "log:\n  embedded: {path: log, journal-size: 1MiB, segment-size: 1MiB, max-size: 1MiB, \
         reserve: 64KiB}\n  topics: {orders: {partitions: 1}}\n",
    );
    let running = Running::start(dir.path(), &[]);
    assert!(running.get("/readyz").contains("\"status\":\"UP\""));
    let line = format!("{}\n", "x".repeat(100_000));
    let ran = run_with_input(dir.path(), &["send", "orders"], line.repeat(20));
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    // A record that was found a moment ago is answered for a while.
    let is_said = || running.get("/readyz").contains("DEGRADED");
    within(is_said, "nobody says that the log is full");
    let ready = running.get("/readyz");
    // Everything but appends goes on.
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert!(ready.contains("\"status\":\"DEGRADED\""), "{ready}");
    assert!(
        ready.contains("appends are refused: the log is full"),
        "{ready}"
    );
}

#[test]
fn the_server_shows_the_log() {
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &[]);
    send_one(dir.path(), "x");
    assert!(running.get("/readyz").starts_with("HTTP/1.1 200"));
    let ledger = running.get("/tidegate/ledger");
    assert!(
        ledger.contains("\"name\":\"orders\",\"kind\":\"topic\""),
        "{ledger}"
    );
    let metrics = running.get("/metrics");
    for name in [
        "tidegate_events{component=\"orders\",place=\"queued\"} 1",
        "tidegate_log_append_seconds",
        "tidegate_log_sync_seconds",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    let document = running.get("/openapi.json");
    for path in [
        "/tidegate/log",
        "/tidegate/log/{topic}",
        "/tidegate/log/{topic}/{partition}",
        "/tidegate/audit",
        "/tidegate/where/{id}",
    ] {
        assert!(document.contains(&format!("\"{path}\"")), "{path}");
    }
    let shown = running.get("/tidegate/log/orders");
    assert!(
        shown.contains("\"partitions\":[{\"partition\":0,\"start\":0,\"end\":1}"),
        "{shown}"
    );
    for (path, status, code) in [
        ("/tidegate/log/nothing", "404", "log.unknown-topic"),
        ("/tidegate/log/orders/7", "404", "log.unknown-partition"),
        ("/tidegate/log/orders/0?from=99", "416", "log.out-of-range"),
        (
            "/tidegate/log/orders/0?from=soon",
            "400",
            "http.bad-request",
        ),
        ("/tidegate/where/soon", "400", "http.bad-request"),
        (
            "/tidegate/where/019a8f3e-5c00-7abc-8def-0123456789ab",
            "404",
            "where.unknown",
        ),
    ] {
        let answer = running.get(path);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {answer}"
        );
        assert!(answer.contains(code), "{path}: {answer}");
    }
    let answer = running.get("/tidegate/log/orders/0?from=99");
    assert!(answer.contains("\"asked\":99"), "{answer}");
}

#[test]
fn a_tail_of_a_running_process_follows_what_is_sent() {
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &[]);
    let mut child = tidegate(
        dir.path(),
        &["tail", "orders", "--from", "earliest", "--max", "3"],
    )
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for value in ["one", "two", "three"] {
        send_one(dir.path(), value);
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.contains(value), "{line}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(stop(running).0, Some(0));
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    let mut sent = Vec::new();
    for round in 0..5 {
        let running = Running::start(dir, &[]);
        for number in 0..4 {
            sent.push(send_one(dir, &format!("{round}-{number}")));
        }
        running.signal("-KILL");
        assert_eq!(running.end().0, None);
        let ran = run_in(dir, &["audit", "-o", "json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    }
    let read: Vec<String> = read_all(dir)
        .iter()
        .map(|line| line["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(read, sent);
}

#[test]
fn a_second_process_on_the_directory_is_refused() {
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &[]);
    let ran = run_in(
        dir.path(),
        &["run", "--set", "server.listen=127.0.0.1:0", "-o", "json"],
    );
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(1), &"log.locked".into())
    );
    assert!(ran.stderr.contains(&running.address), "{}", ran.stderr);
}

/// Waits for a fact, with a limit.
fn within(mut is_so: impl FnMut() -> bool, what: &str) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_record_that_the_topic_takes_passes_the_door_and_one_that_it_does_not_is_named() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    // Every byte of it is written as six, in a body that is far longer than `server.max-body`.
    let control = format!("{}\n", "\u{1}".repeat(3 * 1024 * 1024));
    let ran = run_with_input(dir, &["send", "orders", "-o", "json"], &control);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let long = format!("{}\n", "x".repeat(5 * 1024 * 1024));
    let ran = run_with_input(dir, &["send", "orders", "-o", "json"], &long);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let code = &ran.json()["error"]["code"];
    assert_eq!(code, "log.record-too-large", "{}", ran.stderr);
    assert!(ran.stderr.contains("max-record-size"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&running.address), "{}", ran.stderr);
    assert!(!ran.stderr.contains("broker"), "{}", ran.stderr);
}

#[test]
fn a_tail_survives_a_restart_of_the_process_that_has_the_log() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    let address = running.address.clone();
    let mut tail = tidegate(
        dir,
        &[
            "tail", "orders", "--from", "earliest", "-f", "%v", "--max", "2",
        ],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut said = BufReader::new(tail.stderr.take().unwrap()).lines();
    let mut shown = BufReader::new(tail.stdout.take().unwrap()).lines();
    send_one(dir, "one");
    assert_eq!(shown.next().unwrap().unwrap(), "one");
    assert_eq!(stop(running).0, Some(0));
    let away = said.next().unwrap().unwrap();
    assert!(away.contains("waiting for it"), "{away}");
    let running = Running::start_at(dir, &address, &[]);
    send_one(dir, "two");
    assert_eq!(shown.next().unwrap().unwrap(), "two");
    assert!(tail.wait().unwrap().success());
    assert_eq!(stop(running).0, Some(0));
}

/// A command that sends what is written to it, line by line.
struct Sending {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Sending {
    fn start(dir: &Path) -> Self {
        let arguments = ["send", "orders", "--partition", "0", "-o", "json"];
        let mut child = tidegate(dir, &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            stdin: child.stdin.take().unwrap(),
            stdout,
            child,
        }
    }

    fn write(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// Waits for the next record that was stored, and gives its offset.
    fn stored(&mut self) -> i64 {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let sent: serde_json::Value = serde_json::from_str(&line).unwrap();
        sent["offset"].as_i64().unwrap()
    }
}

#[test]
fn a_send_waits_for_a_log_that_is_away_and_says_where_to_go_on_when_it_is_interrupted() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    let address = running.address.clone();
    let mut sending = Sending::start(dir);
    sending.write("one");
    assert_eq!(sending.stored(), 0);
    stop(running);
    sending.write("two");
    // It asks again while nobody is there.
    let running = Running::start_at(dir, &address, &[]);
    assert_eq!(sending.stored(), 1);
    signal(&sending.child, "-INT");
    let ended = sending.child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("--from-line 3"), "{said}");
    drop(running);
}

#[test]
fn an_empty_append_to_a_topic_that_does_not_exist_and_a_time_in_microseconds_are_refused() {
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &[]);
    let answer = running.post("/tidegate/log/nope", "{\"records\":[]}");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let late = "{\"records\":[{\"value\":\"x\",\"timestamp_ms\":1790000000000000}]}";
    let answer = running.post("/tidegate/log/orders", late);
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("after the year 9999"),
        "{answer}"
    );
    let answer = running.get("/tidegate/log/orders/0?max=x");
    assert!(
        answer.contains("`max` is `x`, and must be a whole number"),
        "{answer}"
    );
    let answer = running.get("/tidegate/log/orders/one");
    assert!(
        answer.contains("`partition` in the path is `one`, and must be a whole number (i32)"),
        "{answer}"
    );
    let metrics = running.get("/metrics");
    for family in [
        "append_seconds",
        "bytes",
        "cache_bytes",
        "queued_bytes",
        "sync_seconds",
    ] {
        let name = format!("tidegate_log_{family}");
        let is_there = metrics.contains(&format!("# TYPE {name} "));
        assert_eq!(
            is_there,
            metrics.contains(&format!("# HELP {name} ")),
            "{name}"
        );
    }
    stop(running);
}

#[test]
fn a_repeated_append_with_an_idempotency_key_adds_nothing() {
    const PATH: &str = "/tidegate/log/orders HTTP/1.1\r\nIdempotency-Key: a1\r\nX-Unused:";
    let body = |value: &str| format!(r#"{{"records":[{{"value":"{value}","partition":0}}]}}"#);
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &[]);
    let first = running.post(PATH, &body("one"));
    assert!(first.contains("200 OK"), "{first}");
    let again = running.post(PATH, &body("one"));
    let answer = |text: &str| text.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(answer(&first), answer(&again), "the same ids and offsets");
    let other = running.post(PATH, &body("two"));
    assert!(other.contains("409 Conflict"), "{other}");
    assert!(other.contains("idempotency.conflict"), "{other}");
    assert_eq!(read_all(dir.path()).len(), 1);
    // The key of one topic is free at another.
    let elsewhere = PATH.replace("orders", "nothing");
    let elsewhere = running.post(&elsewhere, &body("one"));
    assert!(elsewhere.contains("404 Not Found"), "{elsewhere}");
}

#[test]
fn a_process_without_a_database_refuses_an_idempotency_key() {
    let dir = configured(CONFIG);
    let running = Running::start(dir.path(), &["--set", "eventlog.api.enabled=false"]);
    let body = r#"{"records":[{"value":"one","partition":0}]}"#;
    let path = "/tidegate/log/orders HTTP/1.1\r\nIdempotency-Key: a1\r\nX-Unused:";
    let refused = running.post(path, body);
    assert!(refused.contains("400 Bad Request"), "{refused}");
    assert!(refused.contains("store.url"), "{refused}");
    assert_eq!(read_all(dir.path()).len(), 0);
    let plain = running.post("/tidegate/log/orders", body);
    assert!(plain.contains("200 OK"), "{plain}");
}
