//! Values from JSON text and back.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a text of any other type is refused, also of one that is added later"
)]

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;

use super::json::{Quoted, Scanner, write_string};
use super::{FlowType, FlowValue, MapKey, ValueError, ValueMap};

fn refuse<T>(raw: &str, kind: &FlowType) -> Result<T, ValueError> {
    const SHOWN: usize = 40;
    let shown: String = raw.chars().take(SHOWN).collect();
    Err(ValueError(format!("`{shown}` is not of type {kind}")))
}

/// The string of a scanned JSON text that begins with a quote.
fn string_of(raw: &str) -> Cow<'_, str> {
    let quoted = Quoted {
        start: 1,
        // Scanned texts are shorter than 4 GiB.
        end: u32::try_from(raw.len().saturating_sub(1)).unwrap_or(u32::MAX),
        has_escapes: raw.contains('\\'),
    };
    quoted.decode(raw)
}

impl<'a> FlowValue<'a> {
    /// The value of a scanned JSON text without blanks around it, as this type.
    ///
    /// Decimals are read from the digits of a number or string. Timestamps are RFC 3339 or milliseconds since 1970.
    ///
    /// # Errors
    /// The text is not of this type.
    pub fn from_json(raw: &'a str, kind: &FlowType) -> Result<Self, ValueError> {
        let first = raw.as_bytes().first().copied().unwrap_or(0);
        if first == b'n' {
            return Ok(Self::Null);
        }
        let is_string = first == b'"';
        let is_number = first == b'-' || first.is_ascii_digit();
        let value = match kind {
            FlowType::Dynamic => return dynamic(raw, first),
            FlowType::Boolean => raw.parse().ok().map(Self::Boolean),
            FlowType::Integer => raw.parse().ok().map(Self::Integer),
            FlowType::Unsigned => raw.parse().ok().map(Self::Unsigned),
            FlowType::Double if is_number => raw.parse().ok().map(Self::Double),
            FlowType::Decimal if is_string => decimal(&string_of(raw)).map(Self::Decimal),
            FlowType::Decimal if is_number => decimal(raw).map(Self::Decimal),
            FlowType::String if is_string => Some(Self::String(string_of(raw))),
            FlowType::Bytes if is_string => {
                let bytes = STANDARD.decode(string_of(raw).as_bytes()).ok();
                bytes.map(|bytes| Self::Bytes(Cow::Owned(bytes)))
            }
            FlowType::Timestamp if is_string => timestamp(&string_of(raw)).map(Self::Timestamp),
            FlowType::Timestamp => {
                let time = raw.parse().ok();
                let time = time.and_then(|ms| Timestamp::from_millisecond(ms).ok());
                time.map(Self::Timestamp)
            }
            FlowType::Duration if is_string => duration(&string_of(raw)).map(Self::Duration),
            FlowType::List(element) if first == b'[' => return list(raw, element),
            FlowType::Map(value) if first == b'{' => return object(raw, |_| (**value).clone()),
            FlowType::Object(fields) if first == b'{' => {
                return object(raw, |name| fields.field(name).unwrap_or(FlowType::Dynamic));
            }
            _ => None,
        };
        value.map_or_else(|| refuse(raw, kind), Ok)
    }

    /// The value of any JSON text, scanned for mistakes first.
    ///
    /// # Errors
    /// The text is not JSON, a name is repeated, or it is not of this type.
    pub fn parse_json(text: &'a str, kind: &FlowType) -> Result<Self, ValueError> {
        let mut scanner = Scanner::new(text);
        let scanned = scanner
            .value(0)
            .and_then(|place| scanner.finish().map(|()| place));
        let (start, end) = scanned.map_err(|error| ValueError(error.to_string()))?;
        Self::from_json(&text[start as usize..end as usize], kind)
    }

    /// The JSON text of the value.
    ///
    /// # Errors
    /// JSON has no text for it.
    pub fn to_json(&self) -> Result<String, ValueError> {
        let mut text = String::new();
        self.write_json(&mut text)?;
        Ok(text)
    }

