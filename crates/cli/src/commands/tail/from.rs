//! Where reading begins.

use tidegate_config::parse_duration;

/// Where reading begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum From {
    /// At the first record that is there.
    Earliest,
    /// Behind the last one.
    Latest,
    /// At an offset.
    Offset(i64),
    /// At the first record that is not older.
    Time(Moment),
}

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// In milliseconds since 1970.
    At(u64),
    /// So many milliseconds ago.
    Ago(u64),
}

impl Moment {
    /// The moment in milliseconds since 1970, seen from now.
    pub(crate) fn before(self, now_ms: u64) -> u64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ms) => now_ms.saturating_sub(ms),
        }
    }
}

/// Reads `--from`.
pub(crate) fn parse_from(text: &str) -> Result<From, String> {
    match text {
        "earliest" => return Ok(From::Earliest),
        "latest" => return Ok(From::Latest),
        _ => {}
    }
    if let Ok(offset) = text.parse::<i64>()
        && offset >= 0
    {
        return Ok(From::Offset(offset));
    }
    moment(text).map(From::Time).ok_or_else(|| {
        "write `earliest`, `latest`, an offset, a time such as 2026-05-01T12:00:00Z, or a span \
         such as -1h"
            .to_owned()
    })
}

/// Reads a moment.
pub(crate) fn parse_moment(text: &str) -> Result<Moment, String> {
    let why = "write a time such as 2026-05-01T12:00:00Z, or a span such as -7d";
    moment(text).ok_or_else(|| why.to_owned())
}

fn moment(text: &str) -> Option<Moment> {
    // Without its unit, a number with a sign is more likely a mistake than milliseconds.
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let ago = text
        .strip_prefix('-')
        .filter(|_| has_unit)
        .and_then(parse_duration);
    if let Some(ago) = ago {
        let ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        return Some(Moment::Ago(ms));
    }
    let time = text.parse::<jiff::Timestamp>().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(Moment::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_a_word_an_offset_a_time_or_a_span() {
        for (text, expect) in [
            ("earliest", From::Earliest),
            ("latest", From::Latest),
            ("0", From::Offset(0)),
            ("9999999999999", From::Offset(9_999_999_999_999)),
            ("-1h", From::Time(Moment::Ago(3_600_000))),
            ("1970-01-01T00:00:01Z", From::Time(Moment::At(1_000))),
        ] {
            assert_eq!(parse_from(text).as_ref(), Ok(&expect), "{text}");
        }
        for text in ["", "-1", "-x", "soon", "1969-01-01T00:00:00Z"] {
            assert!(parse_from(text).is_err(), "{text:?}");
        }
        assert_eq!(Moment::Ago(5).before(3), 0);
        assert_eq!(Moment::Ago(5).before(8), 3);
    }
}
