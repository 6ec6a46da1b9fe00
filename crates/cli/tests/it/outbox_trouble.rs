//! Troubles of an outbox: each is survived, listed by `outbox ls`, and told by `/health`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate::core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate::core::env::{BoxFuture, Env};
use tidegate::core::{Component, EventId, EventLocation, Failure, HealthFinding, Topic};
use tidegate::log::{EmbeddedConfig, EmbeddedLog, Log, Read, TopicPartition};
use tidegate::outbox::NewOutboxEvent;
use tidegate::server::{Server, ServerConfig};

use crate::command::run_in;
use crate::outbox::{
    CONFIG, add, add_events, add_events_to, migrated, migrated_with, ok, wait_for,
};
use crate::running::Running;

/// The outbox in the answer of `/health`, as soon as its message has this in it.
pub(crate) fn told(running: &Running, part: &str) -> Value {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = running.get("/health");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let health: Value = serde_json::from_str(body).unwrap();
        let all = health["parts"].as_array().unwrap();
        let outbox = all.iter().find(|one| one["name"] == "outbox.default");
        if outbox.unwrap()["message"].to_string().contains(part) {
            return outbox.unwrap().clone();
        }
        assert!(Instant::now() < limit, "`{part}` is not in {health}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until no row waits any more.
pub(crate) fn drained(dir: &Path) -> Value {
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        let stats = ok(dir, &["outbox", "stats"]);
        if stats["pending"] == 0 && stats["claimed"] == 0 {
            return stats;
        }
        assert!(Instant::now() < limit, "{stats}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends it, and gives its log lines.
pub(crate) fn stop(running: Running) -> String {
    let banner = running.banner.clone();
    running.signal("-TERM");
    let (code, _, lines) = running.end();
    assert_eq!(code, Some(0));
    banner + &lines
}

/// Somebody who reads the log finds a warning with all of this in one line.
fn is_warned(lines: &str, parts: &[&str]) {
    let mut warnings = lines.lines().filter(|line| line.contains("WARN"));
    let is_it = |line: &str| parts.iter().all(|part| line.contains(part));
    assert!(warnings.any(is_it), "{parts:?} in {lines}");
}

/// The records of the topic by the audit, which finds nothing missing.
fn audited(dir: &Path) -> Value {
    let audit = ok(dir, &["audit"]);
    let all = audit["components"].as_array().unwrap();
    let topic = all.iter().find(|one| one["name"] == "orders");
    topic.unwrap()["recount"]["queued"].clone()
}

#[test]
fn o09_poison_rows_and_a_payload_of_4_mib_among_many_hold_up_nothing() {
    let dir = migrated();
    let url = format!("sqlite://{}", dir.path().join("shop.db").display());
    let sent = poison_rows_among_many(dir.path(), &url);
    assert_eq!(audited(dir.path()), sent);
}

/// Gives how many rows were sent.
fn poison_rows_among_many(dir: &Path, url: &str) -> usize {
    const HUGE: usize = 4 * 1024 * 1024;
    let rows: usize = match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 10_000,
        None => 500,
    };
    let key = |number: usize| format!("order-{}", number % 20);
    let event = |number: usize| NewOutboxEvent::new(key(number), "Numbered", number.to_string());
    let mut events: Vec<_> = (0..rows).map(event).collect();
    events[rows / 3] = event(rows / 3).topic("no topic has this name");
    events[rows / 2] = NewOutboxEvent::new(key(rows / 2), "Huge", "x".repeat(HUGE));
    for some in events.chunks(500) {
        add_events_to(url, some);
    }
    let running = Running::start(dir, &[]);
    assert_eq!(drained(dir)["dead"], 2);
    let dead = wait_for(dir, "dead", 2)["rows"].clone();
    let error = |row: &Value| row["last_error"].as_str().unwrap().to_owned();
    assert!(error(&dead[0]).starts_with("outbox.row: "), "{dead}");
    assert!(
        error(&dead[1]).starts_with("log.record-too-large: "),
        "{dead}"
    );
    let shown = ok(dir, &["outbox", "show", &dead[1]["id"].to_string()]);
    assert_eq!(shown["payload"].as_str().map(str::len), Some(HUGE));
    let health = told(&running, "2 rows are DEAD");
    assert_eq!(health["status"], "DEGRADED", "{health}");
    assert!(running.get("/readyz").starts_with("HTTP/1.1 200"));
    let purge = [
        "purge",
        "--status",
        "dead",
        "--before",
        "2999-01-01T00:00:00Z",
        "--yes",
    ];
    let purge: Vec<&str> = ["outbox"].into_iter().chain(purge).collect();
    assert_eq!(ok(dir, &purge)["purged"], 2);
    stop(running);
    let audit = ok(dir, &["audit"]);
    let all = audit["components"].as_array().unwrap();
    let outbox = all.iter().find(|one| one["name"] == "outbox.default");
    assert_eq!(outbox.unwrap()["recount"]["delivered"], rows - 2, "{audit}");
    rows - 2
}

#[test]
fn o16_rows_wait_for_a_topic_that_is_missing() {
    let config = CONFIG.replace("max-attempts: 2", "max-attempts: 1000");
    let dir = migrated_with(&config.replace("{topic: orders,", "{topic: loans,"));
    let dir = dir.path();
    add(dir, &[("loan-1", "T", "1"), ("loan-2", "T", "2")]);
    let running = Running::start(dir, &[]);
    let health = told(&running, "`loans`");
    assert_eq!(health["status"], "DEGRADED", "{health}");
    assert!(running.get("/readyz").starts_with("HTTP/1.1 200"));
    let waiting = ok(dir, &["outbox", "ls", "--status", "pending"]);
    let error = waiting["rows"][0]["last_error"].as_str().unwrap();
    assert!(error.starts_with("log.unknown-topic: "), "{waiting}");
    let lines = stop(running);
    is_warned(&lines, &["a topic takes nothing; its rows wait", "loans"]);
    let running = Running::start(dir, &["--set", "log.topics.loans.partitions=2"]);
    wait_for(dir, "sent", 2);
    stop(running);
    assert_eq!(run_in(dir, &["audit"]).code, Some(0));
}

#[test]
fn o11_a_full_log_keeps_rows_waiting_until_there_is_room() {
    let limits = "journal-size: 1MiB, segment-size: 1MiB, max-size: 1MiB, reserve: 64KiB";
    let config = CONFIG
        .replace("\nlog: {", &format!("\nlog: {{embedded: {{{limits}}}, "))
        .replace("2KiB", "200KiB");
    let dir = migrated_with(&config);
    let dir = dir.path();
    let event = |number: usize| {
        let payload = format!("{number:0>50000}");
        NewOutboxEvent::new(format!("order-{}", number % 3), "Large", payload)
    };
    add_events(dir, &(0..40).map(event).collect::<Vec<_>>());
    let running = Running::start(dir, &[]);
    let health = told(&running, "log.embedded.max-size");
    assert_eq!(health["status"], "DEGRADED", "{health}");
    // Rows that the log refused stay CLAIMED by their relay, which tries them again.
    let rows = ok(dir, &["outbox", "ls"]);
    let rows = rows["rows"].as_array().unwrap();
    let waiting: Vec<_> = rows.iter().filter(|row| row["status"] != "SENT").collect();
    assert!(!waiting.is_empty(), "{rows:?}");
    assert!(waiting.iter().all(|row| row["attempts"] == 0));
    let lines = stop(running);
    let away = "the log takes nothing at present; rows wait";
    is_warned(&lines, &[away, "log.embedded.max-size"]);
    let running = Running::start(dir, &["--set", "log.embedded.max-size=1GiB"]);
    wait_for(dir, "sent", 40);
    stop(running);
    assert_eq!(audited(dir), 40);
}

#[test]
fn o08_a_dead_letter_that_is_refused_is_told_with_its_trace_and_the_row_is_kept() {
    let dir = migrated_with(&CONFIG.replace("dlq-topic: orders-dlq, ", ""));
    let dir = dir.path();
    // A topic of this name may be, and one with `-dlq` behind it may not.
    let longest = "t".repeat(249);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let event = NewOutboxEvent::new("order-1", "T", "1")
        .topic(longest)
        .header("traceparent", format!("00-{trace}-b7ad6b7169203331-01"));
    add_events(dir, &[event, NewOutboxEvent::new("order-2", "T", "2")]);
    let running = Running::start(dir, &[]);
    wait_for(dir, "sent", 1);
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let listed = ok(dir, &["outbox", "ls"]);
        let row = &listed["rows"][0];
        if row["last_error"].to_string().contains("and no dead letter") {
            assert_eq!(row["sent"], false, "{listed}");
            break;
        }
        assert!(Instant::now() < limit, "{listed}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lines = stop(running);
    is_warned(&lines, &["a row could not be published", trace]);
    is_warned(&lines, &["a dead letter was refused", trace]);
    assert_eq!(run_in(dir, &["audit"]).code, Some(0));
}

/// A part whose loop stands still.
#[derive(Debug)]
struct Standing;

impl Component for Standing {
    fn name(&self) -> &str {
        "outbox.default"
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn locate(&self, _: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }

    fn stalled(&self) -> Option<String> {
        Some("lane-0".to_owned())
    }
}

#[test]
fn o16_livez_is_503_while_a_loop_of_a_part_stands_still() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let answer = runtime.block_on(async {
        let config = ServerConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..ServerConfig::default()
        };
        let builder = Server::builder(config).component(Arc::new(Standing));
        let server = builder.bind(&Env::system()).await.unwrap();
        let address = server.local_addr();
        let running = tokio::spawn(server.run(std::future::pending()));
        let asked = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let ask = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(ask.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = asked.await.unwrap();
        running.abort();
        answer
    });
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("loop `lane-0` stands still"), "{answer}");
}

/// The numbers of each key in a log that no process has open, first occurrences only, and the repetitions.
fn first_occurrences(dir: &Path) -> (BTreeMap<String, Vec<usize>>, usize) {
    let (mut seen, mut repeated) = (BTreeMap::<String, Vec<usize>>::new(), 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let config = EmbeddedConfig::new(dir.join("data/log"));
        let log = EmbeddedLog::open(&Env::system(), config).unwrap();
        let topic = Topic::new("orders").unwrap();
        for partition in log.describe(&topic).await.unwrap().partitions {
            let at = TopicPartition::new(topic.clone(), partition.partition.0);
            let mut next = partition.start;
            while next < partition.end {
                let batch = log.read(Read::new(at.clone(), next)).await.unwrap();
                next = batch.next;
                for stored in batch.records {
                    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec());
                    let key = text(stored.record.key.as_deref()).unwrap();
                    let number = text(stored.record.value.as_deref()).unwrap();
                    let number: usize = number.parse().unwrap();
                    let numbers = seen.entry(key).or_default();
                    match numbers.contains(&number) {
                        true => repeated += 1,
                        false => numbers.push(number),
                    }
                }
            }
        }
        log.close().await;
    });
    (seen, repeated)
}

#[test]
fn a08_o12_a_process_that_is_killed_loses_nothing_and_keeps_the_order() {
    const KEYS: usize = 10;
    const EACH: usize = 30;
    let kills = match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 30,
        None => 3,
    };
    let config = CONFIG.replace(
        "{topic: orders,",
        "{topic: orders, lease: 500ms, batch-size: 20,",
    );
    let dir = migrated_with(&config);
    let dir = dir.path();
    for round in 0..kills {
        let numbers = round * EACH..(round + 1) * EACH;
        let events: Vec<NewOutboxEvent> = numbers
            .flat_map(|number| (0..KEYS).map(move |key| (key, number)))
            .map(|(key, number)| {
                NewOutboxEvent::new(format!("order-{key}"), "T", number.to_string())
            })
            .collect();
        add_events(dir, &events);
        let running = Running::start(dir, &[]);
        let limit = Instant::now() + Duration::from_secs(60);
        // Some rows of this round are sent, mostly not all.
        while ok(dir, &["outbox", "stats"])["pending"].as_u64().unwrap() >= (KEYS * EACH) as u64 {
            assert!(
                Instant::now() < limit,
                "the rows of a dead relay go to the next"
            );
        }
        running.signal("-KILL");
        assert_eq!(running.end().0, None);
    }
    let running = Running::start(dir, &[]);
    drained(dir);
    stop(running);
    assert_eq!(run_in(dir, &["audit"]).code, Some(0));
    let (seen, repeated) = first_occurrences(dir);
    assert_eq!(seen.len(), KEYS);
    for (key, numbers) in seen {
        assert_eq!(numbers, (0..kills * EACH).collect::<Vec<_>>(), "{key}");
    }
    assert!(repeated <= kills * 4 * 20, "{repeated} repeated");
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask services up"))
}

