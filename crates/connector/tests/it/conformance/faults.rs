//! Commits that fail, members that are taken for dead, batches that take too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_connector::{
    AckMode, ConcurrencyMode, ContainerState, HandOff, ListenerType, TierOptions,
};
use tidegate_core::{HealthStatus, Mutex, Offset, TierIndex};
use tidegate_log::{Append, Record, TopicPartition};

use crate::scene::{Scene, Script, permanent, text, transient};
use crate::scripted_log::{CommitFault, ScriptedLog};

/// The scene with a log whose commits fail to order.
fn scripted(mut scene: Scene) -> (Scene, ScriptedLog) {
    let log = ScriptedLog::new(&scene.log);
    scene.log = Arc::new(log.clone());
    (scene, log)
}

pub(crate) async fn c04_past_the_budget_no_partition_is_passed_over(scene: Scene) {
    let topic = scene.topic("c04", 2).await;
    let mut options = scene.options(&topic);
    options.listener_type = ListenerType::Batch;
    options.ack_mode = AckMode::Manual;
    options.retry.tier0.max_attempts = 1;
    options.max_poll_interval = Duration::from_millis(50);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let clock = Arc::clone(&scene.env.clock);
    let handler = script.handler(move |record| {
        let clock = Arc::clone(&clock);
        async move {
            match text(record.value()).as_str() {
                "slow-0" | "slow-1" => clock.sleep(Duration::from_millis(200)).await,
                "bad" if record.tier().0 == 0 => return transient("timeout.read"),
                _ => {}
            }
            Ok(())
        }
    });
    scene
        .send(&topic, 0, &["a", "bad", "slow-0", "b", "c"])
        .await;
    scene.send(&topic, 1, &["x", "slow-1", "y", "z"]).await;
    let connector = scene.start(options, handler).await;
    scene.until_committed(&group, &topic, 5).await;
    scene
        .until("the other partition", || script.count("z") == 1)
        .await;
    scene
        .until("the tier had it", || script.count("bad") == 2)
        .await;
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.committed(&group, &topic, 1).await, Some(4));
    for value in ["a", "slow-0", "b", "c", "x", "slow-1", "y", "z"] {
        assert_eq!(script.count(value), 1, "{value}");
    }
}

pub(crate) async fn c07_a_member_whose_place_is_taken_writes_nothing(scene: Scene) {
    let topic = scene.topic("c07", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    options.static_membership = true;
    options.group_instance_id = Some(scene.name("one"));
    options.stop_timeout = Duration::from_millis(500);
    let group = options.group.clone();
    let (one, two) = (Script::new(&scene), Script::new(&scene));
    let is_held = Arc::new(AtomicBool::new(true));
    let (held, clock) = (Arc::clone(&is_held), Arc::clone(&scene.env.clock));
    let handler = one.handler(move |record| {
        let (held, clock) = (Arc::clone(&held), Arc::clone(&clock));
        async move {
            while held.load(Ordering::Relaxed) {
                clock.sleep(Duration::from_millis(2)).await;
            }
            match record.tier().0 {
                0 => transient("timeout.read"),
                _ => Ok(()),
            }
        }
    });
    scene.send(&topic, 0, &["bad"]).await;
    let first = scene.start(options.clone(), handler).await;
    scene
        .until("the first has it", || one.calls().len() == 1)
        .await;
    // A process with the same identity: the first one is gone as far as the group knows.
    let handler = two.answers(|record| match record.tier().0 {
        0 => transient("timeout.read"),
        _ => Ok(()),
    });
    let second = scene.start(options.clone(), handler).await;
    scene
        .until("the second has it", || !two.calls().is_empty())
        .await;
    is_held.store(false, Ordering::Relaxed);
    first.stop("orders").await.unwrap();
    scene.until_committed(&group, &topic, 1).await;
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    scene
        .until_passed(&options.tier_group(TierIndex(1)).unwrap(), &tier, 0)
        .await;
    second.stop("orders").await.unwrap();
    assert_eq!(scene.records(&tier, 0).await.len(), 1, "one hand-off");
}

pub(crate) async fn c08_c24_a_commit_that_fails_skips_nothing_and_doubles_nothing(scene: Scene) {
    let (scene, log) = scripted(scene);
    let topic = scene.topic("c08", 1).await;
    let faults = [
        (CommitFault::Refuse, HandOff::Transactional),
        (CommitFault::LoseRequest, HandOff::Transactional),
        (CommitFault::LoseAnswer, HandOff::Transactional),
        // Then only the offset is missing, and the copy in the tier must stay the only one.
        (CommitFault::LoseRequest, HandOff::AtLeastOnce),
    ];
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    let tier_group = options.tier_group(TierIndex(1)).unwrap();
    let mut sent = 0;
    for (n, (fault, hand_off)) in faults.into_iter().enumerate() {
        options.hand_off = hand_off;
        let script = Script::new(&scene);
        let handler = script.answers(|record| match record.tier().0 {
            0 if text(record.value()) == "bad" => transient("timeout.read"),
            _ => Ok(()),
        });
        log.fail_next(fault);
        scene.send(&topic, 0, &["a", "bad", "b"]).await;
        sent += 3;
        let connector = scene.start(options.clone(), handler).await;
        scene.until_committed(&options.group, &topic, sent).await;
        scene
            .until("the tier had it", || script.count("bad") == 2)
            .await;
        let last = scene.records(&tier, 0).await.last().unwrap().offset.0;
        scene.until_passed(&tier_group, &tier, last).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(script.values().len(), 4, "{fault:?}: {:?}", script.values());
        let copies = scene.records(&tier, 0).await.len();
        assert_eq!(copies, n + 1, "{fault:?} {hand_off:?}");
        assert_eq!(log.failed(), n + 1, "{fault:?} {hand_off:?} struck");
    }
}

pub(crate) async fn c31_a_dead_letter_that_cannot_be_written_comes_back(scene: Scene) {
    let (scene, log) = scripted(scene);
    let topic = scene.topic("c31", 1).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "b" => permanent("business.rule"),
        _ => Ok(()),
    });
    for _ in 0..3 {
        log.fail_next(CommitFault::Refuse);
    }
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene.until("it fails", || log.failed() == 1).await;
    assert!(scene.committed(&group, &topic, 0).await.unwrap_or(0) <= 1);
    let letters = scene.until_letters(&options, 1).await;
    scene.until_committed(&group, &topic, 3).await;
    connector.stop("orders").await.unwrap();
    assert_eq!((letters.len(), log.failed()), (1, 3));
    assert_eq!(script.values(), ["a", "b", "c"], "without a restart");
}

