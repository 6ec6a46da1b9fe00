//! Records whose key is not that of a step pass a topic of the stage's own.

use bytes::Bytes;
use tidegate_core::EventId;
use tidegate_core::Offset;
use tidegate_core::books::Place;
use tidegate_log::{Record, StoredRecord};
use tidegate_stage::chain::{InputRecord, TaskOperators};
use tidegate_stage::operators::ChainOptions;

use super::harness::{START, Task, plan};

/// Puts what went into topics of the stage's own in again, as its log would.
fn deliver(task: &mut Task) -> usize {
    let mut passed = 0;
    loop {
        let inputs = task.chain.inputs();
        let is_own = |stream: &str| {
            inputs
                .iter()
                .any(|input| input.is_repartition && *input.stream == *stream)
        };
        let at = task
            .out
            .outputs
            .iter()
            .position(|output| is_own(&output.stream));
        let Some(at) = at else {
            return passed;
        };
        let output = task.out.outputs.remove(at);
        let mut record = Record::new(output.value.unwrap()).timestamp_ms(output.timestamp_ms);
        record.key = output.key;
        task.send(&output.stream, output.id, record);
        passed += 1;
    }
}

#[test]
fn a_record_takes_another_key_and_goes_on_where_it_was() {
    let flow = "schema s key id id: string k: string v: integer end
        process p receive a schema s filter v > 0
            transform w = v * 2
            deduplicate by k, v window 1 minute
            window tumbling 1 minute key by k aggregate count() as n sum(w) as s end
            emit to b end";
    let mut task = Task::new(&plan(flow), "p", ChainOptions::default());
    let inputs: Vec<(String, bool)> = task
        .chain
        .inputs()
        .iter()
        .map(|input| (input.stream.to_string(), input.is_repartition))
        .collect();
    assert_eq!(inputs[0], ("a".to_owned(), false));
    assert!(inputs.len() >= 2 && inputs[1..].iter().all(|(_, is_own)| *is_own));
    task.restarts = true;
    for (number, v) in [1, 1, 2, 0].into_iter().enumerate() {
        let value = format!(r#"{{"id":"i","k":"x","v":{v}}}"#);
        task.put("a", number as u128 + 1, &value);
    }
    let keys: Vec<Option<Bytes>> = task.out.outputs.iter().map(|o| o.key.clone()).collect();
    assert_eq!(
        keys,
        ["x,1", "x,1", "x,2"].map(|key| Some(Bytes::from(key)))
    );
    // Passing on is delivered in the books of the first input; the filtered record is, too.
    assert!(
        task.out
            .moves
            .iter()
            .all(|one| one.input == 0 && one.to == Place::Delivered)
    );
    assert_eq!(task.out.moves.len(), 4);
    let passed = deliver(&mut task);
    assert!(passed >= 3, "{passed}");
    task.advance(std::time::Duration::from_secs(60));
    let values = task.texts("b");
    assert_eq!(values.len(), 1);
    assert!(values[0].contains(r#""n":2,"s":6"#), "{values:?}");
    let others = task.out.moves.iter().filter(|one| one.input > 0);
    assert!(others.clone().count() >= 3 && others.clone().all(|one| one.from == Place::Queued));
}

#[test]
fn parts_of_one_record_pass_with_ids_of_their_own() {
    let flow = "transform split each l.map(x, {\"n\": x}) end
        process p partition by k receive a
            transform using split
            hold a in h keyed by n complete when count >= 1 timeout 1 hour skip
            emit to b key by n end";
    let mut task = Task::new(&plan(flow), "p", ChainOptions::default());
    let id = EventId::from_u128(7);
    task.put("a", 7, r#"{"k":"x","l":[1,2]}"#);
    deliver(&mut task);
    let ids: Vec<EventId> = task.out.outputs.iter().map(|output| output.id).collect();
    assert_eq!(ids.len(), 2);
    assert!(ids[0] != ids[1] && !ids.contains(&id));
    // A replay makes the same ones.
    let mut again = Task::new(&plan(flow), "p", ChainOptions::default());
    again.put("a", 7, r#"{"k":"x","l":[1,2]}"#);
    deliver(&mut again);
    assert_eq!(again.out.outputs, task.out.outputs);
}

#[test]
fn a_record_for_a_step_that_is_gone_is_a_dead_letter() {
    let flow = "process p partition by k receive a deduplicate by v emit to b end";
    let mut task = Task::new(&plan(flow), "p", ChainOptions::default());
    let inputs = task.chain.inputs();
    let input = inputs
        .iter()
        .position(|input| input.is_repartition)
        .unwrap();
    let record = StoredRecord {
        offset: Offset(0),
        record: Record::new("\u{1}junk"),
    };
    let time = task.time();
    assert_eq!(time.now_ms, START);
    let record = InputRecord {
        input,
        topic: "p-a-by-v",
        partition: 0,
        id: EventId::from_u128(1),
        record: &record,
    };
    task.chain
        .record(&mut task.tables, time, record, &mut task.out)
        .unwrap();
    let letter = &task.out.outputs[0];
    assert_eq!(
        (&*letter.stream, letter.dead_letter_of),
        ("p_dlq", Some(input))
    );
    assert_eq!(task.out.moves[0].to, Place::DeadLettered);
}
