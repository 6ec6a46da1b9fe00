//! `tidegate run` and `tidegate ledger`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::command::{run_in, tidegate};
use crate::running::{Running, signal};

/// A port that was free a moment ago.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The closing books of a run without a configuration: the event log is all there is.
fn assert_balanced(stdout: &str) {
    let ledger: serde_json::Value = serde_json::from_str(stdout).unwrap();
    assert_eq!(ledger["balanced"], true, "{stdout}");
    let components = ledger["components"].as_array().unwrap().iter();
    let names: Vec<_> = components
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["eventlog"]);
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
        assert_balanced(&stdout);
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
    assert_eq!(ran.code, Some(0));
    assert_balanced(&ran.stdout);
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
    // The address and the cause are said once.
    let message = ran.json()["error"]["message"].as_str().unwrap().to_owned();
    for part in ["http://127.0.0.1", "Connection refused"] {
        assert_eq!(message.matches(part).count(), 1, "{message}");
    }
    let ran = run_in(dir.path(), &["ledger", "--url", "nonsense"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("http://HOST:PORT"), "{}", ran.stderr);
}

#[test]
fn the_command_that_run_proposes_works_with_a_token() {
    let dir = tempfile::tempdir().unwrap();
    for (set, prefix) in [
        ("server.token=sesame", "TIDEGATE_TOKEN=… "),
        ("server.max-body=2MiB", ""),
    ] {
        let running = Running::start(dir.path(), &["--set", set]);
        let ledger = format!("tidegate ledger --url http://{}", running.address);
        let words: Vec<&str> = ledger.split(' ').skip(1).collect();
        let mut proposed = crate::command::tidegate(dir.path(), &words);
        let ran = proposed.env("TIDEGATE_TOKEN", "sesame").output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{set}");
        running.signal("-TERM");
        let (_, _, said) = running.end();
        let line = said.lines().find(|line| line.contains("try:")).unwrap();
        assert!(line.ends_with(&format!("  {prefix}{ledger}")), "{line}");
    }
}

#[test]
fn the_api_document_says_what_each_parameter_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), &[]);
    let answer = running.get("/openapi.json");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let document: serde_json::Value = serde_json::from_str(body).unwrap();
    let mut named = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if !path.starts_with("/tidegate/") {
                continue;
            }
            // Nobody has to show a token where none is set.
            let security = &operation["security"];
            assert!(
                security.is_null() || *security == serde_json::json!([]),
                "{method} {path}"
            );
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                if !["topic", "group", "id", "from", "partition"].contains(&name) {
                    continue;
                }
                let schema = &parameter["schema"];
                let is_bounded = ["pattern", "minimum", "format"]
                    .iter()
                    .any(|one| !schema[one].is_null());
                assert!(is_bounded, "{method} {path}: {parameter}");
                named.insert(name.to_owned());
            }
        }
    }
    assert!(document["security"].is_null() || document["security"] == serde_json::json!([]));
    assert!(named.len() >= 5, "{named:?}");
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
    assert_eq!(ran.json()["error"]["code"], "server.exposed");
    let running = Running::start(dir.path(), &[]);
    let listen = format!("server.listen={}", running.address);
    let ran = run_in(dir.path(), &["run", "--set", &listen, "-o", "json"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.json()["error"]["code"], "server.busy-address");
}

#[test]
fn a_signal_right_after_the_first_line_drains() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = tidegate(
            dir.path(),
            &["run", "--set", "server.listen=127.0.0.1:0", "-o", "json"],
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut String::new()).unwrap();
        signal(&child, "-TERM");
        stderr.read_to_string(&mut String::new()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{:?}", output.status);
        assert_balanced(&String::from_utf8(output.stdout).unwrap());
    }
}

