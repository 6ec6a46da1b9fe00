//! Rules of a group with a calm membership.

use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::{GroupName, Offset, Topic};

use super::member::{Member, together};
use super::scene::{Scene, append_to, code, once};
use crate::{Append, Join, Record, StartAt, TopicPartition};

/// The only member gets every partition of its topics, and every record in order.
pub async fn the_only_member_gets_everything_in_order(scene: Scene) {
    let (one, two) = (scene.topic(2).await, scene.topic(1).await);
    let mut partitions: Vec<TopicPartition> = [(&one, 0), (&one, 1), (&two, 0)]
        .map(|(topic, number)| TopicPartition::new(topic.clone(), number))
        .into();
    partitions.sort();
    for at in &partitions {
        scene.append_numbers(at, 20).await;
    }
    let mut member = scene
        .join_as(Join::new(scene.group(), vec![one, two]))
        .await;
    member.until_seen(60).await;
    let owned: Vec<TopicPartition> = member.owned.keys().cloned().collect();
    assert_eq!(owned, partitions);
    for at in &partitions {
        let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        assert_eq!(member.values(at), expected);
        let there = scene.partition(at).await;
        assert_eq!(member.owned[at].committed, None);
        assert_eq!(member.owned[at].position, there.start);
    }
    scene.append(&partitions[0], &["later"]).await;
    member.until_seen(61).await;
    assert_eq!(member.values(&partitions[0])[20], "later");
}

/// Without a committed offset a group starts where it says: first, last, or not at all.
pub async fn a_group_starts_where_it_says(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    scene.append(&at, &["old"]).await;
    let join = |start| Join {
        start,
        ..Join::new(scene.group(), vec![at.topic.clone()])
    };
    let mut earliest = scene.join_as(join(StartAt::Earliest)).await;
    let mut latest = scene.join_as(join(StartAt::Latest)).await;
    let mut failing = scene.join_as(join(StartAt::Fail)).await;
    latest.until_owning(1).await;
    failing.until_owning(1).await;
    let limit = scene.stage.times().settle;
    assert_eq!(code(failing.step(limit).await), "log.out-of-range");
    let new = scene.append(&at, &["new"]).await;
    earliest.until_seen(2).await;
    latest.until_seen(1).await;
    assert_eq!(earliest.values(&at), ["old", "new"]);
    assert_eq!(latest.values(&at), ["new"]);
    failing.until_quiet().await;
    assert_eq!(failing.count(), 0);
    let fence = failing.fence(&at);
    failing.session.seek(&at, fence, new[0]).await.unwrap();
    failing.until_seen(1).await;
    assert_eq!(failing.values(&at), ["new"]);
}

/// A group that starts behind the last record does so once in each partition. It does not matter what
/// it has committed of others, or who is a member already. Records that come later are handed out until
/// they are committed.
pub async fn t13_where_a_group_starts_last_is_remembered_for_each_partition(scene: Scene) {
    let (one, two) = (scene.topic(2).await, scene.topic(1).await);
    let all = [(&one, 0), (&one, 1), (&two, 0)]
        .map(|(topic, number)| TopicPartition::new(topic.clone(), number));
    for at in &all {
        scene.append_events(at, 3).await;
    }
    let group = scene.group();
    let latest = |topics: &[&Topic]| Join {
        start: StartAt::Latest,
        ..Join::new(group.clone(), topics.iter().copied().cloned().collect())
    };
    // Something is committed of one partition, and nothing of the others.
    let mut earliest = scene.join(&group, &one).await;
    earliest.until_seen(6).await;
    let seen = earliest.seen[&all[0]].iter();
    let events: Vec<_> = seen
        .map(|stored| (stored.offset, stored.record.headers.event_id().unwrap()))
        .collect();
    let settled = vec![earliest.settling(&all[0], &events, Place::Delivered)];
    earliest.commit(Vec::new(), settled).await.unwrap();
    earliest.session.close().await.unwrap();
    drop(earliest);
    let mut first = scene.join_as(latest(&[&one])).await;
    first.until_owning(2).await;
    // A member of another topic comes while there is one already.
    let mut second = scene.join_as(latest(&[&two])).await;
    let both = |first: &Member, second: &Member| first.owned.len() == 2 && second.owned.len() == 1;
    together("both assignments", &mut first, &mut second, both).await;
    for at in &all {
        scene.append(at, &["later"]).await;
    }
    let both = |first: &Member, second: &Member| first.count() == 2 && second.count() == 1;
    together("what came later", &mut first, &mut second, both).await;
    // Nothing of that was committed: it comes again, to whoever comes next.
    first.session.close().await.unwrap();
    second.session.close().await.unwrap();
    drop((first, second));
    let scene = scene.reopened().await;
    let mut next = scene.join_as(latest(&[&one, &two])).await;
    next.until_seen(3).await;
    for at in &all {
        assert_eq!(next.values(at), ["later"], "{at}");
    }
    for topic in [&one, &two] {
        let confirmed = scene.settled(&group, topic).await;
        assert_eq!(confirmed.count, if topic == &one { 3 } else { 0 });
    }
}

