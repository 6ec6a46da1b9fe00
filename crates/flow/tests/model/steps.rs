//! Each step, and time.

use std::time::Duration;

use tidegate_core::{EventId, FailureClass};
use tidegate_flow::check::{Registered, RegisteredTransform};
use tidegate_flow::expression::EvaluationFailure;
use tidegate_flow::model::{FlowModel, ModelInput, ModelScript};
use tidegate_flow::syntax::MAX_STATEMENTS;

use crate::{difference, passes, passes_with, plan};

fn input(stream: &str, value: &str) -> ModelInput {
    ModelInput {
        stream: stream.to_owned(),
        value: value.as_bytes().to_vec(),
        ..ModelInput::default()
    }
}

#[test]
fn fields_are_projected_set_and_looked_up() {
    passes(
        "process p receive a project except secret
            transform total = price * 2  copy = price  nested.x = 1  big = record.huge
            emit to b end",
        "- send: { stream: a, value: { price: 12.50, secret: 1, huge: 123456789012345678901234567890 } }
         - expect: { stream: b, values: [ { price: 12.50, huge: 123456789012345678901234567890, total: 25.0,
             copy: 12.50, nested: { x: 1 }, big: 123456789012345678901234567890 } ] }",
    );
    passes(
        "process p receive a project k, who.name transform using t emit to b end
         transform t apply x.y = 1  x.z = 2 end drop x.y end",
        "- send: { stream: a, value: { k: 1, who: { name: ada, age: 36 }, other: 1 } }
         - expect: { stream: b, values: [ { k: 1, who: { name: ada }, x: { z: 2 } } ] }",
    );
    let flow = "process p receive a transform c = v emit to b end";
    let plan = plan(flow, &Registered::default());
    let mut model = FlowModel::new(&plan, "p", ModelScript::default()).unwrap();
    model.send(input("a", r#"{"v": 12.500}"#));
    let values: Vec<&str> = model
        .outputs("b")
        .map(|output| output.value.as_str())
        .collect();
    assert_eq!(values, [r#"{"v": 12.500,"c":12.500}"#]);
}

#[test]
fn each_makes_one_record_per_map_and_derives_its_id() {
    let flow = "transform split each lines.map(l, {\"order\": order_id, \"sku\": l}) end
        process p receive a transform using split emit to b end";
    let plan = plan(flow, &Registered::default());
    let mut model = FlowModel::new(&plan, "p", ModelScript::default()).unwrap();
    let id = EventId::from_u128(7);
    model.send(ModelInput {
        id: Some(id),
        ..input("a", r#"{"order_id":"o1","lines":["x","y"]}"#)
    });
    let outputs: Vec<_> = model.outputs("b").collect();
    assert_eq!(outputs[1].value, r#"{"order":"o1","sku":"y"}"#);
    let derived = |index: &str| EventId::derived(&[&id.to_string(), "b", index]);
    assert_eq!([outputs[0].id, outputs[1].id], [derived("0"), derived("1")]);
    // A single output keeps the id, and none at all is delivered, too.
    model.send(ModelInput {
        id: Some(EventId::from_u128(8)),
        ..input("a", r#"{"order_id":"o2","lines":["x"]}"#)
    });
    model.send(ModelInput {
        id: Some(EventId::from_u128(9)),
        ..input("a", r#"{"order_id":"o3","lines":[]}"#)
    });
    assert_eq!(model.outputs("b").last().unwrap().id, EventId::from_u128(8));
    assert_eq!((model.account().delivered, model.is_balanced()), (3, true));
}

#[test]
fn tables_hit_once_or_collect_and_routes_take_them() {
    let table = |policy: &str| {
        format!(
            "decision_table t hit_policy {policy}
                | amount | country          => target | level |
                | > 100  | *                => \"big\"  | 2     |
                | 1..100 | in [\"DE\", \"FR\"] => \"eu\"   | 1     |
                | *      | == \"DE\"          => \"de\"   | 0     |
            end "
        )
    };
    passes(
        &(table("first_match") + "process p receive a transform using t emit to b end"),
        "- send: { stream: a, value: { amount: 500, country: DE } }
         - send: { stream: a, value: { amount: 100, country: FR } }
         - expect: { stream: b, values: [ { target: big, level: 2 }, { target: eu, level: 1 } ], match: partial }",
    );
    passes(
        &(table("collect_all") + "process p receive a route using t end"),
        "- send: { stream: a, value: { amount: 500, country: DE } }
         - send: { stream: a, value: { amount: 50, country: US } }
         - expect: { stream: big, count: 1 }
         - expect: { stream: de, count: 1 }
         - expect: { stream: eu, count: 0 }
         - expect: { dead-letters: [ { code: rule.unmatched } ], ledger: { delivered: 1, dead_lettered: 1 } }",
    );
}

#[test]
fn joins_emit_the_side_that_stays_alone() {
    for (kind, left, right) in [
        ("inner", 0, 0),
        ("left", 1, 0),
        ("right", 0, 1),
        ("outer", 1, 1),
    ] {
        let flow = format!(
            "process p receive a receive b join a with b on k within 1 minute type {kind} emit to c end"
        );
        passes(
            &flow,
            &format!(
                "- send: {{ stream: a, value: {{ k: 1, v: x }} }}
                 - send: {{ stream: b, value: {{ k: 1, w: y }} }}
                 - send: {{ stream: b, value: {{ k: 1, w: z }} }}
                 - expect: {{ stream: c, values: [ {{ k: 1, a: {{ k: 1, v: x }}, b: {{ k: 1, w: y }} }},
                     {{ k: 1, a: {{ k: 1, v: x }}, b: {{ k: 1, w: z }} }} ] }}
                 - send: {{ stream: a, value: {{ k: 2 }} }}
                 - send: {{ stream: b, value: {{ k: 3 }} }}
                 - advance: 2m
                 - expect: {{ stream: c, count: {} }}
                 - expect: {{ ledger: {{ delivered: 5 }} }}",
                left + right
            ),
        );
    }
    passes(
        "process p receive a receive b mode batch join a with b on k within 1 day type left emit to c end",
        "- send: { stream: a, value: { k: 1 } }
         - expect: { stream: c, count: 0 }
         - end
         - expect: { stream: c, values: [ { k: 1, a: { k: 1 }, b: null } ] }",
    );
}

#[test]
fn holds_complete_by_marker_rule_and_timeout() {
    passes(
        "process p receive part store in h receive done match from h on k as marker
            hold h keyed by k complete when marker received timeout 1 hour skip
            emit to c end",
        "- send: { stream: part, value: { k: 1, n: 1 } }
         - send: { stream: part, value: { k: 1, n: 2 } }
         - send: { stream: done, value: { k: 1 } }
         - expect: { stream: c, values: [ { k: 1, part: [ { k: 1, n: 1 }, { k: 1, n: 2 } ], done: [ { k: 1 } ], count: 3 } ] }",
    );
    passes(
        "decision_table is_full | count => full | | >= 2 => true | | * => false | end
         process p receive part
            hold part in h keyed by k complete using is_full timeout 1 hour skip
            emit to c end",
        "- send: { stream: part, value: { k: 1 } }
         - expect: { stream: c, count: 0 }
         - send: { stream: part, value: { k: 1 } }
         - expect: { stream: c, count: 1, pending: 0 }",
    );
    passes(
        "process p receive part store in h
            hold h keyed by k complete on timeout timeout 1 hour
            emit to c
            state buffer h keyed by k type lifo end end",
        "- send: { stream: part, value: { k: 1, n: 1 } }
         - send: { stream: part, value: { k: 1, n: 2 } }
         - advance: 1h
         - expect: { stream: c, values: [ { k: 1, part: [ { k: 1, n: 2 }, { k: 1, n: 1 } ], count: 2, reason: timeout } ] }
         - expect: { ledger: { delivered: 2 } }",
    );
    passes(
        "process p receive part store in h
            hold h keyed by k complete when count >= 3 timeout 1 hour skip
            emit to c
            state buffer h keyed by k type priority by n end end",
        "- send: { stream: part, value: { k: 1, n: 1 } }
         - send: { stream: part, value: { k: 1, n: 3 } }
         - send: { stream: part, value: { k: 1, n: 2 } }
         - expect: { stream: c, values: [ { part: [ { n: 3 }, { n: 2 }, { n: 1 } ] } ], match: partial }",
    );
}

#[test]
fn windows_slide_and_sessions_grow() {
    let totals = "aggregate count() as n sum(v) as s avg(v) as a min(v) as lo max(v) as hi first(v) as f last(v) as l collect(v) as all end";
    passes(
        &format!(
            "process p time by ts receive a window sliding 2 minutes every 1 minute key by k {totals} emit to b end"
        ),
        "- send: { stream: a, value: { k: x, v: 1, ts: 2026-01-05T10:01:30Z } }
         - send: { stream: a, value: { k: x, v: 4, ts: 2026-01-05T10:01:40Z } }
         - send: { stream: a, value: { k: y, v: 0, ts: 2026-01-05T10:03:00Z } }
         - expect: { stream: b, values: [
             { k: x, n: 2, s: 5, a: 2.5, lo: 1, hi: 4, f: 1, l: 4, all: [1, 4], revision: 0,
               window_start: 2026-01-05T10:00:00Z, window_end: 2026-01-05T10:02:00Z },
             { k: x, n: 2, s: 5, a: 2.5, lo: 1, hi: 4, f: 1, l: 4, all: [1, 4], revision: 0,
               window_start: 2026-01-05T10:01:00Z, window_end: 2026-01-05T10:03:00Z } ] }",
    );
    passes(
        "process p time by ts receive a window session gap 1 minute key by k aggregate count() as n end emit to b end",
        "- send: { stream: a, value: { k: x, ts: 2026-01-05T10:00:00Z } }
         - send: { stream: a, value: { k: x, ts: 2026-01-05T10:00:50Z } }
         - send: { stream: a, value: { k: x, ts: 2026-01-05T10:03:00Z } }
         - expect: { stream: b, values: [ { k: x, n: 2, revision: 0, window_start: 2026-01-05T10:00:00Z, window_end: 2026-01-05T10:01:50Z } ] }",
    );
    passes(
        "transform biggest apply top = records.map(r, r.v).filter(v, v > 2) end keep k, top end
         process p receive a window tumbling 1 minute key by k aggregate using biggest emit to b end",
        "- send: { stream: a, at: 2026-01-05T10:00:00Z, value: { k: x, v: 1 } }
         - send: { stream: a, value: { k: x, v: 3 } }
         - advance: 60s
         - expect: { stream: b, values: [ { k: x, top: [3] } ] }",
    );
}

#[test]
fn a_silent_input_stops_holding_back_the_watermark() {
    passes(
        "process p time by ts receive a receive b merge a, b
            window tumbling 1 minute key by k aggregate count() as n end
            emit to c end",
        "- send: { stream: a, at: 2026-01-05T10:00:00Z, value: { k: x, ts: 2026-01-05T10:00:00Z } }
         - send: { stream: a, value: { k: x, ts: 2026-01-05T10:02:00Z } }
         - expect: { stream: c, count: 0 }
         - advance: 20s
         - send: { stream: a, value: { k: x, ts: 2026-01-05T10:02:01Z } }
         - expect: { stream: c, count: 0 }
         - advance: 15s
         - expect: { stream: c, values: [ { k: x, n: 1 } ], match: partial }",
    );
}

#[test]
fn state_lives_as_long_as_its_kind_of_ttl_says() {
    // Seconds between a first write at zero, and what is read then, per kind of TTL.
    for (ttl, by, expect) in [
        ("ttl 10 seconds", "processing_time", ["1", "2", "3", "1"]),
        (
            "ttl absolute 10 seconds",
            "processing_time",
            ["1", "2", "1", "1"],
        ),
        (
            "ttl sliding 10 seconds",
            "processing_time",
            ["1", "2", "3", "1"],
        ),
        ("ttl 10 seconds", "event_time", ["1", "2", "3", "1"]),
        (
            "ttl absolute 10 seconds",
            "event_time",
            ["1", "2", "1", "1"],
        ),
        ("ttl sliding 10 seconds", "event_time", ["1", "2", "3", "1"]),
    ] {
        let flow = format!(
            "process p time by ts receive a transform state.n = state.n + 1  n = state.n emit to b
                state local n keyed by k type counter {ttl} by {by} end end"
        );
        let is_event_time = by == "event_time";
        let mut steps = Vec::new();
        for (at, expect) in [0, 6, 12, 30].into_iter().zip(expect) {
            let clock = if is_event_time { 0 } else { at };
            let event = if is_event_time { at } else { 0 };
            steps.push(format!(
                "- send: {{ stream: a, at: 2026-01-05T10:00:{clock:02}Z, value: {{ k: x, ts: 2026-01-05T10:00:{event:02}Z }} }}"
            ));
            steps.push(format!(
                "- expect: {{ stream: b, values: [ {{ n: {expect} }} ], match: partial }}"
            ));
        }
        passes(&flow, &steps.join("\n"));
    }
    // Reading alone keeps a sliding value alive, and no other.
    for (ttl, expect) in [
        ("ttl sliding 10 seconds", 5),
        ("ttl 10 seconds", 0),
        ("ttl absolute 10 seconds", 0),
    ] {
        let flow = format!(
            "process p receive a transform read = state.n
                route when !write to b otherwise continue
                transform state.n = 5 emit to c
                state local n keyed by k type counter {ttl} end end"
        );
        let steps = format!(
            "- send: {{ stream: a, at: 2026-01-05T10:00:00Z, value: {{ k: x, write: true }} }}
             - send: {{ stream: a, at: 2026-01-05T10:00:06Z, value: {{ k: x, write: false }} }}
             - send: {{ stream: a, at: 2026-01-05T10:00:12Z, value: {{ k: x, write: false }} }}
             - expect: {{ stream: b, values: [ {{ read: 5 }}, {{ read: {expect} }} ], match: partial }}"
        );
        passes(&flow, &steps);
    }
}

#[test]
fn deduplication_counts_from_the_first_record_that_was_kept() {
    passes(
        "process p receive a deduplicate by id window 10 seconds on_duplicate dead_letter twice end emit to b end",
        "- send: { stream: a, at: 2026-01-05T10:00:00Z, value: { id: 1 } }
         - send: { stream: a, at: 2026-01-05T10:00:09Z, value: { id: 1 } }
         - send: { stream: a, at: 2026-01-05T10:00:10Z, value: { id: 1 } }
         - expect: { stream: b, count: 2, dead-letters: [ { stream: twice, code: record.duplicate } ] }",
    );
}

#[test]
fn metrics_see_what_leaves() {
    passes(
        "process p receive a route by k \"x\" to b otherwise to c
            metrics counter to_b when _route == \"b\" histogram sizes of size buckets 1, 10 end end",
        "- send: { stream: a, value: { k: x, size: 3 } }
         - send: { stream: a, value: { k: y, size: 4 } }
         - expect: { metrics: { to_b: 1, sizes: 2 } }",
    );
}

#[test]
fn functions_of_rust_are_called_and_tried_again() {
    fn transform(
        record: &tidegate_flow::value::JsonRecord,
    ) -> Result<Vec<tidegate_flow::value::JsonRecord>, Box<EvaluationFailure>> {
        if record.raw("k") == Some("0") {
            let mut failure = EvaluationFailure::new("service.down", "nobody is there");
            failure.class = FailureClass::Transient;
            return Err(failure);
        }
        let mut record = record.clone();
        record.set_raw("done", "true");
        Ok(vec![record])
    }
    let mut registered = Registered::default();
    registered
        .transforms
        .insert("f".to_owned(), RegisteredTransform::default());
    let flow = "process p receive a transform using f emit to b
        on error transform failure retry 4 times then dead_letter d end end";
    let plan = plan(flow, &registered);
    let mut script = ModelScript::default();
    script.transforms.insert("f".to_owned(), transform);
    let mut model = FlowModel::new(&plan, "p", script).unwrap();
    model.send(input("a", r#"{"k":1}"#));
    model.send(input("a", r#"{"k":0}"#));
    model.advance(Duration::from_secs(1));
    assert_eq!(model.outputs("b").count(), 1);
    let letter = &model.dead_letters()[0];
    assert_eq!(
        (
            letter.code.as_str(),
            letter.attempts,
            letter.stream.as_str()
        ),
        ("service.down", 4, "d")
    );
}

#[test]
fn results_of_several_inputs_have_ids_of_their_own() {
    let flow = "process p receive a receive b join a with b on k within 1 minute emit to c end";
    let plan = plan(flow, &Registered::default());
    let mut model = FlowModel::new(&plan, "p", ModelScript::default()).unwrap();
    let ids = [1, 2].map(EventId::from_u128);
    model.send(ModelInput {
        id: Some(ids[0]),
        ..input("a", r#"{"k":1}"#)
    });
    model.send(ModelInput {
        id: Some(ids[1]),
        ..input("b", r#"{"k":1}"#)
    });
    let [first, second] = ids.map(|id| id.to_string());
    let made: Vec<EventId> = model.outputs("c").map(|output| output.id).collect();
    assert_eq!(made, [EventId::derived(&[&first, &second])]);
}

#[test]
fn a_difference_is_shown() {
    let shown = difference(
        "",
        "process p receive a emit to b end",
        "- send: { stream: a, value: { k: 1 } }
         - expect: { stream: b, values: [ { k: 2 } ] }",
    );
    assert_eq!(
        shown.as_deref(),
        Some("step 2: expected {\"k\":2}, found {\"k\":1}")
    );
}

#[test]
fn books_balance_whatever_comes() {
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    let rounds = if is_long { 20_000 } else { 300 };
    let mut seed = 7_u64;
    let mut random = move |end: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % end
    };
    let fields: [(&str, &[&str]); 18] = [
        ("loan_id", &["\"l1\"", "\"l2\"", "7"]),
        ("customer_id", &["\"c1\"", "\"\"", "null"]),
        ("amount", &["10.00", "60000", "-1", "\"2.50\"", "1.005"]),
        ("term_months", &["12", "240", "900"]),
        (
            "occurred_at",
            &["\"2026-01-05T10:00:00Z\"", "1767610000000", "\"soon\""],
        ),
        ("auth_code", &["\"a\"", "\"b\""]),
        ("merchant", &["\"m\""]),
        ("order_id", &["\"o1\"", "\"o2\""]),
        ("sku", &["\"x\""]),
        ("total", &["5", "20.5"]),
        ("sale_id", &["\"s1\"", "\"s2\"", "\"s3\"", "\"s4\""]),
        ("region", &["\"eu\"", "\"us\""]),
        ("discount", &["0.10", "null"]),
        (
            "ts",
            &[
                "\"2026-01-05T10:00:00Z\"",
                "\"2026-01-05T11:20:00Z\"",
                "\"2026-01-05T12:20:00Z\"",
            ],
        ),
        ("correlation_id", &["\"r1\"", "\"r2\""]),
        ("request_id", &["\"q1\""]),
        ("owner", &["\"ada\"", "\"\""]),
        ("header", &["{}", "[1, {\"a\": 2}]"]),
    ];
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/flows");
    for file in [
        "account",
        "auth",
        "loan",
        "order_assembly",
        "payments",
        "sales",
    ] {
        let text = std::fs::read_to_string(format!("{directory}/{file}.flow")).unwrap();
        let plan = plan(&text, &Registered::default());
        let (name, process) = plan.processes.first_key_value().unwrap();
        let mut model = FlowModel::new(&plan, name, ModelScript::default()).unwrap();
        for round in 1..=rounds {
            let mut value = String::from("{");
            for (field, values) in fields {
                if random(8) > 0 {
                    let comma = if value.len() > 1 { "," } else { "" };
                    value.push_str(&format!(
                        "{comma}\"{field}\":{}",
                        values[random(values.len())]
                    ));
                }
            }
            value.push_str(if random(20) == 0 { "" } else { "}" });
            let stream = &process.sources[random(process.sources.len())].stream;
            model.set_slow(random(10) == 0);
            model.send(input(stream, &value));
            if random(5) == 0 {
                model.advance(Duration::from_secs([1, 60, 4_000, 100_000][random(4)]));
            }
            let account = model.account();
            assert!(
                model.is_balanced() && account.is_balanced(),
                "{file}: {account:?}"
            );
            assert_eq!(account.accepted, i64::from(round), "{file}: {value}");
            assert_eq!(
                account.parked,
                i64::try_from(model.pending()).unwrap(),
                "{file}: {value}"
            );
        }
        let account = model.account();
        assert!(
            account.delivered > 0 && account.dead_lettered > 0,
            "{file}: {account:?}"
        );
    }
}

#[test]
fn the_filter_of_an_input_sees_what_is_projected_away() {
    for clauses in [
        "project k filter amount > 10",
        "project except amount filter amount > 10",
        "filter amount > 10 project except amount",
    ] {
        for schema in ["", "schema s"] {
            passes(
                &format!(
                    "schema s k: string amount: integer end
                     process p receive a {schema} {clauses} emit to b end"
                ),
                "- send: { stream: a, value: { k: x, amount: 5 } }
                 - send: { stream: a, value: { k: y, amount: 50 } }
                 - expect: { stream: b, values: [ { k: y } ] }
                 - expect: { ledger: { delivered: 2 } }",
            );
        }
    }
}

#[test]
fn a_nested_answer_that_was_not_found_has_null_fields() {
    let flow = |condition: &str| {
        format!(
            "lookup customers key id tier: string address: object city: string end end
             process p receive a enrich using customers on id
                transform gold = {condition}
                emit to b end"
        )
    };
    let outside = "lookups: { customers: { c1: { tier: gold, address: { city: Bonn } } } }";
    passes_with(
        outside,
        &flow("customers.tier == \"gold\""),
        "- send: { stream: a, value: { id: c1 } }
         - send: { stream: a, value: { id: c2 } }
         - expect: { stream: b, values: [
             { id: c1, customers: { tier: gold, address: { city: Bonn } }, gold: true },
             { id: c2, customers: { tier: null, address: null }, gold: false } ] }",
    );
    passes_with(
        outside,
        &flow("customers.tier == null && !has(customers.zip)")
            .replace("tier: string", "zip: string optional tier: string"),
        "- send: { stream: a, value: { id: c2 } }
         - expect: { stream: b, values: [
             { id: c2, customers: { zip: null, tier: null, address: null }, gold: false } ] }",
    );
}

/// The parts of a field keep the rules of the schema as the field itself does.
#[test]
fn parts_of_lists_maps_and_objects_hold_their_schema() {
    let flow = "schema s
            lines: list<object sku: string length 1..3 qty: integer range 1..9 note: string default \"none\" end>
            prices: map<decimal(4, 2)> optional
            days: list<date> optional
            address: object zip: string pattern \"[0-9]{5}\" country: string default \"DE\" end optional
            ids: list<list<uuid>> optional
        end
        process p receive a schema s emit to b end";
    passes(
        flow,
        "- send: { stream: a, value: { lines: [ { sku: a, qty: 1 }, { sku: b, qty: 2, note: x } ] } }
         - expect: { stream: b, values: [ { lines: [ { sku: a, qty: 1, note: none }, { sku: b, qty: 2, note: x } ] } ] }
         - send: { stream: a, value: { lines: [], address: { zip: \"50667\" }, prices: { a: 1.50 } } }
         - expect: { stream: b, values: [ { lines: [], address: { zip: \"50667\", country: DE }, prices: { a: 1.50 } } ] }",
    );
    let line = "{ sku: a, qty: 1 }";
    for value in [
        "lines: [ { sku: a } ]".to_owned(),
        "lines: [ { sku: a, qty: 0 } ]".to_owned(),
        "lines: [ { sku: abcd, qty: 1 } ]".to_owned(),
        "lines: [ 1 ]".to_owned(),
        "lines: [ null ]".to_owned(),
        format!("lines: [ {line}, {{ sku: b, qty: 99 }} ]"),
        format!("lines: [ {line} ], prices: {{ a: 1.505 }}"),
        format!("lines: [ {line} ], prices: {{ a: 100.00 }}"),
        format!("lines: [ {line} ], days: [ 2026-13-01 ]"),
        format!("lines: [ {line} ], address: {{ zip: abc }}"),
        format!("lines: [ {line} ], address: {{}}"),
        format!("lines: [ {line} ], ids: [ [ x ] ]"),
    ] {
        let steps = format!(
            "- send: {{ stream: a, value: {{ {value} }} }}
             - expect: {{ ledger: {{ dead_lettered: 1 }} }}"
        );
        passes(flow, &steps);
    }
}

/// A text with commas is no second field, and a number is no text.
#[test]
fn records_of_different_keys_are_not_each_others_duplicates() {
    passes(
        "process p receive a deduplicate by x, y emit to b end",
        "- send: { stream: a, value: { x: \"a,b\", y: c } }
         - send: { stream: a, value: { x: a, y: \"b,c\" } }
         - send: { stream: a, value: { x: 1, y: \"null\" } }
         - send: { stream: a, value: { x: \"1\", y: \"null\" } }
         - send: { stream: a, value: { x: 1 } }
         - send: { stream: a, value: { x: 1.0, y: null } }
         - expect: { stream: b, values: [ { x: \"a,b\", y: c }, { x: a, y: \"b,c\" }, { x: 1, y: \"null\" },
             { x: \"1\", y: \"null\" }, { x: 1 } ] }",
    );
}

/// A record goes through its steps by calls inside each other, so their number has a limit.
#[test]
fn a_process_of_the_most_statements_runs() {
    for step in ["transform n = n + 1 ", "transform using one_more "] {
        let steps = step.repeat(MAX_STATEMENTS - 3);
        let flow = format!(
            "transform one_more apply n = n + 1 end end process p receive a {steps} emit to b end"
        );
        let plan = plan(&flow, &Registered::default());
        let mut model = FlowModel::new(&plan, "p", ModelScript::default()).unwrap();
        model.send(input("a", r#"{"n":0}"#));
        let values: Vec<&str> = model.outputs("b").map(|output| &*output.value).collect();
        assert_eq!(values, [format!("{{\"n\":{}}}", MAX_STATEMENTS - 3)]);
    }
}

#[test]
fn each_keeps_the_digits_of_a_list_without_a_schema() {
    passes(
        "transform sp each items end process p receive a transform using sp emit to b end",
        "- send: { stream: a, value: { items: [ { v: 12.50, w: 123456789012345678901234567890 }, { v: 1.0 } ] } }
         - expect: { stream: b, values: [ { v: 12.50, w: 123456789012345678901234567890 }, { v: 1.0 } ] }",
    );
    let flow = "transform sp each items end process p receive a transform using sp emit to b end";
    let plan = plan(flow, &Registered::default());
    let mut model = FlowModel::new(&plan, "p", ModelScript::default()).unwrap();
    model.send(input("a", r#"{"items": [{"v": 12.50}, {"v":1e2}]}"#));
    let values = model.outputs("b").map(|output| output.value.as_str());
    assert_eq!(
        values.collect::<Vec<_>>(),
        [r#"{"v": 12.50}"#, r#"{"v":1e2}"#]
    );
}

#[test]
fn a_window_beyond_the_last_time_ends_at_the_last_time() {
    passes(
        "process p receive a window tumbling 1000000 days key by k aggregate count() as n end emit to b end",
        "- send: { stream: a, at: 9990-01-05T10:00:00Z, value: { k: 1 } }
         - advance: 2000000d
         - expect: { stream: b, values: [ { k: 1, n: 1, window_end: \"9999-12-30T22:00:00.999999999Z\" } ], match: partial }",
    );
}
