//! Rules of the books: what postings say of a group on a topic, and the records say the same.

use std::collections::BTreeMap;

use tidegate_core::books::{Place, Tally, postings};
use tidegate_core::{EventId, GroupName, Offset, Topic};

use super::member::Member;
use super::scene::{Account, Scene, append_to, code, once};
use crate::{
    Append, Commit, Fence, Join, LogFuture, MAX_METADATA, OffsetCommit, RecordPosition, StartAt,
    TopicPartition,
};

type Events = Vec<(Offset, EventId)>;

fn tally<'a>(events: impl IntoIterator<Item = &'a (Offset, EventId)>) -> Tally {
    let events = events.into_iter();
    events.fold(Tally::default(), |sum, (_, id)| sum.plus(Tally::of(*id)))
}

/// A group with one member, and ten events in each of two partitions.
async fn set_out(scene: &Scene) -> (GroupName, Member, [TopicPartition; 2], [Events; 2]) {
    let topic = scene.topic(2).await;
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    let events = [
        scene.append_events(&all[0], 10).await,
        scene.append_events(&all[1], 10).await,
    ];
    let group = scene.group();
    let mut member = scene.join(&group, &topic).await;
    member.until_seen(20).await;
    (group, member, all, events)
}

/// Postings are booked with the commit they come with, of offsets alone and with records, and are
/// there after a restart.
pub async fn t26_postings_are_booked_with_their_commit(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let topic = &all[0].topic;
    let out = TopicPartition::new(scene.topic(1).await, 0);
    assert_eq!(scene.settled(&group, topic).await, Tally::default());
    let alone = vec![member.settling(&all[0], &events[0][..3], Place::Delivered)];
    member.commit(Vec::new(), alone).await.unwrap();
    let settled = scene.settled(&group, topic).await;
    assert_eq!(settled, tally(&events[0][..3]));
    let both = vec![
        member.settling(&all[0], &events[0][3..4], Place::DeadLettered),
        member.settling(&all[1], &events[1][..6], Place::Retrying),
    ];
    let appends = vec![append_to(&out, "handed off")];
    member.commit(appends, both).await.unwrap();
    let expected = tally(events[0][..4].iter().chain(&events[1][..6]));
    drop(member);
    let mut scene = scene;
    for _ in 0..2 {
        assert_eq!(scene.settled(&group, topic).await, expected);
        scene = scene.reopened().await;
    }
}

/// The next owner goes on with the books of the one before it, and each group has its own.
pub async fn the_next_owner_goes_on_with_the_books(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let (at, events) = (&all[0], &events[0]);
    let first = vec![member.settling(at, &events[..4], Place::Delivered)];
    member.commit(Vec::new(), first).await.unwrap();
    member.session.close().await.unwrap();
    let mut next = scene.join(&group, &at.topic).await;
    next.until_owning(2).await;
    let rest = vec![next.settling(at, &events[4..], Place::Delivered)];
    next.commit(Vec::new(), rest).await.unwrap();
    assert_eq!(scene.settled(&group, &at.topic).await, tally(events));
    let other = scene.group();
    let mut beside = scene.join(&other, &at.topic).await;
    beside.until_owning(2).await;
    let one = vec![beside.settling(at, &events[..1], Place::Delivered)];
    beside.commit(Vec::new(), one).await.unwrap();
    assert_eq!(scene.settled(&other, &at.topic).await, tally(&events[..1]));
    assert_eq!(scene.settled(&group, &at.topic).await, tally(events));
}

/// A commit that is refused posts nothing, with records or without.
pub async fn a_refused_commit_posts_nothing(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let topic = &all[0].topic;
    for appends in [Vec::new(), vec![append_to(&all[0], "never")]] {
        let good = member.settling(&all[0], &events[0][..5], Place::Delivered);
        let stale = OffsetCommit {
            fence: Fence(u64::MAX),
            ..member.settling(&all[1], &events[1][..5], Place::Delivered)
        };
        let refused = member.commit(appends, vec![good, stale]).await;
        assert_eq!(code(refused), "log.fenced");
        assert_eq!(scene.settled(&group, topic).await, Tally::default());
    }
    let good = vec![member.settling(&all[0], &events[0][..5], Place::Delivered)];
    member.commit(Vec::new(), good).await.unwrap();
    assert_eq!(scene.settled(&group, topic).await, tally(&events[0][..5]));
}

