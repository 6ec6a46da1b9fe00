//! The functions of expressions: one table for the checker and the evaluator.

use jiff::{SignedDuration, Zoned};

use super::evaluate::{EvaluationResult, Evaluator};
use super::library as lib;
use crate::value::{FlowType, FlowValue};

/// A set of types, one bit each.
pub(crate) type TypeSet = u16;

const BOOLEAN: TypeSet = 1;
const INTEGER: TypeSet = 1 << 1;
const UNSIGNED: TypeSet = 1 << 2;
const DOUBLE: TypeSet = 1 << 3;
const DECIMAL: TypeSet = 1 << 4;
const STRING: TypeSet = 1 << 5;
const BYTES: TypeSet = 1 << 6;
const TIMESTAMP: TypeSet = 1 << 7;
const DURATION: TypeSet = 1 << 8;
const LIST: TypeSet = 1 << 9;
const MAP: TypeSet = 1 << 10;
const ANY: TypeSet = TypeSet::MAX;
const NUMBER: TypeSet = INTEGER | UNSIGNED | DOUBLE | DECIMAL;
const TEXTUAL: TypeSet = BOOLEAN | NUMBER | STRING | BYTES | TIMESTAMP | DURATION;

/// Whether a type is in the set; a dynamic one may be.
fn contains(set: TypeSet, kind: &FlowType) -> bool {
    let bit = match kind {
        FlowType::Boolean => BOOLEAN,
        FlowType::Integer => INTEGER,
        FlowType::Unsigned => UNSIGNED,
        FlowType::Double => DOUBLE,
        FlowType::Decimal => DECIMAL,
        FlowType::String => STRING,
        FlowType::Bytes => BYTES,
        FlowType::Timestamp => TIMESTAMP,
        FlowType::Duration => DURATION,
        FlowType::List(_) => LIST,
        FlowType::Map(_) | FlowType::Object(_) => MAP,
        FlowType::Dynamic => return true,
        FlowType::Null | FlowType::Type => return set == ANY,
    };
    set & bit != 0
}

/// How a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStyle {
    /// `f(x)`
    Global,
    /// `x.f()`; `x` is the first argument.
    Method,
    Both,
}

/// How a function is evaluated; none is the answer to values of other types.
#[derive(Debug, Clone, Copy)]
pub(super) enum FunctionWork {
    /// A question about two texts, which needs no list of arguments.
    Text(fn(&str, &str) -> bool),
    Convert(for<'a> fn(&FlowValue<'a>) -> Option<FlowValue<'a>>),
    /// A part of a time, and of a duration where it has one.
    Time(fn(&Zoned) -> i64, Option<fn(SignedDuration) -> i64>),
    Any(
        for<'a> fn(
            &mut Evaluator<'a, '_>,
            &[FlowValue<'a>],
        ) -> EvaluationResult<Option<FlowValue<'a>>>,
    ),
}

/// A function with one list of parameters.
#[derive(Debug)]
pub(super) struct FunctionRow {
    pub(super) name: &'static str,
    style: CallStyle,
    parameters: &'static [TypeSet],
    pub(super) result: FlowType,
    pub(super) work: FunctionWork,
}

impl FunctionRow {
    pub(super) fn is_called(&self, name: &str, is_method: bool) -> bool {
        let styles = [CallStyle::Global, CallStyle::Method];
        let style = styles[usize::from(is_method)];
        self.name == name && (self.style == CallStyle::Both || self.style == style)
    }

    pub(super) fn takes<'k>(&self, kinds: impl ExactSizeIterator<Item = &'k FlowType>) -> bool {
        let sets = self.parameters.iter();
        kinds.len() == sets.len() && sets.zip(kinds).all(|(set, kind)| contains(*set, kind))
    }
}

const fn row(
    name: &'static str,
    style: CallStyle,
    parameters: &'static [TypeSet],
    result: FlowType,
    work: FunctionWork,
) -> FunctionRow {
    FunctionRow {
        name,
        style,
        parameters,
        result,
        work,
    }
}

/// A part of a time in UTC.
const fn part(name: &'static str, of: fn(&Zoned) -> i64) -> FunctionRow {
    let work = FunctionWork::Time(of, None);
    row(
        name,
        CallStyle::Method,
        &[TIMESTAMP],
        FlowType::Integer,
        work,
    )
}

/// The same in another zone.
const fn zoned(name: &'static str, of: fn(&Zoned) -> i64) -> FunctionRow {
    let work = FunctionWork::Time(of, None);
    row(
        name,
        CallStyle::Method,
        &[TIMESTAMP, STRING],
        FlowType::Integer,
        work,
    )
}

/// A part of a time in UTC, or of a duration.
const fn timed(
    name: &'static str,
    of: fn(&Zoned) -> i64,
    whole: fn(SignedDuration) -> i64,
) -> FunctionRow {
    let work = FunctionWork::Time(of, Some(whole));
    let parameters = &[TIMESTAMP | DURATION];
    row(name, CallStyle::Method, parameters, FlowType::Integer, work)
}

use CallStyle::{Both, Global, Method};
use FlowType as T;
use FunctionWork::{Any, Convert, Text};

