//! The functions of expressions, carried out.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a value of any other type is refused, also of one that is added later"
)]

use std::borrow::Cow;

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use regex::{Regex, RegexBuilder};
use rust_decimal::prelude::{FromPrimitive as _, ToPrimitive as _};
use rust_decimal::{Decimal, RoundingStrategy};

use super::EvaluationFailure;
use super::check::TYPE_NAMES;
use super::evaluate::{Evaluated, EvaluationResult, Evaluator};
use super::functions::{FunctionRow, FunctionWork};
use crate::value::{FlowType, FlowValue, decimal, duration, in_range, timestamp};

use FlowValue as V;

/// Digits after the point that `round` may keep.
const MAX_SCALE: u32 = 28;
/// Bytes that a compiled pattern may take.
pub const MAX_PATTERN_BYTES: usize = 256 * 1024;

/// The answer of a function, or none to values of other types.
type Answer<'a> = EvaluationResult<Option<FlowValue<'a>>>;

pub(super) fn apply<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    row: &FunctionRow,
    arguments: &[FlowValue<'a>],
) -> Evaluated<'a> {
    for argument in arguments {
        if let V::String(text) = argument {
            evaluator.pay(text.len())?;
        }
    }
    let found = match (row.work, arguments) {
        (FunctionWork::Any(work), values) => work(evaluator, values)?,
        (FunctionWork::Convert(convert), [value]) => match convert(value) {
            None if row.name != "size" => return Err(not_converted(value, &row.result)),
            converted => converted,
        },
        (FunctionWork::Time(_, Some(of)), [V::Duration(length)]) => Some(V::Integer(of(*length))),
        (FunctionWork::Time(of, _), [value, zone @ ..]) => match time(value) {
            Some(time) => Some(V::Integer(of(&time.to_zoned(zone_of(zone.first())?)))),
            None => None,
        },
        _ => None,
    };
    found.ok_or_else(|| {
        let kinds = arguments.iter().map(|value| value.kind().to_string());
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        EvaluationFailure::kind(format!("the function does not take ({kinds})"))
    })
}

fn not_converted(value: &FlowValue<'_>, wanted: &FlowType) -> Box<EvaluationFailure> {
    let text = value.to_text().unwrap_or_default();
    let shown: String = text.chars().take(40).collect();
    let message = format!("{} `{shown}` cannot become {wanted}", value.kind());
    EvaluationFailure::new("expr.convert", message)
}

/// Without a schema, a time is still the text that came.
fn time(value: &FlowValue<'_>) -> Option<Timestamp> {
    match value {
        V::Timestamp(time) => Some(*time),
        V::String(text) => timestamp(text),
        _ => None,
    }
}

/// Fixed offsets only: the rules of named zones change, and a replay must compute the same.
fn zone_of(zone: Option<&FlowValue<'_>>) -> EvaluationResult<TimeZone> {
    let name = match zone {
        None => "UTC",
        Some(V::String(name)) => &**name,
        Some(other) => {
            let message = format!("a zone is a string, this is {}", other.kind());
            return Err(EvaluationFailure::kind(message));
        }
    };
    if name == "UTC" || name == "Z" {
        return Ok(TimeZone::UTC);
    }
    let (sign, rest) = match name.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, name.strip_prefix('+').unwrap_or(name)),
    };
    let number = |text: &str| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| text.parse::<i32>().ok()).flatten()
    };
    let seconds = rest.split_once(':').and_then(|(hours, minutes)| {
        Some(sign * (number(hours)? * 3_600 + number(minutes).filter(|m| *m < 60)? * 60))
    });
    let offset = seconds.and_then(|seconds| Offset::from_seconds(seconds).ok());
    offset.map(TimeZone::fixed).ok_or_else(|| {
        let message = format!("`{name}` is no offset; one is `UTC` or `+01:00`");
        EvaluationFailure::new("expr.convert", message)
    })
}

