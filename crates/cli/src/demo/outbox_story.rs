//! The story of the outbox: rows of a database on their way to a topic, and a relay that is killed.
//!
//! It is the outbox itself that runs here, in real time, on SQLite and an embedded log in a directory that is
//! gone afterwards. Each relay has a runtime of its own, with connections of its own, as another process
//! would. When that is shut down, everything in it stops where it is. The seed decides what is written; when
//! it is published is up to the machine.

mod witness;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use tidegate_core::books::{Account, ComponentAccount, ComponentKind};
use tidegate_core::env::{Clock, Env};
use tidegate_core::{Component, Failure, Shutdown, Topic};
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log, TopicConfig};
use tidegate_outbox::{NewOutboxEvent, Outbox, OutboxComponent, OutboxOptions, Relay};
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Handle;

use self::witness::{Ledgers, RowFindings};
use super::engine::{DemoFindings, DemoNote, DemoPhase, Ended, Scene};
use super::queue_story::DemoProcess;
use crate::report::ErrorReport;

/// Time between two looks at the story, and the transactions that are made in each.
const FRAME: Duration = Duration::from_millis(50);
const TRANSACTIONS: usize = 8;
/// Transactions that are made right before the kill, so that it does not find everybody idle.
const BURST: usize = 120;
/// How long a kill waits for work that it could interrupt.
const WORK_LIMIT: Duration = Duration::from_secs(5);
/// After this the keys of a killed relay are given to the other one.
const LEASE: Duration = Duration::from_secs(1);
const TOPIC: &str = "transfers";
const NO_RUNTIME: &str = "cannot start a runtime for the demo";

/// The facts that the topic and the table know.
#[derive(Debug, Serialize)]
pub(crate) struct OutboxFindings {
    #[serde(flatten)]
    rows: RowFindings,
    /// Events that the last audit did not find in the table or in the topic.
    unaccounted: u64,
}

impl DemoFindings for OutboxFindings {
    fn are_good(&self, ledger: &Account) -> bool {
        let rows = &self.rows;
        ledger.delivered == ledger.accepted
            && rows.missing + rows.unwanted + rows.out_of_order == 0
            && self.unaccounted == 0
    }

    fn lines(&self, ledger: &Account) -> Vec<String> {
        let rows = &self.rows;
        vec![
            format!(
                "transactions committed {}   rolled back {}   lost {}",
                rows.committed,
                rows.rolled_back,
                ledger.lost.total()
            ),
            format!(
                "in the topic: missing {}   of rolled back transactions {}   repeated {} (at least once)",
                rows.missing, rows.unwanted, rows.repeated
            ),
            match rows.out_of_order {
                0 => format!("order: kept for all {} keys", rows.keys),
                count => format!("order: {count} events came BEFORE an earlier one of their key"),
            },
            match self.unaccounted {
                0 => "audit of table and topic: every event is accounted for".to_owned(),
                count => format!("audit of table and topic: {count} events are NOT accounted for"),
            },
        ]
    }
}

/// A run of the demo.
pub(crate) struct OutboxStory {
    seed: u64,
    database: String,
    clock: Arc<dyn Clock>,
    began: Duration,
    store: Store,
    outbox: Outbox,
    log: EmbeddedLog,
    ledgers: Ledgers,
    relays: Vec<DemoProcess>,
    /// Events that the last audit did not find, and all of them together.
    unaccounted: u64,
    disagreements: u64,
    runtime: Handle,
    /// Kept until the end, and in this order: the database is in the directory.
    _process: DemoProcess,
    _dir: TempDir,
}

impl OutboxStory {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "outbox";

