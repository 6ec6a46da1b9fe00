//! The embedded log with its members in one process that loses its power, is killed or sees its disk
//! fail, again and again. Meanwhile partitions are asked back and members are taken for dead.
//!
//! In the end nothing fails any more and everything drains; then each record was copied exactly
//! once, every answer that was given holds, and books and records agree.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::env::{Entropy, Stream};
use tidegate_log::embedded::TopicAudit;
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log, TopicConfig};
use tidegate_sim::{Fault, FaultKind, Node, Operation, Sim, is_one_seed, scaled, seeds};

use super::embedded::small;
use super::work::{Job, Witness, copy, is_drained, produce, recount};

/// Events of each life.
const EVENTS: u64 = 12;
const LIVES: u64 = 5;

/// The log of the present life, once it is open.
type Present = Arc<Mutex<Option<EmbeddedLog>>>;

struct World {
    sim: Sim,
    node: Node,
    job: Job,
    witness: Witness,
    present: Present,
    random: Stream,
}

fn config(random: &mut dyn Entropy) -> EmbeddedConfig {
    EmbeddedConfig {
        segment_size: 256 + random.below(2_000),
        journal_size: 4_096 + random.below(8_000),
        cache_size: random.below(2_000),
        group_commit_delay: Duration::from_micros(random.below(3_000)),
        ..small(Path::new("/log"))
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut sim = Sim::new(seed);
        let node = sim.node("process");
        Self {
            random: sim.entropy("script"),
            sim,
            node,
            job: Job::new(),
            witness: Witness::default(),
            present: Present::default(),
        }
    }

    /// Starts the process: it opens the log, and then everybody works on it.
    fn start(&mut self) {
        *self.present.lock().unwrap() = None;
        let (node, job, witness) = (self.node.clone(), self.job.clone(), self.witness.clone());
        let (env, present) = (node.env(), Arc::clone(&self.present));
        let config = config(&mut self.random);
        let opening = async move {
            // A start that a failing disk refuses is tried again in the next life.
            let Ok(log) = EmbeddedLog::open(&env, config) else {
                return;
            };
            let topics = TopicConfig::new(u32::try_from(job.partitions).unwrap());
            for topic in [&job.from, &job.to] {
                if log.create_topic(topic, topics.clone()).await.is_err() {
                    return;
                }
            }
            for number in 0..3 {
                let on: Arc<dyn Log> = Arc::new(log.clone());
                let env = env.fork(&format!("copier {number}"));
                let spawn = Arc::clone(&env.spawn);
                let work = copy(on, env, job.clone(), witness.clone());
                drop(spawn.spawn("copier", Box::pin(work)));
            }
            let on: Arc<dyn Log> = Arc::new(log.clone());
            let work = produce(on, env.fork("producer"), job, witness, EVENTS);
            drop(env.spawn.spawn("producer", Box::pin(work)));
            *present.lock().unwrap() = Some(log);
        };
        drop(self.node.start("process", opening));
    }

    fn log(&self) -> Option<EmbeddedLog> {
        self.present.lock().unwrap().clone()
    }

    fn trouble(&mut self) {
        let random: &mut dyn Entropy = &mut self.random;
        let log = self.present.lock().unwrap().clone();
        match (random.below(8), log) {
            (0, Some(log)) => log.rebalance(&self.job.group),
            (1, Some(log)) => {
                let nth = usize::try_from(random.below(3)).unwrap();
                log.expel(&self.job.group, nth);
            }
            (2, _) if random.below(4) == 0 => {
                self.witness.count("disk fault");
                let kinds = [
                    (Operation::Sync, FaultKind::SyncDropsDirty),
                    (Operation::Write, FaultKind::IoError),
                    (Operation::Write, FaultKind::ShortWrite),
                ];
                let (operation, kind) = kinds[usize::try_from(random.below(3)).unwrap()];
                self.node.disk().fail(Fault {
                    operation,
                    path: String::new(),
                    nth: 1 + random.below(10),
                    kind,
                });
            }
            _ => {}
        }
    }

    fn live(&mut self) {
        self.start();
        let random: &mut dyn Entropy = &mut self.random;
        if random.below(2) == 0 {
            // The power goes at some operation, not only between tasks.
            let disk = self.node.disk();
            disk.kill_at(disk.operations() + 1 + random.below(300));
        }
        for _ in 0..15 {
            let step = Duration::from_millis((&mut self.random as &mut dyn Entropy).below(60));
            self.sim.run_for(step);
            self.trouble();
        }
        let random: &mut dyn Entropy = &mut self.random;
        if random.below(3) == 0 {
            self.witness.count("kill");
            self.sim.kill(&self.node);
        } else {
            self.witness.count("power cut");
            self.sim.crash(&self.node);
        }
        self.sim.restart(&self.node);
    }

    fn drain(&mut self) {
        self.start();
        let finished = self.witness.counted("producer done");
        let end = self.sim.now() + Duration::from_secs(120);
        let mut is_done = false;
        while !is_done {
            assert!(self.sim.now() < end, "it drains: {:?}", self.witness.counts);
            self.sim.run_for(Duration::from_millis(500));
            let stopped = self
                .present
                .lock()
                .unwrap()
                .as_ref()
                .and_then(|log| log.storage().stopped());
            if stopped.is_some() || self.log().is_none() {
                // A fault that was still to come has come; the process is started once more.
                self.sim.kill(&self.node);
                self.sim.restart(&self.node);
                self.start();
                continue;
            }
            if self.witness.counted("producer done") == finished {
                continue;
            }
            let (log, job) = (self.log().unwrap(), self.job.clone());
            is_done = self
                .sim
                .block_on(&self.node, async move { is_drained(&log, &job).await });
        }
    }

    fn check(&mut self) {
        let log = self.present.lock().unwrap().clone().unwrap();
        let job = self.job.clone();
        let found = self.sim.block_on(&self.node, async move {
            let audited = log.storage().audit().await.unwrap();
            (recount(&log, &job).await, audited)
        });
        let ((mut sources, mut copies), audited) = found;
        sources.sort();
        copies.sort();
        assert_eq!(copies, sources, "every record was copied once");
        for id in self.witness.accepted.lock().unwrap().iter() {
            assert!(
                sources.iter().any(|(_, found)| found == id),
                "{id} was accepted"
            );
        }
        for part in &audited {
            assert_eq!(part.missing, [], "books and records agree: {part:?}");
        }
        let ours = |part: &&TopicAudit| {
            part.group.as_ref() == Some(&self.job.group) && part.topic == self.job.from
        };
        let books = &audited.iter().find(ours).unwrap().books;
        let count = i64::try_from(sources.len()).unwrap();
        assert!(books.is_balanced());
        assert_eq!(
            (
                books.in_place(&Place::Delivered),
                books.in_place(&Place::Queued)
            ),
            (count, 0)
        );
    }
}

#[test]
fn whatever_fails_each_record_is_settled_once() {
    let seen = Witness::default();
    seeds!(scaled(2_000), |seed| {
        let mut world = World::new(seed);
        for _ in 0..LIVES {
            world.live();
        }
        world.drain();
        world.check();
        for (what, count) in world.witness.counts.lock().unwrap().iter() {
            *seen.counts.lock().unwrap().entry(what).or_default() += count;
        }
    });
    let counts = seen.counts.lock().unwrap();
    println!("{counts:?}");
    for what in [
        "committed",
        "disk fault",
        "fenced",
        "kill",
        "let go",
        "lost",
        "power cut",
    ] {
        assert!(
            is_one_seed() || counts.contains_key(what),
            "no run had `{what}`: {counts:?}"
        );
    }
}
