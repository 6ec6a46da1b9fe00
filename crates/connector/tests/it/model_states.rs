//! Signs of a binding in virtual time: gauges, alarms, dead letters that are told, records that are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tidegate_connector::{
    BatchFailureStrategy, Binding, BindingOptions, BoundHandler, BreakerOptions, ConcurrencyMode,
    Connector, ContainerState, DltStrategy, HandOff, ListenerType, StrictExhausted, TierOptions,
};
use tidegate_core::breaker::{Rates, Rule, Trip};
use tidegate_core::dead_letter::name;
use tidegate_core::{CodePattern, HealthStatus, Mutex, Offset, TierIndex};
use tidegate_log::{Append, TopicPartition};

use crate::scene::{Scene, Script, header, headers, on_model, permanent, text, transient};
use crate::scripted_log::ScriptedLog;

fn scripted(mut scene: Scene) -> (Scene, ScriptedLog) {
    let log = ScriptedLog::new(&scene.log);
    scene.log = Arc::new(log.clone());
    (scene, log)
}

/// A breaker that opens after four calls and lets two through each minute.
fn breaker(probes: u32) -> BreakerOptions {
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
            open_for: Duration::from_secs(60),
            probes,
        },
        pauses_on_open: true,
    }
}

/// Plays a rule on the model with a recorder of its metrics.
fn metered<R: Future<Output = ()> + Send + 'static>(
    rule: impl FnOnce(Scene, PrometheusHandle) -> R,
) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || on_model(|scene| rule(scene, handle)));
}

/// The value of the first metric with this name and label.
fn value(metrics: &PrometheusHandle, name: &str, label: &str) -> Option<String> {
    let text = metrics.render();
    let mut lines = text.lines();
    let found = lines.find(|line| line.starts_with(name) && line.contains(label))?;
    found.rsplit(' ').next().map(str::to_owned)
}

