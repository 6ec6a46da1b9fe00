//! Topics that are missing, offsets that stand still, partitions that come back.

use std::time::Duration;

use tidegate_connector::{BreakerOptions, DltVerify};
use tidegate_core::HealthStatus;
use tidegate_core::breaker::{Rates, Rule, Trip};
use tidegate_log::TopicConfig;

use crate::scene::{Scene, Script, permanent, text, transient};

pub(crate) async fn c22_a_missing_dead_letter_topic_keeps_the_record(scene: Scene) {
    let topic = scene.topic("c22", 1).await;
    let mut options = scene.options(&topic);
    options.dlt.verify = DltVerify::Warn;
    let group = options.group.clone();
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "b" => permanent("business.rule"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    let connector = scene.start(options.clone(), handler).await;
    let is_down = || {
        let health = connector.binding_health("orders").unwrap();
        health.status == HealthStatus::Down
    };
    scene.until("health says so", is_down).await;
    // The records before it need not wait for it.
    scene.until_committed(&group, &topic, 1).await;
    let dlt = options.dlt_topic().unwrap();
    scene
        .log
        .create_topic(&dlt, TopicConfig::new(1))
        .await
        .unwrap();
    let letters = scene.until_letters(&options, 1).await;
    scene.until_committed(&group, &topic, 3).await;
    scene.until("it is well again", || !is_down()).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(
        script.values(),
        ["a", "b", "c"],
        "it comes back without a restart"
    );
}

pub(crate) async fn c11_a_partition_that_was_held_back_flows_when_it_comes_back(scene: Scene) {
    let topic = scene.topic("c11", 2).await;
    let mut options = scene.options(&topic);
    options.max_poll_records = 2;
    let group = options.group.clone();
    let (one, two) = (Script::new(&scene), Script::new(&scene));
    let first = scene.start(options.clone(), one.answers(|_| Ok(()))).await;
    first.pause("orders").await.unwrap();
    let names: Vec<String> = (0..20).map(|n| format!("r{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    scene.send(&topic, 0, &names).await;
    scene.send(&topic, 1, &names).await;
    scene
        .until("it has both", || {
            first.positions("orders").unwrap().len() >= 2
        })
        .await;
    scene.env.clock.sleep(Duration::from_millis(200)).await;
    let second = scene.start(options, two.answers(|_| Ok(()))).await;
    let took = || !two.calls().is_empty();
    scene.until("the second has one", took).await;
    second.stop("orders").await.unwrap();
    first.resume("orders").await.unwrap();
    scene.until_committed(&group, &topic, 20).await;
    let seen = || one.calls().len() + two.calls().len() >= 40;
    scene.until("all are handled", seen).await;
    first.stop("orders").await.unwrap();
}

pub(crate) async fn c12_an_offset_that_stands_still_is_an_alarm(scene: Scene) {
    let topic = scene.topic("c12", 1).await;
    let mut options = scene.options(&topic);
    options.stall_alarm = Duration::from_millis(100);
    options.stop_timeout = Duration::from_millis(200);
    let script = Script::new(&scene);
    let handler = script.handler(|_| async move {
        std::future::pending::<()>().await;
        Ok(())
    });
    scene.send(&topic, 0, &["a"]).await;
    let connector = scene.start(options, handler).await;
    let alarm = || {
        let health = connector.binding_health("orders").unwrap();
        let text = health.message.unwrap_or_default();
        health.status == HealthStatus::Degraded && text.contains("stands at offset 0, key `key-a`")
    };
    scene.until("health names it", alarm).await;
    connector.stop("orders").await.unwrap();
}

pub(crate) async fn c42_a_back_off_is_no_slow_call(scene: Scene) {
    let topic = scene.topic("c42", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.initial_backoff = Duration::from_millis(600);
    options.retry.tier0.max_backoff = Duration::from_millis(600);
    options.breaker = BreakerOptions {
        is_enabled: true,
        rule: Rule {
            trip: Trip::Rates(Rates {
                window: 10,
                minimum_calls: 2,
                failure_rate: 100.0,
                slow_call_rate: 10.0,
                slow_call: Duration::from_millis(400),
            }),
            open_for: Duration::from_secs(60),
            probes: 1,
        },
        pauses_on_open: true,
    };
    let group = options.group.clone();
    let script = Script::new(&scene);
    let handler = script.answers(|record| match record.attempt() {
        1 if text(record.value()) != "good" => transient("timeout.read"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["good", "a", "b"]).await;
    let connector = scene.start(options, handler).await;
    scene.until_committed(&group, &topic, 3).await;
    assert_eq!(connector.list()[0].circuit, "CLOSED");
    connector.stop("orders").await.unwrap();
    assert_eq!(script.calls().len(), 5, "each attempt is one call");
}

pub(crate) async fn a_record_that_fits_nowhere_is_kept(scene: Scene) {
    let topic = scene.topic("large", 1).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    let dlt = options.dlt_topic().unwrap();
    let small = TopicConfig {
        max_record_size: 600,
        ..TopicConfig::new(1)
    };
    scene.log.create_topic(&dlt, small).await.unwrap();
    let script = Script::new(&scene);
    let large = "x".repeat(2_000);
    scene.send(&topic, 0, &["a", &large, "b"]).await;
    let bad = large.clone();
    let handler = script.answers(move |record| match text(record.value()) == bad {
        true => permanent("business.rule"),
        false => Ok(()),
    });
    let connector = scene.start(options, handler).await;
    let told = || {
        let message = connector
            .binding_health("orders")
            .unwrap()
            .message
            .unwrap_or_default();
        message.contains("takes at most 600")
    };
    scene.until("health names it", told).await;
    scene.until_committed(&group, &topic, 1).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.count("b"), 0, "nothing passes it by");
}
