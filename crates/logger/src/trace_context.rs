//! Which trace and which business case a request belongs to.
//!
//! A request names its trace by the W3C header `traceparent`, else by `X-Trace-Id` and
//! `X-Span-Id`. When both are there and differ, the W3C header holds, because proxies and other
//! libraries keep that one up to date. `X-Correlation-Id` names the business case and is made when
//! it is missing. A value that is no id is passed over rather than refused: a caller's bad
//! header is no reason to fail its request.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use tidegate_core::env::Entropy;

/// The header of the W3C recommendation.
const TRACEPARENT: &str = "traceparent";
/// The trace, where there is no `traceparent`.
const TRACE_ID: &str = "X-Trace-Id";
/// The caller's span, where there is no `traceparent`.
const SPAN_ID: &str = "X-Span-Id";
/// The business case.
const CORRELATION_ID: &str = "X-Correlation-Id";

/// Longest correlation id in characters, as the Event Log API accepts it.
const CORRELATION_LIMIT: usize = 200;

/// The id of a trace: 16 bytes, not all zero, written as 32 lowercase hex digits.
///
/// ```
/// use tidegate_logger::TraceId;
/// let id: TraceId = "4bf92f3577b34da6a3ce929d0e0e4736".parse()?;
/// assert_eq!(id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert!("00000000000000000000000000000000".parse::<TraceId>().is_err());
/// # Ok::<(), tidegate_logger::ParseTraceError>(())
/// ```
pub type TraceId = HexId<16>;

/// The id of a span: 8 bytes, not all zero, written as 16 lowercase hex digits.
///
/// ```
/// use tidegate_logger::SpanId;
/// let id: SpanId = "00f067aa0ba902b7".parse()?;
/// assert_eq!(id.to_string(), "00f067aa0ba902b7");
/// # Ok::<(), tidegate_logger::ParseTraceError>(())
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
/// use tidegate_logger::Traceparent;
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent: Traceparent = text.parse()?;
/// assert_eq!(parent.span_id.to_string(), "00f067aa0ba902b7");
/// assert_eq!(parent.to_string(), text);
/// # Ok::<(), tidegate_logger::ParseTraceError>(())
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

/// Which trace and which business case a request belongs to.
///
/// ```
/// use tidegate_core::env::Stream;
/// use tidegate_logger::TraceContext;
///
/// let headers = [("x-correlation-id", "booking-7"), ("x-trace-id", "4bf92f3577b34da6a3ce929d0e0e4736")];
/// let lookup = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
/// let context = TraceContext::from_headers(lookup, &mut Stream::new(1));
///
/// assert_eq!(context.correlation_id, "booking-7");
/// assert_eq!(context.span_id, None);
/// assert_eq!(context.echo(), [
///     ("X-Trace-Id", "4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
///     ("X-Correlation-Id", "booking-7".to_owned()),
/// ]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace: the caller's, or a new one.
    pub trace_id: TraceId,
    /// The caller's span, where it named one.
    pub span_id: Option<SpanId>,
    /// The caller's flags; 1, recorded, where it named none.
    pub flags: u8,
    /// The business case: the caller's, or a new one.
    pub correlation_id: String,
}

impl TraceContext {
    /// Reads the headers of a request; what is missing is made from `entropy`.
    ///
    /// `lookup` is asked for each name in its documented spelling and then in lower case. So both
    /// a map that ignores case and one that was lowered will do.
    pub fn from_headers<'a>(
        lookup: impl Fn(&str) -> Option<&'a str>,
        entropy: &mut dyn Entropy,
    ) -> Self {
        let header = |name: &str| lookup(name).or_else(|| lookup(&name.to_ascii_lowercase()));
        let names = [TRACEPARENT, TRACE_ID, SPAN_ID, CORRELATION_ID];
        Self::from_parts(names.map(header), entropy)
    }

    /// Reads a map of context names, such as that of a logging framework: `traceparent`,
    /// `traceId`, `spanId` and `correlationId`, each also as `trace_id` or `trace-id`.
    pub fn from_names<'a>(
        lookup: impl Fn(&str) -> Option<&'a str>,
        entropy: &mut dyn Entropy,
    ) -> Self {
        let names = [TRACEPARENT, "traceId", "spanId", "correlationId"];
        Self::from_parts(names.map(|name| by_name(&lookup, name)), entropy)
    }

    /// The headers to answer with: the three `X-` headers, without the span when there is none.
    #[must_use]
    pub fn echo(&self) -> Vec<(&'static str, String)> {
        let trace = (TRACE_ID, self.trace_id.to_string());
        let span = self.span_id.map(|id| (SPAN_ID, id.to_string()));
        let correlation = (CORRELATION_ID, self.correlation_id.clone());
        [Some(trace), span, Some(correlation)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The `traceparent` for a call that `span` makes.
    #[must_use]
    pub fn traceparent(&self, span_id: SpanId) -> Traceparent {
        Traceparent {
            trace_id: self.trace_id,
            span_id,
            flags: self.flags,
        }
    }

    fn from_parts(parts: [Option<&str>; 4], entropy: &mut dyn Entropy) -> Self {
        let parts = parts.map(|part| part.map(str::trim));
        let [traceparent, trace_id, span_id, correlation_id] = parts;
        let correlation_id = match correlation_id {
            Some(id) if is_correlation_id(id) => id.to_owned(),
            _ => TraceId::draw(entropy).to_string(),
        };
        if let Some(parent) = traceparent.and_then(|text| text.parse::<Traceparent>().ok()) {
            return Self {
                trace_id: parent.trace_id,
                span_id: Some(parent.span_id),
                flags: parent.flags,
                correlation_id,
            };
        }
        // The `X-` headers come from writers that know nothing of the W3C, some of them in capitals.
        let lowered = |text: Option<&str>| text.map(str::to_ascii_lowercase);
        let trace_id: Option<TraceId> = lowered(trace_id).and_then(|id| id.parse().ok());
        Self {
            // A span without its trace says nothing.
            span_id: lowered(trace_id.and(span_id)).and_then(|id| id.parse().ok()),
            trace_id: trace_id.unwrap_or_else(|| TraceId::draw(entropy)),
            flags: 1,
            correlation_id,
        }
    }
}

/// The value of `camel` in its camel, snake or kebab spelling.
pub(crate) fn by_name<'a>(
    lookup: impl Fn(&str) -> Option<&'a str>,
    camel: &str,
) -> Option<&'a str> {
    let joined_by = |joint: char| {
        let mut name = String::with_capacity(camel.len() + 4);
        for letter in camel.chars() {
            if letter.is_ascii_uppercase() {
                name.push(joint);
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    };
    lookup(camel)
        .or_else(|| lookup(&joined_by('_')))
        .or_else(|| lookup(&joined_by('-')))
}

/// Whether events may carry this correlation id; with another one the API would refuse them all.
fn is_correlation_id(text: &str) -> bool {
    (1..=CORRELATION_LIMIT).contains(&text.chars().count())
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
