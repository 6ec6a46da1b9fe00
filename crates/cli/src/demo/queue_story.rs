//! The story of the queue: orders in a database, and a dispatcher that is killed.
//!
//! It is the queue itself that runs here, on SQLite in a directory that is gone afterwards, in real
//! time. The dispatcher has a runtime of its own, with connections of its own, as another process
//! would. When that is shut down, everything in it stops where it is, and nothing is given back. The
//! seed decides which orders are placed and which fail; when they are handled is up to the machine.

mod process;
mod shop;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use tidegate_core::books::{Account, ComponentAccount, ComponentKind};
use tidegate_core::env::{Clock, Env};
use tidegate_queue::Queue;
use tidegate_queue::sql::{COMPONENT, TallyRow, read_tally};
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Handle;

pub(super) use self::process::DemoProcess;
use self::shop::{OrderFindings, OrderPlaced, Shop, ShopWitness};
use super::engine::{DemoFindings, DemoNote, DemoPhase, Ended, Scene};
use crate::report::ErrorReport;
use crate::store;

/// Time between two looks at the story.
const FRAME: Duration = Duration::from_millis(50);
/// Orders that are placed in each of them.
const ORDERS: usize = 6;
/// How long a kill waits for work that it could interrupt.
const WORK_LIMIT: Duration = Duration::from_secs(5);
const NO_RUNTIME: &str = "cannot start a runtime for the demo";
/// The read model: how many orders of each customer were completed.
const TALLY: &str = "orders_by_customer";

/// The facts that the world around the queue, and its tables, know.
#[derive(Debug, Serialize)]
pub(crate) struct QueueFindings {
    #[serde(flatten)]
    orders: OrderFindings,
    /// Events that the last audit did not find in the tables.
    unaccounted: u64,
}

impl DemoFindings for QueueFindings {
    /// Every order was handled as it should be, and the read model is right.
    fn are_good(&self, ledger: &Account) -> bool {
        let orders = &self.orders;
        ledger.delivered + ledger.dead_lettered == ledger.accepted
            && orders.missing + orders.doubled + orders.miscounted == 0
            && self.unaccounted == 0
    }

    fn lines(&self, ledger: &Account) -> Vec<String> {
        let orders = &self.orders;
        vec![
            format!(
                "orders placed {}   rolled back {}   refused {}   handled wrong {}   lost {}",
                orders.placed,
                orders.rolled_back,
                orders.refused,
                orders.missing,
                ledger.lost.total()
            ),
            format!(
                "calls retried {}   repeated after the kill {} (at least once)   payments doubled {}",
                orders.retried, orders.duplicates, orders.doubled
            ),
            match orders.miscounted {
                0 => "read model: every completed order is in it once".to_owned(),
                count => format!("read model: {count} customers are counted WRONG"),
            },
            match self.unaccounted {
                0 => "audit of the tables: every event is accounted for".to_owned(),
                count => format!("audit of the tables: {count} events are NOT accounted for"),
            },
        ]
    }
}

/// A run of the demo.
pub(crate) struct QueueStory {
    seed: u64,
    database: String,
    clock: Arc<dyn Clock>,
    began: Duration,
    queue: Queue,
    shop: Shop,
    world: ShopWitness,
    dispatcher: Option<DemoProcess>,
    /// Events that the last audit did not find, and all of them together.
    unaccounted: u64,
    disagreements: u64,
    /// Runs the shop and its side of the queue.
    runtime: Handle,
    /// Kept until the end, and in this order: the database is in the directory.
    _process: DemoProcess,
    _dir: TempDir,
}

impl QueueStory {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "queue";

    /// The story with the orders that follow from `seed`.
    pub(crate) fn new(seed: u64) -> Result<Self, ErrorReport> {
        let dir = tempfile::tempdir();
        let dir = dir.map_err(|error| failed("cannot make a directory for the demo", &error))?;
        let database = format!("sqlite://{}", dir.path().join("orders.db").display());
        let (process, runtime) = DemoProcess::new().map_err(|error| failed(NO_RUNTIME, &error))?;
        let env = Env::system();
        let queue = runtime.block_on(open(&database, &env))?.named("shop");
        Ok(Self {
            seed,
            database,
            began: env.clock.elapsed(),
            clock: env.clock,
            queue,
            shop: Shop::new(seed),
            world: ShopWitness::default(),
            dispatcher: None,
            unaccounted: 0,
            disagreements: 0,
            runtime,
            _process: process,
            _dir: dir,
        })
    }