#[test]
fn the_gauges_of_state_and_breaker_follow_every_change() {
    metered(|scene, metrics| async move {
        let topic = scene.topic("orders", 1).await;
        let (scene, log) = scripted(scene);
        let mut options = scene.options(&topic);
        options.breaker = breaker(1);
        options.retry.codes.pause_on = vec![CodePattern::new("license.*")];
        let script = Script::new(&scene);
        let (down, unlicensed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (is_down, is_unlicensed) = (Arc::clone(&down), Arc::clone(&unlicensed));
        let handler = script.answers(move |_| match is_down.load(Ordering::Relaxed) {
            true => transient("connection.refused"),
            false if is_unlicensed.load(Ordering::Relaxed) => transient("license.expired"),
            false => Ok(()),
        });
        let state = |expect: &str| {
            value(&metrics, "eventbus_container_state", "orders").as_deref() == Some(expect)
        };
        let circuit = |expect: &str| {
            value(&metrics, "eventbus_circuit_state", "orders").as_deref() == Some(expect)
        };
        let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
        connector
            .register(Binding::new(options.clone(), handler))
            .unwrap();
        assert!(state("0") && circuit("0"), "{}", metrics.render());
        connector.start("orders").await.unwrap();
        assert!(state("1"), "running");
        connector.pause("orders").await.unwrap();
        assert!(state("2"), "paused by an operator");
        connector.resume("orders").await.unwrap();
        assert!(state("1"), "running again");
        down.store(true, Ordering::Relaxed);
        scene.send(&topic, 0, &["a", "b", "c"]).await;
        scene.until("it opens", || circuit("1") && state("2")).await;
        down.store(false, Ordering::Relaxed);
        scene.until_committed(&options.group, &topic, 3).await;
        scene
            .until("it closes", || circuit("0") && state("1"))
            .await;
        unlicensed.store(true, Ordering::Relaxed);
        scene.send(&topic, 0, &["d"]).await;
        scene.until("a code pauses it", || state("2")).await;
        unlicensed.store(false, Ordering::Relaxed);
        connector.resume("orders").await.unwrap();
        scene.until_committed(&options.group, &topic, 4).await;
        assert!(state("1"), "running once more");
        log.remove_before(&TopicPartition::new(topic.clone(), 0), Offset(5));
        scene.send(&topic, 0, &["e"]).await;
        scene.until("it stops by itself", || state("3")).await;
        assert_eq!(connector.state("orders").unwrap(), ContainerState::Stopped);
        connector.shutdown().await;
        assert!(state("3"));
        connector.destroy("orders").await.unwrap();
        assert!(state("4"));
    });
}

#[test]
fn c43_an_outage_without_tiers_leaves_the_dead_letters_empty() {
    let strict = |options: BindingOptions| options.strict(StrictExhausted::DeadLetter);
    let batch = |mut options: BindingOptions| {
        options.listener_type = ListenerType::Batch;
        options.batch_failure = BatchFailureStrategy::DlqAndContinue;
        options
    };
    let none = |mut options: BindingOptions| {
        options.retry.tiers.clear();
        options
    };
    let changes: [fn(BindingOptions) -> BindingOptions; 3] = [strict, batch, none];
    for change in changes {
        on_model(move |scene: Scene| async move {
            let topic = scene.topic("orders", 1).await;
            let mut options = change(scene.options(&topic));
            options.breaker = breaker(5);
            // It opens before the first record has used up its attempts.
            options.retry.tier0.max_attempts = 5;
            let script = Script::new(&scene);
            let is_down = Arc::new(AtomicBool::new(true));
            let down = Arc::clone(&is_down);
            let handler = script.answers(move |_| match down.load(Ordering::Relaxed) {
                true => transient("connection.refused"),
                false => Ok(()),
            });
            let connector = scene.start(options.clone(), handler).await;
            for minute in 0..60 {
                scene.send(&topic, 0, &[&format!("r{minute}")]).await;
                scene.env.clock.sleep(Duration::from_secs(60)).await;
            }
            let view = connector.list().remove(0);
            assert_ne!(view.circuit, "CLOSED");
            assert!(script.len() >= 200, "it was probed: {}", script.len());
            is_down.store(false, Ordering::Relaxed);
            scene.until_committed(&options.group, &topic, 60).await;
            connector.stop("orders").await.unwrap();
            assert_eq!(scene.letters(&options).await, []);
        });
    }
}

#[test]
fn c43_a_record_that_fails_alone_does_not_keep_the_breaker_open_for_ever() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic).strict(StrictExhausted::DeadLetter);
        options.breaker = breaker(5);
        options.retry.tier0.max_attempts = 5;
        let group = options.group.clone();
        let script = Script::new(&scene);
        let handler = script.answers(|record| match text(record.value()).as_str() {
            "poison" => transient("timeout.read"),
            _ => Ok(()),
        });
        scene.send(&topic, 0, &["poison", "a"]).await;
        let began = scene.env.clock.elapsed();
        let connector = scene.start(options.clone(), handler).await;
        while scene.committed(&group, &topic, 0).await != Some(2) {
            scene.env.clock.sleep(Duration::from_secs(60)).await;
        }
        let hours = (scene.env.clock.elapsed() - began).as_secs_f64() / 3_600.0;
        assert!((3.0..3.2).contains(&hours), "{hours} hours");
        connector.stop("orders").await.unwrap();
        assert_eq!(scene.letters(&options).await.len(), 1);
    });
}

