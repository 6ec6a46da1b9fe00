//! Checkpoints, and the way back to one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::AuditVerdict;
use tidegate_core::env::{Env, OpenMode};
use tidegate_core::{EventId, Offset, Shutdown};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::{Log, Read, TopicPartition};
use tidegate_sim::SimLog;
use tidegate_stage::{CheckpointOptions, StageCheckpoints, StageOptions};

use crate::epochs::{Running, on_node, order, payments, plan, topic};
use crate::simulation::options;

const COUNTS: &str = "process p receive orders transform state.n = state.n + 1 n = state.n emit to totals \
                      state local n keyed by customer type counter end";

fn settings() -> StageOptions {
    let mut settings = options("p");
    settings.checkpoints = Some(CheckpointOptions {
        dir: "/checkpoints/p".into(),
        retain: 3,
    });
    settings
}

/// A stage of this plan; each has its own, as each process does.
fn running(plan: &Arc<FlowPlan>, log: &SimLog, env: &Env) -> (Running, StageCheckpoints) {
    let running = Running::new(plan, settings(), log, env);
    let checkpoints = running.stage.open_checkpoints().unwrap();
    (running, checkpoints)
}

async fn ids(log: &SimLog, name: &str) -> Vec<EventId> {
    let mut ids = Vec::new();
    let partitions = log.describe(&topic(name)).await.unwrap().partitions;
    for partition in partitions {
        let at = TopicPartition::new(topic(name), partition.partition.0);
        let read = Read::new(at, Offset(0));
        let records = log.read(read).await.unwrap().records;
        let found = records
            .iter()
            .map(|stored| stored.record.headers.event_id());
        ids.extend(found.map(Option::unwrap));
    }
    ids
}

async fn lost_nothing(running: &Running) {
    for one in running.books.audit().await.unwrap() {
        assert_ne!(one.verdict(), AuditVerdict::Loss, "{one:#?}");
    }
    for one in running.books.accounts().await.unwrap() {
        assert!(one.account.is_balanced(), "{one:#?}");
    }
}

/// R06: by call and at the stop; a stage that goes back to one does the rest again, with the same results.
#[test]
fn r06_a_stage_goes_back_to_a_checkpoint_and_does_the_rest_again() {
    on_node(3, |log, env| async move {
        let plan = plan(COUNTS);
        let (running, checkpoints) = running(&plan, &log, &env);
        // The tasks of two partitions have nothing yet.
        for _ in 0..50 {
            order(&log, 0, 10).await;
        }
        running.run(Duration::ZERO).await;
        assert_eq!(checkpoints.numbers().unwrap(), [1], "at the stop");
        for number in 0..50 {
            order(&log, number % 7, 10).await;
        }
        running.run(Duration::ZERO).await;
        let values = running.books.values("n").await.unwrap();
        let before = ids(&log, "totals").await;
        assert_eq!((values.len(), before.len()), (7, 100));

        let restored = checkpoints.restore(Some(1)).await.unwrap();
        assert_eq!((restored.checkpoint, restored.again), (Some(1), 50));
        let back = running.books.values("n").await.unwrap();
        let sum = |values: &BTreeMap<String, String>| -> u64 {
            values.values().map(|n| n.parse::<u64>().unwrap()).sum()
        };
        assert_eq!(sum(&back), 50);
        lost_nothing(&running).await;

        running.run(Duration::ZERO).await;
        assert_eq!(running.books.values("n").await.unwrap(), values);
        let after = ids(&log, "totals").await;
        assert_eq!(after.len(), 150);
        let unique = |ids: &[EventId]| ids.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(unique(&after), unique(&before), "the same ids come again");
        lost_nothing(&running).await;
    });
}

/// R06: records that wait are in a checkpoint, too, and go on waiting.
#[test]
fn r06_records_that_wait_are_in_a_checkpoint() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        let plan = plan(crate::epochs::WAITS);
        let (running, checkpoints) = running(&plan, &log, &env);
        for number in 0..30 {
            order(&log, number, 10).await;
        }
        running.run(Duration::ZERO).await;
        let waiting = running.books.pending().await.unwrap();
        assert_eq!(waiting.len(), 30);
        checkpoints.restore(None).await.unwrap();
        assert_eq!(running.books.pending().await.unwrap(), waiting);
        lost_nothing(&running).await;
        running.run(Duration::ZERO).await;
        assert_eq!(running.books.pending().await.unwrap(), waiting);
        lost_nothing(&running).await;
    });
}

