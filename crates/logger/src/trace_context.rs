//! Which trace and which business case a request belongs to.
//!
//! A request names its trace by the W3C header `traceparent`, else by `X-Trace-Id` and
//! `X-Span-Id`. When both are there and differ, the W3C header holds, because proxies and other
//! libraries keep that one up to date. `X-Correlation-Id` names the business case and is made when
//! it is missing. A value that is no id is passed over rather than refused: a caller's bad
//! header is no reason to fail its request.

#[cfg(test)]
mod tests;

use tidegate_core::env::Entropy;
use tidegate_core::{SpanId, TRACEPARENT, TraceId, Traceparent};

/// The trace, where there is no `traceparent`.
const TRACE_ID: &str = "X-Trace-Id";
/// The caller's span, where there is no `traceparent`.
const SPAN_ID: &str = "X-Span-Id";
/// The business case.
const CORRELATION_ID: &str = "X-Correlation-Id";

/// Longest correlation id in characters, as the Event Log API accepts it.
const CORRELATION_LIMIT: usize = 200;

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
