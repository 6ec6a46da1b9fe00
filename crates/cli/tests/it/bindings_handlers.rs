//! The built-in handlers in the binary, over the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_queue::{
    Dispatcher, DispatcherOptions, Handled, Projection, Projector, ProjectorOptions,
};
use tokio::sync::watch;

use crate::command::run_in;
use crate::log::{configured, lines};
use crate::outbox::ok;
use crate::queue_live::Application;
use crate::running::Running;

/// A request that a service got.
#[derive(Debug, Clone)]
struct ServedRequest {
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    at: Instant,
}

impl ServedRequest {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }

    fn value(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// An answer: status, more headers, and how long it takes.
type ServedAnswer = (u16, &'static str, Duration);

/// A service on a port of its own, which answers as a function says.
#[derive(Clone)]
struct Service {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ServedRequest>>>,
}

impl Service {
    fn start(
        answer: impl Fn(&ServedRequest, usize) -> ServedAnswer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
        };
        let (own, answer) = (service.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (own, answer) = (own.clone(), Arc::clone(&answer));
                std::thread::spawn(move || own.serve(&stream.unwrap(), &*answer));
            }
        });
        service
    }

    fn serve(&self, stream: &TcpStream, answer: &dyn Fn(&ServedRequest, usize) -> ServedAnswer) {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader) {
            let count = {
                let mut requests = self.requests.lock().unwrap();
                requests.push(request.clone());
                requests.len()
            };
            let (status, headers, takes) = answer(&request, count);
            std::thread::sleep(takes);
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n{headers}\r\n");
            let mut stream = stream;
            // The other side may be gone.
            stream.write_all(head.as_bytes()).ok();
        }
    }

    fn requests(&self) -> Vec<ServedRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until it got so many.
    fn until(&self, count: usize) -> Vec<ServedRequest> {
        until("the requests", || {
            Some(self.requests()).filter(|all| all.len() >= count)
        })
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<ServedRequest> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        // A value may be empty; the line that ends the headers has no colon.
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let at = Instant::now();
    Some(ServedRequest {
        path,
        headers,
        body,
        at,
    })
}

/// Waits for something.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn send(dir: &Path, arguments: &[&str]) -> Value {
    let all = [&["send", "orders", "-o", "json"][..], arguments].concat();
    let ran = run_in(dir, &all);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    lines(&ran).remove(0)
}

/// Everything in a topic, once there is so much.
fn tail(dir: &Path, topic: &str, count: usize) -> Vec<Value> {
    until("the records", || {
        let ran = run_in(dir, &["tail", topic, "--until", "end", "-o", "json"]);
        let found = (ran.code == Some(0)).then(|| lines(&ran))?;
        Some(found).filter(|all| all.len() >= count)
    })
}

/// A file with one binding of the topic `orders`.
fn binding(keys: &str) -> String {
    format!(
        "log: {{topics: {{orders: {{partitions: 1}}, copies: {{partitions: 1}}}}}}\n\
         eventbus:\n  bindings:\n    shipping:\n      topic: orders\n      group-id: shipping\n{keys}"
    )
}

fn http(url: &str) -> String {
    binding(&format!("      handler: {{http: {{url: \"{url}\"}}}}\n"))
}

fn ends_well(running: Running) -> String {
    running.signal("-TERM");
    let (code, _, stderr) = running.end();
    assert_eq!(code, Some(0), "{stderr}");
    stderr
}

#[test]
fn http_gets_id_position_key_attempt_and_trace() {
    let service = Service::start(|_, count| match count {
        1 => (503, "retry-after: 2\r\n", Duration::ZERO),
        _ => (204, "", Duration::ZERO),
    });
    let dir = configured(&http(&format!("http://{}/ship", service.address)));
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traceparent = format!("traceparent={trace}");
    let headers = ["--header", &traceparent, "--header", "tracestate=a=b"];
    let first = send(
        dir,
        &[&headers[..], &["--key", "customer 7", "--value", "{}"]].concat(),
    );
    send(dir, &["--key", "k\u{e9}", "--value", ""]);
    send(dir, &["--key", "gone", "--tombstone"]);
    let got = service.until(4);
    assert!(got.iter().all(|request| request.path == "/ship"), "{got:?}");
    let id = first["id"].as_str().unwrap();
    for (n, request) in got[..2].iter().enumerate() {
        let attempt = (n + 1).to_string();
        for (name, value) in [
            ("x-tidegate-event-id", id),
            ("idempotency-key", id),
            ("x-tidegate-topic", "orders"),
            ("x-tidegate-partition", "0"),
            ("x-tidegate-offset", "0"),
            ("x-tidegate-key", "customer 7"),
            ("x-tidegate-attempt", attempt.as_str()),
            ("x-tidegate-tier", "0"),
            ("x-eventbus-binding-name", "shipping"),
            ("traceparent", trace),
            ("tracestate", "a=b"),
        ] {
            assert_eq!(request.header(name), Some(value), "{name} of {request:?}");
        }
        assert_eq!(request.value(), "{}");
    }
    // It asked for time, more than the usual back-off.
    assert!(got[1].at - got[0].at >= Duration::from_secs(2));
    let (empty, tombstone) = (&got[2], &got[3]);
    assert_eq!(
        (empty.value(), tombstone.value()),
        (String::new(), String::new())
    );
    assert_eq!(empty.header("x-tidegate-tombstone"), None);
    assert_eq!(tombstone.header("x-tidegate-tombstone"), Some("true"));
    assert!(empty.header("x-tidegate-key-base64").is_some(), "{empty:?}");
    ends_well(running);
    assert_eq!(service.requests().len(), 4);
}

