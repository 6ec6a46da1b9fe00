//! Paths, keys and schemas of records.

use regex::Regex;

use crate::plan::{ConstraintPlan, FieldPlan, FieldType, LiteralPlan};
use crate::value::{FlowType, FlowValue, JsonRecord, member};

/// The JSON text at a path.
pub(super) fn raw_at<'r>(record: &'r JsonRecord, path: &str) -> Option<&'r str> {
    let mut names = path.split('.');
    let mut raw = record.raw(names.next()?)?;
    for name in names {
        raw = member(raw, name)?;
    }
    Some(raw)
}

/// Sets the JSON text at a path; objects on the way are made.
pub(super) fn set_at(record: &mut JsonRecord, path: &str, text: &str) {
    let Some((name, rest)) = path.split_once('.') else {
        record.set_raw(path, text);
        return;
    };
    let inner = record
        .raw(name)
        .and_then(|raw| JsonRecord::of_text(raw).ok());
    let mut inner = inner.unwrap_or_default();
    set_at(&mut inner, rest, text);
    record.set_raw(name, inner.to_string());
}

/// Keeps only these paths.
pub(super) fn keep(record: &mut JsonRecord, paths: &[String]) {
    let mut kept = record.clone();
    kept.retain(|name| paths.iter().any(|path| path == name));
    for path in paths.iter().filter(|path| path.contains('.')) {
        if let Some(raw) = raw_at(record, path) {
            set_at(&mut kept, path, raw);
        }
    }
    *record = kept;
}

/// Removes these paths.
pub(super) fn remove(record: &mut JsonRecord, paths: &[String]) {
    for path in paths {
        let Some((name, rest)) = path.split_once('.') else {
            record.remove(path);
            continue;
        };
        let inner = record
            .raw(name)
            .and_then(|raw| JsonRecord::of_text(raw).ok());
        if let Some(mut inner) = inner {
            remove(&mut inner, &[rest.to_owned()]);
            record.set_raw(name, inner.to_string());
        }
    }
}

/// The last name of a path, which a key has in a result.
pub(super) fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The key of a record as one text: the same for the same values.
pub(super) fn key_of(record: &JsonRecord, paths: &[String]) -> String {
    let texts = paths.iter().map(|path| match raw_at(record, path) {
        None => "null".to_owned(),
        Some(raw) => match FlowValue::from_json(raw, &FlowType::Dynamic) {
            Ok(FlowValue::String(text)) => text.into_owned(),
            Ok(_) | Err(_) => raw.to_owned(),
        },
    });
    texts.collect::<Vec<_>>().join(",")
}

/// A record with nothing but the key fields of another one.
pub(super) fn key_record(record: &JsonRecord, paths: &[String]) -> JsonRecord {
    let mut keys = JsonRecord::default();
    for path in paths {
        keys.set_raw(last_name(path), raw_at(record, path).unwrap_or("null"));
    }
    keys
}

/// Fills in defaults, and says what breaks the fields.
pub(super) fn conform(record: &mut JsonRecord, fields: &[FieldPlan]) -> Result<(), String> {
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
                for constraint in &field.constraints {
                    keeps(raw, &field.kind, constraint)
                        .map_err(|error| format!("the field `{name}` {error}"))?;
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

fn keeps(raw: &str, kind: &FieldType, constraint: &ConstraintPlan) -> Result<(), String> {
    let text = || match FlowValue::from_json(raw, &FlowType::String) {
        Ok(FlowValue::String(text)) => Some(text.into_owned()),
        Ok(_) | Err(_) => None,
    };
    match constraint {
        ConstraintPlan::Range(low, high) => {
            let is_double = kind.to_flow_type() == FlowType::Double;
            let kind = if is_double {
                FlowType::Double
            } else {
                FlowType::Decimal
            };
            let parts = [raw, low, high].map(|part| FlowValue::from_json(part, &kind));
            let is_inside = match parts {
                [Ok(value), Ok(low), Ok(high)] => {
                    let at_least = value
                        .order(&low)
                        .is_ok_and(|order| order.is_some_and(|o| o.is_ge()));
                    at_least
                        && value
                            .order(&high)
                            .is_ok_and(|order| order.is_some_and(|o| o.is_le()))
                }
                _ => false,
            };
            is_inside
                .then_some(())
                .ok_or_else(|| format!("is not in {low}..{high}"))
        }
        ConstraintPlan::Length(low, high) => {
            let length = text().map_or(0, |text| text.chars().count() as u64);
            let is_inside = (*low..=*high).contains(&length);
            is_inside
                .then_some(())
                .ok_or_else(|| format!("has not {low} to {high} characters"))
        }
        ConstraintPlan::Pattern(pattern) => {
            let regex = Regex::new(&format!("^(?:{pattern})$"));
            let matches = regex.is_ok_and(|regex| text().is_some_and(|text| regex.is_match(&text)));
            matches
                .then_some(())
                .ok_or_else(|| format!("does not match `{pattern}`"))
        }
        ConstraintPlan::Values(values) => {
            let is_listed = values.iter().any(|value| is_literal(raw, value));
            is_listed
                .then_some(())
                .ok_or_else(|| "is none of its values".to_owned())
        }
    }
}

/// Whether a JSON text is a literal; numbers are compared by their value.
pub(super) fn is_literal(raw: &str, literal: &LiteralPlan) -> bool {
    let literal = literal.to_json();
    let parse =
        |text: &str| FlowValue::parse_json(text, &FlowType::Decimal).map(FlowValue::into_owned);
    match (parse(raw), parse(&literal)) {
        (Ok(a), Ok(b)) if !raw.starts_with('"') && !literal.starts_with('"') => a == b,
        _ => {
            let dynamic = |text: &str| {
                FlowValue::parse_json(text, &FlowType::Dynamic).map(FlowValue::into_owned)
            };
            matches!((dynamic(raw), dynamic(&literal)), (Ok(a), Ok(b)) if a == b)
        }
    }
}
