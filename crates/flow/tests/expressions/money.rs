//! Money is exact.

use tidegate_flow::expression::{
    ExpressionBindings, ExpressionScope, NoHost, RecordMetadata, StepBudget,
};
use tidegate_flow::value::{FlowType, FlowValue, JsonRecord, ObjectType};

use crate::checked;

#[test]
fn a_tenth_and_two_tenths_are_three_tenths() {
    let scope = ExpressionScope::of(ObjectType::closed([
        ("a", FlowType::Decimal),
        ("b", FlowType::Decimal),
    ]));
    let sum = checked("a + b", &scope).unwrap();
    let record = JsonRecord::of_text(r#"{"a":0.1,"b":"0.2"}"#).unwrap();
    let metadata = RecordMetadata::default();
    let bindings = ExpressionBindings::new(&record, &metadata, &NoHost);
    let value = sum.evaluate(&bindings, &mut StepBudget::default()).unwrap();
    assert_eq!(value.to_json().unwrap(), "0.3");
}

#[test]
fn a_million_cents_are_ten_thousand() {
    let scope = ExpressionScope::of(ObjectType::closed([
        ("total", FlowType::Decimal),
        ("cent", FlowType::Decimal),
    ]));
    let sum = checked("total + cent", &scope).unwrap();
    let metadata = RecordMetadata::default();
    let mut record = JsonRecord::of_text(r#"{"total":0.00,"cent":0.01}"#).unwrap();
    for _ in 0..1_000_000 {
        let bindings = ExpressionBindings::new(&record, &metadata, &NoHost);
        let value = sum.evaluate(&bindings, &mut StepBudget::default()).unwrap();
        let total = value.into_owned();
        record.set("total", &total).unwrap();
    }
    assert_eq!(record.to_string(), r#"{"total":10000.00,"cent":0.01}"#);
    let read = record.get("total", &FlowType::Decimal).unwrap();
    assert_eq!(read, Some(FlowValue::Decimal("10000.00".parse().unwrap())));
}