mod needs_postgres {
    use super::*;
    use crate::queue_live::needs_postgres::with_at;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn o16_a_wrong_password_of_the_database_is_told_and_rows_wait_for_the_right_one() {
        let server = variable("DATABASE_PASSWORD_URL");
        with_at(&server, |right| {
            let (user, rest) = right.split_once("tidegate_password:").unwrap();
            let (_, host) = rest.split_once('@').unwrap();
            let wrong = format!("{user}tidegate_password:no-such-word@{host}");
            let config = |url: &str| CONFIG.replace("sqlite://./shop.db", url);
            let dir = migrated_with(&config(right));
            let dir = dir.path();
            let event = |key: &str| NewOutboxEvent::new(key, "T", "1");
            add_events_to(right, &[event("order-1"), event("order-2")]);
            std::fs::write(dir.join("tidegate.yaml"), config(&wrong)).unwrap();
            let run = ["run", "--set", "server.listen=127.0.0.1:0"];
            for command in [&run[..], &["outbox", "ls"]] {
                let ran = run_in(dir, command);
                assert_eq!(ran.code, Some(1), "{}", ran.stderr);
                assert!(
                    ran.stderr.contains("error[store.away]") && ran.stderr.contains("password"),
                    "{}",
                    ran.stderr
                );
                assert!(!ran.stderr.contains("no-such-word"), "{}", ran.stderr);
            }
            std::fs::write(dir.join("tidegate.yaml"), config(right)).unwrap();
            let waiting = wait_for(dir, "pending", 2);
            assert_eq!(waiting["rows"][0]["attempts"], 0, "{waiting}");
            let running = Running::start(dir, &[]);
            wait_for(dir, "sent", 2);
            stop(running);
            assert_eq!(run_in(dir, &["audit"]).code, Some(0));
        });
    }
}

