//! Spill files are the same files to the documented Java client.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tidegate_logger::{Event, RunningLogger, spill};
use tidegate_testkit::StubApi;

use crate::child;

/// The documented fields, in their order.
const FIELDS: [&str; 10] = [
    "applicationId",
    "correlationId",
    "processName",
    "processStatus",
    "step",
    "details",
    "targetSystem",
    "originatingSystem",
    "timestamp",
    "userId",
];

const LIMIT: Duration = Duration::from_secs(60);

fn java(arguments: &[&str]) -> String {
    let class_path = std::env::var("TIDEGATE_JAVA_JACKSON")
        .expect("`cargo xtask test` compiles the other side and says where it is");
    let output = Command::new("java")
        .args(["-cp", &class_path, "SpillPeer"])
        .args(arguments)
        .output()
        .expect("java starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The fields of a line as texts; `null` for what is absent, as Java prints it.
fn fields(event: &Value) -> Vec<String> {
    let text = |name: &&str| match event[*name].as_str() {
        Some(text) if *name == "timestamp" => instant(text),
        Some(text) => text.to_owned(),
        None => event[*name].to_string(),
    };
    FIELDS.iter().map(text).collect()
}

/// One spelling for one instant.
fn instant(text: &str) -> String {
    text.parse::<jiff::Timestamp>().unwrap().to_string()
}

fn events() -> Vec<Event> {
    let texts = [
        "plain",
        "Größe \"L\" \\ 7",
        "猫のホテル",
        "🐕 at night\nsecond line\ttab",
        "nul \0 end",
        "</script> \u{2028} \u{7f}",
        "",
    ];
    (0..300_u64)
        .map(|n| {
            let details = format!("{} {n}", texts[n as usize % texts.len()]);
            let at =
                SystemTime::UNIX_EPOCH + Duration::from_micros(1_780_308_930_123_000 + n * 1_001);
            let event = match n % 4 {
                0 => Event::start("CreateBooking", details),
                1 => {
                    Event::step("CreateBooking", format!("Étape{n}"), details).property("nights", 3)
                }
                2 => Event::end("CreateBooking", details).identifier("bookingId", "BK-1"),
                _ => Event::error("CreateBooking", details).error_code("E-1"),
            };
            let event = event.correlation_id(format!("c-{}", n / 3)).user_id("ünal");
            if n % 2 == 0 {
                event.timestamp(at)
            } else {
                event
            }
        })
        .collect()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

mod needs_java {
    use super::*;

    #[test]
    #[ignore = "needs java"]
    fn jackson_reads_our_spill_files() {
        let stub = StubApi::start().unwrap();
        stub.down();
        let dir = tempfile::tempdir().unwrap();
        let config = child::config(dir.path()).build().unwrap();
        let logger = RunningLogger::start(config, child::http(&stub.url()), None).unwrap();
        let events = events();
        for event in events.clone() {
            logger.log(event).unwrap();
        }
        assert_eq!(logger.shutdown().account.spilled, 300);
        let file = dir.path().join(spill::ACTIVE);
        let read = java(&["read", file.to_str().unwrap()]);
        let theirs: Vec<Vec<String>> = read
            .split_terminator('\u{1e}')
            .map(|entry| entry.split('\u{1f}').map(str::to_owned).collect())
            .collect();
        assert_eq!(theirs.len(), 300);
        let ours = lines(&file);
        for (mut theirs, line) in theirs.into_iter().zip(&ours) {
            theirs[8] = instant(&theirs[8]);
            assert_eq!(theirs, fields(line));
            // Not only as the line says, but as the event was. A request that was under way comes
            // behind what waited.
            let is_it = |event: &&Event| event.details.as_deref() == Some(&*theirs[5]);
            let event = events.iter().find(is_it).expect("it was logged");
            assert_eq!(theirs[4], event.step.as_deref().unwrap_or("null"));
            if let Some(at) = event.timestamp {
                assert_eq!(theirs[8], at.to_string());
            }
        }
    }

    #[test]
    #[ignore = "needs java"]
    fn events_spilled_by_jackson_are_replayed_once() {
        const COUNT: usize = 400;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(spill::ACTIVE);
        java(&["write", file.to_str().unwrap(), &COUNT.to_string()]);
        let written = lines(&file);
        assert_eq!(written.len(), COUNT);
        let stub = StubApi::start().unwrap();
        let config = child::config(dir.path()).build().unwrap();
        let logger = RunningLogger::start(config, child::http(&stub.url()), None).unwrap();
        stub.wait_until_blocking(|_| logger.account().spilled == 0, LIMIT);
        let report = logger.shutdown();
        assert_eq!(
            report.account.delivered, COUNT as i64,
            "{:?}",
            report.account
        );
        assert!(report.account.is_balanced());
        assert_eq!(
            (stub.count(), stub.duplicates(), stub.rejected()),
            (COUNT, 0, 0)
        );
        for (id, written) in stub.ids().into_iter().zip(&written) {
            let stored: Value = serde_json::from_slice(&stub.stored(id).unwrap()).unwrap();
            assert_eq!(fields(&stored), fields(written));
            assert_eq!(stored["_id"], id.to_string());
        }
        assert!(!file.try_exists().unwrap(), "nothing is left on disk");
    }
}
