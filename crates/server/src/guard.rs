//! Who may ask for what.
//!
//! With a token, the token decides. Without one the server listens on loopback only, and what is
//! left to fear is the user's own browser: a page that made its name resolve to 127.0.0.1, or one
//! that simply posts to it. The first gives itself away by its `Host`, the second by its `Origin`.

mod host;

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, Method};

use crate::{ApiProblem, ProblemCode, Token};

/// The paths that probes may ask without a token; they see no details.
pub(crate) const OPEN_PATHS: [&str; 8] = [
    "/livez",
    "/readyz",
    "/health",
    "/actuator/health",
    "/actuator/health/liveness",
    "/actuator/health/readiness",
    "/v1/healthcheck",
    "/v1/healthcheck/ready",
];

/// How much a request may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everything.
    Full,
    /// Whether we are well, not why.
    StatusOnly,
}

/// Decides about requests before any handler sees them.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) token: Option<Token>,
    pub(crate) read_only: bool,
}

impl Guard {
    /// The access of `request`, or why it may not be made.
    pub(crate) fn admit(&self, request: &Request) -> Result<Access, ApiProblem> {
        let access = match &self.token {
            Some(token) => by_token(token, request)?,
            None => {
                refuse_foreign_host(request)?;
                refuse_foreign_origin(request.headers())?;
                Access::Full
            }
        };
        if self.read_only && !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err(ApiProblem::new(
                ProblemCode::ReadOnly,
                "the server is read-only (`server.read-only`): it takes GET and HEAD alone",
            ));
        }
        Ok(access)
    }
}

fn by_token(token: &Token, request: &Request) -> Result<Access, ApiProblem> {
    if bearer(request.headers()).is_some_and(|given| token.matches(given)) {
        return Ok(Access::Full);
    }
    if OPEN_PATHS.contains(&request.uri().path()) {
        return Ok(Access::StatusOnly);
    }
    Err(ApiProblem::new(
        ProblemCode::Unauthorized,
        "the header `Authorization: Bearer …` is missing or its token is wrong",
    ))
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    // The name of a scheme may be written in any case.
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then_some(token.trim_ascii())
}

fn refuse_foreign_host(request: &Request) -> Result<(), ApiProblem> {
    let hosts: Vec<_> = request.headers().get_all(HOST).iter().collect();
    // A second `Host`, or another one in the request line, could be what a client really meant.
    let is_loopback = match hosts.as_slice() {
        [one] => one.to_str().is_ok_and(host::is_loopback),
        _ => false,
    };
    let in_line = request.uri().authority();
    if is_loopback && in_line.is_none_or(|authority| host::is_loopback(authority.as_str())) {
        return Ok(());
    }
    Err(ApiProblem::new(
        ProblemCode::ForeignHost,
        "without `server.token` the `Host` must be localhost or a loopback address",
    ))
}

fn refuse_foreign_origin(headers: &HeaderMap) -> Result<(), ApiProblem> {
    let are_ours = headers
        .get_all(ORIGIN)
        .iter()
        .all(|origin| origin.to_str().is_ok_and(host::is_loopback_origin));
    if are_ours {
        return Ok(());
    }
    Err(ApiProblem::new(
        ProblemCode::ForeignOrigin,
        "without `server.token` pages of other sites may not ask",
    ))
}
