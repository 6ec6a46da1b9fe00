//! The story of poison: records that no handler can handle, an outage, and a consumer that is killed.
//!
//! It is the connector itself that runs here, on the model of a log and in simulated time. So half an hour of
//! retries takes a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_connector::{
    Binding, BindingOptions, BoundHandler, Connector, HandlerAnswer, TierOptions,
};
use tidegate_core::books::{Account, Books, ComponentAccount, ComponentKind};
use tidegate_core::env::{Entropy, Env};
use tidegate_core::{Code, EventId, EventIds, Failure, Mutex, Offset, TierIndex};
use tidegate_log::{Append, Log, Read, Record, TopicConfig, TopicPartition};
use tidegate_sim::{Node, Sim, SimLog};

use super::engine::{DemoFindings, DemoNote, DemoPhase, Ended, Scene};
use crate::report::ErrorReport;

/// Time between two looks at the story.
const FRAME: Duration = Duration::from_millis(500);
/// Events per second.
const RATE: u64 = 40;
const PARTITIONS: i32 = 4;
const BINDING: &str = "shipping";

/// The facts that the world around the binding knows.
#[derive(Debug, Serialize)]
pub(crate) struct PoisonFindings {
    /// Events that were sent.
    sent: usize,
    /// Of those, events that the handler could not handle, whatever was tried.
    poison: usize,
    /// Dead letters.
    dead_letters: usize,
    /// Events that were neither handled nor are a dead letter.
    missing: usize,
    /// Good events among the dead letters.
    wrongly_dead: usize,
    /// Times that an event was handled again.
    duplicates: u64,
    /// Calls of the handler in all.
    calls: u64,
}

impl DemoFindings for PoisonFindings {
    /// Every good event was handled, and every other one is a dead letter.
    fn are_good(&self, ledger: &Account) -> bool {
        let dead = i64::try_from(self.poison).unwrap_or(i64::MAX);
        let are_dead = ledger.dead_lettered == dead && self.dead_letters == self.poison;
        are_dead && self.missing == 0 && self.wrongly_dead == 0
    }

    fn lines(&self, ledger: &Account) -> Vec<String> {
        vec![
            format!(
                "sent {}   poison {}   dead letters {}   nowhere {}   lost {}",
                self.sent,
                self.poison,
                self.dead_letters,
                self.missing,
                ledger.lost.total()
            ),
            format!(
                "calls of the handler {}   handled again {} (at least once)   good ones given up {}",
                self.calls, self.duplicates, self.wrongly_dead
            ),
        ]
    }
}

/// The knowledge of the handler and the producer.
#[derive(Default)]
struct PoisonWorld {
    sent: BTreeSet<EventId>,
    poison: BTreeSet<EventId>,
    handled: BTreeMap<EventId, u64>,
    is_down: bool,
    calls: u64,
}

/// A run of the demo.
pub(crate) struct PoisonStory {
    seed: u64,
    sim: Sim,
    broker: Node,
    worker: Node,
    log: SimLog,
    options: BindingOptions,
    connector: Connector,
    ids: EventIds,
    entropy: Box<dyn Entropy>,
    world: Arc<Mutex<PoisonWorld>>,
    sends_poison: bool,
    produced: u64,
}

impl PoisonStory {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "poison";

