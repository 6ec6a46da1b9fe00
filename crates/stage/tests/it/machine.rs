//! The machine of a shard, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Offset, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_log::{
    Assignment, Batch, Commit, Committed, Fence, Record, SessionEvent, StoredRecord, TopicPartition,
};
use tidegate_stage::operators::{ChainOptions, TaskChain};
use tidegate_stage::recovery::RecoveredTask;
use tidegate_stage::{Effect, Machine, MachineInput, MachineOptions, SinkTopic};

const FLOW: &str = "process p receive orders transform state.n = state.n + 1 n = state.n emit to totals \
                    state local n keyed by customer type counter end";

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

fn sink(name: &str) -> (String, SinkTopic) {
    let sink = SinkTopic {
        topic: topic(name),
        partitions: 1,
        max_record_bytes: 1_000_000,
    };
    (name.to_owned(), sink)
}

fn machine() -> Machine {
    let plan = check_flows(&[FLOW], &Registered::default()).plan.unwrap();
    let plan = Arc::new(plan);
    let options = MachineOptions {
        cluster: "test".to_owned(),
        inputs: vec![topic("orders")],
        partitions: 1,
        sinks: BTreeMap::from([sink("totals"), sink("p_dlq")]),
        changelog: topic("stage.p.changelog"),
        epoch_records: 10,
        epoch_interval: Duration::from_millis(100),
        epoch_bytes: 1_000_000,
        rolls_base: true,
        clean_interval: Duration::from_secs(300),
        group: "p".to_owned(),
    };
    let new_operators = move || {
        let options = ChainOptions {
            is_repartitioned: false,
            ..ChainOptions::default()
        };
        let chain = TaskChain::new(Arc::clone(&plan), "p", options).unwrap();
        Ok(Box::new(chain) as Box<_>)
    };
    Machine::new(options, Arc::new(new_operators))
}

fn orders() -> TopicPartition {
    TopicPartition::new(topic("orders"), 0)
}

/// The partition is ours from now on, and nothing was ever committed.
fn assign(machine: &mut Machine, fence: Fence, now: i64) {
    let assignment = Assignment {
        at: orders(),
        fence,
        committed: None,
        position: Offset(0),
    };
    let event = SessionEvent::Assigned(vec![assignment]);
    let effects = machine.step(MachineInput::Session(event), now);
    assert!(
        matches!(&effects[..], [Effect::Recover { .. }]),
        "{effects:?}"
    );
    let recovered = MachineInput::Recovered {
        partition: 0,
        fence,
        recovered: Ok(RecoveredTask::first(0)),
    };
    machine.step(recovered, now);
}

