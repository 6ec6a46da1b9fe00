//! Ordered keys, and records that wait in the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_connector::{
    BindingOptions, ConcurrencyMode, Connector, KeyExhausted, OrderingMode, TierOptions,
};
use tidegate_core::books::Place;
use tidegate_core::{HealthStatus, Offset, Partition, Topic};
use tidegate_log::{Append, Record, TopicConfig, TopicPartition};

use crate::scene::{Scene, Script, permanent, text, transient};

fn ordered(scene: &Scene, topic: &Topic) -> BindingOptions {
    let mut options = scene.options(topic);
    options.ordering = OrderingMode::KeyOrdered;
    options.retry.tier0.max_attempts = 1;
    options
}

/// Values whose key is their first letter; a value that begins with `-` has none.
async fn send(scene: &Scene, topic: &Topic, values: &[&str]) {
    let appends = values.iter().map(|value| {
        let record = Record::new((*value).to_owned());
        let record = match value.starts_with('-') {
            true => record,
            false => record.key(value[..1].to_owned()),
        };
        Append::new(topic.clone(), record).partition(0)
    });
    scene.log.append(appends.collect()).await.unwrap();
}

/// The values of a key in the order of their calls, each as often as it was called.
fn of_key(script: &Script, key: &str) -> Vec<String> {
    let values = script.values().into_iter();
    values.filter(|value| value.starts_with(key)).collect()
}

/// The books of the only binding agree with a recount.
async fn audit(connector: &Connector) {
    let audited = connector.books().audit().await.unwrap();
    assert_eq!(audited[0].missing, []);
}

async fn until_parked(scene: &Scene, connector: &Connector, count: i64) {
    loop {
        let account = connector
            .books()
            .accounts()
            .await
            .unwrap()
            .remove(0)
            .account;
        if account.parked == count {
            return;
        }
        scene.env.clock.sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn c33_records_behind_a_failing_one_wait_and_other_keys_flow(scene: Scene) {
    for mode in [ConcurrencyMode::Partition, ConcurrencyMode::Key] {
        let topic = scene.topic(&format!("flow-{mode:?}"), 1).await;
        let mut options = ordered(&scene, &topic);
        options.concurrency_mode = mode;
        let script = Script::new(&scene);
        options.retry.tiers[0].max_attempts = 1_000;
        // It fails until the other key has gone on.
        let seen = script.clone();
        let handler = script.answers(move |record| match text(record.value()).as_str() {
            "a1" if record.tier().0 == 0 || seen.count("b2") == 0 => transient("timeout.read"),
            _ => Ok(()),
        });
        send(&scene, &topic, &["a1", "b1", "a2", "b2", "a3"]).await;
        let connector = scene.start_with_store(options.clone(), handler).await;
        scene
            .until("all are handled", || script.count("a3") == 1)
            .await;
        scene.until_committed(&options.group, &topic, 5).await;
        until_parked(&scene, &connector, 0).await;
        let mut values = of_key(&script, "a");
        values.dedup();
        assert_eq!(values, ["a1", "a2", "a3"]);
        assert_eq!(of_key(&script, "b"), ["b1", "b2"]);
        let account = connector
            .books()
            .accounts()
            .await
            .unwrap()
            .remove(0)
            .account;
        assert_eq!((account.delivered, account.parked), (5, 0), "{account:?}");
        audit(&connector).await;
        connector.stop("orders").await.unwrap();
        let topics = scene.log.topics().await.unwrap();
        let own = topics
            .iter()
            .filter(|name| name.as_str().starts_with(topic.as_str()));
        assert_eq!(own.count(), 2, "there is no tier: {topics:?}");
    }
}

pub(crate) async fn c33_order_holds_after_a_restart(scene: Scene) {
    let topic = scene.topic("restart", 1).await;
    let options = ordered(&scene, &topic);
    let script = Script::new(&scene);
    let is_good = Arc::new(AtomicBool::new(false));
    let good = Arc::clone(&is_good);
    let handler = script.answers(move |record| match text(record.value()).as_str() {
        "a1" if !good.load(Ordering::Relaxed) => transient("timeout.read"),
        _ => Ok(()),
    });
    send(&scene, &topic, &["a1", "b1", "a2", "a3"]).await;
    let mut slow = options.clone();
    slow.retry.tiers = vec![TierOptions::new(Duration::from_millis(300))];
    slow.retry.tiers[0].max_attempts = 1_000;
    let connector = scene.start_with_store(slow.clone(), handler.clone()).await;
    scene.until_committed(&options.group, &topic, 4).await;
    until_parked(&scene, &connector, 3).await;
    audit(&connector).await;
    let at = TopicPartition::new(topic.clone(), 0);
    let id = scene.records(&topic, 0).await[2].event_id(scene.log.cluster(), &at);
    let found = connector.books().locate(id).await.unwrap();
    assert_eq!(found[0].place, Place::Parked, "{found:?}");
    let shown = format!("{found:?}");
    assert!(shown.contains("offset 0 of its key"), "{shown}");
    connector.stop("orders").await.unwrap();
    // Another process, and more of the same key meanwhile.
    send(&scene, &topic, &["a4", "b2"]).await;
    is_good.store(true, Ordering::Relaxed);
    let connector = scene.start_with_store(slow, handler).await;
    scene
        .until("all are handled", || script.count("a4") == 1)
        .await;
    until_parked(&scene, &connector, 0).await;
    let mut values = of_key(&script, "a");
    values.dedup();
    assert_eq!(values, ["a1", "a2", "a3", "a4"]);
    assert_eq!(script.count("b1"), 1);
    scene.until_committed(&options.group, &topic, 6).await;
    audit(&connector).await;
    connector.stop("orders").await.unwrap();
}

pub(crate) async fn c33_an_exhausted_record_is_a_dead_letter_and_its_key_goes_on(scene: Scene) {
    let topic = scene.topic("exhausted", 1).await;
    let mut options = ordered(&scene, &topic);
    options.retry.tiers.truncate(2);
    options.retry.tiers[0].max_attempts = 2;
    options.retry.tiers[1].max_attempts = 1;
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "a1" => transient("timeout.read"),
        "a2" => permanent("business.rule"),
        _ => Ok(()),
    });
    send(&scene, &topic, &["a1", "a2", "a3"]).await;
    let connector = scene.start_with_store(options.clone(), handler).await;
    let letters = scene.until_letters(&options, 2).await;
    scene
        .until("its key goes on", || script.count("a3") == 1)
        .await;
    assert_eq!(of_key(&script, "a"), ["a1", "a1", "a1", "a1", "a2", "a3"]);
    let first = &letters[0];
    assert_eq!(
        (first.attempts, first.origin.offset, first.tier.0),
        (4, Offset(0), 2)
    );
    assert_eq!(first.origin.topic, topic);
    let trail: Vec<(u32, u32)> = first.trail.iter().map(|t| (t.tier.0, t.attempts)).collect();
    assert_eq!(trail, [(0, 1), (1, 2), (2, 1)]);
    until_parked(&scene, &connector, 0).await;
    let account = connector
        .books()
        .accounts()
        .await
        .unwrap()
        .remove(0)
        .account;
    assert_eq!(
        (account.delivered, account.dead_lettered),
        (1, 2),
        "{account:?}"
    );
    audit(&connector).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.letters(&options).await.len(), 2);
}

