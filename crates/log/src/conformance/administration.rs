//! Rules of the port of operators.

use std::collections::BTreeMap;

use tidegate_core::books::{Place, Tally};
use tidegate_core::{EventId, GroupName, Offset};

use super::scene::{Scene, code};
use crate::TopicPartition;
use crate::admin::{AdminMode, GroupDescription, GroupSeek, SKIPPED, TopicRemoval};

type Events = Vec<(Offset, EventId)>;

/// A topic with ten events in one partition, and a group that has delivered six of them and left.
async fn set_out(scene: &Scene) -> (GroupName, TopicPartition, Events) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let events = scene.append_events(&at, 10).await;
    let group = scene.group();
    deliver(scene, &group, &at, &events[..6]).await;
    (group, at, events)
}

/// A member of a group delivers these events and leaves.
async fn deliver(
    scene: &Scene,
    group: &GroupName,
    at: &TopicPartition,
    events: &[(Offset, EventId)],
) {
    let mut member = scene.join(group, &at.topic).await;
    member.until_owning(1).await;
    let offset = member.settling(at, events, Place::Delivered);
    member.commit(Vec::new(), vec![offset]).await.unwrap();
    member.session.close().await.unwrap();
}

fn tally<'a>(events: impl IntoIterator<Item = &'a (Offset, EventId)>) -> Tally {
    let events = events.into_iter();
    events.fold(Tally::default(), |sum, (_, id)| sum.plus(Tally::of(*id)))
}

fn seek(group: &GroupName, at: &TopicPartition, to: Offset) -> GroupSeek {
    GroupSeek {
        group: group.clone(),
        to: vec![(at.clone(), to)],
        mode: AdminMode::Apply,
    }
}

async fn described(scene: &Scene, group: &GroupName) -> GroupDescription {
    let admin = scene.stage.admin().unwrap();
    admin.describe_group(group).await.unwrap()
}

/// A group that is moved back reads the records again, and its books have them as waiting.
pub async fn t37_a_group_that_is_moved_back_reads_again(scene: Scene) {
    let (group, at, events) = set_out(&scene).await;
    let admin = scene.stage.admin().unwrap();
    let sought = admin
        .seek_group(seek(&group, &at, events[2].0))
        .await
        .unwrap();
    assert_eq!(
        (sought.len(), sought[0].records, sought[0].is_back()),
        (1, 4, true)
    );
    let delivered = |count: usize| BTreeMap::from([(Place::Delivered, tally(&events[..count]))]);
    assert_eq!(scene.places(&group, &at.topic).await, delivered(2));
    // There already, it stays.
    let again = admin
        .seek_group(seek(&group, &at, events[2].0))
        .await
        .unwrap();
    assert_eq!(again, []);
    let mut member = scene.join(&group, &at.topic).await;
    member.until_seen(8).await;
    assert_eq!(member.seen[&at][0].offset, events[2].0);
    let rest = vec![member.settling(&at, &events[2..], Place::Delivered)];
    member.commit(Vec::new(), rest).await.unwrap();
    assert_eq!(scene.places(&group, &at.topic).await, delivered(10));
}

/// Records that a group is moved past are lost to it, until it goes back.
pub async fn t37_records_that_a_group_is_moved_past_are_lost_to_it(scene: Scene) {
    let (group, at, events) = set_out(&scene).await;
    let admin = scene.stage.admin().unwrap();
    // No further than the end.
    let sought = admin
        .seek_group(seek(&group, &at, Offset(i64::MAX)))
        .await
        .unwrap();
    assert_eq!((sought[0].records, sought[0].is_back()), (4, false));
    let expected = BTreeMap::from([
        (Place::Delivered, tally(&events[..6])),
        (Place::Lost(SKIPPED), tally(&events[6..])),
    ]);
    assert_eq!(scene.places(&group, &at.topic).await, expected);
    let shown = &described(&scene, &group).await.topics[0];
    assert_eq!((shown.account.queued, shown.account.lost.total()), (0, 4));
    assert_eq!(shown.partitions[0].lag(), 0);
    let sought = admin
        .seek_group(seek(&group, &at, events[4].0))
        .await
        .unwrap();
    assert_eq!(sought[0].records, 6);
    let expected = BTreeMap::from([(Place::Delivered, tally(&events[..4]))]);
    assert_eq!(scene.places(&group, &at.topic).await, expected);
}

