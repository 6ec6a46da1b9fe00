//! Rules of commits.

use tidegate_core::{GroupName, Offset, Topic};

use super::member::Member;
use super::scene::{Scene, append_to, code, offsets, once};
use crate::{Commit, Committed, Fence, MAX_METADATA, TopicPartition};

/// A group with one member that has read ten records of each of two partitions.
async fn set_out(scene: &Scene) -> (GroupName, Member, [TopicPartition; 2], Vec<Offset>) {
    let topic = scene.topic(2).await;
    let all = [0, 1].map(|number| TopicPartition::new(topic.clone(), number));
    let mut given = Vec::new();
    for at in &all {
        given = scene.append_numbers(at, 10).await;
    }
    let group = scene.group();
    let mut member = scene.join(&group, &topic).await;
    member.until_seen(20).await;
    (group, member, all, given)
}

fn done(next: Offset, metadata: &str) -> Option<Committed> {
    let metadata = metadata.to_owned();
    Some(Committed { next, metadata })
}

/// A committed offset reads back with its metadata, by partition; later ones take its place.
pub async fn an_offset_reads_back_with_its_metadata(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    let found = scene.log.committed(&group, &all).await.unwrap();
    assert_eq!(found, [None, None]);
    let first = vec![member.offset(&all[1], given[2], "v1 {\"gaps\":[3,5]}")];
    member.commit(Vec::new(), first).await.unwrap();
    let both = vec![
        member.offset(&all[0], given[4], ""),
        member.offset(&all[1], given[6], "v2 ~!@#"),
    ];
    let asked = [all[1].clone(), all[0].clone()];
    let found = scene.log.committed(&group, &asked).await.unwrap();
    assert_eq!(found, [done(given[2], "v1 {\"gaps\":[3,5]}"), None]);
    member.commit(Vec::new(), both).await.unwrap();
    let found = scene.log.committed(&group, &asked).await.unwrap();
    assert_eq!(found, [done(given[6], "v2 ~!@#"), done(given[4], "")]);
    let same = vec![member.offset(&all[1], given[6], "v3")];
    member.commit(Vec::new(), same).await.unwrap();
    assert_eq!(scene.committed(&group, &all[1]).await, done(given[6], "v3"));
}

/// Metadata up to the limit is kept; above it, or not plain ASCII, it is refused by name and
/// changes nothing.
pub async fn metadata_has_a_limit_with_a_name(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    let longest = "m".repeat(MAX_METADATA);
    let fits = vec![member.offset(&all[0], given[1], &longest)];
    member.commit(Vec::new(), fits).await.unwrap();
    assert_eq!(
        scene.committed(&group, &all[0]).await,
        done(given[1], &longest)
    );
    let too_long = "m".repeat(MAX_METADATA + 1);
    for (wrong, name) in [
        (too_long.as_str(), "log.metadata-too-long"),
        ("gr\u{fc}n", "log.metadata-not-ascii"),
        ("line\n", "log.metadata-not-ascii"),
    ] {
        let both = vec![
            member.offset(&all[1], given[5], "fine"),
            member.offset(&all[0], given[5], wrong),
        ];
        let appends = vec![append_to(&all[0], "beside")];
        assert_eq!(code(member.commit(appends, both).await), name);
    }
    assert_eq!(
        scene.committed(&group, &all[0]).await,
        done(given[1], &longest)
    );
    assert_eq!(scene.committed(&group, &all[1]).await, None);
    assert_eq!(scene.values(&all[0]).await.len(), 10);
}

/// Records and offsets of one commit are there together, in the order of the call, also after a
/// restart.
pub async fn t20_records_and_offsets_are_committed_together(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    let out: Topic = scene.topic(2).await;
    let to = [0, 1].map(|number| TopicPartition::new(out.clone(), number));
    let appends = vec![
        append_to(&to[1], "x"),
        append_to(&to[0], "y"),
        append_to(&to[1], "z"),
    ];
    let settled = vec![
        member.offset(&all[0], given[3], "epoch 1"),
        member.offset(&all[1], given[5], "epoch 1"),
    ];
    let positions = member.commit(appends, settled).await.unwrap();
    let at: Vec<&TopicPartition> = positions.iter().map(|position| &position.at).collect();
    assert_eq!(at, [&to[1], &to[0], &to[1]]);
    assert!(positions[2].offset > positions[0].offset);
    drop(member);
    let mut scene = scene;
    for _ in 0..2 {
        assert_eq!(scene.values_once(&to[0], 1).await, ["y"]);
        assert_eq!(scene.values_once(&to[1], 2).await, ["x", "z"]);
        let found = scene.log.committed(&group, &all).await.unwrap();
        assert_eq!(
            found,
            [done(given[3], "epoch 1"), done(given[5], "epoch 1")]
        );
        scene = scene.reopened().await;
    }
}