mod needs_kafka {
    use super::*;
    use crate::broker::Broker;

    #[test]
    #[ignore = "needs Kafka"]
    fn o17_a_stop_releases_the_leases_though_the_broker_is_dead() {
        let mut broker = Broker::start();
        let servers = broker.servers();
        let config = format!(
            "store: {{url: 'sqlite://./shop.db'}}\nshutdown-timeout: 12s\nlog: {{clusters: {{default: \
             {{bootstrap-servers: [\"{servers}\"], request-timeout: 2s}}}}, topics: {{orders: \
             {{partitions: 2}}}}}}\noutbox: {{topic: orders, lease: 10m, max-attempts: 1}}\n\
             eventlog: {{api: {{enabled: false}}}}\n"
        );
        let dir = migrated_with(&config);
        let dir = dir.path();
        add(dir, &[("order-1", "T", "1")]);
        let running = Running::start(dir, &[]);
        wait_for(dir, "sent", 1);
        broker.kill();
        add(dir, &[("order-1", "T", "2"), ("order-2", "T", "3")]);
        let limit = Instant::now() + Duration::from_secs(60);
        while ok(dir, &["outbox", "stats"])["claimed"] == 0 {
            assert!(Instant::now() < limit, "the rows are in flight");
            std::thread::sleep(Duration::from_millis(50));
        }
        running.signal("-TERM");
        let stopped = running.end();
        let stats = ok(dir, &["outbox", "stats"]);
        assert_eq!(
            (&stats["relays"], &stats["claimed"], &stats["pending"]),
            (&0.into(), &0.into(), &2.into()),
            "{stopped:?}"
        );
        let waiting = ok(dir, &["outbox", "ls", "--status", "pending"]);
        assert_eq!(waiting["rows"][0]["attempts"], 0, "{waiting}");
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a01_a_topic_that_was_deleted_on_the_broker_is_a_finding() {
        let broker = Broker::start();
        let servers = broker.servers();
        let config = format!(
            "store: {{url: 'sqlite://./shop.db'}}\nlog: {{clusters: {{default: {{bootstrap-servers: \
             [\"{servers}\"]}}}}, topics: {{orders: {{partitions: 2}}}}}}\noutbox: {{topic: orders}}\n\
             eventlog: {{api: {{enabled: false}}}}\n"
        );
        let dir = migrated_with(&config);
        let dir = dir.path();
        add(dir, &[("order-1", "T", "1")]);
        let running = Running::start(dir, &[]);
        wait_for(dir, "sent", 1);
        stop(running);
        assert_eq!(run_in(dir, &["audit"]).code, Some(0));
        let tool = "org.apache.kafka.tools.TopicCommand";
        broker.run_tool(tool, &["--delete", "--topic", "orders"]);
        let limit = Instant::now() + Duration::from_secs(60);
        let told = loop {
            let ran = run_in(dir, &["audit"]);
            if ran.code != Some(0) {
                break ran;
            }
            assert!(Instant::now() < limit, "{}", ran.stdout);
        };
        assert_eq!(told.code, Some(3), "{}{}", told.stdout, told.stderr);
        let part = "topic `orders` does not exist";
        assert!(told.stdout.contains(part), "{}", told.stdout);
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn o16_a_wrong_password_is_told_and_rows_wait_for_the_right_one() {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let topic = format!("cli.password.{since}");
        let config = |password: &str| {
            let properties = format!(
                "security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, ssl.ca.location: {}, \
                 sasl.username: {}, sasl.password: {password}",
                variable("KAFKA_SSL_CA"),
                variable("KAFKA_SASL_USERNAME"),
            );
            let servers = variable("KAFKA_SASL_SSL_BOOTSTRAP");
            format!(
                "store: {{url: 'sqlite://./shop.db'}}\nlog: {{clusters: {{default: \
                 {{bootstrap-servers: [\"{servers}\"], properties: {{{properties}}}}}}}, topics: \
                 {{{topic}: {{partitions: 2}}}}}}\noutbox: {{topic: {topic}, dlq-topic: {topic}-dlq}}\n\
                 eventlog: {{api: {{enabled: false}}}}\n"
            )
        };
        let dir = migrated_with(&config("wrong-password"));
        let dir = dir.path();
        add(dir, &[("order-1", "T", "1"), ("order-2", "T", "2")]);
        let ran = run_in(dir, &["run", "--set", "server.listen=127.0.0.1:0"]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("error[log.login]") && ran.stderr.contains("`sasl.password`"),
            "{}",
            ran.stderr
        );
        assert!(!ran.stderr.contains("wrong-password"), "{}", ran.stderr);
        let waiting = wait_for(dir, "pending", 2);
        assert_eq!(waiting["rows"][0]["attempts"], 0, "{waiting}");
        let right = config(&variable("KAFKA_SASL_PASSWORD"));
        std::fs::write(dir.join("tidegate.yaml"), right).unwrap();
        let running = Running::start(dir, &[]);
        wait_for(dir, "sent", 2);
        stop(running);
        assert_eq!(run_in(dir, &["audit"]).code, Some(0));
    }

    mod needs_postgres {
        use super::*;
        use crate::queue_live::needs_postgres::with;
        use crate::run_store::Line;

        #[test]
        #[ignore = "needs PostgreSQL and Kafka"]
        fn o09_poison_rows_and_a_payload_of_4_mib_among_many_hold_up_nothing_on_postgres_and_kafka()
        {
            with(|url| {
                // One of its own: an audit asks for every group that a broker has.
                let broker = Broker::start();
                let servers = broker.servers();
                let dir = migrated_with(&format!(
                    "store: {{url: '{url}'}}\nlog: {{clusters: {{default: {{bootstrap-servers: \
                     [\"{servers}\"]}}}}, topics: {{orders: {{partitions: 2}}}}}}\n\
                     outbox: {{topic: orders, dlq-topic: orders-dlq}}\neventlog: {{api: {{enabled: false}}}}\n"
                ));
                poison_rows_among_many(dir.path(), url);
            });
        }

        #[test]
        #[ignore = "needs PostgreSQL and Kafka"]
        fn o16_readyz_follows_database_and_broker_and_livez_stays() {
            with(|url| {
                let mut broker = Broker::start();
                let (line, through) = Line::to_database(url);
                let servers = broker.servers();
                let config = format!(
                    "store: {{url: '{through}'}}\nlog: {{clusters: {{default: {{bootstrap-servers: \
                     [\"{servers}\"], request-timeout: 2s}}}}, topics: {{orders: {{partitions: 2}}}}}}\n\
                     outbox: {{topic: orders}}\neventlog: {{api: {{enabled: false}}}}\n"
                );
                let dir = migrated_with(&config);
                let dir = dir.path();
                let running = Running::start(dir, &[]);
                let ready = |head: &str| {
                    let limit = Instant::now() + Duration::from_secs(90);
                    loop {
                        let answer = running.get("/readyz");
                        assert!(running.get("/livez").starts_with("HTTP/1.1 200"));
                        if answer.starts_with(head) {
                            return;
                        }
                        assert!(Instant::now() < limit, "{answer}");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                };
                let event = |number: &str| NewOutboxEvent::new("order-1", "T", number);
                ready("HTTP/1.1 200");
                broker.kill();
                add_events_to(url, &[event("1")]);
                ready("HTTP/1.1 503");
                broker.restart();
                ready("HTTP/1.1 200");
                wait_for(dir, "sent", 1);
                line.set_cut(true);
                add_events_to(url, &[event("2")]);
                ready("HTTP/1.1 503");
                line.set_cut(false);
                ready("HTTP/1.1 200");
                let sent = wait_for(dir, "sent", 2);
                let rows = sent["rows"].as_array().unwrap();
                assert!(rows.iter().all(|row| row["attempts"] == 0), "{sent}");
                stop(running);
                assert_eq!(run_in(dir, &["audit"]).code, Some(0));
            });
        }
    }
}
