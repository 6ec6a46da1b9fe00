//! Rules about long times, on a clock that runs faster where the log is real.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_connector::{
    Binding, BindingOptions, BoundHandler, BreakerOptions, Connector, ForwardHandler, HandOff,
    OrderingMode,
};
use tidegate_core::breaker::{Rates, Rule, Trip};
use tidegate_core::{HealthStatus, TierIndex};

use crate::fast_clock::fast;
use crate::scene::{Scene, Script, transient};
use crate::scripted_log::ScriptedLog;
use crate::stores;

pub(crate) async fn c12_an_idle_group_commits_again(scene: Scene) {
    let log = ScriptedLog::new(&scene.log);
    let topic = scene.topic("c12i", 1).await;
    let mut options = scene.options(&topic);
    // Also its own times pass 7,200 times as fast.
    options.stop_timeout = Duration::from_secs(40_000);
    options.handler_timeout = Duration::from_secs(40_000);
    options.max_poll_interval = Duration::from_secs(400_000);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let connector = Connector::new(Arc::new(log.clone()), &fast(&scene.env, 7_200));
    let binding = Binding::new(options, script.answers(|_| Ok(())));
    connector.register(binding).unwrap();
    connector.start("orders").await.unwrap();
    scene.send(&topic, 0, &["a"]).await;
    scene.until_committed(&group, &topic, 1).await;
    let repeats = || {
        let commits = log.commits_of(&group);
        commits.iter().filter(|next| **next == 1).count()
    };
    // The same offset, hour by hour, so that no broker forgets it.
    scene.until("it commits again", || repeats() >= 3).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.values(), ["a"]);
    assert_eq!(scene.committed(&group, &topic, 0).await, Some(1));
}

pub(crate) async fn c43_an_outage_leaves_the_dead_letters_empty(scene: Scene) {
    let topic = scene.topic("c43", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 2;
    options.breaker = BreakerOptions {
        is_enabled: true,
        rule: Rule {
            trip: Trip::Rates(Rates {
                window: 10,
                minimum_calls: 4,
                failure_rate: 50.0,
                slow_call_rate: 100.0,
                slow_call: Duration::from_secs(5),
            }),
            open_for: Duration::from_millis(100),
            probes: 2,
        },
        pauses_on_open: true,
    };
    let script = Script::new(&scene);
    let is_down = Arc::new(AtomicBool::new(false));
    let down = Arc::clone(&is_down);
    let handler = script.answers(move |_| match down.load(Ordering::Relaxed) {
        true => transient("connection.refused"),
        false => Ok(()),
    });
    let connector = scene.start(options.clone(), handler).await;
    let mut sent = Vec::new();
    // A second of outage, ten of its waits; records keep coming.
    for n in 0..60 {
        is_down.store((10..50).contains(&n), Ordering::Relaxed);
        let value = format!("r{n}");
        scene.send(&topic, 0, &[&value]).await;
        sent.push(value);
        scene.env.clock.sleep(Duration::from_millis(25)).await;
    }
    is_down.store(false, Ordering::Relaxed);
    scene.until_committed(&options.group, &topic, 60).await;
    settle_tiers(&scene, &options).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.letters(&options).await, []);
    for value in sent {
        assert!(script.count(&value) >= 1, "{value}");
    }
}

/// Waits until every tier has been passed to its end.
async fn settle_tiers(scene: &Scene, options: &BindingOptions) {
    for tier in (1..=3).map(TierIndex) {
        let (group, topic) = (
            options.tier_group(tier).unwrap(),
            options.tier_topic(tier).unwrap(),
        );
        while let Some(last) = scene.records(&topic, 0).await.last() {
            scene.until_passed(&group, &topic, last.offset.0).await;
            if scene.records(&topic, 0).await.last().unwrap().offset == last.offset {
                break;
            }
        }
    }
}

pub(crate) async fn c46_contradictions_are_refused_with_both_values(scene: Scene) {
    let topic = scene.topic("c46", 1).await;
    let script = Script::new(&scene);
    let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
    let change = |change: &dyn Fn(&mut BindingOptions)| {
        let mut options = scene.options(&topic);
        change(&mut options);
        let binding = Binding::new(options, script.answers(|_| Ok(())));
        connector.register(binding).unwrap_err().to_string()
    };
    let seconds = Duration::from_secs;
    let refused = change(&|options| options.heartbeat_interval = seconds(20));
    assert!(
        refused.contains("45000") && refused.contains("20000"),
        "{refused}"
    );
    let refused = change(&|options| options.retry.tiers[1].delay = Duration::from_millis(40));
    assert!(refused.contains("40"), "{refused}");
    // A copy that is one commit with its offset, and rows that settle in the store.
    let stored = Connector::new(Arc::clone(&scene.log), &scene.env);
    let stored = stored.with_store(scene.store().await);
    let forward = |change: &dyn Fn(&mut BindingOptions)| {
        let mut options = scene.options(&topic);
        change(&mut options);
        let handler = BoundHandler::new(ForwardHandler::new(topic.clone()));
        stored.register(Binding::new(options, handler))
    };
    let refused = forward(&|options| options.ordering = OrderingMode::KeyOrdered);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("KEY_ORDERED") && !refused.contains("; "),
        "one error: {refused}"
    );
    let refused = forward(&|_| {}).unwrap_err().to_string();
    assert!(refused.contains("`transactional` is false"), "{refused}");
    forward(&|options| {
        options.ordering = OrderingMode::KeyOrdered;
        options.hand_off = HandOff::AtLeastOnce;
    })
    .unwrap();
    // Rows in a file of one machine do not follow a partition to another one.
    if scene.is_on_broker() {
        let dir = tempfile::tempdir().unwrap();
        let store = stores::sqlite(dir.path()).await;
        let alone = Connector::new(Arc::clone(&scene.log), &scene.env).with_store(store);
        let mut options = scene.options(&topic);
        options.ordering = OrderingMode::KeyOrdered;
        let binding = Binding::new(options, script.answers(|_| Ok(())));
        let refused = alone.register(binding).unwrap_err().to_string();
        assert!(refused.contains("the store is SQLite"), "{refused}");
    }
    // More consumers than partitions only warn.
    let mut options = scene.options(&topic);
    options.concurrency = 3;
    let connector = scene.start(options, script.answers(|_| Ok(()))).await;
    let warned = || {
        let health = connector.binding_health("orders").unwrap();
        let message = health.message.unwrap_or_default();
        health.status != HealthStatus::Down
            && message.contains("`concurrency` is 3")
            && message.contains("1 partitions")
    };
    scene.until("health warns", warned).await;
    connector.stop("orders").await.unwrap();
}
