//! The story: fair weather, a bad hour, an outage, and the way back.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, ComponentAccount, ComponentKind, Ledger};
use tidegate_core::{EventIds, Offset, Topic};
use tidegate_sim::{Node, Sim};

use super::dependency::{Dependency, Weather};
use super::path::Path;
use super::{Ending, Frame, Tale};
use crate::report::Report;
use crate::table;

/// Time between two looks at the story.
const FRAME: Duration = Duration::from_millis(250);
/// Events per second while the phases last.
const RATE: u64 = 100;
/// The story ends at the latest after this; every retry is over long before.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);

struct Phase {
    name: &'static str,
    lasts: Duration,
    weather: Weather,
}

const PHASES: [Phase; 4] = [
    Phase {
        name: "calm",
        lasts: Duration::from_secs(8),
        weather: Weather::Fair,
    },
    Phase {
        name: "flaky",
        lasts: Duration::from_secs(8),
        weather: Weather::Flaky,
    },
    Phase {
        name: "outage",
        lasts: Duration::from_secs(12),
        weather: Weather::Down,
    },
    Phase {
        name: "recovery",
        lasts: Duration::from_secs(8),
        weather: Weather::Fair,
    },
];

/// How many phases there are, the last one being the verdict.
const COUNT: usize = PHASES.len() + 1;

/// How a phase ended.
#[derive(Debug, Serialize)]
pub(crate) struct PhaseEnd {
    pub(crate) name: &'static str,
    pub(crate) ended_at_ms: u64,
    pub(crate) breaker: String,
    pub(crate) account: Account,
}

/// How the story ended.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) demo: &'static str,
    /// Tells the whole story again: `tidegate demo --seed`.
    pub(crate) seed: String,
    pub(crate) phases: Vec<PhaseEnd>,
    pub(crate) ledger: Account,
    pub(crate) balanced: bool,
    /// Calls of the dependency.
    pub(crate) attempts: u64,
    /// Arrivals beyond one per event.
    pub(crate) duplicates: i64,
    pub(crate) breaker_openings: u64,
    /// Dead letters by reason and code.
    pub(crate) dead_letters: BTreeMap<String, u64>,
}

impl Ending for Verdict {
    /// Balanced, nothing lost, everything at its end.
    fn is_good(&self) -> bool {
        let ended = self.ledger.delivered + self.ledger.dead_lettered;
        self.balanced
            && self.ledger.lost.total() == 0
            && ended == self.ledger.accepted
            && self.duplicates == 0
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "duplicates {}   lost {}   calls {}   breaker opened {} times",
            self.duplicates,
            self.ledger.lost.total(),
            self.attempts,
            self.breaker_openings
        )];
        let letters = self.dead_letters.iter();
        lines.extend(letters.map(|(why, count)| format!("dead letters  {count:>4}  {why}")));
        lines.insert(0, table::equation(&self.ledger));
        lines
    }

    fn again(&self) -> String {
        format!("tidegate demo --seed {}", self.seed)
    }
}

/// A run of the demo.
pub(crate) struct Story {
    seed: u64,
    sim: Sim,
    node: Node,
    path: Path,
    dependency: Dependency,
    ids: EventIds,
    accepted: u64,
    /// Looks at which the books and the recount did not agree.
    disagreements: usize,
}

impl Tale for Story {
    type Verdict = Verdict;

    fn run(self, show: impl FnMut(&Frame)) -> Result<Verdict, Report> {
        Ok(self.tell(show))
    }
}

impl Story {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "flaky";

    /// The story that follows from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let mut sim = Sim::new(seed);
        let node = sim.node("demo");
        let env = node.env();
        let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
        let dependency = Dependency::new(&env);
        let topic = Topic::new("demo.orders").unwrap_or_else(|_| unreachable!("a valid name"));
        let path = Path::new(env, topic, dependency.clone());
        Self {
            seed,
            sim,
            node,
            path,
            dependency,
            ids,
            accepted: 0,
            disagreements: 0,
        }
    }

    fn tell(mut self, mut show: impl FnMut(&Frame)) -> Verdict {
        self.path.start();
        let mut phases = Vec::new();
        for (index, phase) in PHASES.iter().enumerate() {
            self.dependency.set_weather(phase.weather);
            let end = self.sim.now() + phase.lasts;
            while self.sim.now() < end {
                self.accept_due();
                self.sim.run_for(FRAME);
                show(&self.frame(phase.name, index + 1));
            }
            phases.push(self.phase_end(phase.name));
        }
        let end = self.sim.now() + DRAIN_LIMIT;
        while !self.path.is_at_rest() && self.sim.now() < end {
            self.sim.run_for(FRAME);
            show(&self.frame("verdict", COUNT));
        }
        phases.push(self.phase_end("verdict"));
        self.verdict(phases)
    }

    /// Takes on the events that have come in since the last frame.
    fn accept_due(&mut self) {
        let due = (self.sim.now() + FRAME).as_millis() * u128::from(RATE) / 1_000;
        while u128::from(self.accepted) < due {
            let offset = Offset(i64::try_from(self.accepted).unwrap_or(i64::MAX));
            self.path.accept(self.ids.mint(), offset);
            self.accepted += 1;
        }
    }

    /// A look at the story. Each time, the events are counted where they really are.
    fn frame(&mut self, phase: &'static str, number: usize) -> Frame {
        self.disagreements += usize::from(!self.path.audit().is_empty());
        let look = self.path.look();
        Frame {
            phase,
            number,
            phases: COUNT,
            at: self.sim.now(),
            account: look.account,
            note: format!("breaker {}", look.breaker),
        }
    }

    fn phase_end(&self, name: &'static str) -> PhaseEnd {
        let look = self.path.look();
        PhaseEnd {
            name,
            ended_at_ms: u64::try_from(self.sim.now().as_millis()).unwrap_or(u64::MAX),
            breaker: look.breaker.to_string(),
            account: look.account,
        }
    }

    fn verdict(mut self, phases: Vec<PhaseEnd>) -> Verdict {
        let look = self.path.look();
        self.sim.crash(&self.node);
        let mut dead_letters = BTreeMap::new();
        for letter in &look.dead_letters {
            let why = format!("{} {}", letter.reason.as_str(), letter.failure.code);
            *dead_letters.entry(why).or_default() += 1;
        }
        let component = ComponentAccount {
            name: Self::NAME.to_owned(),
            kind: ComponentKind::Demo,
            account: look.account.clone(),
        };
        let arrivals = self.dependency.arrivals();
        let duplicates: u64 = arrivals.values().map(|times| times - 1).sum();
        let is_agreed = self.disagreements == 0 && self.path.audit().is_empty();
        Verdict {
            demo: Self::NAME,
            seed: format!("{:#x}", self.seed),
            phases,
            balanced: is_agreed && Ledger::new(vec![component]).balanced,
            duplicates: i64::try_from(duplicates).unwrap_or(i64::MAX),
            ledger: look.account,
            attempts: look.attempts,
            breaker_openings: look.openings,
            dead_letters,
        }
    }
}
