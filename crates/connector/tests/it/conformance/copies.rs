//! Hand-offs that are written before their offset is committed, and crashes in between.

use std::sync::Arc;
use std::time::Duration;

use tidegate_connector::{
    BindingOptions, Connector, ConsumedRecord, HandOff, HandlerAnswer, OrderingMode,
};
use tidegate_core::{TierIndex, Topic};
use tidegate_log::Append;

use crate::scene::{Scene, Script, permanent, text, transient};
use crate::scripted_log::{CommitFault, ScriptedLog};

fn scripted(mut scene: Scene) -> (Scene, ScriptedLog) {
    let log = ScriptedLog::new(&scene.log);
    scene.log = Arc::new(log.clone());
    (scene, log)
}

fn early(scene: &Scene, topic: &Topic) -> BindingOptions {
    let mut options = scene.options(topic);
    options.hand_off = HandOff::AtLeastOnce;
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers.truncate(1);
    options
}

/// Fails `bad` and `dead` at their first call; another call would succeed.
fn fails_once(script: &Script) -> impl Fn(&ConsumedRecord) -> HandlerAnswer + use<> {
    let seen = script.clone();
    move |record| {
        let value = text(record.value());
        match value.as_str() {
            "bad" if seen.count(&value) == 1 => transient("timeout.read"),
            "dead" if seen.count(&value) == 1 => permanent("business.rule"),
            _ => Ok(()),
        }
    }
}

/// Every event is in one place by the books, and there by a recount.
async fn assert_booked(connector: &Connector, delivered: i64, dead_lettered: i64) {
    let books = connector.books();
    let account = books.accounts().await.unwrap().remove(0).account;
    let waiting = (account.queued, account.retrying, account.parked);
    assert_eq!(waiting, (0, 0, 0), "{account:?}");
    let settled = (account.delivered, account.dead_lettered);
    assert_eq!(settled, (delivered, dead_lettered), "{account:?}");
    let audited = books.audit().await.unwrap();
    assert_eq!(audited[0].missing, [], "{audited:?}");
}

/// Waits until the tier is passed to its end.
async fn until_tier_passed(scene: &Scene, options: &BindingOptions) -> usize {
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    let group = options.tier_group(TierIndex(1)).unwrap();
    let copies = scene.records(&tier, 0).await;
    let last = copies.last().unwrap().offset.0;
    scene.until_passed(&group, &tier, last).await;
    copies.len()
}

pub(crate) async fn c24_a_hand_off_without_its_offset_is_found_again(scene: Scene) {
    let (scene, log) = scripted(scene);
    let topic = scene.topic("found", 1).await;
    let options = early(&scene, &topic);
    let script = Script::new(&scene);
    // A call whose hand-off is not written by then would be made again.
    log.fail_behind(2, CommitFault::EndSession);
    scene.send(&topic, 0, &["a", "bad", "dead", "b"]).await;
    let handler = script.answers(fails_once(&script));
    let connector = scene.start(options.clone(), handler).await;
    scene.until_committed(&options.group, &topic, 4).await;
    let copies = until_tier_passed(&scene, &options).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(log.failed(), 1, "the session ended behind a hand-off");
    assert_eq!((copies, scene.letters(&options).await.len()), (1, 1));
    assert_eq!(
        script.count("bad"),
        2,
        "once in the topic, once in the tier"
    );
    assert_eq!(script.count("dead"), 1);
    assert_booked(&connector, 3, 1).await;
}

pub(crate) async fn c24_an_append_without_an_answer_is_not_made_twice(scene: Scene) {
    let (scene, log) = scripted(scene);
    let topic = scene.topic("unanswered", 1).await;
    let options = early(&scene, &topic);
    for (n, fault) in [CommitFault::LoseAnswer, CommitFault::LoseRequest]
        .into_iter()
        .enumerate()
    {
        let script = Script::new(&scene);
        log.fail_next_append(fault);
        scene.send(&topic, 0, &["bad", "dead"]).await;
        let handler = script.answers(fails_once(&script));
        let connector = scene.start(options.clone(), handler).await;
        let settled = i64::try_from(n + 1).unwrap();
        let end = settled * 2;
        scene.until_committed(&options.group, &topic, end).await;
        let copies = until_tier_passed(&scene, &options).await;
        connector.stop("orders").await.unwrap();
        assert_eq!(log.failed(), n + 1, "{fault:?}");
        let letters = scene.letters(&options).await.len();
        assert_eq!((copies, letters), (n + 1, n + 1), "{fault:?}");
        assert_eq!((script.count("bad"), script.count("dead")), (2, 1));
        assert_booked(&connector, settled, settled).await;
    }
}

pub(crate) async fn c24_a_second_copy_is_not_handled_also_after_a_restart(scene: Scene) {
    let topic = scene.topic("second", 1).await;
    let mut options = early(&scene, &topic);
    options.retry.tiers[0].delay = Duration::from_millis(300);
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    let script = Script::new(&scene);
    scene.send(&topic, 0, &["bad"]).await;
    let handler = script.answers(fails_once(&script));
    let connector = scene.start(options.clone(), handler).await;
    scene.until_committed(&options.group, &topic, 1).await;
    // The client sends its append once more; nobody has handled the first copy yet.
    let copy = scene.records(&tier, 0).await.remove(0).record;
    let again = || vec![Append::new(tier.clone(), copy.clone()).partition(0)];
    scene.log.append(again()).await.unwrap();
    assert_eq!(until_tier_passed(&scene, &options).await, 2);
    assert_eq!(script.count("bad"), 2, "the second copy is passed");
    connector.stop("orders").await.unwrap();
    assert_booked(&connector, 1, 0).await;
    // A third one comes when nobody remembers the first.
    scene.log.append(again()).await.unwrap();
    connector.start("orders").await.unwrap();
    assert_eq!(until_tier_passed(&scene, &options).await, 3);
    connector.stop("orders").await.unwrap();
    assert_eq!(script.count("bad"), 2);
    assert_booked(&connector, 1, 0).await;
}

pub(crate) async fn c24_a_letter_of_an_ordered_key_is_found_again(scene: Scene) {
    let (scene, log) = scripted(scene);
    let topic = scene.topic("rows", 1).await;
    let mut options = early(&scene, &topic);
    options.ordering = OrderingMode::KeyOrdered;
    options.retry.tiers[0].max_attempts = 1;
    let script = Script::new(&scene);
    let seen = script.clone();
    let handler = script.answers(move |record| match text(record.value()).as_str() {
        // A third call would succeed.
        "bad" if seen.count("bad") <= 2 => transient("timeout.read"),
        _ => Ok(()),
    });
    log.fail_next(CommitFault::EndSession);
    scene.send(&topic, 0, &["bad", "b"]).await;
    let connector = scene.start_with_store(options.clone(), handler).await;
    scene.until_letters(&options, 1).await;
    scene.until("its commit fails", || log.failed() == 1).await;
    let until = scene.env.clock.elapsed() + crate::scene::LIMIT;
    loop {
        let accounts = connector.books().accounts().await.unwrap();
        let account = &accounts[0].account;
        if (account.parked, account.dead_lettered + account.delivered) == (0, 2) {
            break;
        }
        assert!(scene.env.clock.elapsed() < until, "{account:?}");
        scene.env.clock.sleep(Duration::from_millis(5)).await;
    }
    connector.stop("orders").await.unwrap();
    // The session may end before the offset of `b` is committed: then its call comes again.
    assert_eq!(script.count("bad"), 2);
    assert_eq!(scene.letters(&options).await.len(), 1);
    assert_booked(&connector, 1, 1).await;
}
