//! A process that runs beside a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::command::tidegate;

/// A running process that is ended with the test, however it ends.
pub(crate) struct Running {
    child: Child,
    /// Its output up to its address.
    pub(crate) banner: String,
    pub(crate) address: String,
    /// Reads the rest of its standard error, so that a process that says much is not held up.
    stderr: JoinHandle<String>,
}

impl Running {
    pub(crate) fn start(dir: &Path, arguments: &[&str]) -> Self {
        Self::start_at(dir, "127.0.0.1:0", arguments)
    }

    /// The same at an address that stays when it is started again.
    pub(crate) fn start_at(dir: &Path, address: &str, arguments: &[&str]) -> Self {
        let listen = format!("server.listen={address}");
        let mut all = vec!["run", "--set", &listen];
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
            let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(address) = event["fields"]["address"].as_str() {
                break address.to_owned();
            }
        };
        let stderr = std::thread::spawn(move || {
            let mut rest = String::new();
            stderr.read_to_string(&mut rest).unwrap();
            rest
        });
        Self {
            child,
            banner,
            address,
            stderr,
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Waits for its end, at most a minute, and gives code, standard output and error.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let limit = Instant::now() + Duration::from_secs(60);
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > limit => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut stdout = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut stdout)
            .unwrap();
        let stderr = std::mem::replace(&mut self.stderr, std::thread::spawn(String::new));
        (status.code(), stdout, stderr.join().unwrap())
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path}"), "")
    }

    /// Posts JSON.
    pub(crate) fn post(&self, path: &str, json: &str) -> String {
        let length = json.len();
        let rest =
            format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}");
        self.ask(&format!("POST {path}"), &rest)
    }

    fn ask(&self, what: &str, rest: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        let end = if rest.is_empty() { "\r\n" } else { rest };
        write!(
            stream,
            "{what} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{end}"
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

pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args([name, &pid]).status();
    assert!(status.unwrap().success());
}