    /// The story that follows from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let mut sim = Sim::new(seed);
        let (broker, worker) = (sim.node("broker"), sim.node("worker"));
        let env = broker.env();
        let log = SimLog::new(&env);
        let options = options();
        let (made, topic) = (log.clone(), options.topic.clone());
        let made = sim.block_on(&broker, async move {
            made.create_topic(&topic, TopicConfig::new(4)).await
        });
        made.unwrap_or_else(|error| unreachable!("a sound log takes a topic: {error}"));
        let world = Arc::new(Mutex::new(PoisonWorld::default()));
        let connector = begin(&worker, &log, &options, &world);
        Self {
            seed,
            broker,
            worker,
            log,
            options,
            connector,
            ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids")),
            entropy: env.entropy.fork("story"),
            world,
            sends_poison: false,
            produced: 0,
            sim,
        }
    }

    fn poison(&mut self) -> Result<(), ErrorReport> {
        self.sends_poison = true;
        Ok(())
    }

    fn outage(&mut self) -> Result<(), ErrorReport> {
        self.world.lock().is_down = true;
        Ok(())
    }

    fn recovery(&mut self) -> Result<(), ErrorReport> {
        self.world.lock().is_down = false;
        Ok(())
    }

    /// The process of the binding is gone without a word, and another one begins.
    fn kill(&mut self) -> Result<(), ErrorReport> {
        self.sim.crash(&self.worker);
        self.sim.restart(&self.worker);
        self.connector = begin(&self.worker, &self.log, &self.options, &self.world);
        Ok(())
    }

    fn send_due(&mut self) {
        let due = (self.sim.now() + FRAME).as_millis() * u128::from(RATE) / 1_000;
        let mut appends = Vec::new();
        while u128::from(self.produced) < due {
            self.produced += 1;
            let id = self.ids.mint();
            let is_poison = self.sends_poison && self.entropy.below(20) == 0;
            let mut world = self.world.lock();
            world.sent.insert(id);
            if is_poison {
                world.poison.insert(id);
            }
            let record = Record::new(format!("order {id}"))
                .key(id.to_string())
                .event_id(id);
            appends.push(Append::new(self.options.topic.clone(), record));
        }
        let log = self.log.clone();
        let sending = async move { log.append(appends).await };
        let sent = self.sim.block_on(&self.broker, sending);
        sent.map(drop)
            .unwrap_or_else(|error| unreachable!("a sound log takes records: {error}"));
    }

    /// The postings of the main topic and of every tier, together.
    fn books(&self) -> Books {
        let mut books = self.log.books(&self.options.group, &self.options.topic);
        for tier in tiers(&self.options) {
            let group = self.options.tier_group(tier);
            if let (Ok(group), Ok(topic)) = (group, self.options.tier_topic(tier)) {
                books.merge(&self.log.books(&group, &topic));
            }
        }
        books
    }

    fn account(&self) -> Account {
        let mut account = self.books().account();
        let sent = i64::try_from(self.world.lock().sent.len()).unwrap_or(i64::MAX);
        account.accepted += sent;
        account.queued += sent;
        account
    }

    fn dead_letters(&mut self) -> Vec<EventId> {
        let (log, topic) = (self.log.clone(), self.options.dlt_topic());
        let reading = async move {
            let mut found = Vec::new();
            let Ok(topic) = topic else { return found };
            for partition in 0..PARTITIONS {
                let at = TopicPartition::new(topic.clone(), partition);
                let read = Read {
                    max_bytes: usize::MAX,
                    ..Read::new(at.clone(), Offset(0))
                };
                if let Ok(batch) = log.read(read).await {
                    found.extend(
                        batch
                            .records
                            .iter()
                            .map(|stored| stored.event_id("sim", &at)),
                    );
                }
            }
            found
        };
        self.sim.block_on(&self.broker, reading)
    }
}

fn tiers(options: &BindingOptions) -> impl Iterator<Item = TierIndex> + use<> {
    let count = u32::try_from(options.retry.tiers.len()).unwrap_or(0);
    (1..=count).map(TierIndex)
}

fn options() -> BindingOptions {
    let options = BindingOptions::new(BINDING, "demo.orders", "shipping");
    let mut options = options.unwrap_or_else(|_| unreachable!("valid names"));
    let seconds = [2, 5, 15].map(|delay| TierOptions::new(Duration::from_secs(delay)));
    options.retry.tiers = seconds.into();
    // Without a breaker, so that the outage is seen in the tiers as well.
    options
}

