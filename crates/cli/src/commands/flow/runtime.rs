//! The process of a test on the real runtime: a stage on one simulated machine, and its log on another one.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::Shutdown;
use tidegate_flow::model::{ModelInput, ModelScript};
use tidegate_flow::plan::FlowPlan;
use tidegate_flow::scenario::{
    ScenarioFile, ScenarioLook, ScenarioProcess, ScenarioStep, ScenarioStop,
};
use tidegate_log::Log;
use tidegate_sim::{LogKill, Node, NodeLog, Sim, SimLog};
use tidegate_stage::scenario::PlayedStage;
use tidegate_stage::{Stage, StageState};

/// The seed of every play: a test has one story.
const SEED: u64 = 1;
/// Looks at a process that does not come to rest.
const LOOKS: usize = 10_000;
/// How long a batch may take.
const BATCH_LIMIT: Duration = Duration::from_secs(30 * 86_400);

/// Plays one test. With kills, it is repeated with a death before and after each call of the log.
pub(super) fn play(file: &ScenarioFile, number: usize, kills: bool) -> ScenarioStep<u64> {
    let (played, calls) = play_once(file, number, None);
    played?;
    if !kills {
        return Ok(0);
    }
    if file.script()?.heals() {
        let why = "a lookup that fails so many times answers otherwise when a record is read again";
        return Err(ScenarioStop::Skipped(why.to_owned()));
    }
    let mut died = 0;
    for kill in LogKill::each(calls) {
        let (played, _) = play_once(file, number, Some(kill));
        played.map_err(|stop| match stop {
            ScenarioStop::Failure(why) => {
                ScenarioStop::Failure(format!("with a death {}: {why}", shown(kill)))
            }
            ScenarioStop::Skipped(_) => stop,
        })?;
        died += 1;
    }
    Ok(died)
}

fn shown(kill: LogKill) -> String {
    match kill {
        LogKill::Before(call) => format!("before call {call} of the log"),
        LogKill::After(call) => format!("after call {call} of the log"),
    }
}

fn play_once(file: &ScenarioFile, number: usize, kill: Option<LogKill>) -> (ScenarioStep, u64) {
    let made = file
        .script()
        .and_then(|script| RuntimeProcess::new(file.plan(), file.process(), script, kill));
    match made {
        Ok(mut process) => {
            let played = file.play(number, &mut process);
            (played, process.of_node.calls())
        }
        Err(stop) => (Err(stop), 0),
    }
}

/// A stage on a simulated machine.
struct RuntimeProcess {
    sim: Sim,
    broker: Node,
    worker: Node,
    of_node: Arc<NodeLog>,
    played: Arc<PlayedStage>,
    stage: Option<Stage>,
    has_died: bool,
}

impl RuntimeProcess {
    fn new(
        plan: &FlowPlan,
        process: &str,
        script: ModelScript,
        kill: Option<LogKill>,
    ) -> ScenarioStep<Self> {
        let mut sim = Sim::new(SEED);
        let (broker, worker) = (sim.node("broker"), sim.node("worker"));
        let log = SimLog::new(&broker.env());
        let of_node = Arc::new(NodeLog::new(Arc::new(log.clone()), &worker));
        if let Some(kill) = kill {
            of_node.kill(kill);
        }
        let on: Arc<dyn Log> = Arc::new(log);
        let played = Arc::new(PlayedStage::new(plan, process, script, (on, ""))?);
        let of_broker = Arc::clone(&played);
        sim.block_on(&broker, async move { of_broker.make_inputs().await })?;
        Ok(Self {
            sim,
            broker,
            worker,
            of_node,
            played,
            stage: None,
            has_died: false,
        })
    }

    fn now_ms(&self) -> u64 {
        self.worker.env().clock.now_ms()
    }

    /// Sets the clock and starts the stage, where that did not happen yet.
    fn begin(&mut self, at: Option<Timestamp>) -> ScenarioStep {
        if self.stage.is_none() && !self.has_died {
            let at = at.map_or(0, Timestamp::as_millisecond);
            let now = i64::try_from(self.now_ms()).unwrap_or(0);
            self.worker.set_clock_offset_ms(at - now);
            if !self.played.is_batch() {
                self.start()?;
            }
        }
        Ok(())
    }

    fn start(&mut self) -> ScenarioStep {
        let env = self.worker.env();
        let log: Arc<dyn Log> = Arc::clone(&self.of_node) as Arc<dyn Log>;
        let stage = self.played.stage(log, &env)?;
        self.stage = Some(stage.clone());
        drop(self.worker.start("stage", async move {
            let (_trigger, stop) = Shutdown::new();
            stage.run(stop).await.ok();
            std::future::pending::<()>().await;
        }));
        Ok(())
    }

