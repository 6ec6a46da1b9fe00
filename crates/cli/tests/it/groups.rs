//! `tidegate topic create|rm` and `tidegate group`, on a directory and beside the process that has it.

use std::path::Path;

use serde_json::{Value, json};
use tidegate_core::books::{Place, postings};
use tidegate_core::env::Env;
use tidegate_core::{GroupName, Topic};
use tidegate_log::{
    Commit, EmbeddedConfig, EmbeddedLog, Join, Log, OffsetCommit, SessionEvent, TopicPartition,
};

use crate::command::{Ran, run_in};
use crate::log::{CONFIG, configured, send_one};
use crate::running::Running;

/// Has a group deliver so many records of partition 0 of a topic, as an application does.
pub(crate) async fn deliver(log: &dyn Log, (group, topic): (&str, &str), count: usize) {
    let topic = Topic::new(topic).unwrap();
    let join = Join::new(GroupName::new(group).unwrap(), vec![topic.clone()]);
    let session = log.join(join).await.unwrap();
    let at = TopicPartition::new(topic, 0);
    let (mut ids, mut last) = (Vec::new(), None);
    while ids.len() < count {
        if let SessionEvent::Records { fence, batch } = session.poll().await.unwrap()
            && batch.at == at
        {
            for stored in batch.records.iter().take(count - ids.len()) {
                ids.push(stored.event_id(log.cluster(), &at));
                last = Some((tidegate_core::Offset(stored.offset.0 + 1), fence));
            }
        }
    }
    if let Some((next, fence)) = last {
        let offset = OffsetCommit {
            at,
            fence,
            next,
            metadata: String::new(),
            postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
        };
        let commit = Commit {
            appends: Vec::new(),
            offsets: vec![offset],
        };
        session.commit(commit).await.unwrap();
    }
    session.close().await.unwrap();
}

/// The same on the log in a directory that nobody has open.
fn delivered(dir: &Path, group: &str, count: usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let config = EmbeddedConfig {
            journal_size: 1 << 20,
            segment_size: 1 << 20,
            ..EmbeddedConfig::new(dir.join("log"))
        };
        let log = EmbeddedLog::open(&Env::system(), config).unwrap();
        deliver(&log, (group, "orders"), count).await;
        log.close().await;
    });
}

/// Six records in partition 0 of `orders`, of which `billing` has delivered four.
fn scene() -> tempfile::TempDir {
    let dir = configured(CONFIG);
    for value in ["one", "two", "three", "four", "five", "six"] {
        send_one(dir.path(), value);
    }
    delivered(dir.path(), "billing", 4);
    dir
}

fn json_of(dir: &Path, arguments: &[&str], code: i32) -> Value {
    let ran = run_in(dir, &[arguments, &["-o", "json"]].concat());
    assert_eq!(
        ran.code,
        Some(code),
        "{arguments:?}: {}{}",
        ran.stdout,
        ran.stderr
    );
    ran.json()
}

/// The account of a component of the log.
fn account(dir: &Path, name: &str) -> Value {
    let audit = json_of(dir, &["audit"], 0);
    let components = audit["components"].as_array().unwrap();
    let found = components.iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("{name} in {audit}"))["books"].clone()
}

#[test]
fn groups_are_listed_with_what_they_have_still_to_read() {
    let dir = scene();
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    let url = format!("http://{}", running.address);
    for at in [&[][..], &["--url", &url]] {
        let listed = json_of(dir, &[&["group", "ls"][..], at].concat(), 0);
        let group = &listed["groups"][0];
        assert_eq!(
            (&group["group"], &group["members"]),
            (&json!("billing"), &json!(0))
        );
        let shown = json_of(dir, &[&["group", "show", "billing"][..], at].concat(), 0);
        assert_eq!(&shown, group);
        let topic = &shown["topics"][0];
        assert_eq!(
            (&topic["account"]["delivered"], &topic["account"]["queued"]),
            (&json!(4), &json!(2))
        );
        let partition = &topic["partitions"][0];
        let offsets = ["start", "next", "end", "lag"].map(|name| partition[name].as_i64());
        assert_eq!(offsets, [Some(0), Some(4), Some(6), Some(2)]);
    }
    drop(running);
    let shown = run_in(dir, &["group", "show", "billing"]).stdout;
    assert!(shown.contains("orders: 2 queued, 4 delivered"), "{shown}");
    let unknown = json_of(dir, &["group", "show", "nobody"], 1);
    assert_eq!(unknown["error"]["code"], "log.unknown-group");
}

