//! Rules of pausing and seeking.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::Offset;

use super::member::together;
use super::scene::{Scene, code, once, text};
use crate::{Fence, Join, SessionEvent, TopicPartition};

/// A paused partition hands out nothing, the others do, and it goes on without a gap.
pub async fn t14_a_paused_partition_rests_and_goes_on_without_a_gap(scene: Scene) {
    let topic = scene.topic(2).await;
    let [one, two] = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    scene.append(&one, &["a"]).await;
    let mut member = scene.join(&scene.group(), &topic).await;
    member.until_seen(1).await;
    for _ in 0..2 {
        member
            .session
            .pause(std::slice::from_ref(&one))
            .await
            .unwrap();
    }
    scene.append(&one, &["b", "c"]).await;
    scene.append(&two, &["x"]).await;
    member
        .until("the other one", |member| member.values(&two) == ["x"])
        .await;
    member.until_quiet().await;
    assert_eq!(member.values(&one), ["a"]);
    for _ in 0..2 {
        member
            .session
            .resume(std::slice::from_ref(&one))
            .await
            .unwrap();
    }
    member.until_seen(4).await;
    assert_eq!(member.values(&one), ["a", "b", "c"]);
}

/// Once a pause has returned, nothing more comes, also of what was there before.
pub async fn a_pause_holds_once_it_has_returned(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    scene.append_numbers(&at, 100).await;
    let join = Join {
        max_poll_records: 10,
        ..Join::new(scene.group(), vec![at.topic.clone()])
    };
    let mut member = scene.join_as(join).await;
    member.until_seen(10).await;
    member
        .session
        .pause(std::slice::from_ref(&at))
        .await
        .unwrap();
    let before = member.count();
    member.until_quiet().await;
    assert_eq!(member.count(), before);
    member
        .session
        .resume(std::slice::from_ref(&at))
        .await
        .unwrap();
    member.until_seen(100).await;
    let expected: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(member.values(&at), expected);
}

/// A pause outlasts losing the partition and getting it back.
pub async fn a_pause_outlasts_a_rebalance(scene: Scene) {
    let topic = scene.topic(2).await;
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    let group = scene.group();
    let mut one = scene.join(&group, &topic).await;
    one.until_owning(2).await;
    one.session.pause(&all).await.unwrap();
    let mut two = scene.join(&group, &topic).await;
    let shared = |a: &super::Member, b: &super::Member| a.owned.len() == 1 && b.owned.len() == 1;
    together("sharing", &mut one, &mut two, shared).await;
    two.session.close().await.unwrap();
    drop(two);
    one.until_owning(2).await;
    for at in &all {
        scene.append(at, &["a"]).await;
    }
    one.until_quiet().await;
    assert_eq!(one.count(), 0, "the pause still holds");
    one.session.resume(&all).await.unwrap();
    one.until_seen(2).await;
}

/// After a seek the next record is the one that was sought, back or forth; a seek does not resume.
pub async fn a_seek_says_what_comes_next(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let given = scene.append_numbers(&at, 10).await;
    let mut member = scene.join(&group, &at.topic).await;
    member.until_seen(10).await;
    let fence = member.fence(&at);
    member.session.seek(&at, fence, given[7]).await.unwrap();
    member.until_seen(13).await;
    assert_eq!(member.values(&at)[10..], ["7", "8", "9"]);
    member
        .session
        .pause(std::slice::from_ref(&at))
        .await
        .unwrap();
    member.session.seek(&at, fence, given[2]).await.unwrap();
    member.until_quiet().await;
    assert_eq!(member.count(), 13, "a seek does not resume");
    member.session.seek(&at, fence, given[8]).await.unwrap();
    member
        .session
        .resume(std::slice::from_ref(&at))
        .await
        .unwrap();
    member.until_seen(15).await;
    assert_eq!(member.values(&at)[13..], ["8", "9"]);
    assert_eq!(
        scene.committed(&group, &at).await,
        None,
        "a seek commits nothing"
    );
}

/// A poll that is under way does not undo a seek: what it hands out itself may be from before, what
/// comes after it is what was sought.
pub async fn a_poll_under_way_does_not_undo_a_seek(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let given = scene.append_numbers(&at, 10).await;
    let mut member = scene.join(&scene.group(), &at.topic).await;
    member.until_seen(10).await;
    let fence = member.fence(&at);
    scene.append(&at, &["10"]).await;
    let session = Arc::clone(&member.session);
    let mut poll = session.poll();
    let begun = once(&mut poll).await;
    session.seek(&at, fence, given[3]).await.unwrap();
    let first = match begun {
        Some(event) => event,
        None => scene.soon("a record", poll).await,
    };
    let SessionEvent::Records { batch, .. } = first.unwrap() else {
        panic!("nothing but records can come");
    };
    let mut values: Vec<String> = batch.records.iter().map(text).collect();
    if values[0] == "10" {
        values.remove(0);
    }
    member.until_seen(18 - values.len()).await;
    member.until_quiet().await;
    values.extend(member.values(&at).drain(10..));
    assert_eq!(values, ["3", "4", "5", "6", "7", "8", "9", "10"]);
}

/// A seek under another fence than the present one is refused.
pub async fn a_seek_needs_the_present_fence(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    scene.append_numbers(&at, 2).await;
    let mut member = scene.join(&scene.group(), &at.topic).await;
    member.until_seen(2).await;
    let fence = member.fence(&at);
    let other = Fence(fence.0.wrapping_add(1));
    let refused = member.session.seek(&at, other, Offset(0)).await;
    assert_eq!(code(refused), "log.fenced");
    let beside = TopicPartition::new(at.topic.clone(), 7);
    let refused = member.session.seek(&beside, fence, Offset(0)).await;
    assert_eq!(code(refused), "log.fenced");
    member.until_quiet().await;
    assert_eq!(member.count(), 2);
}

/// A position that is not there is told once and stops its partition alone, until it is sought.
pub async fn t15_a_position_that_is_not_there_stops_its_partition_alone(scene: Scene) {
    let topic = scene.topic(2).await;
    let [one, two] = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    let given = scene.append_numbers(&one, 3).await;
    let mut member = scene.join(&scene.group(), &topic).await;
    member.until_seen(3).await;
    let fence = member.fence(&one);
    let end = scene.partition(&one).await.end;
    member
        .session
        .seek(&one, fence, Offset(end.0 + 100))
        .await
        .unwrap();
    let limit = scene.stage.times().settle;
    assert_eq!(code(member.step(limit).await), "log.out-of-range");
    scene.append(&one, &["3"]).await;
    scene.append(&two, &["x"]).await;
    member.until_seen(4).await;
    member.until_quiet().await;
    let seen: BTreeMap<_, _> = member
        .seen
        .iter()
        .map(|(at, seen)| (at, seen.len()))
        .collect();
    assert_eq!(seen, BTreeMap::from([(&one, 3), (&two, 1)]));
    member.session.seek(&one, fence, given[2]).await.unwrap();
    member.until_seen(6).await;
    assert_eq!(member.values(&one)[3..], ["2", "3"]);
}
