//! HTTP as clients speak it, well or badly.

use axum::routing::get;
use tracing::Span;
use tracing::field::{Field, Visit};
use tracing::span::Attributes;
use tracing_subscriber::layer::{Context, SubscriberExt};
use utoipa_axum::router::OpenApiRouter;

use crate::fixture::{Running, config};

#[tokio::test]
async fn head_is_get_without_the_body() {
    let server = Running::plain().await;
    let mut client = server.client().await;
    for path in [
        "/livez",
        "/health",
        "/metrics",
        "/tidegate/ledger",
        "/openapi.json",
    ] {
        let full = client.get(path).await;
        let head = client.ask("HEAD", path, "", "").await;
        assert_eq!(head.status, 200, "{path}");
        assert_eq!(
            head.header("content-length"),
            full.header("content-length"),
            "{path}"
        );
        assert_eq!(
            head.header("content-type"),
            full.header("content-type"),
            "{path}"
        );
    }
    assert_eq!(client.ask("HEAD", "/nowhere", "", "").await.status, 404);
    assert_eq!(client.get("/livez").await.status, 200);
}

#[tokio::test]
async fn a_connection_is_used_again_also_after_failures() {
    let server = Running::plain().await;
    let mut client = server.client().await;
    for (path, status) in [("/livez", 200), ("/nowhere", 404), ("/health", 200)] {
        assert_eq!(client.get(path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Running::plain().await;
    let mut client = server.client().await;
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let all = ["/livez", "/nowhere", "/tidegate/ledger"]
        .map(request)
        .concat();
    client.send(all).await;
    for status in [200, 404, 200] {
        assert_eq!(client.answer().await.status, status);
    }
}

#[tokio::test]
async fn odd_paths_are_refused_and_nothing_breaks() {
    let server = Running::plain().await;
    for (path, statuses) in [
        (&b"/%ff%fe"[..], &[404][..]),
        (b"/%00", &[404]),
        (b"/%2e%2e/etc/passwd", &[404]),
        (b"/../../etc/passwd", &[404]),
        (b"*", &[404]),
        (b"/\xff\xfe", &[400, 404]),
        (b"/a\x00b", &[400]),
        (b"no-slash", &[400, 403, 404]),
    ] {
        let mut client = server.client().await;
        let request = [b"GET ", path, b" HTTP/1.1\r\nhost: localhost\r\n\r\n"].concat();
        client.send(request).await;
        let status = client.answer().await.status;
        assert!(
            statuses.contains(&status),
            "{status} for {:?}",
            String::from_utf8_lossy(path)
        );
    }
    assert_eq!(server.get("/livez").await.status, 200);
}

#[tokio::test]
async fn bytes_that_are_no_http_are_refused() {
    let server = Running::plain().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"hello\r\n\r\n",
        b"\r\n\r\n\r\nGET\r\n\r\n",
    ] {
        let mut client = server.client().await;
        client.send(bytes).await;
        let answer = client.closed().await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400 "),
            "{answer}"
        );
    }
    assert_eq!(server.get("/livez").await.status, 200);
}

#[tokio::test]
async fn every_answer_names_its_request() {
    let server = Running::plain().await;
    for path in ["/livez", "/nowhere"] {
        let answer = server
            .ask("GET", path, "x-request-id: a-1.b_c:d\r\n", "")
            .await;
        assert_eq!(answer.header("x-request-id"), Some("a-1.b_c:d"), "{path}");
    }
    let long = format!("x-request-id: {}\r\n", "x".repeat(129));
    for header in [
        "",
        "x-request-id: a b\r\n",
        "x-request-id: <script>\r\n",
        &long,
    ] {
        let answer = server.ask("GET", "/livez", header, "").await;
        let id = answer.header("x-request-id").unwrap();
        // The time of the test's clock in milliseconds, and random bits.
        assert!(id.starts_with("018bcfe56800-") && id.len() == 29, "{id}");
    }
}

#[tokio::test]
async fn a_valid_trace_stands_in_the_span() {
    let subscriber = tracing_subscriber::registry().with(TraceIds);
    let _logging = tracing::subscriber::set_default(subscriber);
    let handler = || async {
        Span::current()
            .with_subscriber(|(id, dispatch)| {
                let registry = dispatch.downcast_ref::<tracing_subscriber::Registry>();
                let span =
                    registry.and_then(|r| tracing_subscriber::registry::LookupSpan::span(r, id));
                span.and_then(|s| s.extensions().get::<TraceId>().map(|t| t.0.clone()))
            })
            .flatten()
            .unwrap_or_else(|| "none".to_owned())
    };
    let routes = OpenApiRouter::new().route("/trace", get(handler));
    let server = Running::start(config(), |b| b.routes(routes)).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let valid = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n");
    assert_eq!(server.ask("GET", "/trace", &valid, "").await.body, trace);
    let invalid = format!("traceparent: 00-{trace}-0000000000000000-01\r\n");
    assert_eq!(server.ask("GET", "/trace", &invalid, "").await.body, "none");
}

/// Keeps the trace id of each span.
struct TraceIds;

struct TraceId(String);

impl<S> tracing_subscriber::Layer<S> for TraceIds
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &tracing::Id, context: Context<'_, S>) {
        struct Find(Option<String>);
        impl Visit for Find {
            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
            fn record_str(&mut self, field: &Field, value: &str) {
                if field.name() == "trace_id" {
                    self.0 = Some(value.to_owned());
                }
            }
        }
        let mut find = Find(None);
        attributes.record(&mut find);
        if let (Some(span), Some(found)) = (context.span(id), find.0) {
            span.extensions_mut().insert(TraceId(found));
        }
    }
}