/// The next owner goes on at the committed offset; what was seen and not committed comes again.
pub async fn t11_the_next_owner_goes_on_at_the_committed_offset(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let given = scene.append_numbers(&at, 10).await;
    for (times, next) in [(0, 4), (4, 4), (4, 9)] {
        let mut member = scene.join(&group, &at.topic).await;
        member.until_seen(10 - times).await;
        let first = member.seen[&at][0].offset;
        assert_eq!(first, given[times], "the next one is not skipped");
        assert_eq!(member.owned[&at].position, given[times]);
        member.commit_to(&at, given[next]).await.unwrap();
        member.session.close().await.unwrap();
    }
    let end = scene.partition(&at).await.end;
    let mut last = scene.join(&group, &at.topic).await;
    last.until_seen(1).await;
    last.commit_to(&at, end).await.unwrap();
    last.session.close().await.unwrap();
    let mut none = scene.join(&group, &at.topic).await;
    none.until_owning(1).await;
    none.until_quiet().await;
    assert_eq!(none.count(), 0, "everything is settled");
}

/// Each group has its own offsets and gets every record.
pub async fn two_groups_do_not_disturb_each_other(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let groups = [scene.group(), scene.group()];
    let given = scene.append_numbers(&at, 6).await;
    let mut one = scene.join(&groups[0], &at.topic).await;
    let mut two = scene.join(&groups[1], &at.topic).await;
    let all = |member: &super::Member| member.count() == 6;
    together("both deliveries", &mut one, &mut two, |one, two| {
        all(one) && all(two)
    })
    .await;
    one.commit_to(&at, given[3]).await.unwrap();
    assert_eq!(
        scene.committed(&groups[0], &at).await.unwrap().next,
        given[3]
    );
    assert_eq!(scene.committed(&groups[1], &at).await, None);
    two.commit_to(&at, given[1]).await.unwrap();
    assert_eq!(
        scene.committed(&groups[0], &at).await.unwrap().next,
        given[3]
    );
}

/// A group is listed once it was joined, and until it is forgotten with its offsets; not while it
/// has members.
pub async fn a_group_is_registered_until_it_is_forgotten(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    scene.append_numbers(&at, 3).await;
    let is_listed = |listed: Vec<GroupName>| listed.contains(&group) && listed.is_sorted();
    assert!(!is_listed(scene.log.groups().await.unwrap()));
    let mut member = scene.join(&group, &at.topic).await;
    member.until_seen(3).await;
    member.commit_to(&at, Offset(1)).await.unwrap();
    assert!(is_listed(scene.log.groups().await.unwrap()));
    assert_eq!(code(scene.log.forget_group(&group).await), "log.refused");
    member.session.close().await.unwrap();
    drop(member);
    let scene = scene.reopened().await;
    assert!(is_listed(scene.log.groups().await.unwrap()));
    for _ in 0..2 {
        scene.log.forget_group(&group).await.unwrap();
        assert!(!is_listed(scene.log.groups().await.unwrap()));
        assert_eq!(scene.committed(&group, &at).await, None);
    }
}

/// One poll hands out no more records than the member asked for.
pub async fn a_poll_hands_out_no_more_than_asked_for(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    scene.append_numbers(&at, 25).await;
    let join = Join {
        max_poll_records: 4,
        ..Join::new(scene.group(), vec![at.topic.clone()])
    };
    let mut member = scene.join_as(join).await;
    while member.count() < 25 {
        let before = member.count();
        member
            .until("more records", |member| member.count() > before)
            .await;
        assert!(member.count() - before <= 4);
    }
    assert_eq!(member.count(), 25);
}

