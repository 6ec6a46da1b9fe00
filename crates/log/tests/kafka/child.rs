//! A member in a process of its own: this very test program, started again with a role.

use std::process::Child;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{GroupName, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{
    Append, Commit, Join, Log, LogError, OffsetCommit, SessionEvent, TopicPartition,
};
use tidegate_testkit::child::{self, ChildLines, say};

const ROLE: &str = "TIDEGATE_KAFKA_ROLE";
const SERVERS: &str = "TIDEGATE_KAFKA_SERVERS";
const GROUP: &str = "TIDEGATE_KAFKA_GROUP";
const TOPIC: &str = "TIDEGATE_KAFKA_TOPIC";
const OUT: &str = "TIDEGATE_KAFKA_OUT";
const INSTANCE: &str = "TIDEGATE_KAFKA_INSTANCE";
const CO_PARTITIONED: &str = "TIDEGATE_KAFKA_CO_PARTITIONED";

/// After so long without a heartbeat the group forgets a member: the least that a broker allows.
pub(crate) const SESSION: Duration = Duration::from_secs(6);

/// The session of a member with a name: longer than any test waits, so that nobody waits for its end.
pub(crate) const STATIC_SESSION: Duration = Duration::from_secs(600);

/// How a child settles what it reads.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// Offsets with copies, in one transaction.
    Copies,
    /// Offsets alone.
    Settles,
}

/// Starts a member that copies or settles `topic` until it is killed.
pub(crate) fn start(
    role: Role,
    servers: &str,
    group: &GroupName,
    topic: &Topic,
    out: &Topic,
) -> (Child, ChildLines) {
    let role = match role {
        Role::Copies => "copies",
        Role::Settles => "settles",
    };
    let variables = [
        (ROLE, role),
        (SERVERS, servers),
        (GROUP, group.as_str()),
        (TOPIC, topic.as_str()),
        (OUT, out.as_str()),
    ];
    child::start(&variables.map(|(name, value)| (name, value.as_ref()))).unwrap()
}

/// Starts a member with a name that copies two topics, read together, until it is killed.
pub(crate) fn start_static(servers: &str, join: &Join, out: &Topic) -> (Child, ChildLines) {
    let variables = [
        (ROLE, "copies"),
        (SERVERS, servers),
        (GROUP, join.group.as_str()),
        (TOPIC, join.topics[0].as_str()),
        (CO_PARTITIONED, join.co_partitioned[0].as_str()),
        (INSTANCE, join.instance.as_deref().unwrap()),
        (OUT, out.as_str()),
    ];
    child::start(&variables.map(|(name, value)| (name, value.as_ref()))).unwrap()
}

/// Not a test of its own: without a role it does nothing.
#[test]
fn child_process_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(work(&role));
}

async fn work(role: &str) {
    let variable = |name| std::env::var(name).unwrap();
    let config = KafkaConfig::new("test", variable(SERVERS));
    let log = KafkaLog::connect(config, Env::system()).await.unwrap();
    let out = TopicPartition::new(Topic::new(variable(OUT)).unwrap(), 0);
    let instance = std::env::var(INSTANCE).ok();
    let co_partitioned = std::env::var(CO_PARTITIONED).ok();
    let join = Join {
        max_poll_records: 1,
        session_timeout: match instance {
            Some(_) => STATIC_SESSION,
            None => SESSION,
        },
        instance,
        co_partitioned: co_partitioned
            .map(|topic| Topic::new(topic).unwrap())
            .into_iter()
            .collect(),
        ..Join::new(
            GroupName::new(variable(GROUP)).unwrap(),
            vec![Topic::new(variable(TOPIC)).unwrap()],
        )
    };
    let session = log.join(join).await.unwrap();
    loop {
        match session.poll().await {
            Ok(SessionEvent::Records { fence, batch }) => {
                let stored = &batch.records[0];
                let copy = Append::new(out.topic.clone(), stored.record.clone()).partition(0);
                let offset = OffsetCommit {
                    at: batch.at.clone(),
                    fence,
                    next: batch.next,
                    metadata: "child".to_owned(),
                    postings: vec![],
                };
                let commit = Commit {
                    appends: if role == "copies" { vec![copy] } else { vec![] },
                    offsets: vec![offset],
                };
                match session.commit(commit).await {
                    Ok(_) => say(&format!("done {}", stored.offset)),
                    Err(LogError::Fenced { .. }) => say(&format!("fenced {}", stored.offset)),
                    Err(error) => say(&format!("failed {} {error}", stored.offset)),
                }
            }
            Ok(SessionEvent::Assigned(_)) => say("assigned"),
            Ok(SessionEvent::Revoking(asked)) => session.release(&asked).await.unwrap(),
            Ok(SessionEvent::Lost(_)) => say("lost"),
            Err(error) => {
                say(&format!("error {error}"));
                return;
            }
        }
    }
}
