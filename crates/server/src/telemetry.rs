//! Every metric, log event and span of the server.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tracing::Span;

use crate::components::LedgerError;

/// Requests answered, by route, method and class of status.
const REQUESTS: &str = "tidegate_http_requests_total";
/// How long it took until the response began, by route and method.
const REQUEST_SECONDS: &str = "tidegate_http_request_seconds";
/// Limits that were hit, by name.
const LIMIT_HITS: &str = "tidegate_http_limit_hits_total";
/// Connections that are open.
const CONNECTIONS: &str = "tidegate_http_connections";
/// The label `component` of all of them.
const COMPONENT: &str = "server";

/// A limit that was hit; the names are those of `Limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    MaxBody,
    RequestTimeout,
    HeaderTimeout,
    Idle,
    Connections,
    MaxHeader,
    Drain,
}

impl Limit {
    fn as_str(self) -> &'static str {
        match self {
            Self::MaxBody => "max-body",
            Self::RequestTimeout => "request-timeout",
            Self::HeaderTimeout => "header-timeout",
            Self::Idle => "idle",
            Self::Connections => "connections",
            Self::MaxHeader => "max-header",
            Self::Drain => "drain-timeout",
        }
    }
}

/// Gives the metrics their help texts.
pub(crate) fn describe() {
    describe_counter!(
        REQUESTS,
        "Requests answered, by route, method and class of status."
    );
    describe_histogram!(REQUEST_SECONDS, "Time until the response began.");
    describe_counter!(LIMIT_HITS, "Limits of the HTTP server that were hit.");
    describe_gauge!(CONNECTIONS, "Connections that are open.");
}

/// The span of one request; `trace_id` stands in it when the caller sent one.
pub(crate) fn span(id: &str, method: &Method, route: &str, trace_id: Option<&str>) -> Span {
    tracing::info_span!("request", id, %method, route, trace_id)
}

pub(crate) fn answered(method: &Method, route: &str, status: StatusCode, took: Duration) {
    let class = class_of(status);
    let method = method_name(method);
    counter!(
        REQUESTS, "component" => COMPONENT, "route" => route.to_owned(), "method" => method,
        "status" => class,
    )
    .increment(1);
    histogram!(
        REQUEST_SECONDS, "component" => COMPONENT, "route" => route.to_owned(), "method" => method,
    )
    .record(took.as_secs_f64());
    tracing::debug!(
        status = status.as_u16(),
        took_ms = took.as_millis(),
        "answered"
    );
}

pub(crate) fn limit_hit(limit: Limit) {
    counter!(LIMIT_HITS, "component" => COMPONENT, "limit" => limit.as_str()).increment(1);
}

pub(crate) fn connection_opened() {
    gauge!(CONNECTIONS, "component" => COMPONENT).increment(1.0);
}

pub(crate) fn connection_closed() {
    gauge!(CONNECTIONS, "component" => COMPONENT).decrement(1.0);
}

pub(crate) fn panicked(id: &str, panic: &str) {
    tracing::error!(
        id,
        panic,
        "a handler panicked; the request was answered with 500"
    );
}

pub(crate) fn failed(id: &str, status: u16, text: &str) {
    tracing::error!(id, status, text, "a handler failed");
}

pub(crate) fn check_panicked(part: &str, panic: &str) {
    tracing::error!(
        part,
        panic,
        "a health check panicked; the part counts as down"
    );
}

pub(crate) fn connection_panicked(peer: SocketAddr) {
    tracing::error!(%peer, "serving a connection panicked; it was closed");
}

pub(crate) fn connection_failed(peer: SocketAddr, error: &hyper::Error) {
    tracing::debug!(%peer, %error, "a connection ended early");
}

pub(crate) fn accept_failed(error: &std::io::Error, pause: Duration) {
    tracing::warn!(%error, ?pause, "could not accept a connection; trying again after a pause");
}

pub(crate) fn ledger_unavailable(error: &LedgerError) {
    let error: &dyn std::error::Error = error;
    tracing::warn!(error, "could not read the ledger");
}

pub(crate) fn drain_began(requests: u64, limit: Duration) {
    tracing::info!(
        requests,
        ?limit,
        "stopped accepting; waiting for requests in flight"
    );
}

pub(crate) fn drain_cut(requests: u64) {
    limit_hit(Limit::Drain);
    tracing::warn!(
        requests,
        "requests took longer than the drain timeout and were cut"
    );
}

fn class_of(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// The method as a label. A client may invent methods; they must not become time series.
fn method_name(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_metrics_and_limits_are_stable() {
        let limits = [
            Limit::MaxBody,
            Limit::RequestTimeout,
            Limit::HeaderTimeout,
            Limit::Idle,
            Limit::Connections,
            Limit::MaxHeader,
            Limit::Drain,
        ]
        .map(Limit::as_str);
        let metrics = [REQUESTS, REQUEST_SECONDS, LIMIT_HITS, CONNECTIONS];
        insta::assert_snapshot!([&metrics[..], &limits[..]].concat().join("\n"), @"
        tidegate_http_requests_total
        tidegate_http_request_seconds
        tidegate_http_limit_hits_total
        tidegate_http_connections
        max-body
        request-timeout
        header-timeout
        idle
        connections
        max-header
        drain-timeout
        ");
    }
}