pub(crate) async fn c22_a_missing_tier_keeps_the_record(scene: Scene) {
    let (scene, log) = scripted(scene);
    let topic = scene.topic("c22t", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    let group = options.group.clone();
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    log.set_missing(Some(tier.clone()));
    let script = Script::new(&scene);
    let handler = script.answers(|record| match record.tier().0 {
        0 if text(record.value()) == "bad" => transient("timeout.read"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["bad", "b"]).await;
    let connector = scene.start(options, handler).await;
    let is_down = || {
        let health = connector.binding_health("orders").unwrap();
        health.status == HealthStatus::Down
    };
    scene.until("health says so", is_down).await;
    assert_eq!(scene.committed(&group, &topic, 0).await.unwrap_or(0), 0);
    log.set_missing(None);
    scene.until_committed(&group, &topic, 2).await;
    scene
        .until("the tier had it", || script.count("bad") == 2)
        .await;
    connector.stop("orders").await.unwrap();
    assert_eq!(scene.records(&tier, 0).await.len(), 1);
}

pub(crate) async fn c06_settled_records_are_committed_when_a_partition_is_let_go(scene: Scene) {
    let topic = scene.topic("c06r", 2).await;
    let mut options = scene.options(&topic);
    // Offsets go with their batch, so that only the end of the assignment commits these.
    options.ack_mode = AckMode::Manual;
    let (one, two) = (Script::new(&scene), Script::new(&scene));
    let is_held = Arc::new(AtomicBool::new(true));
    let (held, clock) = (Arc::clone(&is_held), Arc::clone(&scene.env.clock));
    let handler = one.handler(move |record| {
        let (held, clock) = (Arc::clone(&held), Arc::clone(&clock));
        async move {
            while text(record.value()) == "last" && held.load(Ordering::Relaxed) {
                clock.sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        }
    });
    for partition in [0, 1] {
        scene
            .send(&topic, partition, &["a", "b", "last", "after"])
            .await;
    }
    let first = scene.start(options.clone(), handler).await;
    scene.until("both wait", || one.count("last") == 2).await;
    let second = scene.start(options.clone(), two.answers(|_| Ok(()))).await;
    scene.env.clock.sleep(Duration::from_millis(50)).await;
    is_held.store(false, Ordering::Relaxed);
    let count = |value: &str| one.count(value) + two.count(value);
    scene.until("all are handled", || count("after") >= 2).await;
    scene.until_committed(&options.group, &topic, 4).await;
    first.stop("orders").await.unwrap();
    second.stop("orders").await.unwrap();
    for value in ["a", "b", "last", "after"] {
        assert_eq!(count(value), 2, "{value} once in each partition");
    }
}

pub(crate) async fn c04_c09_a_record_that_was_handed_back_is_not_passed(scene: Scene) {
    let topic = scene.topic("c09k", 1).await;
    let mut options = scene.options(&topic);
    options.concurrency_mode = ConcurrencyMode::Key;
    options.max_poll_records = 3;
    options.max_poll_interval = Duration::from_secs(1);
    options.retry.tier0.max_attempts = 2;
    options.retry.tier0.initial_backoff = Duration::from_millis(200);
    options.retry.tier0.max_backoff = Duration::from_millis(200);
    options.retry.tiers = vec![TierOptions::new(Duration::from_millis(40))];
    let group = options.group.clone();
    let (script, done) = (Script::new(&scene), Arc::new(Mutex::new(Vec::new())));
    let (seen, ended) = (script.clone(), Arc::clone(&done));
    let clock = Arc::clone(&scene.env.clock);
    let handler = script.handler(move |record| {
        let (seen, clock, ended) = (seen.clone(), Arc::clone(&clock), Arc::clone(&ended));
        async move {
            let value = text(record.value());
            match value.as_str() {
                // The budget is over, and the one behind it in its lane is handed back.
                "a0" => clock.sleep(Duration::from_millis(900)).await,
                "a1" => {
                    while seen.count("c3") == 0 {
                        clock.sleep(Duration::from_millis(2)).await;
                    }
                    clock.sleep(Duration::from_millis(300)).await;
                }
                // It waits for its second attempt meanwhile.
                "b2" if record.attempt() == 1 => {
                    clock.sleep(Duration::from_millis(800)).await;
                    return transient("timeout.read");
                }
                _ => {}
            }
            ended.lock().push(value);
            Ok(())
        }
    });
    let append = |value: &str| {
        let record = Record::new(value.to_owned()).key(value[..1].to_owned());
        Append::new(topic.clone(), record).partition(0)
    };
    let appends = ["a0", "a1", "b2"].map(append).to_vec();
    scene.log.append(appends).await.unwrap();
    let connector = scene.start(options, handler).await;
    scene
        .until("it is there again", || script.count("a1") == 1)
        .await;
    scene.log.append(vec![append("c3")]).await.unwrap();
    scene.until_committed(&group, &topic, 4).await;
    connector.stop("orders").await.unwrap();
    let mut done = done.lock().clone();
    done.sort();
    done.dedup();
    assert_eq!(done, ["a0", "a1", "b2", "c3"]);
}

pub(crate) async fn records_that_the_log_removed_are_posted_as_lost(scene: Scene) {
    let (scene, log) = scripted(scene);
    let topic = scene.topic("removed", 1).await;
    let options = scene.options(&topic);
    let group = options.group.clone();
    let names: Vec<String> = (0..10).map(|n| format!("r{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    scene.send(&topic, 0, &names[..2]).await;
    let script = Script::new(&scene);
    let connector = scene.start(options, script.answers(|_| Ok(()))).await;
    scene.until_committed(&group, &topic, 2).await;
    connector.stop("orders").await.unwrap();
    scene.send(&topic, 0, &names[2..]).await;
    let at = TopicPartition::new(topic.clone(), 0);
    // Only a broker removes what a group has still to read.
    if scene.is_on_broker() {
        scene.log.delete_before(&at, Offset(8)).await.unwrap();
    } else {
        log.remove_before(&at, Offset(8));
    }
    connector.start("orders").await.unwrap();
    let is_stopped = || connector.state("orders").unwrap() == ContainerState::Stopped;
    scene.until("it stops by itself", is_stopped).await;
    let health = connector.binding_health("orders").unwrap();
    let message = health.message.unwrap_or_default();
    assert!(message.contains("offsets 2 up to 8"), "{message}");
    assert_eq!(scene.committed(&group, &topic, 0).await, Some(8));
    connector.start("orders").await.unwrap();
    scene.until_committed(&group, &topic, 10).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(script.values(), ["r0", "r1", "r8", "r9"]);
    let accounts = connector.books().accounts().await.unwrap();
    let account = &accounts[0].account;
    assert_eq!((account.delivered, account.queued), (4, 0), "{account:?}");
    assert_eq!(account.lost.total(), 6, "{account:?}");
    let audited = connector.books().audit().await.unwrap().remove(0);
    // The loss names offsets, and their acceptance names minutes: nobody can tell any more which events they were.
    assert_eq!(audited.missing, [], "{audited:?}");
    assert_eq!(audited.books.lost.total(), 6, "{audited:?}");
    assert!(audited.unverifiable >= 6, "{audited:?}");
}