    /// Appends the JSON text of the value. Decimals are numbers with their scale, times are RFC 3339.
    ///
    /// # Errors
    /// JSON has no text for it: an infinite number, or one that is not a number.
    pub fn write_json(&self, out: &mut String) -> Result<(), ValueError> {
        match self {
            Self::Null => out.push_str("null"),
            Self::Boolean(yes) => out.push_str(if *yes { "true" } else { "false" }),
            // Writing to a string cannot fail.
            Self::Integer(number) => write!(out, "{number}").unwrap_or_default(),
            Self::Unsigned(number) => write!(out, "{number}").unwrap_or_default(),
            Self::Decimal(number) => write!(out, "{number}").unwrap_or_default(),
            Self::Double(number) if number.is_finite() => {
                // The shortest digits that read as the same number; `1.0` keeps its fraction.
                write!(out, "{number:?}").unwrap_or_default();
            }
            Self::Double(number) => {
                return Err(ValueError(format!("JSON has no number {number}")));
            }
            Self::String(text) => write_string(text, out),
            Self::Bytes(bytes) => {
                out.push('"');
                STANDARD.encode_string(bytes, out);
                out.push('"');
            }
            Self::Timestamp(_) | Self::Duration(_) => {
                let text = self.to_text().unwrap_or_default();
                write!(out, "\"{text}\"").unwrap_or_default();
            }
            Self::Type(name) => write_string(name, out),
            Self::List(values) => {
                out.push('[');
                for (at, value) in values.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    value.write_json(out)?;
                }
                out.push(']');
            }
            Self::Map(entries) => {
                out.push('{');
                for (at, (key, value)) in entries.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    write_string(&key.to_value().to_text().unwrap_or_default(), out);
                    out.push(':');
                    value.write_json(out)?;
                }
                out.push('}');
            }
        }
        Ok(())
    }

    /// The value as text, which `string(x)` gives; none where the type has no text.
    #[must_use]
    pub fn to_text(&self) -> Option<Cow<'a, str>> {
        Some(match self {
            Self::String(text) => text.clone(),
            Self::Boolean(yes) => Cow::Borrowed(if *yes { "true" } else { "false" }),
            Self::Integer(number) => Cow::Owned(number.to_string()),
            Self::Unsigned(number) => Cow::Owned(number.to_string()),
            Self::Double(number) => Cow::Owned(number.to_string()),
            Self::Decimal(number) => Cow::Owned(number.to_string()),
            Self::Bytes(bytes) => Cow::Owned(String::from_utf8(bytes.to_vec()).ok()?),
            Self::Timestamp(time) => Cow::Owned(time.to_string()),
            Self::Duration(length) => Cow::Owned(duration_text(*length)),
            Self::Null | Self::List(_) | Self::Map(_) | Self::Type(_) => return None,
        })
    }
}

/// The value of a JSON text whose type is known from the text alone.
fn dynamic(raw: &str, first: u8) -> Result<FlowValue<'_>, ValueError> {
    Ok(match first {
        b'"' => FlowValue::String(string_of(raw)),
        b't' => FlowValue::Boolean(true),
        b'f' => FlowValue::Boolean(false),
        b'[' => return list(raw, &FlowType::Dynamic),
        b'{' => return object(raw, |_| FlowType::Dynamic),
        _ => {
            let is_whole = !raw.bytes().any(|b| matches!(b, b'.' | b'e' | b'E'));
            let whole = is_whole.then(|| raw.parse().map(FlowValue::Integer).ok());
            let unsigned = || is_whole.then(|| raw.parse().map(FlowValue::Unsigned).ok());
            let number = whole.flatten().or_else(|| unsigned().flatten());
            match number.or_else(|| raw.parse().map(FlowValue::Double).ok()) {
                Some(number) => number,
                None => return refuse(raw, &FlowType::Dynamic),
            }
        }
    })
}

fn list<'a>(raw: &'a str, element: &FlowType) -> Result<FlowValue<'a>, ValueError> {
    let mut places = Vec::new();
    let scanned = Scanner::new(raw).list(0, &mut |place| places.push(place));
    scanned.map_err(|error| ValueError(error.to_string()))?;
    let texts = places
        .iter()
        .map(|(start, end)| &raw[*start as usize..*end as usize]);
    let values = texts.map(|text| FlowValue::from_json(text, element));
    Ok(FlowValue::list(values.collect::<Result<_, _>>()?))
}

