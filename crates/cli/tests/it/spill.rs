//! `tidegate spill`, and spill directories for the other tests.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::env::system::SystemClock;
use tidegate_logger::{Defaults, Event, HttpApi, LoggerConfig, RunningLogger};
use tidegate_testkit::{Fault, StubApi};

use crate::command::{Ran, run_in};

const ACTIVE: &str = "eventlog-spillover.jsonl";

/// An API that nobody listens for: port 9 of this machine refuses at once.
const DEAD: &str = "http://127.0.0.1:9";

fn logger(dir: &Path, url: &str) -> RunningLogger {
    let config = LoggerConfig::builder()
        .spillover_path(dir)
        .max_retries(0)
        .circuit_breaker_threshold(1)
        .max_spillover_events(1_000_000)
        .defaults(Defaults::new("tests", "TESTS", "TESTS"))
        .build()
        .unwrap();
    let api = HttpApi::builder(url)
        .build(Arc::new(SystemClock::new()))
        .unwrap();
    RunningLogger::start(config, Arc::new(api), None).unwrap()
}

fn event(number: usize) -> Event {
    Event::step("Audit", "Spilled", format!("event {number}"))
}

/// Logs so many events to an API, by default a dead one, and stops.
pub(crate) fn log_to(dir: &Path, url: Option<&str>, count: usize) {
    let logger = logger(dir, url.unwrap_or(DEAD));
    assert_eq!(logger.log_all((0..count).map(event)), count);
    let report = logger.shutdown();
    assert_eq!(report.account.accepted, i64::try_from(count).unwrap());
    assert_eq!(report.account.lost.total(), 0);
}

/// A spill directory with so many events, in the order of their numbers.
pub(crate) fn spilled(dir: &Path, count: usize) {
    log_to(dir, None, count);
    assert_eq!(ids(dir).len(), count);
}

/// Spills so many more events there.
pub(crate) fn spill_more(dir: &Path, count: usize) {
    let logger = logger(dir, DEAD);
    assert_eq!(logger.log_all((0..count).map(event)), count);
    drop(logger.shutdown());
}

/// The ids in the active file, in the order of the events' numbers.
pub(crate) fn ids(dir: &Path) -> Vec<String> {
    let bytes = std::fs::read(dir.join(ACTIVE)).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let id = |line: &str| {
        let (_, rest) = line.split_once("\"_id\":\"").unwrap();
        rest[..36].to_owned()
    };
    text.lines().map(id).collect()
}

/// Cuts a line out of the active file and gives the id of its event.
pub(crate) fn cut_line(dir: &Path, position: usize) -> String {
    let id = ids(dir).remove(position);
    let path = dir.join(ACTIVE);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.split_inclusive('\n').enumerate();
    let rest: String = lines
        .filter(|(index, _)| *index != position)
        .map(|(_, line)| line)
        .collect();
    std::fs::write(&path, rest).unwrap();
    id
}

