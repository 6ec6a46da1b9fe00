use tidegate_core::env::Stream;

use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const OTHER: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "00f067aa0ba902b7";

fn read(headers: &[(&str, &str)]) -> TraceContext {
    let lookup = |name: &str| {
        let found = headers.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    };
    TraceContext::from_headers(lookup, &mut Stream::new(1))
}

#[test]
fn the_w3c_header_wins_over_the_x_headers() {
    let parent = format!("00-{TRACE}-{SPAN}-00");
    let context = read(&[("X-Trace-Id", OTHER), (TRACEPARENT, &parent)]);
    assert_eq!(context.trace_id.to_string(), TRACE);
    assert_eq!(context.span_id, SPAN.parse().ok());
    assert_eq!(context.flags, 0);
    assert_eq!(
        context.traceparent(SPAN.parse().unwrap()).to_string(),
        parent
    );
}

#[test]
fn a_broken_w3c_header_leaves_the_x_headers_in_force() {
    let context = read(&[
        (TRACEPARENT, "00-xyz"),
        ("X-Trace-Id", &OTHER.to_uppercase()),
        ("x-span-id", SPAN),
    ]);
    assert_eq!(context.trace_id.to_string(), OTHER);
    assert_eq!(context.span_id, SPAN.parse().ok());
}

#[test]
fn missing_or_unusable_ids_are_generated_and_echoed() {
    let too_long = "x".repeat(201);
    for headers in [
        &[][..],
        &[("X-Span-Id", SPAN)],
        &[("X-Trace-Id", "7"), ("X-Correlation-Id", " ")],
        &[("X-Correlation-Id", too_long.as_str())],
    ] {
        let context = read(headers);
        assert_eq!(
            context.span_id, None,
            "a span without its trace: {headers:?}"
        );
        assert_eq!(context.correlation_id.len(), 32);
        assert_ne!(context.correlation_id, context.trace_id.to_string());
        let names: Vec<&str> = context.echo().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [TRACE_ID, CORRELATION_ID]);
    }
}

#[test]
fn all_three_headers_are_echoed_when_they_came() {
    let sent = [
        (TRACE_ID, TRACE),
        (SPAN_ID, SPAN),
        (CORRELATION_ID, "booking-7"),
    ];
    assert_eq!(
        read(&sent).echo(),
        sent.map(|(name, value)| (name, value.to_owned()))
    );
}

#[test]
fn context_names_are_read_in_three_spellings() {
    for names in [
        ["traceId", "spanId", "correlationId"],
        ["trace_id", "span_id", "correlation_id"],
        ["trace-id", "span-id", "correlation-id"],
    ] {
        let values = [TRACE, SPAN, "case-1"];
        let lookup = |name: &str| Some(values[names.iter().position(|n| *n == name)?]);
        let context = TraceContext::from_names(lookup, &mut Stream::new(1));
        assert_eq!(context.trace_id.to_string(), TRACE);
        assert_eq!(context.span_id, SPAN.parse().ok());
        assert_eq!(context.correlation_id, "case-1");
    }
}
