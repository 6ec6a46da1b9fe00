//! Stages: a keyed sum and count, one output for each record, beside bare loops that do the same.
//!
//! Records are JSON of 200 bytes; each key comes once before what is measured. Kafka needs a broker:
//! `KAFKA_BOOTSTRAP`, or the one of `cargo xtask services up`. `cargo xtask bench stage --peers DIR` runs the stream
//! runtimes of a folder with a `run.sh` on the same broker, on records and keys of their own.

mod bare;
mod machine;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_core::{Shutdown, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{Append, EmbeddedConfig, EmbeddedLog, Log, Record, TopicConfig};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{Stage, StageOptions, StreamOptions};
use tokio::runtime::{Builder, Runtime};

use crate::connector::peers::{FOLDER, answer, described};
use crate::measure::{cpu_time, median, peak_resident_mib, rounded};
use crate::program::Why;
use crate::report::{Cost, Line, skipped};

/// Keys; as many records come before what is measured.
const KEYS: usize = 200_000;
/// Records that are measured.
const MEASURED: usize = 200_000;
const PARTITIONS: u32 = 4;
/// Records of an epoch, and of a commit of the bare loops.
const EPOCH: usize = 10_000;
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(180);
/// The cases of the peers that do the same job.
const PEERS: [&str; 4] = [
    "streams-eos",
    "streams-eos-2",
    "flink-hashmap",
    "flink-rocksdb",
];

const STEPS: &str = "receive orders transform state.sum = state.sum + amount state.n = state.n + 1 sum = state.sum \
    n = state.n emit to totals \
    state local sum keyed by customer type counter local n keyed by customer type counter end";

fn told(error: impl std::fmt::Display) -> Why {
    error.to_string()
}

fn runtime() -> Result<Runtime, Why> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().map_err(told)
}

pub(crate) fn run() {
    if let Err(why) = machine::run() {
        skipped("stage/machine", &why);
    }
    if let Err(why) = embedded() {
        skipped("stage/embedded", &why);
    }
    if let Err(why) = kafka() {
        skipped("stage/kafka", &why);
    }
}

fn plan(process: &str) -> Result<Arc<FlowPlan>, Why> {
    let flow = format!("process {process} {STEPS}");
    let checked = check_flows(&[&flow], &Registered::default());
    let plan = checked.plan.ok_or("the flow is not right")?;
    Ok(Arc::new(plan))
}

/// The key of a record: each comes once, then all of them in another order.
fn key(number: usize) -> usize {
    match number < KEYS {
        true => number,
        false => number.wrapping_mul(7_919) % KEYS,
    }
}

/// A record of about 200 bytes.
fn record(number: usize) -> Record {
    let (key, amount) = (key(number), number % 100);
    let value = format!(
        "{{\"customer\":\"c{key:09}\",\"amount\":{amount},\"note\":\"{:0>140}\"}}",
        number
    );
    Record::new(value).key(format!("c{key:09}"))
}

fn partition(number: usize) -> i32 {
    i32::try_from(key(number) % PARTITIONS as usize).unwrap_or(0)
}

/// Names that nobody has.
fn fresh(what: &str) -> String {
    format!("bench-stage-{what}-{}", uuid::Uuid::now_v7().simple())
}

async fn filled(log: &dyn Log) -> Result<Topic, Why> {
    let topic = Topic::new(fresh("orders")).map_err(told)?;
    let made = log.create_topic(&topic, TopicConfig::new(PARTITIONS)).await;
    made.map_err(told)?;
    for first in (0..KEYS + MEASURED).step_by(5_000) {
        let appends = (first..first + 5_000)
            .map(|number| Append::new(topic.clone(), record(number)).partition(partition(number)));
        log.append(appends.collect()).await.map_err(told)?;
    }
    Ok(topic)
}