/// Starts the binding in the present life of its process.
fn begin(
    worker: &Node,
    log: &SimLog,
    options: &BindingOptions,
    world: &Arc<Mutex<PoisonWorld>>,
) -> Connector {
    let env: Env = worker.env();
    let connector = Connector::new(Arc::new(log.clone()), &env);
    let world = Arc::clone(world);
    let clock = Arc::clone(&env.clock);
    let handler = BoundHandler::from_fn(move |record| {
        let (world, clock) = (Arc::clone(&world), Arc::clone(&clock));
        async move {
            clock.sleep(Duration::from_millis(5)).await;
            handle(&mut world.lock(), record.event_id())
        }
    });
    let registered = connector.register(Binding::new(options.clone(), handler));
    registered.unwrap_or_else(|error| unreachable!("the binding is sound: {error}"));
    let starting = connector.clone();
    drop(worker.start("start", async move {
        starting.start(BINDING).await.ok();
        // The task holds the connector for as long as its process lives.
        std::future::pending::<()>().await;
    }));
    connector
}

fn handle(world: &mut PoisonWorld, id: EventId) -> HandlerAnswer {
    world.calls += 1;
    if world.is_down {
        let code = Code::from_static("connection.refused");
        return Err(Failure::transient(code, "the warehouse is down").into());
    }
    if world.poison.contains(&id) {
        let code = Code::from_static("warehouse.conflict");
        return Err(Failure::transient(code, "the warehouse cannot read this order").into());
    }
    *world.handled.entry(id).or_default() += 1;
    Ok(())
}

impl Scene for PoisonStory {
    type Findings = PoisonFindings;

    const PHASES: &'static [DemoPhase<Self>] = &[
        DemoPhase::new("flow", |_| Ok(()), 12),
        DemoPhase::new("poison", Self::poison, 24),
        DemoPhase::new("outage", Self::outage, 24),
        DemoPhase::new("recovery", Self::recovery, 24),
        DemoPhase::new("kill", Self::kill, 24),
    ];
    const DRAIN_LIMIT: Duration = Duration::from_secs(1_800);

    fn now(&self) -> Duration {
        self.sim.now()
    }

    fn work(&mut self) -> Result<(), ErrorReport> {
        self.send_due();
        self.wait()
    }

    fn wait(&mut self) -> Result<(), ErrorReport> {
        self.sim.run_for(FRAME);
        Ok(())
    }

    /// The dead letters that lie there are those of the books.
    fn audit(&mut self) -> Result<(), ErrorReport> {
        Ok(())
    }

    fn look(&self) -> Result<(Account, DemoNote), ErrorReport> {
        let circuit = self
            .connector
            .list()
            .into_iter()
            .next()
            .map(|view| view.circuit);
        Ok((
            self.account(),
            DemoNote::Breaker(circuit.unwrap_or_default()),
        ))
    }

    fn is_at_rest(&self) -> Result<bool, ErrorReport> {
        let account = self.account();
        Ok(account.queued == 0 && account.retrying == 0)
    }

    fn end(mut self) -> Result<Ended<PoisonFindings>, ErrorReport> {
        let account = self.account();
        let letters = self.dead_letters();
        let world = self.world.lock();
        let dead: BTreeSet<EventId> = letters.iter().copied().collect();
        let is_nowhere = |id: &&EventId| !world.handled.contains_key(id) && !dead.contains(id);
        let findings = PoisonFindings {
            sent: world.sent.len(),
            poison: world.poison.len(),
            dead_letters: letters.len(),
            missing: world.sent.iter().filter(is_nowhere).count(),
            wrongly_dead: dead.iter().filter(|id| !world.poison.contains(id)).count(),
            duplicates: world.handled.values().map(|times| times - 1).sum(),
            calls: world.calls,
        };
        let is_agreed =
            i64::try_from(letters.len()).is_ok_and(|count| count == account.dead_lettered);
        drop(world);
        Ok(Ended {
            demo: Self::NAME,
            seed: self.seed,
            component: ComponentAccount {
                name: format!("{}@{}", self.options.group, self.options.topic),
                kind: ComponentKind::Group,
                account,
            },
            is_agreed,
            findings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::tell;

    #[test]
    fn g17_whatever_the_seed_poison_ends_in_the_dead_letters_and_nothing_else_does() {
        let mut poison = 0;
        for seed in 0..5 {
            let verdict = tell(PoisonStory::new(seed), |_| {}).unwrap();
            assert!(verdict.is_good(), "seed {seed}: {verdict:?}");
            poison += verdict.findings.dead_letters;
        }
        assert!(poison > 0, "there was poison");
    }
}
