//! A process that dies at each of its calls of the log, and at each operation of its disk.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_core::{Shutdown, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::model::{FlowModel, ModelScript};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::{Append, EmbeddedConfig, EmbeddedLog, Log, LogError, Record, TopicConfig};
use tidegate_sim::{LogKill, NodeLog, Sim, SimLog, is_long};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{Stage, StageBooks, StageOptions};

use crate::simulation::{Expected, FLOWS, Played, START_MS, input, options};

/// A flow with its inputs, in their order, and what the model makes of them.
pub(crate) struct Scenario {
    pub(crate) plan: Arc<FlowPlan>,
    pub(crate) appends: Vec<Append>,
    pub(crate) expected: Expected,
    pub(crate) process: String,
}

impl Scenario {
    /// One stream after the other, so that the order between topics does not matter.
    pub(crate) fn new(flow: &'static Played, process: &str, count: u64) -> Self {
        let text = flow
            .text
            .replace("process p ", &format!("process {process} "));
        let checked = check_flows(&[&text], &Registered::default());
        let plan = Arc::new(checked.plan.unwrap());
        let mut random = Stream::new(11);
        let draw: &mut dyn Entropy = &mut random;
        let mut model = FlowModel::new(&plan, process, ModelScript::default()).unwrap();
        let mut appends = Vec::new();
        for number in 0..count {
            let sending = input(flow.streams[0], number, draw);
            model.send(sending.clone());
            let record = Record::new(sending.value)
                .key(sending.key.unwrap())
                .event_id(sending.id.unwrap())
                .timestamp_ms(START_MS);
            let topic = options(process).topic(&sending.stream).unwrap();
            appends.push(Append::new(topic, record));
        }
        // Only `mode batch` ends.
        model.finish();
        let expected = Expected::of(flow, &model, &plan, process);
        Self {
            plan: Arc::clone(&plan),
            appends,
            expected,
            process: process.to_owned(),
        }
    }

    /// Makes the inputs.
    pub(crate) async fn fill(
        topics: &[&str],
        partitions: i32,
        appends: Vec<Append>,
        log: &dyn Log,
    ) {
        for stream in topics {
            let config = TopicConfig::new(u32::try_from(partitions).unwrap());
            log.create_topic(&Topic::new(*stream).unwrap(), config)
                .await
                .unwrap();
        }
        log.append(appends).await.unwrap();
    }

    pub(crate) fn stage(&self, log: Arc<dyn Log>, env: &Env) -> Stage {
        let mut options = options(&self.process);
        options.parallelism = Some(1);
        self.stage_with(options, log, env)
    }

    pub(crate) fn stage_with(&self, options: StageOptions, log: Arc<dyn Log>, env: &Env) -> Stage {
        let functions = Arc::new(RegisteredFunctions::default());
        Stage::new(Arc::clone(&self.plan), options, functions, log, env).unwrap()
    }

    pub(crate) fn books(&self, log: Arc<dyn Log>, env: &Env) -> StageBooks {
        StageBooks::new(log, env, Arc::clone(&self.plan), options(&self.process)).unwrap()
    }
}

/// Runs until everything is read, or for ever.
async fn until_read(stage: Stage, books: StageBooks, env: Env) {
    let (trigger, stop) = Shutdown::new();
    let running = stage.run(stop);
    let watching = async {
        loop {
            if let Ok(accounts) = books.accounts().await
                && !accounts.is_empty()
                && accounts.iter().all(|one| one.account.queued == 0)
            {
                break;
            }
            env.clock.sleep(Duration::from_millis(200)).await;
        }
        trigger.stop();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = running => ended.unwrap(),
        () = watching => {}
    }
}