#[test]
fn a_batch_of_rejected_records_says_nothing_to_the_breaker() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.listener_type = ListenerType::Batch;
        options.breaker = breaker(1);
        options.breaker.rule.trip = Trip::Rates(Rates {
            window: 4,
            minimum_calls: 4,
            failure_rate: 60.0,
            slow_call_rate: 100.0,
            slow_call: Duration::from_secs(5),
        });
        options.max_poll_records = 1;
        options.retry.tier0.max_attempts = 1;
        options.retry.tiers = vec![TierOptions::new(Duration::from_secs(3_600))];
        let group = options.group.clone();
        // Two calls are rejected for each one that fails: they would keep the breaker closed.
        let handler = BoundHandler::batch(RejectingBatch(AtomicUsize::new(0)));
        let connector = scene.start(options, handler).await;
        let names: Vec<String> = (0..20).map(|n| format!("r{n}")).collect();
        for name in &names {
            scene.send(&topic, 0, &[name]).await;
        }
        scene
            .until("it opens", || connector.list()[0].circuit == "OPEN")
            .await;
        assert!(scene.committed(&group, &topic, 0).await < Some(20));
        connector.stop("orders").await.unwrap();
    });
}

/// Every third record fails, and the others are rejected.
struct RejectingBatch(AtomicUsize);

impl tidegate_connector::BatchRecordHandler for RejectingBatch {
    async fn handle_batch(
        &self,
        records: &[Arc<tidegate_connector::ConsumedRecord>],
    ) -> Vec<tidegate_connector::HandlerAnswer> {
        let answer = |record: &Arc<tidegate_connector::ConsumedRecord>| {
            self.0.fetch_add(1, Ordering::Relaxed);
            match record.offset().0 % 3 {
                2 => transient("timeout.read"),
                _ => permanent("business.rule"),
            }
        };
        records.iter().map(answer).collect()
    }
}

#[test]
fn c12_an_offset_that_stands_still_with_nothing_in_hand_is_an_alarm() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let (scene, log) = scripted(scene);
        let mut options = scene.options(&topic);
        options.retry.tier0.max_attempts = 1;
        options.retry.tiers = vec![TierOptions::new(Duration::from_secs(60))];
        let tier = options.tier_topic(TierIndex(1)).unwrap();
        let script = Script::new(&scene);
        let handler = script.answers(|record| match text(record.value()).as_str() {
            "bad" => transient("timeout.read"),
            _ => Ok(()),
        });
        let connector = scene.start(options.clone(), handler).await;
        scene.send(&topic, 0, &["a"]).await;
        scene.until_committed(&options.group, &topic, 1).await;
        let health = || connector.binding_health("orders").unwrap();
        let minutes = |count: u64| scene.env.clock.sleep(Duration::from_secs(count * 60));
        minutes(60).await;
        assert_eq!(
            health().status,
            HealthStatus::Up,
            "nothing to do is no alarm"
        );
        // Nobody hands them out any more, and nobody says why.
        log.withhold(&TopicPartition::new(topic.clone(), 0));
        scene.send(&topic, 0, &["b"]).await;
        minutes(4).await;
        assert_eq!(health().status, HealthStatus::Up, "{:?}", health());
        minutes(2).await;
        assert_eq!(health().status, HealthStatus::Degraded);
        let message = health().message.unwrap_or_default();
        assert!(message.contains("stands at offset 1"), "{message}");
        connector.stop("orders").await.unwrap();
        // The same in a tier, whose records wait for their time first.
        log.withhold(&TopicPartition::new(tier.clone(), 0));
        scene.send(&topic, 0, &["bad"]).await;
        connector.start("orders").await.unwrap();
        minutes(5).await;
        assert_eq!(health().status, HealthStatus::Up, "{:?}", health());
        minutes(2).await;
        let message = health().message.unwrap_or_default();
        assert!(message.contains(tier.as_str()), "{message}");
        connector.pause("orders").await.unwrap();
        minutes(30).await;
        connector.resume("orders").await.unwrap();
        assert_eq!(health().status, HealthStatus::Up, "a pause is no stall");
        connector.stop("orders").await.unwrap();
    });
}

