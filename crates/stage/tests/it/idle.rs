//! A stage without work, and one that is stopped in the middle of it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Shutdown, Topic};
use tidegate_log::{Append, Log, Record};
use tidegate_sim::{Sim, SimLog};
use tidegate_stage::StageState;

use crate::deaths::Scenario;
use crate::simulation::{FLOWS, options};

#[test]
fn a_stage_without_work_commits_nothing() {
    for flow in &FLOWS {
        let scenario = Scenario::new(flow, "p", 40);
        let mut sim = Sim::new(7);
        let node = sim.node("worker");
        let env = node.env();
        let log: Arc<dyn Log> = Arc::new(SimLog::new(&env));
        sim.block_on(&node, async move {
            Scenario::fill(
                flow.streams,
                flow.partitions,
                scenario.appends.clone(),
                &*log,
            )
            .await;
            let (stage, books) = (
                scenario.stage(Arc::clone(&log), &env),
                scenario.books(log, &env),
            );
            let (trigger, stop) = Shutdown::new();
            let watched = stage.clone();
            let watching = async {
                loop {
                    let accounts = books.accounts().await.unwrap_or_default();
                    if !accounts.is_empty() && accounts.iter().all(|one| one.account.queued == 0) {
                        break;
                    }
                    env.clock.sleep(Duration::from_millis(200)).await;
                }
                // Timers of the last records have fired after this.
                env.clock.sleep(Duration::from_secs(60)).await;
                let epochs = watched.status().epochs;
                env.clock.sleep(Duration::from_secs(1_800)).await;
                assert_eq!(watched.status().epochs, epochs, "{}", flow.text);
                trigger.stop();
            };
            let (ended, ()) = tokio::join!(stage.run(stop), watching);
            ended.unwrap();
        });
    }
}

#[test]
fn a_stage_that_is_stopped_under_load_ends() {
    for flow in &FLOWS {
        let scenario = Scenario::new(flow, "p", 400);
        let mut sim = Sim::new(9);
        let node = sim.node("worker");
        let env = node.env();
        let log: Arc<dyn Log> = Arc::new(SimLog::new(&env));
        sim.block_on(&node, async move {
            Scenario::fill(
                flow.streams,
                flow.partitions,
                scenario.appends.clone(),
                &*log,
            )
            .await;
            let stage = scenario.stage(Arc::clone(&log), &env);
            let (trigger, stop) = Shutdown::new();
            let watched = stage.clone();
            let topic: Topic = options("p").topic(flow.streams[0]).unwrap();
            let sending = async {
                loop {
                    let record = Record::new("{\"customer\":\"c1\",\"amount\":5}").key("c1");
                    log.append(vec![Append::new(topic.clone(), record)])
                        .await
                        .unwrap();
                    env.clock.sleep(Duration::from_millis(1)).await;
                }
            };
            let stopping = async {
                while watched.status().epochs < 3 {
                    env.clock.sleep(Duration::from_millis(20)).await;
                }
                trigger.stop();
                env.clock.sleep(Duration::from_secs(60)).await;
                panic!("it still runs: {:#?}", watched.status());
            };
            tokio::select! {
                ended = stage.run(stop) => ended.unwrap(),
                () = sending => {}
                () = stopping => {}
            }
            assert_eq!(watched.status().state, StageState::Stopped, "{}", flow.text);
        });
    }
}
