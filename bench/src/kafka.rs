//! The log on Kafka beside a bare loop on the same client, in turns on the same broker.
//!
//! Needs a broker: `KAFKA_BOOTSTRAP`, or the one of `cargo xtask services up`.

mod bare;
mod port;

use std::time::Instant;

use tidegate_core::env::Env;
use tidegate_core::{GroupName, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{Log, TopicConfig};
use tokio::runtime::{Builder, Runtime};

use crate::measure::{Measurement, median, percentile};

/// Records of one round, and how they are grouped into calls.
const RECORDS: usize = 400_000;
const PER_CALL: usize = 1_000;
/// Bytes of a value.
const SIZE: usize = 200;
/// Rounds of each, in turns, so that whatever the machine does meanwhile falls on both.
const ROUNDS: usize = 5;
/// How often a round reads its records. Reading takes a third of a second, and one look at that would
/// tell more about the machine than about the client.
const READINGS: usize = 4;
/// Transactions of one round, each of so many records and the offset behind them.
const COMMITS: usize = 40;
const PER_COMMIT: usize = 500;
const PARTITIONS: u32 = 4;

/// The servers and topics of a round.
struct Place {
    servers: String,
    topic: Topic,
    group: GroupName,
}

impl Place {
    /// The same topic for another group.
    fn again(&self) -> Outcome<Self> {
        Ok(Self {
            servers: self.servers.clone(),
            topic: self.topic.clone(),
            group: GroupName::new(format!("bench-{}", uuid::Uuid::now_v7())).map_err(told)?,
        })
    }
}

pub(crate) fn run() {
    let Some(servers) = servers() else {
        eprintln!("kafka: no broker; `cargo xtask services up` starts one");
        return;
    };
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return;
    };
    let config = KafkaConfig::new("bench", &servers);
    let log = match runtime.block_on(KafkaLog::connect(config, Env::system())) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("kafka: {error}");
            return;
        }
    };
    let bench = Bench {
        servers,
        runtime,
        log,
    };
    if let Err(why) = bench.throughput().and_then(|()| bench.commits()) {
        eprintln!("kafka: {why}");
    }
}

/// The broker of the environment, or of this checkout.
pub(crate) fn servers() -> Option<String> {
    if let Ok(servers) = std::env::var("KAFKA_BOOTSTRAP") {
        return Some(servers);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/services/env");
    let text = std::fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("KAFKA_BOOTSTRAP="));
    line.map(str::to_owned)
}

struct Bench {
    servers: String,
    runtime: Runtime,
    log: KafkaLog,
}

/// The reason of a failure, for the eye.
type Outcome<T> = Result<T, String>;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Bench {
    /// A fresh topic and group.
    fn place(&self, what: &str) -> Outcome<Place> {
        let name = format!("bench-{what}-{}", uuid::Uuid::now_v7());
        let topic = Topic::new(name.clone()).map_err(told)?;
        let made = self.log.create_topic(&topic, TopicConfig::new(PARTITIONS));
        self.runtime.block_on(made).map_err(told)?;
        Ok(Place {
            servers: self.servers.clone(),
            topic,
            group: GroupName::new(name).map_err(told)?,
        })
    }

    /// Records per second, produced and consumed.
    fn throughput(&self) -> Outcome<()> {
        let (mut ours, mut theirs) = ([vec![], vec![]], [vec![], vec![]]);
        // The first round warms everything up.
        for round in 0..=ROUNDS {
            let by_bare = self.place("bare")?;
            let bare_made = rate(|| bare::produce(&by_bare))?;
            let by_port = self.place("port")?;
            let made = rate(|| self.runtime.block_on(port::produce(&self.log, &by_port)))?;
            let mut read = [vec![], vec![]];
            for reading in 0..READINGS {
                // Both read what both have written, each in a group of its own; who begins changes.
                let place = [&by_bare, &by_port][reading % 2];
                for client in [reading / 2 % 2, (reading / 2 + 1) % 2] {
                    let place = place.again()?;
                    read[client].push(if client == 0 {
                        self.runtime.block_on(port::consume(&self.log, &place))?
                    } else {
                        bare::consume(&place)?
                    });
                }
            }
            if round > 0 {
                let [port_read, bare_read] = read;
                ours[0].push(made);
                ours[1].extend(port_read);
                theirs[0].push(bare_made);
                theirs[1].extend(bare_read);
            }
        }
        for (name, ours, theirs) in [
            ("kafka/produce", &ours[0], &theirs[0]),
            ("kafka/consume", &ours[1], &theirs[1]),
        ] {
            Measurement {
                bench: name,
                ours: median(ours.clone()),
                reference: median(theirs.clone()),
                reference_is: "a bare loop on the same client",
                unit: "records/s",
            }
            .print();
        }
        Ok(())
    }

    /// Microseconds of a commit of records and an offset.
    fn commits(&self) -> Outcome<()> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let place = self.place("commit")?;
            ours.extend(self.runtime.block_on(port::commits(&self.log, &place))?);
            let place = self.place("commit-bare")?;
            theirs.extend(bare::commits(&place)?);
        }
        for (name, share) in [
            ("kafka/commit-500 p50", 0.5),
            ("kafka/commit-500 p99", 0.99),
        ] {
            Measurement {
                bench: name,
                ours: percentile(&mut ours, share) / 1_000.0,
                reference: percentile(&mut theirs, share) / 1_000.0,
                reference_is: "the bare client, drained before its offsets",
                unit: "ms",
            }
            .print();
        }
        Ok(())
    }
}

/// Records per second of something that handles all of them.
fn rate(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let begin = Instant::now();
    work()?;
    Ok(rate_since(Some(begin)))
}

fn rate_since(begin: Option<Instant>) -> f64 {
    let took = begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
    RECORDS as f64 / took
}

/// A value that compresses about as well as events do.
fn value(number: usize) -> Vec<u8> {
    let mut value = format!("{{\"order\":{number},\"state\":\"placed\",\"note\":\"").into_bytes();
    let mut state = number as u64 + 1;
    while value.len() < SIZE - 2 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        value.push(b'a' + u8::try_from((state >> 59) & 15).unwrap_or(0));
    }
    value.extend_from_slice(b"\"}");
    value
}

/// Microseconds, as samples are kept.
fn micros(begin: Instant) -> u32 {
    u32::try_from(begin.elapsed().as_micros()).unwrap_or(u32::MAX)
}