/// A trial tells the numbers and changes nothing.
pub async fn a_trial_changes_nothing(scene: Scene) {
    let (group, at, events) = set_out(&scene).await;
    let admin = scene.stage.admin().unwrap();
    let before = described(&scene, &group).await;
    let trial = GroupSeek {
        mode: AdminMode::Trial,
        ..seek(&group, &at, events[0].0)
    };
    assert_eq!(admin.seek_group(trial).await.unwrap()[0].records, 6);
    let forgotten = admin.remove_group(&group, AdminMode::Trial).await.unwrap();
    assert_eq!(forgotten.unread, [(at.topic.clone(), 4)]);
    let removal = TopicRemoval {
        topic: at.topic.clone(),
        is_forced: true,
        mode: AdminMode::Trial,
    };
    let removed = admin.remove_topic(removal).await.unwrap();
    assert_eq!(
        (removed.records, removed.unread),
        (10, vec![(group.clone(), 4)])
    );
    assert_eq!(described(&scene, &group).await, before);
    assert_eq!(scene.settled(&group, &at.topic).await, tally(&events[..6]));
}

/// A group with members is neither moved nor forgotten, nor is a topic removed that it reads.
pub async fn t37_a_group_with_members_is_left_alone(scene: Scene) {
    let (group, at, events) = set_out(&scene).await;
    let admin = scene.stage.admin().unwrap();
    let mut member = scene.join(&group, &at.topic).await;
    member.until_owning(1).await;
    assert_eq!(described(&scene, &group).await.members, 1);
    let removal = TopicRemoval {
        topic: at.topic.clone(),
        is_forced: true,
        mode: AdminMode::Apply,
    };
    for refused in [
        code(admin.seek_group(seek(&group, &at, events[0].0)).await),
        code(admin.remove_group(&group, AdminMode::Apply).await),
        code(admin.remove_topic(removal).await),
    ] {
        assert_eq!(refused, "log.in-use");
    }
    assert_eq!(scene.settled(&group, &at.topic).await, tally(&events[..6]));
}

/// A group that is forgotten is not there any more, and one of that name begins anew.
pub async fn t38_a_group_is_forgotten_with_what_it_has_not_read(scene: Scene) {
    let (group, at, _) = set_out(&scene).await;
    let admin = scene.stage.admin().unwrap();
    let forgotten = admin.remove_group(&group, AdminMode::Apply).await.unwrap();
    assert_eq!(forgotten.unread, [(at.topic.clone(), 4)]);
    assert_eq!(
        code(admin.describe_group(&group).await),
        "log.unknown-group"
    );
    let again = admin.remove_group(&group, AdminMode::Apply).await;
    assert_eq!(code(again), "log.unknown-group");
    assert_eq!(scene.committed(&group, &at).await, None);
    let mut member = scene.join(&group, &at.topic).await;
    member.until_seen(10).await;
}

/// A topic is removed once everything of it is read, or by force; it can be made again.
pub async fn t39_a_topic_is_removed_only_when_it_is_read_or_by_force(scene: Scene) {
    let (group, at, events) = set_out(&scene).await;
    let admin = scene.stage.admin().unwrap();
    let removal = |is_forced| TopicRemoval {
        topic: at.topic.clone(),
        is_forced,
        mode: AdminMode::Apply,
    };
    assert_eq!(code(admin.remove_topic(removal(false)).await), "log.unread");
    deliver(&scene, &group, &at, &events[6..]).await;
    let removed = admin.remove_topic(removal(false)).await.unwrap();
    assert_eq!((removed.records, removed.unread), (10, Vec::new()));
    assert_eq!(
        code(scene.log.describe(&at.topic).await),
        "log.unknown-topic"
    );
    assert!(!scene.log.topics().await.unwrap().contains(&at.topic));
    assert_eq!(
        code(admin.remove_topic(removal(true)).await),
        "log.unknown-topic"
    );
    let config = crate::TopicConfig::new(1);
    scene.log.create_topic(&at.topic, config).await.unwrap();
    scene.append(&at, &["new"]).await;
    assert_eq!(scene.values(&at).await, ["new"]);
}
