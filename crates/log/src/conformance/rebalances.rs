//! Rules of members that come and go.

use std::collections::BTreeSet;
use std::time::Duration;

use super::member::{Member, together};
use super::scene::{Scene, code};
use crate::{Join, TopicPartition};

fn names(member: &Member) -> BTreeSet<TopicPartition> {
    member.owned.keys().cloned().collect()
}

/// A second member gets its share once the first lets go, and everything is owned once.
pub async fn t10_members_share_the_partitions(scene: Scene) {
    let topic = scene.topic(4).await;
    let group = scene.group();
    let mut one = scene.join(&group, &topic).await;
    one.until_owning(4).await;
    let mut two = scene.join(&group, &topic).await;
    let shared = |a: &Member, b: &Member| a.owned.len() == 2 && b.owned.len() == 2;
    together("sharing", &mut one, &mut two, shared).await;
    assert_eq!(names(&one).intersection(&names(&two)).count(), 0);
    let first: Vec<_> = one
        .owned
        .values()
        .map(|assignment| assignment.fence)
        .collect();
    for number in 0..4 {
        scene
            .append(&TopicPartition::new(topic.clone(), number), &["a"])
            .await;
    }
    together("delivery to both", &mut one, &mut two, |a, b| {
        a.count() == 2 && b.count() == 2
    })
    .await;
    let kept: Vec<_> = one
        .owned
        .values()
        .map(|assignment| assignment.fence)
        .collect();
    assert_eq!(kept, first, "what stays is not assigned again");
}

/// Records that were handed out and not committed are handed out again to the next owner, and nothing is
/// skipped.
pub async fn t12_records_in_flight_are_handed_out_again_after_a_rebalance(scene: Scene) {
    let topic = scene.topic(2).await;
    let group = scene.group();
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    let mut given = Vec::new();
    for at in &all {
        given = scene.append_numbers(at, 10).await;
    }
    let mut one = scene.join(&group, &topic).await;
    one.until_seen(20).await;
    for at in &all {
        one.commit_to(at, given[4]).await.unwrap();
    }
    let mut two = scene.join(&group, &topic).await;
    let shared = |a: &Member, b: &Member| a.owned.len() == 1 && b.count() == 6;
    together("the second delivery", &mut one, &mut two, shared).await;
    let moved = two.owned.keys().next().unwrap();
    assert_eq!(two.values(moved), ["4", "5", "6", "7", "8", "9"]);
    let committed = two.owned[moved].committed.clone().unwrap();
    assert_eq!(
        (committed.next, two.owned[moved].position),
        (given[4], given[4])
    );
    let kept = one.owned.keys().next().unwrap();
    assert_eq!(one.values(kept).len(), 10, "what stayed was not repeated");
}

/// The next owner begins at the offset that was committed before letting go.
pub async fn a_commit_before_letting_go_counts(scene: Scene) {
    let topic = scene.topic(2).await;
    let group = scene.group();
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    let mut given = Vec::new();
    for at in &all {
        given = scene.append_numbers(at, 5).await;
    }
    let mut one = scene.join(&group, &topic).await.stubborn();
    one.until_seen(10).await;
    let mut two = scene.join(&group, &topic).await;
    together("the request", &mut one, &mut two, |one, _| {
        !one.asked.is_empty()
    })
    .await;
    let asked = one.asked.clone();
    assert_eq!(asked.len(), 1);
    one.commit_to(&asked[0], given[3]).await.unwrap();
    one.release(&asked).await;
    together("the second delivery", &mut one, &mut two, |_, two| {
        two.count() == 2
    })
    .await;
    assert_eq!(two.values(&asked[0]), ["3", "4"]);
}

/// A member that let a partition go commits nothing of it any more, under whatever fence.
pub async fn a_member_that_let_go_commits_nothing(scene: Scene) {
    let topic = scene.topic(2).await;
    let group = scene.group();
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    for at in &all {
        scene.append_numbers(at, 5).await;
    }
    let mut one = scene.join(&group, &topic).await.stubborn();
    one.until_seen(10).await;
    let mut two = scene.join(&group, &topic).await;
    together("the request", &mut one, &mut two, |one, _| {
        !one.asked.is_empty()
    })
    .await;
    let asked = one.asked.clone();
    let late = one.offset(&asked[0], scene.partition(&asked[0]).await.end, "late");
    one.release(&asked).await;
    let refused = one.commit(Vec::new(), vec![late.clone()]).await;
    assert_eq!(code(refused), "log.fenced");
    together("the new owner", &mut one, &mut two, |_, two| {
        !two.owned.is_empty()
    })
    .await;
    let refused = one.commit(Vec::new(), vec![late.clone()]).await;
    assert_eq!(code(refused), "log.fenced");
    let borrowed = crate::OffsetCommit {
        fence: two.fence(&asked[0]),
        ..late
    };
    let refused = one.commit(Vec::new(), vec![borrowed]).await;
    assert_eq!(code(refused), "log.fenced");
    assert_eq!(scene.committed(&group, &asked[0]).await, None);
}

