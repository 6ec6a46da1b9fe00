//! The story of the queue: orders in a database, and a dispatcher that is killed.
//!
//! It is the queue itself that runs here, on SQLite in a directory that is gone afterwards, in real
//! time. The dispatcher has a runtime of its own, with connections of its own, as another process
//! would: when that is shut down, everything in it stops where it is, and nothing is given back. The
//! seed decides which orders are placed and which fail; when they are handled is up to the machine.

mod process;
mod shop;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, ComponentAccount, ComponentKind};
use tidegate_core::env::{Clock, Env};
use tidegate_queue::Queue;
use tidegate_queue::sql::{COMPONENT, TallyRow, read_tally};
use tidegate_store::{Store, StoreOptions};
use tokio::runtime::Handle;

use self::process::DemoProcess;
use self::shop::{OrderFindings, OrderPlaced, Shop, ShopWitness};
use super::engine::{DemoFindings, DemoNote, DemoPhase, DemoVerdict, Ended, Scene};
use super::{DemoFrame, Tale};
use crate::report::ErrorReport;
use crate::store;

/// Time between two looks at the story.
const FRAME: Duration = Duration::from_millis(50);
/// Orders that are placed in each of them.
const ORDERS: usize = 6;
/// How long a kill waits for work that it could interrupt.
const WORK_LIMIT: Duration = Duration::from_secs(5);
/// The read model: how many orders of each customer were completed.
const TALLY: &str = "orders_by_customer";

/// What happens when a phase begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueStoryEvent {
    /// Orders are placed, and nobody handles them yet.
    Nothing,
    /// A dispatcher starts.
    Start,
    /// It is gone without a word, with events in its hands.
    Kill,
    /// Another one takes its place.
    Restart,
}

/// What the world around the queue, and its tables, know.
#[derive(Debug, Serialize)]
pub(crate) struct QueueFindings {
    #[serde(flatten)]
    orders: OrderFindings,
    /// What the last audit did not find in the tables.
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
}

impl QueueStory {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "queue";

    /// The story with the orders that follow from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Tale for QueueStory {
    type Verdict = DemoVerdict<QueueFindings>;

    fn run(self, show: impl FnMut(&DemoFrame)) -> Result<Self::Verdict, ErrorReport> {
        let failed = |doing, error: std::io::Error| ErrorReport::of("demo.failed", doing, &error);
        let dir = tempfile::tempdir()
            .map_err(|error| failed("cannot make a directory for the demo", error))?;
        let runtime = process::runtime()
            .map_err(|error| failed("cannot start a runtime for the demo", error))?;
        let database = format!("sqlite://{}", dir.path().join("orders.db").display());
        let handle = runtime.handle().clone();
        let began = runtime.block_on(Telling::begin(self.seed, &database, handle));
        let told = began.and_then(|telling| telling.run(show));
        runtime.shutdown_background();
        told
    }
}

struct Telling {
    /// Runs what the queue does for us.
    runtime: Handle,
    seed: u64,
    database: String,
    clock: Arc<dyn Clock>,
    began: Duration,
    queue: Queue,
    shop: Shop,
    world: ShopWitness,
    process: Option<DemoProcess>,
    /// What the last audit did not find, and all of them together.
    unaccounted: u64,
    disagreements: u64,
}

impl Telling {
    async fn begin(seed: u64, database: &str, runtime: Handle) -> Result<Self, ErrorReport> {
        let env = Env::system();
        let queue = open(database, &env).await?.named("shop");
        Ok(Self {
            runtime,
            seed,
            database: database.to_owned(),
            began: env.clock.elapsed(),
            clock: env.clock,
            queue,
            shop: Shop::new(seed),
            world: ShopWitness::default(),
            process: None,
            unaccounted: 0,
            disagreements: 0,
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

    /// Places what comes in during one frame.
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
        let failed = "cannot start a runtime for the demo";
        let started = started.map_err(|error| ErrorReport::of("demo.failed", failed, &error));
        self.process = Some(started?);
        Ok(())
    }
}

impl Scene for Telling {
    type Event = QueueStoryEvent;
    type Findings = QueueFindings;

    const PHASES: &'static [DemoPhase<QueueStoryEvent>] = &[
        DemoPhase::new("publish", QueueStoryEvent::Nothing, 10),
        DemoPhase::new("handle", QueueStoryEvent::Start, 14),
        DemoPhase::new("kill", QueueStoryEvent::Kill, 10),
        DemoPhase::new("restart", QueueStoryEvent::Restart, 12),
    ];
    const DRAIN_LIMIT: Duration = Duration::from_secs(60);

    fn now(&self) -> Duration {
        self.clock.elapsed().saturating_sub(self.began)
    }

    fn happen(&mut self, event: QueueStoryEvent) -> Result<(), ErrorReport> {
        match event {
            QueueStoryEvent::Nothing => Ok(()),
            QueueStoryEvent::Start => self.start("first"),
            QueueStoryEvent::Restart => self.start("second"),
            QueueStoryEvent::Kill => {
                let runtime = self.runtime.clone();
                runtime.block_on(self.order())?;
                runtime.block_on(self.wait_for_work())?;
                self.process = None;
                Ok(())
            }
        }
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
        let dispatchers = usize::from(self.process.is_some());
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
            demo: QueueStory::NAME,
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

fn broken(error: tidegate_queue::QueueError) -> ErrorReport {
    store::report("of the demo", &error)
}