pub(crate) async fn c33_a_blocked_key_waits_until_it_is_given_up(scene: Scene) {
    let topic = scene.topic("blocked", 1).await;
    let mut options = ordered(&scene, &topic);
    options.retry.tiers.truncate(1);
    options.retry.tiers[0].max_attempts = 1;
    options.key_ordered.exhausted = KeyExhausted::BlockKey;
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "a1" => transient("timeout.read"),
        _ => Ok(()),
    });
    send(&scene, &topic, &["a1", "a2", "b1"]).await;
    let connector = scene.start_with_store(options.clone(), handler).await;
    let is_told = || {
        let health = connector.binding_health("orders").unwrap();
        health
            .message
            .unwrap_or_default()
            .contains("blocks its key `a`")
    };
    scene.until("health names the key", is_told).await;
    assert_eq!(
        connector.binding_health("orders").unwrap().status,
        HealthStatus::Degraded
    );
    assert_eq!((script.count("a2"), script.count("b1")), (0, 1));
    assert_eq!(scene.letters(&options).await, []);
    connector
        .dead_letter("orders", Partition(0), Offset(0))
        .await
        .unwrap();
    scene
        .until("its key goes on", || script.count("a2") == 1)
        .await;
    assert_eq!(scene.until_letters(&options, 1).await.len(), 1);
    until_parked(&scene, &connector, 0).await;
    audit(&connector).await;
    connector.stop("orders").await.unwrap();
}

pub(crate) async fn c33_records_without_a_key_have_no_order(scene: Scene) {
    let topic = scene.topic("keyless", 1).await;
    let options = ordered(&scene, &topic);
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "-1" if record.tier().0 == 0 => transient("timeout.read"),
        _ => Ok(()),
    });
    send(&scene, &topic, &["-1", "-2", "-3"]).await;
    let connector = scene.start_with_store(options.clone(), handler).await;
    scene
        .until("all are handled", || script.count("-1") == 2)
        .await;
    assert_eq!(script.values(), ["-1", "-2", "-3", "-1"]);
    until_parked(&scene, &connector, 0).await;
    audit(&connector).await;
    connector.stop("orders").await.unwrap();
}

