//! Bindings on Kafka beside bare loops on the same client; then tiers, keys, memory, and the embedded log.
//!
//! Values have 200 bytes. Client and broker share the machine. Needs a broker: `KAFKA_BOOTSTRAP`, or the
//! one of `cargo xtask services up`. `cargo xtask bench connector --peers DIR` runs the cases of a folder
//! with a `run.sh` on the same broker, and prints them beside ours. `TIDEGATE_BENCH_ONLY` names the cases that
//! are measured, such as `connector/embedded`; without it, all are.

mod bare;
mod embedded;
mod keys;
mod ladder;
mod memory;
pub(crate) mod peers;
mod plain;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_connector::{
    Binding, BindingOptions, BoundHandler, ConcurrencyMode, Connector, ConsumedRecord,
    HandlerAnswer,
};
use tidegate_core::Topic;
use tidegate_core::env::Env;
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{Append, Log, Record, TopicConfig};
use tokio::runtime::{Builder, Runtime};

use crate::measure::{cpu_time, peak_resident_mib, rounded};
use crate::program::Why;
use crate::report::{Cost, Line, skipped};

pub(crate) use memory::{CHILD, run_child};

/// Partitions of a topic, but for the cases that have one.
const PARTITIONS: u32 = 4;
/// Records taken at once, and records behind which the bare loop commits.
const POLL_RECORDS: usize = 500;
/// Everything that is measured ends within this.
const LIMIT: Duration = Duration::from_secs(90);
const NAME: &str = "measured";

/// The surroundings of every measurement.
struct Bench {
    servers: String,
    runtime: Runtime,
    log: KafkaLog,
    /// Rates of ours by name, for peers.
    rates: BTreeMap<&'static str, f64>,
}

fn told(error: impl std::fmt::Display) -> Why {
    error.to_string()
}

fn runtime() -> Result<Runtime, Why> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().map_err(told)
}

/// Whether a case is to be measured.
fn is_wanted(case: &str) -> bool {
    std::env::var("TIDEGATE_BENCH_ONLY")
        .map_or(true, |only| only.split(',').any(|name| name == case))
}

pub(crate) fn run() {
    match Bench::new() {
        Ok(mut bench) => {
            type Case = fn(&mut Bench) -> Result<(), Why>;
            let cases: [(&str, Case); 6] = [
                ("connector/partition", plain::partition),
                ("connector/immediate", plain::immediate),
                ("connector/poison", ladder::run),
                ("connector/keys-uniform", keys::uniform),
                ("connector/keys-zipf", keys::zipf),
                ("connector/memory", memory::run),
            ];
            for (name, case) in cases.into_iter().filter(|(name, _)| is_wanted(name)) {
                if let Err(why) = case(&mut bench) {
                    skipped(name, &why);
                }
            }
            if is_wanted(embedded::NAME)
                && let Err(why) = embedded::run()
            {
                skipped(embedded::NAME, &why);
            }
            peers::run(&bench);
        }
        Err(why) => skipped("connector", &why),
    }
}

impl Bench {
    fn new() -> Result<Self, Why> {
        let servers = crate::kafka::servers().ok_or("there is no broker")?;
        let runtime = runtime()?;
        let config = KafkaConfig::new("bench", &servers);
        let log = runtime.block_on(KafkaLog::connect(config, Env::system()));
        Ok(Self {
            servers,
            runtime,
            log: log.map_err(told)?,
            rates: BTreeMap::new(),
        })
    }

    /// A topic of its own.
    fn topic(&self, what: &str, partitions: u32) -> Result<Topic, Why> {
        let topic = Topic::new(fresh(what)).map_err(told)?;
        let made = self.log.create_topic(&topic, TopicConfig::new(partitions));
        self.runtime.block_on(made).map_err(told)?;
        Ok(topic)
    }

    fn fill(
        &self,
        topic: &Topic,
        count: usize,
        record: impl Fn(usize) -> Filled,
    ) -> Result<(), Why> {
        self.runtime.block_on(fill(&self.log, topic, count, record))
    }

