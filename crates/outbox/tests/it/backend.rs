//! An outbox on a store and a log, for the tests that need both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{EventId, Shutdown, ShutdownTrigger, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{
    EmbeddedConfig, EmbeddedLog, Log, LogError, Read, StoredRecord, TopicConfig, TopicPartition,
};
use tidegate_outbox::{
    NewOutboxEvent, Outbox, OutboxOptions, OutboxRow, Relay, RelayReport, RowSelection, migrate,
};
use tidegate_store::{Store, StoreOptions};

use crate::stores::{drop_schema, postgres, postgres_options, runtime, sqlite, unique};

/// A store, a log, and the topic of the test.
pub(crate) struct Backend {
    pub(crate) store: Store,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) topic: Topic,
    /// How others reach the same tables.
    pub(crate) reach: StoreOptions,
    schema: Option<String>,
    embedded: Option<EmbeddedLog>,
    _dir: tempfile::TempDir,
}

impl Backend {
    /// SQLite and the embedded log.
    pub(crate) async fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let config = EmbeddedConfig::new(dir.path().join("log"));
        let log = EmbeddedLog::open(&Env::system(), config).unwrap();
        let path = dir.path().join("outbox.db");
        let backend = Self {
            store,
            log: Arc::new(log.clone()),
            topic: Topic::new("loan-events").unwrap(),
            reach: StoreOptions::new(format!("sqlite://{}", path.display())),
            schema: None,
            embedded: Some(log),
            _dir: dir,
        };
        backend.make_topic().await;
        backend
    }

    /// PostgreSQL and Kafka.
    pub(crate) async fn servers() -> Self {
        let (store, schema) = postgres().await;
        let bootstrap = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP names the broker");
        let mut config = KafkaConfig::new("default", bootstrap);
        config.request_timeout = Duration::from_secs(10);
        let log = KafkaLog::connect(config, Env::system()).await.unwrap();
        let backend = Self {
            store,
            log: Arc::new(log),
            topic: Topic::new(unique("loan-events")).unwrap(),
            reach: postgres_options(Some(&schema)),
            schema: Some(schema),
            embedded: None,
            _dir: tempfile::tempdir().unwrap(),
        };
        backend.make_topic().await;
        backend
    }

    async fn make_topic(&self) {
        let config = TopicConfig::new(3);
        self.log.create_topic(&self.topic, config).await.unwrap();
    }

    pub(crate) async fn end(self) {
        if let Some(log) = &self.embedded {
            log.close().await;
        }
        if let Some(schema) = &self.schema {
            drop_schema(&self.store, schema).await;
        }
    }

    /// Settings that are quick, with the topic of the test.
    pub(crate) fn options(&self) -> OutboxOptions {
        OutboxOptions {
            topic: Some(self.topic.clone()),
            batch_size: 20,
            max_attempts: 3,
            backoff_initial: Duration::from_millis(20),
            backoff_max: Duration::from_millis(100),
            lease: Duration::from_secs(3),
            poll_delay: Duration::from_millis(5),
            buckets: 16,
            ..OutboxOptions::default()
        }
    }

    pub(crate) async fn outbox(&self, options: OutboxOptions) -> Outbox {
        migrate(&self.store, &options).await.unwrap();
        Outbox::open(&self.store, options, &Env::system())
            .await
            .unwrap()
    }

    /// The same table through other connections, as another process has it.
    pub(crate) async fn another(&self, options: OutboxOptions) -> Outbox {
        let env = Env::system();
        let store = Store::open(&self.reach, &env).await.unwrap();
        Outbox::open(&store, options, &env).await.unwrap()
    }

    /// All records of a topic, by partition and in their order.
    pub(crate) async fn records(&self, topic: &str) -> Vec<StoredRecord> {
        let topic = Topic::new(topic).unwrap();
        let described = match self.log.describe(&topic).await {
            Err(LogError::UnknownTopic { .. }) => return Vec::new(),
            described => described.unwrap(),
        };
        let mut records = Vec::new();
        for partition in described.partitions {
            let at = TopicPartition::new(topic.clone(), partition.partition.0);
            let mut next = partition.start;
            while next < partition.end {
                let batch = self.log.read(Read::new(at.clone(), next)).await.unwrap();
                next = batch.next;
                records.extend(batch.records);
            }
        }
        records
    }

    /// The values of each key, as they stand in the topic. Repetitions are left out, and counted.
    pub(crate) async fn first_occurrences(&self) -> (BTreeMap<String, Vec<u64>>, usize) {
        let mut seen: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut repeated = 0;
        for stored in self.records(self.topic.as_str()).await {
            let key = text(stored.record.key.as_deref());
            let number = text(stored.record.value.as_deref()).parse().unwrap();
            let numbers = seen.entry(key).or_default();
            match numbers.contains(&number) {
                true => repeated += 1,
                false => numbers.push(number),
            }
        }
        (seen, repeated)
    }
}

pub(crate) fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}

/// An event whose payload is a number.
pub(crate) fn event(key: &str, number: u64) -> NewOutboxEvent {
    NewOutboxEvent::new(key, "Numbered", number.to_string())
}

/// A relay that runs.
pub(crate) struct RunningRelay {
    trigger: ShutdownTrigger,
    task: tokio::task::JoinHandle<RelayReport>,
    pub(crate) relay: Arc<Relay>,
}

impl RunningRelay {
    pub(crate) fn start(outbox: &Outbox, log: &Arc<dyn Log>) -> Self {
        let env = Env::system();
        let relay = Arc::new(Relay::new(outbox.clone(), Arc::clone(log), &env));
        let (trigger, stop) = Shutdown::new();
        let running = Arc::clone(&relay);
        let task = tokio::spawn(async move { running.run(stop).await });
        Self {
            trigger,
            task,
            relay,
        }
    }

    pub(crate) async fn stop(self) -> RelayReport {
        self.trigger.stop();
        self.task.await.unwrap()
    }
}

/// Waits for something that a test is about, for at most a minute.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

pub(crate) async fn row(outbox: &Outbox, event: EventId) -> OutboxRow {
    let which = RowSelection::Event(event);
    outbox.show(&which).await.unwrap().unwrap()
}

/// Waits until nothing waits and nothing is claimed.
pub(crate) async fn until_drained(outbox: &Outbox) {
    until("the outbox is empty", async || {
        let stats = outbox.stats().await.unwrap();
        stats.pending + stats.claimed == 0
    })
    .await;
}

/// The books agree with the table and with the topics.
pub(crate) async fn audit(outbox: &Outbox, log: &Arc<dyn Log>) {
    let component =
        tidegate_outbox::OutboxComponent::inspected(outbox.clone(), Some(Arc::clone(log)));
    let audited = tidegate_core::Component::audit(&component).await.unwrap();
    assert_eq!(audited[0].missing, []);
    assert_eq!((audited[0].unaccounted, audited[0].unverifiable), (0, 0));
}

/// Runs a test on one of the two backends.
pub(crate) fn on_embedded(test: impl AsyncFnOnce(&Backend)) {
    runtime().block_on(async {
        let backend = Backend::embedded().await;
        test(&backend).await;
        backend.end().await;
    });
}

pub(crate) fn on_servers(test: impl AsyncFnOnce(&Backend)) {
    runtime().block_on(async {
        let backend = Backend::servers().await;
        test(&backend).await;
        backend.end().await;
    });
}
