//! The functions of expressions, carried out.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a value of any other type is refused, also of one that is added later"
)]

use std::borrow::Cow;

use regex::RegexBuilder;
use rust_decimal::prelude::{FromPrimitive as _, ToPrimitive as _};
use rust_decimal::{Decimal, RoundingStrategy};

use super::check::{MAX_PATTERN_BYTES, TYPE_NAMES};
use super::evaluate::{EvaluationResult, Evaluator};
use super::functions::Function;
use super::{EvaluationFailure, times};
use crate::value::{FlowType, FlowValue, decimal, duration, in_range, timestamp};

use FlowValue as V;

/// Digits after the point that `round` may keep.
const MAX_SCALE: i64 = 28;

pub(super) fn apply<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    function: Function,
    arguments: &[FlowValue<'a>],
) -> EvaluationResult<FlowValue<'a>> {
    for argument in arguments {
        if let V::String(text) = argument {
            evaluator.pay(text.len())?;
        }
    }
    let found = match (function, arguments) {
        (Function::Size, [value]) => size(value).map(V::Integer),
        (Function::LowerAscii, [V::String(text)]) => {
            Some(V::String(text.to_ascii_lowercase().into()))
        }
        (Function::UpperAscii, [V::String(text)]) => {
            Some(V::String(text.to_ascii_uppercase().into()))
        }
        (Function::Trim, [V::String(text)]) => Some(V::String(text.trim().to_owned().into())),
        (Function::Split, [V::String(text), V::String(by)]) => {
            let parts: Vec<_> = text
                .split(&**by)
                .map(|part| V::String(part.to_owned().into()))
                .collect();
            evaluator.pay(parts.len() * 4)?;
            Some(V::list(parts))
        }
        (Function::Join, [V::List(parts), rest @ ..]) => {
            let by = match rest {
                [V::String(by), ..] => &**by,
                _ => "",
            };
            return join(evaluator, parts, by);
        }
        (Function::Replace, [V::String(text), V::String(from), V::String(to)]) => {
            let most = (text.len() + 1).saturating_mul(to.len().max(1));
            evaluator.pay(if from.is_empty() {
                most
            } else {
                most / from.len()
            })?;
            Some(V::String(text.replace(&**from, to).into()))
        }
        (Function::Substring, [V::String(text), V::Integer(from)]) => {
            return substring(text, *from, None);
        }
        (Function::Substring, [V::String(text), V::Integer(from), V::Integer(to)]) => {
            return substring(text, *from, Some(*to));
        }
        (Function::IndexOf, [V::String(text), V::String(part)]) => {
            let at = text.find(&**part).map(|at| text[..at].chars().count());
            Some(V::Integer(
                at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1),
            ))
        }
        (Function::Matches, [V::String(text), V::String(pattern)]) => {
            // Compiling takes far longer than matching.
            evaluator.pay(1_000 + pattern.len() * 64)?;
            let regex = RegexBuilder::new(pattern)
                .size_limit(MAX_PATTERN_BYTES)
                .build();
            let regex = regex.map_err(|_| {
                let message = "the pattern is not a regular expression, or too large";
                EvaluationFailure::new("expr.pattern", message)
            })?;
            Some(V::Boolean(regex.is_match(text)))
        }
        (Function::Dynamic, [value]) => Some(value.clone()),
        (Function::TypeOf, [value]) => Some(V::Type(type_name(value))),
        (Function::Now, []) => Some(V::Timestamp(evaluator.bindings.now)),
        (Function::Round, [value, V::Integer(places)]) => match value {
            V::Decimal(_) | V::Integer(_) => return round(value, *places),
            _ => None,
        },
        (
            Function::ToInteger
            | Function::ToUnsigned
            | Function::ToDouble
            | Function::ToDecimal
            | Function::ToText
            | Function::ToBytes
            | Function::ToBoolean
            | Function::ToTimestamp
            | Function::ToDuration,
            [value],
        ) => return convert(function, value),
        (_, [value, zone @ ..]) => times::getter(function, value, zone.first())?,
        _ => None,
    };
    found.ok_or_else(|| {
        let kinds: Vec<String> = arguments
            .iter()
            .map(|value| value.kind().to_string())
            .collect();
        EvaluationFailure::kind(format!("the function does not take ({})", kinds.join(", ")))
    })
}

fn size(value: &FlowValue<'_>) -> Option<i64> {
    let size = match value {
        V::String(text) => text.chars().count(),
        V::Bytes(bytes) => bytes.len(),
        V::List(values) => values.len(),
        V::Map(entries) => entries.len(),
        _ => return None,
    };
    i64::try_from(size).ok()
}

fn type_name(value: &FlowValue<'_>) -> &'static str {
    let kind = value.kind();
    match (
        TYPE_NAMES.into_iter().find(|(_, known)| *known == kind),
        kind,
    ) {
        (Some((name, _)), _) => name,
        (None, FlowType::List(_)) => "list",
        (None, _) => "map",
    }
}

fn join<'a>(
    evaluator: &mut Evaluator<'_, '_>,
    parts: &[FlowValue<'a>],
    by: &str,
) -> EvaluationResult<FlowValue<'a>> {
    let mut joined = String::new();
    for (at, part) in parts.iter().enumerate() {
        let V::String(part) = part else {
            let message = format!("`join` needs strings, this is {}", part.kind());
            return Err(EvaluationFailure::kind(message));
        };
        evaluator.pay(part.len() + by.len() + 1)?;
        if at > 0 {
            joined.push_str(by);
        }
        joined.push_str(part);
    }
    Ok(V::String(joined.into()))
}

