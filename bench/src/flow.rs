//! Expressions and records of flows, beside the `cel` interpreter and `serde_json`.

use std::hint::black_box;
use std::time::Instant;

use tidegate_flow::Span;
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::expression::{
    ExpressionBindings, ExpressionScope, NoHost, RecordMetadata, StepBudget, check, parse,
};
use tidegate_flow::value::{FlowType, FlowValue, JsonRecord, ObjectType};

use crate::measure::{Measurement, begin_peak, nanos_per_call, peak_resident_mib};

const EXPRESSION: &str =
    r#"amount > 100.0 && merchant.startsWith("Store") && country in ["DE", "FR", "US"]"#;
/// A record of 13 fields.
const RECORD: &str = r#"{"id":"019a8f3e-5c00-7abc-8def-0123456789ab","account":"acc-77","amount":250.75,"currency":"EUR","merchant":"Store 12","country":"US","city":"Berlin","channel":"pos","terminal":4711,"retry":0,"approved":true,"occurred_at":"2026-01-05T10:00:00Z","note":null}"#;
/// A record of 200 bytes.
const SMALL: &str = r#"{"order_id":"o-1234567","customer_id":"c-7654321","amount":12.50,"currency":"EUR","items":[{"sku":"a-1","qty":2},{"sku":"b-2","qty":1}],"status":"open","created_at":"2026-01-05T10:00:00Z","note":"x"}"#;

pub(crate) fn run() {
    evaluate();
    record();
    check_text();
}

fn evaluate() {
    let fields = ObjectType::closed([
        ("amount", FlowType::Double),
        ("merchant", FlowType::String),
        ("country", FlowType::String),
    ]);
    let span = Span::new(0, 0, u32::try_from(EXPRESSION.len()).unwrap_or(u32::MAX));
    let parsed = parse(EXPRESSION, span).expect("the expression is CEL");
    let checked = check(&parsed, &ExpressionScope::of(fields)).expect("the types fit");
    let record = JsonRecord::of_text(RECORD).expect("the record is JSON");
    let metadata = RecordMetadata::default();
    let ours = nanos_per_call(|| {
        let bindings = ExpressionBindings::new(black_box(&record), &metadata, &NoHost);
        let value = checked.evaluate(&bindings, &mut StepBudget::default());
        assert_eq!(black_box(value), Ok(FlowValue::Boolean(true)));
    });
    let from_bytes = nanos_per_call(|| {
        let record = JsonRecord::of_text(black_box(RECORD)).expect("the record is JSON");
        let bindings = ExpressionBindings::new(&record, &metadata, &NoHost);
        black_box(
            checked
                .evaluate(&bindings, &mut StepBudget::default())
                .is_ok(),
        );
    });
    let program = cel::Program::compile(EXPRESSION).expect("the expression is CEL");
    let mut context = cel::Context::default();
    let values: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(RECORD).expect("the record is JSON");
    for (name, value) in values {
        let value = cel::to_value(value).expect("a value has a form there");
        context.add_variable_from_value(name, value);
    }
    let reference = nanos_per_call(|| {
        let value = program.execute(black_box(&context));
        assert_eq!(black_box(value), Ok(cel::Value::Bool(true)));
    });
    let reference_is = "the cel interpreter, context built once";
    for (bench, ours) in [
        ("flow/evaluate", ours),
        ("flow/evaluate-from-bytes", from_bytes),
    ] {
        Measurement {
            bench,
            ours,
            reference,
            reference_is,
            unit: "ns/record",
        }
        .print();
    }
}

fn record() {
    let ours = nanos_per_call(|| {
        let mut record = JsonRecord::of_text(black_box(SMALL)).expect("the record is JSON");
        let id = record.get("order_id", &FlowType::String);
        let amount = record.get("amount", &FlowType::Double);
        black_box((&id, &amount));
        drop((id, amount));
        record
            .set("status", &FlowValue::text("paid"))
            .expect("a text is JSON");
        let mut out = String::new();
        record.write(&mut out);
        black_box(out);
    });
    let reference = nanos_per_call(|| {
        let mut record: serde_json::Value =
            serde_json::from_str(black_box(SMALL)).expect("the record is JSON");
        black_box((record["order_id"].as_str(), record["amount"].as_f64()));
        record["status"] = serde_json::Value::from("paid");
        black_box(record.to_string());
    });
    Measurement {
        bench: "flow/record",
        ours,
        reference,
        reference_is: "a round trip by serde_json::Value",
        unit: "ns/record",
    }
    .print();
}

/// Files of flows with this many bytes in all.
fn flow_texts(bytes: usize) -> Vec<String> {
    const FILE: usize = 64 * 1024;
    let mut texts = vec![String::new()];
    let mut number = 0;
    while texts.iter().map(String::len).sum::<usize>() < bytes {
        number += 1;
        let process = format!(
            "process p{number}
    receive orders{number} filter amount > 100.0 && merchant.startsWith(\"Store\")
    transform net = amount - discount
        label = country in [\"DE\", \"FR\"] ? \"eu\" : \"other\"
    route when net > 1000.0 to large{number} otherwise continue
    emit to small{number}
end
"
        );
        if texts
            .last()
            .is_none_or(|text| text.len() + process.len() > FILE)
        {
            texts.push(String::new());
        }
        if let Some(text) = texts.last_mut() {
            text.push_str(&process);
        }
    }
    texts
}

/// Milliseconds of one check.
fn checked_ms(texts: &[String]) -> f64 {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let start = Instant::now();
    let checked = check_flows(&texts, &Registered::default());
    let elapsed = start.elapsed().as_secs_f64() * 1e3;
    assert!(checked.plan.is_some(), "{:?}", checked.diagnostics.first());
    elapsed
}

fn check_text() {
    /// Checks of each size, in turn; the fastest one counts. The first ones also fetch their memory from the system.
    const ROUNDS: usize = 7;
    let [small, large] = [1 << 20, 2 << 20].map(flow_texts);
    begin_peak();
    let mut one = checked_ms(&small);
    Measurement {
        bench: "flow/check-1-mib-memory",
        ours: peak_resident_mib(),
        reference: 200.0,
        reference_is: "the bar of 200 MiB, this program included",
        unit: "MiB",
    }
    .print();
    let mut two = f64::INFINITY;
    for _ in 0..ROUNDS {
        two = two.min(checked_ms(&large));
        one = one.min(checked_ms(&small));
    }
    Measurement {
        bench: "flow/check-1-mib",
        ours: one,
        reference: 1_000.0,
        reference_is: "the bar of one second",
        unit: "ms",
    }
    .print();
    Measurement {
        bench: "flow/check-2-mib",
        ours: two,
        reference: one,
        reference_is: "half of the text",
        unit: "ms",
    }
    .print();
}
