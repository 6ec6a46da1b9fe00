//! The story of a stage that waits: orders, their payments, seven days, and kills.
//!
//! The runtime itself runs here, on a simulated machine that dies again and again, so a week takes a moment. The log is on
//! another machine, as a broker would be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, AuditVerdict, ComponentAccount, ComponentKind};
use tidegate_core::env::Entropy;
use tidegate_core::{EventId, EventIds, Failure, Offset, Shutdown, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::{Append, Log, Read, Record, TopicConfig, TopicPartition};
use tidegate_sim::{Node, Sim, SimLog};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{Stage, StageBooks, StageOptions};

use super::engine::{DemoFindings, DemoNote, DemoPhase, Ended, Scene};
use crate::report::ErrorReport;

/// Time between two looks at the story.
const FRAME: Duration = Duration::from_secs(2 * 3_600);
/// Orders of one frame.
const ORDERS: u64 = 12;
/// Of so many orders, three are paid.
const OF: u64 = 4;
/// A payment comes within so many frames.
const PAID_WITHIN: u64 = 60;
const PARTITIONS: u32 = 3;
const FLOW: &str = "process orders_await_payments
    receive orders receive payments
    await orders until payments arrives matching on order timeout 7 days emit to unpaid
    emit to paid
    on error correlation failure emit to strays end
end";
const PROCESS: &str = "orders_await_payments";

/// The facts that the world around the stage knows.
#[derive(Debug, Serialize)]
pub(crate) struct AwaitFindings {
    /// Orders and payments that were sent.
    orders: u64,
    payments: u64,
    /// Orders that met their payment, and those that waited seven days.
    paid: u64,
    unpaid: u64,
    /// Outputs that came again.
    doubled: u64,
    /// Outputs that are not what was sent.
    wrong: u64,
    /// Times that the machine of the stage died.
    kills: u64,
}

impl DemoFindings for AwaitFindings {
    /// Every order has one end, and the right one.
    fn are_good(&self, ledger: &Account) -> bool {
        let is_whole = self.paid == self.payments && self.paid + self.unpaid == self.orders;
        is_whole && self.doubled + self.wrong == 0 && ledger.delivered == ledger.accepted
    }

    fn lines(&self, ledger: &Account) -> Vec<String> {
        vec![
            format!(
                "orders {}   paid {}   unpaid after seven days {}   the machine died {} times",
                self.orders, self.paid, self.unpaid, self.kills
            ),
            format!(
                "doubled {}   wrong {}   lost {}",
                self.doubled,
                self.wrong,
                ledger.lost.total()
            ),
        ]
    }
}

/// A run of the demo.
pub(crate) struct AwaitStory {
    seed: u64,
    sim: Sim,
    broker: Node,
    worker: Node,
    log: SimLog,
    plan: Arc<FlowPlan>,
    entropy: Box<dyn Entropy>,
    ids: EventIds,
    /// Orders by their numbers; whether they are paid.
    orders: BTreeMap<u64, bool>,
    /// The payments that come in a frame.
    coming: BTreeMap<u64, Vec<u64>>,
    frame: u64,
    /// Kills of each frame, at most.
    kills_at_once: u64,
    kills: u64,
    takes_orders: bool,
    account: Account,
    disagreements: usize,
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap_or_else(|_| unreachable!("a valid name"))
}

impl AwaitStory {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "await";

    /// The story that follows from `seed`.
    ///
    /// # Errors
    /// The simulated log does not answer.
    pub(crate) fn new(seed: u64) -> Result<Self, ErrorReport> {
        let mut sim = Sim::new(seed);
        let (broker, worker) = (sim.node("broker"), sim.node("worker"));
        let env = broker.env();
        let (log, entropy) = (SimLog::new(&env), env.entropy.fork("story"));
        let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
        let plan = check_flows(&[FLOW], &Registered::default()).plan;
        let plan = plan.unwrap_or_else(|| unreachable!("the flow of the demo is right"));
        let made = log.clone();
        sim.block_on(&broker, async move {
            for name in ["orders", "payments"] {
                made.create_topic(&topic(name), TopicConfig::new(PARTITIONS))
                    .await?;
            }
            Ok::<(), Failure>(())
        })?;
        let mut story = Self {
            seed,
            sim,
            broker,
            worker,
            log,
            plan: Arc::new(plan),
            entropy,
            ids,
            orders: BTreeMap::new(),
            coming: BTreeMap::new(),
            frame: 0,
            kills_at_once: 0,
            kills: 0,
            takes_orders: true,
            account: Account::default(),
            disagreements: 0,
        };
        story.start()?;
        Ok(story)
    }

    fn options() -> StageOptions {
        let mut options =
            StageOptions::new(PROCESS).unwrap_or_else(|_| unreachable!("a valid name"));
        options.epoch_interval = Some(Duration::from_secs(1));
        options
    }

    fn books(&self) -> Result<StageBooks, Failure> {
        let log: Arc<dyn Log> = Arc::new(self.log.clone());
        let plan = Arc::clone(&self.plan);
        StageBooks::new(log, &self.broker.env(), plan, Self::options())
    }

    fn start(&mut self) -> Result<(), ErrorReport> {
        let functions = Arc::new(RegisteredFunctions::default());
        let log: Arc<dyn Log> = Arc::new(self.log.clone());
        let (plan, env) = (Arc::clone(&self.plan), self.worker.env());
        let stage = Stage::new(plan, Self::options(), functions, log, &env)?;
        drop(self.worker.start("stage", async move {
            let (_trigger, stop) = Shutdown::new();
            stage.run(stop).await.ok();
            std::future::pending::<()>().await;
        }));
        Ok(())
    }

    fn begin(&mut self, takes_orders: bool, kills: u64) -> Result<(), ErrorReport> {
        (self.takes_orders, self.kills_at_once) = (takes_orders, kills);
        Ok(())
    }

    /// Sends the orders and payments of a frame.
    fn send(&mut self) -> Result<(), ErrorReport> {
        self.frame += 1;
        let mut appends = Vec::new();
        let mut append = |stream: &str, number: u64, id: EventId| {
            let value = format!(
                "{{\"order\":\"o{number}\",\"amount\":{}}}",
                number % 90 + 10
            );
            let record = Record::new(value).key(format!("o{number}")).event_id(id);
            appends.push(Append::new(topic(stream), record));
        };
        for number in self.coming.remove(&self.frame).unwrap_or_default() {
            append("payments", number, self.ids.mint());
        }
        for _ in 0..ORDERS {
            if !self.takes_orders {
                break;
            }
            let number = self.orders.len() as u64;
            let is_paid = self.entropy.below(OF) > 0;
            self.orders.insert(number, is_paid);
            append("orders", number, self.ids.mint());
            if is_paid {
                let at = self.frame + 1 + self.entropy.below(PAID_WITHIN);
                self.coming.entry(at).or_default().push(number);
            }
        }
        let log = self.log.clone();
        let sent = async move { log.append(appends).await.map(drop) };
        Ok(self
            .sim
            .block_on(&self.broker, sent)
            .map_err(Failure::from)?)
    }

    /// Lets a frame pass, in which the machine dies at some moments.
    fn pass(&mut self) -> Result<(), ErrorReport> {
        let end = self.sim.now() + FRAME;
        for _ in 0..self.entropy.below(self.kills_at_once + 1) {
            let left = end.saturating_sub(self.sim.now());
            // Most of the work is done in the first seconds behind new records.
            let longest = match self.entropy.below(3) {
                0 => u64::try_from(left.as_millis()).unwrap_or(1),
                _ => 3_000,
            };
            self.sim
                .run_for(Duration::from_millis(self.entropy.below(longest.max(1))));
            self.sim.crash(&self.worker);
            self.sim.restart(&self.worker);
            self.start()?;
            self.kills += 1;
        }
        self.sim.run_for(end.saturating_sub(self.sim.now()));
        let books = self.books()?;
        let accounts = async move { books.accounts().await };
        let accounts = self.sim.block_on(&self.broker, accounts)?;
        let none = Account::default();
        self.account = accounts
            .iter()
            .fold(none, |sum, one| sum.plus(&one.account));
        Ok(())
    }

    /// The orders that a stream has, each with how often.
    fn written(&mut self, stream: &'static str) -> Result<BTreeMap<String, u64>, ErrorReport> {
        let log = self.log.clone();
        let reading = async move {
            let mut found: BTreeMap<String, u64> = BTreeMap::new();
            for partition in 0..PARTITIONS {
                let at = TopicPartition::new(topic(stream), i32::try_from(partition).unwrap_or(0));
                let read = Read {
                    max_records: usize::MAX,
                    max_bytes: usize::MAX,
                    ..Read::new(at, Offset(0))
                };
                for stored in log.read(read).await?.records {
                    let key = stored.record.key.unwrap_or_default();
                    let key = String::from_utf8_lossy(&key).into_owned();
                    *found.entry(key).or_default() += 1;
                }
            }
            Ok::<_, Failure>(found)
        };
        Ok(self.sim.block_on(&self.broker, reading)?)
    }
}

impl Scene for AwaitStory {
    type Findings = AwaitFindings;

    const PHASES: &'static [DemoPhase<Self>] = &[
        DemoPhase::new("orders", |story| story.begin(true, 0), 24),
        DemoPhase::new("kills", |story| story.begin(true, 3), 36),
        DemoPhase::new("no orders", |story| story.begin(false, 1), 24),
        DemoPhase::new("timeouts", |story| story.begin(false, 3), 60),
    ];
    const DRAIN_LIMIT: Duration = Duration::from_secs(30 * 86_400);

    fn now(&self) -> Duration {
        self.sim.now()
    }

    fn work(&mut self) -> Result<(), ErrorReport> {
        self.send()?;
        self.pass()
    }

    fn wait(&mut self) -> Result<(), ErrorReport> {
        self.kills_at_once = 0;
        self.work()
    }

    fn audit(&mut self) -> Result<(), ErrorReport> {
        let books = self.books()?;
        let audited = async move { books.audit().await };
        let audited = self.sim.block_on(&self.broker, audited)?;
        let is_wrong = |verdict| verdict != AuditVerdict::Clean;
        self.disagreements += audited.iter().filter(|one| is_wrong(one.verdict())).count();
        Ok(())
    }

    fn look(&self) -> Result<(Account, DemoNote), ErrorReport> {
        let kills = usize::try_from(self.kills).unwrap_or(usize::MAX);
        Ok((self.account.clone(), DemoNote::Kills(kills)))
    }

    fn is_at_rest(&self) -> Result<bool, ErrorReport> {
        let Account { queued, parked, .. } = self.account;
        Ok(self.coming.is_empty() && queued == 0 && parked == 0)
    }

    fn end(mut self) -> Result<Ended<AwaitFindings>, ErrorReport> {
        let (paid, unpaid) = (self.written("paid")?, self.written("unpaid")?);
        let strays = self.written("strays")?;
        let names = |is_paid: bool| {
            let orders = self.orders.iter().filter(|(_, paid)| **paid == is_paid);
            orders
                .map(|(number, _)| format!("o{number}"))
                .collect::<BTreeSet<String>>()
        };
        let wrong = |found: &BTreeMap<String, u64>, expected: &BTreeSet<String>| {
            let keys: BTreeSet<String> = found.keys().cloned().collect();
            keys.symmetric_difference(expected).count() as u64
        };
        let again =
            |found: &BTreeMap<String, u64>| found.values().map(|count| count - 1).sum::<u64>();
        let findings = AwaitFindings {
            orders: self.orders.len() as u64,
            payments: names(true).len() as u64,
            paid: paid.len() as u64,
            unpaid: unpaid.len() as u64,
            doubled: again(&paid) + again(&unpaid),
            wrong: wrong(&paid, &names(true)) + wrong(&unpaid, &names(false)) + strays.len() as u64,
            kills: self.kills,
        };
        self.sim.crash(&self.worker);
        Ok(Ended {
            demo: Self::NAME,
            seed: self.seed,
            component: ComponentAccount {
                name: Self::NAME.to_owned(),
                kind: ComponentKind::Demo,
                account: self.account,
            },
            is_agreed: self.disagreements == 0,
            findings,
        })
    }
}
