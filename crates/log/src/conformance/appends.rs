//! Rules of appending.

use std::collections::BTreeSet;

use bytes::Bytes;
use tidegate_core::{Partition, Topic};
use tokio::sync::oneshot;

use super::scene::{Scene, append_to, code, offsets};
use crate::{Append, Headers, Read, Record, TopicConfig, TopicPartition, partition_of};

/// Records lie in the order in which they were appended, within a call and from call to call.
pub async fn t01_records_lie_in_the_order_of_their_appends(scene: Scene) {
    let at = TopicPartition::new(scene.topic(2).await, 1);
    let mut given = Vec::new();
    for batch in [&["a", "b", "c"][..], &["d"], &["e", "f"]] {
        given.extend(scene.append(&at, batch).await);
    }
    assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
    let found = scene.everything(&at).await;
    let lie: Vec<_> = found.iter().map(|stored| stored.offset).collect();
    assert_eq!(lie, given, "each lies where the answer said");
    assert_eq!(scene.values(&at).await, ["a", "b", "c", "d", "e", "f"]);
}

/// Appended records are there after a restart, with offsets that go on.
pub async fn t02_appended_records_are_there_after_a_restart(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let before = scene.append(&at, &["a", "b"]).await;
    let scene = scene.reopened().await;
    assert_eq!(scene.values(&at).await, ["a", "b"]);
    let after = scene.append(&at, &["c"]).await;
    assert!(after[0] > before[1]);
    let scene = scene.reopened().await;
    assert_eq!(scene.values(&at).await, ["a", "b", "c"]);
}

/// Appends of many tasks are all there once, each task's in its order.
pub async fn appends_of_many_tasks_are_all_there_once(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let mut ends = Vec::new();
    for task in 0..8 {
        let (scene, at) = (scene.clone(), at.clone());
        let (tell, told) = oneshot::channel();
        let spawn = scene.stage.spawn();
        let work = async move {
            let mut given = Vec::new();
            for number in 0..10 {
                let value = format!("{task} {number}");
                given.extend(scene.append(&at, &[&value]).await);
            }
            tell.send(given).ok();
        };
        drop(spawn.spawn("appender", Box::pin(work)));
        ends.push(told);
    }
    let mut given = BTreeSet::new();
    for end in ends {
        let of_task = scene.soon("the appends of a task", end).await.unwrap();
        assert!(of_task.is_sorted_by(|a, b| a < b));
        given.extend(of_task);
    }
    let found = scene.everything(&at).await;
    let lie: BTreeSet<_> = found.iter().map(|stored| stored.offset).collect();
    assert_eq!((lie.len(), found.len()), (80, 80));
    assert_eq!(lie, given);
    let values: BTreeSet<String> = scene.values(&at).await.into_iter().collect();
    assert_eq!(values.len(), 80);
}

/// A record goes to the partition it names, whatever its key says.
pub async fn an_explicit_partition_is_kept(scene: Scene) {
    let topic = scene.topic(3).await;
    for number in 0..3 {
        let record = Record::new("x").key("the same key");
        let append = Append::new(topic.clone(), record).partition(number);
        let positions = scene.log.append(vec![append]).await.unwrap();
        assert_eq!(positions[0].at, TopicPartition::new(topic.clone(), number));
        assert_eq!(scene.everything(&positions[0].at).await.len(), 1);
    }
}

/// A record without a partition goes where its key's hash says, as with Kafka's own clients.
pub async fn t03_a_key_decides_about_the_partition(scene: Scene) {
    let topic = scene.topic(5).await;
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    let append = |key: &String| Append::new(topic.clone(), Record::new("x").key(key.clone()));
    let appends = keys.iter().map(append).collect();
    let positions = scene.log.append(appends).await.unwrap();
    for (key, position) in keys.iter().zip(&positions) {
        let expected = partition_of(key.as_bytes(), 5);
        assert_eq!(position.at.partition, expected, "{key}");
    }
    let used: BTreeSet<Partition> = positions
        .iter()
        .map(|position| position.at.partition)
        .collect();
    assert_eq!(used.len(), 5, "forty keys reach every partition");
}

