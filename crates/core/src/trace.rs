//! The trace that a call belongs to, by the header `traceparent` of W3C Trace Context.

use std::fmt;
use std::str::FromStr;

use crate::env::Entropy;

/// The name of the header.
pub const TRACEPARENT: &str = "traceparent";

/// The id of a trace: 16 bytes, not all zero, written as 32 lowercase hex digits.
///
/// ```
/// use tidegate_core::TraceId;
/// let id: TraceId = "4bf92f3577b34da6a3ce929d0e0e4736".parse()?;
/// assert_eq!(id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert!("00000000000000000000000000000000".parse::<TraceId>().is_err());
/// # Ok::<(), tidegate_core::ParseTraceError>(())
/// ```
pub type TraceId = HexId<16>;

/// The id of a span: 8 bytes, not all zero, written as 16 lowercase hex digits.
///
/// ```
/// use tidegate_core::SpanId;
/// let id: SpanId = "00f067aa0ba902b7".parse()?;
/// assert_eq!(id.to_string(), "00f067aa0ba902b7");
/// # Ok::<(), tidegate_core::ParseTraceError>(())
/// ```
pub type SpanId = HexId<8>;

/// An id of `N` bytes, not all zero, written as lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HexId<const N: usize>([u8; N]);

impl<const N: usize> HexId<N> {
    /// A new id.
    pub fn draw(entropy: &mut dyn Entropy) -> Self {
        let mut bytes = [0; N];
        for eight in bytes.chunks_mut(8) {
            eight.copy_from_slice(&entropy.next_u64().to_be_bytes());
        }
        if bytes == [0; N] {
            bytes[N - 1] = 1;
        }
        Self(bytes)
    }
}

impl<const N: usize> fmt::Display for HexId<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> fmt::Debug for HexId<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> FromStr for HexId<N> {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bits = lower_hex(text, 2 * N).filter(|bits| *bits != 0);
        let bytes = bits.and_then(|bits| bits.to_be_bytes().last_chunk().copied());
        let error = if N == 16 {
            ParseTraceError::TraceId
        } else {
            ParseTraceError::SpanId
        };
        bytes.map(Self).ok_or(error)
    }
}

/// Why a text does not name a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseTraceError {
    /// The parts of a `traceparent` are not where they belong.
    #[error("a traceparent has the form 00-<32 hex>-<16 hex>-<2 hex>")]
    Form,
    /// The version is not one that may be used.
    #[error("the version of a traceparent is two lowercase hex digits other than ff")]
    Version,
    /// The trace id is malformed or zero.
    #[error("a trace id is 32 lowercase hex digits, not all zero")]
    TraceId,
    /// The span id is malformed or zero.
    #[error("a span id is 16 lowercase hex digits, not all zero")]
    SpanId,
    /// The flags are malformed.
    #[error("the flags of a traceparent are two lowercase hex digits")]
    Flags,
}

/// The value of a `traceparent` header.
///
/// ```
/// use tidegate_core::Traceparent;
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent: Traceparent = text.parse()?;
/// assert_eq!(parent.span_id.to_string(), "00f067aa0ba902b7");
/// assert_eq!(parent.to_string(), text);
/// # Ok::<(), tidegate_core::ParseTraceError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent {
    /// The trace.
    pub trace_id: TraceId,
    /// The span that calls.
    pub span_id: SpanId,
    /// The flags; the lowest bit says that the caller may have recorded its span.
    pub flags: u8,
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace_id,
            span_id,
            flags,
        } = self;
        write!(f, "00-{trace_id}-{span_id}-{flags:02x}")
    }
}

impl FromStr for Traceparent {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(5, '-');
        let mut part = || parts.next().ok_or(ParseTraceError::Form);
        let (version, trace_id, span_id, flags) = (part()?, part()?, part()?, part()?);
        let version = lower_hex(version, 2).ok_or(ParseTraceError::Version)?;
        if version == 0xff {
            return Err(ParseTraceError::Version);
        }
        // A later version may add parts; ours has exactly four.
        if version == 0 && parts.next().is_some() {
            return Err(ParseTraceError::Form);
        }
        let flags = lower_hex(flags, 2).and_then(|bits| u8::try_from(bits).ok());
        Ok(Self {
            trace_id: trace_id.parse()?,
            span_id: span_id.parse()?,
            flags: flags.ok_or(ParseTraceError::Flags)?,
        })
    }
}

/// The bits of exactly `digits` lowercase hex digits.
fn lower_hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    // `from_str_radix` alone would also take a sign and capitals.
    if text.len() != digits || !text.bytes().all(is_hex) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::env::Stream;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_is_judged_by_the_w3c_rules() {
        use ParseTraceError::{Flags, Form, SpanId, TraceId, Version};
        let zero = "0000000000000000";
        for (text, expected) in [
            (format!("00-{TRACE}-{SPAN}-01"), None),
            (format!("cc-{TRACE}-{SPAN}-01"), None),
            (format!("cc-{TRACE}-{SPAN}-01-later-part"), None),
            (format!("00-{TRACE}-{SPAN}-01-"), Some(Form)),
            (format!("00-{TRACE}-{SPAN}"), Some(Form)),
            (String::new(), Some(Form)),
            (format!("ff-{TRACE}-{SPAN}-01"), Some(Version)),
            (format!("0-{TRACE}-{SPAN}-01"), Some(Version)),
            (format!("00-{zero}{zero}-{SPAN}-01"), Some(TraceId)),
            (
                format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
                Some(TraceId),
            ),
            (format!("00-{TRACE}-{zero}-01"), Some(SpanId)),
            (format!("00-{TRACE}-+0f067aa0ba902b7-01"), Some(SpanId)),
            (format!("00-{TRACE}-{SPAN}-1"), Some(Flags)),
            (format!("00-{TRACE}-{SPAN}-01x"), Some(Flags)),
        ] {
            assert_eq!(text.parse::<Traceparent>().err(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_traceparent_reads_back_as_it_was_written(seed: u64, flags: u8) {
            let mut entropy = Stream::new(seed);
            let parent = Traceparent {
                trace_id: TraceId::draw(&mut entropy),
                span_id: SpanId::draw(&mut entropy),
                flags,
            };
            prop_assert_eq!(parent.to_string().parse(), Ok(parent));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,60}") {
            prop_assert!(text.parse::<Traceparent>().is_err());
        }
    }
}
