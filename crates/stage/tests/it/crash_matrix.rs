//! The crash matrix: a stage dies at each step of its commit, on each log. It prints what was lost and doubled.
//!
//! Local files of a stage are its checkpoints. A start needs the log alone, so they may be deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Shutdown;
use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Entropy, Env};
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log, TopicConfig};
use tokio::sync::Notify;

use crate::deaths::Scenario;
use crate::real::LIMIT;
use crate::simulation::{FLOWS, Played, options};
use crate::wrapped::WrappedLog;
use tidegate_stage::CheckpointOptions;

const STEPS: [&str; 5] = [
    "changelog read",
    "position set",
    "event taken",
    "before the commit",
    "behind the commit",
];

/// The fate of the local files of a stage that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocalFiles {
    Kept,
    Deleted,
}

/// A stage that dies at the n-th time that it comes to a step, and another one that goes on. Says whether it died.
async fn play(
    flow: &'static Played,
    (step, nth): (&'static str, u64),
    files: LocalFiles,
    (log, env): (&Arc<dyn Log>, &Env),
) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut entropy = system_entropy();
    let process = format!("m{:x}", entropy.next_u64());
    let scenario = Scenario::new(flow, &process, 120);
    for stream in flow.streams {
        let topic = options(&process).topic(stream).unwrap();
        let config = TopicConfig::new(u32::try_from(flow.partitions).unwrap());
        log.create_topic(&topic, config).await.unwrap();
    }
    let (before, after) = scenario.appends.split_at(60);
    log.append(before.to_vec()).await.unwrap();
    let read = |log: Arc<dyn Log>| {
        let books = scenario.books(log, env);
        async move {
            loop {
                let accounts = books.accounts().await.unwrap_or_default();
                let queued: i64 = accounts.iter().map(|one| one.account.queued).sum();
                if !accounts.is_empty() && queued == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    let (died, count) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(0)));
    let gate = {
        let died = Arc::clone(&died);
        move |at: &'static str| {
            let is_end = at == step && count.fetch_add(1, Ordering::Relaxed) + 1 == nth;
            if is_end {
                died.notify_one();
            }
            is_end
        }
    };
    let dying = Arc::new(WrappedLog {
        gate: Arc::new(gate),
        ..WrappedLog::new(Arc::clone(log))
    });
    let mut has_died = false;
    // The first life writes a changelog, so that the second one has something to read.
    for (number, of_life) in [Arc::clone(log), dying, Arc::clone(log)]
        .into_iter()
        .enumerate()
    {
        let mut settings = options(&process);
        settings.parallelism = Some(1);
        settings.epoch_interval = Some(Duration::from_millis(20));
        settings.checkpoints = Some(CheckpointOptions::new(dir.path().join("kept")));
        let stage = scenario.stage_with(settings, of_life, env);
        let (trigger, stop) = Shutdown::new();
        let running = tokio::spawn({
            let stage = stage.clone();
            async move { stage.run(stop).await }
        });
        let is_read = tokio::time::timeout(LIMIT, read(Arc::clone(log)));
        let dies = tokio::select! {
            biased;
            () = died.notified() => true,
            is_read = is_read => {
                is_read.unwrap_or_else(|_| panic!("{step}: {:#?}", stage.status()));
                false
            }
        };
        if dies {
            has_died = true;
            running.abort();
        } else {
            trigger.stop();
            running.await.unwrap().unwrap();
        }
        assert!(
            number > 0 || dir.path().join("kept").exists(),
            "a checkpoint"
        );
        if files == LocalFiles::Deleted {
            std::fs::remove_dir_all(dir.path().join("kept")).ok();
        }
        if number == 0 {
            log.append(after.to_vec()).await.unwrap();
        }
    }
    let plan = Arc::clone(&scenario.plan);
    let log = Arc::clone(log);
    scenario
        .expected
        .check(log, env, plan, options(&process))
        .await;
    has_died
}

/// Each step, the first or the third time that a stage comes to it.
async fn matrix(name: &str, log: Arc<dyn Log>, env: &Env) {
    eprintln!("| log | local files | step | deaths | lost | doubled |");
    for (files, nth) in [(LocalFiles::Kept, 1), (LocalFiles::Deleted, 3)] {
        for step in STEPS {
            let mut deaths = 0;
            for flow in [&FLOWS[2], &FLOWS[3]] {
                deaths += u32::from(play(flow, (step, nth), files, (&log, env)).await);
            }
            assert!(deaths > 0, "no stage came to the step `{step}`");
            // The comparison with the model would have failed otherwise.
            eprintln!("| {name} | {files:?} | {step} | {deaths} | 0 | 0 |");
        }
    }
}

/// R02, A08, A09.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r02_the_crash_matrix_of_the_embedded_log_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir.path())).unwrap();
    matrix("embedded", Arc::new(log.clone()), &env).await;
    log.close().await;
}

mod needs_kafka {
    use super::*;
    use tidegate_log::kafka::{KafkaConfig, KafkaLog};

    /// R02, A08, A09.
    #[ignore = "needs Kafka"]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn r02_the_crash_matrix_of_kafka_is_clean() {
        let env = Env::system();
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP is not set");
        let config = KafkaConfig::new("test", &servers);
        let log = KafkaLog::connect(config, env.fork("kafka")).await.unwrap();
        matrix("kafka", Arc::new(log), &env).await;
    }
}
