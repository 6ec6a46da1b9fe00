//! The story: a healthy service, a bad hour, an outage, and the way back.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, ComponentAccount, ComponentKind};
use tidegate_core::{EventIds, Offset, Topic};
use tidegate_sim::{Node, Sim};

use super::dependency::{Dependency, ServiceState};
use super::engine::{DemoFindings, DemoNote, DemoPhase, Ended, Scene};
use super::path::DemoPath;
use crate::report::ErrorReport;

/// Time between two looks at the story.
const FRAME: Duration = Duration::from_millis(250);
/// Events per second while the phases last.
const RATE: u64 = 100;
/// The numbers that the dependency knows.
#[derive(Debug, Serialize)]
pub(crate) struct CallFindings {
    /// Calls of the dependency.
    attempts: u64,
    /// Arrivals beyond one per event.
    duplicates: i64,
    breaker_openings: u64,
    /// Dead letters by reason and code.
    dead_letters: BTreeMap<String, u64>,
}

impl DemoFindings for CallFindings {
    /// Everything is at its end, once.
    fn are_good(&self, ledger: &Account) -> bool {
        ledger.delivered + ledger.dead_lettered == ledger.accepted && self.duplicates == 0
    }

    fn lines(&self, ledger: &Account) -> Vec<String> {
        let mut lines = vec![format!(
            "duplicates {}   lost {}   calls {}   breaker opened {} times",
            self.duplicates,
            ledger.lost.total(),
            self.attempts,
            self.breaker_openings
        )];
        let letters = self.dead_letters.iter();
        lines.extend(letters.map(|(why, count)| format!("dead letters  {count:>4}  {why}")));
        lines
    }
}

/// A run of the demo.
pub(crate) struct RetryStory {
    seed: u64,
    sim: Sim,
    node: Node,
    path: DemoPath,
    dependency: Dependency,
    ids: EventIds,
    accepted: u64,
    /// Looks at which the books and the recount did not agree.
    disagreements: usize,
}

impl RetryStory {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "retry";

    /// The story that follows from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let mut sim = Sim::new(seed);
        let node = sim.node("demo");
        let env = node.env();
        let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
        let dependency = Dependency::new(&env);
        let topic = Topic::new("demo.orders").unwrap_or_else(|_| unreachable!("a valid name"));
        let path = DemoPath::new(env, topic, dependency.clone());
        path.start();
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

    fn serve(&mut self, state: ServiceState) -> Result<(), ErrorReport> {
        self.dependency.set_service_state(state);
        Ok(())
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
}

impl Scene for RetryStory {
    type Findings = CallFindings;

    const PHASES: &'static [DemoPhase<Self>] = &[
        DemoPhase::new("calm", |story| story.serve(ServiceState::Fair), 32),
        DemoPhase::new("flaky", |story| story.serve(ServiceState::Flaky), 32),
        DemoPhase::new("outage", |story| story.serve(ServiceState::Down), 48),
        DemoPhase::new("recovery", |story| story.serve(ServiceState::Fair), 32),
    ];
    const DRAIN_LIMIT: Duration = Duration::from_secs(300);

    fn now(&self) -> Duration {
        self.sim.now()
    }

    fn work(&mut self) -> Result<(), ErrorReport> {
        self.accept_due();
        self.wait()
    }

    fn wait(&mut self) -> Result<(), ErrorReport> {
        self.sim.run_for(FRAME);
        self.audit()
    }

    fn audit(&mut self) -> Result<(), ErrorReport> {
        self.disagreements += usize::from(!self.path.audit().is_empty());
        Ok(())
    }

    fn look(&self) -> Result<(Account, DemoNote), ErrorReport> {
        let look = self.path.look();
        Ok((look.account, DemoNote::Breaker(look.breaker.to_string())))
    }

    fn is_at_rest(&self) -> Result<bool, ErrorReport> {
        Ok(self.path.is_at_rest())
    }

    fn end(mut self) -> Result<Ended<CallFindings>, ErrorReport> {
        let look = self.path.look();
        self.sim.crash(&self.node);
        let mut dead_letters = BTreeMap::new();
        for letter in &look.dead_letters {
            let why = format!("{} {}", letter.reason.as_str(), letter.failure.code);
            *dead_letters.entry(why).or_default() += 1;
        }
        let arrivals = self.dependency.arrivals();
        let duplicates: u64 = arrivals.values().map(|times| times - 1).sum();
        Ok(Ended {
            demo: Self::NAME,
            seed: self.seed,
            component: ComponentAccount {
                name: Self::NAME.to_owned(),
                kind: ComponentKind::Demo,
                account: look.account,
            },
            is_agreed: self.disagreements == 0 && self.path.audit().is_empty(),
            findings: CallFindings {
                attempts: look.attempts,
                duplicates: i64::try_from(duplicates).unwrap_or(i64::MAX),
                breaker_openings: look.openings,
                dead_letters,
            },
        })
    }
}
