//! Rules of reading outside of a group, and of deleting.

use std::time::Duration;

use tidegate_core::Offset;

use super::scene::{Scene, code, once, text};
use crate::{Append, Read, Record, TopicPartition};

/// Small batches add up to everything, in order.
pub async fn t05_small_helpings_add_up_to_everything(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let given = scene.append_numbers(&at, 50).await;
    let end = scene.partition(&at).await.end;
    let mut found = Vec::new();
    let mut from = scene.partition(&at).await.start;
    while from < end {
        let mut read = Read::new(at.clone(), from);
        read.max_records = 7;
        let batch = scene.log.read(read).await.unwrap();
        assert!(batch.records.len() <= 7);
        assert!(
            batch
                .records
                .iter()
                .all(|stored| stored.offset >= from && stored.offset < batch.next)
        );
        assert!(batch.next > from);
        from = batch.next;
        found.extend(batch.records.into_iter().map(|stored| stored.offset));
    }
    assert_eq!(found, given);
}

/// A read from the middle begins there.
pub async fn a_read_begins_where_it_is_asked_to(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let given = scene.append_numbers(&at, 10).await;
    let batch = scene
        .log
        .read(Read::new(at.clone(), given[6]))
        .await
        .unwrap();
    let values: Vec<String> = batch.records.iter().map(text).collect();
    assert_eq!(values, ["6", "7", "8", "9"]);
}

/// One record is handed out however few bytes are asked for.
pub async fn a_record_larger_than_asked_for_is_handed_out(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let value = "x".repeat(20_000);
    let given = scene.append(&at, &[&value, &value]).await;
    let mut read = Read::new(at.clone(), given[0]);
    read.max_bytes = 1;
    let batch = scene.log.read(read).await.unwrap();
    assert_eq!(batch.records.len(), 1);
    assert_eq!(text(&batch.records[0]), value);
    assert_eq!(batch.next, given[1]);
}

/// A caller that asks for no records, or no bytes, gets one record if there is one: nothing is passed over, whether
/// it was written a moment or a life ago.
pub async fn a_read_for_nothing_gets_one_record(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let mut given = scene.append_numbers(&at, 3).await;
    let mut scene = scene;
    for _ in 0..2 {
        let end = scene.partition(&at).await.end;
        for (max_records, max_bytes) in [(0, 0), (0, 1_000), (1_000, 0)] {
            let mut found = Vec::new();
            let mut from = given[0];
            while from < end {
                let read = Read {
                    max_records,
                    max_bytes,
                    ..Read::new(at.clone(), from)
                };
                let batch = scene.log.read(read).await.unwrap();
                assert!(batch.records.len() <= 1, "{batch:?}");
                found.extend(batch.records.iter().map(|stored| stored.offset));
                assert!(batch.next > from);
                from = batch.next;
            }
            assert_eq!(found, given, "{max_records} records, {max_bytes} bytes");
        }
        scene = scene.reopened().await;
        given.extend(scene.append_numbers(&at, 2).await);
    }
}

/// At the end there is nothing; behind it and before the start, the offset is out of range.
pub async fn t06_an_offset_that_is_not_there_is_out_of_range(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let given = scene.append_numbers(&at, 5).await;
    let end = scene.partition(&at).await.end;
    let batch = scene.log.read(Read::new(at.clone(), end)).await.unwrap();
    assert_eq!((batch.records.len(), batch.next), (0, end));
    let behind = scene.log.read(Read::new(at.clone(), Offset(end.0 + 1)));
    assert_eq!(code(behind.await), "log.out-of-range");
    scene.log.delete_before(&at, given[2]).await.unwrap();
    let before = scene.log.read(Read::new(at.clone(), given[1]));
    assert_eq!(code(before.await), "log.out-of-range");
}

/// A read that waits at the end gets the record that comes, and is not left to its end.
pub async fn a_waiting_read_gets_the_record_that_comes(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let mut read = Read::new(at.clone(), scene.partition(&at).await.end);
    read.wait = scene.stage.times().settle * 2;
    let mut reading = scene.log.read(read);
    assert!(once(&mut reading).await.is_none(), "there is nothing yet");
    let both = async { tokio::join!(reading, scene.append(&at, &["late"])) };
    let (batch, _) = scene.soon("the record", both).await;
    assert_eq!(text(&batch.unwrap().records[0]), "late");
}

