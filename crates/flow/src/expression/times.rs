//! Parts of timestamps and durations.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a value of any other type is refused, also of one that is added later"
)]

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use super::EvaluationFailure;
use super::evaluate::EvaluationResult;
use super::functions::Function;
use crate::value::{FlowValue, timestamp};

/// The part of a time that a function asks for; none where the value is no time.
pub(super) fn getter<'a>(
    function: Function,
    value: &FlowValue<'_>,
    zone: Option<&FlowValue<'_>>,
) -> EvaluationResult<Option<FlowValue<'a>>> {
    if let FlowValue::Duration(length) = value {
        let part = match function {
            Function::Hours => i128::from(length.as_secs() / 3_600),
            Function::Minutes => i128::from(length.as_secs() / 60),
            Function::Seconds => i128::from(length.as_secs()),
            Function::Milliseconds => i128::from(length.subsec_millis()),
            _ => return Ok(None),
        };
        return Ok(i64::try_from(part).ok().map(FlowValue::Integer));
    }
    let time = match value {
        FlowValue::Timestamp(time) => Some(*time),
        // Without a schema, a time is still the text that came.
        FlowValue::String(text) => timestamp(text),
        _ => None,
    };
    let Some(time) = time else { return Ok(None) };
    let zone = match zone {
        Some(FlowValue::String(name)) => zone_of(name)?,
        Some(_) => return Ok(None),
        None => TimeZone::UTC,
    };
    Ok(part(function, time, zone).map(FlowValue::Integer))
}

/// Fixed offsets only: the rules of named zones change, and a replay must compute the same.
fn zone_of(name: &str) -> EvaluationResult<TimeZone> {
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

fn part(function: Function, time: Timestamp, zone: TimeZone) -> Option<i64> {
    let local = time.to_zoned(zone);
    Some(match function {
        Function::Year => i64::from(local.year()),
        Function::Month => i64::from(local.month()) - 1,
        Function::Date => i64::from(local.day()),
        Function::DayOfMonth => i64::from(local.day()) - 1,
        Function::DayOfWeek => i64::from(local.weekday().to_sunday_zero_offset()),
        Function::DayOfYear => i64::from(local.day_of_year()) - 1,
        Function::Hours => i64::from(local.hour()),
        Function::Minutes => i64::from(local.minute()),
        Function::Seconds => i64::from(local.second()),
        Function::Milliseconds => i64::from(local.millisecond()),
        _ => return None,
    })
}
