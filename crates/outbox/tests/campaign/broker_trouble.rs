//! A broker that is killed under load, and one that keeps topics from the relay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_core::{Component, HealthStatus, Shutdown, ShutdownTrigger, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{Log, TopicConfig};
use tidegate_outbox::{
    NewOutboxEvent, Outbox, OutboxComponent, OutboxFilter, OutboxOptions, OutboxRow, OutboxStatus,
    migrate,
};
use tidegate_sim::is_long;
use tidegate_store::Store;

use crate::scene::{Addresses, insert, read_by_kcat, run_sql, until_there};
use crate::{BATCH, KEYS, LANES, options, unique};

/// A relay in this process, which gives up on rows soon.
struct Scene {
    addresses: Addresses,
    schema: String,
    store: Store,
    log: Arc<dyn Log>,
    topic: Topic,
    outbox: Outbox,
    component: Arc<OutboxComponent>,
    trigger: ShutdownTrigger,
    running: tokio::task::JoinHandle<()>,
}

impl Scene {
    async fn start(bootstrap: String, max_attempts: u32) -> Self {
        let addresses = Addresses {
            bootstrap,
            ..Addresses::of_environment()
        };
        let schema = unique("outbox_trouble");
        let admin = addresses.store(None).await;
        run_sql(&admin, format!("CREATE SCHEMA {schema}")).await;
        let store = addresses.store(Some(&schema)).await;
        let mut config = KafkaConfig::new("default", addresses.bootstrap.clone());
        config.request_timeout = Duration::from_secs(2);
        let log = until_there(|| KafkaLog::connect(config.clone(), Env::system())).await;
        let log: Arc<dyn Log> = Arc::new(log);
        let topic = Topic::new(unique("trouble")).unwrap();
        until_there(|| log.create_topic(&topic, TopicConfig::new(4))).await;
        let options = OutboxOptions {
            max_attempts,
            backoff_initial: Duration::from_millis(50),
            backoff_max: Duration::from_millis(200),
            ..options(topic.as_str())
        };
        migrate(&store, &options).await.unwrap();
        let env = Env::system();
        let outbox = Outbox::open(&store, options, &env).await.unwrap();
        let component = Arc::new(OutboxComponent::new(outbox.clone(), Arc::clone(&log), &env));
        let (trigger, stop) = Shutdown::new();
        let running = tokio::spawn(Arc::clone(&component).run(stop));
        Self {
            addresses,
            schema,
            store,
            log,
            topic,
            outbox,
            component,
            trigger,
            running,
        }
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let began = Instant::now();
        while !is_so().await {
            assert!(began.elapsed() < Duration::from_secs(90), "never: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn rows(&self, status: OutboxStatus) -> Vec<OutboxRow> {
        let filter = OutboxFilter {
            status: Some(status),
            limit: 100_000,
            ..OutboxFilter::default()
        };
        self.outbox.list(&filter).await.unwrap()
    }

    async fn until_drained(&self) {
        self.until("nothing waits", async || {
            let stats = self.outbox.stats().await.unwrap();
            stats.pending + stats.claimed == 0
        })
        .await;
    }

    async fn end(self) {
        self.trigger.stop();
        self.running.await.unwrap();
        let audited = OutboxComponent::inspected(self.outbox.clone(), Some(Arc::clone(&self.log)));
        let audited = audited.audit().await.unwrap().remove(0);
        assert_eq!((audited.unaccounted, audited.unverifiable), (0, 0));
        run_sql(&self.store, format!("DROP SCHEMA {} CASCADE", self.schema)).await;
    }
}

mod needs_kcat {
    use super::*;
    use crate::broker::Broker;
    use crate::runtime;

    #[test]
    #[ignore = "needs PostgreSQL, Kafka and kcat"]
    fn o11_a_broker_that_is_killed_under_load_costs_no_attempt_and_no_copies() {
        let mut broker = Broker::start();
        runtime().block_on(async {
            let scene = Scene::start(broker.servers(), 1).await;
            let mut number = 0;
            let mut load = async |rounds| {
                for _ in 0..rounds {
                    insert(&scene.outbox, &scene.store, number).await;
                    number += 1;
                }
            };
            load(5).await;
            scene.until_drained().await;
            load(5).await;
            broker.kill();
            load(20).await;
            // Each question takes as long as a request may, so the rows in flight wait for longer than several.
            for _ in 0..if is_long() { 150 } else { 4 } {
                assert_eq!(scene.component.health().await.status, HealthStatus::Down);
            }
            load(5).await;
            let waiting = scene.outbox.stats().await.unwrap();
            assert!(waiting.pending > 0);
            assert_eq!((waiting.retrying, waiting.dead), (0, 0), "{waiting:?}");
            broker.restart();
            scene.until_drained().await;
            let sent = scene.rows(OutboxStatus::Sent).await;
            assert_eq!(sent.len() as u64, number * KEYS);
            assert!(sent.iter().all(|row| row.attempts == 0));
            scene
                .until("it recovers by itself", async || {
                    scene.component.health().await.status == HealthStatus::Up
                })
                .await;
            let read = read_by_kcat(&scene.addresses.bootstrap, scene.topic.as_str());
            let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
            let mut repeated = 0;
            for (key, number) in read {
                let seen = keys.entry(key).or_default();
                match seen.contains(&number) {
                    true => repeated += 1,
                    false => seen.push(number),
                }
            }
            let expect: Vec<u64> = (0..number).collect();
            assert_eq!(keys.len() as u64, KEYS);
            assert!(keys.values().all(|seen| *seen == expect), "{keys:?}");
            let most = LANES * BATCH as usize;
            eprintln!(
                "{} events, {repeated} repeated of at most {most}",
                sent.len()
            );
            assert!(repeated <= most);
            let letters = Topic::new(format!("{}-dlq", scene.topic)).unwrap();
            let letters = scene.log.describe(&letters).await.unwrap();
            assert!(letters.partitions.iter().all(|one| one.end == one.start));
            scene.end().await;
        });
    }

    #[test]
    #[ignore = "needs PostgreSQL, Kafka and kcat"]
    fn o06_topics_that_a_broker_forbids_hold_up_only_their_own_rows() {
        const ALLOWED: &str = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             allow.everyone.if.no.acl.found=true\n";
        let broker = Broker::start_with(ALLOWED);
        runtime().block_on(async {
            let scene = Scene::start(broker.servers(), 1_000).await;
            // One may be seen and not written, the other one not even be seen.
            for (name, operation) in [("unwritable", "Write"), ("unseen", "All")] {
                let topic = Topic::new(name).unwrap();
                until_there(|| scene.log.create_topic(&topic, TopicConfig::new(2))).await;
                let forbid = [
                    "--add",
                    "--topic",
                    name,
                    "--deny-principal",
                    "User:ANONYMOUS",
                ];
                let seen = ["--add", "--topic", name, "--allow-principal", "User:*"];
                let acl = "org.apache.kafka.tools.AclCommand";
                broker.run_tool(acl, &[&forbid[..], &["--operation", operation]].concat());
                if operation == "Write" {
                    broker.run_tool(acl, &[&seen[..], &["--operation", "Describe"]].concat());
                }
            }
            let event = |key: String| NewOutboxEvent::new(key, "T", "1");
            let mut events: Vec<NewOutboxEvent> = Vec::new();
            for key in 0..16 {
                events.push(event(format!("w-{key}")).topic("unwritable"));
                events.push(event(format!("s-{key}")).topic("unseen"));
            }
            events.extend((0..100).map(|key| event(format!("key-{key}"))));
            scene.outbox.insert(&events).await.unwrap();
            scene
                .until("all others are sent", async || {
                    scene.rows(OutboxStatus::Sent).await.len() == 100
                })
                .await;
            scene
                .until("health names both", async || {
                    let health = scene.component.health().await;
                    let message = health.message.unwrap_or_default();
                    health.status == HealthStatus::Degraded
                        && message.contains("`unwritable`")
                        && message.contains("`unseen`")
                })
                .await;
            scene
                .until("attempts count", async || {
                    let rows = scene.rows(OutboxStatus::Pending).await;
                    rows.len() == 32 && rows.iter().all(|row| row.attempts > 1)
                })
                .await;
            let read = read_by_kcat(&scene.addresses.bootstrap, scene.topic.as_str());
            assert_eq!(read.len(), 100, "each once");
            scene.end().await;
        });
    }
}
