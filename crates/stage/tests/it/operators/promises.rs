//! The promises of the runtime that a chain keeps, by their numbers.

use std::time::Duration;

use tidegate_core::books::Place;
use tidegate_core::{DeadLetter, EventId, FailureClass};
use tidegate_flow::check::{Registered, RegisteredTransform};
use tidegate_flow::expression::EvaluationFailure;
use tidegate_flow::value::{FlowType, FlowValue, MapKey};
use tidegate_stage::chain::TaskOperators;
use tidegate_stage::operators::{ChainOptions, RegisteredFunctions};

use super::harness::{Task, plan, plan_with};

const AWAIT: &str = "process p receive a receive b
    await a until b arrives matching on k timeout 7 days emit to orphans
    emit to c on error correlation failure emit to unmatched end end";

#[test]
fn r10_await_matches_in_order_and_times_out_once() {
    for restarts in [false, true] {
        let mut task = Task::alone(AWAIT, "p");
        task.restarts = restarts;
        task.put("b", 1, r#"{"k":"x"}"#);
        assert_eq!(task.texts("unmatched"), [r#"{"k":"x"}"#]);
        task.put("a", 2, r#"{"k":"x","n":1}"#);
        task.put("a", 3, r#"{"k":"x","n":2}"#);
        task.put("a", 4, r#"{"k":"y","n":3}"#);
        assert_eq!((task.pending(), task.account().parked), (3, 3));
        task.advance(Duration::from_secs(5));
        task.put("b", 5, r#"{"k":"x"}"#);
        let matched = r#"{"k":"x","a":{"k":"x","n":1},"b":{"k":"x"},"correlation_latency":5000}"#;
        assert_eq!(task.texts("c"), [matched]);
        task.advance(Duration::from_secs(7 * 86_400 - 6));
        assert_eq!(task.texts("orphans").len(), 0);
        task.advance(Duration::from_secs(1));
        task.advance(Duration::from_secs(86_400));
        let orphan =
            r#"{"k":"x","a":{"k":"x","n":2},"reason":"timeout","waited_duration":604800000}"#;
        let orphans = task.texts("orphans");
        assert_eq!((orphans.len(), orphans[0].as_str()), (2, orphan));
        let account = task.account();
        assert_eq!((account.parked, account.delivered), (0, 5));
        // Nothing is left but the progress: neither entries nor timers.
        assert_eq!((task.pending(), task.tables.rows()), (0, 0));
    }
}

#[test]
fn r11_hold_completes_by_the_declared_count_and_opens_anew() {
    let flow = "process p receive a store in h
        hold h keyed by k complete when count >= 3 timeout 1 hour emit to partial
        emit to c end";
    for restarts in [false, true] {
        let mut task = Task::alone(flow, "p");
        task.restarts = restarts;
        for number in 1..=4 {
            task.put("a", number, &format!(r#"{{"k":"x","n":{number}}}"#));
        }
        let whole = r#"{"k":"x","a":[{"k":"x","n":1},{"k":"x","n":2},{"k":"x","n":3}],"count":3}"#;
        assert_eq!(
            (task.texts("c"), task.pending()),
            (vec![whole.to_owned()], 1)
        );
        let mut due = Vec::new();
        task.chain.pending(&task.tables, &mut |one| {
            due.push((one.step, one.key, one.due_ms))
        });
        assert_eq!(
            due,
            [("hold/h".to_owned(), "x".to_owned(), task.now + 3_600_000)]
        );
        task.advance(Duration::from_secs(3_600));
        assert_eq!(task.texts("partial").len(), 1);
        assert_eq!((task.account().delivered, task.tables.rows()), (4, 0));
    }
}

#[test]
fn r12_many_pending_records_time_out_in_their_bucket() {
    let count = match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 100_000,
        None => 3_000,
    };
    let mut task = Task::alone(AWAIT, "p");
    for number in 0..count {
        task.put("a", number + 1, &format!(r#"{{"k":"k{number}"}}"#));
    }
    let due = task.chain.next_due(&task.tables).unwrap();
    assert_eq!(due, task.now + 7 * 86_400_000);
    task.now = due - 1;
    task.fire();
    assert_eq!(task.texts("orphans").len(), 0);
    task.now = due;
    let (mut turns, time) = (0, task.time());
    while task
        .chain
        .fire(&mut task.tables, time, 1_000, &mut task.out)
        .unwrap()
    {
        turns += 1;
        assert!(task.out.outputs.len() <= turns * 1_000);
    }
    assert_eq!(task.texts("orphans").len() as u128, count);
    assert_eq!(
        (task.tables.rows(), task.chain.next_due(&task.tables)),
        (0, None)
    );
}

#[test]
fn r13_late_records_correct_their_window_or_go_to_the_late_stream() {
    for (end, late) in [("late data to late", true), ("", false)] {
        let flow = format!(
            "process p time by ts receive a window tumbling 1 minute key by k
                aggregate count() as n end allowed lateness 1 minute {end} emit to b end"
        );
        let mut task = Task::alone(&flow, "p");
        task.restarts = true;
        for (number, ts) in [(1, 0), (2, 70_000), (3, 30_000), (4, 130_000), (5, 30_000)] {
            task.put("a", number, &format!(r#"{{"k":"x","ts":{ts}}}"#));
        }
        let results: Vec<String> = task.texts("b");
        assert!(results[0].contains(r#""n":1"#) && results[0].contains(r#""revision":0"#));
        assert!(results[1].contains(r#""n":2"#) && results[1].contains(r#""revision":1"#));
        assert_eq!(results.len(), 3);
        let account = task.account();
        if late {
            assert_eq!(task.texts("late"), [r#"{"k":"x","ts":30000}"#]);
            assert_eq!((account.delivered, account.dead_lettered), (5, 0));
        } else {
            let letter = DeadLetter::from_envelope(&task.texts("p_dlq")[0]).unwrap();
            assert_eq!(letter.failure.code.as_str(), "late");
            assert_eq!((account.delivered, account.dead_lettered), (4, 1));
        }
    }
}

#[test]
fn r14_expired_values_are_never_read_and_are_removed() {
    for (cleanup, by) in [
        ("on_access", "processing_time"),
        ("background", "processing_time"),
        ("on_checkpoint", "processing_time"),
        ("on_access", "event_time"),
        ("background", "event_time"),
        ("on_checkpoint", "event_time"),
    ] {
        for ttl in ["ttl", "ttl sliding", "ttl absolute"] {
            let flow = format!(
                "process p time by ts receive a transform state.m[v] = 1 m = state.m emit to b
                    state local m keyed by k type map {ttl} 10 seconds by {by} cleanup {cleanup} end end"
            );
            let mut task = Task::alone(&flow, "p");
            let start = task.now;
            let put = |task: &mut Task, number, key: &str, v: &str| {
                let ts = task.now;
                let value = format!(r#"{{"k":"{key}","v":"{v}","ts":{ts}}}"#);
                task.put("a", number, &value);
            };
            put(&mut task, 1, "x", "one");
            put(&mut task, 2, "y", "one");
            task.now = start + 10_000;
            put(&mut task, 3, "x", "two");
            let last = task.texts("b").pop().unwrap();
            assert!(last.contains(r#""m":{"two":1}"#), "{ttl} {by}: {last}");
            assert_eq!(task.values("m").len(), 1, "{ttl} {by}");
            // The rest of `y` goes in the way that is declared, and no other.
            let rows = |task: &Task| task.tables.rows_in(2);
            let before = rows(&task);
            task.advance(Duration::from_secs(5));
            let is_background = cleanup == "background";
            assert_eq!(
                before - rows(&task),
                usize::from(is_background && before == 2),
                "{ttl} {by}"
            );
            let time = task.time();
            while !task.chain.clean(&mut task.tables, time).unwrap() {}
            let is_left = cleanup == "on_access";
            assert_eq!(
                rows(&task),
                if is_left { 2 } else { 1 },
                "{cleanup} {ttl} {by}"
            );
        }
    }
}

#[test]
fn r21_a_fan_out_is_whole_or_nothing_and_has_the_same_ids_again() {
    let flow = "schema line n: integer range 1..10 end
        transform split each l.map(x, {\"n\": x}) end
        process p receive a transform using split emit to b schema line end";
    let lines = |last: u8| {
        let numbers: Vec<String> = (1..10).chain([last]).map(|n| n.to_string()).collect();
        format!(r#"{{"l":[{}]}}"#, numbers.join(","))
    };
    let mut task = Task::alone(flow, "p");
    task.put("a", 7, &lines(10));
    assert_eq!(task.texts("b").len(), 10);
    let ids: Vec<EventId> = task.out.outputs.iter().map(|output| output.id).collect();
    let id = EventId::from_u128(7).to_string();
    let derived = (0..10).map(|n| EventId::derived(&[&id, "b", &n.to_string()]));
    assert_eq!(ids, derived.collect::<Vec<_>>());
    let mut again = Task::alone(flow, "p");
    again.put("a", 7, &lines(10));
    assert_eq!(again.out.outputs, task.out.outputs);
    // The tenth breaks the schema, so there is none of the nine before it.
    task.put("a", 8, &lines(11));
    assert_eq!((task.texts("b").len(), task.texts("p_dlq").len()), (10, 1));
    let letter = DeadLetter::from_envelope(&task.texts("p_dlq")[0]).unwrap();
    assert_eq!(letter.value.unwrap(), lines(11));
}

#[test]
fn r26_an_output_that_does_not_fit_is_a_dead_letter() {
    let flow = "process p receive a
        transform state.n = state.n + 1  text = w + w + w + w  emit to b
        on commit failure emit completion to failed correlation k
        state local n keyed by k type counter end end";
    let options = ChainOptions {
        is_repartitioned: false,
        max_record_bytes: 200,
        ..ChainOptions::default()
    };
    let mut task = Task::new(&plan(flow), "p", options);
    let value = |length| format!(r#"{{"k":"x","w":"{}"}}"#, "w".repeat(length));
    task.put("a", 1, &value(10));
    task.put("a", 2, &value(60));
    task.put("a", 3, &value(10));
    assert_eq!((task.texts("b").len(), task.texts("failed").len()), (2, 1));
    let letter = DeadLetter::from_envelope(&task.texts("p_dlq")[0]).unwrap();
    assert_eq!(letter.failure.code.as_str(), "output.too_large");
    assert_eq!(letter.value.unwrap(), value(60));
    assert_eq!(
        (letter.event_id, letter.attempts),
        (EventId::from_u128(2), 1)
    );
    let kind = letter.stage.and_then(|stage| stage.failure_kind);
    assert_eq!(kind.as_deref(), Some("transform_failure"));
    // The record that failed has not counted, and the stage went on.
    assert_eq!(task.values("n")["x"], "2");
    let account = task.account();
    assert_eq!((account.delivered, account.dead_lettered), (2, 1));
}

#[test]
fn a_list_or_map_writes_the_element_that_changed() {
    let flow = "process p receive a
        transform state.m[v] = w  state.l = state.l + [v]  emit to b
        state local m keyed by k type map  local l keyed by k type list end end";
    let mut task = Task::alone(flow, "p");
    for number in 0..50 {
        task.put(
            "a",
            number + 1,
            &format!(r#"{{"k":"x","v":"v{number}","w":1}}"#),
        );
    }
    let before = task.tables.clone();
    task.put("a", 99, r#"{"k":"x","v":"v7","w":2}"#);
    let changed = task.tables.differing(&before);
    // The entry of the map, the element of the list, and the head of the list.
    assert_eq!(changed, 3);
}

#[test]
fn rust_functions_keep_state_fail_for_a_while_and_panic() {
    let mut registered = Registered::default();
    registered
        .transforms
        .insert("work".to_owned(), RegisteredTransform::default());
    registered
        .state
        .insert("seen".to_owned(), FlowType::Dynamic);
    let flow = "process p receive a transform using work emit to b
        on error transform failure retry 2 times then dead_letter dead end
        state uses seen local all keyed by k type list  local m keyed by k type map end end";
    let functions = RegisteredFunctions::default().transform("work", |record, state| {
        let n = state.reduce("seen", |before| {
            let FlowValue::Integer(n) = before.unwrap_or(FlowValue::Integer(0)) else {
                return Err(EvaluationFailure::new("expr.type", "not a number"));
            };
            Ok(FlowValue::Integer(n + 1))
        })?;
        state.append("all", &n)?;
        let key = MapKey::String("last".into());
        let last = state.entry("m", &key)?;
        state.put("m", &key, &n)?;
        match record.raw("v") {
            Some("1") => {
                let mut failure = EvaluationFailure::new("service.down", "nobody is there");
                failure.class = FailureClass::Transient;
                return Err(failure);
            }
            Some("2") => panic!("two is too much"),
            Some("3") => {
                let mut failure = EvaluationFailure::new("disk.full", "no space");
                failure.class = FailureClass::System;
                return Err(failure);
            }
            _ => {}
        }
        let mut record = record.clone();
        record.set("n", &n)?;
        record.set("last", &last.unwrap_or(FlowValue::Null))?;
        Ok(vec![record])
    });
    let options = ChainOptions {
        is_repartitioned: false,
        functions: functions.into(),
        ..ChainOptions::default()
    };
    let mut task = Task::new(&plan_with(flow, &registered), "p", options);
    for (number, v) in [(1, 0), (2, 1), (3, 2), (4, 0)] {
        task.put("a", number, &format!(r#"{{"k":"x","v":{v}}}"#));
    }
    let expected = [
        r#"{"k":"x","v":0,"n":1,"last":null}"#,
        r#"{"k":"x","v":0,"n":2,"last":1}"#,
    ];
    assert_eq!(task.texts("b"), expected);
    let letters: Vec<DeadLetter> = task
        .texts("dead")
        .iter()
        .map(|text| DeadLetter::from_envelope(text).unwrap())
        .collect();
    let shown: Vec<(&str, u32)> = letters
        .iter()
        .map(|letter| (letter.failure.code.as_str(), letter.attempts))
        .collect();
    assert_eq!(shown, [("service.down", 2), ("function.panicked", 1)]);
    assert_eq!(task.values("all")["x"], "[1,2]");
    // A failure of class System stops the stage.
    let record = tidegate_log::StoredRecord {
        offset: tidegate_core::Offset(9),
        record: tidegate_log::Record::new(r#"{"k":"x","v":3}"#),
    };
    let time = task.time();
    let record = tidegate_stage::chain::InputRecord {
        input: 0,
        topic: "a",
        partition: 0,
        id: EventId::from_u128(9),
        record: &record,
    };
    let failure = task
        .chain
        .record(&mut task.tables, time, record, &mut task.out);
    assert_eq!(failure.unwrap_err().code.as_str(), "disk.full");
}

#[test]
fn state_of_another_plan_is_refused_by_name() {
    let flow = |keyed: &str, kind: &str| {
        format!(
            "process p receive a transform state.n = 1 emit to b
                state local n keyed by {keyed} type {kind} end end"
        )
    };
    let mut task = Task::alone(&flow("k", "counter"), "p");
    task.put("a", 1, r#"{"k":"x"}"#);
    for (changed, code) in [
        (flow("j", "counter"), "TG0903"),
        (flow("k", "gauge"), "TG0901"),
        ("process p receive a emit to b end".to_owned(), "TG0902"),
    ] {
        let mut other = Task::alone(&changed, "p");
        other.tables = task.tables.clone();
        other.restart();
        let time = other.time();
        let found = other.chain.fire(&mut other.tables, time, 1, &mut other.out);
        let failure = found.unwrap_err();
        assert_eq!(failure.code.as_str(), "stage.state.incompatible");
        assert!(failure.message.contains(code), "{}", failure.message);
    }
    // A state that is new gets tables of its own, wherever it stands.
    let more = "process p receive a transform state.n = state.n + 1  state.a = 5 emit to b
        state local a keyed by k type gauge local n keyed by k type counter end end";
    let mut other = Task::alone(more, "p");
    other.tables = task.tables.clone();
    other.restart();
    other.put("a", 2, r#"{"k":"x"}"#);
    assert_eq!(
        (
            other.values("n")["x"].as_str(),
            other.values("a")["x"].as_str()
        ),
        ("2", "5")
    );
}

#[test]
fn the_same_calls_with_the_same_tables_give_the_same_results() {
    let mut task = Task::alone(AWAIT, "p");
    task.put("a", 1, r#"{"k":"x"}"#);
    let (tables, now) = (task.tables.clone(), task.now);
    let mut ends = Vec::new();
    for _ in 0..2 {
        task.tables = tables.clone();
        task.now = now;
        task.out = tidegate_stage::chain::ChainOutput::default();
        task.restart();
        task.advance(Duration::from_secs(1));
        task.put("b", 2, r#"{"k":"x"}"#);
        ends.push((
            task.tables.clone(),
            task.out.outputs.clone(),
            task.out.moves.clone(),
        ));
    }
    assert_eq!(ends[0], ends[1]);
    assert_eq!(ends[0].2[0].from, Place::Parked);
}