/// A logger that keeps spilling until it is stopped.
pub(crate) struct Spilling {
    is_stopped: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Spilling {
    /// Starts it, and returns once it spills.
    pub(crate) fn start(dir: &Path) -> Self {
        let logger = logger(dir, DEAD);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_stopped);
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !flag.load(Ordering::Relaxed) {
                number += logger.log_all((number..number + 20).map(event));
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(logger);
        });
        let limit = Instant::now() + Duration::from_secs(60);
        while !std::fs::exists(dir.join(ACTIVE)).unwrap() {
            assert!(Instant::now() < limit, "it does not spill");
            std::thread::sleep(Duration::from_millis(2));
        }
        Self { is_stopped, thread }
    }

    pub(crate) fn stop(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Runs a command on a directory.
pub(crate) fn run(command: &[&str], dir: &Path) -> Ran {
    let dir = dir.display().to_string();
    let mut arguments = command.to_vec();
    arguments.extend([dir.as_str(), "-o", "json"]);
    run_in(Path::new("/"), &arguments)
}

pub(crate) fn replay(dir: &Path, url: &str, more: &[&str]) -> Ran {
    let mut command = vec!["spill", "replay", "--url", url];
    command.extend(more);
    run(&command, dir)
}

#[test]
fn ls_shows_what_waits() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 40);
    let ran = run(&["spill", "ls"], dir.path());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let listed = ran.json();
    assert_eq!(listed["waiting"], 40);
    let file = &listed["files"][0];
    assert_eq!(
        (file["name"].as_str(), file["role"].as_str()),
        (Some(ACTIVE), Some("active"))
    );
    let length = std::fs::metadata(dir.path().join(ACTIVE)).unwrap().len();
    assert_eq!(file["bytes"], length);
    assert_eq!((&file["lines"], &file["replayed"]), (&40.into(), &0.into()));
    let time = |name: &str| {
        file[name]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    assert!(time("oldest") <= time("newest"));
    let path = dir.path().display().to_string();
    let ran = run_in(Path::new("/"), &["spill", "ls", &path]);
    assert!(
        ran.stdout.ends_with("40 events wait for replay\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn check_names_every_line_that_is_not_as_it_should_be() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 40);
    let ran = run(&["spill", "check"], dir.path());
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert_eq!(ran.json()["findings"], serde_json::json!([]));
    cut_line(dir.path(), 20);
    let path = dir.path().join(ACTIVE);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[10] ^= 1;
    // A crash in the middle of a line.
    bytes.extend_from_slice(b"{\"applicationId\":\"te");
    std::fs::write(&path, bytes).unwrap();
    std::fs::write(dir.path().join("eventlog-spillover.books"), [7; 100]).unwrap();
    let ran = run(&["spill", "check"], dir.path());
    assert_eq!(ran.code, Some(3), "{}", ran.stdout);
    let findings = ran.json()["findings"].clone();
    let found: Vec<String> = findings
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| {
            let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", text("level"), text("code"), finding["line"])
        })
        .collect();
    assert_eq!(
        found,
        [
            "problem line.unreadable 1",
            "note line.torn 40",
            "problem sequence.gap 21",
            "problem books.unreadable null",
        ]
    );
    let path = dir.path().display().to_string();
    let ran = run_in(Path::new("/"), &["spill", "check", &path]);
    assert_eq!(ran.code, Some(3));
    assert!(
        ran.stdout
            .ends_with(": 1 file, 39 lines, 3 problems, 1 note\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn check_is_clean_beside_a_running_logger() {
    let dir = tempfile::tempdir().unwrap();
    let spilling = Spilling::start(dir.path());
    for _ in 0..3 {
        let ran = run(&["spill", "check"], dir.path());
        assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    }
    spilling.stop();
}

#[test]
fn replay_delivers_everything_and_the_audit_agrees() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 750);
    let mut expect = ids(dir.path());
    let api = StubApi::start().unwrap();
    api.require_token("sesame");
    let ran = replay(dir.path(), &api.url(), &["--token", "sesame", "--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("750 events left"), "{}", ran.stderr);
    let ledger = ran.json();
    assert_eq!(ledger["balanced"], true);
    assert_eq!(ledger["components"][0]["account"]["delivered"], 750);
    let mut arrived: Vec<String> = api.ids().iter().map(ToString::to_string).collect();
    arrived.sort();
    expect.sort();
    assert_eq!(arrived, expect);
    let path = dir.path().display().to_string();
    let ran = run_in(Path::new("/"), &["audit", "--spill", &path, "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    let books = ran.json()["components"][0]["books"].clone();
    assert_eq!(
        (&books["delivered"], &books["spilled"]),
        (&750.into(), &0.into())
    );
    // Once more: there is nothing left to do, and nobody has to be asked.
    let ran = replay(dir.path(), &api.url(), &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(api.duplicates(), 0);
}

#[test]
fn replay_with_the_api_down_ends_and_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 10);
    let api = StubApi::start().unwrap();
    api.fail_always(Fault::status(503));
    let ran = replay(dir.path(), &api.url(), &["--yes"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("error[replay.stopped]") && ran.stderr.contains("503"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.json()["components"][0]["account"]["spilled"], 10);
    api.heal();
    let ran = replay(dir.path(), &api.url(), &["--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(api.count(), 10);
}

#[test]
fn replay_asks_and_does_not_touch_what_a_logger_holds() {
    let dir = tempfile::tempdir().unwrap();
    let api = StubApi::start().unwrap();
    let spilling = Spilling::start(dir.path());
    let ran = replay(dir.path(), &api.url(), &["--yes"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.json()["error"]["code"], "spill.locked");
    assert!(ran.stderr.contains("a logger is running"), "{}", ran.stderr);
    spilling.stop();
    // Nobody is there to say yes.
    let ran = replay(dir.path(), &api.url(), &[]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("--yes"), "{}", ran.stderr);
    for (url, code) in [("nowhere", Some(2)), ("http://u:p@h", Some(2))] {
        assert_eq!(replay(dir.path(), url, &["--yes"]).code, code, "{url}");
    }
    assert_eq!(api.requests(), 0);
    let ran = replay(&dir.path().join("missing"), &api.url(), &["--yes"]);
    assert_eq!(ran.code, Some(1));
    assert!(!std::fs::exists(dir.path().join("missing")).unwrap());
}

#[test]
fn replay_sets_aside_what_cannot_be_read_and_the_audit_agrees() {
    let dir = tempfile::tempdir().unwrap();
    spilled(dir.path(), 10);
    let path = dir.path().join(ACTIVE);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let api = StubApi::start().unwrap();
    let ran = replay(dir.path(), &api.url(), &["--yes"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(api.count(), 9);
    let path = dir.path().display().to_string();
    let ran = run_in(Path::new("/"), &["audit", "--spill", &path, "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stdout);
}

#[test]
fn a_configuration_with_a_spill_is_told_how_long_it_lasts() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = "eventlog:\n  async:\n    spillover-path: ./spillover\n";
    std::fs::write(dir.path().join("tidegate.yaml"), yaml).unwrap();
    let expect = "at 100 events/s of 400 bytes the spill holds 100 s (10,000 events; 50 MiB would \
                  hold 1,311 s)";
    let ran = run_in(dir.path(), &["check", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let notes = ran.json()["notes"].clone();
    assert_eq!(
        notes,
        serde_json::json!([{ "path": "eventlog.async", "message": expect }])
    );
    let ran = run_in(dir.path(), &["check"]);
    assert!(ran.stderr.contains(expect), "{}", ran.stderr);
    let ran = run_in(dir.path(), &["check", "--rate", "2000"]);
    assert!(
        ran.stderr.contains("the spill holds 5.0 s"),
        "{}",
        ran.stderr
    );
    assert_eq!(run_in(dir.path(), &["check", "--rate", "0"]).code, Some(2));
    std::fs::write(dir.path().join("tidegate.yaml"), "eventlog: {}\n").unwrap();
    let ran = run_in(dir.path(), &["check", "-o", "json"]);
    assert_eq!(ran.json()["notes"], serde_json::json!([]));
}
