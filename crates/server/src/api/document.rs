//! The OpenAPI document: what the routes say of themselves, plus what holds for all of them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, Ref, RefOr, ResponseBuilder};

use super::{Api, Refusals};
use crate::guard::OPEN_PATHS;
use crate::{ApiProblem, eventlog};

/// The name of the security scheme.
const BEARER: &str = "bearer";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate",
        description = "Health, metrics and books of a Tidegate process, and the parts it runs."
    ),
    components(schemas(ApiProblem)),
    tags(
        (name = "eventlog", description = "Business events: post them, find them."),
        (name = "health", description = "Whether the process is alive, ready and well."),
        (name = "log", description = "The topics of the log and their records."),
        (name = "server", description = "What the process and its components say about themselves."),
    )
)]
struct Base;

/// The document before any route is in it. Only with a token somebody has to show one.
pub(super) fn base(refusals: Refusals) -> utoipa::openapi::OpenApi {
    let mut document = Base::openapi();
    if refusals.has_token {
        let mut bearer = Http::new(HttpAuthScheme::Bearer);
        bearer.description = Some("The value of `server.token`.".to_owned());
        document
            .components
            .get_or_insert_with(Components::new)
            .add_security_scheme(BEARER, SecurityScheme::Http(bearer));
        document.security = Some(vec![SecurityRequirement::new(BEARER, Vec::<String>::new())]);
    }
    document
}

/// The finished document as it is sent: beside its own answers, each operation has those that the server gives
/// around it.
pub(super) fn write(mut document: utoipa::openapi::OpenApi, refusals: Refusals) -> Bytes {
    for (path, item) in &mut document.paths.paths {
        let schema = match eventlog::is_path(path) {
            true => "EventLogProblem",
            false => "Problem",
        };
        for (changes, operation) in operations(item) {
            for (status, description) in answers_around(path, changes, operation, refusals) {
                operation
                    .responses
                    .responses
                    .entry(status.to_owned())
                    .or_insert_with(|| problem_response(schema, description));
            }
            if !refusals.has_token {
                operation.security = None;
            }
        }
    }
    let text = document
        .to_json()
        .expect("the document has nothing that JSON cannot say");
    Bytes::from(text)
}

/// The operations of a path, each with whether it changes something.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (bool, &mut Operation)> {
    let all = [
        (false, &mut item.get),
        (true, &mut item.put),
        (true, &mut item.post),
        (true, &mut item.delete),
        (true, &mut item.options),
        (false, &mut item.head),
        (true, &mut item.patch),
        (true, &mut item.trace),
    ];
    all.into_iter()
        .filter_map(|(changes, operation)| Some((changes, operation.as_mut()?)))
}

/// The failures that the guard, the limits and the extractors answer in place of a handler.
fn answers_around(
    path: &str,
    changes: bool,
    operation: &Operation,
    refusals: Refusals,
) -> Vec<(&'static str, &'static str)> {
    let mut answers = vec![
        (
            "500",
            "Something went wrong here; the log has more under the id.",
        ),
        (
            "504",
            "It took longer than `server.request-timeout`; whether it was done is unknown.",
        ),
    ];
    let has_body = operation.request_body.is_some();
    let has_parameters = operation
        .parameters
        .as_ref()
        .is_some_and(|all| !all.is_empty());
    if has_body || has_parameters {
        answers.push(("400", "The request could not be understood."));
    }
    if has_body {
        answers.push(("413", "The body is longer than `server.max-body` allows."));
        answers.push(("415", "The body is not JSON."));
    }
    if refusals.has_token && !OPEN_PATHS.contains(&path) {
        answers.push(("401", "The bearer token is missing or wrong."));
    }
    if !refusals.has_token {
        let description = "The `Host` or the `Origin` is not of this machine.";
        answers.push(("403", description));
    } else if refusals.is_read_only && changes {
        answers.push(("403", "The server is read-only."));
    }
    answers
}

fn problem_response(schema: &str, description: &str) -> RefOr<utoipa::openapi::Response> {
    let schema = Ref::from_schema_name(schema);
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new()
        .description(description)
        .content("application/json", content)
        .build();
    RefOr::T(response)
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "server", responses(
    (status = 200, description = "The OpenAPI document.", body = Object),
))]
pub(crate) async fn openapi(State(api): State<Arc<Api>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], api.document.clone())
}