/// A commit that is called before an earlier one of its partition is known to have failed is refused
/// too: its offset would pass what the earlier one was to post. Other partitions go on, and so does this
/// one once the failure was told.
pub async fn t23_commits_behind_a_failed_one_are_refused_too(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let topic = &all[0].topic;
    let (at, events) = (&all[0], &events);
    let delivered = |number: usize, from: usize, to: usize| {
        member.settling(&all[number], &events[number][from..to], Place::Delivered)
    };
    let call = |appends: Vec<Append>, offset: OffsetCommit| {
        let offsets = vec![offset];
        member.session.commit(Commit { appends, offsets })
    };
    let nowhere = TopicPartition::new(Topic::new(scene.name("nowhere")).unwrap(), 0);
    let too_long = OffsetCommit {
        metadata: "m".repeat(MAX_METADATA + 1),
        ..delivered(0, 0, 3)
    };
    let behind = OffsetCommit {
        next: Offset(scene.partition(at).await.end.0 + 1),
        ..delivered(0, 0, 3)
    };
    let failing = [
        (vec![], too_long, "log.metadata-too-long"),
        (
            vec![append_to(&nowhere, "x")],
            delivered(0, 0, 3),
            "log.unknown-topic",
        ),
        (vec![], behind.clone(), "log.out-of-range"),
        (vec![append_to(at, "never")], behind, "log.out-of-range"),
    ];
    for (round, (appends, offset, name)) in failing.into_iter().enumerate() {
        let first = call(appends, offset);
        let second = call(Vec::new(), delivered(0, 3, 6));
        let third = call(vec![append_to(at, "never")], delivered(0, 6, 9));
        let beside = call(Vec::new(), delivered(1, round, round + 1));
        let (first, second, third, beside) = tokio::join!(first, second, third, beside);
        assert_eq!(code(first), name);
        assert_eq!(code(second), "log.preceding-commit-failed", "behind {name}");
        assert_eq!(code(third), "log.preceding-commit-failed", "behind {name}");
        beside.unwrap();
        let settled = scene.settled(&group, topic).await;
        assert_eq!(settled, tally(&events[1][..=round]));
        assert_eq!(scene.committed(&group, at).await, None);
    }
    call(Vec::new(), delivered(0, 0, 9)).await.unwrap();
    let settled = scene.settled(&group, topic).await;
    assert_eq!(settled, tally(events[0][..9].iter().chain(&events[1][..4])));
    assert_eq!(scene.everything(at).await.len(), 10);
}

/// Commits these events of both partitions, and fails once it was handed over: by the stage or, where that
/// cannot be arranged, by an offset behind the end of the second one, which is found out late.
async fn doomed(
    scene: &Scene,
    member: &Member,
    all: &[TopicPartition; 2],
    events: [&[(Offset, EventId)]; 2],
) -> Vec<OffsetCommit> {
    let mut second = member.settling(&all[1], events[1], Place::Delivered);
    if !scene.stage.refuse_next_commit() {
        second.next = Offset(scene.partition(&all[1]).await.end.0 + 1);
    }
    let first = member.settling(&all[0], events[0], Place::DeadLettered);
    vec![first, second]
}

/// A commit that was handed over and fails, and whose caller has not heard of it. Threads may be so fast
/// that the caller is told at once: then it is done again.
async fn untold<'a>(
    scene: &Scene,
    member: &'a Member,
    all: &[TopicPartition; 2],
    events: [&[(Offset, EventId)]; 2],
    appends: &[Append],
) -> LogFuture<'a, Vec<RecordPosition>> {
    for _ in 0..1_000 {
        let mut call = member.session.commit(Commit {
            offsets: doomed(scene, member, all, events).await,
            appends: appends.to_vec(),
        });
        match once(&mut call).await {
            Some(told) => assert!(told.is_err()),
            None => return call,
        }
    }
    panic!("whoever calls is always told at once");
}

/// A commit that has failed while its caller was at other work holds up its partitions until that caller
/// was told: whatever is called meanwhile is refused, for it would pass what was not posted.
pub async fn a_failure_that_was_not_told_holds_up_its_partitions(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let topic = &all[0].topic;
    let out = TopicPartition::new(scene.topic(1).await, 0);
    let of = [&events[0][..3], &events[1][..1]];
    let dead_letter = [append_to(&out, "dead letter")];
    let first = untold(&scene, &member, &all, of, &dead_letter).await;
    // A caller that asks what is committed waits for it, so it has failed by now.
    assert_eq!(scene.committed(&group, &all[0]).await, None);
    for appends in [Vec::new(), vec![append_to(&out, "never")]] {
        let behind = member.settling(&all[0], &events[0][3..6], Place::Delivered);
        let refused = member.commit(appends.clone(), vec![behind]).await;
        assert_eq!(code(refused), "log.preceding-commit-failed");
        let beside = member.settling(&all[1], &events[1][1..4], Place::Delivered);
        let refused = member.commit(appends, vec![beside]).await;
        assert_eq!(code(refused), "log.preceding-commit-failed");
    }
    let found = scene.log.committed(&group, &all).await.unwrap();
    assert_eq!(found, [None, None]);
    assert_eq!(scene.settled(&group, topic).await, Tally::default());
    assert!(first.await.is_err());
    let both = vec![
        member.settling(&all[0], &events[0][..6], Place::Delivered),
        member.settling(&all[1], &events[1][..4], Place::Delivered),
    ];
    member.commit(Vec::new(), both).await.unwrap();
    let expected = tally(events[0][..6].iter().chain(&events[1][..4]));
    assert_eq!(scene.settled(&group, topic).await, expected);
    assert_eq!(scene.values(&out).await, Vec::<String>::new());
}

