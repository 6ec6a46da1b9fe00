//! The relay of an outbox, from PostgreSQL to Kafka, beside a bare loop that selects and produces; then how
//! long an event takes from its commit to a reader; then SQLite with the embedded log.
//!
//! Payloads have 200 bytes, a thousand keys, commits are durable. Needs PostgreSQL and a broker:
//! `DATABASE_URL`, `KAFKA_BOOTSTRAP`, or those of `cargo xtask services up`.

mod bare;
mod latency;
mod sqlite;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::env::Env;
use tidegate_core::{Shutdown, Topic};
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_log::{Log, TopicConfig};
use tidegate_outbox::{Outbox, OutboxOptions, Relay, RelayReport, migrate};
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::{Builder, Runtime};

use crate::measure::{cpu_time, median, peak_resident_mib};
use crate::program::Why;
use crate::report::{Cost, Line, skipped};
use crate::server::Server;

/// Rows of a warm table.
const EVENTS: u32 = 200_000;
/// Rows of one statement that fills it.
const FILLED: u32 = 10_000;
const KEYS: u32 = 1_000;
const BATCH: u32 = 500;
const PARTITIONS: u32 = 4;
/// Rounds of each, in turns; the figure in the middle counts.
const ROUNDS: usize = 3;
/// The relay that drains a table has this long.
const LIMIT: Duration = Duration::from_secs(120);

/// The surroundings of every measurement.
struct Bench {
    server: Server,
    runtime: Runtime,
    log: KafkaLog,
    servers: String,
}

/// A drained table.
struct Drained {
    per_second: f64,
    /// Bytes of WAL per event.
    wal: f64,
    /// Transactions per batch.
    transactions: f64,
    /// Statements per batch, where the server counts them.
    statements: Option<f64>,
    cost: Cost,
}

pub(crate) fn run() {
    match Bench::new() {
        Ok(mut bench) => {
            bench.drain();
            match latency::run(&mut bench) {
                Ok(latency) => latency::print(&latency),
                Err(why) => skipped("outbox/latency", &why),
            }
            if let Err(why) = bench.server.drop_database("outbox") {
                eprintln!("a database stays behind: {why}");
            }
        }
        Err(why) => skipped("outbox", &why),
    }
    sqlite::run();
}

fn told(error: impl std::fmt::Display) -> Why {
    error.to_string()
}

impl Bench {
    fn new() -> Result<Self, Why> {
        let server = Server::connect()?;
        let servers = crate::kafka::servers().ok_or("there is no broker")?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(told)?;
        let config = KafkaConfig::new("bench", &servers);
        let log = runtime.block_on(KafkaLog::connect(config, Env::system()));
        Ok(Self {
            server,
            runtime,
            log: log.map_err(told)?,
            servers,
        })
    }

    /// A topic of its own.
    fn topic(&self) -> Result<Topic, Why> {
        let topic = Topic::new(format!("bench-outbox-{}", uuid::Uuid::now_v7())).map_err(told)?;
        let made = self.log.create_topic(&topic, TopicConfig::new(PARTITIONS));
        self.runtime.block_on(made).map_err(told)?;
        Ok(topic)
    }

    /// A new database with an outbox, and how it is opened.
    fn outbox(&mut self, topic: &Topic) -> Result<(String, Store, Outbox), Why> {
        let url = self.server.new_database("outbox")?;
        let (store, outbox) = self.runtime.block_on(open(&url, topic))?;
        Ok((url, store, outbox))
    }

    /// Fills the table of a database.
    fn fill(&self, url: &str) -> Result<(), Why> {
        for first in (0..EVENTS).step_by(FILLED as usize) {
            let last = first + FILLED - 1;
            self.server.execute_in(
                url,
                &format!(
                    "INSERT INTO outbox_event (aggregate_id, type, payload)
                     SELECT 'key-' || g % {KEYS}, 'Measured',
                         rpad('{{\"number\": ' || g || ', \"note\": \"', 198, md5(g::text)) || '\"}}'
                     FROM generate_series({first}, {last}) g"
                ),
            )?;
        }
        self.server.execute_in(url, "VACUUM ANALYZE outbox_event")
    }

