//! `tidegate audit` over the tiers of a binding.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::command::run_in;
use crate::log::{configured, lines};
use crate::running::Running;

/// Turns the bits of the last occurrence of a value in each file of a directory whose name has this in it.
fn turn_last(dir: &Path, name: &str, value: &str) -> usize {
    let mut turned = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_file() || !path.to_string_lossy().contains(name) {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let found = bytes
            .windows(value.len())
            .rposition(|bytes| bytes == value.as_bytes());
        if let Some(at) = found {
            bytes[at..at + value.len()]
                .iter_mut()
                .for_each(|byte| *byte = !*byte);
            std::fs::write(&path, bytes).unwrap();
            turned += 1;
        }
    }
    turned
}

#[test]
fn a_record_of_a_tier_that_was_destroyed_is_named() {
    // Nobody listens there, so the record waits in its tier.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = format!(
        "log:\n  embedded: {{path: log, journal-size: 1MiB, segment-size: 1MiB}}\n  \
         topics: {{orders: {{partitions: 1}}}}\n\
         eventbus:\n  bindings:\n    shipping:\n      topic: orders\n      group-id: shipping\n      \
         handler: {{ http: {{ url: \"http://{closed}/\" }} }}\n      \
         retry: {{ tier0: {{ max-attempts: 1 }}, tiers: [ {{ delay: 1h }} ] }}\n"
    );
    let dir = configured(&config);
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    let send = [
        "send",
        "orders",
        "--value",
        "a-value-that-waits",
        "-o",
        "json",
    ];
    let ran = run_in(dir, &send);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let id = lines(&ran)[0]["id"].as_str().unwrap().to_owned();
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let ran = run_in(
            dir,
            &["tail", "orders.retry-1", "--until", "end", "-o", "json"],
        );
        if ran.code == Some(0) && lines(&ran).len() == 1 {
            break;
        }
        assert!(
            Instant::now() < limit,
            "it never came to its tier: {}",
            ran.stderr
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    running.signal("-TERM");
    running.end();
    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    // The copy in the tier is the last one in each file.
    let segments = turn_last(
        &dir.join("log/topic-orders.retry-1"),
        ".seg",
        "a-value-that-waits",
    );
    let journals = turn_last(&dir.join("log"), "journal-", "a-value-that-waits");
    assert!(segments + journals > 0, "it lies somewhere");
    let ran = run_in(dir, &["audit", "-o", "json"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stdout);
    assert!(ran.stdout.contains(&id), "{} names {id}", ran.stdout);
}