#[test]
fn http_follows_no_redirect_and_keeps_the_record() {
    let service = Service::start(|request, count| match (request.path.as_str(), count) {
        ("/ship", 1) => (307, "location: /elsewhere\r\n", Duration::ZERO),
        _ => (200, "", Duration::ZERO),
    });
    let dir = configured(&http(&format!("http://{}/ship", service.address)));
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    send(dir, &["--value", "a"]);
    service.until(1);
    until("health tells it", || {
        let health = running.get("/health");
        (health.contains("service.moved") && health.contains("paused (system)")).then_some(())
    });
    // It is tried alone, and the binding goes on.
    let got = service.until(2);
    assert!(got.iter().all(|request| request.path == "/ship"), "{got:?}");
    assert_eq!(got[1].header("x-tidegate-attempt"), Some("1"));
    until("it goes on", || {
        let health = running.get("/health");
        (!health.contains("service.moved")).then_some(())
    });
    ends_well(running);
}

#[test]
fn c47_a_signal_waits_for_a_slow_request() {
    let service = Service::start(|_, _| (200, "", Duration::from_secs(1)));
    let dir = configured(&http(&format!("http://{}/", service.address)));
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    send(dir, &["--value", "slow"]);
    send(dir, &["--value", "next"]);
    service.until(1);
    ends_well(running);
    assert_eq!(service.requests().len(), 1, "nothing new began");
    // Its offset was committed: only the other one comes.
    let running = Running::start(dir, &[]);
    let got = service.until(2);
    assert_eq!(got[1].value(), "next");
    ends_well(running);
    let values: Vec<String> = service
        .requests()
        .iter()
        .map(ServedRequest::value)
        .collect();
    assert_eq!(values, ["slow", "next"]);
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
}

#[test]
fn dead_letters_are_posted_or_are_a_line_of_the_log() {
    let service = Service::start(|request, _| match request.path.as_str() {
        "/ship" => (422, "", Duration::ZERO),
        _ => (200, "", Duration::ZERO),
    });
    let at = |path: &str| format!("http://{}/{path}", service.address);
    let keys = |more: &str| {
        let handler = format!("      handler: {{http: {{url: \"{}\"}}}}\n", at("ship"));
        binding(&(handler + more))
    };
    let posted = format!(
        "      dlt: {{strategy: CUSTOM, handler: {{http: {{url: \"{}\"}}}}}}\n",
        at("letters")
    );
    let dir = configured(&keys(&posted));
    let running = Running::start(dir.path(), &[]);
    let sent = send(dir.path(), &["--key", "k", "--value", "bad"]);
    let got = service.until(2);
    let letter = &got[1];
    assert_eq!(
        (letter.path.as_str(), letter.value().as_str()),
        ("/letters", "bad")
    );
    for (name, value) in [
        ("x-tidegate-event-id", sent["id"].as_str().unwrap()),
        ("x-eventbus-dlt-reason", "NON_RETRYABLE"),
        ("x-eventbus-original-topic", "orders"),
        ("x-eventbus-original-offset", "0"),
        ("x-eventbus-last-exception-class", "request.rejected"),
        ("x-eventbus-total-attempts", "1"),
    ] {
        assert_eq!(letter.header(name), Some(value), "{name} of {letter:?}");
    }
    ends_well(running);
    let dir = configured(&keys("      dlt: {strategy: ALERT_AND_STORE}\n"));
    let running = Running::start(dir.path(), &["--log-format", "json"]);
    let sent = send(dir.path(), &["--value", "bad"]);
    tail(dir.path(), "orders.DLT", 1);
    // The group of the letters commits once it was told.
    until("it is told", || {
        let listed = ok(dir.path(), &["log", "ls"]);
        let groups = listed["groups"].as_array().unwrap();
        let own = groups
            .iter()
            .find(|group| group["group"] == "shipping.DLT")?;
        (own["committed"] == 1).then_some(())
    });
    let stderr = ends_well(running);
    let events = stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut told = events.filter(|event| event["fields"]["message"] == "dead letter");
    let event = told.next().unwrap_or_else(|| panic!("no line in {stderr}"));
    assert_eq!(event["level"], "ERROR", "{event}");
    assert_eq!(event["fields"]["event"], sent["id"], "{event}");
    assert_eq!(event["fields"]["code"], "request.rejected", "{event}");
}

