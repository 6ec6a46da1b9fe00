//! The same commands on Kafka, by configuration alone.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::command::run_in;
use crate::log::configured;

fn config(servers: &str, topic: &str) -> String {
    format!(
        "log:\n  clusters: {{default: {{bootstrap-servers: [\"{servers}\"]}}}}\n  topics: \
         {{{topic}: {{partitions: 2}}}}\n"
    )
}

#[test]
fn a_broker_that_is_away_is_said_and_does_not_hang() {
    // A port that nobody listens on.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let patient = "\"]}}";
    let config = config(&address, "orders").replace(patient, "\"], request-timeout: 2s}}");
    let dir = configured(&config);
    let begun = Instant::now();
    let ran = run_in(
        dir.path(),
        &["send", "orders", "--value", "x", "-o", "json"],
    );
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert_eq!(
        ran.json()["error"]["code"],
        "log.unavailable",
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains(&address), "{}", ran.stderr);
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
    let ran = run_in(dir.path(), &["log", "ls", "-o", "json"]);
    assert_eq!(ran.json()["error"]["code"], "log.not-embedded");
}

#[test]
fn a_client_setting_that_carries_a_promise_is_refused_by_name() {
    let text = "log: {clusters: {default: {bootstrap-servers: [\"127.0.0.1:1\"], properties: \
                {acks: 0}}}, topics: {orders: {}}}\n";
    let dir = configured(text);
    let ran = run_in(dir.path(), &["send", "orders", "--value", "x"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("error[log.refused]") && ran.stderr.contains("`acks`"),
        "{}",
        ran.stderr
    );
}

mod needs_kafka {
    use super::{config, run_in};
    use crate::command::run_with_input;
    use crate::log::{configured, lines};
    use crate::running::Running;

    mod groups;
    mod guarded;
    mod needs_kcat;

    fn variable(name: &str) -> String {
        std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask services up"))
    }

    /// A topic of its own: the broker outlives the test.
    fn topic(what: &str) -> String {
        format!("cli.{what}.{}", std::process::id())
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn the_commands_are_the_same_on_kafka() {
        let servers = variable("KAFKA_BOOTSTRAP");
        let unique = std::process::id();
        let topic = topic("same");
        // The broker has the groups of other tests; those of the bindings are ours.
        let bindings =
            format!("eventbus: {{bindings: {{b: {{topic: {topic}, group-id: g-{unique}}}}}}}\n");
        let dir = configured(&format!("{}{bindings}", config(&servers, &topic)));
        let dir = dir.path();
        let ran = run_with_input(
            dir,
            &["send", &topic, "--key", "k", "-o", "json"],
            "one\ntwo\n",
        );
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let sent = lines(&ran);
        let ran = run_in(dir, &["tail", &topic, "--until", "end", "-o", "json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let read = lines(&ran);
        assert_eq!(read.len(), 2);
        for (sent, read) in sent.iter().zip(&read) {
            for name in ["id", "partition", "offset"] {
                assert_eq!(sent[name], read[name], "{name}");
            }
        }
        let id = sent[1]["id"].as_str().unwrap();
        let ran = run_in(dir, &["where", id, "-o", "json"]);
        assert_eq!(
            (ran.code, &ran.json()["component"]),
            (Some(0), &format!("g-{unique}@{topic}").into()),
            "it waits for the group that is bound to the topic"
        );
        let ran = run_in(dir, &["audit", "-o", "json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stdout);
        let found = &ran.json()["components"][0];
        assert_eq!(found["name"], format!("g-{unique}@{topic}"));
        assert_eq!(
            (&found["books"]["queued"], &found["recount"]["queued"]),
            (&2.into(), &2.into()),
            "the binding answers for its group"
        );
        std::fs::write(dir.join("tidegate.yaml"), config(&servers, &topic)).unwrap();
        let running = Running::start(dir, &[]);
        let ledger = running.get("/tidegate/ledger");
        assert!(ledger.contains("\"queued\":2"), "{ledger}");
        assert!(
            running.banner.contains("✓ log      kafka"),
            "{}",
            running.banner
        );
        assert!(running.get("/readyz").starts_with("HTTP/1.1 200"));
        running.signal("-TERM");
        assert_eq!(running.end().0, Some(0));
    }
}
