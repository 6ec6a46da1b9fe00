//! Delivery and offsets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_connector::{
    AckMode, BatchFailureStrategy, BatchRecordHandler, BoundHandler, ConcurrencyMode,
    ConsumedRecord, ContainerState, HandlerAnswer, ListenerType,
};
use tidegate_core::Mutex;
use tidegate_log::{Append, Commit, Join, OffsetCommit, Record, SessionEvent};

use crate::scene::{Scene, Script, permanent, text, transient};

pub(crate) async fn c01_a_record_is_settled_before_its_offset_is_committed(scene: Scene) {
    let topic = scene.topic("c01", 1).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let is_held = Arc::new(AtomicBool::new(true));
    let (held, clock) = (Arc::clone(&is_held), Arc::clone(&scene.env.clock));
    let handler = script.handler(move |record| {
        let (held, clock) = (Arc::clone(&held), Arc::clone(&clock));
        async move {
            while text(record.value()) == "c" && held.load(Ordering::Relaxed) {
                clock.sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        }
    });
    scene.send(&topic, 0, &["a", "b", "c", "d"]).await;
    let connector = scene.start(options, handler).await;
    // The committed offset is the next to read: that of the record in hand.
    scene.until_committed(&group, &topic, 2).await;
    assert_eq!(script.values(), ["a", "b", "c"]);
    is_held.store(false, Ordering::Relaxed);
    scene.until_committed(&group, &topic, 4).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.values(), ["a", "b", "c", "d"]);
}

