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

/// A power of ten moves the point; it never rounds.
#[test]
fn an_exponent_keeps_every_digit_or_is_refused() {
    let read = |digits: &str| {
        let value = FlowValue::parse_json(digits, &FlowType::Decimal);
        value.map_or_else(|_| "refused".to_owned(), |value| value.to_json().unwrap())
    };
    for (digits, expect) in [
        ("1e3", "1000"),
        ("1E+3", "1000"),
        ("12.50e1", "125.0"),
        ("12.50e2", "1250"),
        ("1.5e-3", "0.0015"),
        ("0e99", "0"),
        ("-2.5e0", "-2.5"),
        ("1e28", "10000000000000000000000000000"),
        ("1e-28", "0.0000000000000000000000000001"),
        ("1e-29", "refused"),
        ("1.23e-27", "refused"),
        ("1.20e-27", "0.0000000000000000000000000012"),
        ("1e29", "refused"),
        ("1.23456789012345678901234567890123e0", "refused"),
        ("12345678901234567890123456789012345e-10", "refused"),
        ("1e99999999999999999999", "refused"),
        ("\"1_0e1\"", "refused"),
        ("\"1e\"", "refused"),
        ("\"e1\"", "refused"),
        ("\"1e1.5\"", "refused"),
    ] {
        assert_eq!(read(digits), expect, "{digits}");
    }
}
