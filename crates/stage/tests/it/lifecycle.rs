//! How stages end: failures that a new start mends, and others.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_core::{Shutdown, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_log::{
    Append, EmbeddedConfig, EmbeddedLog, Log, LogError, Record, TopicConfig, TopicPartition,
};
use tidegate_sim::{Sim, SimLog};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{Stage, StageState, StageStatus};

use crate::simulation::options;
use crate::wrapped::{Poll, WrappedLog};

const COPY: &str = "process p receive orders emit to big end";

fn stage(flow: &str, instance: &str, log: Arc<dyn Log>, env: &Env) -> Stage {
    let plan = check_flows(&[flow], &Registered::default()).plan.unwrap();
    let mut options = options("p");
    options.instance = instance.to_owned();
    let functions = Arc::new(RegisteredFunctions::default());
    Stage::new(Arc::new(plan), options, functions, log, env).unwrap()
}

async fn make_orders(log: &dyn Log, partitions: u32) {
    let orders = Topic::new("orders").unwrap();
    log.create_topic(&orders, TopicConfig::new(partitions))
        .await
        .unwrap();
}

async fn send(log: &dyn Log, value: &str) {
    let record = Record::new(value.to_owned()).key("a");
    let append = Append::new(Topic::new("orders").unwrap(), record);
    log.append(vec![append]).await.unwrap();
}