/// A record without key and partition lies where the answer says.
pub async fn a_record_without_a_key_lies_where_the_answer_says(scene: Scene) {
    let topic = scene.topic(3).await;
    let appends = (0..9).map(|number| Append::new(topic.clone(), Record::new(number.to_string())));
    let positions = scene.log.append(appends.collect()).await.unwrap();
    assert_eq!(positions.len(), 9);
    for (number, position) in positions.iter().enumerate() {
        let read = Read::new(position.at.clone(), position.offset);
        let batch = scene.log.read(read).await.unwrap();
        assert_eq!(batch.records[0].offset, position.offset);
        let value = batch.records[0].record.value.clone().unwrap();
        assert_eq!(value, number.to_string());
    }
}

/// Absent and empty keys and values are told apart.
pub async fn absent_and_empty_are_told_apart(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let empty = || Some(Bytes::new());
    let full = || Some(Bytes::from_static(b"x"));
    let mut pairs = Vec::new();
    for key in [None, empty(), full()] {
        for value in [None, empty(), full()] {
            pairs.push((key.clone(), value));
        }
    }
    let appends = pairs.iter().map(|(key, value)| {
        let record = Record {
            key: key.clone(),
            value: value.clone(),
            ..Record::default()
        };
        Append::new(at.topic.clone(), record).partition(0)
    });
    scene.log.append(appends.collect()).await.unwrap();
    let found = scene.everything(&at).await;
    let found: Vec<_> = found
        .into_iter()
        .map(|stored| (stored.record.key, stored.record.value))
        .collect();
    assert_eq!(found, pairs);
}

/// Headers keep their order, repeated names, empty and absent values.
pub async fn headers_come_back_as_they_were(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let mut headers = Headers::default();
    headers.push("b", Some(b"1"));
    headers.push("a", Some(b""));
    headers.push("b", None);
    headers.push("b", Some(&[0, 255, 10]));
    headers.push("gr\u{fc}n", Some("\u{2713}".as_bytes()));
    let record = Record {
        headers: headers.clone(),
        ..Record::new("x")
    };
    let append = Append::new(at.topic.clone(), record).partition(0);
    scene.log.append(vec![append]).await.unwrap();
    let found = scene.everything(&at).await;
    assert_eq!(found[0].record.headers, headers);
}

/// A value of one mebibyte comes back whole, beside small ones.
pub async fn a_value_of_one_mebibyte_comes_back_whole(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let large: Vec<u8> = (0..1024 * 1024_u32)
        .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
        .collect();
    scene.append(&at, &["before"]).await;
    let append = Append::new(at.topic.clone(), Record::new(large.clone())).partition(0);
    scene.log.append(vec![append]).await.unwrap();
    scene.append(&at, &["after"]).await;
    let found = scene.everything(&at).await;
    assert_eq!(found.len(), 3);
    assert!(
        found[1].record.value.as_deref() == Some(&large[..]),
        "byte for byte"
    );
}

/// A record above the limit of its topic is refused by name with everything beside it, and one at
/// the limit is taken.
pub async fn t04_a_record_above_the_limit_is_refused_by_name(scene: Scene) {
    let config = TopicConfig {
        max_record_size: 10_000,
        ..TopicConfig::new(1)
    };
    let at = TopicPartition::new(scene.topic_with(config).await, 0);
    let fits = "x".repeat(10_000);
    scene.append(&at, &[&fits]).await;
    let larger = "x".repeat(10_001);
    let refused = scene
        .log
        .append(vec![append_to(&at, "small"), append_to(&at, &larger)]);
    assert_eq!(code(refused.await), "log.record-too-large");
    assert_eq!(scene.values(&at).await, [fits]);
}