/// A partition that is asked for and not let go moves on when the time is up. The member that kept it
/// is told, and commits nothing.
pub async fn a_partition_that_is_not_let_go_in_time_moves_on(scene: Scene) {
    let topic = scene.topic(2).await;
    let group = scene.group();
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    for at in &all {
        scene.append_numbers(at, 5).await;
    }
    let join = Join {
        release_timeout: Duration::from_millis(500),
        ..Join::new(group.clone(), vec![topic.clone()])
    };
    let mut one = scene.join_as(join.clone()).await.stubborn();
    one.until_seen(10).await;
    let mut two = scene.join_as(join).await;
    together("the request", &mut one, &mut two, |one, _| {
        !one.asked.is_empty()
    })
    .await;
    let asked = one.asked.clone();
    let late = one.offset(&asked[0], scene.partition(&asked[0]).await.end, "late");
    together("moving on", &mut one, &mut two, |_, two| two.count() == 5).await;
    let refused = one.commit(Vec::new(), vec![late]).await;
    assert_eq!(code(refused), "log.fenced");
    together("being told", &mut one, &mut two, |one, _| one.lost == asked).await;
    assert_eq!(two.values(&asked[0]), ["0", "1", "2", "3", "4"]);
    assert_eq!(scene.committed(&group, &asked[0]).await, None);
}

/// A commit that comes after the time is up is refused, also when its member has asked for nothing in
/// between.
pub async fn a_commit_after_the_time_is_up_is_refused(scene: Scene) {
    let topic = scene.topic(2).await;
    let group = scene.group();
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    for at in &all {
        scene.append_numbers(at, 2).await;
    }
    let join = Join {
        release_timeout: Duration::from_millis(500),
        ..Join::new(group.clone(), vec![topic.clone()])
    };
    let mut one = scene.join_as(join.clone()).await.stubborn();
    one.until_seen(4).await;
    let mut two = scene.join_as(join).await;
    let has_asked = |one: &Member, _: &Member| !one.asked.is_empty();
    together("the request", &mut one, &mut two, has_asked).await;
    let asked = one.asked.clone();
    let late = one.offset(&asked[0], scene.partition(&asked[0]).await.end, "late");
    two.until_owning(1).await;
    let refused = one.commit(Vec::new(), vec![late]).await;
    assert_eq!(code(refused), "log.fenced");
    assert_eq!(scene.committed(&group, &asked[0]).await, None);
}

/// Once a partition is asked for, no more records of it come, and what stays flows on.
pub async fn nothing_more_comes_of_what_is_asked_for(scene: Scene) {
    let topic = scene.topic(2).await;
    let group = scene.group();
    let mut one = scene.join(&group, &topic).await.stubborn();
    one.until_owning(2).await;
    let mut two = scene.join(&group, &topic).await;
    let has_asked = |one: &Member, _: &Member| !one.asked.is_empty();
    together("the request", &mut one, &mut two, has_asked).await;
    let asked = one.asked.clone();
    for number in 0..2 {
        let at = TopicPartition::new(topic.clone(), number);
        scene.append(&at, &["a"]).await;
    }
    one.until_seen(1).await;
    one.until_quiet().await;
    assert_eq!(one.values(&asked[0]), Vec::<String>::new());
    one.release(&asked).await;
    two.until_seen(1).await;
    assert_eq!(two.values(&asked[0]), ["a"]);
}

/// The partitions of a session that is dropped move on, with what it had not committed.
pub async fn the_partitions_of_a_dropped_session_move_on(scene: Scene) {
    let topic = scene.topic(2).await;
    let group = scene.group();
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    for at in &all {
        scene.append_numbers(at, 3).await;
    }
    let mut one = scene.join(&group, &topic).await;
    one.until_seen(6).await;
    let mut two = scene.join(&group, &topic).await;
    let shared = |a: &Member, b: &Member| a.owned.len() == 1 && b.owned.len() == 1;
    together("sharing", &mut one, &mut two, shared).await;
    drop(one);
    two.until_owning(2).await;
    two.until_seen(6).await;
    for at in &all {
        assert_eq!(two.values(at), ["0", "1", "2"]);
    }
}

/// Each assignment of a partition has a higher fence than those before it.
pub async fn fences_ascend_with_every_assignment(scene: Scene) {
    let topic = scene.topic(1).await;
    let at = TopicPartition::new(topic.clone(), 0);
    let group = scene.group();
    let mut last = None;
    for _ in 0..4 {
        let mut member = scene.join(&group, &topic).await;
        member.until_owning(1).await;
        let fence = member.fence(&at);
        assert!(Some(fence) > last, "{fence:?} after {last:?}");
        last = Some(fence);
        member.session.close().await.unwrap();
    }
}
