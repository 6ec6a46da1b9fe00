//! Rules of topics that are read together: partition p of all of them has one owner.

use std::collections::BTreeSet;
use std::slice::from_ref;

use tidegate_core::books::Place;
use tidegate_core::{Offset, Partition, Topic};

use super::member::{Member, together};
use super::scene::{Scene, append_to, code};
use crate::{Commit, Join, StartAt, TopicPartition};

/// Two topics of two partitions each, read together by a fresh group.
async fn two_topics(scene: &Scene) -> (Join, Topic, Topic) {
    let (one, two) = (scene.topic(2).await, scene.topic(2).await);
    let join = Join {
        co_partitioned: vec![two.clone()],
        ..Join::new(scene.group(), vec![one.clone()])
    };
    (join, one, two)
}

fn numbers(member: &Member) -> BTreeSet<Partition> {
    member.owned.keys().map(|at| at.partition).collect()
}

/// The owner of a partition has that of every topic that is read together with it, under one fence, also
/// after others came and went. All records are handed out.
pub async fn t16_topics_read_together_share_their_owners(scene: Scene) {
    let topics = [
        scene.topic(4).await,
        scene.topic(4).await,
        scene.topic(4).await,
    ];
    let partitions = (0..4).flat_map(|number| {
        let at = move |topic: &Topic| TopicPartition::new(topic.clone(), number);
        topics.iter().map(at)
    });
    let partitions: Vec<TopicPartition> = partitions.collect();
    for at in &partitions {
        scene.append_numbers(at, 3).await;
    }
    let [leader, others @ ..] = &topics;
    let join = Join {
        co_partitioned: others.to_vec(),
        ..Join::new(scene.group(), vec![leader.clone()])
    };
    let is_together = |member: &Member| {
        let mut all = numbers(member).into_iter().flat_map(|number| {
            let at = move |topic: &Topic| TopicPartition::new(topic.clone(), number.0);
            topics.iter().map(move |topic| (at(leader), at(topic)))
        });
        all.all(|(leader, at)| {
            member.owned.contains_key(&at) && member.fence(&at) == member.fence(&leader)
        })
    };
    let mut one = scene.join_as(join.clone()).await;
    one.until_seen(36).await;
    assert_eq!(one.owned.len(), 12);
    assert!(is_together(&one), "{one:?}");
    let mut two = scene.join_as(join).await;
    let shared = |one: &Member, two: &Member| one.owned.len() == 6 && two.owned.len() == 6;
    together("the sharing", &mut one, &mut two, shared).await;
    assert!(is_together(&one) && is_together(&two), "{one:?} {two:?}");
    one.session.close().await.unwrap();
    two.until_owning(12).await;
    assert!(is_together(&two), "{two:?}");
    two.until_seen(36).await;
    for at in &partitions {
        assert_eq!(two.values(at), ["0", "1", "2"], "{at}");
    }
}

/// Topics whose partitions do not match, or that are named twice, are refused by name.
pub async fn topics_that_cannot_be_read_together_are_refused_by_name(scene: Scene) {
    let (two, other, three) = (
        scene.topic(2).await,
        scene.topic(2).await,
        scene.topic(3).await,
    );
    for (topics, co_partitioned, named) in [
        (vec![&two], vec![&other, &three], &three),
        (vec![&two], vec![&two], &two),
        (vec![&two], vec![&other, &other], &two),
        (vec![&two, &three], vec![&other], &other),
        (vec![], vec![&other], &other),
    ] {
        let owned = |topics: Vec<&Topic>| topics.into_iter().cloned().collect();
        let join = Join {
            co_partitioned: owned(co_partitioned),
            ..Join::new(scene.group(), owned(topics))
        };
        let refused = scene.log.join(join).await.unwrap_err();
        assert_eq!(refused.code().as_str(), "log.topic-config");
        assert!(refused.to_string().contains(named.as_str()), "{refused}");
    }
    let missing = Join {
        co_partitioned: vec![Topic::new(scene.name("missing")).unwrap()],
        ..Join::new(scene.group(), vec![two])
    };
    assert_eq!(code(scene.log.join(missing).await), "log.unknown-topic");
}

/// One commit moves all that is read together, with records and postings, or nothing of it. The next process
/// goes on from there.
pub async fn t20_topics_read_together_are_committed_together(scene: Scene) {
    let (join, one, two) = two_topics(&scene).await;
    let [leader, other] = [&one, &two].map(|topic| TopicPartition::new(topic.clone(), 1));
    let out = TopicPartition::new(scene.topic(1).await, 0);
    let events = [
        scene.append_events(&leader, 4).await,
        scene.append_events(&other, 4).await,
    ];
    let mut member = scene.join_as(join.clone()).await;
    member.until_seen(8).await;
    let settled = vec![
        member.settling(&leader, &events[0][..1], Place::Delivered),
        member.settling(&other, &events[1][..3], Place::Delivered),
    ];
    member
        .commit(vec![append_to(&out, "first")], settled)
        .await
        .unwrap();
    let mut stale = member.offset(&other, Offset(events[1][3].0.0 + 1), "stale");
    stale.fence.0 += 1;
    let offsets = vec![
        member.offset(&leader, Offset(events[0][3].0.0 + 1), ""),
        stale,
    ];
    let refused = member.commit(vec![append_to(&out, "never")], offsets).await;
    assert_eq!(code(refused), "log.fenced");
    drop(member);
    let scene = scene.reopened().await;
    let mut next = scene.join_as(join.clone()).await;
    next.until_seen(4).await;
    next.until_quiet().await;
    let from = |at| next.seen[at][0].offset;
    assert_eq!(
        (from(&leader), from(&other)),
        (events[0][1].0, events[1][3].0)
    );
    assert_eq!(next.count(), 4);
    assert_eq!(scene.values_once(&out, 1).await, ["first"]);
    assert_eq!(scene.settled(&join.group, &one).await.count, 1);
    assert_eq!(scene.settled(&join.group, &two).await.count, 3);
}