fn object<'a>(
    raw: &'a str,
    kind_of: impl Fn(&str) -> FlowType,
) -> Result<FlowValue<'a>, ValueError> {
    let mut members = Vec::new();
    let scanned = Scanner::new(raw).object(0, &mut |member| members.push(member));
    scanned.map_err(|error| ValueError(error.to_string()))?;
    let mut entries = ValueMap::with_capacity(members.len());
    for member in members {
        let name = member.name.decode(raw);
        let text = &raw[member.value.0 as usize..member.value.1 as usize];
        let value = FlowValue::from_json(text, &kind_of(&name))?;
        entries.insert(MapKey::String(name), value);
    }
    Ok(FlowValue::Map(Arc::new(entries)))
}

/// A decimal from its digits; none where it has more than it can hold. It is never rounded.
pub(crate) fn decimal(digits: &str) -> Option<Decimal> {
    let Some((number, power)) = digits.split_once(['e', 'E']) else {
        return plain_decimal(digits);
    };
    let (number, power) = (plain_decimal(number)?, power.parse::<i64>().ok()?);
    if number.is_zero() {
        return Some(Decimal::ZERO);
    }
    let moved = |number: Decimal| {
        let scale = i64::from(number.scale()).checked_sub(power)?;
        let (mantissa, scale) = match u32::try_from(scale) {
            Ok(scale) => (Some(number.mantissa()), scale),
            Err(_) => {
                let zeros = u32::try_from(scale.checked_neg()?).ok()?;
                let power = 10_i128.checked_pow(zeros)?;
                (number.mantissa().checked_mul(power), 0)
            }
        };
        Decimal::try_from_i128_with_scale(mantissa?, scale).ok()
    };
    // Zeros at the end may be the digits that are too many.
    moved(number).or_else(|| moved(number.normalize()))
}

fn plain_decimal(digits: &str) -> Option<Decimal> {
    // Also `1_000` is read by the library, and a sign without digits.
    let is_part = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+');
    let is_plain = digits.bytes().all(is_part) && digits.ends_with(|c: char| c.is_ascii_digit());
    let number = is_plain.then(|| Decimal::from_str_exact(digits));
    number.and_then(Result::ok)
}

/// The first and the last second that timestamps of expressions may have.
const YEARS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// The time, if it is between the years 1 and 9999.
pub(crate) fn in_range(time: Timestamp) -> Option<Timestamp> {
    YEARS.contains(&time.as_second()).then_some(time)
}

/// A timestamp from RFC 3339.
pub(crate) fn timestamp(text: &str) -> Option<Timestamp> {
    // The library also reads a blank instead of the `T`, and names of zones in brackets.
    let is_plain = text.as_bytes().get(10) == Some(&b'T') && !text.contains('[');
    let time = is_plain.then(|| text.parse().ok()).flatten();
    time.and_then(in_range)
}

/// A duration as expressions write it: `1h30m`, `1.5s`, `-250ms`.
pub(crate) fn duration(text: &str) -> Option<SignedDuration> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut total = 0_i128;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let units = [
            ("ns", 1_i64),
            ("us", 1_000),
            ("µs", 1_000),
            ("ms", 1_000_000),
            ("s", 1_000_000_000),
            ("m", 60_000_000_000),
            ("h", 3_600_000_000_000),
        ];
        let mut units = units.into_iter();
        let (unit, nanos) = units.find(|(unit, _)| after.starts_with(unit))?;
        let part = decimal(number)?.checked_mul(Decimal::from(nanos))?.trunc();
        total = total.checked_add(i128::try_from(part).ok()?)?;
        rest = &after[unit.len()..];
    }
    let has_digits = text.contains(|c: char| c.is_ascii_digit());
    let nanos = i64::try_from(if is_negative { -total } else { total }).ok()?;
    has_digits.then(|| SignedDuration::from_nanos(nanos))
}

fn duration_text(length: SignedDuration) -> String {
    let sign = if length.is_negative() { "-" } else { "" };
    let length = length.unsigned_abs();
    let mut text = format!("{sign}{}", length.as_secs());
    if length.subsec_nanos() > 0 {
        let fraction = format!("{:09}", length.subsec_nanos());
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text.push('s');
    text
}