/// A commit that is refused leaves nothing: neither records nor offsets, now or later.
pub async fn a_refused_commit_leaves_nothing(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    let end = scene.partition(&all[1]).await.end;
    let nowhere = TopicPartition::new(Topic::new(scene.name("nowhere")).unwrap(), 0);
    let good = || member.offset(&all[0], given[5], "good");
    let appended = || vec![append_to(&all[0], "never"), append_to(&all[1], "never")];
    let stale = crate::OffsetCommit {
        fence: Fence(u64::MAX),
        ..member.offset(&all[1], given[5], "")
    };
    let behind = member.offset(&all[1], Offset(end.0 + 1), "");
    let large = "x".repeat(5 * 1024 * 1024);
    let with = |at: &TopicPartition, value: &str| {
        let mut appends = appended();
        appends.push(append_to(at, value));
        appends
    };
    for (appends, offsets, name) in [
        (appended(), vec![good(), stale], "log.fenced"),
        (appended(), vec![good(), behind], "log.out-of-range"),
        (with(&nowhere, "x"), vec![good()], "log.unknown-topic"),
        (with(&all[0], &large), vec![good()], "log.record-too-large"),
    ] {
        assert_eq!(code(member.commit(appends, offsets).await), name);
    }
    drop(member);
    let mut scene = scene;
    for _ in 0..2 {
        assert_eq!(
            scene.log.committed(&group, &all).await.unwrap(),
            [None, None]
        );
        for at in &all {
            let found = scene.values(at).await;
            assert!(!found.contains(&"never".to_owned()), "{found:?}");
        }
        scene = scene.reopened().await;
    }
}

/// After a commit that was refused the member goes on committing.
pub async fn a_refused_commit_does_not_end_the_session(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    let end = scene.partition(&all[0]).await.end;
    let refused = member.commit_to(&all[0], Offset(end.0 + 1)).await;
    assert_eq!(code(refused), "log.out-of-range");
    let settled = vec![member.offset(&all[0], given[5], "")];
    let positions = member
        .commit(vec![append_to(&all[1], "next")], settled)
        .await
        .unwrap();
    assert_eq!(offsets(&positions).len(), 1);
    assert_eq!(scene.values_once(&all[1], 11).await.len(), 11);
    assert_eq!(scene.committed(&group, &all[0]).await, done(given[5], ""));
}

/// A commit below what is committed is refused by name and changes nothing.
pub async fn t22_a_commit_never_goes_back(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    member.commit_to(&all[0], given[6]).await.unwrap();
    let back = vec![
        member.offset(&all[1], given[2], "beside"),
        member.offset(&all[0], given[5], "back"),
    ];
    assert_eq!(
        code(member.commit(Vec::new(), back).await),
        "log.offset-regressed"
    );
    let found = scene.log.committed(&group, &all).await.unwrap();
    assert_eq!(found, [done(given[6], ""), None]);
    member.commit_to(&all[0], given[7]).await.unwrap();
    drop(member);
    let mut next = scene.join(&group, &all[0].topic).await;
    next.until_owning(2).await;
    assert_eq!(
        code(next.commit_to(&all[0], given[6]).await),
        "log.offset-regressed"
    );
}

/// A commit of nothing does nothing.
pub async fn an_empty_commit_does_nothing(scene: Scene) {
    let (group, member, all, _) = set_out(&scene).await;
    let before = scene.partition(&all[0]).await;
    let positions = member.commit(Vec::new(), Vec::new()).await.unwrap();
    assert_eq!(offsets(&positions), Vec::<i64>::new());
    assert_eq!(scene.partition(&all[0]).await, before);
    assert_eq!(scene.committed(&group, &all[0]).await, None);
}