/// A poll that is canceled misses nothing, however often.
pub async fn a_canceled_poll_misses_nothing(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    scene.append_numbers(&at, 30).await;
    let join = Join {
        max_poll_records: 3,
        ..Join::new(scene.group(), vec![at.topic.clone()])
    };
    let mut member = scene.join_as(join).await;
    let clock = scene.stage.clock();
    let end = clock.elapsed() + scene.stage.times().settle;
    // Canceled later each time, until it was not: so it gets on however slow the log is.
    let mut micros = 0;
    while member.count() < 30 {
        assert!(clock.elapsed() < end, "{member:?}");
        let limit = Duration::from_micros(micros);
        micros = match member.step(limit).await.unwrap() {
            true => 0,
            false => micros * 2 + 37,
        };
    }
    let expected: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    assert_eq!(member.values(&at), expected);
}

/// Lag counts the records behind the committed offset, and how old the first of them is.
pub async fn lag_is_counted_in_records_and_in_time(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let clock = scene.stage.clock();
    let now = clock.now_ms();
    let dated = |ago: u64| {
        let record = Record::new("x").timestamp_ms(now - ago);
        Append::new(at.topic.clone(), record).partition(0)
    };
    let appends = vec![dated(60_000), dated(30_000), dated(10_000)];
    let given = scene.log.append(appends).await.unwrap();
    let mut member = scene.join(&group, &at.topic).await;
    member.until_seen(3).await;
    for (next, records, ago) in [
        (None, 3, 60_000),
        (Some(1), 2, 30_000),
        (Some(2), 1, 10_000),
    ] {
        if let Some(next) = next {
            member.commit_to(&at, given[next].offset).await.unwrap();
        }
        // It was found somewhen during the call, however long that took.
        let age = || Duration::from_millis(clock.now_ms() - (now - ago));
        let least = age();
        let lag = member.session.lag().await.unwrap();
        assert_eq!(lag.len(), 1);
        assert_eq!((&lag[0].at, lag[0].records), (&at, records));
        let found = lag[0].age;
        assert!((least..=age()).contains(&found), "{found:?}, not {least:?}");
    }
    let end = scene.partition(&at).await.end;
    member.commit_to(&at, end).await.unwrap();
    let lag = member.session.lag().await.unwrap();
    assert_eq!((lag[0].records, lag[0].age), (0, Duration::ZERO));
}

/// A closed session says so, and closing it again changes nothing.
pub async fn a_closed_session_says_so(scene: Scene) {
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    scene.append(&at, &["a"]).await;
    let mut member = scene.join(&group, &at.topic).await;
    member.until_seen(1).await;
    for _ in 0..2 {
        scene.soon("closing", member.session.close()).await.unwrap();
        assert_eq!(code(member.session.poll().await), "log.closed");
        let appends = vec![append_to(&at, "b")];
        assert_eq!(code(member.commit(appends, Vec::new()).await), "log.closed");
    }
    assert_eq!(scene.values(&at).await, ["a"]);
    assert_eq!(scene.committed(&group, &at).await, None);
}

/// A poll that waits ends when its session is closed.
pub async fn closing_ends_a_waiting_poll(scene: Scene) {
    let topic = scene.topic(1).await;
    let mut member = scene.join(&scene.group(), &topic).await;
    member.until_owning(1).await;
    let mut poll = member.session.poll();
    assert!(once(&mut poll).await.is_none(), "there is nothing to tell");
    let both = async { tokio::join!(poll, member.session.close()) };
    let (polled, closed) = scene.soon("the end of both", both).await;
    closed.unwrap();
    assert_eq!(code(polled), "log.closed");
}

/// A buffer smaller than any record holds nothing up, and neither does a name or a short heartbeat.
pub async fn a_member_with_the_smallest_buffer_gets_everything(scene: Scene) {
    let topic = scene.topic(2).await;
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    for at in &all {
        scene.append_numbers(at, 20).await;
    }
    let join = Join {
        name: Some("eventbus-orders-retry-1".to_owned()),
        buffer: Some(1),
        max_heartbeat: Duration::from_millis(200),
        ..Join::new(scene.group(), vec![topic])
    };
    let mut member = scene.join_as(join).await;
    member.until_seen(40).await;
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    for at in &all {
        assert_eq!(member.values(at), expected);
    }
}
