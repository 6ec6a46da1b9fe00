//! The engine of all demos: phases, looks at the books, and the verdict.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::books::{Account, ComponentAccount, Ledger};

use super::{DemoFrame, equation};
use crate::report::ErrorReport;

/// The last phase.
const VERDICT: &str = "verdict";

/// A part of a demo that begins with something.
pub(crate) struct DemoPhase<S> {
    name: &'static str,
    begin: fn(&mut S) -> Result<(), ErrorReport>,
    /// Looks at the demo while it lasts.
    frames: usize,
}

impl<S> DemoPhase<S> {
    pub(super) const fn new(
        name: &'static str,
        begin: fn(&mut S) -> Result<(), ErrorReport>,
        frames: usize,
    ) -> Self {
        Self {
            name,
            begin,
            frames,
        }
    }
}

/// The world of a demo.
pub(crate) trait Scene: Sized + 'static {
    /// The facts that are found out beside the books.
    type Findings: DemoFindings;

    /// The phases before the verdict.
    const PHASES: &'static [DemoPhase<Self>];
    /// The demo ends at the latest so long after its last phase; everything is handled long before.
    const DRAIN_LIMIT: Duration;

    /// The time since the demo began.
    fn now(&self) -> Duration;

    /// Takes on the events of one frame, and lets that pass.
    fn work(&mut self) -> Result<(), ErrorReport>;

    /// Lets one frame pass in which nothing comes in.
    fn wait(&mut self) -> Result<(), ErrorReport>;

    /// Counts the events where they really are, at the end of each phase.
    fn audit(&mut self) -> Result<(), ErrorReport>;

    /// The books, and something else that there is to see.
    fn look(&self) -> Result<(Account, DemoNote), ErrorReport>;

    /// Whether every event has come to its end.
    fn is_at_rest(&self) -> Result<bool, ErrorReport>;

    /// Ends it.
    fn end(self) -> Result<Ended<Self::Findings>, ErrorReport>;
}

/// The remains of a scene.
pub(crate) struct Ended<F> {
    /// The name of the demo.
    pub(super) demo: &'static str,
    pub(super) seed: u64,
    /// The books at the end.
    pub(super) component: ComponentAccount,
    /// Whether no audit found the books wrong.
    pub(super) is_agreed: bool,
    pub(super) findings: F,
}

/// The facts that a demo found out beside the books.
pub(crate) trait DemoFindings: Serialize {
    /// Whether the promise was kept, by these and by the books at the end.
    fn are_good(&self, ledger: &Account) -> bool;

    /// The lines that people read about them.
    fn lines(&self, ledger: &Account) -> Vec<String>;
}

/// Something to see beside the books.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DemoNote {
    /// The state of the breaker.
    Breaker(String),
    /// Consumers that are there.
    Consumers(usize),
    /// Dispatchers that are there.
    Dispatchers(usize),
    /// Relays that are there.
    Relays(usize),
    /// How often a machine died.
    Kills(usize),
}

impl fmt::Display for DemoNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Breaker(state) => write!(f, "breaker {state}"),
            Self::Consumers(count) => write!(f, "consumers {count}"),
            Self::Dispatchers(count) => write!(f, "dispatchers {count}"),
            Self::Relays(count) => write!(f, "relays {count}"),
            Self::Kills(count) => write!(f, "kills {count}"),
        }
    }
}

/// How a phase ended.
#[derive(Debug, Serialize)]
struct PhaseEnd {
    name: &'static str,
    ended_at_ms: u64,
    #[serde(flatten)]
    note: DemoNote,
    account: Account,
}

/// How a demo ended.
#[derive(Debug, Serialize)]
pub(crate) struct DemoVerdict<F> {
    demo: &'static str,
    /// Runs the same demo again: `tidegate demo --seed`.
    seed: String,
    phases: Vec<PhaseEnd>,
    ledger: Account,
    balanced: bool,
    #[serde(flatten)]
    pub(super) findings: F,
}

impl<F: DemoFindings> DemoVerdict<F> {
    /// Balanced, nothing lost, and the findings are good.
    pub(crate) fn is_good(&self) -> bool {
        let is_kept = self.balanced && self.ledger.lost.total() == 0;
        is_kept && self.findings.are_good(&self.ledger)
    }

    /// The lines that people read before the verdict.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![equation(&self.ledger)];
        lines.extend(self.findings.lines(&self.ledger));
        lines
    }

    /// The command that tells the same story again.
    pub(crate) fn again(&self) -> String {
        format!("tidegate demo {} --seed {}", self.demo, self.seed)
    }
}

/// Runs a demo to its end and shows it frame by frame.
pub(crate) fn tell<S: Scene>(
    mut scene: S,
    mut show: impl FnMut(&DemoFrame),
) -> Result<DemoVerdict<S::Findings>, ErrorReport> {
    let last = S::PHASES.len() + 1;
    let mut show = |scene: &S, phase, number| -> Result<(), ErrorReport> {
        let (account, note) = scene.look()?;
        show(&DemoFrame {
            phase,
            number,
            phases: last,
            at: scene.now(),
            account,
            note: note.to_string(),
        });
        Ok(())
    };
    let mut phases = Vec::new();
    for (phase, number) in S::PHASES.iter().zip(1..) {
        (phase.begin)(&mut scene)?;
        for _ in 0..phase.frames {
            scene.work()?;
            show(&scene, phase.name, number)?;
        }
        scene.audit()?;
        phases.push(phase_end(&scene, phase.name)?);
    }
    let end = scene.now() + S::DRAIN_LIMIT;
    while !scene.is_at_rest()? && scene.now() < end {
        scene.wait()?;
        show(&scene, VERDICT, last)?;
    }
    scene.audit()?;
    show(&scene, VERDICT, last)?;
    phases.push(phase_end(&scene, VERDICT)?);
    let ended = scene.end()?;
    let ledger = ended.component.account.clone();
    Ok(DemoVerdict {
        demo: ended.demo,
        seed: format!("{:#x}", ended.seed),
        phases,
        balanced: ended.is_agreed && Ledger::new(vec![ended.component]).balanced,
        ledger,
        findings: ended.findings,
    })
}

fn phase_end(scene: &impl Scene, name: &'static str) -> Result<PhaseEnd, ErrorReport> {
    let (account, note) = scene.look()?;
    Ok(PhaseEnd {
        name,
        ended_at_ms: u64::try_from(scene.now().as_millis()).unwrap_or(u64::MAX),
        note,
        account,
    })
}