    /// Ends when every record was handled, or fails.
    fn bound<R>(
        &self,
        options: BindingOptions,
        act: impl Fn(Arc<ConsumedRecord>) -> R + Send + Sync + 'static,
    ) -> Result<Bound, Why>
    where
        R: Future<Output = HandlerAnswer> + Send + 'static,
    {
        let log: Arc<dyn Log> = Arc::new(self.log.clone());
        self.runtime.block_on(bound(log, options, act))
    }
}

/// A name that nobody has.
fn fresh(what: &str) -> String {
    format!("bench-connector-{what}-{}", uuid::Uuid::now_v7())
}

/// A record, and its partition.
type Filled = (Record, i32);

/// Appends records in calls of a thousand, several of them on their way.
async fn fill(
    log: &(impl Log + Clone + 'static),
    topic: &Topic,
    count: usize,
    record: impl Fn(usize) -> Filled,
) -> Result<(), Why> {
    const PER_CALL: usize = 1_000;
    const AT_ONCE: usize = 16;
    let mut under_way = std::collections::VecDeque::new();
    for first in (0..count).step_by(PER_CALL) {
        let appends: Vec<Append> = (first..(first + PER_CALL).min(count))
            .map(|number| {
                let (record, partition) = record(number);
                Append::new(topic.clone(), record).partition(partition)
            })
            .collect();
        let log = log.clone();
        under_way.push_back(tokio::spawn(async move {
            log.append(appends).await.map(drop).map_err(told)
        }));
        if under_way.len() >= AT_ONCE
            && let Some(first) = under_way.pop_front()
        {
            first.await.map_err(told)??;
        }
    }
    for call in under_way {
        call.await.map_err(told)??;
    }
    Ok(())
}

/// A binding at work.
struct Bound {
    connector: Connector,
}

async fn bound<R>(
    log: Arc<dyn Log>,
    options: BindingOptions,
    act: impl Fn(Arc<ConsumedRecord>) -> R + Send + Sync + 'static,
) -> Result<Bound, Why>
where
    R: Future<Output = HandlerAnswer> + Send + 'static,
{
    let connector = Connector::new(log, &Env::system());
    let binding = Binding::new(options, BoundHandler::from_fn(act));
    connector.register(binding).map_err(told)?;
    connector.start(NAME).await.map_err(told)?;
    Ok(Bound { connector })
}

impl Bound {
    /// Waits for a fact, looking every few milliseconds.
    async fn until(&self, is_so: impl Fn() -> bool) -> Result<(), Why> {
        let began = Instant::now();
        while !is_so() {
            if began.elapsed() > LIMIT {
                return Err(format!(
                    "not done after {LIMIT:?}: {:?}",
                    self.connector.health()
                ));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn stop(&self) -> Result<(), Why> {
        self.connector.stop(NAME).await.map_err(told)
    }
}

/// A binding without tiers that takes as much at once as the bare loop commits at once.
fn options(topic: &Topic) -> Result<BindingOptions, Why> {
    let mut options = BindingOptions::new(NAME, topic.to_string(), fresh("group")).map_err(told)?;
    options.max_poll_records = POLL_RECORDS;
    options.retry.tiers.clear();
    options.concurrency_mode = ConcurrencyMode::Partition;
    Ok(options)
}

/// A value of `size` bytes that compresses about as well as events do.
fn value(number: usize, size: usize) -> Vec<u8> {
    let mut value = format!("{{\"order\":{number},\"note\":\"").into_bytes();
    let mut state = number as u64 + 1;
    while value.len() < size - 2 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        value.push(b'a' + u8::try_from((state >> 59) & 15).unwrap_or(0));
    }
    value.extend_from_slice(b"\"}");
    value
}

fn partition(number: usize) -> i32 {
    i32::try_from(number % PARTITIONS as usize).unwrap_or(0)
}

/// Prints ours beside a reference, with what the bench cost so far.
fn print(bench: &str, ours: f64, reference: f64, reference_is: &str, unit: &str) {
    let cost = Cost {
        cpu_s: rounded(cpu_time().as_secs_f64()),
        rss_mb: peak_resident_mib(),
    };
    let line = Line {
        bench,
        ours,
        reference,
        reference_is,
        unit,
        cost,
    };
    line.print();
}