/// A binding with a handler of its letters, which notes them.
fn with_letters(
    options: BindingOptions,
    handler: BoundHandler,
) -> (Binding, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let binding = Binding::new(options, handler).on_dead_letter(move |letter| {
        tell.lock().push(text(letter.letter.value.as_ref()));
        async { Ok(()) }
    });
    (binding, told)
}

#[test]
fn letters_are_told_where_the_strategy_says_so() {
    on_model(|scene: Scene| async move {
        for (strategy, expect) in [
            (DltStrategy::StoreOnly, 0),
            (DltStrategy::AlertAndStore, 1),
            (DltStrategy::Custom, 1),
        ] {
            let topic = scene.topic(&format!("orders-{strategy:?}"), 1).await;
            let mut options = scene.options(&topic);
            options.dlt.strategy = strategy;
            let script = Script::new(&scene);
            let handler = script.answers(|_| permanent("business.rule"));
            let (binding, told) = with_letters(options.clone(), handler);
            let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
            connector.register(binding).unwrap();
            connector.start("orders").await.unwrap();
            scene.send(&topic, 0, &["a"]).await;
            scene.until_letters(&options, 1).await;
            scene.env.clock.sleep(Duration::from_secs(30)).await;
            connector.stop("orders").await.unwrap();
            assert_eq!(told.lock().len(), expect, "{strategy:?}");
        }
    });
}

#[test]
fn c12_the_group_of_the_letters_commits_again() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let (scene, log) = scripted(scene);
        let mut options = scene.options(&topic);
        options.dlt.strategy = DltStrategy::AlertAndStore;
        let group = options.dlt_group().unwrap();
        let script = Script::new(&scene);
        let handler = script.answers(|_| permanent("business.rule"));
        let (binding, told) = with_letters(options, handler);
        let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
        connector.register(binding).unwrap();
        connector.start("orders").await.unwrap();
        scene.send(&topic, 0, &["a"]).await;
        scene.until("it is told", || told.lock().len() == 1).await;
        scene.env.clock.sleep(Duration::from_secs(4 * 3_600)).await;
        connector.stop("orders").await.unwrap();
        let commits = log.commits_of(&group);
        assert!(commits.len() >= 4, "{commits:?}");
        assert!(commits.iter().all(|next| *next == 1), "{commits:?}");
        assert_eq!(told.lock().len(), 1);
    });
}

#[test]
fn c02_progress_without_a_store_is_counted_and_handled_again() {
    metered(|scene, metrics| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.concurrency_mode = ConcurrencyMode::Unordered;
        options.max_poll_records = 2_000;
        options.max_in_flight = 10_000;
        options.stop_timeout = Duration::from_millis(500);
        let values: Vec<String> = (0..4_000).map(|n| n.to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        scene.send(&topic, 0, &values).await;
        let script = Script::new(&scene);
        let handler = script.handler(|record| async move {
            if text(record.value())
                .parse::<u64>()
                .unwrap()
                .is_multiple_of(2)
            {
                std::future::pending::<()>().await;
            }
            Ok(())
        });
        let connector = scene.start_with_store(options.clone(), handler).await;
        scene.until("all are begun", || script.len() == 4_000).await;
        scene.env.clock.sleep(Duration::from_secs(30)).await;
        connector.stop("orders").await.unwrap();
        // Outputs would be written twice: then nobody goes on.
        options.transactional = true;
        let again = Script::new(&scene);
        let connector = scene
            .start(options.clone(), again.answers(|_| Ok(())))
            .await;
        let is_stopped = || connector.state("orders").unwrap() == ContainerState::Stopped;
        scene.until("it stops", is_stopped).await;
        let health = connector.binding_health("orders").unwrap();
        assert_eq!(health.status, HealthStatus::Down);
        let message = health.message.unwrap_or_default();
        assert!(message.contains("there is no store"), "{message}");
        assert_eq!(again.len(), 0);
        connector.shutdown().await;
        options.transactional = false;
        let connector = scene
            .start(options.clone(), again.answers(|_| Ok(())))
            .await;
        scene.until_committed(&options.group, &topic, 4_000).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(again.len(), 4_000);
        let counted = value(&metrics, "eventbus_commit_metadata_ignored", "orders");
        assert_eq!(counted.as_deref(), Some("2"));
    });
}