/// A read that waits in vain ends with nothing when its time is up.
pub async fn a_read_that_waits_in_vain_ends_in_time(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let mut read = Read::new(at.clone(), scene.partition(&at).await.end);
    read.wait = Duration::from_millis(50);
    let clock = scene.stage.clock();
    let begun = clock.elapsed();
    let batch = scene
        .soon("the end of the wait", scene.log.read(read))
        .await
        .unwrap();
    assert!(batch.records.is_empty());
    assert!(clock.elapsed() - begun >= Duration::from_millis(50));
}

/// An offset is found by time: the first record that is not older.
pub async fn an_offset_is_found_by_time(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let now = scene.stage.clock().now_ms();
    let mut given = Vec::new();
    for ago in [50_000, 40_000, 30_000] {
        let record = Record::new("x").timestamp_ms(now - ago);
        let append = Append::new(at.topic.clone(), record).partition(0);
        given.push(scene.log.append(vec![append]).await.unwrap()[0].offset);
    }
    let end = scene.partition(&at).await.end;
    for (ago, expected) in [
        (60_000, given[0]),
        (50_000, given[0]),
        (49_999, given[1]),
        (40_000, given[1]),
        (30_000, given[2]),
        (29_999, end),
    ] {
        let found = scene.log.offset_at(&at, now - ago).await.unwrap();
        assert_eq!(found, expected, "{ago} ms ago");
    }
}

/// Deleting moves the start, never behind the end, and deleting again changes nothing.
pub async fn deleting_moves_the_start(scene: Scene) {
    let at = TopicPartition::new(scene.topic(2).await, 0);
    let beside = TopicPartition::new(at.topic.clone(), 1);
    let given = scene.append_numbers(&at, 6).await;
    scene.append_numbers(&beside, 2).await;
    for _ in 0..2 {
        assert_eq!(
            scene.log.delete_before(&at, given[4]).await.unwrap(),
            given[4]
        );
        assert_eq!(scene.partition(&at).await.start, given[4]);
        assert_eq!(scene.values(&at).await, ["4", "5"]);
    }
    let lower = scene.log.delete_before(&at, given[1]).await.unwrap();
    assert_eq!(lower, given[4], "the start never goes back");
    let end = scene.partition(&at).await.end;
    let all = scene
        .log
        .delete_before(&at, Offset(end.0 + 100))
        .await
        .unwrap();
    assert_eq!(all, end);
    assert_eq!(scene.everything(&at).await, []);
    assert_eq!(scene.values(&beside).await, ["0", "1"]);
    let next = scene.append(&at, &["next"]).await;
    assert!(next[0] >= end, "offsets are never given twice");
}

/// Where it is promised, records that a registered group has still to read are kept. Elsewhere a group
/// whose position was deleted is told.
pub async fn t32_deleting_does_not_skip_a_group_in_silence(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let given = scene.append_numbers(&at, 6).await;
    let mut member = scene.join(&group, &at.topic).await;
    member.until_seen(6).await;
    member.commit_to(&at, given[2]).await.unwrap();
    member.session.close().await.unwrap();
    let start = scene.log.delete_before(&at, given[4]).await.unwrap();
    let mut next = scene.join(&group, &at.topic).await;
    if scene.stage.promises().deletion_waits_for_groups {
        assert_eq!(start, given[2]);
        next.until_seen(4).await;
        assert_eq!(next.values(&at), ["2", "3", "4", "5"]);
    } else {
        assert_eq!(start, given[4]);
        next.until_owning(1).await;
        let limit = scene.stage.times().settle;
        assert_eq!(code(next.step(limit).await), "log.out-of-range");
        let fence = next.fence(&at);
        next.session.seek(&at, fence, start).await.unwrap();
        next.until_seen(2).await;
        assert_eq!(next.values(&at), ["4", "5"]);
    }
}