    /// So that a kill does not find everybody idle.
    async fn wait_for_work(&self) -> Result<(), ErrorReport> {
        let end = self.clock.elapsed() + WORK_LIMIT;
        while self.account().await?.in_flight == 0 && self.clock.elapsed() < end {
            self.clock.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Places a few orders, each in a transaction of its own.
    async fn order(&mut self) -> Result<(), ErrorReport> {
        for _ in 0..ORDERS {
            let order = self.shop.next_order();
            let placed = place(&self.queue, &order).await;
            self.world.ordered(order, placed.map_err(broken)?);
        }
        Ok(())
    }

    /// Places the orders of one frame.
    async fn place_orders(&mut self) -> Result<(), ErrorReport> {
        let next = self.clock.elapsed() + FRAME;
        self.order().await?;
        let rest = next.saturating_sub(self.clock.elapsed());
        self.clock.sleep(rest).await;
        Ok(())
    }

    async fn account(&self) -> Result<Account, ErrorReport> {
        self.queue.account().await.map_err(broken)
    }

    /// Everything was handled, and the read model has read all of it.
    async fn is_all_read(&self) -> Result<bool, ErrorReport> {
        let queues = self.queue.store();
        // The end of the log first: what has a position by then is what the lag is measured by.
        let head = queues.read_log(0, 1).await.map_err(broken)?.head;
        let stats = queues.stats().await.map_err(broken)?;
        let is_ordered = u64::try_from(head).is_ok_and(|head| head >= stats.finalized);
        let is_read = !stats.lag.is_empty() && stats.lag.values().all(|lag| *lag == 0);
        Ok(stats.pending + stats.processing == 0 && is_ordered && is_read)
    }

    /// Counts the tables while everything goes on.
    async fn recount(&self) -> Result<u64, ErrorReport> {
        let recount = self.queue.store().recount().await.map_err(broken)?;
        Ok(recount.unaccounted())
    }

    fn start(&mut self, name: &str) -> Result<(), ErrorReport> {
        let started = DemoProcess::start(name, &self.database, self.seed, &self.world);
        self.dispatcher = Some(started.map_err(|error| failed(NO_RUNTIME, &error))?);
        Ok(())
    }

    /// The dispatcher is gone without a word, with events in its hands.
    fn kill(&mut self) -> Result<(), ErrorReport> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.order())?;
        runtime.block_on(self.wait_for_work())?;
        self.dispatcher = None;
        Ok(())
    }
}

impl Scene for QueueStory {
    type Findings = QueueFindings;

    const PHASES: &'static [DemoPhase<Self>] = &[
        DemoPhase::new("publish", |_| Ok(()), 10),
        DemoPhase::new("handle", |story| story.start("first"), 14),
        DemoPhase::new("kill", Self::kill, 10),
        DemoPhase::new("restart", |story| story.start("second"), 12),
    ];
    const DRAIN_LIMIT: Duration = Duration::from_secs(60);

    fn now(&self) -> Duration {
        self.clock.elapsed().saturating_sub(self.began)
    }

    fn work(&mut self) -> Result<(), ErrorReport> {
        self.runtime.clone().block_on(self.place_orders())
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
        let dispatchers = usize::from(self.dispatcher.is_some());
        let account = self.runtime.block_on(self.account())?;
        Ok((account, DemoNote::Dispatchers(dispatchers)))
    }

    fn is_at_rest(&self) -> Result<bool, ErrorReport> {
        self.runtime.block_on(self.is_all_read())
    }

    fn end(self) -> Result<Ended<QueueFindings>, ErrorReport> {
        let account = self.runtime.block_on(self.account())?;
        let tallied = self.runtime.block_on(read_tally(&self.queue, TALLY));
        let orders = self.world.findings(&tallied.map_err(broken)?);
        Ok(Ended {
            demo: Self::NAME,
            seed: self.seed,
            component: ComponentAccount {
                name: COMPONENT.to_owned(),
                kind: ComponentKind::Queue,
                account,
            },
            is_agreed: self.disagreements == 0,
            findings: QueueFindings {
                orders,
                unaccounted: self.unaccounted,
            },
        })
    }
}

/// Publishes an order in a transaction, and says whether it was committed. The shop changes its mind
/// about some of them: those were never published.
async fn place(queue: &Queue, order: &OrderPlaced) -> Result<bool, tidegate_queue::QueueError> {
    let mut tx = queue.begin().await?;
    let (_, wake) = queue.publish_in(&mut tx, order).await?;
    if order.is_withdrawn() {
        tx.rollback().await?;
        return Ok(false);
    }
    tx.commit().await?;
    wake.wake();
    Ok(true)
}

async fn open(database: &str, env: &Env) -> Result<Queue, ErrorReport> {
    let opening = async {
        let store = Store::open(&StoreOptions::new(database), env).await?;
        Queue::open(store, env).await
    };
    opening.await.map_err(broken)
}

fn failed(doing: &str, error: &std::io::Error) -> ErrorReport {
    ErrorReport::of("demo.failed", doing, error)
}

fn broken(error: tidegate_queue::QueueError) -> ErrorReport {
    store::report("of the demo", &error)
}