fn substring<'a>(text: &str, from: i64, to: Option<i64>) -> EvaluationResult<FlowValue<'a>> {
    let count = text.chars().count();
    let at = |index: i64| usize::try_from(index).ok().filter(|at| *at <= count);
    let range = at(from).zip(at(to.unwrap_or(count as i64)));
    let Some((from, to)) = range.filter(|(from, to)| from <= to) else {
        let message = format!("the text has {count} characters, not those that are asked for");
        return Err(EvaluationFailure::new("expr.index", message));
    };
    let part: String = text.chars().skip(from).take(to - from).collect();
    Ok(V::String(part.into()))
}

/// Halves go to the even neighbor, as in accounting.
fn round<'a>(value: &FlowValue<'_>, places: i64) -> EvaluationResult<FlowValue<'a>> {
    let number = match value {
        V::Decimal(number) => *number,
        V::Integer(number) => Decimal::from(*number),
        other => {
            return Err(EvaluationFailure::kind(format!(
                "`round` does not take {}",
                other.kind()
            )));
        }
    };
    let Some(places) = u32::try_from(places)
        .ok()
        .filter(|p| i64::from(*p) <= MAX_SCALE)
    else {
        let message = format!("`round` keeps 0 to {MAX_SCALE} digits, not {places}");
        return Err(EvaluationFailure::new("expr.convert", message));
    };
    let mut rounded = number.round_dp_with_strategy(places, RoundingStrategy::MidpointNearestEven);
    rounded.rescale(places);
    Ok(V::Decimal(rounded))
}

fn convert<'a>(function: Function, value: &FlowValue<'a>) -> EvaluationResult<FlowValue<'a>> {
    let (wanted, found) = match function {
        Function::ToInteger => (FlowType::Integer, integer(value).map(V::Integer)),
        Function::ToUnsigned => (FlowType::Unsigned, unsigned(value).map(V::Unsigned)),
        Function::ToDouble => (FlowType::Double, double(value).map(V::Double)),
        Function::ToDecimal => {
            let number = match value {
                V::Decimal(number) => Some(*number),
                V::Integer(number) => Some(Decimal::from(*number)),
                V::Unsigned(number) => Some(Decimal::from(*number)),
                V::String(digits) => decimal(digits),
                _ => None,
            };
            (FlowType::Decimal, number.map(V::Decimal))
        }
        Function::ToText => (FlowType::String, value.to_text().map(V::String)),
        Function::ToBytes => {
            let bytes = match value {
                V::Bytes(bytes) => Some(bytes.clone()),
                V::String(text) => Some(Cow::Owned(text.as_bytes().to_vec())),
                _ => None,
            };
            (FlowType::Bytes, bytes.map(V::Bytes))
        }
        Function::ToBoolean => {
            let yes = match value {
                V::Boolean(yes) => Some(*yes),
                V::String(text) => match &**text {
                    "1" | "t" | "true" | "TRUE" | "True" => Some(true),
                    "0" | "f" | "false" | "FALSE" | "False" => Some(false),
                    _ => None,
                },
                _ => None,
            };
            (FlowType::Boolean, yes.map(V::Boolean))
        }
        Function::ToTimestamp => {
            let time = match value {
                V::Timestamp(time) => Some(*time),
                V::String(text) => timestamp(text),
                V::Integer(seconds) => jiff::Timestamp::from_second(*seconds)
                    .ok()
                    .and_then(in_range),
                _ => None,
            };
            (FlowType::Timestamp, time.map(V::Timestamp))
        }
        _ => {
            let length = match value {
                V::Duration(length) => Some(*length),
                V::String(text) => duration(text),
                _ => None,
            };
            (FlowType::Duration, length.map(V::Duration))
        }
    };
    found.ok_or_else(|| {
        let shown: String = value
            .to_text()
            .unwrap_or_default()
            .chars()
            .take(40)
            .collect();
        let message = format!("{} `{shown}` cannot become {wanted}", value.kind());
        EvaluationFailure::new("expr.convert", message)
    })
}

fn integer(value: &FlowValue<'_>) -> Option<i64> {
    match value {
        V::Integer(number) => Some(*number),
        V::Unsigned(number) => i64::try_from(*number).ok(),
        // The ends of the range are no doubles; those that lie inside are cut to whole numbers.
        #[expect(clippy::cast_possible_truncation, reason = "inside of the range")]
        V::Double(number) => (number.abs() < 9_223_372_036_854_775_808.0).then_some(*number as i64),
        V::Decimal(number) => number.trunc().to_i64(),
        V::String(text) => text.parse().ok(),
        V::Timestamp(time) => Some(time.as_second()),
        _ => None,
    }
}

fn unsigned(value: &FlowValue<'_>) -> Option<u64> {
    match value {
        V::Integer(number) => u64::try_from(*number).ok(),
        V::Unsigned(number) => Some(*number),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "inside of the range"
        )]
        V::Double(number) => {
            (*number >= 0.0 && *number < 18_446_744_073_709_551_616.0).then_some(*number as u64)
        }
        V::Decimal(number) => number.trunc().to_u64(),
        V::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn double(value: &FlowValue<'_>) -> Option<f64> {
    match value {
        V::Integer(number) => f64::from_i64(*number),
        V::Unsigned(number) => f64::from_u64(*number),
        V::Double(number) => Some(*number),
        V::Decimal(number) => number.to_f64(),
        V::String(text) => text.parse().ok(),
        _ => None,
    }
}
