//! Memory: a tier full of records that are not yet due, records in flight, and a binding without records.
//!
//! Each case runs in a process of its own, which prints what it found.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_connector::{BindingOptions, ConcurrencyMode, TierOptions};
use tidegate_core::dead_letter::name;
use tidegate_core::env::Env;
use tidegate_core::{TierIndex, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{Join, Log, Record, Session, SessionEvent, StoredRecord, TopicConfig};

use super::{Bench, NAME, bound, fresh, print, runtime, told, value};
use crate::measure::{peak_resident_mib, resident_mib_of};
use crate::program::{Program, Why, number};

/// The argument that makes this program the process that is measured.
pub(crate) const CHILD: &str = "--bind-and-print-memory";

const MIB: f64 = 1024.0 * 1024.0;
/// Bytes of a record that waits.
const WAITING: usize = 10_000;
/// Records in flight.
const IN_FLIGHT: usize = 50_000;
/// The size of each of them.
const SMALL: usize = 200;
/// The time in which memory comes to rest.
const REST: Duration = Duration::from_secs(3);

pub(super) fn run(bench: &mut Bench) -> Result<(), Why> {
    eprintln!("memory");
    let small = not_due(bench, 10_000_000)?;
    let large = not_due(bench, 1 << 30)?;
    let is = "10 MB not yet due; at most 32 MiB apart";
    print(
        "connector/memory-1-gib-not-due",
        large,
        small,
        is,
        "MiB at most",
    );
    let topic = bench.topic("flight", 1)?;
    let record = |number| (Record::new(value(number, SMALL)), 0);
    bench.fill(&topic, IN_FLIGHT, record)?;
    let held = number(&child(bench, "held", &topic)?, "rss_mib")?;
    for (case, bench_name) in [
        ("queued", "connector/memory-per-record-in-hand"),
        ("running", "connector/memory-per-running-handler"),
    ] {
        let ours = number(&child(bench, case, &topic)?, "rss_mib")?;
        let each = (ours - held) * MIB / IN_FLIGHT as f64;
        let is = "the most it should be";
        print(
            bench_name,
            each,
            200.0,
            is,
            "B beside each record as the log hands it out",
        );
    }
    let topic = bench.topic("idle", 1)?;
    let (none, idle) = (child(bench, "none", &topic)?, child(bench, "idle", &topic)?);
    let is = "the same process without a binding";
    for (bench_name, key, unit) in [
        (
            "connector/idle-memory",
            "rss_mib",
            "MiB, one binding, three tiers",
        ),
        (
            "connector/idle-threads",
            "threads",
            "threads, one binding, three tiers",
        ),
    ] {
        print(
            bench_name,
            number(&idle, key)?,
            number(&none, key)?,
            is,
            unit,
        );
    }
    Ok(())
}

/// The most memory of a binding whose tier holds so many bytes that are not yet due.
fn not_due(bench: &Bench, bytes: usize) -> Result<f64, Why> {
    let topic = bench.topic("due", 1)?;
    let options = waiting_options(&topic)?;
    let tier = options.tier_topic(TierIndex(1)).map_err(told)?;
    let config = TopicConfig::new(1);
    let main = bench.runtime.block_on(bench.log.describe(&topic));
    let config = TopicConfig {
        max_record_size: main.map_err(told)?.config.max_record_size + 64 * 1024,
        ..config
    };
    let made = bench.log.create_topic(&tier, config);
    bench.runtime.block_on(made).map_err(told)?;
    let now = Env::system().clock.now_ms().to_string();
    let record = |number| {
        let record = Record::new(value(number, WAITING)).header(name::RETRY_TIMESTAMP, &now);
        (record, 0)
    };
    bench.fill(&tier, bytes / WAITING, record)?;
    let found = number(&child(bench, "due", &topic)?, "peak_mib")?;
    // The broker may have its disk back.
    let at = tidegate_log::TopicPartition::new(tier.clone(), 0);
    let end = bench
        .runtime
        .block_on(bench.log.describe(&tier))
        .map_err(told)?;
    if let Some(end) = end.partitions.first().map(|found| found.end) {
        let cleared = bench.log.delete_before(&at, end);
        drop(bench.runtime.block_on(cleared));
    }
    Ok(found)
}

fn waiting_options(topic: &Topic) -> Result<BindingOptions, Why> {
    let mut options = super::options(topic)?;
    options.retry.tiers = vec![TierOptions::new(Duration::from_secs(3_600))];
    Ok(options)
}

fn child(bench: &Bench, case: &str, topic: &Topic) -> Result<Value, Why> {
    let program = std::env::current_exe().map_err(told)?;
    let program = Program {
        name: "bench",
        command: vec![program.into_os_string(), CHILD.into()],
    };
    let arguments = [case, topic.as_str(), &bench.servers].map(std::ffi::OsStr::new);
    program.call("", &arguments)
}

/// Runs one case and prints what it found.
pub(crate) fn run_child(arguments: &[String]) {
    let [case, topic, servers] = arguments else {
        eprintln!("a case, a topic and servers are missing");
        return;
    };
    let found = runtime().and_then(|runtime| runtime.block_on(case_of(case, topic, servers)));
    match found {
        Ok(found) => println!("{found}"),
        Err(why) => eprintln!("{case}: {why}"),
    }
}

async fn case_of(case: &str, topic: &str, servers: &str) -> Result<Value, Why> {
    let topic = Topic::new(topic).map_err(told)?;
    let config = KafkaConfig::new("bench", servers);
    let log = KafkaLog::connect(config, Env::system())
        .await
        .map_err(told)?;
    let log: Arc<dyn Log> = Arc::new(log);
    let pending = |_| std::future::pending();
    match case {
        "none" => {}
        "held" => {
            let kept = held(&*log, &topic).await?;
            let found = resting().await;
            drop(kept);
            return Ok(found);
        }
        "idle" => {
            let options = BindingOptions::new(NAME, topic.to_string(), fresh("idle"));
            let options = options.map_err(told)?;
            let bound = bound(log, options, |_| async { Ok(()) }).await?;
            bound.until(|| assigned(&bound, 4)).await?;
            return Ok(resting().await);
        }
        "due" => {
            let bound = bound(log, waiting_options(&topic)?, |_| async { Ok(()) }).await?;
            bound.until(|| assigned(&bound, 2)).await?;
            return Ok(resting().await);
        }
        "queued" | "running" => {
            let mut options = super::options(&topic)?;
            options.max_ahead = IN_FLIGHT * 2;
            match case {
                "queued" => {
                    options.max_poll_records = IN_FLIGHT;
                    // So many records might wait longer in their retries than a poll may take.
                    options.retry.tier0.max_attempts = 1;
                }
                _ => {
                    options.concurrency_mode = ConcurrencyMode::Unordered;
                    options.max_in_flight = IN_FLIGHT;
                }
            }
            let bound = bound(log, options, pending).await?;
            bound.until(|| assigned(&bound, 1)).await?;
            return Ok(resting().await);
        }
        other => return Err(format!("no case `{other}`")),
    }
    Ok(resting().await)
}

fn assigned(bound: &super::Bound, count: usize) -> bool {
    let positions = bound.connector.positions(NAME);
    positions.is_ok_and(|found| found.len() >= count)
}

/// The records as the log hands them out, kept.
async fn held(log: &dyn Log, topic: &Topic) -> Result<(Arc<dyn Session>, Vec<StoredRecord>), Why> {
    let group = tidegate_core::GroupName::new(fresh("held")).map_err(told)?;
    let join = Join {
        max_poll_records: IN_FLIGHT,
        ..Join::new(group, vec![topic.clone()])
    };
    let session = log.join(join).await.map_err(told)?;
    let mut kept = Vec::new();
    while kept.len() < IN_FLIGHT {
        if let SessionEvent::Records { batch, .. } = session.poll().await.map_err(told)? {
            kept.extend(batch.records);
        }
    }
    // As a binding that is full does.
    let at = tidegate_log::TopicPartition::new(topic.clone(), 0);
    session.pause(&[at]).await.map_err(told)?;
    Ok((session, kept))
}

async fn resting() -> Value {
    tokio::time::sleep(REST).await;
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    json!({
        "rss_mib": resident_mib_of("self"),
        "peak_mib": peak_resident_mib(),
        "threads": threads,
    })
}
