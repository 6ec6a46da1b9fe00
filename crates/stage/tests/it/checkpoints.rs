//! Checkpoints, and the way back to one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::AuditVerdict;
use tidegate_core::env::{Env, OpenMode};
use tidegate_core::{EventId, Offset, Shutdown};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::{Log, Read, TopicPartition};
use tidegate_sim::{FaultKind, LogRates, Operation, Sim, SimLog};
use tidegate_stage::{CheckpointMode, CheckpointOptions, StageCheckpoints};

use crate::epochs::{Running, on_node, order, payments, plan, topic};
use crate::simulation::options;

const COUNTS: &str = "process p receive orders transform state.n = state.n + 1 n = state.n emit to totals \
                      state local n keyed by customer type counter end";
const DIR: &str = "/checkpoints/p";
const MODES: [CheckpointMode; 2] = [CheckpointMode::Full, CheckpointMode::Incremental];

fn kept(mode: CheckpointMode) -> CheckpointOptions {
    CheckpointOptions {
        mode,
        ..CheckpointOptions::new(DIR)
    }
}

/// A stage of this plan; each has its own, as each process does.
fn running(
    plan: &Arc<FlowPlan>,
    log: &SimLog,
    env: &Env,
    kept: CheckpointOptions,
) -> (Running, StageCheckpoints) {
    let mut settings = options("p");
    settings.checkpoints = Some(kept);
    let running = Running::new(plan, settings, log, env);
    let checkpoints = running.stage.open_checkpoints().unwrap();
    (running, checkpoints)
}

async fn orders(log: &SimLog, numbers: std::ops::Range<usize>, keys: usize) {
    for number in numbers {
        order(log, number % keys, 10).await;
    }
}

fn sum(values: &BTreeMap<String, String>) -> u64 {
    values.values().map(|n| n.parse::<u64>().unwrap()).sum()
}

fn names(env: &Env) -> Vec<String> {
    let entries = env.disk.list(Path::new(DIR)).unwrap_or_default();
    entries.into_iter().map(|entry| entry.name).collect()
}