/// Waits until a stage is as asked, at most a minute of its clock.
async fn until(stage: &Stage, env: &Env, is_so: impl Fn(&StageStatus) -> bool) -> StageStatus {
    for _ in 0..6_000 {
        let status = stage.status();
        if is_so(&status) {
            return status;
        }
        env.clock.sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not happen: {:#?}", stage.status());
}

async fn has_tasks(stage: &Stage, env: &Env) {
    until(stage, env, |status| !status.tasks.is_empty()).await;
}

/// R01: one of two shards panics while the other one works on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_a_shard_that_panics_fails_the_stage() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir.path())).unwrap();
    make_orders(&log, 3).await;
    let poll: Poll = Arc::new(|member: &str| match member.ends_with("-1") {
        true => panic!("planted by a test"),
        false => None,
    });
    let wrapped = WrappedLog {
        poll,
        ..WrappedLog::new(Arc::new(log.clone()))
    };
    let stage = stage(COPY, "one", Arc::new(wrapped), &env);
    let (_trigger, stop) = Shutdown::new();
    let running = tokio::spawn({
        let stage = stage.clone();
        async move { stage.run(stop).await }
    });
    let status = until(&stage, &env, |status| status.failure.is_some()).await;
    let failure = status.failure.unwrap();
    assert_eq!(
        (failure.code.as_str(), failure.is_lasting),
        ("stage.panic", false)
    );
    running.abort();
    running.await.ok();
    log.close().await;
}

/// A broker that refuses for good is told, and does not look like a stage without work.
#[test]
fn a_lasting_error_of_a_poll_fails_the_stage() {
    let mut sim = Sim::new(5);
    let node = sim.node("worker");
    let env = node.env();
    let log: Arc<dyn Log> = Arc::new(SimLog::new(&env));
    sim.block_on(&node, async move {
        make_orders(&*log, 1).await;
        let poll: Poll = Arc::new(|_: &str| {
            Some(LogError::Refused {
                doing: "reading",
                why: "the group is not allowed".to_owned(),
            })
        });
        let wrapped = WrappedLog {
            poll,
            ..WrappedLog::new(log)
        };
        let stage = stage(COPY, "one", Arc::new(wrapped), &env);
        let (trigger, stop) = Shutdown::new();
        let watching = async {
            let status = until(&stage, &env, |status| status.failure.is_some()).await;
            assert_eq!(status.failure.unwrap().code, "log.refused");
            trigger.stop();
        };
        let (ended, ()) = tokio::join!(stage.run(stop), watching);
        assert_eq!(ended.unwrap_err().code.as_str(), "log.refused");
    });
}

/// State of another plan is refused by name, at once, and once.
#[test]
fn state_of_another_plan_stays_failed() {
    let flow = |key: &str| {
        format!(
            "process p receive orders transform state.total = state.total + amount emit to big \
             state local total keyed by {key} type counter end"
        )
    };
    let mut sim = Sim::new(5);
    let node = sim.node("worker");
    let env = node.env();
    let log: Arc<dyn Log> = Arc::new(SimLog::new(&env));
    sim.block_on(&node, async move {
        make_orders(&*log, 1).await;
        send(&*log, r#"{"customer":"a","amount":5}"#).await;
        let before = stage(&flow("customer"), "one", Arc::clone(&log), &env);
        let (trigger, stop) = Shutdown::new();
        let watching = async {
            until(&before, &env, |status| status.records_in == 1).await;
            trigger.stop();
        };
        let (ended, ()) = tokio::join!(before.run(stop), watching);
        ended.unwrap();
        let after = stage(&flow("region"), "one", log, &env);
        let (_trigger, stop) = Shutdown::new();
        let failure = after.run(stop).await.unwrap_err();
        assert_eq!(failure.code.as_str(), "stage.state.incompatible");
        let status = after.status();
        assert_eq!((status.state, status.starts), (StageState::Failed, 1));
        let told = status.failure.unwrap();
        assert!(told.is_lasting && told.hint.is_some(), "{told:?}");
    });
}

/// R04, R08: the second program with the same name goes on, and the first one says why it does not. One of its
/// shards has no partition, and so does not see by itself who ended it.
#[test]
fn r04_a_stage_whose_name_was_taken_stays_failed() {
    for seed in 0..20 {
        let mut sim = Sim::new(seed);
        let node = sim.node("worker");
        let env = node.env();
        let log: Arc<dyn Log> = Arc::new(SimLog::new(&env));
        sim.block_on(&node, async move {
            make_orders(&*log, 3).await;
            let others = stage(COPY, "others", Arc::clone(&log), &env);
            let first = stage(COPY, "same", Arc::clone(&log), &env);
            let second = stage(COPY, "same", log, &env);
            let (stop_others, of_others) = Shutdown::new();
            let (_first, of_first) = Shutdown::new();
            let (stop_second, of_second) = Shutdown::new();
            let taking = async {
                has_tasks(&others, &env).await;
                has_tasks(&first, &env).await;
                let ending = async {
                    until(&first, &env, |status| status.state == StageState::Failed).await;
                    has_tasks(&second, &env).await;
                    stop_second.stop();
                    stop_others.stop();
                };
                let (ended, ()) = tokio::join!(second.run(of_second), ending);
                ended.unwrap();
            };
            let (ended, first_ended, ()) =
                tokio::join!(others.run(of_others), first.run(of_first), taking);
            ended.unwrap();
            let code = first_ended.unwrap_err().code;
            assert_eq!(code.as_str(), "stage.instance.taken", "seed {seed}");
            assert_eq!(first.status().starts, 1, "seed {seed}");
        });
    }
}

/// R02: a process dies before its first commit is done. On a broker the aborted commit takes offsets of the
/// changelog, and nobody sees a record there.
#[test]
fn r02_a_death_before_the_first_commit_leaves_a_stage_that_starts() {
    let mut sim = Sim::new(5);
    let (broker, node) = (sim.node("broker"), sim.node("worker"));
    let log = SimLog::new(&broker.env());
    log.set_holes(true);
    let made = log.clone();
    sim.block_on(&broker, async move {
        make_orders(&made, 1).await;
        send(&made, r#"{"amount":1}"#).await;
    });
    log.inject(tidegate_sim::LogFault::LoseRequest);
    let (of_node, env) = (log.clone(), node.env());
    let first = node.start("first", async move {
        let stage = stage(COPY, "one", Arc::new(of_node), &env);
        let (_trigger, stop) = Shutdown::new();
        stage.run(stop).await.ok();
    });
    assert!(sim.run_until(Duration::from_secs(60), || log.faults_left() == 0));
    sim.crash(&node);
    drop(first);
    sim.restart(&node);
    let at = TopicPartition::new(Topic::new("stage.p.changelog").unwrap(), 0);
    let (of_node, env) = (log.clone(), node.env());
    sim.block_on(&node, async move {
        let described = of_node.describe(&at.topic).await.unwrap();
        let found = described.partitions[0];
        assert!(found.end > found.start, "the aborted commit took offsets");
        let stage = stage(COPY, "one", Arc::new(of_node.clone()), &env);
        let (trigger, stop) = Shutdown::new();
        let watching = async {
            until(&stage, &env, |status| status.records_in == 1).await;
            trigger.stop();
        };
        let (ended, ()) = tokio::join!(stage.run(stop), watching);
        ended.unwrap();
        assert_eq!(stage.status().starts, 1);
    });
}
