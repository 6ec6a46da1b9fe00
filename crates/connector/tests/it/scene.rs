//! A log, a connector and a handler that does as it is told.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_connector::parked::{ParkedModel, ParkedStore};
use tidegate_connector::{
    Binding, BindingOptions, BoundHandler, Connector, ConsumedRecord, HandlerAnswer, TierOptions,
};
use tidegate_core::dead_letter::Header;
use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Entropy, Env};
use tidegate_core::{Code, DeadLetter, EventId, Failure, GroupName, Mutex, Offset, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{
    Append, EmbeddedConfig, EmbeddedLog, Log, Read, Record, StoredRecord, TopicConfig,
    TopicPartition,
};
use tidegate_sim::{Sim, SimLog};

use crate::stores;

/// Longer than anything takes that must happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A log on which a rule is played.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) env: Arc<Env>,
    /// The model, where the rule is played on it: its faults can be scripted.
    pub(crate) model: Option<SimLog>,
    /// Different for each rule that is played on a shared broker.
    run: u64,
    /// The store of the model, or the directory of a file; without both it is PostgreSQL.
    pub(crate) parked: Option<ParkedModel>,
    dir: Option<PathBuf>,
}

/// Plays a rule on the model of a log, in simulated time.
pub(crate) fn on_model<R: Future<Output = ()> + Send + 'static>(rule: impl FnOnce(Scene) -> R) {
    let mut sim = Sim::new(7);
    let node = sim.node("one");
    let env = Arc::new(node.env());
    let log = SimLog::new(&env);
    let model = Some(log.clone());
    let parked = Some(ParkedModel::new(&env));
    let scene = Scene {
        log: Arc::new(log),
        env,
        model,
        run: 0,
        parked,
        dir: None,
    };
    sim.block_on(&node, rule(scene));
}

/// Plays a rule on an embedded log.
pub(crate) fn on_embedded<R: Future<Output = ()> + Send + 'static>(rule: impl FnOnce(Scene) -> R) {
    let dir = tempfile::tempdir().unwrap();
    in_runtime(async {
        let env = Arc::new(Env::system());
        let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir.path())).unwrap();
        let scene = Scene {
            log: Arc::new(log.clone()),
            env,
            model: None,
            run: 0,
            parked: None,
            dir: Some(dir.path().to_owned()),
        };
        rule(scene).await;
        log.close().await;
    });
}

/// Plays a rule on the broker that the environment names.
pub(crate) fn on_kafka<R: Future<Output = ()> + Send + 'static>(rule: impl FnOnce(Scene) -> R) {
    on_kafka_within(LIMIT * 3, rule);
}

/// The same for a rule that takes longer.
pub(crate) fn on_kafka_within<R: Future<Output = ()> + Send + 'static>(
    limit: Duration,
    rule: impl FnOnce(Scene) -> R,
) {
    within(limit, async {
        let env = Arc::new(Env::system());
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP is not set");
        let config = KafkaConfig::new("test", &servers);
        let log = KafkaLog::connect(config, env.fork("kafka")).await.unwrap();
        let run = system_entropy().next_u64();
        rule(Scene {
            log: Arc::new(log),
            env,
            model: None,
            run,
            parked: None,
            dir: None,
        })
        .await;
    });
}

pub(crate) fn in_runtime(test: impl Future<Output = ()>) {
    within(LIMIT * 3, test);
}

fn within(limit: Duration, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(limit, test)
            .await
            .expect("the rule takes too long");
    });
    runtime.shutdown_background();
}

/// A call of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenCall {
    pub(crate) value: String,
    pub(crate) tier: u32,
    pub(crate) attempt: u32,
    pub(crate) at: Duration,
}

/// A handler that does as it is told, and remembers its calls.
#[derive(Clone)]
pub(crate) struct Script {
    calls: Arc<Mutex<Vec<SeenCall>>>,
    env: Arc<Env>,
}

pub(crate) fn transient(code: &'static str) -> HandlerAnswer {
    Err(Failure::transient(Code::from_static(code), "not now").into())
}

pub(crate) fn permanent(code: &'static str) -> HandlerAnswer {
    Err(Failure::permanent(Code::from_static(code), "never").into())
}

