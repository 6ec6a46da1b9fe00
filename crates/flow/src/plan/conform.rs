//! Whether a record holds a schema.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other types need no further look"
)]

use std::cmp::Ordering;

use regex::Regex;

use super::{ConstraintPlan, FieldPlan, FieldType, LiteralPlan};
use crate::value::{FlowType, FlowValue, JsonRecord};

/// Fills in defaults, and says what breaks the fields.
pub(crate) fn conform(record: &mut JsonRecord, fields: &[FieldPlan]) -> Result<(), String> {
    for field in fields {
        let name = &field.name;
        match record.raw(name) {
            None | Some("null") => match &field.default {
                Some(default) => record.set_raw(name, default.to_json()),
                None if field.optional => {}
                None => return Err(format!("the field `{name}` is missing")),
            },
            Some(raw) => {
                check_field(raw, &field.kind)
                    .map_err(|error| format!("the field `{name}`: {error}"))?;
                let mut constraints = field.constraints.iter();
                if let Some(error) = constraints.find_map(|rule| broken(raw, &field.kind, rule)) {
                    return Err(format!("the field `{name}` {error}"));
                }
            }
        }
    }
    Ok(())
}

fn check_field(raw: &str, kind: &FieldType) -> Result<(), String> {
    let value =
        FlowValue::from_json(raw, &kind.to_flow_type()).map_err(|error| error.to_string())?;
    let is_right = match (kind, &value) {
        (FieldType::Date, FlowValue::String(text)) => {
            text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10
        }
        (FieldType::Uuid, FlowValue::String(text)) => {
            text.parse::<tidegate_core::EventId>().is_ok()
        }
        (FieldType::Decimal(Some((digits, scale))), FlowValue::Decimal(number)) => {
            let number = number.normalize();
            let whole = number.trunc().abs().mantissa().to_string();
            let whole = if whole == "0" { 0 } else { whole.len() };
            let whole_limit = digits.saturating_sub(*scale);
            number.scale() <= *scale && u32::try_from(whole).is_ok_and(|whole| whole <= whole_limit)
        }
        (FieldType::Object(fields), FlowValue::Map(_)) => {
            let mut inner = JsonRecord::of_text(raw).map_err(|error| error.to_string())?;
            return conform(&mut inner, fields);
        }
        _ => true,
    };
    if is_right {
        Ok(())
    } else {
        Err(format!("`{raw}` is not of its type"))
    }
}

/// How a value breaks a constraint.
fn broken(raw: &str, kind: &FieldType, constraint: &ConstraintPlan) -> Option<String> {
    let text = match FlowValue::from_json(raw, &FlowType::String) {
        Ok(FlowValue::String(text)) => Some(text),
        Ok(_) | Err(_) => None,
    };
    let (is_kept, error) = match constraint {
        ConstraintPlan::Range(low, high) => {
            let kind = match kind {
                FieldType::Double => FlowType::Double,
                _ => FlowType::Decimal,
            };
            let parts = [raw, low, high].map(|part| FlowValue::from_json(part, &kind));
            let is_kept = matches!(&parts, [Ok(value), Ok(low), Ok(high)]
                if value.order(low).is_ok_and(|order| order.is_some_and(Ordering::is_ge))
                && value.order(high).is_ok_and(|order| order.is_some_and(Ordering::is_le)));
            (is_kept, format!("is not in {low}..{high}"))
        }
        ConstraintPlan::Length(low, high) => {
            let length = text.map_or(0, |text| text.chars().count() as u64);
            let error = format!("has not {low} to {high} characters");
            ((*low..=*high).contains(&length), error)
        }
        ConstraintPlan::Pattern(pattern) => {
            let regex = Regex::new(&format!("^(?:{pattern})$"));
            let is_kept = regex.is_ok_and(|regex| text.is_some_and(|text| regex.is_match(&text)));
            (is_kept, format!("does not match `{pattern}`"))
        }
        ConstraintPlan::Values(values) => {
            let is_kept = values.iter().any(|value| is_literal(raw, value));
            (is_kept, "is none of its values".to_owned())
        }
    };
    (!is_kept).then_some(error)
}

/// Whether a JSON text is a literal; numbers are compared by their value.
pub(crate) fn is_literal(raw: &str, literal: &LiteralPlan) -> bool {
    let literal = literal.to_json();
    let both = |kind: FlowType| {
        let [a, b] = [raw, &literal].map(|text| FlowValue::parse_json(text, &kind).ok());
        a.zip(b).map(|(a, b)| a == b)
    };
    let is_text = raw.starts_with('"') || literal.starts_with('"');
    let numbers = both(FlowType::Decimal).filter(|_| !is_text);
    numbers.or_else(|| both(FlowType::Dynamic)) == Some(true)
}
