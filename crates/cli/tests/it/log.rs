//! `tidegate send`, `tidegate tail` and `tidegate log` on a directory.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_core::env::Env;
use tidegate_log::{EmbeddedConfig, EmbeddedLog};

use crate::command::{Ran, run_in, run_with_input, tidegate};
use crate::running::signal;

/// Small files, and a topic of two partitions.
pub(crate) const CONFIG: &str = "log:\n  embedded: {path: log, journal-size: 1MiB, segment-size: \
                                 1MiB}\n  topics: {orders: {partitions: 2}}\n";

/// A directory with a configuration of its own.
pub(crate) fn configured(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tidegate.yaml"), text).unwrap();
    dir
}

/// The lines of JSON that a command wrote.
pub(crate) fn lines(ran: &Ran) -> Vec<Value> {
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// Sends one value to partition 0 and gives its id.
pub(crate) fn send_one(dir: &Path, value: &str) -> String {
    let arguments = [
        "send",
        "orders",
        "--value",
        value,
        "--partition",
        "0",
        "-o",
        "json",
    ];
    let ran = run_in(dir, &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    lines(&ran)[0]["id"].as_str().unwrap().to_owned()
}

/// Every record of `orders`.
pub(crate) fn read_all(dir: &Path) -> Vec<Value> {
    let ran = run_in(dir, &["tail", "orders", "--until", "end", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    lines(&ran)
}

#[test]
fn lines_that_are_sent_come_out_of_the_tail() {
    let dir = configured(CONFIG);
    let input = "one\n\nthree with é\nlast without an end";
    let ran = run_with_input(dir.path(), &["send", "orders", "-o", "json"], input);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let sent = lines(&ran);
    assert_eq!(sent.len(), 4);
    let read = read_all(dir.path());
    for (sent, value) in sent
        .iter()
        .zip(["one", "", "three with é", "last without an end"])
    {
        let is_it = |read: &&Value| read["id"] == sent["id"];
        let read = read.iter().find(is_it).unwrap();
        assert_eq!(read["value"], value);
        assert_eq!(
            (&read["partition"], &read["offset"]),
            (&sent["partition"], &sent["offset"])
        );
        assert!(
            read["timestamp"].as_str().unwrap().starts_with("20"),
            "{read}"
        );
        assert_eq!(
            (&read["key"], &read["headers"]),
            (&Value::Null, &serde_json::json!([]))
        );
    }
    assert_eq!(read.len(), 4, "each is there once");
    // For people, one line per record with its id.
    let ran = run_in(dir.path(), &["tail", "orders", "--until", "end"]);
    assert!(
        ran.stdout.contains(sent[0]["id"].as_str().unwrap()),
        "{}",
        ran.stdout
    );
}

#[test]
fn key_headers_and_partition_go_with_a_record() {
    let dir = configured(CONFIG);
    let arguments = [
        "send",
        "orders",
        "--value",
        "v",
        "--key",
        "k",
        "--header",
        "a=1",
        "--header",
        "a=2=3",
        "--partition",
        "1",
        "-o",
        "json",
    ];
    let ran = run_in(dir.path(), &arguments);
    assert_eq!(lines(&ran)[0]["partition"], 1, "{}", ran.stderr);
    let arguments = [
        "send",
        "orders",
        "--tombstone",
        "--key",
        "k",
        "--partition",
        "1",
    ];
    assert_eq!(run_in(dir.path(), &arguments).code, Some(0));
    let read = read_all(dir.path());
    assert_eq!(
        (&read[0]["key"], &read[0]["value"]),
        (&"k".into(), &"v".into())
    );
    let headers: Vec<_> = read[0]["headers"].as_array().unwrap().iter().collect();
    let headers: Vec<_> = headers
        .iter()
        .map(|h| (h["name"].as_str(), h["value"].as_str()))
        .collect();
    assert_eq!(headers, [(Some("a"), Some("1")), (Some("a"), Some("2=3"))]);
    assert_eq!(
        (&read[1]["key"], &read[1]["value"]),
        (&"k".into(), &Value::Null)
    );
    // A key stays in its partition.
    for _ in 0..3 {
        run_in(
            dir.path(),
            &["send", "orders", "--value", "x", "--key", "same"],
        );
    }
    let read = read_all(dir.path());
    let same: Vec<_> = read.iter().filter(|read| read["key"] == "same").collect();
    assert!(
        same.len() == 3
            && same
                .iter()
                .all(|read| read["partition"] == same[0]["partition"])
    );
}

#[test]
fn bytes_that_are_no_text_come_as_base64() {
    let dir = configured(CONFIG);
    let mut child = tidegate(dir.path(), &["send", "orders"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"\xff\xfe\n")
        .unwrap();
    assert!(child.wait().unwrap().success());
    let read = read_all(dir.path());
    assert_eq!(
        (&read[0]["value"], &read[0]["value_base64"]),
        (&Value::Null, &"//4=".into())
    );
}

#[test]
fn the_tail_begins_and_ends_where_it_is_told() {
    let dir = configured(CONFIG);
    for value in ["a", "b", "c", "d"] {
        send_one(dir.path(), value);
    }
    let tail = |more: &[&str]| {
        let mut arguments = vec!["tail", "orders", "--until", "end", "-o", "json"];
        arguments.extend(more);
        let ran = run_in(dir.path(), &arguments);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let values = lines(&ran)
            .into_iter()
            .map(|line| line["value"].as_str().unwrap().to_owned());
        (values.collect::<String>(), ran.stderr)
    };
    for (more, expect) in [
        (&["--from", "earliest"][..], "abcd"),
        (&["--from", "latest"], ""),
        (&["--from", "2", "--partition", "0"], "cd"),
        (&["--from", "2026-01-01T00:00:00Z"], "abcd"),
        (&["--from", "-1h"], "abcd"),
        (&["--from", "2199-01-01T00:00:00Z"], ""),
        (&["--max", "3"], "abc"),
        (&["--partition", "1"], ""),
    ] {
        assert_eq!(tail(more).0, expect, "{more:?}");
    }
    // An offset that is not there is said, not jumped over in silence.
    let (values, stderr) = tail(&["--from", "9", "--partition", "0"]);
    assert_eq!(values, "");
    assert!(stderr.contains("offset 9 is out of range"), "{stderr}");
}

#[test]
fn a_tail_follows_until_ctrl_c_and_ends_well() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "before");
    let mut child = tidegate(dir.path(), &["tail", "orders", "--from", "earliest"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("before"), "{line}");
    signal(&child, "-INT");
    let limit = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < limit, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // The directory is free again at once.
    assert_eq!(read_all(dir.path()).len(), 1);
}

#[test]
fn a_tail_that_reads_the_files_follows_what_other_commands_send() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "before");
    let arguments = ["tail", "orders", "--from", "earliest", "--max", "2"];
    let mut child = tidegate(dir.path(), &arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for value in ["before", "meanwhile"] {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.contains(value), "{line}");
        if value == "before" {
            send_one(dir.path(), "meanwhile");
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_directory_that_another_command_holds_is_waited_for_and_then_refused() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "before");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = EmbeddedConfig::new(dir.path().join("log"));
    let holder = runtime.block_on(async { EmbeddedLog::open(&Env::system(), config).unwrap() });
    let sender = tidegate(
        dir.path(),
        &["send", "orders", "--value", "x", "-o", "json"],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let ran: Ran = sender.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json()["error"]["code"], "log.locked");
    let process = format!("process {}", std::process::id());
    assert!(ran.stderr.contains(&process), "{}", ran.stderr);
    // One that waits gets its turn.
    let mut waiting = tidegate(dir.path(), &["send", "orders", "--value", "y"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for it"), "{line}");
    // Who only reads does not wait.
    assert_eq!(read_all(dir.path()).len(), 1);
    runtime.block_on(holder.close());
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(read_all(dir.path()).len(), 2);
}

#[test]
fn a_missing_database_is_named_and_nothing_is_made() {
    let dir = configured(CONFIG);
    let json = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let ran = run_in(dir.path(), &all);
        let code = ran.json()["error"]["code"].as_str().unwrap().to_owned();
        (ran.code, code)
    };
    for (arguments, code) in [
        (
            &["send", "nothing", "--value", "x"][..],
            "log.unknown-topic",
        ),
        (&["tail", "orders"], "log.missing"),
    ] {
        assert_eq!(json(arguments), (Some(1), code.to_owned()), "{arguments:?}");
        assert!(
            !dir.path().join("log").exists(),
            "{arguments:?} made a directory"
        );
    }
    for command in ["ls", "check", "repair"] {
        assert_eq!(
            json(&["log", command]),
            (Some(1), "log.missing".to_owned()),
            "{command}"
        );
    }
    assert_eq!(
        json(&["audit", "--log-dir", "no"]),
        (Some(1), "log.missing".to_owned())
    );
    send_one(dir.path(), "x");
    for arguments in [
        &["send", "nothing", "--value", "x"][..],
        &["tail", "nothing"],
    ] {
        assert_eq!(
            json(arguments),
            (Some(1), "log.unknown-topic".to_owned()),
            "{arguments:?}"
        );
    }
    for arguments in [
        &["send", "orders", "--value", "x", "--partition", "2"][..],
        &["tail", "orders", "--partition", "2"],
    ] {
        assert_eq!(
            json(arguments),
            (Some(1), "log.unknown-partition".to_owned())
        );
    }
    let large = "x".repeat(5 * 1024 * 1024);
    let ran = run_with_input(dir.path(), &["send", "orders", "-o", "json"], &large);
    assert_eq!(
        ran.json()["error"]["code"],
        "log.record-too-large",
        "{}",
        ran.stderr
    );
    let header = format!("{}=z", "n".repeat(65_536));
    let long = ["send", "orders", "--value", "x", "--header", &header];
    assert_eq!(json(&long), (Some(1), "log.header-too-long".to_owned()));
    for arguments in [
        &["send", "a b"][..],
        &["send", "orders", "--header", "x"],
        &["send", "orders", "--tombstone"],
        &[
            "send",
            "orders",
            "--value",
            "x",
            "--header",
            "x-tidegate-event-id=1",
        ],
        &["tail", "orders", "--from", "soon"],
        &["tail", "orders", "--max", "0"],
    ] {
        assert_eq!(run_in(dir.path(), arguments).code, Some(2), "{arguments:?}");
    }
    assert_eq!(read_all(dir.path()).len(), 1, "none of it was added");
}

#[test]
fn a_full_log_refuses_by_name() {
    let dir = configured(
        "log:\n  embedded: {path: log, journal-size: 1MiB, segment-size: 1MiB, max-size: 1MiB, \
         reserve: 64KiB}\n  topics: {orders: {partitions: 1}}\n",
    );
    let line = format!("{}\n", "x".repeat(100_000));
    let ran = run_with_input(
        dir.path(),
        &["send", "orders", "-o", "json"],
        line.repeat(20),
    );
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("log.full"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("log.embedded.max-size"),
        "{}",
        ran.stderr
    );
    // Every acknowledged record is there, and nothing else.
    let sent = ran
        .stdout
        .lines()
        .filter(|line| line.contains("\"offset\""))
        .count();
    assert_eq!(read_all(dir.path()).len(), sent);
    assert!((1..20).contains(&sent), "{sent}");
}

#[test]
fn topics_are_listed_and_follow_the_configuration() {
    let dir = configured(CONFIG);
    send_one(dir.path(), "x");
    let ran = run_in(dir.path(), &["log", "ls", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let partitions = ran.json()["partitions"].as_array().unwrap().clone();
    assert_eq!(partitions.len(), 2);
    assert_eq!(
        (&partitions[0]["topic"], &partitions[0]["end"]),
        (&"orders".into(), &1.into())
    );
    assert_eq!(partitions[0]["retention"], "7d");
    // The directory may be named, with no configuration at all.
    let elsewhere = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let ran = run_in(elsewhere.path(), &["log", "ls", log.to_str().unwrap()]);
    assert!(ran.stdout.contains("orders"), "{}", ran.stdout);
    // A changed retention holds from the next opening on; another number of partitions is refused.
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(
        &file,
        CONFIG.replace("partitions: 2", "partitions: 2, retention: 1d"),
    )
    .unwrap();
    send_one(dir.path(), "y");
    let ran = run_in(dir.path(), &["log", "ls", "-o", "json"]);
    assert_eq!(ran.json()["partitions"][0]["retention"], "1d");
    std::fs::write(&file, CONFIG.replace("partitions: 2", "partitions: 3")).unwrap();
    let ran = run_in(
        dir.path(),
        &["send", "orders", "--value", "z", "-o", "json"],
    );
    assert_eq!(
        ran.json()["error"]["code"],
        "log.topic-config",
        "{}",
        ran.stdout
    );
}

#[test]
fn keys_stand_in_the_lines_or_in_json_and_a_send_resumes_at_its_line() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    let ran = run_with_input(dir, &["send", "orders", "-K", ":"], "ada:1\nbob:2:3\n");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let json = "{\"key\":\"eve\",\"value\":\"4\",\"headers\":[{\"name\":\"h\",\"value\":\"x\"}]}\n";
    let ran = run_with_input(dir, &["send", "orders", "--format", "json"], json);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let pairs = |dir: &Path| {
        let read = read_all(dir).into_iter();
        let mut pairs: Vec<_> = read
            .map(|one| {
                format!(
                    "{}={}",
                    one["key"].as_str().unwrap(),
                    one["value"].as_str().unwrap()
                )
            })
            .collect();
        pairs.sort();
        pairs
    };
    assert_eq!(pairs(dir), ["ada=1", "bob=2:3", "eve=4"]);
    // A line that is none stops it, says where, and those before it are there.
    let input = "k:5\nno key\nk:6\n";
    let ran = run_with_input(dir, &["send", "orders", "-K", ":", "-o", "json"], input);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("input.invalid") && ran.stderr.contains("--from-line 2"),
        "{}",
        ran.stderr
    );
    let rest = ["send", "orders", "-K", ":", "--from-line", "3"];
    assert_eq!(run_with_input(dir, &rest, input).code, Some(0));
    assert_eq!(pairs(dir), ["ada=1", "bob=2:3", "eve=4", "k=5", "k=6"]);

    let tail = ["tail", "orders", "--until", "end"];
    let shown = |more: &[&str]| run_in(dir, &[&tail[..], more].concat()).stdout;
    assert_eq!(shown(&["--key", "eve", "-f", "%k/%v/%h"]), "eve/4/h=x\n");
    assert_eq!(shown(&["--key", "k", "-f", "%v", "-n", "1"]), "6\n");
    assert!(shown(&["--key", "eve"]).ends_with("eve  4  h=x\n"));
}

#[test]
fn records_without_a_key_that_are_sent_one_by_one_reach_every_partition() {
    let dir = configured(CONFIG);
    for n in 0..24 {
        let ran = run_in(dir.path(), &["send", "orders", "--value", &n.to_string()]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    let read = read_all(dir.path());
    let zero = read.iter().filter(|one| one["partition"] == 0).count();
    assert!((1..24).contains(&zero), "{zero} of 24 are in partition 0");
}

#[test]
fn where_reads_ids_from_standard_input() {
    let dir = configured(CONFIG);
    let id = send_one(dir.path(), "one");
    let nobody = "019a8f3e-5c00-7abc-8def-0123456789ab";
    let ran = run_with_input(
        dir.path(),
        &["where", "-", "-o", "json"],
        format!("{id}\n\n{nobody}\n"),
    );
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let found = lines(&ran);
    assert_eq!(found.len(), 2);
    assert_eq!(
        (&found[0]["id"], &found[0]["place"]),
        (&id.as_str().into(), &"queued".into())
    );
    assert_eq!(
        (&found[1]["id"], &found[1]["place"]),
        (&nobody.into(), &Value::Null)
    );
    let ran = run_with_input(dir.path(), &["where", "-"], format!("{id}\n"));
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("is queued at orders"), "{}", ran.stdout);
    assert_eq!(
        run_with_input(dir.path(), &["where", "-"], "no id\n").code,
        Some(2)
    );
}

#[test]
fn topics_are_listed_with_their_partitions_and_records() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    for value in ["one", "two"] {
        send_one(dir, value);
    }
    let running = crate::running::Running::start(dir, &[]);
    for at in [&[][..], &["--url", &format!("http://{}", running.address)]] {
        let ran = run_in(dir, &[&["topic", "ls", "-o", "json"][..], at].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let topic = &ran.json()["topics"][0];
        assert_eq!(
            (&topic["name"], &topic["records"]),
            (&"orders".into(), &2.into())
        );
        let ran = run_in(
            dir,
            &[&["topic", "show", "orders", "-o", "json"][..], at].concat(),
        );
        assert_eq!(ran.json()["partitions"][0]["end"], 2, "{}", ran.stdout);
    }
    drop(running);
    let shown = run_in(dir, &["topic", "show", "orders"]).stdout;
    assert_eq!(
        shown.lines().filter(|line| line.contains(" 2 ")).count(),
        1,
        "{shown}"
    );
    let ran = run_in(dir, &["topic", "show", "nope", "-o", "json"]);
    assert_eq!(ran.json()["error"]["code"], "log.unknown-topic");
}