/// Records per second of a stage, from the first measured record to the commit of the last one.
async fn by_stage(log: Arc<dyn Log>, orders: &Topic) -> Result<f64, Why> {
    let process = format!("p{}", uuid::Uuid::now_v7().simple());
    let mut options = StageOptions::new(&process).map_err(told)?;
    options.parallelism = Some(1);
    options.epoch_records = EPOCH as u64;
    let totals = Topic::new(fresh("totals")).map_err(told)?;
    for (stream, topic) in [("orders", orders.clone()), ("totals", totals)] {
        let stream_options = StreamOptions {
            topic: Some(topic),
            ..StreamOptions::default()
        };
        options.streams.insert(stream.to_owned(), stream_options);
    }
    let functions = Arc::new(RegisteredFunctions::default());
    let env = Env::system();
    let stage = Stage::new(plan(&process)?, options, functions, log, &env).map_err(told)?;
    let (trigger, stop) = Shutdown::new();
    let running = tokio::spawn({
        let stage = stage.clone();
        async move { stage.run(stop).await }
    });
    let until = |count: usize| {
        let stage = stage.clone();
        async move {
            let began = Instant::now();
            loop {
                let done = stage.status().records_in;
                if done >= count as u64 {
                    return Ok::<_, Why>((done, Instant::now()));
                }
                if began.elapsed() > LIMIT {
                    return Err(format!("not done after {LIMIT:?}: {:?}", stage.status()));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let (first, from) = until(KEYS).await?;
    let (last, to) = until(KEYS + MEASURED).await?;
    trigger.stop();
    running.await.map_err(told)?.map_err(told)?;
    Ok((last - first) as f64 / to.duration_since(from).as_secs_f64())
}

async fn rates(log: Arc<dyn Log>) -> Result<(f64, f64), Why> {
    let orders = filled(&*log).await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let rate = by_stage(Arc::clone(&log), &orders).await?;
        let reference = bare::rate(&*log, &orders).await?;
        eprintln!("  ours {rate:.0}/s, bare {reference:.0}/s");
        if round > 0 {
            ours.push(rate);
            bare.push(reference);
        }
    }
    Ok((median(ours), median(bare)))
}

fn embedded() -> Result<(), Why> {
    eprintln!("a stage on the embedded log");
    let program = std::env::current_exe().map_err(told)?;
    let scratch = program.with_file_name("bench-stage");
    // Files of an earlier run that was stopped half-way.
    drop(std::fs::remove_dir_all(&scratch));
    let measured = runtime()?.block_on(on_embedded(&scratch));
    drop(std::fs::remove_dir_all(&scratch));
    let (ours, bare) = measured?;
    let is = "a bare loop on the port with the same output; at least 0.5";
    print("stage/embedded", ours, bare, is);
    Ok(())
}

async fn on_embedded(scratch: &Path) -> Result<(f64, f64), Why> {
    let log = EmbeddedLog::open(&Env::system(), EmbeddedConfig::new(scratch)).map_err(told)?;
    let rates = rates(Arc::new(log.clone())).await;
    log.close().await;
    rates
}

fn kafka() -> Result<(), Why> {
    let servers = crate::kafka::servers().ok_or("there is no broker")?;
    eprintln!("a stage on Kafka");
    let config = KafkaConfig::new("bench", &servers);
    let (ours, bare) = runtime()?.block_on(async {
        let log = KafkaLog::connect(config, Env::system())
            .await
            .map_err(told)?;
        rates(Arc::new(log)).await
    })?;
    let is = "a bare loop on the port with the same output";
    print("stage/kafka", ours, bare, is);
    let Some(folder) = std::env::var_os(FOLDER) else {
        return Ok(());
    };
    let folder = Path::new(&folder);
    let known = answer(&servers, folder, "list")?;
    for case in PEERS {
        if !known.split_whitespace().any(|word| word == case) {
            continue;
        }
        let name = format!("stage/kafka beside {case}");
        eprintln!("peer {case}");
        match answer(&servers, folder, case).and_then(|line| described(&line)) {
            Ok((theirs, is)) => print(&name, ours, theirs, &is),
            Err(why) => skipped(&name, &why),
        }
    }
    Ok(())
}

/// Prints ours beside a reference, with what the bench cost so far.
fn print(bench: &str, ours: f64, reference: f64, reference_is: &str) {
    let cost = Cost {
        cpu_s: rounded(cpu_time().as_secs_f64()),
        rss_mb: peak_resident_mib(),
    };
    let line = Line {
        bench,
        ours,
        reference,
        reference_is,
        unit: "records/s",
        cost,
    };
    line.print();
}
