//! Beside the file and not in it, because the interleavings take the file a second time.

use tidegate_core::Topic;

use crate::error::LogError;
use crate::record::TopicPartition;
use crate::turn::{Turn, Turns, fail};

fn at(number: i32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), number)
}

fn turns(partition: &Turn) -> Turns {
    Turns::new(vec![(at(0), partition.next())])
}

/// A call that is in line, refused there, and has not heard of it.
fn refused(partition: &Turn) -> Turns {
    let mut turns = turns(partition);
    turns.in_line();
    fail(&turns.held());
    turns
}

#[test]
fn a_failure_ends_the_turns_taken_before_it_was_told() {
    let partition = Turn::default();
    let (mut first, mut second) = (turns(&partition), turns(&partition));
    first.in_line();
    assert!(first.check().is_ok() && second.check().is_ok());
    first.told::<()>(&Err(LogError::Closed));
    let refused = second.check();
    assert!(matches!(
        refused,
        Err(LogError::PrecedingCommitFailed { .. })
    ));
    let mut third = turns(&partition);
    second.told(&refused);
    assert!(third.check().is_ok(), "a refusal that follows counts once");
    third.told(&Ok(()));
}

#[test]
fn a_failure_that_was_not_told_ends_the_turns_taken_after_it_too() {
    let partition = Turn::default();
    let mut first = refused(&partition);
    for _ in 0..2 {
        let mut second = turns(&partition);
        let refused = second.check();
        assert!(refused.is_err());
        second.told(&refused);
    }
    first.told::<()>(&Err(LogError::Closed));
    assert!(turns(&partition).check().is_ok());
}

#[test]
fn a_failure_that_nobody_waits_for_is_told_by_the_next_refusal() {
    // Refused and then dropped, dropped and then refused, dropped before it was in line.
    for case in 0..3 {
        let partition = Turn::default();
        let mut first = turns(&partition);
        let held = first.held();
        match case {
            0 => fail(&held),
            1 => first.in_line(),
            _ => {}
        }
        drop(first);
        if case == 1 {
            fail(&held);
        }
        drop(held);
        let mut second = turns(&partition);
        let third = turns(&partition);
        let refused = second.check();
        assert!(refused.is_err() && third.check().is_err(), "case {case}");
        second.told(&refused);
        assert!(turns(&partition).check().is_ok(), "case {case}");
    }
}

#[test]
fn an_error_of_another_kind_does_not_tell_of_a_call_that_was_dropped() {
    let partition = Turn::default();
    drop(turns(&partition));
    let mut second = turns(&partition);
    second.told::<()>(&Err(LogError::Closed));
    assert!(turns(&partition).check().is_err());
}

#[test]
fn a_refusal_for_one_partition_is_a_failure_of_the_others() {
    let (one, two) = (Turn::default(), Turn::default());
    let mut first = turns(&one);
    let mut both = Turns::new(vec![(at(0), one.next()), (at(1), two.next())]);
    let mut behind = Turns::new(vec![(at(1), two.next())]);
    first.told::<()>(&Err(LogError::Closed));
    let refused = both.check();
    assert!(behind.check().is_ok());
    fail(&both.held());
    assert!(behind.check().is_err());
    both.told(&refused);
    behind.told::<()>(&Err(LogError::PrecedingCommitFailed { at: at(1) }));
    assert!(!one.next().is_over() && !two.next().is_over());
}

#[test]
fn what_is_heard_late_of_a_call_that_was_answered_changes_nothing() {
    let partition = Turn::default();
    let mut first = turns(&partition);
    first.in_line();
    let held = first.held();
    first.told::<()>(&Err(LogError::Closed));
    let second = turns(&partition);
    fail(&held);
    assert!(second.check().is_ok() && turns(&partition).check().is_ok());
}

#[test]
fn a_failure_leaves_earlier_turns_alone_and_nothing_is_kept_of_those_that_ended() {
    let partition = Turn::default();
    let (mut first, mut second) = (turns(&partition), turns(&partition));
    second.told::<()>(&Err(LogError::Closed));
    assert!(first.check().is_ok());
    first.told(&Ok(()));
    drop((first, second));
    assert!(partition.is_forgotten());
}

#[test]
fn a_call_that_is_dropped_before_it_is_in_line_has_failed() {
    let partition = Turn::default();
    let (first, mut second) = (turns(&partition), turns(&partition));
    drop(first);
    let refused = second.check();
    assert!(refused.is_err());
    second.told(&refused);
    let (mut third, fourth) = (turns(&partition), turns(&partition));
    third.in_line();
    drop(third);
    assert!(fourth.check().is_ok(), "whoever has it says how it ends");
}
