//! The real embedded log, and a broker: a stage is dropped in the middle, and another one goes on.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Shutdown;
use tidegate_core::env::system::system_entropy;
use tidegate_core::env::{Entropy, Env};
use tidegate_log::{EmbeddedConfig, EmbeddedLog, Log};

use crate::deaths::Scenario;
use crate::simulation::{FLOWS, Played, options};

pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Plays a flow under names that nobody else has, and drops the stage several times.
async fn play(flow: &'static Played, log: Arc<dyn Log>, env: &Env, appends_at_once: usize) {
    let mut entropy = system_entropy();
    let process = format!("p{:x}", entropy.next_u64());
    let scenario = Scenario::new(flow, &process, 400);
    for stream in flow.streams {
        let topic = options(&process).topic(stream).unwrap();
        let config = tidegate_log::TopicConfig::new(u32::try_from(flow.partitions).unwrap());
        log.create_topic(&topic, config).await.unwrap();
    }
    let mut appends = scenario.appends.clone();
    let books = scenario.books(Arc::clone(&log), env);
    let mut round = 0;
    loop {
        let rest = appends.split_off(appends.len().min(appends_at_once));
        log.append(appends).await.unwrap();
        appends = rest;
        round += 1;
        let stage = scenario.stage(Arc::clone(&log), env);
        let (trigger, stop) = Shutdown::new();
        let running = tokio::spawn({
            let stage = stage.clone();
            async move { stage.run(stop).await }
        });
        let is_last = appends.is_empty();
        let read = async {
            loop {
                let accounts = books.accounts().await.unwrap_or_default();
                let delivered: i64 = accounts.iter().map(|one| one.account.delivered).sum();
                let queued: i64 = accounts.iter().map(|one| one.account.queued).sum();
                let is_read = !accounts.is_empty() && queued == 0;
                if is_read || (!is_last && delivered > 40 * round) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, read)
            .await
            .unwrap_or_else(|_| panic!("{:#?}", stage.status()));
        if is_last {
            trigger.stop();
            running.await.unwrap().unwrap();
            break;
        }
        // The next one has the same name and takes this one's place.
        running.abort();
    }
    let plan = Arc::clone(&scenario.plan);
    scenario
        .expected
        .check(log, env, plan, options(&process))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r02_a_stage_that_is_dropped_on_the_real_embedded_log_changes_no_result() {
    for flow in &FLOWS {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system();
        let log = EmbeddedLog::open(&env, EmbeddedConfig::new(dir.path())).unwrap();
        play(flow, Arc::new(log.clone()), &env, 150).await;
        log.close().await;
    }
}

mod needs_kafka {
    use super::*;
    use tidegate_log::kafka::{KafkaConfig, KafkaLog};

    #[ignore = "needs Kafka"]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn r02_a_stage_that_is_dropped_on_a_broker_changes_no_result() {
        let env = Env::system();
        let servers = std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP is not set");
        let config = KafkaConfig::new("test", &servers);
        let log = KafkaLog::connect(config, env.fork("kafka")).await.unwrap();
        play(&FLOWS[2], Arc::new(log), &env, 150).await;
    }
}
