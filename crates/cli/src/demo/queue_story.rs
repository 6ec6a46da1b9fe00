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
use tidegate_core::books::{Account, ComponentAccount, ComponentKind, Ledger};
use tidegate_core::env::{Clock, Env};
use tidegate_queue::Queue;
use tidegate_queue::sql::{COMPONENT, TallyRow, read_tally};
use tidegate_store::{Store, StoreOptions};

use self::process::Process;
use self::shop::{OrderPlaced, Shop, World};
use super::{Ending, Frame, Tale};
use crate::report::Report;
use crate::{store, table};

/// Time between two looks at the story.
const FRAME: Duration = Duration::from_millis(50);
/// Orders that are placed in each of them.
const ORDERS: usize = 6;
/// The story ends at the latest after this; everything is handled long before.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// How long a kill waits for work that it could interrupt.
const WORK_LIMIT: Duration = Duration::from_secs(5);
/// The read model: how many orders of each customer were completed.
const TALLY: &str = "orders_by_customer";

/// What happens when a phase begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// Orders are placed, and nobody handles them yet.
    Nothing,
    /// A dispatcher starts.
    Start,
    /// It is gone without a word, with events in its hands.
    Kill,
    /// Another one takes its place.
    Restart,
}

struct Phase {
    name: &'static str,
    frames: usize,
    begins_with: Event,
}

const PHASES: [Phase; 4] = [
    Phase {
        name: "publish",
        frames: 10,
        begins_with: Event::Nothing,
    },
    Phase {
        name: "handle",
        frames: 14,
        begins_with: Event::Start,
    },
    Phase {
        name: "kill",
        frames: 10,
        begins_with: Event::Kill,
    },
    Phase {
        name: "restart",
        frames: 12,
        begins_with: Event::Restart,
    },
];

/// How many phases there are, the last one being the verdict.
const COUNT: usize = PHASES.len() + 1;

/// How a phase ended.
#[derive(Debug, Serialize)]
struct PhaseEnd {
    name: &'static str,
    ended_at_ms: u64,
    dispatchers: usize,
    account: Account,
}

/// How the story ended.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    demo: &'static str,
    /// Places the same orders again: `tidegate demo queue --seed`.
    seed: String,
    phases: Vec<PhaseEnd>,
    ledger: Account,
    balanced: bool,
    /// Orders whose transaction was committed.
    placed: usize,
    /// Orders whose transaction was taken back, none of which may ever be handled.
    rolled_back: usize,
    /// Orders that were placed and not handled, or were handled and never placed.
    missing: usize,
    /// Times that a handler was called again after it had succeeded.
    duplicates: u64,
    /// Calls that failed and were tried again.
    retried: u64,
    /// Orders that a handler refused for good.
    refused: usize,
    /// Payments that were published twice for one order.
    doubled: usize,
    /// Customers whose orders the read model has counted wrong.
    miscounted: usize,
    /// What the last audit did not find in the tables.
    unaccounted: u64,
}

impl Ending for Verdict {
    /// Balanced, nothing lost, every order handled as it should be, and the read model right.
    fn is_good(&self) -> bool {
        let ended = self.ledger.delivered + self.ledger.dead_lettered;
        self.balanced
            && self.ledger.lost.total() == 0
            && ended == self.ledger.accepted
            && self.missing + self.doubled + self.miscounted == 0
            && self.unaccounted == 0
    }

    fn lines(&self) -> Vec<String> {
        vec![
            table::equation(&self.ledger),
            format!(
                "orders placed {}   rolled back {}   refused {}   handled wrong {}   lost {}",
                self.placed,
                self.rolled_back,
                self.refused,
                self.missing,
                self.ledger.lost.total()
            ),
            format!(
                "calls retried {}   repeated after the kill {} (at least once)   payments doubled {}",
                self.retried, self.duplicates, self.doubled
            ),
            match self.miscounted {
                0 => "read model: every completed order is in it once".to_owned(),
                count => format!("read model: {count} customers are counted WRONG"),
            },
            match self.unaccounted {
                0 => "audit of the tables: every event is accounted for".to_owned(),
                count => format!("audit of the tables: {count} events are NOT accounted for"),
            },
        ]
    }

    fn again(&self) -> String {
        format!("tidegate demo queue --seed {}", self.seed)
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
    type Verdict = Verdict;

    fn run(self, show: impl FnMut(&Frame)) -> Result<Verdict, Report> {
        let failed = |doing, error: std::io::Error| Report::of("demo.failed", doing, &error);
        let dir = tempfile::tempdir()
            .map_err(|error| failed("cannot make a directory for the demo", error))?;
        let runtime = process::runtime()
            .map_err(|error| failed("cannot start a runtime for the demo", error))?;
        let database = format!("sqlite://{}", dir.path().join("orders.db").display());
        let told = runtime.block_on(async {
            let mut telling = Telling::begin(self.seed, &database).await?;
            telling.tell(show).await
        });
        runtime.shutdown_background();
        told
    }
}

struct Telling {
    seed: u64,
    database: String,
    clock: Arc<dyn Clock>,
    began: Duration,
    queue: Queue,
    shop: Shop,
    world: World,
    process: Option<Process>,
    /// Audits that found something.
    disagreements: u64,
}

impl Telling {
    async fn begin(seed: u64, database: &str) -> Result<Self, Report> {
        let env = Env::system();
        let queue = open(database, &env).await?.named("shop");
        Ok(Self {
            seed,
            database: database.to_owned(),
            began: env.clock.elapsed(),
            clock: env.clock,
            queue,
            shop: Shop::new(seed),
            world: World::default(),
            process: None,
            disagreements: 0,
        })
    }