/// Each of the partitions that are read together is paused and sought by itself.
pub async fn what_is_read_together_is_paused_and_sought_apart(scene: Scene) {
    let (join, one, two) = two_topics(&scene).await;
    let [leader, other] = [&one, &two].map(|topic| TopicPartition::new(topic.clone(), 0));
    let mut member = scene.join_as(join).await;
    member.until_owning(4).await;
    member.session.pause(from_ref(&other)).await.unwrap();
    scene.append_numbers(&leader, 2).await;
    let given = scene.append_numbers(&other, 4).await;
    member.until_seen(2).await;
    member.until_quiet().await;
    assert_eq!(member.values(&other), Vec::<String>::new());
    member.session.resume(from_ref(&other)).await.unwrap();
    member.until_seen(6).await;
    let fence = member.fence(&leader);
    member.session.seek(&other, fence, given[2]).await.unwrap();
    member.until_seen(8).await;
    assert_eq!(member.values(&other), ["0", "1", "2", "3", "2", "3"]);
    assert_eq!(member.values(&leader), ["0", "1"]);
}

/// Partitions that are read together are asked back together, and move on when all of them were let go. Until
/// then their owner commits.
pub async fn what_is_read_together_is_let_go_together(scene: Scene) {
    let (join, one, two) = two_topics(&scene).await;
    let mut first = scene.join_as(join.clone()).await.stubborn();
    first.until_owning(4).await;
    let mut second = scene.join_as(join).await;
    let has_asked = |first: &Member, _: &Member| !first.asked.is_empty();
    together("the request", &mut first, &mut second, has_asked).await;
    let asked: BTreeSet<TopicPartition> = first.asked.iter().cloned().collect();
    let number = first.asked[0].partition.0;
    let [leader, other] = [&one, &two].map(|topic| TopicPartition::new(topic.clone(), number));
    assert_eq!(asked, BTreeSet::from([leader.clone(), other.clone()]));
    first.release(from_ref(&leader)).await;
    let given = scene.append(&other, &["a", "b"]).await;
    second.until_quiet().await;
    assert!(second.owned.is_empty(), "{second:?}");
    first.commit_to(&other, given[1]).await.unwrap();
    let late = first.offset(&other, given[1], "late");
    first.release(from_ref(&other)).await;
    let refused = first.commit(Vec::new(), vec![late]).await;
    assert_eq!(code(refused), "log.fenced");
    second.until_seen(1).await;
    assert_eq!(second.owned.len(), 2);
    assert_eq!(second.values(&other), ["b"]);
}

/// A member of the same instance name takes all that is read together, and the first one commits nothing.
pub async fn t21_a_zombie_commits_nothing_of_what_is_read_together(scene: Scene) {
    let (join, _, two) = two_topics(&scene).await;
    let other = TopicPartition::new(two, 0);
    let given = scene.append_numbers(&other, 2).await;
    let join = Join {
        instance: Some(scene.name("instance")),
        ..join
    };
    let mut zombie = scene.join_as(join.clone()).await;
    zombie.until_seen(2).await;
    let late = Commit {
        appends: Vec::new(),
        offsets: vec![zombie.offset(&other, given[1], "late")],
    };
    let mut next = scene.join_as(join.clone()).await;
    next.until_seen(2).await;
    assert_eq!(next.owned.len(), 4);
    assert_eq!(code(zombie.session.commit(late).await), "log.fenced");
    assert_eq!(scene.committed(&join.group, &other).await, None);
}

/// A group that starts behind the last record does so in every topic that is read together, once. Where it is
/// promised, nothing of them is deleted before it was read.
pub async fn what_is_read_together_starts_and_is_kept_alike(scene: Scene) {
    let (join, one, two) = two_topics(&scene).await;
    let [leader, other] = [&one, &two].map(|topic| TopicPartition::new(topic.clone(), 1));
    for at in [&leader, &other] {
        scene.append(at, &["old"]).await;
    }
    let join = Join {
        start: StartAt::Latest,
        ..join
    };
    let mut first = scene.join_as(join.clone()).await;
    first.until_owning(4).await;
    first.session.close().await.unwrap();
    let mut given = Vec::new();
    for at in [&leader, &other] {
        given.extend(scene.append(at, &["new"]).await);
    }
    if scene.stage.promises().deletion_waits_for_groups {
        let end = scene.partition(&other).await.end;
        let start = scene.log.delete_before(&other, end).await.unwrap();
        assert_eq!(start, given[1]);
    }
    let mut next = scene.join_as(join).await;
    next.until_seen(2).await;
    assert_eq!(
        (next.values(&leader), next.values(&other)),
        (vec!["new".to_owned()], vec!["new".to_owned()])
    );
}
