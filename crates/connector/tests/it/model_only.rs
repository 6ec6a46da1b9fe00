//! Rules that need simulated time, or faults of the log that no real one makes to order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_connector::{Binding, BindingOptions, Connector, DltStrategy};
use tidegate_core::{Code, Failure, TierIndex};
use tidegate_sim::{LogFault, LogRates};

use crate::scene::{Scene, Script, on_model, permanent, text, transient};

#[test]
fn c20_the_default_ladder_in_virtual_time() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let options = BindingOptions::new("orders", "orders", "group").unwrap();
        let script = Script::new(&scene);
        scene.send(&topic, 0, &["poison"]).await;
        let began = scene.env.clock.elapsed();
        let connector = scene
            .start(
                options.clone(),
                script.answers(|_| transient("timeout.read")),
            )
            .await;
        while scene.letters(&options).await.is_empty() {
            scene.env.clock.sleep(Duration::from_secs(1)).await;
        }
        let took = scene.env.clock.elapsed() - began;
        connector.stop("orders").await.unwrap();
        let calls = script.calls();
        assert_eq!(calls.len(), 30);
        // Three attempts, then the delay of the tier, and so on: no delay is cut short or drawn out.
        let delays = [10, 10, 10, 60, 60, 60, 300, 300, 300].map(Duration::from_secs);
        let (early, late) = (Duration::from_millis(1), Duration::from_millis(100));
        for (delay, hop) in delays.iter().zip(calls.windows(2).skip(2).step_by(3)) {
            let waited = hop[1].at - hop[0].at;
            assert_eq!(hop[1].attempt, 1);
            assert!(
                waited + early >= *delay && waited <= *delay + late,
                "{waited:?} of {delay:?}"
            );
        }
        let all: Duration = delays.iter().sum();
        let passed = calls[29].at - calls[0].at;
        // Waits in memory: ten times 100 and 200 ms, with their jitter.
        let in_memory = Duration::from_secs(5);
        assert!(
            passed + 9 * early >= all && passed <= all + in_memory + 9 * late,
            "{passed:?} of {all:?}"
        );
        assert!(took >= passed);
    });
}

#[test]
fn c43_an_outage_of_an_hour_leaves_the_dead_letters_empty() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = BindingOptions::new("orders", "orders", "group").unwrap();
        options.breaker.is_enabled = true;
        let script = Script::new(&scene);
        let is_down = Arc::new(AtomicBool::new(false));
        let down = Arc::clone(&is_down);
        let handler = script.answers(move |_| match down.load(Ordering::Relaxed) {
            true => transient("connection.refused"),
            false => Ok(()),
        });
        let connector = scene.start(options.clone(), handler).await;
        for minute in 0..80 {
            is_down.store((5..65).contains(&minute), Ordering::Relaxed);
            for n in 0..30 {
                scene.send(&topic, 0, &[&format!("{minute}-{n}")]).await;
                scene.env.clock.sleep(Duration::from_secs(2)).await;
            }
        }
        scene.until_committed(&options.group, &topic, 2_400).await;
        // Those that went to a tier before the breaker opened come back.
        for tier in 1..=3 {
            let tier = TierIndex(tier);
            let (group, name) = (
                options.tier_group(tier).unwrap(),
                options.tier_topic(tier).unwrap(),
            );
            if let Some(last) = scene.records(&name, 0).await.last() {
                scene.until_passed(&group, &name, last.offset.0).await;
            }
        }
        connector.stop("orders").await.unwrap();
        assert_eq!(scene.letters(&options).await, []);
        let mut values = script.values();
        values.sort();
        values.dedup();
        assert_eq!(values.len(), 2_400);
    });
}

#[test]
fn c24_an_answer_that_is_lost_makes_no_second_copy() {
    for fault in [
        LogFault::LoseAnswer,
        LogFault::LoseRequest,
        LogFault::Refuse,
    ] {
        on_model(move |scene: Scene| async move {
            let topic = scene.topic("orders", 1).await;
            let mut options = scene.options(&topic);
            options.retry.tier0.max_attempts = 1;
            let script = Script::new(&scene);
            let is_held = Arc::new(AtomicBool::new(true));
            let (held, clock) = (Arc::clone(&is_held), Arc::clone(&scene.env.clock));
            let handler = script.handler(move |record| {
                let (held, clock) = (Arc::clone(&held), Arc::clone(&clock));
                async move {
                    while held.load(Ordering::Relaxed) {
                        clock.sleep(Duration::from_millis(1)).await;
                    }
                    match record.tier().0 {
                        0 => transient("timeout.read"),
                        _ => Ok(()),
                    }
                }
            });
            let connector = scene.start(options.clone(), handler).await;
            scene.send(&topic, 0, &["a"]).await;
            scene
                .until("it is in hand", || script.calls().len() == 1)
                .await;
            let model = scene.model.clone().unwrap();
            model.inject(fault);
            is_held.store(false, Ordering::Relaxed);
            scene.until_committed(&options.group, &topic, 1).await;
            let tier = options.tier_topic(TierIndex(1)).unwrap();
            let group = options.tier_group(TierIndex(1)).unwrap();
            scene.until_committed(&group, &tier, 1).await;
            connector.stop("orders").await.unwrap();
            assert_eq!(model.faults_left(), 0);
            assert_eq!(scene.records(&tier, 0).await.len(), 1, "{fault:?}");
            assert_eq!(script.values(), ["a", "a"]);
        });
    }
}

