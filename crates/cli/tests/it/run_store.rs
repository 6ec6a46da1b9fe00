//! `tidegate run` with a store.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{run_in, tidegate};
use crate::running::Running;

#[test]
fn a_running_process_keeps_the_queue_tidy_and_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("tidegate.yaml"),
        "queue: {cleanup-interval: 100ms, event-log-retention: 1ms, poll-delay-ms: 20}\n",
    )
    .unwrap();
    let running = Running::start(dir.path(), &["-o", "json"]);
    assert!(
        running
            .banner
            .contains("✓ store    sqlite://./data/tidegate.db")
            && running.banner.contains("; 1 migration ran"),
        "{}",
        running.banner
    );
    let ready = running.get("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert!(
        ready.contains(r#"{"name":"store","status":"UP"}"#),
        "{ready}"
    );
    for payload in ["1", "2"] {
        let ran = run_in(dir.path(), &["queue", "publish", "A", payload]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    let ledger = running.get("/tidegate/ledger");
    assert!(
        ledger.contains(r#""name":"queue","kind":"queue","account":{"accepted":2,"queued":2"#),
        "{ledger}"
    );
    assert_eq!(run_in(dir.path(), &["queue", "cancel", "2"]).code, Some(0));
    // It gets its position from the process, and is removed by it.
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let ran = run_in(dir.path(), &["queue", "stats", "-o", "json"]);
        if ran.json()["finalized"] == 0 {
            break;
        }
        assert!(Instant::now() < limit, "{}", ran.stdout);
        std::thread::sleep(Duration::from_millis(50));
    }
    let metrics = running.get("/metrics");
    for line in [
        "# TYPE event_queue_depth gauge",
        "event_queue_depth{component=\"queue\",status=\"PROCESSING\"} 0",
        "event_queue_oldest_age_seconds{component=\"queue\"}",
        "event_queue_handler_states{component=\"queue\"} 0",
        "tidegate_events{component=\"queue\",place=\"queued\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    running.signal("-TERM");
    let (code, stdout, stderr) = running.end();
    assert_eq!(code, Some(0), "{stderr}");
    let closing: Value = serde_json::from_str(&stdout).unwrap();
    let components = closing["components"].as_array().unwrap();
    let queue = components.iter().find(|one| one["name"] == "queue");
    assert_eq!(queue.unwrap()["account"]["queued"], 1, "{stdout}");
    assert_eq!(closing["balanced"], true);
}

#[test]
fn a_process_whose_database_file_was_removed_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("tidegate.yaml"),
        "store: {url: \"sqlite://a.db\"}\n",
    )
    .unwrap();
    let running = Running::start(dir.path(), &[]);
    assert!(running.get("/readyz").starts_with("HTTP/1.1 200"));
    std::fs::remove_file(dir.path().join("a.db")).unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let ready = running.get("/readyz");
        if ready.starts_with("HTTP/1.1 503") {
            assert!(
                ready.contains(r#""name":"store","status":"DOWN""#),
                "{ready}"
            );
            break;
        }
        assert!(Instant::now() < limit, "{ready}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_process_does_not_start_without_its_database() {
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let away = "store.url=postgres://me:hunter2@127.0.0.1:1/orders";
    let listen = "server.listen=127.0.0.1:0";
    let output = tidegate(dir.path(), &["run", "--set", away, "--set", listen]).output();
    let output = output.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("error[store.away]") && !stderr.contains("hunter2"),
        "{stderr}"
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Passes bytes between the command and the server until it is cut.
pub(crate) struct Line {
    address: String,
    is_cut: Arc<AtomicBool>,
}

impl Line {
    /// A line to the server of this URL, and the URL through it.
    pub(crate) fn to_database(url: &str) -> (Self, String) {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (before, path) = rest.split_once('/').unwrap();
        let (user, server) = before.rsplit_once('@').unwrap_or(("", before));
        let line = Self::to(server);
        let at = if user.is_empty() {
            String::new()
        } else {
            format!("{user}@")
        };
        let through = format!("{scheme}://{at}{}/{path}", line.address);
        (line, through)
    }

    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_cut = Arc::new(AtomicBool::new(false));
        let (server, cut) = (server.to_owned(), Arc::clone(&is_cut));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                if cut.load(Ordering::Relaxed) {
                    continue;
                }
                let far = TcpStream::connect(&server).unwrap();
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far, near),
                ] {
                    let cut = Arc::clone(&cut);
                    std::thread::spawn(move || {
                        let pause = Some(Duration::from_millis(20));
                        from.set_read_timeout(pause).unwrap();
                        let mut buffer = [0; 8192];
                        while !cut.load(Ordering::Relaxed) {
                            match from.read(&mut buffer) {
                                Ok(0) => break,
                                Ok(count) if to.write_all(&buffer[..count]).is_err() => break,
                                Ok(_) => {}
                                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                                Err(_) => break,
                            }
                        }
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            }
        });
        Self { address, is_cut }
    }

    pub(crate) fn set_cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

mod needs_postgres {
    use super::*;
    use crate::queue_live::needs_postgres::with;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn while_the_database_is_away_the_process_lives_and_is_not_ready() {
        with(|url| {
            let dir = tempfile::tempdir().unwrap();
            let (line, through) = Line::to_database(url);
            let through = format!("store.url={through}");
            let running = Running::start(dir.path(), &["--set", &through]);
            let wait = |head: &str| {
                let limit = Instant::now() + Duration::from_secs(60);
                loop {
                    let answer = running.get("/readyz");
                    if answer.starts_with(head) {
                        return answer;
                    }
                    assert!(Instant::now() < limit, "{answer}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            };
            wait("HTTP/1.1 200");
            line.set_cut(true);
            let answer = wait("HTTP/1.1 503");
            assert!(
                answer.contains(r#""name":"store","status":"DOWN""#),
                "{answer}"
            );
            assert!(running.get("/livez").starts_with("HTTP/1.1 200"));
            line.set_cut(false);
            wait("HTTP/1.1 200");
            running.signal("-TERM");
            let (code, _, stderr) = running.end();
            assert_eq!(code, Some(0), "{stderr}");
        });
    }
}