#[test]
fn forward_copies_records_with_their_ids() {
    let dir = configured(&binding("      handler: {forward: {topic: copies}}\n"));
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    let first = send(dir, &["--key", "k", "--header", "a=1", "--value", "v"]);
    let second = send(dir, &["--key", "gone", "--tombstone"]);
    let copies = tail(dir, "copies", 2);
    for (copy, sent) in copies.iter().zip([&first, &second]) {
        assert_eq!(copy["id"], sent["id"], "{copy}");
    }
    assert_eq!(
        (&copies[0]["key"], &copies[0]["value"]),
        (&"k".into(), &"v".into())
    );
    let headers = copies[0]["headers"].to_string();
    assert!(headers.contains("\"a\""), "{headers}");
    assert!(copies[1]["value"].is_null(), "a tombstone stays one");
    ends_well(running);
    let ran = run_in(dir, &["audit"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    // A second process copies nothing again.
    let running = Running::start(dir, &[]);
    send(dir, &["--value", "third"]);
    assert_eq!(tail(dir, "copies", 3).len(), 3);
    ends_well(running);
}

#[test]
fn log_writes_a_line_for_each_record() {
    let dir = configured(&binding("      handler: {log: {}}\n"));
    let dir = dir.path();
    let running = Running::start(dir, &["--log-format", "json"]);
    let sent = send(dir, &["--key", "k", "--value", "v"]);
    until("it is settled", || {
        let ledger = running.get("/tidegate/ledger");
        ledger.contains("\"delivered\":1").then_some(())
    });
    let stderr = ends_well(running);
    let events = stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut told = events.filter(|event| event["fields"]["message"] == "record");
    let event = told.next().unwrap_or_else(|| panic!("no line in {stderr}"));
    let fields = &event["fields"];
    assert_eq!(
        (&fields["event"], &fields["offset"]),
        (&sent["id"], &"0".into())
    );
    // Whose line it is.
    let spans = event["spans"].to_string();
    for field in ["consumerGroup", "consumerInstance", "retry_tier"] {
        assert!(spans.contains(field), "{field} of {event}");
    }
}

/// A projection that notes the ids that it is given.
fn noted(ids: &Arc<Mutex<Vec<String>>>) -> Projection {
    let ids = Arc::clone(ids);
    Projection::builder("noted")
        .table("noted")
        .create(|_, _| Box::pin(async { Ok(()) }))
        .apply(move |_, _, events| {
            let seen = events.iter().map(|event| event.event_id.to_string());
            ids.lock().unwrap().extend(seen);
            Box::pin(async { Ok(()) })
        })
        .build()
        .unwrap()
}

#[test]
fn a05_an_event_keeps_its_id_from_the_topic_to_a_projection() {
    let app = Application::open(None);
    let dir = app.dir.path();
    let store = format!(
        "store: {{url: \"sqlite://{}\"}}\n",
        dir.join("orders.db").display()
    );
    let text = store + &binding("      handler: {queue: {}}\n");
    std::fs::write(dir.join("tidegate.yaml"), text).unwrap();
    let running = Running::start(dir, &[]);
    let sent = send(
        dir,
        &[
            "--header",
            "event-type=Order",
            "--key",
            "k",
            "--value",
            "{\"n\":1}",
        ],
    );
    let id = sent["id"].as_str().unwrap().to_owned();
    let handled = Arc::new(Mutex::new(Vec::new()));
    let projected = Arc::new(Mutex::new(Vec::new()));
    let (stop, stopped) = watch::channel(false);
    let wait = |mut stopped: watch::Receiver<bool>| async move {
        stopped.wait_for(|stop| *stop).await.ok();
    };
    let env = tidegate_core::env::Env::system();
    let note = Arc::clone(&handled);
    let options = DispatcherOptions {
        poll_delay: Duration::from_millis(20),
        ..DispatcherOptions::default()
    };
    let dispatcher = Dispatcher::builder(app.queue.clone())
        .options(options)
        .register_raw("ship", "Order", move |raw, _| {
            note.lock().unwrap().push(raw.event_id().to_string());
            Box::pin(async { Handled::Success })
        })
        .unwrap()
        .build(&env);
    app.runtime.spawn(dispatcher.run(wait(stopped.clone())));
    let options = ProjectorOptions {
        poll_delay: Duration::from_millis(20),
        ..ProjectorOptions::default()
    };
    let projector = Projector::new(&app.queue, vec![noted(&projected)], options, &env);
    app.runtime.spawn(projector.run(wait(stopped)));
    until("it is projected", || {
        (!projected.lock().unwrap().is_empty()).then_some(())
    });
    stop.send(true).unwrap();
    assert_eq!(*handled.lock().unwrap(), std::slice::from_ref(&id));
    assert_eq!(*projected.lock().unwrap(), std::slice::from_ref(&id));
    let place = ok(dir, &["where", &id]);
    assert!(place.to_string().contains("delivered"), "{place}");
    ends_well(running);
}