pub(crate) fn text(value: Option<&bytes::Bytes>) -> String {
    value.map_or_else(
        || "-".to_owned(),
        |value| String::from_utf8_lossy(value).into_owned(),
    )
}

impl Script {
    pub(crate) fn new(scene: &Scene) -> Self {
        Self {
            calls: Arc::default(),
            env: Arc::clone(&scene.env),
        }
    }

    /// The handler: each call is noted and then answered by `act`.
    pub(crate) fn handler<R>(
        &self,
        act: impl Fn(Arc<ConsumedRecord>) -> R + Send + Sync + 'static,
    ) -> BoundHandler
    where
        R: Future<Output = HandlerAnswer> + Send + 'static,
    {
        let this = self.clone();
        BoundHandler::from_fn(move |record| {
            this.calls.lock().push(SeenCall {
                value: text(record.value()),
                tier: record.tier().0,
                attempt: record.attempt(),
                at: this.env.clock.elapsed(),
            });
            act(record)
        })
    }

    /// A handler that answers at once.
    pub(crate) fn answers(
        &self,
        act: impl Fn(&ConsumedRecord) -> HandlerAnswer + Send + Sync + 'static,
    ) -> BoundHandler {
        let act = Arc::new(act);
        self.handler(move |record| {
            let act = Arc::clone(&act);
            async move { act(&record) }
        })
    }

    pub(crate) fn calls(&self) -> Vec<SeenCall> {
        self.calls.lock().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.lock().len()
    }

    pub(crate) fn values(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call.value).collect()
    }

    /// How often a value was seen.
    pub(crate) fn count(&self, value: &str) -> usize {
        self.calls
            .lock()
            .iter()
            .filter(|call| call.value == value)
            .count()
    }
}

impl Scene {
    /// Whether the rule is played on a broker.
    pub(crate) fn is_on_broker(&self) -> bool {
        self.model.is_none() && self.dir.is_none()
    }

    /// A name that nobody else has.
    pub(crate) fn name(&self, what: &str) -> String {
        match self.run {
            0 => what.to_owned(),
            run => format!("{what}-{run:016x}"),
        }
    }

    pub(crate) async fn topic(&self, name: &str, partitions: u32) -> Topic {
        let topic = Topic::new(self.name(name)).unwrap();
        self.log
            .create_topic(&topic, TopicConfig::new(partitions))
            .await
            .unwrap();
        topic
    }

    /// A binding of that topic with short waits.
    pub(crate) fn options(&self, topic: &Topic) -> BindingOptions {
        let group = self.name("group");
        let mut options = BindingOptions::new("orders", topic.to_string(), group).unwrap();
        options.retry.tier0.initial_backoff = Duration::from_millis(2);
        options.retry.tier0.max_backoff = Duration::from_millis(4);
        let delays = [40, 60, 80].map(|ms| TierOptions::new(Duration::from_millis(ms)));
        options.retry.tiers = delays.into();
        options.stop_timeout = Duration::from_secs(5);
        options
    }

    /// A connector with one binding that runs.
    pub(crate) async fn start(&self, options: BindingOptions, handler: BoundHandler) -> Connector {
        let connector = Connector::new(Arc::clone(&self.log), &self.env);
        let name = options.name.clone();
        connector.register(Binding::new(options, handler)).unwrap();
        connector.start(&name).await.unwrap();
        connector
    }

    /// The store that belongs to the log.
    pub(crate) async fn store(&self) -> Arc<dyn ParkedStore> {
        match (&self.parked, &self.dir) {
            (Some(model), _) => Arc::new(model.clone()),
            (None, Some(dir)) => stores::sqlite(dir).await,
            (None, None) => stores::postgres().await,
        }
    }

    /// The same as [`start`](Self::start) with a store.
    pub(crate) async fn start_with_store(
        &self,
        options: BindingOptions,
        handler: BoundHandler,
    ) -> Connector {
        let connector = Connector::new(Arc::clone(&self.log), &self.env);
        let connector = connector.with_store(self.store().await);
        let name = options.name.clone();
        connector.register(Binding::new(options, handler)).unwrap();
        connector.start(&name).await.unwrap();
        connector
    }

