//! Rules of the store that need its faults, which no real one makes to order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_connector::parked::{ParkedIn, ParkedRates, ParkedStore};
use tidegate_connector::{
    AckMode, Binding, ConcurrencyMode, Connector, ContainerState, OrderingMode,
};
use tidegate_core::{EventId, HealthStatus};
use tidegate_log::{Append, Record, TopicPartition};

use crate::scene::{Scene, Script, on_model, permanent, text, transient};

async fn send(scene: &Scene, topic: &tidegate_core::Topic, values: &[&str]) {
    let appends = values.iter().map(|value| {
        let record = Record::new((*value).to_owned()).key(value[..1].to_owned());
        Append::new(topic.clone(), record).partition(0)
    });
    scene.log.append(appends.collect()).await.unwrap();
}

#[test]
fn c33_a_dead_letter_holds_its_key_up_for_its_commit_alone() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.ordering = OrderingMode::KeyOrdered;
        options.concurrency_mode = ConcurrencyMode::Key;
        // The batch is not over before `b1` is, and its offsets wait for a second of company.
        options.ack_mode = AckMode::Manual;
        let script = Script::new(&scene);
        let clock = Arc::clone(&scene.env.clock);
        let handler = script.handler(move |record| {
            let clock = Arc::clone(&clock);
            async move {
                match text(record.value()).starts_with('a') {
                    true => return permanent("business.rule"),
                    false => clock.sleep(Duration::from_secs(60)).await,
                }
                Ok(())
            }
        });
        send(&scene, &topic, &["b1", "a1", "a2", "a3", "a4"]).await;
        let connector = scene.start_with_store(options.clone(), handler).await;
        scene.until("it works", || script.count("b1") == 1).await;
        let began = scene.env.clock.elapsed();
        scene.until_letters(&options, 4).await;
        let took = scene.env.clock.elapsed() - began;
        assert!(took < Duration::from_millis(500), "{took:?}");
        scene.until_committed(&options.group, &topic, 5).await;
        connector.stop("orders").await.unwrap();
    });
}

#[test]
pub(crate) fn c33_a_store_that_is_away_holds_the_partition() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.ordering = OrderingMode::KeyOrdered;
        options.retry.tier0.max_attempts = 1;
        let script = Script::new(&scene);
        let is_good = Arc::new(AtomicBool::new(false));
        let good = Arc::clone(&is_good);
        let handler = script.answers(move |record| match text(record.value()).as_str() {
            "a1" if !good.load(Ordering::Relaxed) => transient("timeout.read"),
            _ => Ok(()),
        });
        let store = scene.parked.clone().unwrap();
        let connector = scene.start_with_store(options.clone(), handler).await;
        send(&scene, &topic, &["b0"]).await;
        scene.until_committed(&options.group, &topic, 1).await;
        store.set_rates(ParkedRates {
            refuse: 1_000,
            ..ParkedRates::default()
        });
        send(&scene, &topic, &["a1", "a2"]).await;
        scene.until("it failed", || script.count("a1") == 1).await;
        scene.env.clock.sleep(Duration::from_secs(30)).await;
        // Its lease has run out: nothing is handled, and nothing is passed.
        send(&scene, &topic, &["b1"]).await;
        scene.env.clock.sleep(Duration::from_secs(30)).await;
        assert_eq!((script.count("a2"), script.count("b1")), (0, 0));
        assert_eq!(scene.committed(&options.group, &topic, 0).await, Some(1));
        let health = connector.binding_health("orders").unwrap();
        assert_eq!(health.status, HealthStatus::Degraded);
        let message = health.message.unwrap_or_default();
        assert!(message.contains("the store of"), "{message}");
        store.set_rates(ParkedRates::default());
        is_good.store(true, Ordering::Relaxed);
        scene.until_committed(&options.group, &topic, 4).await;
        scene
            .until("all are handled", || script.count("a2") == 1)
            .await;
        connector.stop("orders").await.unwrap();
        let mut of_key = script.values();
        of_key.retain(|value| value.starts_with('a'));
        assert_eq!(of_key, ["a1", "a1", "a2"]);
        assert_eq!(script.count("b1"), 1);
    });
}

#[test]
fn c33_nothing_is_handled_without_the_lease() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.ordering = OrderingMode::KeyOrdered;
        let of = ParkedIn {
            component: format!("{}@{topic}", options.group),
            at: TopicPartition::new(topic.clone(), 0),
        };
        let store = scene.parked.clone().unwrap();
        // Somebody who lost the partition has the lease for some time yet.
        let span = Duration::from_secs(10);
        let lease = store.acquire(&of, "zombie", span).await.unwrap();
        assert!(lease.is_some());
        let script = Script::new(&scene);
        send(&scene, &topic, &["a1"]).await;
        let began = scene.env.clock.elapsed();
        let connector = scene
            .start_with_store(options.clone(), script.answers(|_| Ok(())))
            .await;
        scene.until_committed(&options.group, &topic, 1).await;
        let waited = script.calls()[0].at - began;
        assert!(waited >= span, "{waited:?}");
        // It is given back at the end: the next one need not wait.
        connector.stop("orders").await.unwrap();
        scene.env.clock.sleep(Duration::from_millis(2)).await;
        let next = store.acquire(&of, "next", span).await.unwrap();
        assert!(next.is_some());
    });
}