/// All functions. One with an argument more or less has a row of its own.
#[rustfmt::skip]
pub(super) static FUNCTIONS: [FunctionRow; 48] = [
    row("contains", Method, &[STRING, STRING], T::Boolean, Text(|text, part| text.contains(part))),
    row("startsWith", Method, &[STRING, STRING], T::Boolean, Text(|text, part| text.starts_with(part))),
    row("endsWith", Method, &[STRING, STRING], T::Boolean, Text(|text, part| text.ends_with(part))),
    row("size", Both, &[STRING | BYTES | LIST | MAP], T::Integer, Convert(lib::size)),
    row("matches", Both, &[STRING, STRING], T::Boolean, Any(lib::matches)),
    row("lowerAscii", Method, &[STRING], T::String, Any(|_, values| lib::text(values, str::to_ascii_lowercase))),
    row("upperAscii", Method, &[STRING], T::String, Any(|_, values| lib::text(values, str::to_ascii_uppercase))),
    row("trim", Method, &[STRING], T::String, Any(|_, values| lib::text(values, |text| text.trim().to_owned()))),
    row("split", Method, &[STRING, STRING], T::Dynamic, Any(lib::split)),
    row("join", Method, &[LIST], T::String, Any(lib::join)),
    row("join", Method, &[LIST, STRING], T::String, Any(lib::join)),
    row("replace", Method, &[STRING, STRING, STRING], T::String, Any(lib::replace)),
    row("substring", Method, &[STRING, INTEGER], T::String, Any(lib::substring)),
    row("substring", Method, &[STRING, INTEGER, INTEGER], T::String, Any(lib::substring)),
    row("indexOf", Method, &[STRING, STRING], T::Integer, Any(lib::index_of)),
    row("int", Global, &[NUMBER | STRING | TIMESTAMP], T::Integer, Convert(lib::to_integer)),
    row("uint", Global, &[NUMBER | STRING], T::Unsigned, Convert(lib::to_unsigned)),
    row("double", Global, &[NUMBER | STRING], T::Double, Convert(lib::to_double)),
    row("decimal", Global, &[INTEGER | UNSIGNED | DECIMAL | STRING], T::Decimal, Convert(lib::to_decimal)),
    row("string", Global, &[TEXTUAL], T::String, Convert(|value| value.to_text().map(FlowValue::String))),
    row("bytes", Global, &[STRING | BYTES], T::Bytes, Convert(lib::to_bytes)),
    row("bool", Global, &[BOOLEAN | STRING], T::Boolean, Convert(lib::to_boolean)),
    row("timestamp", Global, &[STRING | TIMESTAMP | INTEGER], T::Timestamp, Convert(lib::to_timestamp)),
    row("duration", Global, &[STRING | DURATION], T::Duration, Convert(lib::to_duration)),
    row("dyn", Global, &[ANY], T::Dynamic, Convert(|value| Some(value.clone()))),
    row("type", Global, &[ANY], T::Type, Convert(|value| Some(FlowValue::Type(lib::type_name(value))))),
    row("now", Global, &[], T::Timestamp, Any(|evaluator, _| Ok(Some(FlowValue::Timestamp(evaluator.bindings.now))))),
    row("round", Global, &[DECIMAL | INTEGER, INTEGER], T::Decimal, Any(lib::round)),
    part("getFullYear", |time| i64::from(time.year())),
    zoned("getFullYear", |time| i64::from(time.year())),
    part("getMonth", |time| i64::from(time.month()) - 1),
    zoned("getMonth", |time| i64::from(time.month()) - 1),
    part("getDate", |time| i64::from(time.day())),
    zoned("getDate", |time| i64::from(time.day())),
    part("getDayOfMonth", |time| i64::from(time.day()) - 1),
    zoned("getDayOfMonth", |time| i64::from(time.day()) - 1),
    part("getDayOfWeek", |time| i64::from(time.weekday().to_sunday_zero_offset())),
    zoned("getDayOfWeek", |time| i64::from(time.weekday().to_sunday_zero_offset())),
    part("getDayOfYear", |time| i64::from(time.day_of_year()) - 1),
    zoned("getDayOfYear", |time| i64::from(time.day_of_year()) - 1),
    timed("getHours", |time| i64::from(time.hour()), |length| length.as_secs() / 3_600),
    zoned("getHours", |time| i64::from(time.hour())),
    timed("getMinutes", |time| i64::from(time.minute()), |length| length.as_secs() / 60),
    zoned("getMinutes", |time| i64::from(time.minute())),
    timed("getSeconds", |time| i64::from(time.second()), |length| length.as_secs()),
    zoned("getSeconds", |time| i64::from(time.second())),
    timed("getMilliseconds", |time| i64::from(time.millisecond()), |length| i64::from(length.subsec_millis())),
    zoned("getMilliseconds", |time| i64::from(time.millisecond())),
];

/// The macros over a list or a map, which the checker turns into loops.
pub(super) const MACROS: [&str; 6] = ["all", "exists", "exists_one", "existsOne", "map", "filter"];