pub(super) fn type_name(value: &FlowValue<'_>) -> &'static str {
    let kind = value.kind();
    let named = TYPE_NAMES.into_iter().find(|(_, known)| *known == kind);
    match (named, kind) {
        (Some((name, _)), _) => name,
        (None, FlowType::List(_)) => "list",
        (None, _) => "map",
    }
}

/// A pattern whose compiled form has a limit.
pub(crate) fn pattern(text: &str) -> Result<Regex, regex::Error> {
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(MAX_PATTERN_BYTES).build()
}

pub(super) fn text<'a>(values: &[FlowValue<'a>], change: fn(&str) -> String) -> Answer<'a> {
    Ok(match values {
        [V::String(text)] => Some(V::String(change(text).into())),
        _ => None,
    })
}

pub(super) fn matches<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    values: &[FlowValue<'a>],
) -> Answer<'a> {
    let [V::String(text), V::String(written)] = values else {
        return Ok(None);
    };
    // Compiling takes far longer than matching.
    evaluator.pay(1_000 + written.len() * 64)?;
    let Ok(regex) = pattern(written) else {
        let message = "the pattern is not a regular expression, or too large";
        return Err(EvaluationFailure::new("expr.pattern", message));
    };
    Ok(Some(V::Boolean(regex.is_match(text))))
}

pub(super) fn split<'a>(evaluator: &mut Evaluator<'a, '_>, values: &[FlowValue<'a>]) -> Answer<'a> {
    let [V::String(text), V::String(by)] = values else {
        return Ok(None);
    };
    let parts = text.split(&**by);
    let parts: Vec<_> = parts
        .map(|part| V::String(part.to_owned().into()))
        .collect();
    evaluator.pay(parts.len() * 4)?;
    Ok(Some(V::list(parts)))
}

pub(super) fn join<'a>(evaluator: &mut Evaluator<'a, '_>, values: &[FlowValue<'a>]) -> Answer<'a> {
    let (parts, by) = match values {
        [V::List(parts)] => (parts, ""),
        [V::List(parts), V::String(by)] => (parts, &**by),
        _ => return Ok(None),
    };
    let mut joined = String::new();
    for (at, part) in parts.iter().enumerate() {
        let V::String(part) = part else {
            let message = format!("`join` needs strings, this is {}", part.kind());
            return Err(EvaluationFailure::kind(message));
        };
        evaluator.pay(part.len() + by.len() + 1)?;
        joined.push_str(if at > 0 { by } else { "" });
        joined.push_str(part);
    }
    Ok(Some(V::String(joined.into())))
}

pub(super) fn replace<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    values: &[FlowValue<'a>],
) -> Answer<'a> {
    let [V::String(text), V::String(from), V::String(to)] = values else {
        return Ok(None);
    };
    let most = (text.len() + 1).saturating_mul(to.len().max(1));
    evaluator.pay(most / from.len().max(1))?;
    Ok(Some(V::String(text.replace(&**from, to).into())))
}

pub(super) fn substring<'a>(_: &mut Evaluator<'a, '_>, values: &[FlowValue<'a>]) -> Answer<'a> {
    let (text, from, to) = match values {
        [V::String(text), V::Integer(from)] => (text, *from, None),
        [V::String(text), V::Integer(from), V::Integer(to)] => (text, *from, Some(*to)),
        _ => return Ok(None),
    };
    let count = text.chars().count();
    let at = |index: i64| usize::try_from(index).ok().filter(|at| *at <= count);
    let range = at(from).zip(to.map_or(Some(count), at));
    let Some((from, to)) = range.filter(|(from, to)| from <= to) else {
        let message = format!("the text has {count} characters, not those that are asked for");
        return Err(EvaluationFailure::new("expr.index", message));
    };
    let part: String = text.chars().skip(from).take(to - from).collect();
    Ok(Some(V::String(part.into())))
}

pub(super) fn index_of<'a>(_: &mut Evaluator<'a, '_>, values: &[FlowValue<'a>]) -> Answer<'a> {
    let [V::String(text), V::String(part)] = values else {
        return Ok(None);
    };
    let at = text.find(&**part).map(|at| text[..at].chars().count());
    let at = at.and_then(|at| i64::try_from(at).ok());
    Ok(Some(V::Integer(at.unwrap_or(-1))))
}