#[test]
fn c24_a_copy_that_was_made_twice_is_handled_once() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.hand_off = HandOff::AtLeastOnce;
        options.retry.tier0.max_attempts = 1;
        let (tier, group) = (
            options.tier_topic(TierIndex(1)).unwrap(),
            options.tier_group(TierIndex(1)).unwrap(),
        );
        let script = Script::new(&scene);
        let handler = script.answers(|record| match record.tier().0 {
            0 => transient("timeout.read"),
            _ => Ok(()),
        });
        scene.send(&topic, 0, &["a"]).await;
        let connector = scene.start(options.clone(), handler).await;
        scene.until_committed(&group, &tier, 1).await;
        // A crash between the copy and the offset makes this one.
        let copy = scene.records(&tier, 0).await.remove(0).record;
        let again = Append::new(tier.clone(), copy).partition(0);
        scene.log.append(vec![again]).await.unwrap();
        scene.until_committed(&group, &tier, 2).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(script.values(), ["a", "a"]);
    });
}

#[test]
fn c09_handing_back_is_counted_and_is_no_rebalance() {
    metered(|scene, metrics| async move {
        let topic = scene.topic("orders", 1).await;
        let (scene, log) = scripted(scene);
        let mut options = scene.options(&topic);
        options.retry.tiers.clear();
        options.max_poll_interval = Duration::from_secs(600);
        let group = options.group.clone();
        let script = Script::new(&scene);
        let clock = Arc::clone(&scene.env.clock);
        let handler = script.handler(move |record| {
            let clock = Arc::clone(&clock);
            async move {
                if text(record.value()) == "b" {
                    clock.sleep(Duration::from_secs(290)).await;
                }
                Ok(())
            }
        });
        let safety = || {
            value(
                &metrics,
                "eventbus_poll_interval_safety_triggered",
                "orders",
            )
        };
        scene.send(&topic, 0, &["a", "b", "b", "b", "c"]).await;
        let connector = scene.start(options, handler).await;
        scene.until_committed(&group, &topic, 1).await;
        assert_eq!(safety(), None);
        while scene.committed(&group, &topic, 0).await != Some(5) {
            scene.env.clock.sleep(Duration::from_secs(10)).await;
        }
        assert_eq!(safety().as_deref(), Some("1"));
        assert_eq!(log.assigned(), 1, "nobody took the partition away");
        connector.stop("orders").await.unwrap();
        assert_eq!(script.values(), ["a", "b", "b", "b", "c"]);
    });
}

#[test]
fn c40_an_open_breaker_stays_in_its_group() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 2).await;
        let (scene, log) = scripted(scene);
        let mut options = scene.options(&topic);
        options.breaker = breaker(1);
        options.retry.tiers.clear();
        options.retry.tier0.max_attempts = 10;
        let group = options.group.clone();
        let script = Script::new(&scene);
        let is_down = Arc::new(AtomicBool::new(true));
        let down = Arc::clone(&is_down);
        let handler = script.answers(move |_| match down.load(Ordering::Relaxed) {
            true => transient("connection.refused"),
            false => Ok(()),
        });
        scene.send(&topic, 0, &["a"]).await;
        let connector = scene.start(options, handler).await;
        scene
            .until("it opens", || connector.list()[0].circuit == "OPEN")
            .await;
        // Three times the poll interval, and forty session timeouts.
        scene.env.clock.sleep(Duration::from_secs(1_800)).await;
        assert_eq!(
            (log.assigned(), connector.positions("orders").unwrap().len()),
            (2, 2)
        );
        is_down.store(false, Ordering::Relaxed);
        scene.until_committed(&group, &topic, 1).await;
        assert_eq!(log.assigned(), 2);
        connector.stop("orders").await.unwrap();
    });
}