    /// Starts the machine again if it died.
    fn revive(&mut self) -> ScenarioStep<bool> {
        if self.worker.is_up() {
            return Ok(false);
        }
        self.has_died = true;
        self.sim.restart(&self.worker);
        self.start()?;
        Ok(true)
    }

    /// Lets everything happen that happens without waiting, and more where something waits for the clock.
    fn settle(&mut self) -> ScenarioStep {
        for _ in 0..LOOKS {
            self.sim.run_for(Duration::ZERO);
            if self.revive()? {
                continue;
            }
            let Some(stage) = self.stage.clone() else {
                return Ok(());
            };
            let status = stage.status();
            if let Some(failure) = status.failure.filter(|failure| failure.is_lasting) {
                let message = format!("the stage failed: {}: {}", failure.code, failure.message);
                return Err(ScenarioStop::Failure(message));
            }
            let (played, env) = (Arc::clone(&self.played), self.broker.env());
            let is_at_rest = self.sim.block_on(&self.broker, async move {
                let books = played.books(&env)?;
                Ok::<_, ScenarioStop>(played.is_read(&books).await? && stage.is_at_rest().await)
            })?;
            if is_at_rest {
                return Ok(());
            }
            self.sim.run_for(Duration::from_millis(1));
        }
        let status = self.stage.as_ref().map(Stage::status);
        let message = format!("the stage does not come to rest: {status:?}");
        Err(ScenarioStop::Failure(message))
    }
}

impl ScenarioProcess for RuntimeProcess {
    fn send(&mut self, input: ModelInput) -> ScenarioStep {
        self.begin(input.at)?;
        let at = input.at.map_or(0, Timestamp::as_millisecond);
        let at = u64::try_from(at).unwrap_or(0);
        let ahead = at.saturating_sub(self.now_ms());
        if ahead > 0 {
            self.advance(Duration::from_millis(ahead))?;
        }
        let (played, now) = (Arc::clone(&self.played), self.now_ms());
        self.sim
            .block_on(&self.broker, async move { played.send(input, now).await })?;
        self.settle()
    }

    fn advance(&mut self, by: Duration) -> ScenarioStep {
        self.begin(None)?;
        let end = self.sim.now() + by;
        loop {
            let left = end.saturating_sub(self.sim.now());
            let worker = self.worker.clone();
            self.sim.run_until(left, || !worker.is_up());
            if !self.revive()? {
                return self.settle();
            }
        }
    }

    fn crash(&mut self) -> ScenarioStep {
        self.begin(None)?;
        self.sim.crash(&self.worker);
        self.revive()?;
        self.settle()
    }

    fn finish(&mut self) -> ScenarioStep {
        if !self.played.is_batch() {
            return Ok(());
        }
        self.begin(None)?;
        self.start()?;
        let end = self.sim.now() + BATCH_LIMIT;
        while self.sim.now() < end {
            let (worker, stage) = (self.worker.clone(), self.stage.clone());
            let has_ended = || {
                let mut stage = stage.iter();
                !worker.is_up() || stage.any(|stage| stage.state() == StageState::Stopped)
            };
            let left = end.saturating_sub(self.sim.now());
            self.sim.run_until(left, has_ended);
            if !self.revive()? {
                break;
            }
        }
        let stage = self.stage.take();
        match stage.map(|stage| stage.status()) {
            Some(status) if status.state == StageState::Stopped => Ok(()),
            status => {
                let message = format!("the batch does not end: {status:?}");
                Err(ScenarioStop::Failure(message))
            }
        }
    }

    fn set_slow(&mut self, _: bool) -> ScenarioStep {
        let why = "nothing but the load makes a stage slow";
        Err(ScenarioStop::Skipped(why.to_owned()))
    }

    fn look(&mut self) -> ScenarioStep<ScenarioLook> {
        loop {
            let (played, env) = (Arc::clone(&self.played), self.broker.env());
            let (stage, counts_metrics) = (self.stage.clone(), !self.has_died);
            let looked = self.sim.block_on(&self.broker, async move {
                let books = played.books(&env)?;
                played.look(&books, stage.as_ref(), counts_metrics).await
            });
            if self.worker.is_up() {
                return looked;
            }
            // It died while it was looked at.
            self.settle()?;
        }
    }
}