/// R02, A08: dead before or after each of its calls of the log.
#[test]
fn r02_a_death_at_each_call_of_the_log_changes_no_result() {
    let stride = if is_long() { 1 } else { 5 };
    for flow in &FLOWS {
        let mut kills = vec![None];
        while let Some(kill) = kills.pop() {
            let scenario = Scenario::new(flow, "p", 40);
            let mut sim = Sim::new(3);
            let (broker, node) = (sim.node("broker"), sim.node("worker"));
            let log = SimLog::new(&broker.env());
            let (filled, appends) = (log.clone(), scenario.appends.clone());
            sim.block_on(&broker, async move {
                Scenario::fill(flow.streams, flow.partitions, appends, &filled).await;
            });
            let of_node = Arc::new(NodeLog::new(Arc::new(log.clone()), &node));
            if let Some(kill) = kill {
                of_node.kill(kill);
            }
            for _ in 0..2 {
                let env = node.env();
                let stage = scenario.stage(Arc::clone(&of_node) as Arc<dyn Log>, &env);
                let books = scenario.books(Arc::new(log.clone()), &env);
                let task = node.start("stage", until_read(stage, books, env));
                let done = sim.block_on(&broker, task.join());
                if node.is_up() {
                    assert_eq!(done, tidegate_core::env::TaskOutcome::Completed, "{kill:?}");
                    break;
                }
                sim.restart(&node);
            }
            let (expected, plan, env) = (scenario.expected, scenario.plan, broker.env());
            let log: Arc<dyn Log> = Arc::new(log);
            sim.block_on(&broker, async move {
                expected.check(log, &env, plan, options("p")).await;
            });
            if kill.is_none() {
                kills.extend(LogKill::each(of_node.calls()).step_by(stride).map(Some));
            }
        }
    }
}

async fn open(env: &Env) -> Result<Arc<dyn Log>, LogError> {
    let config = EmbeddedConfig::new("/log");
    Ok(Arc::new(EmbeddedLog::open(env, config)?))
}

/// R02, A08: the power goes at each operation of the disk that holds the log.
#[test]
fn r02_a_power_cut_at_each_operation_of_the_disk_changes_no_result() {
    let stride = if is_long() { 3 } else { 41 };
    for flow in [&FLOWS[2], &FLOWS[4]] {
        let mut kill = 0_u64;
        loop {
            let scenario = Scenario::new(flow, "p", 40);
            let mut sim = Sim::new(5 + kill);
            let node = sim.node("machine");
            let (env, appends) = (node.env(), scenario.appends.clone());
            sim.block_on(&node, async move {
                let log = open(&env).await.unwrap();
                Scenario::fill(flow.streams, flow.partitions, appends, &*log).await;
            });
            sim.kill(&node);
            sim.restart(&node);
            let began = node.disk().operations();
            if kill > 0 {
                node.disk().kill_at(began + kill);
            }
            let observer = sim.node("observer");
            let mut was_cut = false;
            for _ in 0..2 {
                let env = node.env();
                let (plan, process) = (Arc::clone(&scenario.plan), scenario.process.clone());
                let task = node.start("process", async move {
                    let log = open(&env).await.unwrap();
                    let functions = Arc::new(RegisteredFunctions::default());
                    let mut settings = options(&process);
                    settings.parallelism = Some(1);
                    let stage = Stage::new(
                        Arc::clone(&plan),
                        settings,
                        functions,
                        Arc::clone(&log),
                        &env,
                    )
                    .unwrap();
                    let books = StageBooks::new(log, &env, plan, options(&process)).unwrap();
                    until_read(stage, books, env).await;
                });
                let done = sim.block_on(&observer, task.join());
                if node.is_up() {
                    assert_eq!(
                        done,
                        tidegate_core::env::TaskOutcome::Completed,
                        "cut {kill}"
                    );
                    break;
                }
                was_cut = true;
                sim.restart(&node);
            }
            let operations = node.disk().operations() - began;
            sim.kill(&node);
            sim.restart(&node);
            let (expected, plan, env) = (scenario.expected, scenario.plan, node.env());
            sim.block_on(&node, async move {
                let log = open(&env).await.unwrap();
                expected.check(log, &env, plan, options("p")).await;
            });
            if kill > 0 && !was_cut {
                assert!(operations > 10, "the stage wrote");
                break;
            }
            kill += stride;
        }
    }
}
