//! The functions of expressions: one table for the checker and the evaluator.

use crate::value::FlowType;

/// A built-in function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    Matches,
    LowerAscii,
    UpperAscii,
    Trim,
    Split,
    Join,
    Replace,
    Substring,
    IndexOf,
    ToInteger,
    ToUnsigned,
    ToDouble,
    ToDecimal,
    ToText,
    ToBytes,
    ToBoolean,
    ToTimestamp,
    ToDuration,
    Dynamic,
    TypeOf,
    Now,
    Round,
    Year,
    Month,
    Date,
    DayOfMonth,
    DayOfWeek,
    DayOfYear,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

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
const TIMED: TypeSet = TIMESTAMP | DURATION;

/// Whether a type is in the set; a dynamic one may be.
pub(crate) fn contains(set: TypeSet, kind: &FlowType) -> bool {
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
pub(crate) enum CallStyle {
    /// `f(x)`
    Global,
    /// `x.f()`; `x` is the first argument.
    Method,
    Both,
}

pub(crate) struct FunctionRow {
    pub(crate) name: &'static str,
    pub(crate) style: CallStyle,
    pub(crate) parameters: &'static [TypeSet],
    pub(crate) result: FlowType,
    pub(crate) function: Function,
}

const fn row(
    name: &'static str,
    style: CallStyle,
    parameters: &'static [TypeSet],
    result: FlowType,
    function: Function,
) -> FunctionRow {
    FunctionRow {
        name,
        style,
        parameters,
        result,
        function,
    }
}

use CallStyle::{Both, Global, Method};

/// All functions. One with an argument more or less has a row of its own.
#[rustfmt::skip]
pub(crate) static FUNCTIONS: [FunctionRow; 48] = [
    row("size", Both, &[STRING | BYTES | LIST | MAP], FlowType::Integer, Function::Size),
    row("contains", Method, &[STRING, STRING], FlowType::Boolean, Function::Contains),
    row("startsWith", Method, &[STRING, STRING], FlowType::Boolean, Function::StartsWith),
    row("endsWith", Method, &[STRING, STRING], FlowType::Boolean, Function::EndsWith),
    row("matches", Both, &[STRING, STRING], FlowType::Boolean, Function::Matches),
    row("lowerAscii", Method, &[STRING], FlowType::String, Function::LowerAscii),
    row("upperAscii", Method, &[STRING], FlowType::String, Function::UpperAscii),
    row("trim", Method, &[STRING], FlowType::String, Function::Trim),
    row("split", Method, &[STRING, STRING], FlowType::Dynamic, Function::Split),
    row("join", Method, &[LIST], FlowType::String, Function::Join),
    row("join", Method, &[LIST, STRING], FlowType::String, Function::Join),
    row("replace", Method, &[STRING, STRING, STRING], FlowType::String, Function::Replace),
    row("substring", Method, &[STRING, INTEGER], FlowType::String, Function::Substring),
    row("substring", Method, &[STRING, INTEGER, INTEGER], FlowType::String, Function::Substring),
    row("indexOf", Method, &[STRING, STRING], FlowType::Integer, Function::IndexOf),
    row("int", Global, &[NUMBER | STRING | TIMESTAMP], FlowType::Integer, Function::ToInteger),
    row("uint", Global, &[NUMBER | STRING], FlowType::Unsigned, Function::ToUnsigned),
    row("double", Global, &[NUMBER | STRING], FlowType::Double, Function::ToDouble),
    row("decimal", Global, &[INTEGER | UNSIGNED | DECIMAL | STRING], FlowType::Decimal, Function::ToDecimal),
    row("string", Global, &[TEXTUAL], FlowType::String, Function::ToText),
    row("bytes", Global, &[STRING | BYTES], FlowType::Bytes, Function::ToBytes),
    row("bool", Global, &[BOOLEAN | STRING], FlowType::Boolean, Function::ToBoolean),
    row("timestamp", Global, &[STRING | TIMESTAMP | INTEGER], FlowType::Timestamp, Function::ToTimestamp),
    row("duration", Global, &[STRING | DURATION], FlowType::Duration, Function::ToDuration),
    row("dyn", Global, &[ANY], FlowType::Dynamic, Function::Dynamic),
    row("type", Global, &[ANY], FlowType::Type, Function::TypeOf),
    row("now", Global, &[], FlowType::Timestamp, Function::Now),
    row("round", Global, &[DECIMAL | INTEGER, INTEGER], FlowType::Decimal, Function::Round),
    row("getFullYear", Method, &[TIMESTAMP], FlowType::Integer, Function::Year),
    row("getFullYear", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::Year),
    row("getMonth", Method, &[TIMESTAMP], FlowType::Integer, Function::Month),
    row("getMonth", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::Month),
    row("getDate", Method, &[TIMESTAMP], FlowType::Integer, Function::Date),
    row("getDate", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::Date),
    row("getDayOfMonth", Method, &[TIMESTAMP], FlowType::Integer, Function::DayOfMonth),
    row("getDayOfMonth", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::DayOfMonth),
    row("getDayOfWeek", Method, &[TIMESTAMP], FlowType::Integer, Function::DayOfWeek),
    row("getDayOfWeek", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::DayOfWeek),
    row("getDayOfYear", Method, &[TIMESTAMP], FlowType::Integer, Function::DayOfYear),
    row("getDayOfYear", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::DayOfYear),
    row("getHours", Method, &[TIMED], FlowType::Integer, Function::Hours),
    row("getHours", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::Hours),
    row("getMinutes", Method, &[TIMED], FlowType::Integer, Function::Minutes),
    row("getMinutes", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::Minutes),
    row("getSeconds", Method, &[TIMED], FlowType::Integer, Function::Seconds),
    row("getSeconds", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::Seconds),
    row("getMilliseconds", Method, &[TIMED], FlowType::Integer, Function::Milliseconds),
    row("getMilliseconds", Method, &[TIMESTAMP, STRING], FlowType::Integer, Function::Milliseconds),
];

/// The macros, which the checker turns into loops.
pub(crate) const MACROS: [&str; 7] = [
    "has",
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "map",
    "filter",
];
