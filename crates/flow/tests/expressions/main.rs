//! Promises of expressions and records.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "the long run is asked for by the environment, and other values are failures"
)]

mod differential;
mod keys;
mod money;
mod records;
mod tables;

use std::collections::BTreeMap;

use jiff::Timestamp;
use tidegate_flow::expression::{
    EvaluationFailure, ExpressionBindings, ExpressionHost, ExpressionScope, FunctionSignature,
    RecordMetadata, StepBudget, check, parse,
};
use tidegate_flow::value::{FlowType, FlowValue, JsonRecord, ObjectType};
use tidegate_flow::{Diagnostic, Span};

/// Whether the long run is asked for.
fn is_long() -> bool {
    std::env::var("TIDEGATE_LONG").is_ok_and(|value| value == "1")
}

/// The record of the tables.
const RECORD: &str = r#"{"s":"Store 7","i":7,"d":2.5,"b":true,"n":null,"money":12.50,"text_money":"0.10",
    "ts":"2026-01-05T10:30:00.250Z","ms":1767609000000,"tags":["a","b"],"nums":[1,2,3],
    "address":{"city":"Köln","zip":"50667","geo":{"lat":50.9}},"rates":{"EUR":1,"USD":2},"to":"reserved",
    "esc\u0061ped":"line\nbreak","lines":[{"sku":"x","qty":2},{"sku":"y","qty":3}]}"#;

/// The types of the record; some fields of it are undeclared.
fn schema() -> ObjectType {
    let geo = ObjectType::closed([("lat", FlowType::Double), ("lon", FlowType::Double)]);
    let address = ObjectType::closed([
        ("city", FlowType::String),
        ("zip", FlowType::String),
        ("geo", FlowType::Object(geo.into())),
    ]);
    let line = ObjectType::closed([
        ("sku", FlowType::String),
        ("qty", FlowType::Integer),
        ("note", FlowType::String),
    ]);
    ObjectType::closed([
        ("s", FlowType::String),
        ("i", FlowType::Integer),
        ("d", FlowType::Double),
        ("b", FlowType::Boolean),
        ("n", FlowType::String),
        ("absent", FlowType::String),
        ("money", FlowType::Decimal),
        ("text_money", FlowType::Decimal),
        ("ts", FlowType::Timestamp),
        ("ms", FlowType::Timestamp),
        ("tags", FlowType::list(FlowType::String)),
        ("nums", FlowType::list(FlowType::Integer)),
        ("address", FlowType::Object(address.into())),
        ("rates", FlowType::map(FlowType::Integer)),
        ("to", FlowType::String),
        ("escaped", FlowType::String),
        ("lines", FlowType::list(FlowType::Object(line.into()))),
        ("wrong", FlowType::Integer),
    ])
}

/// One counter, one map, and a function that doubles.
#[derive(Debug)]
struct TestHost;

impl ExpressionHost for TestHost {
    fn state(&self, name: &str) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        Ok(match name {
            "seen" => FlowValue::Integer(3),
            _ => FlowValue::map([("last", FlowValue::text("r1"))]),
        })
    }

    fn call(
        &self,
        _name: &str,
        arguments: &[FlowValue<'_>],
    ) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        match arguments {
            [FlowValue::Integer(number)] => Ok(FlowValue::Integer(number * 2)),
            _ => Err(EvaluationFailure::new(
                "function.refused",
                "one number is needed",
            )),
        }
    }
}

fn scope() -> ExpressionScope {
    let double = FunctionSignature {
        parameters: vec![FlowType::Integer],
        result: FlowType::Integer,
    };
    ExpressionScope::of(schema())
        .state("seen", FlowType::Integer)
        .state("last_of", FlowType::map(FlowType::String))
        .function("twice", double)
}

fn metadata() -> RecordMetadata {
    RecordMetadata {
        key: Some("k1".to_owned()),
        id: "019a8f3e-5c00-7abc-8def-0123456789ab".to_owned(),
        topic: "orders".to_owned(),
        partition: 3,
        offset: 41,
        timestamp: Timestamp::from_second(1_767_609_000).unwrap(),
        headers: BTreeMap::from([("source".to_owned(), "shop".to_owned())]),
    }
}

fn checked(
    text: &str,
    scope: &ExpressionScope,
) -> Result<tidegate_flow::expression::CheckedExpression, Vec<Diagnostic>> {
    let end = u32::try_from(text.len()).unwrap();
    check(&parse(text, Span::new(0, 0, end))?, scope)
}

/// The JSON of the value, or the code of the failure, or the codes of the findings with their places.
fn outcome(text: &str, scope: &ExpressionScope, record: &str) -> String {
    let expression = match checked(text, scope) {
        Ok(expression) => expression,
        Err(findings) => {
            let shown = findings.iter().map(|found| {
                let place = text.get(found.span.start as usize..found.span.end as usize);
                format!("{} {}", found.code, place.unwrap_or("not at a character"))
            });
            return shown.collect::<Vec<_>>().join("; ");
        }
    };
    let record = JsonRecord::of_text(record).unwrap();
    let metadata = metadata();
    let mut bindings = ExpressionBindings::new(&record, &metadata, &TestHost);
    bindings.now = Timestamp::from_second(1_767_700_000).unwrap();
    let result = expression.evaluate(&bindings, &mut StepBudget::default());
    match result.map(|value| value.to_json()) {
        Ok(Ok(json)) => json,
        Ok(Err(error)) => error.to_string(),
        Err(failure) => failure.code.to_string(),
    }
}

/// Compares every row, and shows all that differ.
fn assert_rows(rows: &[(&str, &str)], outcome: impl Fn(&str) -> String) {
    let wrong = rows.iter().filter_map(|(text, expect)| {
        let got = outcome(text);
        (got != *expect).then(|| format!("{text}\n  got      {got}\n  expected {expect}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "{} of {} rows:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}