#[test]
fn c41_a_half_open_breaker_lets_the_permitted_keys_through() {
    for mode in [ConcurrencyMode::Key, ConcurrencyMode::Unordered] {
        on_model(move |scene: Scene| async move {
            let topic = scene.topic("orders", 1).await;
            let mut options = scene.options(&topic);
            options.breaker = breaker(3);
            options.concurrency_mode = mode;
            options.retry.tiers.clear();
            options.retry.tier0.max_attempts = 50;
            let group = options.group.clone();
            let script = Script::new(&scene);
            let is_down = Arc::new(AtomicBool::new(true));
            let (down, clock) = (Arc::clone(&is_down), Arc::clone(&scene.env.clock));
            let handler = script.handler(move |_| {
                let (down, clock) = (Arc::clone(&down), Arc::clone(&clock));
                async move {
                    clock.sleep(Duration::from_millis(500)).await;
                    match down.load(Ordering::Relaxed) {
                        true => transient("connection.refused"),
                        false => Ok(()),
                    }
                }
            });
            let names: Vec<String> = (0..30).map(|n| format!("r{n}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            scene.send(&topic, 0, &names).await;
            let connector = scene.start(options, handler).await;
            scene
                .until("it opens", || connector.list()[0].circuit == "OPEN")
                .await;
            let first = script.len();
            scene.env.clock.sleep(Duration::from_secs(600)).await;
            is_down.store(false, Ordering::Relaxed);
            let calls = script.calls();
            let mut probes: Vec<(Duration, usize)> = Vec::new();
            for call in &calls[first..] {
                match probes.last_mut() {
                    Some((at, count)) if call.at - *at < Duration::from_secs(30) => *count += 1,
                    _ => probes.push((call.at, 1)),
                }
            }
            assert!(probes.len() >= 8, "{probes:?}");
            assert!(probes.iter().all(|(_, count)| *count == 3), "{probes:?}");
            scene.until_committed(&group, &topic, 30).await;
            connector.stop("orders").await.unwrap();
        });
    }
}

#[test]
fn max_in_flight_and_max_ahead_bound_what_is_begun() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.concurrency_mode = ConcurrencyMode::Unordered;
        options.max_in_flight = 7;
        options.max_ahead = 100;
        options.max_poll_records = 10;
        let group = options.group.clone();
        let script = Script::new(&scene);
        let is_held = Arc::new(AtomicBool::new(true));
        let counts = Arc::new(Mutex::new((0_usize, 0_usize)));
        let (held, seen) = (Arc::clone(&is_held), Arc::clone(&counts));
        let clock = Arc::clone(&scene.env.clock);
        let handler = script.handler(move |record| {
            let (held, seen, clock) = (Arc::clone(&held), Arc::clone(&seen), Arc::clone(&clock));
            async move {
                {
                    let mut seen = seen.lock();
                    seen.0 += 1;
                    seen.1 = seen.1.max(seen.0);
                }
                clock.sleep(Duration::from_millis(3)).await;
                while text(record.value()) == "r0" && held.load(Ordering::Relaxed) {
                    clock.sleep(Duration::from_millis(10)).await;
                }
                seen.lock().0 -= 1;
                Ok(())
            }
        });
        let names: Vec<String> = (0..1_000).map(|n| format!("r{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        scene.send(&topic, 0, &names).await;
        let connector = scene.start(options, handler).await;
        scene.env.clock.sleep(Duration::from_secs(120)).await;
        let begun = script.len();
        assert!((100..=130).contains(&begun), "{begun} were begun");
        is_held.store(false, Ordering::Relaxed);
        scene.until_committed(&group, &topic, 1_000).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(script.len(), 1_000);
        assert_eq!(counts.lock().1, 7, "calls at once");
    });
}

#[test]
fn c20_c27_each_hop_of_thirty_attempts_tells_its_place() {
    let began = std::time::Instant::now();
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let options = BindingOptions::new("orders", "orders", "group").unwrap();
        let script = Script::new(&scene);
        scene.send(&topic, 0, &["poison"]).await;
        let sent_ms = scene.records(&topic, 0).await[0].record.timestamp_ms;
        let handler = script.answers(|record| match record.tier().0 {
            0 => transient("timeout.read"),
            1 => transient("service.unavailable"),
            2 => transient("conflict.lock"),
            _ => transient("timeout.gateway"),
        });
        let connector = scene.start(options.clone(), handler).await;
        while scene.letters(&options).await.is_empty() {
            scene.env.clock.sleep(Duration::from_secs(1)).await;
        }
        connector.stop("orders").await.unwrap();
        let codes = [
            "timeout.read",
            "service.unavailable",
            "conflict.lock",
            "timeout.gateway",
        ];
        let (mut hop, mut first) = (0_u32, None);
        for tier in 1..=3_u32 {
            let hops = scene
                .records(&options.tier_topic(TierIndex(tier)).unwrap(), 0)
                .await;
            assert_eq!(hops.len(), 3, "tier {tier}");
            for (delivery, stored) in (1..).zip(&hops) {
                hop += 1;
                let told = |name: &str| header(stored, name);
                assert_eq!(told(name::ORIGINAL_TOPIC), "orders");
                assert_eq!(told(name::ORIGINAL_PARTITION), "0");
                assert_eq!(told(name::ORIGINAL_OFFSET), "0");
                assert_eq!(told(name::ORIGINAL_TIMESTAMP), sent_ms.to_string());
                assert_eq!(told(name::RETRY_TIER), tier.to_string());
                assert_eq!(told(name::RETRY_ATTEMPT), delivery.to_string(), "hop {hop}");
                assert_eq!(told(name::TOTAL_ATTEMPTS), (hop * 3).to_string());
                assert_eq!(told(name::GROUP), "group");
                let since = told(name::FIRST_FAILURE_TIMESTAMP);
                assert_eq!(*first.get_or_insert(since.clone()), since, "hop {hop}");
                // Three attempts in memory, then three for each delivery that is over.
                for passed in 0..tier {
                    let attempts = format!("x-eventbus-tier{passed}-attempts");
                    let expect = if passed == 0 { 3 } else { 9 };
                    assert_eq!(told(&attempts), expect.to_string(), "hop {hop}");
                    let code = codes[usize::try_from(passed).unwrap()];
                    assert_eq!(told(&format!("x-eventbus-tier{passed}-exception")), code);
                }
                let own = format!("x-eventbus-tier{tier}-attempts");
                let so_far = (delivery > 1).then(|| ((delivery - 1) * 3).to_string());
                assert_eq!(
                    told(&own),
                    so_far.unwrap_or_else(|| "-".to_owned()),
                    "hop {hop}"
                );
                let count = headers(stored).len();
                assert!(count <= 23, "{count} headers at hop {hop}");
            }
        }
        let letter = scene.letters(&options).await.remove(0);
        assert_eq!((hop, letter.attempts, script.len()), (9, 30, 30));
        assert_eq!(letter.first_failure_ms.to_string(), first.unwrap());
        let trail: Vec<(u32, u32, &str)> = letter
            .trail
            .iter()
            .map(|seen| (seen.tier.0, seen.attempts, seen.code.as_str()))
            .collect();
        let expect = [
            (0, 3, codes[0]),
            (1, 9, codes[1]),
            (2, 9, codes[2]),
            (3, 9, codes[3]),
        ];
        assert_eq!(trail, expect);
    });
    println!("a ladder of thirty attempts took {:?}", began.elapsed());
}