#[test]
fn c07_a_member_that_was_taken_for_dead_commits_nothing() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let options = scene.options(&topic);
        let group = options.group.clone();
        let script = Script::new(&scene);
        let clock = Arc::clone(&scene.env.clock);
        let handler = script.handler(move |record| {
            let clock = Arc::clone(&clock);
            async move {
                clock.sleep(Duration::from_millis(50)).await;
                match text(record.value()).as_str() {
                    "bad" if record.tier().0 == 0 => transient("timeout.read"),
                    _ => Ok(()),
                }
            }
        });
        scene.send(&topic, 0, &["a", "bad", "b", "c"]).await;
        let connector = scene.start(options.clone(), handler).await;
        scene
            .until("something is in hand", || !script.calls().is_empty())
            .await;
        assert!(scene.model.as_ref().unwrap().expel(&group, 0));
        // It joins again, and everything is handled: nothing is skipped.
        scene.until_committed(&group, &topic, 4).await;
        connector.stop("orders").await.unwrap();
        for value in ["a", "bad", "b", "c"] {
            assert!(script.count(value) >= 1, "{value}");
        }
        let tier = options.tier_topic(TierIndex(1)).unwrap();
        assert_eq!(scene.records(&tier, 0).await.len(), 1);
    });
}

#[test]
pub(crate) fn c07_a_member_that_is_taken_for_dead_at_any_moment_hands_off_once() {
    for after in (0..300).step_by(4) {
        on_model(move |scene: Scene| async move {
            let topic = scene.topic("orders", 1).await;
            let mut options = scene.options(&topic);
            options.retry.tier0.max_attempts = 1;
            let group = options.group.clone();
            let model = scene.model.clone().unwrap();
            let script = Script::new(&scene);
            let handler = script.handler(|record| {
                let is_first = record.tier().0 == 0;
                async move {
                    match is_first {
                        true => transient("timeout.read"),
                        false => Ok(()),
                    }
                }
            });
            let connector = scene.start(options.clone(), handler).await;
            scene.send(&topic, 0, &["a", "b", "c"]).await;
            model.set_rates(LogRates {
                delay: Duration::from_millis(40),
                ..LogRates::default()
            });
            scene.env.clock.sleep(Duration::from_millis(after)).await;
            model.expel(&group, 0);
            scene.until_committed(&group, &topic, 3).await;
            connector.stop("orders").await.unwrap();
            let tier = options.tier_topic(TierIndex(1)).unwrap();
            assert_eq!(scene.records(&tier, 0).await.len(), 3, "{after} ms");
        });
    }
}

#[test]
fn a_dead_letter_waits_until_its_handler_is_there() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.dlt.strategy = DltStrategy::AlertAndStore;
        let script = Script::new(&scene);
        let calls = Arc::new(tidegate_core::Mutex::new(Vec::new()));
        let told = Arc::clone(&calls);
        let binding = Binding::new(options, script.answers(|_| permanent("business.rule")));
        let binding = binding.on_dead_letter(move |letter| {
            let value = text(letter.letter.value.as_ref());
            let mut told = told.lock();
            told.push(value.clone());
            let count = told.iter().filter(|seen| **seen == value).count();
            let code = Code::from_static("connection.refused");
            let answer = match value.as_str() {
                // It is away for a while.
                "a" if count <= 10 => Err(Failure::transient(code, "away")),
                "b" => Err(Failure::permanent(code, "never")),
                _ => Ok(()),
            };
            async { answer }
        });
        let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
        connector.register(binding).unwrap();
        connector.start("orders").await.unwrap();
        scene.send(&topic, 0, &["a", "b", "c"]).await;
        while calls.lock().last().is_none_or(|last| last != "c") {
            scene.env.clock.sleep(Duration::from_secs(1)).await;
        }
        connector.stop("orders").await.unwrap();
        let count = |value: &str| calls.lock().iter().filter(|seen| *seen == value).count();
        assert_eq!((count("a"), count("b"), count("c")), (11, 3, 1));
    });
}
