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

use super::Api;
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

/// The document before any route is in it.
pub(super) fn base(is_token_required: bool) -> utoipa::openapi::OpenApi {
    let mut document = Base::openapi();
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some("The value of `server.token`, if one is set.".to_owned());
    document
        .components
        .get_or_insert_with(Components::new)
        .add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    if is_token_required {
        let bearer = SecurityRequirement::new(BEARER, Vec::<String>::new());
        document.security = Some(vec![bearer]);
    }
    document
}

/// The finished document as it is sent.
pub(super) fn write(mut document: utoipa::openapi::OpenApi) -> Bytes {
    for (path, item) in &mut document.paths.paths {
        let schema = match eventlog::is_path(path) {
            true => "EventLogProblem",
            false => "Problem",
        };
        for operation in operations(item) {
            operation
                .responses
                .responses
                .entry("default".to_owned())
                .or_insert_with(|| problem_response(schema));
        }
    }
    let text = document
        .to_json()
        .expect("the document has nothing that JSON cannot say");
    Bytes::from(text)
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.options,
        &mut item.head,
        &mut item.patch,
        &mut item.trace,
    ]
    .into_iter()
    .flatten()
}

fn problem_response(schema: &str) -> RefOr<utoipa::openapi::Response> {
    let schema = Ref::from_schema_name(schema);
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new()
        .description("The request was refused or failed.")
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