    /// The story with the transactions that follow from `seed`.
    pub(crate) fn new(seed: u64) -> Result<Self, ErrorReport> {
        let dir = tempfile::tempdir();
        let dir = dir.map_err(|error| failed("cannot make a directory for the demo", &error))?;
        let database = format!("sqlite://{}", dir.path().join("bank.db").display());
        let (process, runtime) = DemoProcess::new().map_err(|error| failed(NO_RUNTIME, &error))?;
        let env = Env::system();
        let (store, outbox, log) = runtime.block_on(async {
            let store = Store::open(&StoreOptions::new(&database), &env).await;
            let store = store.map_err(broken)?;
            tidegate_outbox::migrate(&store, &options())
                .await
                .map_err(broken)?;
            let outbox = Outbox::open(&store, options(), &env)
                .await
                .map_err(broken)?;
            let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir.path().join("log")));
            let log = log.map_err(broken)?;
            let made = log.create_topic(&topic(), TopicConfig::new(4)).await;
            made.map_err(broken)?;
            Ok::<_, ErrorReport>((store, outbox, log))
        })?;
        Ok(Self {
            seed,
            database,
            began: env.clock.elapsed(),
            clock: env.clock,
            store,
            outbox,
            log,
            ledgers: Ledgers::new(seed),
            relays: Vec::new(),
            unaccounted: 0,
            disagreements: 0,
            runtime,
            _process: process,
            _dir: dir,
        })
    }

    /// Makes so many transactions, each with one event. Some are taken back: theirs was never written.
    async fn transact(&mut self, count: usize) -> Result<(), ErrorReport> {
        for _ in 0..count {
            let (transfer, is_committed) = self.ledgers.next_transfer();
            let event = NewOutboxEvent::new(&transfer.key, "MoneyMoved", transfer.payload());
            let mut tx = self.store.begin().await.map_err(broken)?;
            let added = self.outbox.insert_in(&mut tx, &[event]).await;
            added.map_err(broken)?;
            match is_committed {
                true => tx.commit().await.map_err(broken)?,
                false => tx.rollback().await.map_err(broken)?,
            }
            self.ledgers.wrote(transfer, is_committed);
        }
        Ok(())
    }

    async fn frame(&mut self) -> Result<(), ErrorReport> {
        let next = self.clock.elapsed() + FRAME;
        self.transact(TRANSACTIONS).await?;
        let rest = next.saturating_sub(self.clock.elapsed());
        self.clock.sleep(rest).await;
        Ok(())
    }

    fn start(&mut self) -> Result<(), ErrorReport> {
        for name in ["relay-a", "relay-b"] {
            let (process, runtime) =
                DemoProcess::new().map_err(|error| failed(NO_RUNTIME, &error))?;
            let (database, log) = (self.database.clone(), Arc::new(self.log.clone()));
            runtime.spawn(async move {
                let env = Env::system().fork(name);
                // One that cannot work publishes nothing, and the verdict says so.
                if let Ok(store) = Store::open(&StoreOptions::new(&database), &env).await
                    && let Ok(outbox) = Outbox::open(&store, options(), &env).await
                {
                    // Nobody asks it to stop: it is killed.
                    let (_trigger, stop) = Shutdown::new();
                    Relay::new(outbox, log, &env).named(name).run(stop).await;
                }
            });
            self.relays.push(process);
        }
        Ok(())
    }

    /// One relay is gone without a word, with rows in its hands.
    fn kill(&mut self) -> Result<(), ErrorReport> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            self.transact(BURST).await?;
            let end = self.clock.elapsed() + WORK_LIMIT;
            while self.clock.elapsed() < end {
                let stats = self.outbox.stats().await.map_err(broken)?;
                if stats.claimed > 0 || stats.pending == 0 {
                    break;
                }
                self.clock.sleep(Duration::from_millis(1)).await;
            }
            Ok::<(), ErrorReport>(())
        })?;
        self.relays.truncate(1);
        Ok(())
    }

    /// Counts the table and the topic while everything goes on.
    async fn recount(&self) -> Result<u64, ErrorReport> {
        let log: Arc<dyn Log> = Arc::new(self.log.clone());
        let component = OutboxComponent::inspected(self.outbox.clone(), Some(log));
        let audited = component.audit().await.map_err(ErrorReport::from)?;
        Ok(audited.iter().map(|one| one.unaccounted).sum())
    }

    async fn account(&self) -> Result<Account, ErrorReport> {
        self.outbox.store().account().await.map_err(broken)
    }
}

impl Scene for OutboxStory {
    type Findings = OutboxFindings;

    const PHASES: &'static [DemoPhase<Self>] = &[
        DemoPhase::new("write", |_| Ok(()), 8),
        DemoPhase::new("relay", Self::start, 14),
        DemoPhase::new("kill", Self::kill, 10),
    ];
    const DRAIN_LIMIT: Duration = Duration::from_secs(60);

    fn now(&self) -> Duration {
        self.clock.elapsed().saturating_sub(self.began)
    }

    fn work(&mut self) -> Result<(), ErrorReport> {
        self.runtime.clone().block_on(self.frame())
    }

    fn wait(&mut self) -> Result<(), ErrorReport> {
        self.runtime
            .block_on(async { self.clock.sleep(FRAME).await });
        Ok(())
    }

    fn audit(&mut self) -> Result<(), ErrorReport> {
        self.unaccounted = self.runtime.block_on(self.recount())?;
        self.disagreements += self.unaccounted;
        Ok(())
    }

    fn look(&self) -> Result<(Account, DemoNote), ErrorReport> {
        let account = self.runtime.block_on(self.account())?;
        Ok((account, DemoNote::Relays(self.relays.len())))
    }

    fn is_at_rest(&self) -> Result<bool, ErrorReport> {
        let stats = self.runtime.block_on(self.outbox.stats());
        let stats = stats.map_err(broken)?;
        Ok(stats.pending + stats.claimed == 0)
    }

    fn end(self) -> Result<Ended<OutboxFindings>, ErrorReport> {
        let account = self.runtime.block_on(self.account())?;
        let published = self
            .runtime
            .block_on(witness::published(&self.log, &topic()));
        let rows = self.ledgers.findings(&published.map_err(broken)?);
        self.runtime.block_on(self.log.close());
        Ok(Ended {
            demo: Self::NAME,
            seed: self.seed,
            component: ComponentAccount {
                name: options().component(),
                kind: ComponentKind::Relay,
                account,
            },
            is_agreed: self.disagreements == 0,
            findings: OutboxFindings {
                rows,
                unaccounted: self.unaccounted,
            },
        })
    }
}

fn options() -> OutboxOptions {
    OutboxOptions {
        topic: Some(topic()),
        batch_size: 10,
        lease: LEASE,
        ..OutboxOptions::new("demo")
    }
}

fn topic() -> Topic {
    Topic::new(TOPIC).expect("a valid name")
}

fn failed(doing: &str, error: &std::io::Error) -> ErrorReport {
    ErrorReport::of("demo.failed", doing, error)
}

fn broken(error: impl Into<Failure>) -> ErrorReport {
    error.into().into()
}