    /// A full table, in turns, so that whatever the machine does meanwhile falls on everybody.
    fn drain(&mut self) {
        eprintln!("a warm table to Kafka");
        let (mut ours, mut selected, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let round = self.relayed().and_then(|drained| {
                ours.push(drained);
                selected.push(self.looped(bare::Ends::Produced)?);
                settled.push(self.looped(bare::Ends::Settled)?);
                Ok(())
            });
            if let Err(why) = round {
                return skipped("outbox/relay", &why);
            }
        }
        ours.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        let ours = &ours[ours.len() / 2];
        let line = |bench, ours_is, reference, reference_is, unit| {
            Line {
                bench,
                ours: ours_is,
                reference,
                reference_is,
                unit,
                cost: ours.cost,
            }
            .print();
        };
        let rate = ours.per_second;
        let is = "select by id and produce, nothing marked, same client and settings";
        line("outbox/relay", rate, median(selected), is, "events/s");
        let is = "the same loop with one UPDATE per batch";
        line(
            "outbox/relay-over-settling-loop",
            rate,
            median(settled),
            is,
            "events/s",
        );
        line(
            "outbox/relay-rate",
            rate,
            50_000.0,
            "the least it should be",
            "events/s",
        );
        let is = "one claim and one settle";
        let unit = "transactions per batch, leases and upkeep included";
        line("outbox/transactions", ours.transactions, 2.0, is, unit);
        match ours.statements {
            Some(statements) => {
                let unit = "statements per batch, leases and upkeep included";
                line("outbox/statements", statements, 2.0, is, unit);
            }
            None => skipped(
                "outbox/statements",
                &"the server does not count them".to_owned(),
            ),
        }
        line(
            "outbox/wal",
            ours.wal,
            1_024.0,
            "the most it may be",
            "B of WAL per event, relay alone",
        );
    }

    /// Ours.
    fn relayed(&mut self) -> Result<Drained, Why> {
        let topic = self.topic()?;
        let (url, store, outbox) = self.outbox(&topic)?;
        self.fill(&url)?;
        let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        let before = self.server.number_in(&url, commits)?;
        let called = self.statements(&url);
        let (wal, cpu, own) = (self.server.wal()?, self.server.cpu_seconds(), cpu_time());
        let log: Arc<dyn Log> = Arc::new(self.log.clone());
        let (report, took) = self.runtime.block_on(drained(&outbox, log, EVENTS))?;
        let took = took.as_secs_f64();
        let (wal, cpu) = (self.server.wal()? - wal, self.server.cpu_seconds() - cpu);
        self.runtime.block_on(store.close()).map_err(told)?;
        let after = self.server.number_in(&url, commits)?;
        let batches = report.batches.max(1) as f64;
        let called = called.zip(self.statements(&url));
        let own = (cpu_time() - own).as_secs_f64();
        let drained = Drained {
            per_second: f64::from(EVENTS) / took,
            wal: wal / f64::from(EVENTS),
            transactions: (after - before) as f64 / batches,
            statements: called.map(|(before, after)| (after - before) as f64 / batches),
            cost: Cost {
                cpu_s: cpu + own,
                rss_mb: peak_resident_mib(),
            },
        };
        eprintln!(
            "  ours: {:.0}/s in {batches} batches; processor: {own:.1} s of ours, {cpu:.1} s of the database",
            drained.per_second
        );
        Ok(drained)
    }

    /// Statements that a database has run.
    fn statements(&self, url: &str) -> Option<i64> {
        let extension = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements";
        self.server.execute_in(url, extension).ok()?;
        let calls = "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_statements s
            JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database()";
        self.server.number_in(url, calls).ok()
    }

    /// Events per second of the bare loop.
    fn looped(&mut self, ends: bare::Ends) -> Result<f64, Why> {
        let topic = self.topic()?;
        let (url, store, _) = self.outbox(&topic)?;
        self.fill(&url)?;
        self.runtime.block_on(store.close()).map_err(told)?;
        let began = Instant::now();
        let looped = bare::run(&url, &self.servers, &topic, ends);
        self.runtime.block_on(looped)?;
        let rate = f64::from(EVENTS) / began.elapsed().as_secs_f64();
        eprintln!("  {ends:?}: {rate:.0}/s");
        Ok(rate)
    }
}

fn options(topic: &Topic) -> OutboxOptions {
    OutboxOptions {
        topic: Some(topic.clone()),
        batch_size: BATCH,
        ..OutboxOptions::new("bench")
    }
}

async fn open(url: &str, topic: &Topic) -> Result<(Store, Outbox), Why> {
    let env = Env::system();
    let store = Store::open(&StoreOptions::new(url), &env)
        .await
        .map_err(told)?;
    migrate(&store, &options(topic)).await.map_err(told)?;
    let outbox = Outbox::open(&store, options(topic), &env).await;
    Ok((store, outbox.map_err(told)?))
}

/// Runs a relay until it has sent so many rows, and says how long that took.
async fn drained(
    outbox: &Outbox,
    log: Arc<dyn Log>,
    rows: u32,
) -> Result<(RelayReport, Duration), Why> {
    let env = Env::system();
    let (trigger, stop) = Shutdown::new();
    let relay = Relay::new(outbox.clone(), log, &env);
    let began = Instant::now();
    let watching = async {
        // The table is not asked: counting its rows is work that the reference does not have.
        while relay.report().sent < u64::from(rows) && began.elapsed() < LIMIT {
            env.clock.sleep(Duration::from_millis(2)).await;
        }
        let took = began.elapsed();
        trigger.stop();
        took
    };
    let (report, took) = tokio::join!(relay.run(stop), watching);
    match report.sent >= u64::from(rows) {
        true => Ok((report, took)),
        false => Err(format!(
            "{} of {rows} rows are sent after {LIMIT:?}",
            report.sent
        )),
    }
}