/// A header whose name is longer than a record can hold is refused by name, in an append and in a
/// commit. Everything beside it is refused too. A name at the limit comes back whole. Nothing is ever
/// cut.
pub async fn a_header_above_the_limit_is_refused_by_name(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let named = |name: &str| {
        let record = Record::new("x").header(name, "z").header("behind", "it");
        Append::new(at.topic.clone(), record).partition(0)
    };
    let longest = "n".repeat(Headers::LONGEST_NAME);
    scene.log.append(vec![named(&longest)]).await.unwrap();
    let mut member = scene.join(&scene.group(), &at.topic).await;
    member.until_seen(1).await;
    // The limit falls behind a character, into one, and far before the end.
    let split = format!("{}\u{e9}", &longest[1..]);
    for name in [format!("{longest}n"), split, longest.repeat(2)] {
        let appends = || {
            vec![
                append_to(&at, "beside"),
                named(&name),
                append_to(&at, "behind"),
            ]
        };
        assert_eq!(
            code(scene.log.append(appends()).await),
            "log.header-too-long"
        );
        let offsets = vec![member.offset(&at, scene.partition(&at).await.end, "")];
        let refused = member.commit(appends(), offsets).await;
        assert_eq!(code(refused), "log.header-too-long");
    }
    drop(member);
    let mut scene = scene;
    for _ in 0..2 {
        let found = scene.everything(&at).await;
        assert_eq!(found.len(), 1);
        let headers: Vec<_> = found[0].record.headers.iter().collect();
        let expected = [
            (longest.as_str(), Some(&b"z"[..])),
            ("behind", Some(&b"it"[..])),
        ];
        assert!(headers == expected, "the headers come back whole");
        scene = scene.reopened().await;
    }
}

/// A topic or a partition that is not there is refused by name, with everything beside it.
pub async fn an_unknown_topic_or_partition_is_refused_by_name(scene: Scene) {
    let at = TopicPartition::new(scene.topic(2).await, 0);
    let nowhere = TopicPartition::new(Topic::new(scene.name("nowhere")).unwrap(), 0);
    let outside = TopicPartition::new(at.topic.clone(), 2);
    for (wrong, name) in [
        (&nowhere, "log.unknown-topic"),
        (&outside, "log.unknown-partition"),
    ] {
        let both = vec![append_to(&at, "beside"), append_to(wrong, "x")];
        assert_eq!(code(scene.log.append(both).await), name);
        let read = scene
            .log
            .read(Read::new(wrong.clone(), tidegate_core::Offset(0)));
        assert_eq!(code(read.await), name);
        assert_eq!(code(scene.log.offset_at(wrong, 0).await), name);
    }
    assert_eq!(
        code(scene.log.describe(&nowhere.topic).await),
        "log.unknown-topic"
    );
    let join = crate::Join::new(scene.group(), vec![nowhere.topic.clone()]);
    assert_eq!(code(scene.log.join(join).await), "log.unknown-topic");
    assert_eq!(scene.everything(&at).await, []);
}

/// A time that a record brings is kept; one that brings none gets the time of the log.
pub async fn a_record_has_a_time(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let now = scene.stage.clock().now_ms();
    let dated = Record::new("dated").timestamp_ms(now - 5_000);
    let dated = Append::new(at.topic.clone(), dated).partition(0);
    scene
        .log
        .append(vec![dated, append_to(&at, "undated")])
        .await
        .unwrap();
    let found = scene.everything(&at).await;
    assert_eq!(found[0].record.timestamp_ms, now - 5_000);
    let given = found[1].record.timestamp_ms;
    assert!(given.abs_diff(now) < 60_000, "{given} is about {now}");
}

/// A delivery adds its records in order and has an outcome for each; one that is refused adds nothing.
pub async fn a_delivery_adds_records_in_order_and_tells_of_each(scene: Scene) {
    let at = TopicPartition::new(scene.topic(2).await, 1);
    let records = |values: &[&str]| values.iter().map(|value| append_to(&at, value)).collect();
    let outcomes = scene.log.deliver(records(&["a", "b", "c"])).await.unwrap();
    assert!(outcomes.len() == 3 && outcomes.iter().all(Result::is_ok));
    let nowhere = TopicPartition::new(Topic::new(scene.name("nowhere")).unwrap(), 0);
    let both = vec![append_to(&at, "beside"), append_to(&nowhere, "x")];
    assert_eq!(code(scene.log.deliver(both).await), "log.unknown-topic");
    assert!(scene.log.deliver(Vec::new()).await.unwrap().is_empty());
    scene.log.deliver(records(&["d"])).await.unwrap();
    assert_eq!(scene.values(&at).await, ["a", "b", "c", "d"]);
}

/// Appending nothing adds nothing.
pub async fn appending_nothing_adds_nothing(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let positions = scene.log.append(Vec::new()).await.unwrap();
    assert_eq!(offsets(&positions), Vec::<i64>::new());
    assert_eq!(scene.everything(&at).await, []);
}
