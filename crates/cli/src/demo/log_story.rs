//! The story of the log: a consumer that dies without a word, and a power cut.
//!
//! It is the embedded log itself that runs here, on the simulated disk. A power cut takes the writes
//! that were not synced, torn wherever the seed says.

use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, ComponentAccount, ComponentKind};
use tidegate_core::env::{Entropy, Env, Task};
use tidegate_core::{EventIds, GroupName, Topic};
use tidegate_log::{Append, EmbeddedConfig, EmbeddedLog, Log, Record, TopicConfig, embedded};
use tidegate_sim::{Node, Sim};

use super::consumer::{Consumer, LogWitness};
use super::engine::{DemoFindings, DemoNote, DemoPhase, Ended, Scene};
use crate::report::ErrorReport;

/// Time between two looks at the story, and between two batches of the producer.
const FRAME: Duration = Duration::from_millis(250);
/// Events per second while something is produced.
const RATE: u64 = 300;
const DIR: &str = "/log";

/// The facts that the world around the log, and its files, know.
#[derive(Debug, Serialize)]
pub(crate) struct RecordFindings {
    /// Events that the log acknowledged.
    acknowledged: usize,
    /// Of those, events that nobody handled.
    missing: usize,
    /// Times that an event was handled again.
    duplicates: u64,
    /// Commits of members that had lost the partition, all refused.
    fenced: u64,
    /// Events that the last audit, from the files alone, did not find.
    unaccounted: u64,
}

impl DemoFindings for RecordFindings {
    /// Everything that was acknowledged was handled.
    fn are_good(&self, ledger: &Account) -> bool {
        ledger.delivered == ledger.accepted && self.missing == 0 && self.unaccounted == 0
    }

    fn lines(&self, ledger: &Account) -> Vec<String> {
        vec![
            format!(
                "acknowledged {}   handled by nobody {}   handled again {} (at least once)   lost {}",
                self.acknowledged,
                self.missing,
                self.duplicates,
                ledger.lost.total()
            ),
            match self.unaccounted {
                0 => "audit of the files: every event is accounted for".to_owned(),
                count => format!("audit of the files: {count} events are NOT accounted for"),
            },
        ]
    }
}

/// A run of the demo.
pub(crate) struct LogStory {
    seed: u64,
    sim: Sim,
    node: Node,
    env: Env,
    log: EmbeddedLog,
    topic: Topic,
    group: GroupName,
    ids: EventIds,
    world: LogWitness,
    consumers: Vec<Task>,
    entropy: Box<dyn Entropy>,
    produced: u64,
    /// Audits that found something.
    disagreements: u64,
}

impl LogStory {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "log";

    /// The story that follows from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let mut sim = Sim::new(seed);
        let node = sim.node("demo");
        let env = node.env();
        let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
        let entropy = env.entropy.fork("story");
        let topic = Topic::new("demo.orders").unwrap_or_else(|_| unreachable!("a valid name"));
        let group = GroupName::new("billing").unwrap_or_else(|_| unreachable!("a valid name"));
        let log = open(&env);
        let making = (log.clone(), topic.clone());
        let made = sim.block_on(&node, async move {
            making.0.create_topic(&making.1, TopicConfig::new(4)).await
        });
        made.unwrap_or_else(|error| unreachable!("a sound disk takes a topic: {error}"));
        Self {
            seed,
            sim,
            node,
            env,
            log,
            topic,
            group,
            ids,
            world: LogWitness::default(),
            consumers: Vec::new(),
            entropy,
            produced: 0,
            disagreements: 0,
        }
    }

    /// So that what happens does not find everybody between two steps.
    fn wait_a_moment(&mut self) {
        let ms = 1 + self.entropy.below(200);
        self.sim.run_for(Duration::from_millis(ms));
    }

    /// A consumer is gone without a word, with records in its hands.
    fn kill(&mut self) -> Result<(), ErrorReport> {
        self.wait_a_moment();
        if let Some(consumer) = self.consumers.pop() {
            consumer.abort();
        }
        Ok(())
    }

    /// The power goes, and comes back.
    fn cut_the_power(&mut self) -> Result<(), ErrorReport> {
        self.produce_due();
        self.wait_a_moment();
        self.sim.crash(&self.node);
        self.consumers.clear();
        self.sim.restart(&self.node);
        self.env = self.node.env();
        self.log = open(&self.env);
        self.join(2)?;
        // A producer that got no answer asks again, under the same ids.
        let unanswered = self.world.known().offered.iter().copied().collect();
        self.append(unanswered);
        Ok(())
    }

    /// So many consumers join.
    fn join(&mut self, count: usize) -> Result<(), ErrorReport> {
        for _ in 0..count {
            let consumer = Consumer {
                log: self.log.clone(),
                clock: self.env.clock.clone(),
                world: self.world.clone(),
                group: self.group.clone(),
                topic: self.topic.clone(),
            };
            let task = self.env.spawn.spawn("consumer", Box::pin(consumer.run()));
            self.consumers.push(task);
        }
        Ok(())
    }

    /// Has the producer send what has come in since the last frame.
    fn produce_due(&mut self) {
        let due = (self.sim.now() + FRAME).as_millis() * u128::from(RATE) / 1_000;
        let mut ids = Vec::new();
        while u128::from(self.produced) < due {
            ids.push(self.ids.mint());
            self.produced += 1;
        }
        self.world.known().offered.extend(&ids);
        self.append(ids);
    }

    fn append(&self, ids: Vec<tidegate_core::EventId>) {
        let (log, topic, world) = (self.log.clone(), self.topic.clone(), self.world.clone());
        let sending = async move {
            let records = ids.iter().map(|id| {
                let record = Record::new(format!("order {id}")).key(id.to_string());
                Append::new(topic.clone(), record.event_id(*id))
            });
            if log.append(records.collect()).await.is_ok() {
                let mut known = world.known();
                for id in ids {
                    known.offered.remove(&id);
                    known.acknowledged.insert(id);
                }
            }
        };
        drop(self.env.spawn.spawn("producer", Box::pin(sending)));
    }

    /// The books of the group, or of the topic while nobody reads it.
    fn account(&self) -> Account {
        let kept = self.log.storage().books().into_iter();
        kept.max_by_key(|kept| kept.group.is_some())
            .map(|kept| kept.books.account())
            .unwrap_or_default()
    }
}