/// Its standard error is full, so it listens and cannot get past its first line. A signal that
/// comes now finds it as early as anybody can know that it runs.
#[test]
fn a_signal_before_the_first_line_drains() {
    let dir = tempfile::tempdir().unwrap();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let stderr = writer.try_clone().unwrap();
    let filler = std::thread::spawn(move || {
        writer.write_all(&vec![b'.'; 1 << 20]).ok();
    });
    let address = free_address();
    let listen = format!("server.listen={address}");
    let mut child = tidegate(dir.path(), &["run", "--set", &listen, "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(&address).is_err() {
        assert!(Instant::now() < limit, "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-TERM");
    let draining = std::thread::spawn(move || {
        std::io::copy(&mut reader, &mut std::io::sink()).ok();
    });
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_balanced(&stdout);
    filler.join().unwrap();
    draining.join().unwrap();
}

/// The disk that takes the log lines is full; events are kept elsewhere.
#[test]
fn a_full_standard_error_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let address = free_address();
    let listen = format!("server.listen={address}");
    let child = tidegate(dir.path(), &["run", "--set", &listen, "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(full.unwrap())
        .spawn()
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(&address).is_err() {
        assert!(Instant::now() < limit, "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_balanced(&String::from_utf8(output.stdout).unwrap());
}

#[test]
fn with_json_logs_every_line_of_standard_error_is_json() {
    let dir = tempfile::tempdir().unwrap();
    let assert_json = |text: &str| {
        for line in text.lines() {
            serde_json::from_str::<serde_json::Value>(line)
                .unwrap_or_else(|error| panic!("{error}: {line}"));
        }
    };
    let running = Running::start(dir.path(), &["--log-format", "json"]);
    assert!(
        running.banner.contains("\"message\":\"listening\""),
        "{}",
        running.banner
    );
    assert_json(&running.banner);
    running.signal("-TERM");
    assert_json(&running.end().2);
    // Neither problems nor what follows from them break it.
    std::fs::write(dir.path().join("tidegate.yaml"), "sever: {}\nqueue: {}\n").unwrap();
    let ran = run_in(dir.path(), &["run", "--log-format", "json"]);
    assert_eq!(ran.code, Some(3));
    assert_json(&ran.stderr);
    assert!(ran.stderr.contains("config.invalid") && ran.stderr.contains("\"path\":\"sever\""));
}

#[test]
fn log_lines_have_no_colors_off_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), &["--log", "debug"]);
    running.get("/livez");
    running.signal("-TERM");
    let (_, _, stderr) = running.end();
    assert!(
        stderr.contains("stopped") && !stderr.contains('\u{1b}'),
        "{stderr:?}"
    );
}

#[test]
fn the_limits_of_the_server_are_keys() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("tidegate.yaml"),
        "server: {max-connections: 4, header-timeout: 3s, request-timeout: 5s, max-header: 1KiB}\n",
    )
    .unwrap();
    let running = Running::start(dir.path(), &[]);
    // More silent sockets than there are places.
    let mut silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(&running.address).unwrap())
        .collect();
    // Sooner than without the key, on any machine: the usual header timeout is ten seconds.
    let sooner = Duration::from_secs(9);
    let begun = Instant::now();
    assert!(running.get("/livez").starts_with("HTTP/1.1 200"));
    assert!(begun.elapsed() < sooner, "{:?}", begun.elapsed());
    // The last of them is closed by the header timeout.
    let last = silent.last_mut().unwrap();
    last.set_read_timeout(Some(sooner)).unwrap();
    assert_eq!(last.read(&mut [0; 16]).unwrap(), 0);
    assert!(begun.elapsed() < sooner, "{:?}", begun.elapsed());
    let mut large = TcpStream::connect(&running.address).unwrap();
    write!(
        large,
        "GET /livez HTTP/1.1\r\nHost: x\r\nx: {}\r\n\r\n",
        "y".repeat(1_500)
    )
    .unwrap();
    let mut response = String::new();
    large.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 431"), "{response}");
}

/// Answers one request with `response` and gives what was asked.
fn answer_once(response: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
            head.push(byte[0]);
        }
        stream.write_all(response.as_bytes()).unwrap();
        String::from_utf8(head).unwrap()
    });
    (url, asked)
}

const EMPTY_LEDGER: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 35\r\nconnection: close\r\n\r\n{\"components\":[],\"balanced\":true}  ";

#[test]
fn the_configured_token_goes_to_the_configured_address_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, "server: {token: sesame}\n").unwrap();
    let (url, asked) = answer_once(EMPTY_LEDGER);
    let ran = run_in(dir.path(), &["ledger", "--url", &url, "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let head = asked.join().unwrap().to_lowercase();
    assert!(
        !head.contains("sesame") && !head.contains("authorization"),
        "{head}"
    );

    let (url, asked) = answer_once(EMPTY_LEDGER);
    run_in(dir.path(), &["ledger", "--url", &url, "--token", "given"]);
    assert!(asked.join().unwrap().contains("Bearer given"));

    let (url, asked) = answer_once(EMPTY_LEDGER);
    let listen = url.strip_prefix("http://").unwrap();
    std::fs::write(
        &file,
        format!("server: {{token: sesame, listen: \"{listen}\"}}\n"),
    )
    .unwrap();
    let ran = run_in(dir.path(), &["ledger"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(asked.join().unwrap().contains("Bearer sesame"));
}

#[test]
fn redirects_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (elsewhere, _) = answer_once(EMPTY_LEDGER);
    let response = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}/tidegate/ledger\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    let (url, _asked) = answer_once(response.leak());
    let ran = run_in(
        dir.path(),
        &["ledger", "--url", &url, "--token", "x", "-o", "json"],
    );
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let message = ran.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("307"), "{message}");
}

#[test]
fn a_password_in_a_url_is_not_repeated() {
    let ran = crate::command::run(&["ledger", "--url", "http://me:hunter2@127.0.0.1:1"]);
    assert_eq!(ran.code, Some(1));
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
}
