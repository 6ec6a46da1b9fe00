//! Beside the file and not in it, because the interleavings take the file a second time.

use tidegate_core::Topic;

use crate::commit_order::{CommitTicket, CommitTickets, fail};
use crate::error::LogError;
use crate::record::TopicPartition;

fn at(number: i32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), number)
}

fn tickets(partition: &CommitTicket) -> CommitTickets {
    CommitTickets::new(vec![(at(0), partition.next())])
}

/// A call that was submitted and failed, and whose caller has not seen that.
fn refused(partition: &CommitTicket) -> CommitTickets {
    let mut tickets = tickets(partition);
    tickets.mark_submitted();
    fail(&tickets.to_vec());
    tickets
}

#[test]
fn a_failure_rejects_tickets_taken_before_its_caller_saw_it() {
    let partition = CommitTicket::default();
    let (mut first, mut second) = (tickets(&partition), tickets(&partition));
    first.mark_submitted();
    assert!(first.check().is_ok() && second.check().is_ok());
    first.acknowledge::<()>(&Err(LogError::Closed));
    let refused = second.check();
    assert!(matches!(
        refused,
        Err(LogError::PrecedingCommitFailed { .. })
    ));
    let mut third = tickets(&partition);
    second.acknowledge(&refused);
    assert!(third.check().is_ok(), "a refusal that follows counts once");
    third.acknowledge(&Ok(()));
}

#[test]
fn a_failure_that_no_caller_saw_rejects_later_tickets_too() {
    let partition = CommitTicket::default();
    let mut first = refused(&partition);
    for _ in 0..2 {
        let mut second = tickets(&partition);
        let refused = second.check();
        assert!(refused.is_err());
        second.acknowledge(&refused);
    }
    first.acknowledge::<()>(&Err(LogError::Closed));
    assert!(tickets(&partition).check().is_ok());
}

#[test]
fn a_failure_that_nobody_waits_for_is_reported_by_the_next_rejection() {
    // Refused and then dropped, dropped and then refused, dropped before it was submitted.
    for case in 0..3 {
        let partition = CommitTicket::default();
        let mut first = tickets(&partition);
        let held = first.to_vec();
        match case {
            0 => fail(&held),
            1 => first.mark_submitted(),
            _ => {}
        }
        drop(first);
        if case == 1 {
            fail(&held);
        }
        drop(held);
        let mut second = tickets(&partition);
        let third = tickets(&partition);
        let refused = second.check();
        assert!(refused.is_err() && third.check().is_err(), "case {case}");
        second.acknowledge(&refused);
        assert!(tickets(&partition).check().is_ok(), "case {case}");
    }
}

#[test]
fn an_error_of_another_kind_does_not_report_a_dropped_call() {
    let partition = CommitTicket::default();
    drop(tickets(&partition));
    let mut second = tickets(&partition);
    second.acknowledge::<()>(&Err(LogError::Closed));
    assert!(tickets(&partition).check().is_err());
}

#[test]
fn a_refusal_for_one_partition_is_a_failure_of_the_others() {
    let (one, two) = (CommitTicket::default(), CommitTicket::default());
    let mut first = tickets(&one);
    let mut both = CommitTickets::new(vec![(at(0), one.next()), (at(1), two.next())]);
    let mut behind = CommitTickets::new(vec![(at(1), two.next())]);
    first.acknowledge::<()>(&Err(LogError::Closed));
    let refused = both.check();
    assert!(behind.check().is_ok());
    fail(&both.to_vec());
    assert!(behind.check().is_err());
    both.acknowledge(&refused);
    behind.acknowledge::<()>(&Err(LogError::PrecedingCommitFailed { at: at(1) }));
    assert!(!one.next().is_rejected() && !two.next().is_rejected());
}

#[test]
fn a_late_failure_of_an_answered_call_changes_nothing() {
    let partition = CommitTicket::default();
    let mut first = tickets(&partition);
    first.mark_submitted();
    let held = first.to_vec();
    first.acknowledge::<()>(&Err(LogError::Closed));
    let second = tickets(&partition);
    fail(&held);
    assert!(second.check().is_ok() && tickets(&partition).check().is_ok());
}

#[test]
fn a_failure_rejects_no_earlier_tickets_and_ended_ones_are_removed() {
    let partition = CommitTicket::default();
    let (mut first, mut second) = (tickets(&partition), tickets(&partition));
    second.acknowledge::<()>(&Err(LogError::Closed));
    assert!(first.check().is_ok());
    first.acknowledge(&Ok(()));
    drop((first, second));
    assert!(partition.is_empty());
}

#[test]
fn a_call_that_is_dropped_before_it_is_submitted_has_failed() {
    let partition = CommitTicket::default();
    let (first, mut second) = (tickets(&partition), tickets(&partition));
    drop(first);
    let refused = second.check();
    assert!(refused.is_err());
    second.acknowledge(&refused);
    let (mut third, fourth) = (tickets(&partition), tickets(&partition));
    third.mark_submitted();
    drop(third);
    assert!(fourth.check().is_ok(), "whoever has it says how it ends");
}
