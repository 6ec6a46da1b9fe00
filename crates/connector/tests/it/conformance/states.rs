//! States that people see: bindings that do not start, that pause and go on, that are ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_connector::{Binding, BindingOptions, Connector, ContainerState, TierOptions};
use tidegate_core::dead_letter::Reason;
use tidegate_core::{CodePattern, HealthStatus, Mutex, Offset, TierIndex, Topic};
use tidegate_log::{TopicConfig, TopicPartition};

use crate::scene::{Scene, Script, text, transient};
use crate::scripted_log::ScriptedLog;

fn registered(scene: &Scene, options: &BindingOptions, script: &Script) -> Connector {
    let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
    let binding = Binding::new(options.clone(), script.answers(|_| Ok(())));
    connector.register(binding).unwrap();
    connector
}

pub(crate) async fn a_binding_that_cannot_start_is_down(scene: Scene) {
    let topic = Topic::new(scene.name("nowhere")).unwrap();
    let script = Script::new(&scene);
    let connector = registered(&scene, &scene.options(&topic), &script);
    let health = || connector.binding_health("orders").unwrap();
    assert_eq!(health().status, HealthStatus::Up);
    let refused = connector.start("orders").await.unwrap_err();
    assert_eq!(refused.code().as_str(), "log.unknown-topic");
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Created);
    assert_eq!(health().status, HealthStatus::Down);
    let message = connector.health().message.unwrap_or_default();
    assert!(message.contains(topic.as_str()), "{message}");
    scene.topic("nowhere", 1).await;
    connector.start("orders").await.unwrap();
    assert_ne!(health().status, HealthStatus::Down);
    connector.stop("orders").await.unwrap();
}

pub(crate) async fn c22_topics_that_do_not_fit_are_refused_by_name(scene: Scene) {
    let hours = |count: u64| Some(Duration::from_secs(count * 3_600));
    let of_hours = |count: u64| TopicConfig {
        retention: hours(count),
        ..TopicConfig::new(2)
    };
    let script = Script::new(&scene);
    let expects = [
        ("wide", TopicConfig::new(3), "it has 3 partitions"),
        ("brief", of_hours(1), "it keeps records for 3600 s"),
    ];
    for (name, config, expect) in expects {
        let topic = Topic::new(scene.name(name)).unwrap();
        scene.log.create_topic(&topic, of_hours(5)).await.unwrap();
        let options = scene.options(&topic);
        let tier = options.tier_topic(TierIndex(2)).unwrap();
        scene.log.create_topic(&tier, config).await.unwrap();
        let connector = registered(&scene, &options, &script);
        let refused = connector.start("orders").await.unwrap_err();
        assert_eq!(refused.code().as_str(), "connector.topic-mismatch");
        let (said, tier) = (refused.to_string(), tier.to_string());
        assert!(said.contains(expect) && said.contains(&tier), "{said}");
        let health = connector.binding_health("orders").unwrap();
        assert_eq!(health.status, HealthStatus::Down);
    }
    let topic = Topic::new(scene.name("kept")).unwrap();
    scene.log.create_topic(&topic, of_hours(5)).await.unwrap();
    let options = scene.options(&topic);
    let tiers = [1, 2].map(|tier| options.tier_topic(TierIndex(tier)).unwrap());
    let config = TopicConfig {
        max_record_size: 700_000,
        ..of_hours(50)
    };
    scene.log.create_topic(&tiers[0], config).await.unwrap();
    let before = scene.log.describe(&tiers[0]).await.unwrap().config;
    let connector = registered(&scene, &options, &script);
    connector.start("orders").await.unwrap();
    connector.stop("orders").await.unwrap();
    let after = scene.log.describe(&tiers[0]).await.unwrap().config;
    assert_eq!(after, before, "what is there keeps its settings");
    let made = scene.log.describe(&tiers[1]).await.unwrap().config;
    let main = scene.log.describe(&topic).await.unwrap().config;
    assert_eq!(made.partitions, 2);
    assert!(made.retention >= main.retention, "{made:?}");
    assert!(
        made.max_record_size >= main.max_record_size + 64 * 1024,
        "{made:?}"
    );
}

