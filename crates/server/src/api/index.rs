//! The first page.

use std::collections::BTreeMap;

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// The server that answers here, and where to go on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Index)]
pub(crate) struct ApiIndex {
    /// Always `tidegate`.
    name: &'static str,
    /// The version of the server.
    version: &'static str,
    /// Paths by what they give.
    links: BTreeMap<&'static str, &'static str>,
}

/// The paths that can be read.
#[utoipa::path(get, path = "/", tag = "server", responses(
    (status = 200, description = "The paths to go on with.", body = ApiIndex),
))]
pub(crate) async fn index() -> Json<ApiIndex> {
    Json(ApiIndex {
        name: "tidegate",
        version: env!("CARGO_PKG_VERSION"),
        links: BTreeMap::from([
            ("health", "/health"),
            ("ledger", "/tidegate/ledger"),
            ("liveness", "/livez"),
            ("metrics", "/metrics"),
            ("openapi", "/openapi.json"),
            ("readiness", "/readyz"),
        ]),
    })
}
