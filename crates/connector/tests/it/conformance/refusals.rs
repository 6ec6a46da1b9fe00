//! Hand-offs and outputs that the log refuses for good: one of them holds nobody else up.

use std::sync::Arc;

use tidegate_connector::{ConcurrencyMode, ContainerState};
use tidegate_core::dead_letter::Reason;
use tidegate_core::{HealthStatus, Offset, Partition, TierIndex, Topic};
use tidegate_log::{Append, Record, TopicConfig};

use crate::scene::{Scene, Script, permanent, text, transient};
use crate::scripted_log::ScriptedLog;

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("r{n:03}")).collect()
}

pub(crate) async fn c08_hand_offs_that_fit_no_commit_are_parted(mut scene: Scene) {
    let topic = scene.topic("parted", 1).await;
    let log = ScriptedLog::new(&scene.log);
    scene.log = Arc::new(log.clone());
    let mut options = scene.options(&topic);
    options.concurrency_mode = ConcurrencyMode::Unordered;
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers.truncate(1);
    let script = Script::new(&scene);
    let handler = script.answers(|record| match record.tier().0 {
        0 => transient("timeout.read"),
        _ => Ok(()),
    });
    // Five of them would be too large.
    log.set_max_commit(20_000);
    let padding = "x".repeat(2_000);
    let values: Vec<String> = numbers(100).iter().map(|n| n.clone() + &padding).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    scene.send(&topic, 0, &values).await;
    let connector = scene.start(options.clone(), handler).await;
    scene.until_committed(&options.group, &topic, 100).await;
    let (tier, group) = (
        options.tier_topic(TierIndex(1)).unwrap(),
        options.tier_group(TierIndex(1)).unwrap(),
    );
    let last = scene.records(&tier, 0).await.last().unwrap().offset.0;
    scene.until_passed(&group, &tier, last).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.records(&tier, 0).await.len(), 100);
    assert!(log.failed() > 0, "the first were too many");
    assert!(log.failed() <= 24, "{} commits failed", log.failed());
}

pub(crate) async fn c22_outputs_that_are_refused_are_dead_letters(scene: Scene) {
    let topic = scene.topic("refused", 2).await;
    let out = Topic::new(scene.name("refused-out")).unwrap();
    let small = TopicConfig {
        max_record_size: 1_000,
        ..TopicConfig::new(1)
    };
    scene.log.create_topic(&out, small).await.unwrap();
    let mut options = scene.options(&topic);
    options.transactional = true;
    options.concurrency_mode = ConcurrencyMode::Unordered;
    let script = Script::new(&scene);
    let to = out.clone();
    let handler = script.answers(move |record| {
        let output = Record::new(text(record.value()));
        record.send(Append::new(to.clone(), output).partition(0));
        Ok(())
    });
    let large = "x".repeat(2_000);
    scene.send(&topic, 0, &["a", "b", &large, "c"]).await;
    scene.send(&topic, 1, &["d", "e"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene.until_committed(&options.group, &topic, 4).await;
    let letters = scene.until_letters(&options, 1).await;
    scene.send(&topic, 0, &["f"]).await;
    scene.until_committed(&options.group, &topic, 5).await;
    let other = || async { scene.committed(&options.group, &topic, 1).await };
    while other().await != Some(2) {
        scene
            .env
            .clock
            .sleep(std::time::Duration::from_millis(2))
            .await;
    }
    let health = connector.binding_health("orders").unwrap();
    assert_ne!(health.status, HealthStatus::Down, "{health:?}");
    connector.stop("orders").await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, Reason::NonRetryable);
    assert_eq!(letters[0].failure.code.as_str(), "log.record-too-large");
    assert_eq!(text(letters[0].value.as_ref()), large);
    let written = scene.records(&out, 0).await;
    let mut values: Vec<String> = written
        .iter()
        .map(|stored| text(stored.record.value.as_ref()))
        .collect();
    values.sort();
    assert_eq!(values, ["a", "b", "c", "d", "e", "f"]);
    let account = connector
        .books()
        .accounts()
        .await
        .unwrap()
        .remove(0)
        .account;
    assert_eq!(
        (account.delivered, account.dead_lettered),
        (6, 1),
        "{account:?}"
    );
}

pub(crate) async fn c31_a_letter_that_is_refused_is_kept_alone(scene: Scene) {
    let topic = scene.topic("shrunk", 1).await;
    let options = scene.options(&topic);
    let script = Script::new(&scene);
    let large = "x".repeat(3_000);
    let bad = large.clone();
    let handler = script.answers(move |record| match text(record.value()) == bad {
        true => permanent("business.rule"),
        false => Ok(()),
    });
    let connector = scene.start(options.clone(), handler).await;
    scene.send(&topic, 0, &["a"]).await;
    scene.until_committed(&options.group, &topic, 1).await;
    // Its topic takes less than it did when the binding started.
    let dlt = options.dlt_topic().unwrap();
    let before = scene.log.describe(&dlt).await.unwrap().config;
    let small = TopicConfig {
        max_record_size: 2_000,
        ..before.clone()
    };
    scene.log.create_topic(&dlt, small).await.unwrap();
    scene.send(&topic, 0, &[&large, "b"]).await;
    let is_paused = || connector.state("orders").unwrap() == ContainerState::Paused;
    scene.until("it pauses", is_paused).await;
    let message = || {
        let health = connector.binding_health("orders").unwrap();
        health.message.unwrap_or_default()
    };
    scene
        .until("health names it", || message().contains("record 1 of"))
        .await;
    assert_eq!(scene.committed(&options.group, &topic, 0).await, Some(1));
    scene.log.create_topic(&dlt, before).await.unwrap();
    // It is held, and goes to its place once there is room: after a start.
    connector.stop("orders").await.unwrap();
    connector.start("orders").await.unwrap();
    scene.until_committed(&options.group, &topic, 3).await;
    let letters = scene.until_letters(&options, 1).await;
    assert_eq!((letters.len(), script.count("b")), (1, 1));
    let nobody = connector
        .dead_letter("orders", Partition(0), Offset(1))
        .await;
    nobody.unwrap_err();
    connector.stop("orders").await.unwrap();
}
