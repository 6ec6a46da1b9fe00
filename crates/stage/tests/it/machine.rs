//! The machine of a shard, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Offset, Topic};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_log::{
    Assignment, Batch, Commit, Fence, Record, SessionEvent, StoredRecord, TopicPartition,
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

/// Records arrive, and their epoch is closed.
fn epoch(machine: &mut Machine, fence: Fence, offsets: std::ops::Range<i64>, now: i64) -> Commit {
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
    machine.step(
        MachineInput::Session(SessionEvent::Records { fence, batch }),
        now,
    );
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
