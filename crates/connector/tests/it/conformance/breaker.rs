//! The breaker, pauses, and handlers that misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_connector::{Binding, BreakerOptions, Connector, ContainerState};
use tidegate_core::breaker::{Rates, Rule, Trip};
use tidegate_core::{Code, Failure, FailureClass};

use crate::fast_clock::fast;
use crate::scene::{Scene, Script, text, transient};

fn breaker() -> BreakerOptions {
    BreakerOptions {
        is_enabled: true,
        rule: Rule {
            trip: Trip::Rates(Rates {
                window: 10,
                minimum_calls: 4,
                failure_rate: 50.0,
                slow_call_rate: 100.0,
                slow_call: Duration::from_secs(5),
            }),
            open_for: Duration::from_millis(200),
            probes: 2,
        },
        pauses_on_open: true,
    }
}

pub(crate) async fn c40_c41_an_open_breaker_keeps_every_record(scene: Scene) {
    let topic = scene.topic("c40", 1).await;
    let mut options = scene.options(&topic);
    options.breaker = breaker();
    options.retry.tier0.max_attempts = 1_000;
    options.max_poll_interval = Duration::from_secs(6_000);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let handler = script.answers(move |_| match down.load(Ordering::Relaxed) {
        true => transient("connection.refused"),
        false => Ok(()),
    });
    let names: Vec<String> = (0..30).map(|n| format!("r{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    scene.send(&topic, 0, &names).await;
    let connector = scene.start(options.clone(), handler).await;
    scene
        .until("it opens", || connector.list()[0].circuit == "OPEN")
        .await;
    let view = connector.list().remove(0);
    assert_eq!(
        (view.state, view.reasons.to_string()),
        (ContainerState::Paused, "breaker".to_owned())
    );
    let before = script.calls().len();
    assert_eq!(before, 4, "it opens after the calls it needs");
    // Each time it is half-open, exactly the permitted calls go through.
    scene
        .until("it probes twice", || script.calls().len() >= before + 4)
        .await;
    assert_eq!(
        script
            .values()
            .iter()
            .filter(|value| *value != "r0")
            .count(),
        0
    );
    is_down.store(false, Ordering::Relaxed);
    scene.until_committed(&group, &topic, 30).await;
    let closed = || connector.list()[0].circuit == "CLOSED";
    scene.until("it closes", closed).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.letters(&options).await, []);
    let tier = options.tier_topic(tidegate_core::TierIndex(1)).unwrap();
    assert!(
        scene.records(&tier, 0).await.is_empty(),
        "no record left its topic"
    );
}

pub(crate) async fn a07_a_breaker_never_resumes_what_an_operator_paused(scene: Scene) {
    let topic = scene.topic("a07", 1).await;
    let mut options = scene.options(&topic);
    options.breaker = breaker();
    options.retry.tier0.max_attempts = 100;
    let group = options.group.clone();
    let script = Script::new(&scene);
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let handler = script.answers(move |_| match down.load(Ordering::Relaxed) {
        true => transient("connection.refused"),
        false => Ok(()),
    });
    scene.send(&topic, 0, &["a", "b"]).await;
    let connector = scene.start(options, handler).await;
    let has = |reason: &str| {
        let reasons = connector.list()[0].reasons.to_string();
        reasons.split(", ").any(|found| found == reason)
    };
    scene.until("it opens", || has("breaker")).await;
    connector.pause("orders").await.unwrap();
    is_down.store(false, Ordering::Relaxed);
    scene
        .until("the breaker has gone on", || !has("breaker"))
        .await;
    let calls = script.calls().len();
    scene.env.clock.sleep(Duration::from_millis(300)).await;
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Paused);
    assert_eq!(script.calls().len(), calls, "the operator's pause stands");
    let remaining = connector.resume("orders").await.unwrap();
    assert!(remaining.flows(), "{remaining}");
    scene.until_committed(&group, &topic, 2).await;
    connector.stop("orders").await.unwrap();
}

pub(crate) async fn a_system_failure_pauses_until_it_is_gone(scene: Scene) {
    let topic = scene.topic("system", 1).await;
    let mut options = scene.options(&topic);
    // Its times pass ten times as fast.
    options.stop_timeout = Duration::from_secs(50);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let is_wrong = Arc::new(AtomicBool::new(true));
    let wrong = Arc::clone(&is_wrong);
    let handler = script.answers(move |_| match wrong.load(Ordering::Relaxed) {
        true => {
            let code = Code::from_static("access.denied");
            Err(Failure::new(FailureClass::System, code, "the token is wrong").into())
        }
        false => Ok(()),
    });
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    let connector = Connector::new(Arc::clone(&scene.log), &fast(&scene.env, 10));
    let binding = Binding::new(options.clone(), handler);
    connector.register(binding).unwrap();
    connector.start("orders").await.unwrap();
    scene
        .until("it was tried alone", || script.calls().len() >= 2)
        .await;
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Paused);
    assert_eq!(connector.list()[0].reasons.to_string(), "system");
    let health = connector.binding_health("orders").unwrap();
    assert!(health.message.unwrap().contains("access.denied"));
    assert!(
        script.values().iter().all(|value| value == "a"),
        "one record is tried alone"
    );
    assert!(
        script.calls().iter().all(|call| call.attempt == 1),
        "no attempt is used up"
    );
    is_wrong.store(false, Ordering::Relaxed);
    scene.until_committed(&group, &topic, 3).await;
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Running);
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.letters(&options).await, []);
}

pub(crate) async fn a_panic_and_an_overrun_are_transient_failures(scene: Scene) {
    let topic = scene.topic("panics", 1).await;
    let mut options = scene.options(&topic);
    options.handler_timeout = Duration::from_millis(50);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let panics = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&panics);
    let handler = script.handler(move |record| {
        let count = Arc::clone(&count);
        async move {
            if record.attempt() == 1 {
                match text(record.value()).as_str() {
                    "panic" => {
                        count.fetch_add(1, Ordering::Relaxed);
                        panic!("on purpose");
                    }
                    "hang" => std::future::pending::<()>().await,
                    _ => {}
                }
            }
            Ok(())
        }
    });
    scene.send(&topic, 0, &["a", "panic", "hang", "b"]).await;
    let connector = scene.start(options, handler).await;
    scene.until_committed(&group, &topic, 4).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(
        script.values(),
        ["a", "panic", "panic", "hang", "hang", "b"]
    );
    assert_eq!(panics.load(Ordering::Relaxed), 1);
}