/// R07: a damaged checkpoint is not used, and the one before it is. Three are kept.
#[test]
fn r07_a_damaged_checkpoint_is_detected_and_the_one_before_it_is_used() {
    on_node(1, |log, env| async move {
        let plan = plan(COUNTS);
        let (running, checkpoints) = running(&plan, &log, &env);
        for round in 0..4 {
            for number in 0..10 {
                order(&log, round * 10 + number, 10).await;
            }
            running.run(Duration::ZERO).await;
        }
        assert_eq!(checkpoints.numbers().unwrap(), [4, 3, 2]);
        let dir = std::path::Path::new("/checkpoints/p");
        let names = env.disk.list(dir).unwrap();
        let of_last = |name: &&str| name.starts_with("0000000004.") && name.ends_with(".frames");
        let names: Vec<&str> = names.iter().map(|entry| entry.name.as_str()).collect();
        assert!(
            names.iter().all(|name| !name.starts_with("0000000001")),
            "{names:?}"
        );
        let last = names.iter().copied().find(of_last).unwrap();
        let mut file = env.disk.open(&dir.join(last), OpenMode::Write).unwrap();
        let mut byte = [0];
        file.read_at(40, &mut byte).unwrap();
        file.write_at(40, &[byte[0] ^ 1]).unwrap();
        file.sync().unwrap();
        drop(file);
        let error = checkpoints.restore(Some(4)).await.unwrap_err();
        assert_eq!(error.code.as_str(), "stage.checkpoint.damaged");
        let error = checkpoints.restore(Some(1)).await.unwrap_err();
        assert_eq!(error.code.as_str(), "stage.checkpoint.none");
        // A refused restore changed nothing.
        assert_eq!(running.books.values("n").await.unwrap().len(), 40);
        let restored = checkpoints.restore(None).await.unwrap();
        assert_eq!((restored.checkpoint, restored.again), (Some(3), 10));
        assert_eq!(running.books.values("n").await.unwrap().len(), 30);
        lost_nothing(&running).await;
    });
}

/// The broker forgot the offsets: the stage says so, and goes on from those in its changelog.
#[test]
fn offsets_that_were_forgotten_are_restored_from_the_changelog() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        let plan = plan(crate::epochs::WAITS);
        let (running, checkpoints) = running(&plan, &log, &env);
        for number in 0..30 {
            order(&log, number, 10).await;
        }
        running.run(Duration::ZERO).await;
        let waiting = running.books.pending().await.unwrap();
        log.forget_group(&options("p").group).await.unwrap();
        let (_trigger, stop) = Shutdown::new();
        let failure = running.stage.run(stop).await.unwrap_err();
        assert_eq!(failure.code.as_str(), "stage.offset.forgotten");
        let restored = checkpoints.restore_offsets().await.unwrap();
        assert_eq!(restored.checkpoint, None);
        running.run(Duration::ZERO).await;
        assert_eq!(running.books.pending().await.unwrap(), waiting);
        lost_nothing(&running).await;
    });
}

/// A stage that runs is not taken back under its feet.
#[test]
fn a_stage_that_runs_is_not_restored() {
    on_node(1, |log, env| async move {
        let plan = plan(COUNTS);
        let (running, checkpoints) = running(&plan, &log, &env);
        order(&log, 1, 10).await;
        running.run(Duration::ZERO).await;
        let (trigger, stop) = Shutdown::new();
        let restoring = async {
            while running.stage.status().tasks.is_empty() {
                env.clock.sleep(Duration::from_millis(50)).await;
            }
            let error = checkpoints.restore(None).await.unwrap_err();
            assert_eq!(error.code.as_str(), "stage.restore.running");
            trigger.stop();
        };
        let (ended, ()) = tokio::join!(running.stage.run(stop), restoring);
        ended.unwrap();
        assert_eq!(running.books.values("n").await.unwrap().len(), 1);
    });
}