/// A commit of records alone adds them.
pub async fn a_commit_of_records_alone_adds_them(scene: Scene) {
    let (group, member, all, _) = set_out(&scene).await;
    let appends = vec![append_to(&all[0], "a"), append_to(&all[1], "b")];
    let positions = member.commit(appends, Vec::new()).await.unwrap();
    assert_eq!(positions.len(), 2);
    assert_eq!(scene.values_once(&all[0], 11).await[10], "a");
    assert_eq!(scene.values_once(&all[1], 11).await[10], "b");
    assert_eq!(
        scene.log.committed(&group, &all).await.unwrap(),
        [None, None]
    );
}

/// Of two commits under way the later one stays, and one that would go back behind an earlier one is
/// refused, whichever is done first.
pub async fn t23_commits_under_way_keep_their_order(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    for (first, second) in [(1, 3), (4, 6), (7, 9)] {
        let one = member.commit_to(&all[0], given[first]);
        let two = member.commit_to(&all[0], given[second]);
        let (one, two) = tokio::join!(one, two);
        one.unwrap();
        two.unwrap();
        assert_eq!(
            scene.committed(&group, &all[0]).await,
            done(given[second], "")
        );
    }
    let one = member.commit_to(&all[1], given[5]);
    let two = member.commit_to(&all[1], given[3]);
    let (one, two) = tokio::join!(one, two);
    one.unwrap();
    assert_eq!(code(two), "log.offset-regressed");
    assert_eq!(scene.committed(&group, &all[1]).await, done(given[5], ""));
}

/// A commit that brings records is not overtaken by one behind it that brings none. This holds also
/// when its topic is heard of for the first time. A question for what is committed waits for both.
pub async fn t23_a_commit_with_records_is_not_overtaken(scene: Scene) {
    let out = TopicPartition::new(scene.topic(1).await, 0);
    let scene = scene.reopened().await;
    let (group, member, all, given) = set_out(&scene).await;
    let mut first = member.session.commit(Commit {
        appends: vec![append_to(&out, "handed off")],
        offsets: vec![member.offset(&all[0], given[3], "")],
    });
    let mut second = member.session.commit(Commit {
        appends: Vec::new(),
        offsets: vec![member.offset(&all[0], given[6], "")],
    });
    // Begun one behind the other, and not waited for.
    let mut answers = [once(&mut first).await, once(&mut second).await];
    let look = scene.committed(&group, &all[0]);
    let waiting = async {
        if answers[0].is_none() {
            answers[0] = Some(first.await);
        }
        if answers[1].is_none() {
            answers[1] = Some(second.await);
        }
    };
    let (found, ()) = scene
        .soon("both commits", async { tokio::join!(look, waiting) })
        .await;
    assert_eq!(found, done(given[6], ""));
    for answer in answers {
        answer.unwrap().unwrap();
    }
    assert_eq!(scene.values_once(&out, 1).await, ["handed off"]);
}

/// Reading what is committed waits for commits that began before.
pub async fn t24_a_committed_read_waits_for_commits_under_way(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    for next in &given {
        let settled = vec![member.offset(&all[0], *next, "")];
        let mut commit = member.session.commit(Commit {
            appends: vec![append_to(&all[1], "out")],
            offsets: settled,
        });
        // Begun, and not waited for.
        let mut answer = once(&mut commit).await;
        assert_eq!(scene.committed(&group, &all[0]).await, done(*next, ""));
        if answer.is_none() {
            answer = Some(scene.soon("the commit", commit).await);
        }
        answer.unwrap().unwrap();
    }
    assert_eq!(scene.values_once(&all[1], 20).await.len(), 20);
}

/// Whatever becomes of a commit that was canceled, it is whole or not there, and what is committed
/// says which.
pub async fn t20_a_canceled_commit_is_whole_or_not_there(scene: Scene) {
    let (group, member, all, given) = set_out(&scene).await;
    let mut written = 0;
    for (count, next) in given.iter().enumerate() {
        let value = format!("out {count}");
        let mut commit = member.session.commit(Commit {
            appends: vec![append_to(&all[1], &value)],
            offsets: vec![member.offset(&all[0], *next, "")],
        });
        drop(once(&mut commit).await);
        drop(commit);
        let committed = scene.committed(&group, &all[0]).await;
        let is_done = committed.is_some_and(|committed| committed.next == *next);
        written += usize::from(is_done);
        let values = scene.values_once(&all[1], 10 + written).await;
        assert_eq!(values.contains(&value), is_done, "{value}");
    }
}
