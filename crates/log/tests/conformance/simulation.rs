//! Members of a group under everything at once: answers that are lost, a log that crashes, nodes
//! that die, partitions that are asked back, members that are taken for dead while they work.
//!
//! Safety: each member sees every record of what it owns, in order. In the end the faults stop and
//! everything drains; then each record was copied exactly once, whoever committed it, and the books
//! are what a recount finds.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::env::{Entropy, Stream};
use tidegate_log::{Log, TopicConfig};
use tidegate_sim::{LogRates, Node, Sim, SimLog, is_one_seed, scaled, seeds};

use super::work::{Job, Witness, copy, is_drained, produce, recount};

const EVENTS: u64 = 40;
const COPIERS: usize = 3;

struct World {
    sim: Sim,
    broker: Node,
    log: SimLog,
    job: Job,
    witness: Witness,
    copiers: Vec<Node>,
    random: Stream,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut sim = Sim::new(seed);
        let broker = sim.node("broker");
        let log = SimLog::new(&broker.env());
        let job = Job::new();
        let (on, made) = (log.clone(), job.clone());
        sim.block_on(&broker, async move {
            let config = TopicConfig::new(u32::try_from(made.partitions).unwrap());
            on.create_topic(&made.from, config.clone()).await.unwrap();
            on.create_topic(&made.to, config).await.unwrap();
        });
        let copiers = (0..COPIERS)
            .map(|number| sim.node(&format!("copier {number}")))
            .collect();
        Self {
            random: sim.entropy("script"),
            sim,
            broker,
            log,
            job,
            witness: Witness::default(),
            copiers,
        }
    }

    fn start(&self, node: &Node) {
        let log = Arc::new(self.log.clone());
        let task = copy(log, node.env(), self.job.clone(), self.witness.clone());
        drop(node.start("copier", task));
    }

    /// Something goes wrong.
    fn trouble(&mut self) {
        let random: &mut dyn Entropy = &mut self.random;
        let nth = usize::try_from(random.below(COPIERS as u64)).unwrap();
        match random.below(12) {
            0 => {
                self.witness.count("log crash");
                self.log.crash();
            }
            1 | 2 => {
                self.witness.count("node crash");
                let node = self.copiers[nth].clone();
                self.sim.crash(&node);
                self.sim.restart(&node);
                self.start(&node);
            }
            3 | 4 => self.log.rebalance(&self.job.group),
            5 | 6 => {
                self.log.expel(&self.job.group, nth);
            }
            7 => {
                let rates = LogRates {
                    refuse: random.below(100),
                    lose_request: random.below(200),
                    lose_answer: random.below(200),
                    delay: Duration::from_millis(random.below(60)),
                };
                self.log.set_rates(rates);
            }
            _ => {}
        }
    }

    fn drain(&mut self) {
        self.log.set_rates(LogRates::default());
        let end = self.sim.now() + Duration::from_secs(120);
        let mut is_done = false;
        while !is_done {
            assert!(self.sim.now() < end, "it drains: {:?}", self.witness.counts);
            self.sim.run_for(Duration::from_millis(200));
            let accepted = self.witness.accepted.lock().unwrap().len() as u64;
            let (log, job) = (self.log.clone(), self.job.clone());
            is_done = accepted == EVENTS
                && self
                    .sim
                    .block_on(&self.broker, async move { is_drained(&log, &job).await });
        }
    }

    fn check(&mut self) {
        let (log, job) = (self.log.clone(), self.job.clone());
        let counted = self
            .sim
            .block_on(&self.broker, async move { recount(&log, &job).await });
        let (mut sources, mut copies) = counted;
        sources.sort();
        copies.sort();
        assert_eq!(copies, sources, "every record was copied once");
        for id in self.witness.accepted.lock().unwrap().iter() {
            assert!(
                sources.iter().any(|(_, found)| found == id),
                "{id} was accepted"
            );
        }
        let books = self.log.books(&self.job.group, &self.job.from);
        let tallies = books.tallies(&Place::Delivered);
        let count: i64 = tallies.values().map(|tally| tally.count).sum();
        let sum = tallies
            .values()
            .fold(0_u128, |sum, tally| sum.wrapping_add(tally.id_sum));
        let expected = sources
            .iter()
            .fold(0_u128, |sum, (_, id)| sum.wrapping_add(id.as_u128()));
        assert_eq!(
            (count, sum),
            (i64::try_from(sources.len()).unwrap(), expected),
            "the books"
        );
    }
}

fn play(seed: u64) -> (u64, Witness) {
    let mut world = World::new(seed);
    for node in world.copiers.clone() {
        world.start(&node);
    }
    let producer = world.sim.node("producer");
    let log: Arc<dyn Log> = Arc::new(world.log.clone());
    let job = world.job.clone();
    let task = produce(log, producer.env(), job, world.witness.clone(), EVENTS);
    drop(producer.start("producer", task));
    for _ in 0..60 {
        let step = Duration::from_millis((&mut world.random as &mut dyn Entropy).below(60));
        world.sim.run_for(step);
        world.trouble();
    }
    world.drain();
    world.check();
    (world.sim.trace().hash(), world.witness)
}

#[test]
fn whatever_happens_each_record_is_settled_once() {
    let seen = Witness::default();
    seeds!(scaled(2_000), |seed| {
        let (_, witness) = play(seed);
        for (what, count) in witness.counts.lock().unwrap().iter() {
            *seen.counts.lock().unwrap().entry(what).or_default() += count;
        }
    });
    let counts = seen.counts.lock().unwrap();
    println!("{counts:?}");
    for what in [
        "append repeated",
        "commit unknown",
        "committed",
        "fenced",
        "let go",
        "lost",
        "log crash",
        "node crash",
    ] {
        assert!(
            is_one_seed() || counts.contains_key(what),
            "no run had `{what}`: {counts:?}"
        );
    }
}

#[test]
fn a_seed_does_the_same_twice() {
    seeds!(scaled(200), |seed| assert_eq!(play(seed).0, play(seed).0));
}