#[test]
fn c33_a_run_ends_with_its_lease() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.ordering = OrderingMode::KeyOrdered;
        let script = Script::new(&scene);
        let clock = Arc::clone(&scene.env.clock);
        let handler = script.handler(move |_| {
            let clock = Arc::clone(&clock);
            async move {
                clock.sleep(Duration::from_secs(3)).await;
                Ok(())
            }
        });
        send(
            &scene,
            &topic,
            &["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"],
        )
        .await;
        let connector = scene.start_with_store(options.clone(), handler).await;
        scene
            .until("the first is in hand", || script.calls().len() == 1)
            .await;
        let store = scene.parked.clone().unwrap();
        store.set_rates(ParkedRates {
            refuse: 1_000,
            ..ParkedRates::default()
        });
        scene.env.clock.sleep(Duration::from_secs(40)).await;
        // A run that began under the lease has records left, and somebody else may have them by now.
        let begun = script.calls().len();
        assert!((2..=4).contains(&begun), "{begun} calls in a lease of 10 s");
        store.set_rates(ParkedRates::default());
        scene.until_committed(&options.group, &topic, 8).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(script.values().len(), 8);
    });
}

/// Every second record is settled, and that is progress in the store; then the store forgets it.
async fn without_progress(scene: Scene, transactional: bool) {
    let topic = scene.topic("orders", 1).await;
    let mut options = scene.options(&topic);
    options.concurrency_mode = ConcurrencyMode::Unordered;
    options.max_poll_records = 2_000;
    options.max_in_flight = 10_000;
    options.transactional = transactional;
    options.stop_timeout = Duration::from_millis(500);
    let values: Vec<String> = (0..4_000).map(|n| n.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    scene.send(&topic, 0, &values).await;
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
    connector.stop("orders").await.unwrap();
    scene.parked.as_ref().unwrap().forget_progress();
    let again = Script::new(&scene);
    let connector = scene
        .start_with_store(options.clone(), again.answers(|_| Ok(())))
        .await;
    if transactional {
        let is_stopped = || connector.state("orders").unwrap() == ContainerState::Stopped;
        scene.until("it stops by itself", is_stopped).await;
        let message = connector.binding_health("orders").unwrap().message;
        assert!(message.unwrap_or_default().contains("is not in the store"));
        assert_eq!(again.calls(), []);
    } else {
        scene.until_committed(&options.group, &topic, 4_000).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(again.calls().len(), 4_000, "everything is handled again");
    }
}

#[test]
fn progress_that_is_gone_repeats_and_never_skips() {
    on_model(|scene| without_progress(scene, false));
}

#[test]
fn progress_that_is_gone_stops_a_transactional_binding() {
    on_model(|scene| without_progress(scene, true));
}

#[test]
fn c33_a_parked_row_that_is_gone_is_missing() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let mut options = scene.options(&topic);
        options.ordering = OrderingMode::KeyOrdered;
        options.retry.tier0.max_attempts = 1;
        options.retry.tiers[0].delay = Duration::from_secs(600);
        options.retry.tiers.truncate(1);
        let script = Script::new(&scene);
        let handler = script.answers(|_| transient("timeout.read"));
        send(&scene, &topic, &["a1", "a2"]).await;
        let connector = scene.start_with_store(options.clone(), handler).await;
        scene.until_committed(&options.group, &topic, 2).await;
        connector.stop("orders").await.unwrap();
        let at = TopicPartition::new(topic.clone(), 0);
        let id = scene.records(&topic, 0).await[1].event_id(scene.log.cluster(), &at);
        let audited = connector.books().audit().await.unwrap();
        assert_eq!(audited[0].missing, []);
        scene.parked.as_ref().unwrap().delete_row(id);
        let audited = connector.books().audit().await.unwrap();
        let missing: Vec<Option<EventId>> = audited[0].missing.iter().map(|one| one.id).collect();
        assert_eq!(missing, [Some(id)]);
    });
}

#[test]
fn c46_a_store_of_one_machine_is_refused_on_a_shared_log() {
    on_model(|scene: Scene| async move {
        let topic = scene.topic("orders", 1).await;
        let store = scene.parked.clone().unwrap().of_one_machine();
        let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
        let connector = connector.with_store(Arc::new(store));
        for ordering in [OrderingMode::KeyOrdered, OrderingMode::RelaxedInRetry] {
            let mut options = scene.options(&topic);
            options.ordering = ordering;
            let binding = Binding::new(options, Script::new(&scene).answers(|_| Ok(())));
            let refused = connector.register(binding).unwrap_err();
            assert_eq!(refused.code().as_str(), "connector.invalid-options");
            let refused = refused.to_string();
            assert!(refused.contains("the store is SQLite"), "{refused}");
            assert!(!refused.contains("; "), "one error: {refused}");
        }
    });
}
