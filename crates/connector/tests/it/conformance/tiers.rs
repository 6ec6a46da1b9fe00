//! Tiers and dead letters.

use std::sync::Arc;
use std::time::Duration;

use tidegate_connector::{
    Binding, Connector, ContainerState, DltStrategy, PayloadFormat, StrictExhausted, TierOptions,
};
use tidegate_core::dead_letter::{Reason, name};
use tidegate_core::{CodePattern, EventId, Mutex, TierIndex, Topic};
use tidegate_log::{Append, Record};

use crate::scene::{Scene, Script, by_id, header, permanent, text, transient};

pub(crate) async fn c20_c21_a_failing_record_climbs_the_ladder(scene: Scene) {
    let topic = scene.topic("c20", 1).await;
    let options = scene.options(&topic);
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "poison" => transient("timeout.read"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["a", "poison", "b"]).await;
    let connector = scene.start(options.clone(), handler).await;
    let letters = scene.until_letters(&options, 1).await;
    scene.until_committed(&options.group, &topic, 3).await;
    connector.stop("orders").await.unwrap();
    let calls: Vec<(u32, u32)> = script
        .calls()
        .into_iter()
        .filter(|call| call.value == "poison")
        .map(|call| (call.tier, call.attempt))
        .collect();
    let mut expect = vec![(0, 1), (0, 2), (0, 3)];
    for tier in 1..=3 {
        for _ in 0..3 {
            expect.extend([(tier, 1), (tier, 2), (tier, 3)]);
        }
    }
    assert_eq!(calls, expect, "thirty attempts");
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(
        (letter.attempts, letter.reason),
        (30, Reason::RetriesExhausted)
    );
    assert_eq!(
        (letter.origin.topic.clone(), letter.origin.offset.0),
        (topic.clone(), 1)
    );
    let trail: Vec<(u32, u32)> = letter
        .trail
        .iter()
        .map(|seen| (seen.tier.0, seen.attempts))
        .collect();
    assert_eq!(trail, [(0, 3), (1, 9), (2, 9), (3, 9)]);
    // Each hop tells its place on the ladder.
    for (tier, count) in [(1, 3), (2, 3), (3, 3)] {
        let hops = scene
            .records(&options.tier_topic(TierIndex(tier)).unwrap(), 0)
            .await;
        assert_eq!(hops.len(), count);
        for (n, hop) in hops.iter().enumerate() {
            assert_eq!(header(hop, "x-eventbus-retry-tier"), tier.to_string());
            assert_eq!(header(hop, "x-eventbus-retry-attempt"), (n + 1).to_string());
            assert_eq!(header(hop, "x-tidegate-group"), options.group.as_str());
            let attempts = 3 + (tier as usize - 1) * 9 + n * 3;
            assert_eq!(
                header(hop, "x-eventbus-total-attempts"),
                attempts.to_string()
            );
        }
    }
    if let Some(model) = &scene.model {
        let main = model.books(&options.group, &topic).account();
        assert_eq!((main.delivered, main.retrying), (2, 1));
    }
}

