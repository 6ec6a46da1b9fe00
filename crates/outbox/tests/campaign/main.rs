//! Relays as processes of their own, which are killed and stopped past their lease all the time.
//!
//! The topic is read by kcat, which is not ours: nothing is lost, and first occurrences are in the order of
//! their keys. Repetitions are counted and printed; there are at most as many as batches were on their way.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests read addresses from the environment and run in real time"
)]
#![expect(clippy::print_stderr, reason = "libtest captures it")]

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_core::env::Env;
use tidegate_core::{Component, Shutdown, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{Log, TopicConfig};
use tidegate_outbox::{NewOutboxEvent, Outbox, OutboxComponent, OutboxOptions, Relay, migrate};
use tidegate_sim::is_long;
use tidegate_store::{Store, StoreOptions, sqlx};

const LEASE: Duration = Duration::from_secs(2);
const BATCH: u32 = 50;
/// Batches that a relay has on their way at once.
const LANES: usize = 4;
const KEYS: u64 = 40;

fn unique(name: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{name}_{}_{}", since.as_nanos(), std::process::id())
}

fn options(topic: &str) -> OutboxOptions {
    OutboxOptions {
        topic: Some(Topic::new(topic.to_owned()).unwrap()),
        batch_size: BATCH,
        lease: LEASE,
        poll_delay: Duration::from_millis(10),
        ..OutboxOptions::default()
    }
}

async fn store(schema: Option<&str>) -> Store {
    let mut options = StoreOptions::new(std::env::var("DATABASE_URL").unwrap());
    options.schema = schema.map(str::to_owned);
    options.timeout = Duration::from_secs(30);
    Store::open(&options, &Env::system()).await.unwrap()
}

async fn log() -> Arc<dyn Log> {
    let bootstrap = std::env::var("KAFKA_BOOTSTRAP").unwrap();
    let config = KafkaConfig::new("default", bootstrap);
    Arc::new(KafkaLog::connect(config, Env::system()).await.unwrap())
}

async fn run_sql(store: &Store, sql: String) {
    let Store::Postgres(postgres) = store else {
        panic!("it is PostgreSQL");
    };
    let call = postgres.run("prepare a test", move |connection| {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        Box::pin(async move { sql.execute(connection).await.map(drop) })
    });
    call.await.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// Not a test of its own: a relay in a process, until it is killed.
#[test]
#[ignore = "a relay in a process of its own"]
fn child_relay() {
    let Ok(schema) = std::env::var("OUTBOX_CAMPAIGN_SCHEMA") else {
        return;
    };
    let topic = std::env::var("OUTBOX_CAMPAIGN_TOPIC").unwrap();
    runtime().block_on(async {
        let env = Env::system();
        let outbox = Outbox::open(&store(Some(&schema)).await, options(&topic), &env).await;
        let relay = Relay::new(outbox.unwrap(), log().await, &env);
        let (_trigger, stop) = Shutdown::new();
        relay.run(stop).await;
    });
}

struct RelayProcess(Child);

impl RelayProcess {
    fn start(schema: &str, topic: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_relay", "--ignored"])
            .env("OUTBOX_CAMPAIGN_SCHEMA", schema)
            .env("OUTBOX_CAMPAIGN_TOPIC", topic)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The topic as kcat reads it: key and number of each record, by partition.
fn read_by_kcat(topic: &str) -> Vec<(String, u64)> {
    let bootstrap = std::env::var("KAFKA_BOOTSTRAP").unwrap();
    let read = Command::new("kcat")
        .args([
            "-b",
            &bootstrap,
            "-C",
            "-t",
            topic,
            "-e",
            "-q",
            "-o",
            "beginning",
            "-f",
            "%k %s\n",
        ])
        .output()
        .expect("kcat is installed");
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    let text = String::from_utf8(read.stdout).unwrap();
    let pair = |line: &str| {
        let (key, number) = line.split_once(' ').unwrap();
        (key.to_owned(), number.parse().unwrap())
    };
    text.lines().map(pair).collect()
}

struct Campaign {
    relays: usize,
    span: Duration,
    between: Duration,
}

async fn play(campaign: Campaign) {
    let schema = unique("outbox_campaign");
    let admin = store(None).await;
    run_sql(&admin, format!("CREATE SCHEMA {schema}")).await;
    let store = store(Some(&schema)).await;
    let log = log().await;
    let topic = unique("campaign");
    let named = Topic::new(topic.clone()).unwrap();
    log.create_topic(&named, TopicConfig::new(4)).await.unwrap();
    let env = Env::system();
    migrate(&store, &options(&topic)).await.unwrap();
    let outbox = Outbox::open(&store, options(&topic), &env).await.unwrap();
    let start = || RelayProcess::start(&schema, &topic);
    let mut relays: Vec<RelayProcess> = (0..campaign.relays).map(|_| start()).collect();
    let (mut numbers, mut disturbed) = (0_u64, 0_usize);
    let began = Instant::now();
    let mut next = began + campaign.between;
    let mut stopped: Option<(usize, Instant)> = None;
    while began.elapsed() < campaign.span {
        let events = |number: u64| {
            let event =
                move |key| NewOutboxEvent::new(format!("key-{key}"), "T", number.to_string());
            (0..KEYS).map(event).collect::<Vec<_>>()
        };
        outbox.insert(&events(numbers)).await.unwrap();
        numbers += 1;
        if let Some((index, until)) = stopped
            && Instant::now() > until
        {
            relays[index].signal(Signal::CONT);
            stopped = None;
        }
        if Instant::now() > next {
            next += campaign.between;
            let index = disturbed % relays.len();
            disturbed += 1;
            if disturbed % 2 == 1 {
                // Dropping it kills it, as -9 does.
                relays[index] = start();
            } else if stopped.is_none() {
                relays[index].signal(Signal::STOP);
                stopped = Some((index, Instant::now() + LEASE * 3 / 2));
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if let Some((index, _)) = stopped {
        relays[index].signal(Signal::CONT);
    }
    let ended = Instant::now();
    loop {
        let stats = outbox.stats().await.unwrap();
        if stats.pending + stats.claimed == 0 {
            break;
        }
        assert!(ended.elapsed() < Duration::from_secs(60), "{stats:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(relays);
    let mut first: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut repeated = 0;
    for (key, number) in read_by_kcat(&topic) {
        let seen = first.entry(key).or_default();
        match seen.contains(&number) {
            true => repeated += 1,
            false => seen.push(number),
        }
    }
    let expect: Vec<u64> = (0..numbers).collect();
    assert_eq!(first.len(), usize::try_from(KEYS).unwrap());
    for (key, seen) in &first {
        assert_eq!(*seen, expect, "{key}");
    }
    let most = disturbed * LANES * usize::try_from(BATCH).unwrap();
    eprintln!(
        "{} relays, {} events, {disturbed} kills and stops: {repeated} repeated, at most {most} may be",
        campaign.relays,
        numbers * KEYS
    );
    assert!(repeated <= most, "{repeated} of at most {most}");
    let component = OutboxComponent::inspected(outbox, Some(log));
    let audited = component.audit().await.unwrap().remove(0);
    assert_eq!(
        (audited.unaccounted, audited.unverifiable),
        (0, 0),
        "{audited:?}"
    );
    run_sql(&admin, format!("DROP SCHEMA {schema} CASCADE")).await;
}

mod needs_kcat {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL, Kafka and kcat"]
    fn o12_relays_that_are_killed_and_stopped_lose_nothing_and_keep_the_order() {
        runtime().block_on(async {
            if !is_long() {
                let span = Duration::from_secs(9);
                let between = Duration::from_millis(1_300);
                return play(Campaign {
                    relays: 2,
                    span,
                    between,
                })
                .await;
            }
            for relays in [1, 2, 4, 8] {
                let (span, between) = (Duration::from_secs(60), Duration::from_secs(5));
                play(Campaign {
                    relays,
                    span,
                    between,
                })
                .await;
            }
        });
    }
}