pub(crate) async fn c44_a_pause_holds_the_tiers_and_a_resume_lets_them_go(scene: Scene) {
    let topic = scene.topic("c44t", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers = vec![TierOptions::new(Duration::from_millis(400))];
    let script = Script::new(&scene);
    let handler = script.answers(|record| match record.tier().0 {
        0 => transient("timeout.read"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["a"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene
        .until("its tier had one", || script.count("a") == 2)
        .await;
    scene.send(&topic, 0, &["b"]).await;
    scene.until("it failed", || script.count("b") == 1).await;
    connector.pause("orders").await.unwrap();
    scene.send(&topic, 0, &["c"]).await;
    // The time of its tier is over meanwhile.
    scene.env.clock.sleep(Duration::from_millis(600)).await;
    assert_eq!((script.count("b"), script.count("c")), (1, 0));
    connector.resume("orders").await.unwrap();
    scene
        .until("both go on", || {
            script.count("b") == 2 && script.count("c") == 2
        })
        .await;
    let (tier, group) = (
        options.tier_topic(TierIndex(1)).unwrap(),
        options.tier_group(TierIndex(1)).unwrap(),
    );
    scene.until_passed(&group, &tier, 2).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(connector.positions("orders").unwrap().len(), 0);
}

pub(crate) async fn c44_a_binding_is_destroyed_from_every_state(scene: Scene) {
    let topic = scene.topic("c44d", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tiers.truncate(1);
    let script = Script::new(&scene);
    let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
    for (n, state) in [
        ContainerState::Created,
        ContainerState::Running,
        ContainerState::Paused,
        ContainerState::Stopped,
    ]
    .into_iter()
    .enumerate()
    {
        let binding = Binding::new(options.clone(), script.answers(|_| Ok(())));
        connector.register(binding).unwrap();
        if state != ContainerState::Created {
            connector.start("orders").await.unwrap();
            scene.send(&topic, 0, &[&format!("r{n}")]).await;
            let next = i64::try_from(n).unwrap();
            scene.until_committed(&options.group, &topic, next).await;
        }
        match state {
            ContainerState::Paused => connector.pause("orders").await.unwrap(),
            ContainerState::Stopped => connector.stop("orders").await.unwrap(),
            ContainerState::Created | ContainerState::Running | ContainerState::Destroyed => {}
        }
        assert_eq!(connector.state("orders").unwrap(), state);
        connector.destroy("orders").await.unwrap();
        connector.state("orders").unwrap_err();
        assert!(connector.list().is_empty(), "{state}");
    }
    // Nobody is left that could take them.
    scene.send(&topic, 0, &["late"]).await;
    scene.env.clock.sleep(Duration::from_millis(300)).await;
    assert_eq!(script.values(), ["r1", "r2", "r3"]);
}

pub(crate) async fn c25_a_code_pauses_and_a_resume_begins_at_attempt_1(scene: Scene) {
    let topic = scene.topic("c25p", 1).await;
    let mut options = scene.options(&topic);
    options.retry.codes.pause_on = vec![CodePattern::new("license.*")];
    let group = options.group.clone();
    let script = Script::new(&scene);
    let is_valid = Arc::new(AtomicBool::new(false));
    let valid = Arc::clone(&is_valid);
    let handler = script.answers(move |record| {
        let is_b = text(record.value()) == "b";
        match record.attempt() {
            _ if !is_b || valid.load(Ordering::Relaxed) => Ok(()),
            1 => transient("timeout.read"),
            _ => transient("license.expired"),
        }
    });
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    let connector = scene.start(options.clone(), handler).await;
    let state = || connector.state("orders").unwrap();
    scene
        .until("it pauses", || state() == ContainerState::Paused)
        .await;
    assert_eq!(connector.list()[0].reasons.to_string(), "operator");
    let health = connector.binding_health("orders").unwrap();
    assert_eq!(health.status, HealthStatus::Degraded);
    let message = health.message.unwrap_or_default();
    assert!(message.contains("license.expired"), "{message}");
    scene.until_committed(&group, &topic, 1).await;
    is_valid.store(true, Ordering::Relaxed);
    connector.resume("orders").await.unwrap();
    scene.until_committed(&group, &topic, 3).await;
    connector.stop("orders").await.unwrap();
    let calls: Vec<(String, u32)> = script
        .calls()
        .into_iter()
        .map(|call| (call.value, call.attempt))
        .collect();
    let expect = [("a", 1), ("b", 1), ("b", 2), ("b", 1), ("c", 1)];
    assert_eq!(calls, expect.map(|(value, n)| (value.to_owned(), n)));
    assert_eq!(scene.letters(&options).await, []);
}

pub(crate) async fn an_operator_gives_up_a_record_of_a_tier(scene: Scene) {
    let topic = scene.topic("tier-manual", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers = vec![TierOptions::new(Duration::from_secs(3_600))];
    let script = Script::new(&scene);
    let handler = script.answers(|_| transient("timeout.read"));
    scene.send(&topic, 0, &["a"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene.until_committed(&options.group, &topic, 1).await;
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    let at = TopicPartition::new(tier.clone(), 0);
    // Its consumer may not have it yet.
    while let Err(error) = connector.dead_letter_at("orders", &at, Offset(0)).await {
        assert_eq!(error.code().as_str(), "connector.record-not-held");
        scene.env.clock.sleep(Duration::from_millis(10)).await;
    }
    let letters = scene.until_letters(&options, 1).await;
    assert_eq!(letters[0].reason, Reason::Manual);
    assert_eq!(letters[0].tier, TierIndex(1));
    let group = options.tier_group(TierIndex(1)).unwrap();
    scene.until_committed(&group, &tier, 1).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.values(), ["a"]);
}

pub(crate) async fn a_damaged_offset_holds_its_partition_alone(mut scene: Scene) {
    let topic = scene.topic("damaged", 2).await;
    let log = ScriptedLog::new(&scene.log);
    scene.log = Arc::new(log.clone());
    let at = TopicPartition::new(topic.clone(), 1);
    log.damage(&at);
    let options = scene.options(&topic);
    let script = Script::new(&scene);
    scene.send(&topic, 1, &["x"]).await;
    let handler = script.answers(|_| Ok(()));
    let connector = scene.start(options.clone(), handler).await;
    let is_told = || {
        let health = connector.binding_health("orders").unwrap();
        let message = health.message.unwrap_or_default();
        health.status == HealthStatus::Degraded && message.contains(&at.to_string())
    };
    scene.until("health names it", is_told).await;
    scene.send(&topic, 0, &["a", "b"]).await;
    scene.until_committed(&options.group, &topic, 2).await;
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Running);
    assert!(is_told(), "it stays so");
    let at_1 = scene.committed(&options.group, &topic, 1).await;
    assert_eq!(at_1.unwrap_or(0), 0);
    connector.stop("orders").await.unwrap();
    assert_eq!(script.values(), ["a", "b"]);
}

pub(crate) async fn c47_a_shutdown_waits_for_a_binding_that_stopped_itself(mut scene: Scene) {
    let topic = scene.topic("c47s", 2).await;
    let log = ScriptedLog::new(&scene.log);
    scene.log = Arc::new(log.clone());
    let mut options = scene.options(&topic);
    options.concurrency = 2;
    let script = Script::new(&scene);
    let takers: Arc<Mutex<BTreeMap<i32, String>>> = Arc::default();
    let (seen, clock) = (Arc::clone(&takers), Arc::clone(&scene.env.clock));
    let handler = script.handler(move |record| {
        let (seen, clock) = (Arc::clone(&seen), Arc::clone(&clock));
        async move {
            match text(record.value()).as_str() {
                "slow" => clock.sleep(Duration::from_millis(700)).await,
                _ => {
                    let [_, _, (_, instance)] = record.inbound_headers();
                    seen.lock().insert(record.partition().0, instance);
                }
            }
            Ok(())
        }
    });
    let connector = scene.start(options.clone(), handler).await;
    // Until each of the two consumers has one partition.
    let mut sent = 0;
    loop {
        for partition in [0, 1] {
            scene.send(&topic, partition, &["warm"]).await;
        }
        sent += 1;
        let all = usize::try_from(2 * sent).unwrap();
        scene.until("both are seen", || script.len() >= all).await;
        let is_apart = {
            let takers = takers.lock();
            takers.get(&0) != takers.get(&1)
        };
        if is_apart {
            break;
        }
        scene.env.clock.sleep(Duration::from_millis(50)).await;
    }
    let at = TopicPartition::new(topic.clone(), 0);
    log.remove_before(&at, Offset(sent + 1));
    scene.send(&topic, 1, &["slow"]).await;
    scene
        .until("it is in hand", || script.count("slow") == 1)
        .await;
    scene.send(&topic, 0, &["gone"]).await;
    let is_stopped = || connector.state("orders").unwrap() == ContainerState::Stopped;
    scene.until("it stops by itself", is_stopped).await;
    connector.shutdown().await;
    let committed = scene.committed(&options.group, &topic, 1).await;
    assert_eq!(committed, Some(sent + 1));
    assert_eq!((script.count("slow"), script.count("gone")), (1, 0));
}
