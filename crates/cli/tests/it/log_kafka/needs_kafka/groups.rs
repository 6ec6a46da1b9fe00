//! Topics, groups and the witness on a broker.

use serde_json::{Value, json};
use tidegate_core::env::Env;
use tidegate_core::{GroupName, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog, recount_group, wait_until_closed};

use super::{config, configured, run_in, topic, variable};
use crate::command::run_with_input;
use crate::groups::deliver;

/// A topic of six records in partition 0, of which a group has delivered four.
struct Scene {
    dir: tempfile::TempDir,
    topic: String,
    group: String,
}

impl Scene {
    fn new(what: &str) -> Self {
        let (servers, topic) = (variable("KAFKA_BOOTSTRAP"), topic(what));
        let group = format!("{topic}.group");
        let dir = configured(&config(&servers, &topic));
        let lines = "one\ntwo\nthree\nfour\nfive\nsix\n";
        let sent = run_with_input(dir.path(), &["send", &topic, "--partition", "0"], lines);
        assert_eq!(sent.code, Some(0), "{}", sent.stderr);
        let scene = Self { dir, topic, group };
        scene.deliver(4);
        scene
    }

    fn deliver(&self, count: usize) {
        self.on_broker(async |log| deliver(&log, (&self.group, &self.topic), count).await);
    }

    fn on_broker(&self, act: impl AsyncFnOnce(KafkaLog)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let config = KafkaConfig::new("default", variable("KAFKA_BOOTSTRAP"));
            act(KafkaLog::connect(config, Env::system()).await.unwrap()).await;
        });
        drop(runtime);
        wait_until_closed(std::time::Duration::from_secs(10));
    }

    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let ran = run_in(self.dir.path(), &[arguments, &["-o", "json"]].concat());
        assert_eq!(
            ran.code,
            Some(code),
            "{arguments:?}: {}{}",
            ran.stdout,
            ran.stderr
        );
        ran.json()
    }

    /// Delivered, queued and skipped records of the group, and its next offset.
    fn progress(&self) -> [i64; 4] {
        let shown = self.json(&["group", "show", &self.group], 0);
        let topic = &shown["topics"][0];
        let account = &topic["account"];
        let count = |value: &Value| value.as_i64().unwrap_or(0);
        [
            count(&account["delivered"]),
            count(&account["queued"]),
            count(&account["lost"]["skipped"]),
            count(&topic["partitions"][0]["next"]),
        ]
    }
}

#[test]
#[ignore = "needs Kafka"]
fn t37_a_group_on_a_broker_is_moved_and_its_books_agree() {
    let scene = Scene::new("seek");
    assert_eq!(scene.progress(), [4, 2, 0, 4]);
    let seek = |to: &str| {
        let arguments = [
            "group",
            "seek",
            &scene.group,
            "--topic",
            &scene.topic,
            "--to",
            to,
            "--yes",
        ];
        scene.json(&arguments, 0)
    };
    let refused = scene.json(&["group", "seek", &scene.group, "--to", "earliest"], 2);
    assert!(
        refused.to_string().contains("reads 4 records again"),
        "{refused}"
    );
    assert_eq!(scene.progress(), [4, 2, 0, 4]);
    assert_eq!(seek("1")["again"], 3);
    assert_eq!(scene.progress(), [1, 5, 0, 1]);
    assert_eq!(seek("latest")["skipped"], 5);
    assert_eq!(scene.progress(), [1, 0, 5, 6]);
    assert_eq!(seek("earliest")["again"], 6);
    assert_eq!(scene.progress(), [0, 6, 0, 0]);
    scene.deliver(6);
    assert_eq!(scene.progress(), [6, 0, 0, 6]);
    // The recount of the topic agrees with the metadata, and counting began anew.
    scene.on_broker(async |log| {
        let (group, topic) = (
            GroupName::new(&scene.group).unwrap(),
            Topic::new(&scene.topic).unwrap(),
        );
        let recount = recount_group(&log, &group, &topic).await.unwrap();
        let found = &recount.partitions[0];
        assert!(
            found.is_verifiable() && found.agrees() && found.count == 6,
            "{found:?}"
        );
    });
}

#[test]
#[ignore = "needs Kafka"]
fn a_group_and_a_topic_on_a_broker_are_removed_by_command() {
    let scene = Scene::new("rm");
    let refused = scene.json(&["topic", "rm", &scene.topic, "--yes"], 1);
    assert_eq!(refused["error"]["code"], "log.unread", "{refused}");
    let forgotten = scene.json(&["group", "forget", &scene.group, "--yes"], 0);
    assert_eq!(forgotten["unread"][0]["records"], 2);
    let unknown = scene.json(&["group", "show", &scene.group], 1);
    assert_eq!(unknown["error"]["code"], "log.unknown-group");
    let other = format!("{}.other", scene.topic);
    let made = scene.json(&["topic", "create", &other, "--partitions", "3"], 0);
    assert_eq!(made["partitions"].as_array().map(Vec::len), Some(3));
    let removed = scene.json(&["topic", "rm", &other, "--yes"], 0);
    assert_eq!(removed["records"], 0);
    let listed = scene.json(&["topic", "ls"], 0);
    assert!(!listed.to_string().contains(&other), "{listed}");
}

#[test]
#[ignore = "needs Kafka"]
fn a_witness_finds_a_topic_of_a_broker_that_was_replaced() {
    let scene = Scene::new("witness");
    // An audit without bindings would look at the groups of other tests.
    let bound = format!(
        "{}eventbus: {{bindings: {{b: {{topic: {topic}, group-id: {topic}.bound}}}}}}\n",
        config(&variable("KAFKA_BOOTSTRAP"), &scene.topic),
        topic = scene.topic
    );
    std::fs::write(scene.dir.path().join("audit.yaml"), bound).unwrap();
    let with = ["audit", "-c", "audit.yaml", "--witness", "w"];
    let audit = |more: &[&str], code| scene.json(&[&with[..], more].concat(), code);
    audit(&[], 0);
    // More records, a group that comes and a group that goes change nothing.
    let sent = run_in(
        scene.dir.path(),
        &["send", &scene.topic, "--value", "seven", "--partition", "0"],
    );
    assert_eq!(sent.code, Some(0), "{}", sent.stderr);
    scene.json(&["group", "forget", &scene.group, "--yes"], 0);
    let again = audit(&[], 0);
    assert_eq!(again["witness"]["missing"], json!([]), "{again}");
    // Another topic of the same name: it begins at offset 0.
    scene.json(&["topic", "rm", &scene.topic, "--yes"], 0);
    let made = [
        "send",
        &scene.topic,
        "--value",
        "another",
        "--partition",
        "0",
    ];
    assert_eq!(run_in(scene.dir.path(), &made).code, Some(0));
    let lost = audit(&[], 4);
    let missing = &lost["witness"]["missing"][0];
    assert_eq!(
        (&missing["component"], &missing["count"]),
        (&json!(scene.topic), &json!(6))
    );
    let shown = run_in(scene.dir.path(), &with).stdout;
    assert!(shown.contains("6 events are gone"), "{shown}");
    audit(&["--accept", "--yes"], 0);
    audit(&[], 0);
}
