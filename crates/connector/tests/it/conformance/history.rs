//! Identity, history and size of a record on its way through tiers and dead letters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Code, EventId, Failure, Mutex, TierIndex};
use tidegate_log::{Append, Record, TopicConfig};

use crate::scene::{Scene, Script, text, transient};

pub(crate) async fn a05_an_event_keeps_its_id_up_to_the_dead_letters(scene: Scene) {
    let topic = scene.topic("a05", 1).await;
    let mut options = scene.options(&topic);
    options.retry.tiers.truncate(2);
    let seen: Arc<Mutex<BTreeSet<(String, EventId)>>> = Arc::default();
    let script = Script::new(&scene);
    let note = Arc::clone(&seen);
    let handler = script.answers(move |record| {
        let entry = (text(record.value()), record.event_id());
        note.lock().insert(entry);
        transient("timeout.read")
    });
    let id: EventId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse().unwrap();
    let born = Record::new("born-with-one").event_id(id);
    let foreign = Record::new("from-elsewhere");
    let appends = [born, foreign].map(|record| Append::new(topic.clone(), record).partition(0));
    scene.log.append(appends.to_vec()).await.unwrap();
    let connector = scene.start(options.clone(), handler).await;
    let letters = scene.until_letters(&options, 2).await;
    connector.stop("orders").await.unwrap();
    let seen = seen.lock().clone();
    assert_eq!(seen.len(), 2, "one id at every delivery: {seen:?}");
    assert!(seen.contains(&("born-with-one".to_owned(), id)));
    let of_letters: BTreeSet<(String, EventId)> = letters
        .iter()
        .map(|letter| (text(letter.value.as_ref()), letter.event_id))
        .collect();
    assert_eq!(of_letters, seen);
}

pub(crate) async fn c27_each_tier_tells_its_own_failure(scene: Scene) {
    let topic = scene.topic("c27", 1).await;
    let options = scene.options(&topic);
    let script = Script::new(&scene);
    let codes = [
        "timeout.main",
        "timeout.one",
        "timeout.two",
        "timeout.three",
    ];
    let handler = script.answers(move |record| {
        let tier = usize::try_from(record.tier().0).unwrap();
        transient(codes[tier])
    });
    scene.send(&topic, 0, &["poison"]).await;
    let connector = scene.start(options.clone(), handler).await;
    let letter = scene.until_letters(&options, 1).await.remove(0);
    connector.stop("orders").await.unwrap();
    let trail: Vec<(u32, String)> = letter
        .trail
        .iter()
        .map(|seen| (seen.tier.0, seen.code.to_string()))
        .collect();
    let expect: Vec<(u32, String)> = (0..).zip(codes.map(str::to_owned)).collect();
    assert_eq!(trail, expect);
    let times: Vec<u64> = letter
        .trail
        .iter()
        .map(|seen| seen.exhausted_at_ms)
        .collect();
    assert!(times.is_sorted() && times[0] < times[3], "{times:?}");
}

pub(crate) async fn c29_the_largest_record_fits_through_every_hop(scene: Scene) {
    const LIMIT: u64 = 20_000;
    let topic = tidegate_core::Topic::new(scene.name("c29")).unwrap();
    let config = TopicConfig {
        max_record_size: LIMIT,
        ..TopicConfig::new(1)
    };
    scene.log.create_topic(&topic, config).await.unwrap();
    let mut options = scene.options(&topic);
    options.retry.tier0.max_attempts = 1;
    for (n, tier) in (1..).zip(&mut options.retry.tiers) {
        tier.max_attempts = 10;
        tier.delay = Duration::from_millis(n);
    }
    let script = Script::new(&scene);
    // Long words, and a chain of causes.
    let handler = script.answers(|_| {
        let code = Code::from_static("timeout.read");
        let cause = std::io::Error::other("because ".repeat(1_000));
        let failure = Failure::transient(code, "word ".repeat(2_000)).with_source(cause);
        Err(failure.into())
    });
    let mut record = Record::new(Vec::new()).key("k").header("x-other", "kept");
    let room = usize::try_from(LIMIT).unwrap() - record.size();
    record.value = Some(vec![b'v'; room].into());
    assert_eq!(record.size() as u64, LIMIT);
    let append = Append::new(topic.clone(), record.clone()).partition(0);
    scene.log.append(vec![append]).await.unwrap();
    let connector = scene.start(options.clone(), handler).await;
    let letter = scene.until_letters(&options, 1).await.remove(0);
    connector.stop("orders").await.unwrap();
    assert_eq!((letter.attempts, letter.value), (31, record.value));
    let mut sizes = Vec::new();
    for tier in 1..=3 {
        let hops = scene
            .records(&options.tier_topic(TierIndex(tier)).unwrap(), 0)
            .await;
        assert_eq!(hops.len(), 10);
        sizes.extend(hops.iter().map(|hop| hop.record.size()));
    }
    // Within a tier only numbers grow; a tier adds its own line to the trail.
    let growth = sizes.last().unwrap() - sizes[0];
    assert!(growth < 400, "{sizes:?}");
    let dlt = scene.records(&options.dlt_topic().unwrap(), 0).await;
    let headers = dlt[0].record.size() - room;
    assert!(headers < 8 * 1024, "{headers} bytes of headers");
}