pub(crate) async fn c33_a_partition_with_too_many_parked_records_waits(scene: Scene) {
    let topic = scene.topic("full", 1).await;
    let mut options = ordered(&scene, &topic);
    options.key_ordered.max_parked = 2;
    options.max_poll_records = 1;
    let script = Script::new(&scene);
    let is_good = Arc::new(AtomicBool::new(false));
    let good = Arc::clone(&is_good);
    let handler = script.answers(move |record| {
        match text(record.value()).starts_with('x') && !good.load(Ordering::Relaxed) {
            true => transient("timeout.read"),
            false => Ok(()),
        }
    });
    options.retry.tiers = vec![TierOptions::new(Duration::from_millis(200))];
    options.retry.tiers[0].max_attempts = 1_000;
    send(
        &scene,
        &topic,
        &["x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "b1"],
    )
    .await;
    let connector = scene.start_with_store(options.clone(), handler).await;
    scene
        .until("it is tried again", || script.count("x1") >= 3)
        .await;
    assert_eq!(script.count("b1"), 0, "the limit holds the partition");
    is_good.store(true, Ordering::Relaxed);
    scene.until_committed(&options.group, &topic, 9).await;
    until_parked(&scene, &connector, 0).await;
    let mut values = of_key(&script, "x");
    values.dedup();
    assert_eq!(values.len(), 8, "{values:?}");
    assert!(values.is_sorted(), "{values:?}");
    connector.stop("orders").await.unwrap();
}

pub(crate) async fn a_record_that_fits_nowhere_waits_in_the_store(scene: Scene) {
    let topic = scene.topic("large", 1).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    let dlt = options.dlt_topic().unwrap();
    let sized = |max_record_size| TopicConfig {
        max_record_size,
        ..TopicConfig::new(1)
    };
    scene.log.create_topic(&dlt, sized(600)).await.unwrap();
    let script = Script::new(&scene);
    let large = "x".repeat(2_000);
    scene.send(&topic, 0, &["a", &large, "b"]).await;
    let bad = large.clone();
    let handler = script.answers(move |record| match text(record.value()) == bad {
        true => permanent("business.rule"),
        false => Ok(()),
    });
    let connector = scene
        .start_with_store(options.clone(), handler.clone())
        .await;
    scene.until_committed(&group, &topic, 3).await;
    until_parked(&scene, &connector, 1).await;
    let is_told = || {
        let health = connector.binding_health("orders").unwrap();
        health.status == HealthStatus::Degraded
            && health
                .message
                .unwrap_or_default()
                .contains("fit into no topic")
    };
    scene.until("health names it", is_told).await;
    audit(&connector).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.count("b"), 1, "the partition goes on");
    // There is room now.
    scene
        .log
        .create_topic(&dlt, sized(1_000_000))
        .await
        .unwrap();
    let connector = scene.start_with_store(options.clone(), handler).await;
    let letters = scene.until_letters(&options, 1).await;
    assert_eq!(text(letters[0].value.as_ref()), large);
    until_parked(&scene, &connector, 0).await;
    audit(&connector).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.count(&large), 1, "it is not handled again");
}

pub(crate) async fn c02_marks_that_do_not_fit_survive_in_the_store(scene: Scene) {
    let topic = scene.topic("progress", 1).await;
    let mut options = scene.options(&topic);
    options.concurrency_mode = ConcurrencyMode::Unordered;
    options.max_poll_records = 2_000;
    options.max_in_flight = 10_000;
    options.stop_timeout = Duration::from_millis(500);
    options.retry.tier0.max_attempts = 1;
    let values: Vec<String> = (0..4_000).map(|n| n.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    for part in values.chunks(500) {
        scene.send(&topic, 0, part).await;
    }
    // Every second one is never done.
    let script = Script::new(&scene);
    let handler = script.handler(|record| async move {
        let number: u64 = text(record.value()).parse().unwrap();
        if number.is_multiple_of(2) {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    let connector = scene.start_with_store(options.clone(), handler).await;
    scene
        .until("all are begun", || script.calls().len() == 4_000)
        .await;
    let at = TopicPartition::new(topic.clone(), 0);
    let group = options.group.clone();
    let account = || async {
        connector
            .books()
            .accounts()
            .await
            .unwrap()
            .remove(0)
            .account
    };
    while account().await.delivered < 2_000 {
        scene.env.clock.sleep(Duration::from_millis(20)).await;
    }
    let held = scene.log.committed(&group, &[at]).await.unwrap();
    let text_of_commit = held[0].as_ref().unwrap().metadata.clone();
    assert!(text_of_commit.starts_with("tg2."), "{text_of_commit}");
    connector.stop("orders").await.unwrap();
    let again = Script::new(&scene);
    let connector = scene
        .start_with_store(options, again.answers(|_| Ok(())))
        .await;
    scene.until_committed(&group, &topic, 4_000).await;
    connector.stop("orders").await.unwrap();
    let numbers: BTreeSet<u64> = again.values().iter().map(|n| n.parse().unwrap()).collect();
    assert_eq!(numbers.len(), 2_000);
    assert!(numbers.iter().all(|number| number.is_multiple_of(2)));
}