/// Halves go to the even neighbor, as in accounting.
pub(super) fn round<'a>(_: &mut Evaluator<'a, '_>, values: &[FlowValue<'a>]) -> Answer<'a> {
    let (number, places) = match values {
        [V::Decimal(number), V::Integer(places)] => (*number, *places),
        [V::Integer(number), V::Integer(places)] => (Decimal::from(*number), *places),
        _ => return Ok(None),
    };
    let Some(places) = u32::try_from(places).ok().filter(|p| *p <= MAX_SCALE) else {
        let message = format!("`round` keeps 0 to {MAX_SCALE} digits, not {places}");
        return Err(EvaluationFailure::new("expr.convert", message));
    };
    let mut rounded = number.round_dp_with_strategy(places, RoundingStrategy::MidpointNearestEven);
    rounded.rescale(places);
    Ok(Some(V::Decimal(rounded)))
}

pub(super) fn size<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    let size = match value {
        V::String(text) => text.chars().count(),
        V::Bytes(bytes) => bytes.len(),
        V::List(values) => values.len(),
        V::Map(entries) => entries.len(),
        _ => return None,
    };
    i64::try_from(size).ok().map(V::Integer)
}

pub(super) fn to_integer<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    let number = match value {
        V::Integer(number) => Some(*number),
        V::Unsigned(number) => i64::try_from(*number).ok(),
        // The ends of the range are no doubles; those that lie inside are cut to whole numbers.
        #[expect(clippy::cast_possible_truncation, reason = "inside of the range")]
        V::Double(number) => (number.abs() < 9_223_372_036_854_775_808.0).then_some(*number as i64),
        V::Decimal(number) => number.trunc().to_i64(),
        V::String(text) => text.parse().ok(),
        V::Timestamp(time) => Some(time.as_second()),
        _ => None,
    };
    number.map(V::Integer)
}

pub(super) fn to_unsigned<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    let number = match value {
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
    };
    number.map(V::Unsigned)
}

pub(super) fn to_double<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    let number = match value {
        V::Integer(number) => f64::from_i64(*number),
        V::Unsigned(number) => f64::from_u64(*number),
        V::Double(number) => Some(*number),
        V::Decimal(number) => number.to_f64(),
        V::String(text) => text.parse().ok(),
        _ => None,
    };
    number.map(V::Double)
}

pub(super) fn to_decimal<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    let number = match value {
        V::Decimal(number) => Some(*number),
        V::Integer(number) => Some(Decimal::from(*number)),
        V::Unsigned(number) => Some(Decimal::from(*number)),
        V::String(digits) => decimal(digits),
        _ => None,
    };
    number.map(V::Decimal)
}

pub(super) fn to_bytes<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    match value {
        V::Bytes(bytes) => Some(V::Bytes(bytes.clone())),
        V::String(text) => Some(V::Bytes(Cow::Owned(text.as_bytes().to_vec()))),
        _ => None,
    }
}

pub(super) fn to_boolean<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    let text = match value {
        V::Boolean(yes) => return Some(V::Boolean(*yes)),
        V::String(text) => &**text,
        _ => return None,
    };
    match text {
        "1" | "t" | "true" | "TRUE" | "True" => Some(V::Boolean(true)),
        "0" | "f" | "false" | "FALSE" | "False" => Some(V::Boolean(false)),
        _ => None,
    }
}

pub(super) fn to_timestamp<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    let time = match value {
        V::Integer(seconds) => Timestamp::from_second(*seconds).ok().and_then(in_range),
        value => time(value),
    };
    time.map(V::Timestamp)
}

pub(super) fn to_duration<'a>(value: &FlowValue<'a>) -> Option<FlowValue<'a>> {
    match value {
        V::Duration(length) => Some(V::Duration(*length)),
        V::String(text) => duration(text).map(V::Duration),
        _ => None,
    }
}