/// Records arrive.
fn arrive(
    machine: &mut Machine,
    fence: Fence,
    offsets: std::ops::Range<i64>,
    now: i64,
) -> Vec<Effect> {
    let next = Offset(offsets.end);
    let records = offsets.map(|offset| StoredRecord {
        offset: Offset(offset),
        record: Record::new(r#"{"customer":"a"}"#).timestamp_ms(1),
    });
    let batch = Batch {
        at: orders(),
        records: records.collect(),
        next,
    };
    let event = SessionEvent::Records { fence, batch };
    machine.step(MachineInput::Session(event), now)
}

/// The commit among these effects.
fn commit_of(effects: Vec<Effect>) -> Commit {
    for effect in effects {
        if let Effect::Commit(commit) = effect {
            return commit;
        }
    }
    panic!("there is a commit");
}

fn next_of(commit: &Commit) -> i64 {
    commit.offsets[0].next.0
}

/// Records arrive, and their epoch is closed.
fn epoch(machine: &mut Machine, fence: Fence, offsets: std::ops::Range<i64>, now: i64) -> Commit {
    arrive(machine, fence, offsets, now);
    let mut commits = machine.step(MachineInput::Tick, now + 100).into_iter();
    match commits.next() {
        Some(Effect::Commit(commit)) => commit,
        other => panic!("no commit: {other:?}"),
    }
}

/// R02, R04, R08: the partition was lost and came back while a commit was on its way. Its answer says nothing about
/// the new task.
#[test]
fn r08_a_late_answer_is_not_taken_for_that_of_a_new_task() {
    let mut machine = machine();
    assign(&mut machine, Fence(1), 1_000);
    epoch(&mut machine, Fence(1), 0..3, 1_000);
    machine.step(
        MachineInput::Session(SessionEvent::Lost(vec![orders()])),
        1_200,
    );
    assign(&mut machine, Fence(2), 1_300);
    machine.step(MachineInput::Committed(None), 1_350);
    let status = machine.tasks().next().unwrap();
    assert_eq!((status.epoch, status.entries), (0, 0));
    // It goes on with its own first epoch.
    let commit = epoch(&mut machine, Fence(2), 0..3, 1_360);
    assert_eq!(commit.offsets[0].fence, Fence(2));
    assert!(
        commit.offsets[0].metadata.starts_with("s1 e1 "),
        "{commit:?}"
    );
    machine.step(MachineInput::Committed(None), 1_700);
    assert_eq!(machine.tasks().next().unwrap().epoch, 1);
}

/// R02: nobody can tell what became of a commit. The stage must not go on from a guess.
#[test]
fn r02_a_commit_of_which_nobody_can_tell_ends_the_shard() {
    let mut machine = machine();
    assign(&mut machine, Fence(1), 1_000);
    epoch(&mut machine, Fence(1), 0..3, 1_000);
    let unknown = tidegate_log::LogError::OutcomeUnknown {
        doing: "a commit",
        why: "the connection broke".to_owned(),
    };
    let effects = machine.step(MachineInput::CommitUnknown(unknown), 1_300);
    let [Effect::Fail(failure)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(failure.code.as_str(), "stage.commit.unknown");
}

/// R05: two epochs are full when the marker comes. Records before it belong to its epoch, and those behind it
/// do not.
#[test]
fn r05_records_behind_a_marker_wait_until_its_epoch_is_closed() {
    let (mut machine, fence) = (machine(), Fence(1));
    assign(&mut machine, fence, 1_000);
    let first = commit_of(arrive(&mut machine, fence, 0..10, 1_000));
    assert_eq!(next_of(&first), 10);
    // The second one is full, and the third one has to wait.
    assert!(arrive(&mut machine, fence, 10..20, 1_000).is_empty());
    assert!(arrive(&mut machine, fence, 20..23, 1_000).is_empty());
    assert!(machine.step(MachineInput::Checkpoint, 1_001).is_empty());
    assert!(arrive(&mut machine, fence, 23..27, 1_002).is_empty());
    let again = machine.step(MachineInput::Checkpoint, 1_003);
    assert!(matches!(&again[..], [Effect::NotAligned(_)]), "{again:?}");
    let second = commit_of(machine.step(MachineInput::Committed(None), 1_004));
    assert_eq!(next_of(&second), 20);
    let aligned = commit_of(machine.step(MachineInput::Committed(None), 1_005));
    assert_eq!(next_of(&aligned), 23, "those behind the marker wait");
    let effects = machine.step(MachineInput::Committed(None), 1_006);
    let [Effect::Aligned(tasks)] = &effects[..] else {
        panic!("{effects:?}");
    };
    let (mark, offsets) = &tasks[&0];
    assert!(mark.starts_with("s1 e3 "), "{mark}");
    assert_eq!(offsets, &[(topic("orders"), 23)]);
    let last = commit_of(machine.step(MachineInput::Tick, 1_200));
    assert_eq!(next_of(&last), 27);
}

/// R05: the log does not answer for ten seconds. The marker is given up, and nothing is lost.
#[test]
fn r05_a_marker_that_does_not_arrive_is_given_up_and_loses_nothing() {
    let (mut machine, fence) = (machine(), Fence(1));
    assign(&mut machine, fence, 1_000);
    commit_of(arrive(&mut machine, fence, 0..10, 1_000));
    arrive(&mut machine, fence, 10..20, 1_000);
    arrive(&mut machine, fence, 20..23, 1_000);
    machine.step(MachineInput::Checkpoint, 1_000);
    arrive(&mut machine, fence, 23..27, 1_000);
    assert_eq!(machine.wakes_at(1_001), Some(11_000));
    assert!(machine.step(MachineInput::Tick, 10_999).is_empty());
    let late = machine.step(MachineInput::Tick, 11_000);
    assert!(matches!(&late[..], [Effect::NotAligned(_)]), "{late:?}");
    let mut next = Vec::new();
    let mut effects = machine.step(MachineInput::Committed(None), 11_001);
    while let Some(Effect::Commit(commit)) = effects.pop() {
        next.push(next_of(&commit));
        effects = machine.step(MachineInput::Committed(None), 11_200);
    }
    assert_eq!(next, [20, 27]);
}

/// R05: an epoch is taken back while its marker is on its way. The records are handled again, and the checkpoint is
/// given up.
#[test]
fn r05_an_epoch_that_is_taken_back_takes_its_marker_along() {
    let (mut machine, fence) = (machine(), Fence(1));
    assign(&mut machine, fence, 1_000);
    arrive(&mut machine, fence, 0..3, 1_000);
    let effects = machine.step(MachineInput::Checkpoint, 1_001);
    assert_eq!(next_of(&commit_of(effects)), 3);
    let fenced = tidegate_log::LogError::Fenced { at: orders() };
    let effects = machine.step(MachineInput::NotCommitted(fenced), 1_002);
    let is_given_up = |effect: &Effect| matches!(effect, Effect::NotAligned(_));
    assert!(effects.iter().any(is_given_up), "{effects:?}");
    let commit = epoch(&mut machine, fence, 0..3, 1_100);
    assert_eq!(next_of(&commit), 3);
}

/// R08: a partition goes and comes back. Its task keeps its state where nobody went on from there, and only there.
#[test]
fn r08_a_task_that_comes_back_at_its_epoch_keeps_its_state() {
    for is_same in [true, false] {
        let mut machine = machine();
        assign(&mut machine, Fence(1), 1_000);
        let commit = epoch(&mut machine, Fence(1), 0..3, 1_000);
        machine.step(MachineInput::Committed(None), 1_150);
        assert_eq!(machine.tasks().next().unwrap().epoch, 1);
        machine.step(
            MachineInput::Session(SessionEvent::Lost(vec![orders()])),
            1_200,
        );
        assert_eq!(machine.tasks().count(), 0);
        let offset = &commit.offsets[0];
        let metadata = match is_same {
            true => offset.metadata.clone(),
            false => offset.metadata.replace("e1", "e2"),
        };
        let assignment = Assignment {
            at: orders(),
            fence: Fence(2),
            committed: Some(Committed {
                next: offset.next,
                metadata,
            }),
            position: offset.next,
        };
        let event = SessionEvent::Assigned(vec![assignment]);
        let effects = machine.step(MachineInput::Session(event), 1_300);
        let recovers = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Recover { .. }));
        assert_eq!(recovers, !is_same, "{effects:?}");
        let tasks: Vec<_> = machine
            .tasks()
            .map(|task| (task.epoch, task.entries > 0))
            .collect();
        assert_eq!(tasks, if is_same { vec![(1, true)] } else { Vec::new() });
    }
}