    async fn tell(&mut self, mut show: impl FnMut(&Frame)) -> Result<Verdict, Report> {
        let mut phases = Vec::new();
        for (index, phase) in PHASES.iter().enumerate() {
            self.happen(phase.begins_with).await?;
            for _ in 0..phase.frames {
                self.place_orders().await?;
                show(&self.frame(phase.name, index + 1).await?);
            }
            self.audit().await?;
            phases.push(self.phase_end(phase.name).await?);
        }
        let end = self.clock.elapsed() + DRAIN_LIMIT;
        while !self.is_at_rest().await? && self.clock.elapsed() < end {
            self.clock.sleep(FRAME).await;
            show(&self.frame("verdict", COUNT).await?);
        }
        phases.push(self.phase_end("verdict").await?);
        self.verdict(phases).await
    }

    async fn happen(&mut self, event: Event) -> Result<(), Report> {
        match event {
            Event::Nothing => {}
            Event::Kill => {
                self.order().await?;
                self.wait_for_work().await?;
                self.process = None;
            }
            Event::Start | Event::Restart => {
                let name = match event {
                    Event::Restart => "second",
                    Event::Nothing | Event::Start | Event::Kill => "first",
                };
                let process = Process::start(name, &self.database, self.seed, &self.world);
                self.process = Some(process.map_err(|error| {
                    Report::of("demo.failed", "cannot start a runtime for the demo", &error)
                })?);
            }
        }
        Ok(())
    }

    /// So that a kill does not find everybody idle.
    async fn wait_for_work(&self) -> Result<(), Report> {
        let end = self.clock.elapsed() + WORK_LIMIT;
        while self.account().await?.in_flight == 0 && self.clock.elapsed() < end {
            self.clock.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Places a few orders, each in a transaction of its own.
    async fn order(&mut self) -> Result<(), Report> {
        for _ in 0..ORDERS {
            let order = self.shop.next_order();
            let placed = place(&self.queue, &order).await;
            self.world.ordered(order, placed.map_err(broken)?);
        }
        Ok(())
    }

    /// Places what comes in during one frame.
    async fn place_orders(&mut self) -> Result<(), Report> {
        let next = self.clock.elapsed() + FRAME;
        self.order().await?;
        let rest = next.saturating_sub(self.clock.elapsed());
        self.clock.sleep(rest).await;
        Ok(())
    }

    async fn account(&self) -> Result<Account, Report> {
        self.queue.account().await.map_err(broken)
    }

    /// Everything was handled, and the read model has read all of it.
    async fn is_at_rest(&self) -> Result<bool, Report> {
        let queues = self.queue.store();
        // The end of the log first: what has a position by then is what the lag is measured by.
        let head = queues.read_log(0, 1).await.map_err(broken)?.head;
        let stats = queues.stats().await.map_err(broken)?;
        let is_ordered = u64::try_from(head).is_ok_and(|head| head >= stats.finalized);
        let is_read = !stats.lag.is_empty() && stats.lag.values().all(|lag| *lag == 0);
        Ok(stats.pending + stats.processing == 0 && is_ordered && is_read)
    }

    async fn frame(&self, phase: &'static str, number: usize) -> Result<Frame, Report> {
        Ok(Frame {
            phase,
            number,
            phases: COUNT,
            at: self.clock.elapsed().saturating_sub(self.began),
            account: self.account().await?,
            note: format!("dispatchers {}", self.dispatchers()),
        })
    }

    fn dispatchers(&self) -> usize {
        usize::from(self.process.is_some())
    }

    async fn phase_end(&self, name: &'static str) -> Result<PhaseEnd, Report> {
        let ended = self.clock.elapsed().saturating_sub(self.began);
        Ok(PhaseEnd {
            name,
            ended_at_ms: u64::try_from(ended.as_millis()).unwrap_or(u64::MAX),
            dispatchers: self.dispatchers(),
            account: self.account().await?,
        })
    }

    /// Counts the tables while everything goes on.
    async fn audit(&mut self) -> Result<u64, Report> {
        let recount = self.queue.store().recount().await.map_err(broken)?;
        self.disagreements += recount.unaccounted();
        Ok(recount.unaccounted())
    }

    async fn verdict(&mut self, phases: Vec<PhaseEnd>) -> Result<Verdict, Report> {
        let unaccounted = self.audit().await?;
        let ledger = self.account().await?;
        let tallied = read_tally(&self.queue, TALLY).await.map_err(broken)?;
        let whole = ComponentAccount {
            name: COMPONENT.to_owned(),
            kind: ComponentKind::Queue,
            account: ledger.clone(),
        };
        let findings = self.world.findings(&tallied);
        Ok(Verdict {
            demo: QueueStory::NAME,
            seed: format!("{:#x}", self.seed),
            phases,
            balanced: self.disagreements == 0 && Ledger::new(vec![whole]).balanced,
            ledger,
            placed: findings.placed,
            rolled_back: findings.rolled_back,
            missing: findings.missing,
            duplicates: findings.duplicates,
            retried: findings.retried,
            refused: findings.refused,
            doubled: findings.doubled,
            miscounted: findings.miscounted,
            unaccounted,
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

async fn open(database: &str, env: &Env) -> Result<Queue, Report> {
    let opening = async {
        let store = Store::open(&StoreOptions::new(database), env).await?;
        Queue::open(store, env).await
    };
    opening.await.map_err(broken)
}

fn broken(error: tidegate_queue::QueueError) -> Report {
    store::report("of the demo", &error)
}
