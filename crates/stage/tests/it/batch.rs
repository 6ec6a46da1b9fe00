//! `mode batch`: it ends when everything passed, and not before.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Shutdown;
use tidegate_core::env::{Entropy, Stream};
use tidegate_log::Log;
use tidegate_sim::{LogRates, Sim, SimLog};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{Stage, StageState};

use crate::deaths::Scenario;
use crate::simulation::{Played, options};

const BATCHES: [Played; 3] = [
    Played {
        text: "process p mode batch receive orders filter amount > 3 emit to big end",
        partitions: 3,
        streams: &["orders"],
        state: None,
        is_ordered: true,
    },
    // Every record passes a topic of the stage's own.
    Played {
        text: "process p mode batch partition by amount receive orders filter amount > 3 emit to big end",
        partitions: 3,
        streams: &["orders"],
        state: None,
        is_ordered: false,
    },
    // At the end all records are still waiting for a payment.
    Played {
        text: "process p mode batch receive orders receive payments \
               join orders with payments on customer within 1 day type left emit to matched end",
        partitions: 3,
        streams: &["orders", "payments"],
        state: None,
        is_ordered: false,
    },
];

fn play(flow: &'static Played, seed: u64) {
    let scenario = Scenario::new(flow, "p", 200);
    let mut sim = Sim::new(seed);
    let mut script: Stream = sim.entropy("script");
    let draw: &mut dyn Entropy = &mut script;
    let broker = sim.node("broker");
    let log = SimLog::new(&broker.env());
    log.set_holes(seed.is_multiple_of(2));
    let (filled, appends) = (log.clone(), scenario.appends.clone());
    sim.block_on(&broker, async move {
        Scenario::fill(flow.streams, flow.partitions, appends, &filled).await;
    });
    log.set_rates(LogRates {
        refuse: draw.below(20),
        lose_answer: draw.below(20),
        lose_request: draw.below(20),
        delay: Duration::from_millis(draw.below(30)),
    });
    let mut stages = Vec::new();
    for number in 0..2 {
        let node = sim.node(&format!("worker-{number}"));
        let mut settings = options("p");
        settings.instance = format!("{number}-p");
        let functions = Arc::new(RegisteredFunctions::default());
        let (plan, of_node) = (Arc::clone(&scenario.plan), Arc::new(log.clone()));
        let stage = Stage::new(plan, settings, functions, of_node, &node.env()).unwrap();
        stages.push(stage.clone());
        drop(node.start("stage", async move {
            let (_trigger, stop) = Shutdown::new();
            stage.run(stop).await.unwrap();
        }));
        sim.run_for(Duration::from_millis(draw.below(1_500)));
    }
    let has_ended = || {
        let mut stages = stages.iter();
        stages.all(|stage| stage.state() == StageState::Stopped)
    };
    assert!(
        sim.run_until(Duration::from_secs(900), has_ended),
        "seed {seed}: {stages:#?}"
    );
    log.set_rates(LogRates::default());
    let (expected, plan, env) = (scenario.expected, scenario.plan, broker.env());
    let log: Arc<dyn Log> = Arc::new(log);
    sim.block_on(&broker, async move {
        expected.check(log, &env, plan, options("p")).await;
    });
}

/// Two processes share the partitions, start at different times, and end by themselves.
#[test]
fn a_batch_ends_when_everything_passed_and_not_before() {
    for flow in &BATCHES {
        for seed in 0..20 {
            play(flow, seed);
        }
    }
}