/// Of a call that was dropped nobody is told how it ended. If it was not done, the next commit of each of
/// its partitions is refused, which tells of it; the one after that goes on from what is committed.
pub async fn the_outcome_of_a_dropped_commit_is_told_by_the_next_one(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let topic = &all[0].topic;
    let call = |number: usize, from: usize, to: usize| {
        let events = &events[number][from..to];
        let offsets = vec![member.settling(&all[number], events, Place::Delivered)];
        member.session.commit(Commit {
            appends: Vec::new(),
            offsets,
        })
    };
    // It was never begun.
    drop(call(0, 0, 3));
    assert_eq!(code(call(0, 3, 6).await), "log.preceding-commit-failed");
    call(0, 0, 6).await.unwrap();
    // It has failed by the time it is dropped.
    let of = [&events[0][6..8], &events[1][..1]];
    let dropped = untold(&scene, &member, &all, of, &[]).await;
    assert_eq!(scene.committed(&group, &all[1]).await, None);
    drop(dropped);
    assert_eq!(code(call(0, 8, 9).await), "log.preceding-commit-failed");
    assert_eq!(code(call(1, 1, 4).await), "log.preceding-commit-failed");
    call(0, 6, 9).await.unwrap();
    call(1, 0, 4).await.unwrap();
    let mut expected = tally(events[0][..9].iter().chain(&events[1][..4]));
    assert_eq!(scene.settled(&group, topic).await, expected);
    // It is done or not, and what is committed tells which.
    let mut dropped = call(1, 4, 6);
    drop(once(&mut dropped).await);
    drop(dropped);
    let committed = scene.committed(&group, &all[1]).await.unwrap().next;
    if committed == Offset(events[1][5].0.0 + 1) {
        call(1, 6, 8).await.unwrap();
    } else {
        assert_eq!(code(call(1, 6, 8).await), "log.preceding-commit-failed");
        call(1, 4, 8).await.unwrap();
    }
    expected = expected.plus(tally(&events[1][4..8]));
    assert_eq!(scene.settled(&group, topic).await, expected);
}

/// A commit that is refused for one of its partitions is not done for the others either. So commits
/// that were called behind it there are refused too.
pub async fn a_commit_behind_a_failed_one_holds_up_its_other_partitions(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let call = |offsets: Vec<OffsetCommit>| {
        let appends = Vec::new();
        member.session.commit(Commit { appends, offsets })
    };
    let delivered = |number: usize, from: usize, to: usize| {
        member.settling(&all[number], &events[number][from..to], Place::Delivered)
    };
    let behind = OffsetCommit {
        next: Offset(scene.partition(&all[1]).await.end.0 + 1),
        ..delivered(1, 0, 3)
    };
    let first = call(vec![behind]);
    let both = call(vec![delivered(0, 0, 3), delivered(1, 3, 6)]);
    let third = call(vec![delivered(0, 3, 6)]);
    let (first, both, third) = tokio::join!(first, both, third);
    assert_eq!(code(first), "log.out-of-range");
    assert_eq!(code(both), "log.preceding-commit-failed");
    assert_eq!(code(third), "log.preceding-commit-failed");
    let found = scene.log.committed(&group, &all).await.unwrap();
    assert_eq!(found, [None, None]);
    let all_of_it = vec![delivered(0, 0, 6), delivered(1, 0, 6)];
    call(all_of_it).await.unwrap();
    let expected = tally(events[0][..6].iter().chain(&events[1][..6]));
    assert_eq!(scene.settled(&group, &all[0].topic).await, expected);
}

/// Records that a commit passes without a posting are missed, and named where it is one; nobody's books
/// begin anew behind them. A commit that passes no record keeps the books as they are.
pub async fn records_passed_without_a_posting_are_missing(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let (at, events) = (&all[0], &events[0]);
    let topic = &at.topic;
    let delivered =
        |from: usize, to: usize| vec![member.settling(at, &events[from..to], Place::Delivered)];
    member.commit(Vec::new(), delivered(0, 3)).await.unwrap();
    let same = vec![member.offset(at, Offset(events[2].0.0 + 1), "again")];
    member.commit(Vec::new(), same).await.unwrap();
    assert_eq!(scene.settled(&group, topic).await, tally(&events[..3]));
    let silent = vec![member.offset(at, events[5].0, "")];
    member.commit(Vec::new(), silent).await.unwrap();
    member.commit(Vec::new(), delivered(5, 10)).await.unwrap();
    drop(member);
    let mut scene = scene;
    for _ in 0..2 {
        let account = scene.stage.account(&group, topic).await.unwrap();
        assert!(!account.is_confirmed, "two events are missing: {account:?}");
        assert_eq!(
            account.settled,
            tally(events[..3].iter().chain(&events[5..]))
        );
        scene = scene.reopened().await;
    }
}

