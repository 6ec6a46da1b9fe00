//! Rules of answers that are lost: the log has done what it was asked, and nobody heard of it.

use tidegate_core::books::{Place, Tally};
use tidegate_core::{EventId, GroupName, Offset};

use super::member::Member;
use super::scene::{Scene, Written, append_to};
use crate::{LogError, OffsetCommit, RecordPosition, TopicPartition};

/// An append whose answer is lost adds its record once, and if it is answered in the end, that is
/// where it lies.
pub async fn t25_a_lost_answer_repeats_no_record(scene: Scene) {
    let mut scene = scene.over_a_bad_line().await;
    let at = TopicPartition::new(scene.topic(1).await, 0);
    for value in ["a", "b", "c"] {
        let lost = scene.stage.answers_lost();
        scene.stage.lose_next_answer(Written::Append);
        let answer = scene.log.append(vec![append_to(&at, value)]).await;
        assert_eq!(scene.stage.answers_lost(), lost + 1, "an answer was lost");
        match answer {
            Ok(given) => {
                let last = scene.everything(&at).await.pop().unwrap();
                assert_eq!(given[0].offset, last.offset);
            }
            Err(error) => {
                let promises = scene.stage.promises();
                assert!(!promises.answers_in_the_end, "{error}");
                assert_outcome_unknown(&error);
                scene = scene.reopened().await;
            }
        }
    }
    assert_eq!(scene.values(&at).await, ["a", "b", "c"]);
}

/// A commit of records and offsets whose answer is lost is whole, and what is committed says so.
/// A caller that goes by that does each thing once.
pub async fn a_commit_of_records_whose_answer_is_lost_is_done_once(scene: Scene) {
    let scene = scene.over_a_bad_line().await;
    let out = TopicPartition::new(scene.topic(1).await, 0);
    let scene = commit_with_lost_answers(scene, Some(&out)).await;
    assert_eq!(scene.values_once(&out, 3).await, ["2", "5", "9"]);
}

/// A commit of offsets alone whose answer is lost is counted once in the books.
pub async fn a_commit_of_offsets_whose_answer_is_lost_is_counted_once(scene: Scene) {
    let scene = scene.over_a_bad_line().await;
    commit_with_lost_answers(scene, None).await;
}

/// Commits that are called one behind the other, of which the first loses its answer: whatever was
/// committed in the end is in the books without a hole.
pub async fn commits_behind_one_whose_answer_is_lost_leave_no_hole_in_the_books(scene: Scene) {
    let mut scene = scene.over_a_bad_line().await;
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let events = scene.append_events(&at, 10).await;
    let mut member = scene.join(&group, &at.topic).await;
    member.until_owning(1).await;
    let settling = |member: &Member, from: usize, to: usize| {
        vec![member.settling(&at, &events[from..to], Place::Delivered)]
    };
    let first = settling(&member, 0, 2);
    member.commit(Vec::new(), first).await.unwrap();
    let lost = scene.stage.answers_lost();
    scene.stage.lose_next_answer(Written::Commit);
    let call = |from, to| member.commit(Vec::new(), settling(&member, from, to));
    let (one, two, three) = tokio::join!(call(2, 5), call(5, 7), call(7, 9));
    assert_eq!(scene.stage.answers_lost(), lost + 1, "an answer was lost");
    let is_ok = [one, two, three].iter().all(Result::is_ok);
    if !is_ok {
        drop(member);
        scene = scene.reopened().await;
        member = scene.join(&group, &at.topic).await;
        member.until_owning(1).await;
    }
    let committed = scene.committed(&group, &at).await.unwrap();
    let done = events.partition_point(|(offset, _)| *offset < committed.next);
    assert!(!is_ok || done == 9, "{committed:?}");
    let sum = |events: &[(Offset, EventId)]| {
        let ids = events.iter().map(|(_, id)| Tally::of(*id));
        ids.fold(Tally::default(), Tally::plus)
    };
    let settled = scene.settled(&group, &at.topic).await;
    assert_eq!(settled, sum(&events[..done]));
    let rest = settling(&member, done, 10);
    member.commit(Vec::new(), rest).await.unwrap();
    assert_eq!(scene.settled(&group, &at.topic).await, sum(&events));
}

/// Settles ten events in three commits, of which each loses its answer.
async fn commit_with_lost_answers(scene: Scene, out: Option<&TopicPartition>) -> Scene {
    let mut scene = scene;
    let at = TopicPartition::new(scene.topic(1).await, 0);
    let group = scene.group();
    let events = scene.append_events(&at, 10).await;
    let mut member = scene.join(&group, &at.topic).await;
    member.until_owning(1).await;
    // The first one with records makes what later ones have already; that is not what is tried here.
    let nothing = out.map(|out| append_to(out, "2")).into_iter().collect();
    let first = member.settling(&at, &events[..2], Place::Delivered);
    member.commit(nothing, vec![first]).await.unwrap();
    for (count, (from, to)) in (1..).zip([(2, 5), (5, 9)]) {
        let lost = scene.stage.answers_lost();
        scene.stage.lose_next_answer(Written::Commit);
        let settling = |member: &Member| member.settling(&at, &events[from..to], Place::Delivered);
        let answer = commit(&member, out, to, settling(&member)).await;
        assert_eq!(scene.stage.answers_lost(), lost + 1, "an answer was lost");
        if let Err(error) = answer {
            assert_outcome_unknown(&error);
            drop(member);
            scene = scene.reopened().await;
            let is_done = is_committed(&scene, &group, &at, events[to - 1]).await;
            if let Some(out) = out {
                let found = scene.values_once(out, count + usize::from(is_done)).await;
                assert_eq!(found.contains(&to.to_string()), is_done, "{found:?}");
            }
            member = scene.join(&group, &at.topic).await;
            member.until_owning(1).await;
            if !is_done {
                commit(&member, out, to, settling(&member)).await.unwrap();
            }
        }
        assert!(is_committed(&scene, &group, &at, events[to - 1]).await);
        let expected = events[..to]
            .iter()
            .fold(Tally::default(), |sum, (_, id)| sum.plus(Tally::of(*id)));
        assert_eq!(scene.settled(&group, &at.topic).await, expected);
    }
    scene
}

async fn commit(
    member: &Member,
    out: Option<&TopicPartition>,
    number: usize,
    settling: OffsetCommit,
) -> Result<Vec<RecordPosition>, LogError> {
    let appends = out.map(|out| append_to(out, &number.to_string()));
    member
        .commit(appends.into_iter().collect(), vec![settling])
        .await
}

async fn is_committed(
    scene: &Scene,
    group: &GroupName,
    at: &TopicPartition,
    (last, _): (Offset, EventId),
) -> bool {
    let committed = scene.committed(group, at).await;
    committed.is_some_and(|committed| committed.next > last)
}

/// Errors that say nothing about what was done.
fn assert_outcome_unknown(error: &LogError) {
    let is_unknown = matches!(
        error,
        LogError::OutcomeUnknown { .. } | LogError::Stopped { .. }
    );
    assert!(is_unknown, "{error}");
}