/// Turns a bit of a file.
fn damage(env: &Env, name: &str) {
    let mut file = env
        .disk
        .open(&Path::new(DIR).join(name), OpenMode::Write)
        .unwrap();
    let mut byte = [0];
    file.read_at(40, &mut byte).unwrap();
    file.write_at(40, &[byte[0] ^ 1]).unwrap();
    file.sync().unwrap();
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
    for mode in MODES {
        on_node(3, move |log, env| async move {
            let plan = plan(COUNTS);
            let (running, checkpoints) = running(&plan, &log, &env, kept(mode));
            // The tasks of two partitions have nothing yet.
            orders(&log, 0..50, 1).await;
            running.run(Duration::ZERO).await;
            let numbers = checkpoints.numbers().await.unwrap();
            assert_eq!(numbers, [1], "at the stop");
            orders(&log, 0..50, 7).await;
            running.run(Duration::ZERO).await;
            let values = running.books.values("n").await.unwrap();
            let before = ids(&log, "totals").await;
            assert_eq!((values.len(), before.len()), (7, 100));

            let restored = checkpoints.restore(Some(1)).await.unwrap();
            assert_eq!((restored.checkpoint, restored.again), (Some(1), 50));
            let back = running.books.values("n").await.unwrap();
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
}

/// R06: a full and an incremental checkpoint of one moment give the same state. One that is on top of another has only
/// what came since, and is whole again once that is half as much.
#[test]
fn r06_full_and_incremental_checkpoints_give_the_same_state() {
    on_node(1, |log, env| async move {
        let plan = plan(COUNTS);
        let (running, checkpoints) = running(&plan, &log, &env, kept(CheckpointMode::Incremental));
        orders(&log, 0..200, 200).await;
        running.run(Duration::ZERO).await;
        let mut sizes = Vec::new();
        for round in 0..6 {
            orders(&log, round * 30..round * 30 + 30, 200).await;
            running.run(Duration::ZERO).await;
            let manifest = checkpoints.take().await.unwrap();
            let files = manifest.tasks[0].files.iter();
            sizes.push(files.map(|file| file.bytes).collect::<Vec<u64>>());
        }
        let whole = sizes[0][0];
        assert!(sizes[0].len() == 2 && sizes[0][1] < whole / 2, "{sizes:?}");
        assert!(sizes.iter().any(|files| files.len() == 1), "{sizes:?}");
        let values = running.books.values("n").await.unwrap();
        let full = StageCheckpoints::new(
            {
                let mut settings = options("p");
                settings.checkpoints = Some(kept(CheckpointMode::Full));
                Running::new(&plan, settings, &log, &env).books
            },
            &env,
        );
        let full = full.unwrap().take().await.unwrap();
        assert_eq!(full.tasks[0].files.len(), 1);
        for number in [full.number, full.number - 1] {
            let restored = checkpoints.restore(Some(number)).await.unwrap();
            assert_eq!(restored.again, 0);
            assert_eq!(running.books.values("n").await.unwrap(), values);
            lost_nothing(&running).await;
        }
    });
}

/// R06: by time and by count, as the flow says.
#[test]
fn r06_checkpoints_are_taken_as_the_flow_says() {
    for (every, wait, taken) in [("30 seconds", 6, 15..=21), ("25 records", 1, 3..=5)] {
        on_node(1, move |log, env| async move {
            let plan = plan(&COUNTS.replace(" end", &format!(" checkpoint every {every} end")));
            let (running, checkpoints) =
                running(&plan, &log, &env, kept(CheckpointMode::Incremental));
            let sending = async {
                for number in 0..100 {
                    order(&log, number, 10).await;
                    env.clock.sleep(Duration::from_secs(wait)).await;
                }
            };
            let (trigger, stop) = Shutdown::new();
            let watching = async {
                sending.await;
                env.clock.sleep(Duration::from_secs(60)).await;
                let newest = checkpoints.numbers().await.unwrap()[0];
                assert!(taken.contains(&newest), "{every}: {newest}");
                trigger.stop();
            };
            let (ended, ()) = tokio::join!(running.stage.run(stop), watching);
            ended.unwrap();
        });
    }
}

/// R06: records that wait are in a checkpoint, too, and go on waiting.
#[test]
fn r06_records_that_wait_are_in_a_checkpoint() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        let plan = plan(crate::epochs::WAITS);
        let (running, checkpoints) = running(&plan, &log, &env, kept(CheckpointMode::Full));
        orders(&log, 0..30, 30).await;
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

/// R07: a damaged checkpoint is not used, and the one before it is. Three are kept, with every file that they name.
#[test]
fn r07_a_damaged_checkpoint_is_detected_and_the_one_before_it_is_used() {
    for mode in MODES {
        on_node(1, move |log, env| async move {
            let plan = plan(COUNTS);
            let (running, checkpoints) = running(&plan, &log, &env, kept(mode));
            for round in 0..4 {
                orders(&log, round * 10..round * 10 + 10, 100).await;
                running.run(Duration::ZERO).await;
            }
            assert_eq!(checkpoints.numbers().await.unwrap(), [4, 3, 2]);
            let found = names(&env);
            let manifest = |name: &&String| name.ends_with(".manifest");
            assert_eq!(found.iter().filter(manifest).count(), 3, "{found:?}");
            if mode == CheckpointMode::Full {
                let of_first = found.iter().any(|name| name.starts_with("0000000001"));
                assert!(!of_first, "{found:?}");
            }
            let of_last = |name: &&String| name.starts_with("0000000004.") && !manifest(name);
            damage(&env, found.iter().find(of_last).unwrap());
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
}

/// R07: the base lies in checkpoints that every host reaches. The changelog begins behind the oldest, and a start reads
/// the newest that is whole.
#[test]
fn r07_a_start_reads_a_shared_checkpoint_and_the_one_before_it_where_it_is_damaged() {
    for mode in MODES {
        on_node(2, move |log, env| async move {
            let plan = plan(COUNTS);
            let shared = CheckpointOptions {
                shared: true,
                ..kept(mode)
            };
            let (running, checkpoints) = running(&plan, &log, &env, shared);
            for round in 0..6 {
                orders(&log, round * 20..round * 20 + 20, 200).await;
                running.run(Duration::ZERO).await;
                assert_eq!(
                    running.books.values("n").await.unwrap().len(),
                    round * 20 + 20
                );
                lost_nothing(&running).await;
            }
            let changelog = log.describe(&topic("stage.p.changelog")).await.unwrap();
            let starts: Vec<i64> = changelog.partitions.iter().map(|one| one.start.0).collect();
            assert!(starts.iter().all(|start| *start > 0), "{starts:?}");
            assert_eq!(checkpoints.numbers().await.unwrap(), [6, 5, 4]);
            let newest = names(&env);
            let newest = newest.iter().filter(|name| name.starts_with("0000000006."));
            newest.for_each(|name| damage(&env, name));
            assert_eq!(running.books.values("n").await.unwrap().len(), 120);
            orders(&log, 120..140, 200).await;
            running.run(Duration::ZERO).await;
            let values = running.books.values("n").await.unwrap();
            assert_eq!((values.len(), sum(&values)), (140, 140));
            running.is_clean().await;
            // Without any of them the state is gone, and the stage says so.
            for name in names(&env) {
                env.disk.remove(&Path::new(DIR).join(name)).unwrap();
            }
            let (_trigger, stop) = Shutdown::new();
            let failure = running.stage.run(stop).await.unwrap_err();
            assert_eq!(failure.code.as_str(), "stage.changelog.gap");
        });
    }
}

/// R06: a directory that cannot be written is tried again, told after the third time, and no reason to stop.
#[test]
fn r06_a_storage_that_is_away_is_told_and_the_stage_goes_on() {
    let mut sim = Sim::new(3);
    let node = sim.node("worker");
    let (env, disk) = (node.env(), node.disk());
    let log = SimLog::new(&env);
    sim.block_on(&node, async move {
        let config = tidegate_log::TopicConfig::new(1);
        log.create_topic(&topic("orders"), config).await.unwrap();
        let plan = plan(&COUNTS.replace(" end", " checkpoint every 5 seconds end"));
        let (running, checkpoints) = running(&plan, &log, &env, kept(CheckpointMode::Full));
        disk.fail_at_random(Operation::Sync, FaultKind::IoError, 1.0);
        let (trigger, stop) = Shutdown::new();
        let watching = async {
            let mut number = 0;
            while running.stage.status().alert.is_none() {
                order(&log, number, 10).await;
                number += 1;
                env.clock.sleep(Duration::from_secs(1)).await;
                assert!(number < 300, "nobody tells it");
            }
            assert_eq!(checkpoints.numbers().await.unwrap(), Vec::<u64>::new());
            disk.fail_at_random(Operation::Sync, FaultKind::IoError, 0.0);
            while running.stage.status().alert.is_some() {
                env.clock.sleep(Duration::from_secs(1)).await;
            }
            let status = running.stage.status();
            assert_eq!((status.starts, status.failure), (1, None));
            assert!(status.checkpoint.is_some());
            trigger.stop();
        };
        let (ended, ()) = tokio::join!(running.stage.run(stop), watching);
        ended.unwrap();
        running.is_clean().await;
    });
}

/// R06: a checkpoint that takes too long is given up, and leaves nothing that is taken for one.
#[test]
fn r06_a_checkpoint_that_takes_too_long_is_given_up() {
    on_node(1, |log, env| async move {
        let plan = plan(COUNTS);
        let slow = CheckpointOptions {
            timeout: Duration::from_secs(2),
            ..kept(CheckpointMode::Full)
        };
        let (running, checkpoints) = running(&plan, &log, &env, slow);
        orders(&log, 0..20, 20).await;
        let (trigger, stop) = Shutdown::new();
        let watching = async {
            while running.stage.status().records_in < 20 {
                env.clock.sleep(Duration::from_millis(100)).await;
            }
            log.set_rates(LogRates {
                delay: Duration::from_secs(5),
                ..LogRates::default()
            });
            let failure = running.stage.checkpoint().await.unwrap_err();
            assert_eq!(failure.code.as_str(), "stage.checkpoint.timeout");
            log.set_rates(LogRates::default());
            assert_eq!(checkpoints.numbers().await.unwrap(), Vec::<u64>::new());
            assert_eq!(running.stage.checkpoint().await.unwrap().number, 1);
            trigger.stop();
        };
        let (ended, ()) = tokio::join!(running.stage.run(stop), watching);
        ended.unwrap();
        let values = running.books.values("n").await.unwrap();
        checkpoints.restore(Some(1)).await.unwrap();
        assert_eq!(running.books.values("n").await.unwrap(), values);
    });
}

/// R05: records come all the time. A checkpoint has each of them with all that it made, or not at all.
#[test]
fn r05_a_checkpoint_under_load_has_all_tasks_at_one_epoch_each() {
    on_node(3, |log, env| async move {
        let plan = plan(COUNTS);
        let (running, checkpoints) = running(&plan, &log, &env, kept(CheckpointMode::Incremental));
        let (trigger, stop) = Shutdown::new();
        let sending = async {
            for number in 0..600 {
                order(&log, number % 40, 10).await;
                env.clock.sleep(Duration::from_millis(20)).await;
            }
        };
        let checking = async {
            for _ in 0..8 {
                env.clock.sleep(Duration::from_secs(1)).await;
                running.stage.checkpoint().await.unwrap();
            }
        };
        let watching = async {
            tokio::join!(sending, checking);
            env.clock.sleep(Duration::from_secs(5)).await;
            trigger.stop();
        };
        let (ended, ()) = tokio::join!(running.stage.run(stop), watching);
        ended.unwrap();
        let (values, before) = (
            running.books.values("n").await.unwrap(),
            ids(&log, "totals").await,
        );
        assert_eq!((sum(&values), before.len()), (600, 600));
        for number in checkpoints.numbers().await.unwrap() {
            checkpoints.restore(Some(number)).await.unwrap();
            let back = running.books.values("n").await.unwrap();
            let waiting = running.books.lag().await.unwrap();
            assert_eq!(sum(&back) + waiting, 600, "checkpoint {number}");
            lost_nothing(&running).await;
        }
        running.run(Duration::ZERO).await;
        assert_eq!(running.books.values("n").await.unwrap(), values);
        let unique: BTreeSet<EventId> = ids(&log, "totals").await.into_iter().collect();
        let sent: BTreeSet<EventId> = before.into_iter().collect();
        assert_eq!(unique, sent);
    });
}

/// The broker forgot the offsets: the stage says so, and goes on from those in its changelog.
#[test]
fn offsets_that_were_forgotten_are_restored_from_the_changelog() {
    on_node(1, |log, env| async move {
        payments(&log).await;
        let plan = plan(crate::epochs::WAITS);
        let (running, checkpoints) = running(&plan, &log, &env, kept(CheckpointMode::Full));
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
        let (running, checkpoints) = running(&plan, &log, &env, kept(CheckpointMode::Full));
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
