//! Time spans and byte sizes as text.

use std::time::Duration;

/// Milliseconds of each unit, largest first; the first name of a unit is the one written.
const SPANS: &[(&[&str], u64)] = &[
    (&["d", "day", "days"], 86_400_000),
    (&["h", "hour", "hours"], 3_600_000),
    (&["m", "min", "minute", "minutes"], 60_000),
    (&["s", "sec", "second", "seconds"], 1_000),
    (&["ms", "milli", "millis"], 1),
];

/// Weeks are read and never written.
const WEEK: (&[&str], u64) = (&["w", "week", "weeks"], 604_800_000);

/// Bytes of each unit, largest first. `MB` is 1024 × 1024 like `MiB`, because the documented
/// `…-mb` keys mean it that way and the two must not differ.
const SIZES: &[(&[&str], u64)] = &[
    (&["tib", "tb", "t"], 1 << 40),
    (&["gib", "gb", "g"], 1 << 30),
    (&["mib", "mb", "m"], 1 << 20),
    (&["kib", "kb", "k"], 1 << 10),
    (&["b", "byte", "bytes"], 1),
];

/// Reads `10s`, `1m30s`, `1.5h`; a bare number is milliseconds. None for anything else.
///
/// ```
/// use std::time::Duration;
/// use tidegate_config::parse_duration;
/// assert_eq!(parse_duration("1m30s"), Some(Duration::from_secs(90)));
/// assert_eq!(parse_duration("soon"), None);
/// ```
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text
            .parse()
            .ok()
            .filter(|ms| fits(*ms))
            .map(Duration::from_millis);
    }
    let unit = |name: &str| {
        let named = |(names, ms): &(&[&str], u64)| names.contains(&name).then_some(*ms);
        SPANS.iter().chain([&WEEK]).find_map(named)
    };
    sum(text, unit)
        .filter(|ms| fits(*ms))
        .map(Duration::from_millis)
}

/// Reads `50MiB`, `1.5GiB`; a bare number is bytes. None for anything else.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().filter(|bytes| fits(*bytes));
    }
    let text = text.to_ascii_lowercase();
    let unit = |name: &str| {
        SIZES
            .iter()
            .find_map(|(names, bytes)| names.contains(&name).then_some(*bytes))
    };
    sum(&text, unit).filter(|bytes| fits(*bytes))
}

/// Writes a time span so that [`parse_duration`] reads the same; shortest exact form.
#[must_use]
pub fn format_duration(span: Duration) -> String {
    let mut rest = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0ms".to_owned();
    }
    let mut text = String::new();
    for (names, ms) in SPANS {
        if rest >= *ms {
            text.push_str(&format!("{}{}", rest / ms, names[0]));
            rest %= ms;
        }
    }
    text
}

/// Writes a byte size so that the configuration reads the same; the largest unit that is exact.
pub fn format_size(bytes: u64) -> String {
    let exact = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    for (unit, name) in exact {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes}B")
}

/// Numbers are handed to parts as signed 64-bit integers, so nothing larger is a value.
fn fits(number: u64) -> bool {
    i64::try_from(number).is_ok()
}

/// Adds up `number unit` pairs, each of which must be whole in the smallest unit.
fn sum(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut total: u64 = 0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let tail = tail.trim_start();
        let letters = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (name, tail) = tail.split_at(letters);
        total = total.checked_add(scaled(number, unit(name)?)?)?;
        rest = tail.trim_start();
    }
    Some(total)
}

/// `number` times `unit`, if that is a whole number.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.len() > 9 {
        return None;
    }
    let parts = if fraction.is_empty() {
        0
    } else {
        fraction.parse::<u64>().ok()?
    };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let exact = u128::from(parts) * u128::from(unit);
    if exact % scale != 0 {
        return None;
    }
    let below = u64::try_from(exact / scale).ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(unit)?
        .checked_add(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, ms) in [
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("1.5h", 5_400_000),
            ("250 ms", 250),
            ("0", 0),
            ("1500", 1_500),
            ("7d", 604_800_000),
            ("2w", 1_209_600_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "10",
            "-1s",
            "10x",
            "1.s",
            ".5s",
            "0.0001s",
            "99999999999999999999d",
        ] {
            assert_eq!(parse_duration(text).is_some(), text == "10", "{text}");
        }
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("50MiB", 50 << 20),
            ("50mb", 50 << 20),
            ("1.5 GiB", 3 << 29),
            ("17", 17),
            ("1k", 1024),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "1.3B", "-1", "1XB", "99999999999TiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn written_units_read_the_same() {
        for ms in [0, 1, 999, 1_000, 61_001, 86_400_000, 604_800_000] {
            let span = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(span)), Some(span));
        }
        for bytes in [0, 1, 1023, 1024, 1 << 20, (1 << 20) + 1, 10 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
        }
    }
}
