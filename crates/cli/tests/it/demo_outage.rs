//! `tidegate demo`: a real outage.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_sim::is_long;

use crate::command::{Ran, run_in, tidegate};
use crate::running::signal;

/// A run that takes longer is a failure, on a machine that has nothing else to do.
const FAST: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the demo in an empty directory, which is where its temporary files go too.
fn demo(dir: &Path, arguments: &[&str]) -> Ran {
    let mut all = vec!["demo", "--fast"];
    all.extend(arguments);
    let mut command = tidegate(dir, &all);
    command.env("TMPDIR", dir).output().unwrap().into()
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn number(value: &Value) -> i64 {
    value
        .as_i64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn assert_nothing_is_lost(ran: &Ran, kills: i64) {
    let told = format!("{} {}", ran.stdout, ran.stderr);
    assert_eq!(ran.code, Some(0), "{told}");
    let verdict = ran.json();
    let accepted = number(&verdict["accepted"]);
    // Three guests, a rush and at least one crowd.
    assert!(accepted >= 3 * 14 + 75 + 60, "{told}");
    for same in ["delivered", "stored"] {
        assert_eq!(number(&verdict[same]), accepted, "{same}: {told}");
    }
    for nothing in [
        "lost",
        "on_disk",
        "missing",
        "doubled",
        "unaccounted",
        "files_left",
    ] {
        assert_eq!(number(&verdict[nothing]), 0, "{nothing}: {told}");
    }
    assert_eq!(verdict["balanced"], true, "{told}");
    assert_eq!(number(&verdict["kills"]), kills, "{told}");
    assert_eq!(verdict["ledger"]["lost"]["total"], 0, "{told}");
    // Something was at stake.
    let phases = verdict["phases"].as_array().unwrap();
    let names: Vec<&str> = phases
        .iter()
        .map(|phase| phase["name"].as_str().unwrap())
        .collect();
    let expected = ["setup", "normal", "outage", "recovery", "tight", "summary"];
    assert_eq!(names, expected, "{told}");
    let [_, normal, outage, recovery, tight, _] = phases.as_slice() else {
        panic!("{told}");
    };
    assert_eq!(number(&normal["counters"]["sent"]), 42, "{told}");
    assert_eq!(number(&normal["counters"]["spilled"]), 0, "{told}");
    assert_eq!(outage["breaker"], "OPEN", "{told}");
    assert_eq!(number(&outage["account"]["spilled"]), 75, "{told}");
    assert!(
        number(&outage["counters"]["spill_bytes"]) > 75 * 100,
        "{told}"
    );
    assert_eq!(recovery["breaker"], "CLOSED", "{told}");
    assert_eq!(number(&recovery["counters"]["replayed"]), 75, "{told}");
    assert!(number(&tight["counters"]["spilled"]) > 0, "{told}");
    assert_eq!(
        tight["counters"]["spilled"], tight["counters"]["replayed"],
        "{told}"
    );
}

#[test]
fn p16_the_six_phases_end_with_nothing_lost_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let ran = demo(dir.path(), &["-o", "json"]);
    let took = began.elapsed();
    assert_nothing_is_lost(&ran, 0);
    assert!(took < FAST, "it took {took:?}");
    assert_eq!(files(dir.path()), Vec::<String>::new());
}

#[test]
fn p16_a_kill_in_the_outage_and_one_in_the_recovery_lose_nothing() {
    for seed in 0..if is_long() { 20 } else { 2 } {
        let dir = tempfile::tempdir().unwrap();
        let ran = demo(dir.path(), &["--kill", &seed.to_string(), "-o", "json"]);
        assert_nothing_is_lost(&ran, 2);
        assert_eq!(files(dir.path()), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn files_and_a_chart_are_kept_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let ran = demo(dir.path(), &["--keep", "kept", "--chart", "demo.svg"]);
    let told = format!("{} {}", ran.stdout, ran.stderr);
    assert_eq!(ran.code, Some(0), "{told}");
    assert_eq!(files(dir.path()), ["demo.svg", "kept"]);
    let svg = std::fs::read_to_string(dir.path().join("demo.svg")).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    // The outage, and its key.
    assert_eq!(svg.matches(r#"<rect class="outage""#).count(), 2, "{svg}");
    assert!(
        !ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'),
        "{told}"
    );
    for phase in [
        "1/6 setup",
        "3/6 outage",
        "breaker OPEN",
        "6/6 summary",
        "+ lost 0",
    ] {
        assert!(ran.stdout.contains(phase), "{phase} in {told}");
    }
    // Every command that it offers works as it is written.
    let (_, offered) = ran.stdout.split_once("Try:\n").unwrap();
    let commands: Vec<&str> = offered.lines().map(str::trim).collect();
    assert_eq!(commands.len(), 3, "{told}");
    for command in commands {
        let arguments: Vec<&str> = command.split(' ').skip(1).collect();
        let tried = run_in(dir.path(), &arguments);
        assert_eq!(
            tried.code,
            Some(0),
            "{command}: {} {}",
            tried.stdout,
            tried.stderr
        );
    }
    let again = demo(dir.path(), &["--keep", "kept"]);
    assert_eq!(again.code, Some(2), "{}", again.stderr);
    assert!(again.stderr.contains("is not empty"), "{}", again.stderr);
}

#[test]
fn a_chart_that_cannot_be_written_is_said_before_the_demo() {
    let dir = tempfile::tempdir().unwrap();
    let ran = demo(dir.path(), &["--chart", "nowhere/demo.svg"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("error[output.failed]"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stdout, "");
}

/// Processes of the API that were started with this in their command line.
fn processes(text: &str) -> Vec<u32> {
    let ours = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        // A process may end while it is looked at.
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&command);
        let is_ours = line.contains(text) && line.contains("--until-stdin-ends");
        is_ours.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    ours.collect()
}

#[test]
fn an_api_that_somebody_else_kills_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().to_str().unwrap().to_owned();
    let mut child = tidegate(dir.path(), &["demo", "--fast"])
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("API up")));
    let [api] = processes(&text)[..] else {
        panic!("the demo has one process");
    };
    let mut kill = Command::new("kill");
    let kill = kill.args(["-KILL", &api.to_string()]).status();
    assert!(kill.unwrap().success());
    let told: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{told:?}");
    assert!(
        told.iter().any(|line| line.contains("+ lost 0")),
        "{told:?}"
    );
}

#[test]
fn a_demo_that_is_stopped_or_killed_leaves_no_process() {
    for name in ["-INT", "-KILL"] {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().to_str().unwrap().to_owned();
        let mut child = tidegate(dir.path(), &["demo", "--fast"])
            .env("TMPDIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_up = |line: &String| line.contains("API up");
        assert!(lines.map_while(Result::ok).any(|line| is_up(&line)));
        assert_eq!(processes(&text).len(), 1);
        signal(&child, name);
        let ended = child.wait().unwrap();
        let end = Instant::now() + LIMIT;
        while !processes(&text).is_empty() {
            assert!(Instant::now() < end, "the API runs on after {name}");
            std::thread::sleep(Duration::from_millis(20));
        }
        if name == "-INT" {
            assert_eq!(ended.code(), Some(1));
            assert_eq!(files(dir.path()), Vec::<String>::new());
        }
    }
}