#[test]
fn a_group_is_moved_only_when_told_so_and_its_books_follow() {
    let dir = scene();
    let dir = dir.path();
    let seek = |to: &str, more: &[&str], code| {
        json_of(
            dir,
            &[&["group", "seek", "billing", "--to", to][..], more].concat(),
            code,
        )
    };
    // Nobody is asked, so nothing is done; the number is said.
    let refused = seek("earliest", &[], 2);
    assert_eq!(refused["error"]["code"], "seek.unconfirmed");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("reads 4 records again"), "{message}");
    assert_eq!(account(dir, "billing@orders")["delivered"], 4);
    let back = seek("earliest", &["--yes"], 0);
    assert_eq!((&back["again"], &back["skipped"]), (&json!(4), &json!(0)));
    assert_eq!(account(dir, "billing@orders")["queued"], 6);
    assert_eq!(seek("earliest", &["--yes"], 0)["partitions"], json!([]));
    // Beside the process that has the log, too.
    let running = Running::start(dir, &[]);
    let forward = seek(
        "latest",
        &["--yes", "--topic", "orders", "--partition", "0"],
        0,
    );
    assert_eq!(forward["partitions"][0]["records"], 6);
    let books = account(dir, "billing@orders");
    assert_eq!(
        (&books["queued"], &books["lost"]["skipped"]),
        (&json!(0), &json!(6))
    );
    assert_eq!(seek("2", &["--yes"], 0)["again"], 4);
    drop(running);
    delivered(dir, "billing", 1);
    let books = account(dir, "billing@orders");
    assert_eq!(
        (&books["queued"], &books["delivered"]),
        (&json!(3), &json!(1))
    );
    let shown = run_in(dir, &["audit"]).stdout;
    assert!(
        shown.contains("✓ every event is accounted for, 2 of them lost"),
        "{shown}"
    );
}

#[test]
fn a_group_with_members_is_left_alone() {
    let dir = scene();
    let dir = dir.path();
    // A binding of the configuration has its group for itself.
    let text = format!(
        "{CONFIG}eventbus: {{bindings: {{billing: {{topic: orders, group-id: billing, handler: {{http: {{url: \
         \"http://127.0.0.1:1/\"}}}}}}}}}}\n"
    );
    std::fs::write(dir.join("tidegate.yaml"), text).unwrap();
    for arguments in [
        &["group", "seek", "billing", "--to", "latest", "--yes"][..],
        &["group", "forget", "billing", "--yes"],
        &["topic", "rm", "orders", "--yes", "--force"],
    ] {
        let refused = json_of(dir, arguments, 1);
        assert_eq!(refused["error"]["code"], "log.in-use", "{refused}");
    }
    std::fs::write(dir.join("tidegate.yaml"), CONFIG).unwrap();
    assert_eq!(account(dir, "billing@orders")["delivered"], 4);
}

#[test]
fn a_group_is_forgotten_and_what_it_had_not_read_is_in_the_books_as_lost() {
    let dir = scene();
    let dir = dir.path();
    let refused = json_of(dir, &["group", "forget", "billing"], 2);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("2 records by `orders`"), "{message}");
    let running = Running::start(dir, &[]);
    let forgotten = json_of(dir, &["group", "forget", "billing", "--yes"], 0);
    assert_eq!(forgotten["unread"][0]["records"], 2);
    assert_eq!(json_of(dir, &["group", "ls"], 0)["groups"], json!([]));
    drop(running);
    let books = account(dir, "(forgotten)@orders");
    assert_eq!(
        (&books["delivered"], &books["lost"]["forgotten"]),
        (&json!(4), &json!(2))
    );
    let again = json_of(dir, &["group", "forget", "billing", "--yes"], 1);
    assert_eq!(again["error"]["code"], "log.unknown-group");
}