    pub(crate) async fn send(&self, topic: &Topic, partition: i32, values: &[&str]) {
        let appends = values.iter().map(|value| {
            let record = Record::new((*value).to_owned()).key(format!("key-{value}"));
            Append::new(topic.clone(), record).partition(partition)
        });
        self.log.append(appends.collect()).await.unwrap();
    }

    /// Waits for a fact.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let limit = self.env.clock.elapsed() + LIMIT;
        while !is_so() {
            assert!(self.env.clock.elapsed() < limit, "never: {what}");
            self.env.clock.sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until a group has committed this offset of partition 0.
    pub(crate) async fn until_committed(&self, group: &GroupName, topic: &Topic, next: i64) {
        let limit = self.env.clock.elapsed() + LIMIT;
        while self.committed(group, topic, 0).await != Some(next) {
            let now = self.committed(group, topic, 0).await;
            assert!(
                self.env.clock.elapsed() < limit,
                "never committed {next}, but {now:?}"
            );
            self.env.clock.sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until a group has committed an offset of partition 0 behind this one.
    pub(crate) async fn until_passed(&self, group: &GroupName, topic: &Topic, offset: i64) {
        let limit = self.env.clock.elapsed() + LIMIT;
        while self
            .committed(group, topic, 0)
            .await
            .is_none_or(|next| next <= offset)
        {
            assert!(self.env.clock.elapsed() < limit, "never passed {offset}");
            self.env.clock.sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) async fn committed(
        &self,
        group: &GroupName,
        topic: &Topic,
        partition: i32,
    ) -> Option<i64> {
        let at = TopicPartition::new(topic.clone(), partition);
        let found = self.log.committed(group, &[at]).await.unwrap();
        found[0].as_ref().map(|held| held.next.0)
    }

    /// Everything in a partition of a topic.
    pub(crate) async fn records(&self, topic: &Topic, partition: i32) -> Vec<StoredRecord> {
        let at = TopicPartition::new(topic.clone(), partition);
        let there = self.log.describe(topic).await.unwrap().partitions;
        let end = there
            .iter()
            .find(|found| found.partition.0 == partition)
            .unwrap()
            .end;
        let mut all = Vec::new();
        let mut from = Offset(0);
        while from < end {
            let batch = self.log.read(Read::new(at.clone(), from)).await.unwrap();
            all.extend(batch.records);
            if batch.next == from {
                break;
            }
            from = batch.next;
        }
        all
    }

    /// The dead letters of partition 0.
    pub(crate) async fn letters(&self, options: &BindingOptions) -> Vec<DeadLetter> {
        let all = self.records(&options.dlt_topic().unwrap(), 0).await;
        all.into_iter().map(|stored| letter(&stored)).collect()
    }

    /// Waits until there are so many dead letters in partition 0.
    pub(crate) async fn until_letters(
        &self,
        options: &BindingOptions,
        count: usize,
    ) -> Vec<DeadLetter> {
        let limit = self.env.clock.elapsed() + LIMIT;
        loop {
            let letters = self.letters(options).await;
            if letters.len() >= count {
                return letters;
            }
            assert!(
                self.env.clock.elapsed() < limit,
                "there are {} letters",
                letters.len()
            );
            self.env.clock.sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) fn headers(stored: &StoredRecord) -> Vec<Header> {
    let all = stored.record.headers.iter();
    all.map(|(name, value)| Header {
        name: name.to_owned(),
        value: value.map(bytes::Bytes::copy_from_slice),
    })
    .collect()
}

pub(crate) fn letter(stored: &StoredRecord) -> DeadLetter {
    let record = &stored.record;
    DeadLetter::from_record(record.key.clone(), record.value.clone(), &headers(stored)).unwrap()
}

pub(crate) fn header(stored: &StoredRecord, name: &str) -> String {
    text(
        stored
            .record
            .headers
            .get(name)
            .map(bytes::Bytes::copy_from_slice)
            .as_ref(),
    )
}

/// How often each id is there.
pub(crate) fn by_id(letters: &[DeadLetter]) -> BTreeMap<EventId, usize> {
    let mut counts = BTreeMap::new();
    for letter in letters {
        *counts.entry(letter.event_id).or_default() += 1;
    }
    counts
}