pub(crate) async fn c23_a_record_is_not_handled_before_its_time(scene: Scene) {
    let topic = scene.topic("c23", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers = vec![TierOptions::new(Duration::from_millis(300))];
    let script = Script::new(&scene);
    let handler = script.answers(|record| match record.tier().0 {
        0 => transient("timeout.read"),
        _ => Ok(()),
    });
    let connector = scene.start(options.clone(), handler).await;
    for value in ["a", "b", "c"] {
        scene.send(&topic, 0, &[value]).await;
        scene.env.clock.sleep(Duration::from_millis(40)).await;
    }
    scene
        .until("all are done", || script.calls().len() == 6)
        .await;
    connector.stop("orders").await.unwrap();
    for value in ["a", "b", "c"] {
        let at: Vec<Duration> = script
            .calls()
            .iter()
            .filter(|call| call.value == value)
            .map(|call| call.at)
            .collect();
        let waited = at[1] - at[0];
        assert!(
            waited >= Duration::from_millis(299),
            "{value} waited {waited:?}"
        );
        assert!(waited < Duration::from_secs(5), "{value} waited {waited:?}");
    }
}

pub(crate) async fn c23_a_due_record_waits_at_most_the_delay_of_its_tier(scene: Scene) {
    let topic = scene.topic("c23d", 1).await;
    let mut options = scene.options(&topic);
    let delay = Duration::from_millis(300);
    options.retry.tiers = vec![TierOptions::new(delay)];
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    let script = Script::new(&scene);
    let handler = script.answers(|_| Ok(()));
    let connector = scene.start(options.clone(), handler).await;
    // The clock of the process that handed the first one on was an hour ahead.
    let now_ms = scene.env.clock.now_ms();
    let handed = |value: &str, at_ms: u64| {
        let record = Record::new(value.to_owned())
            .header(name::RETRY_TIER, "1")
            .header(name::RETRY_ATTEMPT, "1")
            .header(name::RETRY_TIMESTAMP, at_ms.to_string())
            .header(name::GROUP, options.group.to_string());
        Append::new(tier.clone(), record).partition(0)
    };
    let began = scene.env.clock.elapsed();
    let appends = [
        handed("ahead", now_ms + 3_600_000),
        handed("due", now_ms - 1_000),
    ];
    scene.log.append(appends.to_vec()).await.unwrap();
    scene.until("both are handled", || script.len() == 2).await;
    connector.stop("orders").await.unwrap();
    let calls = script.calls();
    assert_eq!(script.values(), ["ahead", "due"]);
    let waited = calls[0].at - began;
    assert!(
        waited >= delay,
        "by its own clock it is not due: {waited:?}"
    );
    let slack = match scene.model.is_some() {
        true => Duration::from_millis(50),
        false => Duration::from_secs(5),
    };
    let waited = calls[1].at - began;
    assert!(
        waited < delay + slack,
        "the one behind it waited {waited:?}"
    );
}

pub(crate) async fn c25_codes_decide_about_the_way(scene: Scene) {
    let topic = scene.topic("c25", 1).await;
    let mut options = scene.options(&topic);
    options.retry.codes.non_retryable = vec![CodePattern::new("business.*")];
    options.retry.codes.skip_to_tier = vec![(CodePattern::new("service.*"), TierIndex(3))];
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "rule" => transient("business.rule"),
        "never" => permanent("schema.invalid"),
        "down" if record.tier().0 == 0 => transient("service.unavailable"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["rule", "never", "down"]).await;
    let connector = scene.start(options.clone(), handler).await;
    let letters = scene.until_letters(&options, 2).await;
    scene
        .until("the tier had it", || script.count("down") == 2)
        .await;
    connector.stop("orders").await.unwrap();
    assert!(
        letters
            .iter()
            .all(|letter| letter.reason == Reason::NonRetryable)
    );
    assert_eq!((script.count("rule"), script.count("never")), (1, 1));
    let tiers: Vec<u32> = script
        .calls()
        .iter()
        .filter(|call| call.value == "down")
        .map(|call| call.tier)
        .collect();
    assert_eq!(tiers, [0, 3]);
}

pub(crate) async fn c26_c28_origin_and_bytes_are_kept(scene: Scene) {
    let topic = scene.topic("c26", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tiers.truncate(1);
    let script = Script::new(&scene);
    let handler = script.answers(|_| transient("timeout.read"));
    let id: EventId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse().unwrap();
    let tombstone = Record::tombstone()
        .key(b"\xff\x00".to_vec())
        .event_id(id)
        .header("x-other", b"\xfe");
    let empty = Record::new("").key("k");
    let appends = [tombstone, empty].map(|record| Append::new(topic.clone(), record).partition(0));
    scene.log.append(appends.to_vec()).await.unwrap();
    let connector = scene.start(options.clone(), handler).await;
    let letters = scene.until_letters(&options, 2).await;
    connector.stop("orders").await.unwrap();
    let dead = letters.iter().find(|letter| letter.event_id == id).unwrap();
    assert_eq!(
        (dead.value.clone(), dead.key.clone()),
        (None, Some((&b"\xff\x00"[..]).into()))
    );
    assert_eq!(dead.headers.len(), 1, "{:?}", dead.headers);
    assert_eq!(dead.headers[0].value.as_deref(), Some(&b"\xfe"[..]));
    assert_eq!(
        (dead.origin.offset.0, dead.origin.topic.clone()),
        (0, topic.clone())
    );
    let other = letters.iter().find(|letter| letter.event_id != id).unwrap();
    assert_eq!(
        other.value.as_deref(),
        Some(&b""[..]),
        "empty is not absent"
    );
    assert_eq!(by_id(&letters).len(), 2);
}

pub(crate) async fn c30_an_undecodable_record_is_a_dead_letter_at_once(scene: Scene) {
    let topic = scene.topic("c30", 1).await;
    let mut options = scene.options(&topic);
    options.value_format = PayloadFormat::Json;
    let script = Script::new(&scene);
    scene.send(&topic, 0, &["{}", "{", "7"]).await;
    let connector = scene
        .start(options.clone(), script.answers(|_| Ok(())))
        .await;
    let letters = scene.until_letters(&options, 1).await;
    scene.until_committed(&options.group, &topic, 3).await;
    connector.stop("orders").await.unwrap();
    assert_eq!(letters[0].reason, Reason::DeserializationFailure);
    assert_eq!(letters[0].value.as_deref(), Some(&b"{"[..]));
    assert_eq!(script.values(), ["{}", "7"], "the partition goes on");
}

pub(crate) async fn c32_strict_order_has_no_tiers_and_keeps_the_record(scene: Scene) {
    let topic = scene.topic("c32", 1).await;
    let options = scene.options(&topic).strict(StrictExhausted::Pause);
    let group = options.group.clone();
    let script = Script::new(&scene);
    let is_broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    let handler = script.answers(move |record| {
        let is_broken = broken.load(std::sync::atomic::Ordering::Relaxed);
        match text(record.value()).as_str() {
            "b" if is_broken => transient("timeout.read"),
            _ => Ok(()),
        }
    });
    scene.send(&topic, 0, &["a", "b", "c"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene
        .until("it pauses", || {
            connector.state("orders").unwrap() == ContainerState::Paused
        })
        .await;
    assert_eq!(script.values(), ["a", "b", "b", "b"]);
    assert_eq!(scene.letters(&options).await, []);
    let topics = scene.log.topics().await.unwrap();
    let tier = Topic::new(format!("{topic}.retry-1")).unwrap();
    assert!(!topics.contains(&tier), "no tier is made");
    is_broken.store(false, std::sync::atomic::Ordering::Relaxed);
    connector.resume("orders").await.unwrap();
    scene.until_committed(&group, &topic, 3).await;
    connector.stop("orders").await.unwrap();
    let last = script.calls();
    let values: Vec<(&str, u32)> = last[4..]
        .iter()
        .map(|call| (call.value.as_str(), call.attempt))
        .collect();
    assert_eq!(values, [("b", 1), ("c", 1)], "it begins again at attempt 1");
}

pub(crate) async fn two_groups_share_the_tiers_of_a_topic(scene: Scene) {
    let topic = scene.topic("shared", 1).await;
    let mut failing = scene.options(&topic);
    failing.retry.tiers.truncate(1);
    let mut other = failing.clone();
    other.name = "other".to_owned();
    other.group = tidegate_core::GroupName::new(scene.name("other")).unwrap();
    let (one, two) = (Script::new(&scene), Script::new(&scene));
    let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
    let handler = one.answers(|_| transient("timeout.read"));
    connector
        .register(Binding::new(failing.clone(), handler))
        .unwrap();
    let calm = Binding::new(other.clone(), two.answers(|_| Ok(())));
    connector.register(calm).unwrap();
    connector.start("orders").await.unwrap();
    connector.start("other").await.unwrap();
    scene.send(&topic, 0, &["a", "b"]).await;
    let letters = scene.until_letters(&failing, 2).await;
    scene.until_committed(&other.group, &topic, 2).await;
    // The other group passes the tier without calling its handler.
    let tier = failing.tier_topic(TierIndex(1)).unwrap();
    let last = scene.records(&tier, 0).await.last().unwrap().offset.0;
    scene
        .until_passed(&other.tier_group(TierIndex(1)).unwrap(), &tier, last)
        .await;
    connector.shutdown().await;
    assert_eq!(two.values(), ["a", "b"]);
    assert!(
        letters
            .iter()
            .all(|letter| letter.group.as_ref() == Some(&failing.group))
    );
}

pub(crate) async fn dead_letters_are_told_to_their_handler(scene: Scene) {
    let topic = scene.topic("alerts", 1).await;
    let mut options = scene.options(&topic);
    options.dlt.strategy = DltStrategy::AlertAndStore;
    let script = Script::new(&scene);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let binding = Binding::new(
        options.clone(),
        script.answers(|_| permanent("business.rule")),
    );
    let binding = binding.on_dead_letter(move |letter| {
        tell.lock()
            .push((text(letter.letter.value.as_ref()), letter.letter.reason));
        async { Ok(()) }
    });
    let connector = Connector::new(Arc::clone(&scene.log), &scene.env);
    connector.register(binding).unwrap();
    connector.start("orders").await.unwrap();
    scene.send(&topic, 0, &["a", "b"]).await;
    scene
        .until("both are told", || told.lock().len() >= 2)
        .await;
    connector.stop("orders").await.unwrap();
    let told = told.lock().clone();
    assert_eq!(
        told[..2],
        [
            ("a".to_owned(), Reason::NonRetryable),
            ("b".to_owned(), Reason::NonRetryable),
        ]
    );
}

pub(crate) async fn outputs_are_written_with_the_offset(scene: Scene) {
    let topic = scene.topic("outputs", 1).await;
    let out = scene.topic("outputs-out", 1).await;
    let mut options = scene.options(&topic);
    options.transactional = true;
    let group = options.group.clone();
    let script = Script::new(&scene);
    let to = out.clone();
    let handler = script.answers(move |record| {
        let output = Record::new(format!("out-{}", text(record.value())));
        record.send(Append::new(to.clone(), output).partition(0));
        // A failed attempt writes nothing.
        match record.attempt() {
            1 => transient("timeout.read"),
            _ => Ok(()),
        }
    });
    scene.send(&topic, 0, &["a", "b"]).await;
    let connector = scene.start(options, handler).await;
    scene.until_committed(&group, &topic, 2).await;
    connector.stop("orders").await.unwrap();
    let written = scene.records(&out, 0).await;
    let values: Vec<String> = written
        .iter()
        .map(|stored| text(stored.record.value.as_ref()))
        .collect();
    assert_eq!(values, ["out-a", "out-b"]);
}

pub(crate) async fn the_books_of_a_binding_agree_with_a_recount(scene: Scene) {
    let topic = scene.topic("books", 2).await;
    let mut options = scene.options(&topic);
    options.retry.tiers = vec![TierOptions::new(Duration::from_secs(600))];
    let script = Script::new(&scene);
    let handler = script.answers(|record| match text(record.value()).as_str() {
        "wait" => transient("timeout.read"),
        "dead" => permanent("business.rule"),
        _ => Ok(()),
    });
    scene.send(&topic, 0, &["a", "wait", "dead", "b"]).await;
    scene.send(&topic, 1, &["c", "wait"]).await;
    let connector = scene.start(options.clone(), handler).await;
    scene.until_committed(&options.group, &topic, 4).await;
    scene
        .until("both wait", || {
            script.count("wait") == 6 && script.count("c") == 1
        })
        .await;
    let tier = options.tier_topic(TierIndex(1)).unwrap();
    while scene.records(&tier, 1).await.is_empty() {
        scene.env.clock.sleep(Duration::from_millis(5)).await;
    }
    connector.stop("orders").await.unwrap();
    let books = connector.books();
    let accounts = books.accounts().await.unwrap();
    let account = &accounts[0].account;
    let places = (
        account.queued,
        account.retrying,
        account.dead_lettered,
        account.delivered,
    );
    assert_eq!(places, (0, 2, 1, 3), "{account:?}");
    assert!(account.is_balanced(), "{account:?}");
    let audited = books.audit().await.unwrap();
    assert_eq!(
        (audited[0].unaccounted, audited[0].missing.len()),
        (0, 0),
        "{audited:?}"
    );
    let hop = scene.records(&tier, 0).await.remove(0);
    let id = hop.record.headers.event_id().unwrap();
    let found = books.locate(id).await.unwrap();
    assert_eq!((found.len(), found[0].attempts), (1, Some(3)), "{found:?}");
    assert!(found[0].details.contains_key("due"), "{found:?}");
    let letters = scene.letters(&options).await;
    let found = books.locate(letters[0].event_id).await.unwrap();
    assert_eq!(found.last().unwrap().place.to_string(), "dead_lettered");
}