#[test]
fn a_topic_is_made_and_removed_by_command() {
    let dir = scene();
    let dir = dir.path();
    let running = Running::start(dir, &[]);
    for name in ["invoices", "letters-dlq"] {
        let made = json_of(dir, &["topic", "create", name, "--partitions", "3"], 0);
        assert_eq!(made["partitions"].as_array().map(Vec::len), Some(3));
    }
    let exists = json_of(dir, &["topic", "create", "invoices"], 1);
    assert_eq!(exists["error"]["code"], "topic.exists");
    let get = |topic: &str| running.get(&format!("/tidegate/log/{topic}"));
    assert!(
        get("invoices").contains("\"retention_ms\":604800000"),
        "{}",
        get("invoices")
    );
    assert!(get("letters-dlq").contains("\"retention_ms\":null"));
    drop(running);
    // `billing` has still to read some of it.
    let refused = json_of(dir, &["topic", "rm", "orders", "--yes"], 1);
    assert_eq!(refused["error"]["code"], "log.unread");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("`billing` (2 records)"), "{message}");
    let refused = json_of(dir, &["topic", "rm", "orders", "--force"], 2);
    assert_eq!(refused["error"]["code"], "topic.unconfirmed");
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("6 records"),
        "{refused}"
    );
    assert_eq!(account(dir, "orders")["queued"], 6);
    let ran = run_in(
        dir,
        &["topic", "rm", "orders", "--force", "--yes", "-o", "json"],
    );
    assert_eq!(
        (ran.code, &ran.json()["records"]),
        (Some(0), &json!(6)),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("the next start makes it again"),
        "{}",
        ran.stderr
    );
    let config = CONFIG.replace("topics: {orders: {partitions: 2}}", "topics: {}");
    std::fs::write(dir.join("tidegate.yaml"), config).unwrap();
    let listed = json_of(dir, &["topic", "ls"], 0);
    let names: Vec<_> = listed["topics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["invoices", "letters-dlq"]);
    assert_eq!(account(dir, "billing@orders")["lost"]["topic_removed"], 2);
    let gone = run_in(dir, &["tail", "orders", "--until", "end", "-o", "json"]);
    assert_eq!(gone.json()["error"]["code"], "log.unknown-topic");
    // A topic of that name goes on with its offsets.
    json_of(dir, &["topic", "create", "orders", "--partitions", "2"], 0);
    send_one(dir, "seven");
    let shown = json_of(dir, &["topic", "show", "orders"], 0);
    assert_eq!(
        (&shown["records"], &shown["partitions"][0]["end"]),
        (&json!(1), &json!(7))
    );
    assert_eq!(account(dir, "orders")["accepted"], 7);
}

#[test]
fn the_api_names_what_is_wrong_with_a_change_of_a_group() {
    let dir = scene();
    let running = Running::start(dir.path(), &["--set", "server.read-only=true"]);
    let refused = running.post("/tidegate/groups/billing/seek", r#"{"partitions":[]}"#);
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    drop(running);
    let running = Running::start(dir.path(), &[]);
    let body = r#"{"partitions":[{"topic":"orders","partition":9,"offset":0}]}"#;
    let refused = running.post("/tidegate/groups/billing/seek", body);
    assert!(
        refused.starts_with("HTTP/1.1 404") && refused.contains("log.unknown-partition"),
        "{refused}"
    );
    let refused = running.get("/tidegate/groups/a%20b");
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
}

/// Checks that a command that moves or removes events says their number, asks, and does nothing otherwise.
#[test]
fn what_nobody_confirms_is_exit_code_2_everywhere() {
    let dir = scene();
    let dir = dir.path();
    let spill = dir.join("spill");
    crate::spill::spilled(&spill, 1);
    for (arguments, code) in [
        (
            &["group", "seek", "billing", "--to", "earliest"][..],
            "seek.unconfirmed",
        ),
        (&["group", "forget", "billing"], "forget.unconfirmed"),
        (&["topic", "rm", "orders", "--force"], "topic.unconfirmed"),
        (&["log", "repair"], "repair.unconfirmed"),
        (
            &["spill", "replay", "spill", "--url", "http://127.0.0.1:1"],
            "replay.unconfirmed",
        ),
    ] {
        let Ran {
            code: exit, stdout, ..
        } = run_in(dir, &[arguments, &["-o", "json"]].concat());
        assert_eq!(exit, Some(2), "{arguments:?}: {stdout}");
        assert!(stdout.contains(code), "{arguments:?}: {stdout}");
    }
}
