//! Rules of zombies: members that others have taken the place of.

use super::scene::{Scene, append_to, code};
use crate::{Commit, Join, LogError, SessionEvent, TopicPartition};

/// A second member of the same instance name fences the first: nothing that it commits is there.
pub async fn t21_a_zombie_commits_nothing(scene: Scene) {
    let topic = scene.topic(1).await;
    let at = TopicPartition::new(topic.clone(), 0);
    let out = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let given = scene.append_numbers(&at, 5).await;
    let join = Join {
        instance: Some(scene.name("instance")),
        ..Join::new(group.clone(), vec![topic])
    };
    let mut zombie = scene.join_as(join.clone()).await;
    zombie.until_seen(5).await;
    zombie.commit_to(&at, given[1]).await.unwrap();
    let late = Commit {
        appends: vec![append_to(&out, "late")],
        offsets: vec![zombie.offset(&at, given[4], "late")],
    };
    let mut next = scene.join_as(join).await;
    next.until_seen(4).await;
    assert_eq!(next.values(&at), ["1", "2", "3", "4"]);
    let refused = zombie.session.commit(late).await;
    assert_eq!(code(refused), "log.fenced");
    let settled = vec![next.offset(&at, given[2], "ours")];
    next.commit(vec![append_to(&out, "ours")], settled)
        .await
        .unwrap();
    assert_eq!(scene.values_once(&out, 1).await, ["ours"]);
    let committed = scene.committed(&group, &at).await.unwrap();
    assert_eq!(
        (committed.next, committed.metadata.as_str()),
        (given[2], "ours")
    );
}

/// A zombie is told: it loses what it had, gets no record any more, and its session ends.
pub async fn a_zombie_is_told(scene: Scene) {
    let topic = scene.topic(1).await;
    let at = TopicPartition::new(topic.clone(), 0);
    let join = Join {
        instance: Some(scene.name("instance")),
        ..Join::new(scene.group(), vec![topic])
    };
    let mut zombie = scene.join_as(join.clone()).await;
    zombie.until_owning(1).await;
    let mut next = scene.join_as(join).await;
    next.until_owning(1).await;
    scene.append(&at, &["a"]).await;
    next.until_seen(1).await;
    let end = async {
        loop {
            match zombie.session.poll().await {
                Ok(SessionEvent::Lost(lost)) => assert_eq!(lost, std::slice::from_ref(&at)),
                Ok(other) => panic!("a zombie gets {other:?}"),
                Err(LogError::Closed) => return,
                Err(other) => panic!("a zombie gets {other}"),
            }
        }
    };
    scene.soon("the end of the zombie", end).await;
}