/// Postings of a zombie are not booked; those of the member that took its place are, once.
pub async fn a_zombie_posts_nothing(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let events = scene.append_events(&at, 5).await;
    let join = Join {
        instance: Some(scene.name("instance")),
        ..Join::new(group.clone(), vec![at.topic.clone()])
    };
    let mut zombie = scene.join_as(join.clone()).await;
    zombie.until_seen(5).await;
    let mut next = scene.join_as(join).await;
    next.until_seen(5).await;
    let late = vec![zombie.settling(&at, &events, Place::DeadLettered)];
    let refused = zombie.commit(Vec::new(), late).await;
    assert_eq!(code(refused), "log.fenced");
    assert_eq!(scene.settled(&group, &at.topic).await, Tally::default());
    let ours = vec![next.settling(&at, &events, Place::Delivered)];
    next.commit(Vec::new(), ours).await.unwrap();
    assert_eq!(scene.settled(&group, &at.topic).await, tally(&events));
}

/// A group that starts behind the last record never had those before it: they are not in its books,
/// neither as settled nor as queued. Where it began is remembered, so that nothing that comes later
/// is skipped.
pub async fn records_before_the_start_of_a_group_are_not_in_its_books(scene: Scene) {
    let topic = scene.topic(2).await;
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    let group = scene.group();
    let join = Join {
        start: StartAt::Latest,
        ..Join::new(group.clone(), vec![topic.clone()])
    };
    for at in &all {
        scene.append_events(at, 5).await;
    }
    let mut first = scene.join_as(join.clone()).await;
    first.until_owning(2).await;
    assert_eq!(scene.settled(&group, &topic).await, Tally::default());
    // Records that come while nobody is there, before any commit, are not skipped.
    first.session.close().await.unwrap();
    drop(first);
    let events = scene.append_events(&all[0], 3).await;
    let scene = scene.reopened().await;
    let mut second = scene.join_as(join).await;
    second.until_seen(3).await;
    second.until_owning(2).await;
    assert_eq!(second.seen[&all[0]][0].offset, events[0].0);
    let settled = vec![second.settling(&all[0], &events, Place::Delivered)];
    second.commit(Vec::new(), settled).await.unwrap();
    assert_eq!(scene.settled(&group, &topic).await, tally(&events));
    assert_eq!(second.count(), 3, "nothing from before the start");
}

/// The books tell where the events went, place by place, also after a move from one place to another and
/// for the next owner. A tally that falls to nothing leaves no trace.
pub async fn each_place_has_a_tally_of_its_own(scene: Scene) {
    let (group, member, all, events) = set_out(&scene).await;
    let (at, events) = (&all[0], &events[0]);
    let places = [
        Place::Delivered,
        Place::Retrying,
        Place::Parked,
        Place::DeadLettered,
        Place::Lost(Account::LOST),
    ];
    for (index, place) in places.iter().enumerate() {
        let one = vec![member.settling(at, &events[index..=index], place.clone())];
        member.commit(Vec::new(), one).await.unwrap();
    }
    let one = |index: usize| tally(&events[index..=index]);
    let each = places.into_iter().enumerate();
    let mut expected: BTreeMap<Place, Tally> =
        each.map(|(index, place)| (place, one(index))).collect();
    assert_eq!(scene.places(&group, &at.topic).await, expected);
    // The parked one is given up on: its offset was committed before.
    let parked = [events[2].1];
    let moved = OffsetCommit {
        postings: postings(parked, Some(Place::Parked), Some(Place::DeadLettered)),
        ..member.offset(at, Offset(events[4].0.0 + 1), "moved")
    };
    member.commit(Vec::new(), vec![moved]).await.unwrap();
    expected.remove(&Place::Parked);
    expected.insert(Place::DeadLettered, one(2).plus(one(3)));
    assert_eq!(scene.places(&group, &at.topic).await, expected);
    member.session.close().await.unwrap();
    drop(member);
    let scene = scene.reopened().await;
    let mut next = scene.join(&group, &at.topic).await;
    next.until_owning(2).await;
    let rest = vec![next.settling(at, &events[5..], Place::Delivered)];
    next.commit(Vec::new(), rest).await.unwrap();
    expected.insert(Place::Delivered, one(0).plus(tally(&events[5..])));
    assert_eq!(scene.places(&group, &at.topic).await, expected);
}