pub(crate) async fn c02_finished_records_above_the_commit_survive_a_restart(scene: Scene) {
    let topic = scene.topic("c02", 1).await;
    let mut options = scene.options(&topic);
    options.concurrency_mode = ConcurrencyMode::Unordered;
    options.stop_timeout = Duration::from_millis(500);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let handler = script.handler(|record| async move {
        if text(record.value()) == "b" {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    scene.send(&topic, 0, &["a", "b", "c", "d"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene
        .until("the others are done", || script.values().len() == 4)
        .await;
    scene.until_committed(&group, &topic, 1).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.committed(&group, &topic, 0).await, Some(1));
    let again = Script::new(&scene);
    let connector = scene.start(options, again.answers(|_| Ok(()))).await;
    scene.until_committed(&group, &topic, 4).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(again.values(), ["b"], "the others were marked as settled");
}

pub(crate) async fn c03_a_batch_with_a_failure_goes_on_behind_it(scene: Scene) {
    let topic = scene.topic("c03", 2).await;
    let mut options = scene.options(&topic);
    options.listener_type = ListenerType::Batch;
    options.ack_mode = AckMode::Manual;
    let group = options.group.clone();
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "b" if record.tier().0 == 0 => transient("timeout.read"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    scene.send(&topic, 1, &["x", "y"]).await;
    let connector = scene.start(options, handler).await;
    scene.until_committed(&group, &topic, 3).await;
    scene
        .until("the tier had it", || script.count("b") == 4)
        .await;
    scene
        .until("the other partition", || script.count("y") == 1)
        .await;
    connector.stop("orders").await.unwrap();
    let at_main: Vec<String> = script
        .calls()
        .into_iter()
        .filter(|call| call.tier == 0)
        .map(|call| call.value)
        .collect();
    let of_first: Vec<&String> = at_main
        .iter()
        .filter(|value| "abc".contains(*value))
        .collect();
    assert_eq!(of_first, ["a", "b", "b", "b", "c"]);
    assert_eq!(scene.committed(&group, &topic, 1).await, Some(2));
}

pub(crate) async fn c05_a_batch_that_continues_dead_letters_its_failures(scene: Scene) {
    let topic = scene.topic("c05", 1).await;
    let mut options = scene.options(&topic);
    options.listener_type = ListenerType::Batch;
    options.batch_failure = BatchFailureStrategy::DlqAndContinue;
    let group = options.group.clone();
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "b" => transient("timeout.read"),
        "d" => permanent("business.rule"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["a", "b", "c", "d", "e"]).await;
    let connector = scene.start(options.clone(), handler).await;
    let letters = scene.until_letters(&options, 2).await;
    scene.until_committed(&group, &topic, 5).await;
    connector.stop("orders").await.unwrap();
    let dead: Vec<String> = letters
        .iter()
        .map(|letter| text(letter.value.as_ref()))
        .collect();
    assert_eq!(dead, ["b", "d"]);
    assert_eq!(script.values(), ["a", "b", "b", "b", "c", "d", "e"]);
}

pub(crate) async fn c06_a_second_consumer_misses_nothing(scene: Scene) {
    let topic = scene.topic("c06", 4).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    let (one, two) = (Script::new(&scene), Script::new(&scene));
    let clock = Arc::clone(&scene.env.clock);
    let slow = one.handler(move |_| {
        let clock = Arc::clone(&clock);
        async move {
            clock.sleep(Duration::from_millis(1)).await;
            Ok(())
        }
    });
    let names: Vec<String> = (0..60).map(|n| format!("r{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for partition in 0..4 {
        scene.send(&topic, partition, &names).await;
    }
    let first = scene.start(options.clone(), slow).await;
    scene
        .until("some are done", || one.calls().len() > 20)
        .await;
    // Another process of the same group joins in the middle of it, and leaves again.
    let second = scene.start(options, two.answers(|_| Ok(()))).await;
    scene
        .until("the first goes on", || one.calls().len() > 60)
        .await;
    second.stop("orders").await.unwrap();
    for partition in 0..4 {
        let limit = scene.env.clock.elapsed() + Duration::from_secs(60);
        while scene.committed(&group, &topic, partition).await != Some(60) {
            assert!(
                scene.env.clock.elapsed() < limit,
                "partition {partition} does not end"
            );
            scene.env.clock.sleep(Duration::from_millis(5)).await;
        }
    }
    first.stop("orders").await.unwrap();
    let seen: Vec<String> = one.values().into_iter().chain(two.values()).collect();
    for name in names {
        let count = seen.iter().filter(|value| *value == name).count();
        assert!(
            count >= 4,
            "{name} was handled {count} times in four partitions"
        );
    }
}

pub(crate) async fn c09_past_the_budget_the_rest_is_handed_back(scene: Scene) {
    let topic = scene.topic("c09", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    options.max_poll_interval = Duration::from_millis(50);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let clock = Arc::clone(&scene.env.clock);
    let handler = script.handler(move |record| {
        let clock = Arc::clone(&clock);
        async move {
            if text(record.value()) == "b" {
                clock.sleep(Duration::from_millis(500)).await;
            }
            Ok(())
        }
    });
    scene.send(&topic, 0, &["a", "b", "c", "d"]).await;
    let connector = scene.start(options, handler).await;
    // The settled prefix is committed while the slow one still runs.
    scene.until_committed(&group, &topic, 1).await;
    assert_eq!(connector.state("orders").unwrap(), ContainerState::Running);
    scene.until_committed(&group, &topic, 4).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(
        script.values(),
        ["a", "b", "c", "d"],
        "nothing is repeated, skipped or given up"
    );
}

pub(crate) async fn c10_after_a_resume_the_next_record_is_our_own(scene: Scene) {
    let topic = scene.topic("c10", 1).await;
    let mut options = scene.options(&topic);
    options.max_poll_records = 2;
    let group = options.group.clone();
    let script = Script::new(&scene);
    let connector = scene.start(options, script.answers(|_| Ok(()))).await;
    scene.send(&topic, 0, &["a", "b"]).await;
    scene.until_committed(&group, &topic, 2).await;
    connector.pause("orders").await.unwrap();
    let names: Vec<String> = (0..20).map(|n| format!("r{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    scene.send(&topic, 0, &names).await;
    scene.env.clock.sleep(Duration::from_millis(100)).await;
    assert_eq!(script.values(), ["a", "b"]);
    connector.resume("orders").await.unwrap();
    scene.until_committed(&group, &topic, 22).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.values()[2..], names);
}

pub(crate) async fn keys_run_beside_each_other_and_stay_in_order(scene: Scene) {
    let topic = scene.topic("keys", 1).await;
    let mut options = scene.options(&topic);
    options.concurrency_mode = ConcurrencyMode::Key;
    let group = options.group.clone();
    let script = Script::new(&scene);
    let clock = Arc::clone(&scene.env.clock);
    let running = Arc::new(Mutex::new((0_usize, 0_usize)));
    let counts = Arc::clone(&running);
    let handler = script.handler(move |_| {
        let (clock, counts) = (Arc::clone(&clock), Arc::clone(&counts));
        async move {
            {
                let mut counts = counts.lock();
                counts.0 += 1;
                counts.1 = counts.1.max(counts.0);
            }
            clock.sleep(Duration::from_millis(5)).await;
            counts.lock().0 -= 1;
            Ok(())
        }
    });
    let appends = (0..60).map(|n| {
        let record = Record::new(format!("{}:{n}", n % 6)).key(format!("k{}", n % 6));
        Append::new(topic.clone(), record).partition(0)
    });
    scene.log.append(appends.collect()).await.unwrap();
    let connector = scene.start(options, handler).await;
    scene.until_committed(&group, &topic, 60).await;
    connector.stop("orders").await.unwrap();
    assert!(running.lock().1 > 2, "keys run beside each other");
    for key in 0..6 {
        let of_key: Vec<String> = script
            .values()
            .into_iter()
            .filter(|value| value.starts_with(&format!("{key}:")))
            .collect();
        let expect: Vec<String> = (0..10).map(|n| format!("{key}:{}", key + 6 * n)).collect();
        assert_eq!(of_key, expect);
    }
}

pub(crate) async fn foreign_commit_metadata_is_ignored(scene: Scene) {
    let topic = scene.topic("metadata", 1).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    let session = scene
        .log
        .join(Join::new(group.clone(), vec![topic.clone()]))
        .await
        .unwrap();
    loop {
        if let SessionEvent::Assigned(assigned) = session.poll().await.unwrap() {
            let foreign = OffsetCommit {
                at: assigned[0].at.clone(),
                fence: assigned[0].fence,
                next: tidegate_core::Offset(1),
                metadata: "tg1.AQI.00000000".to_owned(),
                postings: Vec::new(),
            };
            let commit = Commit {
                appends: Vec::new(),
                offsets: vec![foreign],
            };
            session.commit(commit).await.unwrap();
            break;
        }
    }
    session.close().await.unwrap();
    let script = Script::new(&scene);
    let connector = scene.start(options, script.answers(|_| Ok(()))).await;
    scene.until_committed(&group, &topic, 3).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.values(), ["b", "c"], "nothing is skipped");
}

/// Fails every second record the first time.
struct Halves {
    calls: Arc<Mutex<Vec<Vec<String>>>>,
}

impl BatchRecordHandler for Halves {
    async fn handle_batch(&self, records: &[Arc<ConsumedRecord>]) -> Vec<HandlerAnswer> {
        let values: Vec<String> = records.iter().map(|record| text(record.value())).collect();
        self.calls.lock().push(values);
        let answer = |record: &Arc<ConsumedRecord>| match record.offset().0 % 2 == 1
            && record.attempt() == 1
        {
            true => transient("timeout.read"),
            false => Ok(()),
        };
        records.iter().map(answer).collect()
    }
}

pub(crate) async fn a_batch_handler_answers_for_each_record(scene: Scene) {
    let topic = scene.topic("batch", 1).await;
    let mut options = scene.options(&topic);
    options.listener_type = ListenerType::Batch;
    let group = options.group.clone();
    scene.send(&topic, 0, &["a", "b", "c", "d"]).await;
    let calls = Arc::default();
    let handler = BoundHandler::batch(Halves {
        calls: Arc::clone(&calls),
    });
    let connector = scene.start(options, handler).await;
    scene.until_committed(&group, &topic, 4).await;
    connector.stop("orders").await.unwrap();
    let calls = calls.lock().clone();
    let times = |value: &str| calls.iter().flatten().filter(|seen| *seen == value).count();
    assert_eq!(
        (times("a"), times("b"), times("c"), times("d")),
        (1, 2, 1, 2)
    );
    assert!(calls.iter().any(|call| call.len() > 1), "{calls:?}");
}
