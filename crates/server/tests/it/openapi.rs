//! The document describes what is there.

use std::collections::BTreeSet;

use axum::Json;
use serde_json::Value;
use tidegate_server::ServerConfig;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::fixture::{Running, config, config_with_token};

/// A route of a later part.
#[utoipa::path(post, path = "/orders", responses(
    (status = 200, description = "What was ordered.", body = String),
))]
async fn orders() -> Json<&'static str> {
    Json("ordered")
}

async fn document() -> (Running, Value) {
    document_with(config()).await
}

async fn document_with(config: ServerConfig) -> (Running, Value) {
    let more = OpenApiRouter::new().routes(routes!(orders));
    let server = Running::start(config, |b| b.routes(more)).await;
    let token = "authorization: Bearer s3cret\r\n";
    let answer = server.ask("GET", "/openapi.json", token, "").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let document = answer.json();
    (server, document)
}

pub(crate) fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            all.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    all
}

#[tokio::test]
async fn it_lists_every_route_and_each_is_there() {
    let (server, document) = document().await;
    let listed: Vec<String> = operations(&document)
        .iter()
        .map(|(method, path, _)| format!("{method} {path}"))
        .collect();
    insta::assert_snapshot!(listed.join("\n"), @"
    GET /
    GET /actuator/health
    GET /actuator/health/liveness
    GET /actuator/health/readiness
    GET /health
    GET /livez
    GET /metrics
    GET /openapi.json
    POST /orders
    GET /readyz
    GET /tidegate/accepted
    GET /tidegate/audit
    GET /tidegate/ledger
    GET /tidegate/where/{id}
    ");
    for (method, path, _) in operations(&document) {
        // A path with a name in it is asked for something that has no such name.
        let expect = if path.contains('{') { 400 } else { 200 };
        assert_eq!(
            server.ask(&method, &path, "", "").await.status,
            expect,
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn it_is_a_sound_document_of_version_3_1() {
    let (_server, document) = document().await;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["title"], "Tidegate");
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap().to_owned();
        assert!(ids.insert(id.clone()), "{id} stands twice");
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses {
            assert!(
                response["description"].is_string(),
                "{method} {path} {status}"
            );
        }
        assert_eq!(
            responses["500"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/Problem",
            "{method} {path}"
        );
        assert!(!responses.contains_key("default"), "{method} {path}");
    }
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(
            document.pointer(pointer).is_some(),
            "{reference} leads nowhere"
        );
    }
}

#[tokio::test]
async fn with_a_token_probes_are_open_and_the_rest_is_not() {
    let (_server, document) = document_with(config_with_token()).await;
    let scheme = &document["components"]["securitySchemes"]["bearer"]["scheme"];
    assert_eq!(scheme, "bearer");
    assert_eq!(document["security"], serde_json::json!([{ "bearer": [] }]));
    for (_, path, operation) in operations(&document) {
        let is_probe = path.ends_with("z") || path.contains("health");
        let security = operation.get("security");
        assert_eq!(security.is_some(), is_probe, "{path}: {security:?}");
        let responses = operation["responses"].as_object().unwrap();
        assert_eq!(responses.contains_key("401"), !is_probe, "{path}");
        assert!(!responses.contains_key("403"), "{path}");
    }
}

#[tokio::test]
async fn without_a_token_nobody_is_asked_for_one() {
    let (_server, document) = document().await;
    assert_eq!(document.get("security"), None);
    assert_eq!(document["components"].get("securitySchemes"), None);
    for (_, path, operation) in operations(&document) {
        assert_eq!(operation.get("security"), None, "{path}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(!responses.contains_key("401"), "{path}");
        // Pages of other sites are refused instead.
        assert!(responses.contains_key("403"), "{path}");
    }
}

#[tokio::test]
async fn a_read_only_server_documents_that_it_changes_nothing() {
    let read_only = ServerConfig {
        read_only: true,
        ..config_with_token()
    };
    let (_server, document) = document_with(read_only).await;
    for (method, path, operation) in operations(&document) {
        let responses = operation["responses"].as_object().unwrap();
        assert_eq!(responses.contains_key("403"), method == "POST", "{path}");
    }
}

#[tokio::test]
async fn the_schema_of_the_ledger_is_that_of_the_books() {
    use tidegate_core::books::{Account, ComponentAccount, ComponentKind, Ledger};
    let (_server, document) = document().await;
    let component = ComponentAccount {
        name: "a".to_owned(),
        kind: ComponentKind::Logger,
        account: Account::default(),
    };
    let ledger = serde_json::to_value(Ledger::new(vec![component])).unwrap();
    for (name, value) in [
        ("Ledger", &ledger),
        ("ComponentAccount", &ledger["components"][0]),
        ("Account", &ledger["components"][0]["account"]),
    ] {
        let schema = &document["components"]["schemas"][name];
        let described: BTreeSet<&String> =
            schema["properties"].as_object().unwrap().keys().collect();
        let written: BTreeSet<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(described, written, "{name}");
    }
}

fn collect_references(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            into.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
            map.values()
                .for_each(|inner| collect_references(inner, into));
        }
        Value::Array(list) => list
            .iter()
            .for_each(|inner| collect_references(inner, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
