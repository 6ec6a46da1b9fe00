//! Whether a record holds a schema.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other types need no further look"
)]

use std::cmp::Ordering;

use super::{ConstraintPlan, FieldPlan, FieldType, LiteralPlan};
use crate::value::{FlowType, FlowValue, JsonRecord, Member, Scanner};

/// Fills in defaults, and says what breaks the fields. Fields inside of others hold their rules as well.
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
                let filled = conform_value(raw, &field.kind)
                    .map_err(|error| format!("the field `{name}`: {error}"))?;
                let mut constraints = field.constraints.iter();
                if let Some(error) = constraints.find_map(|rule| broken(raw, &field.kind, rule)) {
                    return Err(format!("the field `{name}` {error}"));
                }
                if let Some(filled) = filled {
                    record.set_raw(name, filled);
                }
            }
        }
    }
    Ok(())
}

/// Checks a value of a type. The answer is its text where defaults were filled in.
fn conform_value(raw: &str, kind: &FieldType) -> Result<Option<String>, String> {
    let wrong = || {
        format!(
            "`{}` is not of its type",
            raw.chars().take(40).collect::<String>()
        )
    };
    match kind {
        FieldType::Object(fields) => {
            let mut inner = JsonRecord::of_text(raw).map_err(|_| wrong())?;
            conform(&mut inner, fields)?;
            Ok(inner.is_changed().then(|| inner.to_string()))
        }
        FieldType::List(of) => {
            let mut places = Vec::new();
            let scanned = Scanner::new(raw).list(0, &mut |place| places.push(place));
            scanned.map_err(|_| wrong())?;
            let parts = places.into_iter().enumerate();
            filled(
                raw,
                of,
                parts.map(|(at, place)| (format!("element {at}"), place)),
            )
        }
        FieldType::Map(of) => {
            let mut parts = Vec::new();
            let scanned = Scanner::new(raw).object(0, &mut |Member { name, value }| {
                parts.push((format!("`{}`", name.decode(raw)), value));
            });
            scanned.map_err(|_| wrong())?;
            filled(raw, of, parts.into_iter())
        }
        _ => scalar(raw, kind).then_some(None).ok_or_else(wrong),
    }
}

/// Checks the parts of a list or a map, which stand at these places and are never null.
fn filled(
    raw: &str,
    of: &FieldType,
    parts: impl Iterator<Item = (String, (u32, u32))>,
) -> Result<Option<String>, String> {
    let (mut text, mut copied) = (String::new(), 0);
    for (name, (start, end)) in parts {
        let (start, end) = (start as usize, end as usize);
        let part = &raw[start..end];
        if part == "null" && *of != FieldType::Json {
            return Err(format!("{name} is null"));
        }
        let part = conform_value(part, of).map_err(|error| format!("{name}: {error}"))?;
        if let Some(part) = part {
            text.push_str(&raw[copied..start]);
            text.push_str(&part);
            copied = end;
        }
    }
    if copied == 0 {
        return Ok(None);
    }
    text.push_str(&raw[copied..]);
    Ok(Some(text))
}

/// Whether a value without parts is of its type.
fn scalar(raw: &str, kind: &FieldType) -> bool {
    let Ok(value) = FlowValue::from_json(raw, &kind.to_flow_type()) else {
        return false;
    };
    match (kind, &value) {
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
        _ => true,
    }
}

/// Whether the default of a field is a value that the field may have.
pub(crate) fn has_fitting_default(field: &FieldPlan) -> bool {
    let Some(default) = &field.default else {
        return true;
    };
    let text = default.to_json();
    let mut constraints = field.constraints.iter();
    FlowValue::parse_json(&text, &FlowType::Dynamic).is_ok()
        && conform_value(&text, &field.kind).is_ok()
        && constraints.all(|rule| broken(&text, &field.kind, rule).is_none())
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
            let is_kept = text.is_some_and(|text| pattern.matches(&text));
            (is_kept, format!("does not match `{}`", pattern.text))
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