impl Scene for LogStory {
    type Findings = RecordFindings;

    const PHASES: &'static [DemoPhase<Self>] = &[
        DemoPhase::new("produce", |_| Ok(()), 16),
        DemoPhase::new("consume", |story| story.join(2), 24),
        DemoPhase::new("kill", Self::kill, 24),
        DemoPhase::new("return", |story| story.join(1), 24),
        DemoPhase::new("power cut", Self::cut_the_power, 24),
    ];
    const DRAIN_LIMIT: Duration = Duration::from_secs(300);

    fn now(&self) -> Duration {
        self.sim.now()
    }

    fn work(&mut self) -> Result<(), ErrorReport> {
        self.produce_due();
        self.wait()
    }

    fn wait(&mut self) -> Result<(), ErrorReport> {
        self.sim.run_for(FRAME);
        Ok(())
    }

    /// Counts the records while everything goes on.
    fn audit(&mut self) -> Result<(), ErrorReport> {
        let log = self.log.clone();
        let audited = async move { log.storage().audit().await.map(|found| unaccounted(&found)) };
        let audited = self.sim.block_on(&self.node, audited);
        self.disagreements += audited.unwrap_or(1);
        Ok(())
    }

    fn look(&self) -> Result<(Account, DemoNote), ErrorReport> {
        Ok((self.account(), DemoNote::Consumers(self.consumers.len())))
    }

    fn is_at_rest(&self) -> Result<bool, ErrorReport> {
        Ok(self.account().queued == 0 && self.world.known().offered.is_empty())
    }

    fn end(mut self) -> Result<Ended<RecordFindings>, ErrorReport> {
        let account = self.account();
        let log = self.log.clone();
        self.sim
            .block_on(&self.node, async move { log.close().await });
        // From the files alone, as `tidegate audit` does.
        let recounted = embedded::recount(&*self.env.disk, DIR.as_ref());
        let unaccounted = recounted.map(|found| unaccounted(&found));
        let known = self.world.known();
        let is_handled = |id: &&tidegate_core::EventId| known.handled.contains_key(id);
        let handled = known.acknowledged.iter().filter(is_handled).count();
        Ok(Ended {
            demo: Self::NAME,
            seed: self.seed,
            component: ComponentAccount {
                name: format!("{}@{}", self.group, self.topic),
                kind: ComponentKind::Group,
                account,
            },
            is_agreed: self.disagreements == 0,
            findings: RecordFindings {
                acknowledged: known.acknowledged.len(),
                missing: known.acknowledged.len() - handled,
                duplicates: known.handled.values().map(|times| times - 1).sum(),
                fenced: known.fenced,
                unaccounted: unaccounted.unwrap_or(1),
            },
        })
    }
}

fn unaccounted(audits: &[embedded::TopicAudit]) -> u64 {
    audits.iter().map(embedded::TopicAudit::unaccounted).sum()
}

fn open(env: &Env) -> EmbeddedLog {
    let config = EmbeddedConfig {
        // Small files, so that a few thousand records fill several.
        journal_size: 64 * 1024,
        segment_size: 32 * 1024,
        cache_size: 16 * 1024,
        ..EmbeddedConfig::new(DIR)
    };
    EmbeddedLog::open(env, config)
        .unwrap_or_else(|error| unreachable!("a sound disk has a log that opens: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::tell;

    #[test]
    fn whatever_the_seed_nothing_is_lost_and_something_was_at_stake() {
        let mut duplicates = 0;
        for seed in 0..10 {
            let verdict = tell(LogStory::new(seed), |_| {}).unwrap();
            assert!(verdict.is_good(), "seed {seed}: {verdict:?}");
            duplicates += verdict.findings.duplicates;
        }
        assert!(duplicates > 0, "a consumer died with records in its hands");
    }
}
