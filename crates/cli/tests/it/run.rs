//! `tidegate run` and `tidegate ledger`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{run_in, tidegate};

/// A running process that is ended with the test, however it ends.
struct Running {
    child: Child,
    /// What it said up to its address.
    banner: String,
    address: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Running {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut all = vec!["run", "--set", "server.listen=127.0.0.1:0"];
        all.extend(arguments);
        let mut child = tidegate(dir, &all)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut banner = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(
                stderr.read_line(&mut line).unwrap() > 0,
                "it ended early: {banner}"
            );
            banner.push_str(&line);
            if let Some((_, rest)) = line.split_once("✓ server   http://") {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
        };
        Self {
            child,
            banner,
            address,
            stderr,
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([name, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for its end, at most ten seconds, and gives code, standard output and error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let limit = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > limit => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut stdout)
            .unwrap();
        self.stderr.read_to_string(&mut stderr).unwrap();
        (status.code(), stdout, stderr)
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn g13_sigterm_and_ctrl_c_drain_and_print_the_closing_ledger() {
    for signal in ["-TERM", "-INT"] {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), &["-o", "json", "--log-format", "json"]);
        assert!(
            running.banner.contains("no tidegate.yaml found"),
            "{}",
            running.banner
        );
        assert!(running.get("/readyz").starts_with("HTTP/1.1 200"));
        running.signal(signal);
        let (code, stdout, stderr) = running.end();
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(stdout, "{\"components\":[],\"balanced\":true}\n");
        assert!(stderr.contains("\"message\":\"stopped\""), "{stderr}");
    }
}

#[test]
fn the_ledger_of_a_running_process_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), &["--set", "server.token=sesame"]);
    let url = format!("http://{}", running.address);
    let ask = |more: &[&str]| {
        let mut arguments = vec!["ledger", "--url", &url, "-o", "json"];
        arguments.extend(more);
        run_in(dir.path(), &arguments)
    };
    let ran = ask(&["--token", "sesame"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "{\"components\":[],\"balanced\":true}\n")
    );
    let ran = ask(&[]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("token"),
        "{}",
        ran.stdout
    );
    assert!(running.get("/tidegate/ledger").starts_with("HTTP/1.1 401"));
    assert!(running.get("/livez").starts_with("HTTP/1.1 200"));
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    let ran = ask(&["--token", "sesame"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json()["error"]["code"], "ledger.unreachable");
}

#[test]
fn a_log_line_of_a_request_carries_its_trace_id() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), &["--log", "tidegate_server=debug"]);
    let mut stream = TcpStream::connect(&running.address).unwrap();
    write!(
        stream,
        "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\ntraceparent: \
         00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.contains("http.not-found"), "{response}");
    running.signal("-TERM");
    let (_, _, stderr) = running.end();
    assert!(
        stderr.contains("0af7651916cd43dd8448eb211c80319c"),
        "{stderr}"
    );
}

#[test]
fn it_does_not_start_exposed_or_on_a_busy_address() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run_in(
        dir.path(),
        &["run", "--set", "server.listen=0.0.0.0:0", "-o", "json"],
    );
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("server.token"), "{}", ran.stderr);
    let running = Running::start(dir.path(), &[]);
    let listen = format!("server.listen={}", running.address);
    let ran = run_in(dir.path(), &["run", "--set", &listen, "-o", "json"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json()["error"]["code"], "server.busy-address");
}
