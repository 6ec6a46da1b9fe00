//! Verdicts and answers.

use std::collections::HashMap;

use tidegate_logger::{ProcessStatus, StepStatus};

use super::judge::{KnownEvent, PostVerdict, judge};
use super::*;

fn id(n: u128) -> EventId {
    EventId::from_u128(n)
}

fn incoming(n: u128, key: &str, mood: u32) -> IncomingEvent {
    IncomingEvent {
        event: Arc::new(PostedEvent {
            event_id: id(n),
            has_own_id: true,
            key: key.to_owned(),
            body: format!(r#"{{"mood":{mood}}}"#),
            kind: ProcessStatus::Step,
            outcome: StepStatus::Success,
            application_id: "app".to_owned(),
            correlation_id: format!("c{mood}"),
            process_name: "CheckIn".to_owned(),
            target_system: "A".to_owned(),
            originating_system: "B".to_owned(),
            batch_id: None,
            account_id: None,
            trace_id: None,
            step_sequence: None,
            at_us: 0,
            words: Vec::new(),
        }),
        execution_id: id(n + 100),
        logger: None,
    }
}

#[test]
fn a_group_is_judged_against_the_store_and_against_itself() {
    let stored = KnownEvent {
        id: 9,
        event_id: id(1),
        execution_id: id(50),
        logger: None,
        body: r#"{"mood":1}"#.to_owned(),
    };
    let known = HashMap::from([("a".to_owned(), stored)]);
    let events = [
        incoming(1, "a", 1),
        incoming(2, "a", 1),
        incoming(3, "a", 2),
        incoming(4, "b", 1),
        incoming(4, "b", 1),
        incoming(5, "b", 2),
    ];
    let repeat = |is_alias| PostVerdict::Repeat {
        id: 9,
        execution_id: id(50),
        is_alias,
    };
    let expect = [
        repeat(false),
        repeat(true),
        PostVerdict::Conflict,
        PostVerdict::New,
        PostVerdict::RepeatOf {
            index: 3,
            is_alias: false,
        },
        PostVerdict::Conflict,
    ];
    assert_eq!(judge(&events, &known), expect);
}

#[test]
fn a_repeat_by_another_logger_counts_for_it() {
    let from = |logger: Option<&str>| IncomingEvent {
        logger: logger.map(Into::into),
        ..incoming(1, "a", 1)
    };
    let is_alias = |stored: Option<&str>, repeated: Option<&str>| {
        let stored = KnownEvent {
            id: 9,
            event_id: id(1),
            execution_id: id(50),
            logger: stored.map(str::to_owned),
            body: r#"{"mood":1}"#.to_owned(),
        };
        let known = HashMap::from([("a".to_owned(), stored)]);
        match judge(&[from(repeated)], &known).remove(0) {
            PostVerdict::Repeat { is_alias, .. } => is_alias,
            verdict @ (PostVerdict::New | PostVerdict::RepeatOf { .. } | PostVerdict::Conflict) => {
                panic!("{verdict:?}")
            }
        }
    };
    for (stored, repeated, expect) in [
        (None, None, false),
        (Some("x"), Some("x"), false),
        (Some("x"), Some("y"), true),
        (None, Some("x"), true),
        // Nobody compares the events of senders without books.
        (Some("x"), None, false),
    ] {
        assert_eq!(
            is_alias(stored, repeated),
            expect,
            "{stored:?} {repeated:?}"
        );
        let group = [from(stored), from(repeated)];
        let is_alias = expect;
        let verdict = PostVerdict::RepeatOf { index: 0, is_alias };
        assert_eq!(judge(&group, &HashMap::new())[1], verdict);
    }
}

#[test]
fn the_answer_to_a_batch_adds_up() {
    let events = [
        Ok(incoming(1, "a", 1)),
        Err(InvalidEvent::one("processStatus", "missing")),
        Ok(incoming(2, "b", 1)),
        Ok(incoming(3, "c", 2)),
    ];
    let outcomes = [
        PostOutcome::Stored {
            execution_id: id(101),
        },
        PostOutcome::Repeated {
            execution_id: id(77),
        },
        PostOutcome::Conflict,
    ];
    let answer = BatchAnswer::of(&events, &outcomes, Some("nightly-7".to_owned()));
    assert!(!answer.success);
    assert_eq!((answer.total_received, answer.total_inserted), (4, 1));
    assert_eq!((answer.total_duplicates, answer.errors.len()), (1, 2));
    assert_eq!(answer.execution_ids, [id(101), id(77)]);
    assert_eq!(answer.correlation_ids, ["c1"]);
    assert_eq!(answer.errors[0].error, "missing processStatus");
    assert_eq!(
        (answer.errors[1].index, answer.errors[1].code),
        (3, "idempotency.conflict")
    );
}
