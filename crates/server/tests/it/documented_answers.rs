//! Every answer of the Event Log API is in the OpenAPI document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_eventlog::EventLogOptions;

use crate::event_log::{SAMPLES, post, start};
use crate::fixture::{Running, config, config_with_token};
use crate::openapi::operations;

const JSON: &str = "content-type: application/json\r\n";
const TOKEN: &str = "authorization: Bearer s3cret\r\n";

/// An operation of the API: its method, its path and what the document says of it.
type Operation = (String, String, Value);

/// The operations of the API, and the statuses with which each has answered.
struct Asked {
    server: Running,
    _dir: TempDir,
    document: Value,
    /// By method and path.
    answered: BTreeMap<String, BTreeSet<u16>>,
    undocumented: Vec<String>,
}

impl Asked {
    async fn of((server, dir): (Running, TempDir)) -> Self {
        let document = server.ask("GET", "/openapi.json", TOKEN, "").await.json();
        Self {
            server,
            _dir: dir,
            document,
            answered: BTreeMap::new(),
            undocumented: Vec::new(),
        }
    }

    fn operations(&self) -> Vec<Operation> {
        let mut all = operations(&self.document);
        all.retain(|(_, path, _)| path.starts_with("/v1/"));
        assert!(all.len() > 15, "{}", all.len());
        all
    }

    /// The example of the body that an operation takes.
    fn example(&self, operation: &Value) -> Option<String> {
        let content = operation["requestBody"]["content"].as_object()?;
        let schema = content.values().next()?["schema"]["$ref"].as_str()?;
        let schema = self.document.pointer(schema.strip_prefix('#')?)?;
        let example = schema.get("example").or_else(|| schema["examples"].get(0));
        Some(
            example
                .unwrap_or_else(|| panic!("no example: {schema}"))
                .to_string(),
        )
    }

    async fn ask(&mut self, operation: &Operation, path: &str, headers: &str, body: &str) -> u16 {
        let (method, template, documented) = operation;
        let status = self.server.ask(method, path, headers, body).await.status;
        let name = format!("{method} {template}");
        if documented["responses"].get(status.to_string()).is_none() {
            let text = format!("{name}: {status} for {path} {headers:?} {:.80}", body);
            self.undocumented.push(text);
        }
        self.answered.entry(name).or_default().insert(status);
        status
    }

    /// Asks an operation for everything that it does not take, and then for what it does.
    async fn probe(&mut self, operation: &Operation) {
        let (_, template, documented) = operation;
        let good = filled(template, "a1b2c3d4");
        for path in [
            filled(template, "%FF"),
            format!("{good}?page=0"),
            format!("{good}?pageSize=many"),
            format!("{good}?pageSize=501"),
            format!("{good}?after=x"),
            format!("{good}?startDate=soon"),
            format!("{good}?eventStatus=GOOD"),
            format!("{good}?isActive=2"),
            format!("{good}?nothing=1"),
        ] {
            if self.example(documented).is_none() {
                self.ask(operation, &path, "", "").await;
            }
        }
        let foreign = "origin: http://elsewhere.example\r\n";
        self.ask(operation, &good, foreign, "").await;
        let Some(example) = self.example(documented) else {
            self.ask(operation, &good, "", "").await;
            return;
        };
        for (headers, body) in [
            ("", example.as_str()),
            ("content-type: text/plain\r\n", &example),
            (JSON, ""),
            (JSON, "{"),
            (JSON, "{}"),
            (JSON, "[]"),
            (JSON, "{\"events\":[]}"),
            (JSON, &" ".repeat(1024 * 1024 + 1)),
        ] {
            self.ask(operation, &good, headers, body).await;
        }
        let long_key = format!("{JSON}idempotency-key: {}\r\n", "k".repeat(129));
        self.ask(operation, &good, &long_key, &example).await;
        for header in ["x-tidegate-event-id: a\r\n", "x-tidegate-logger: a b\r\n"] {
            let headers = format!("{JSON}{header}");
            self.ask(operation, &good, &headers, &example).await;
        }
        let keyed = format!("{JSON}idempotency-key: k1\r\n");
        let other = example.replace("a1b2c3d4", "other");
        for body in [&example, &example, &other] {
            self.ask(operation, &good, &keyed, body).await;
        }
        self.ask(operation, &good, JSON, &example).await;
    }

    fn saw(&self, operation: &str, statuses: &[u16]) {
        let seen = &self.answered[operation];
        for status in statuses {
            assert!(
                seen.contains(status),
                "{operation}: {status} not in {seen:?}"
            );
        }
    }
}

/// A path with this value for each of its names.
fn filled(template: &str, value: &str) -> String {
    let parts = template.split('/').map(|part| match part.starts_with('{') {
        true => value,
        false => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_answer_of_the_event_log_api_is_in_the_document() {
    let options = EventLogOptions {
        debug: true,
        ..EventLogOptions::default()
    };
    let mut asked = Asked::of(start(config(), options).await).await;
    for operation in asked.operations() {
        asked.probe(&operation).await;
    }
    assert!(asked.undocumented.is_empty(), "{:#?}", asked.undocumented);
    // The requests were such that there was something to document.
    asked.saw("POST /v1/events", &[201, 400, 403, 409, 413, 415]);
    asked.saw("POST /v1/events/batch", &[201, 400, 403, 409, 413, 415]);
    asked.saw("POST /v1/processes", &[201, 400, 403, 409, 413, 415]);
    asked.saw("POST /v1/correlation-links", &[201, 400, 409, 413, 415]);
    asked.saw("POST /v1/debug/events/clear", &[204, 400, 413, 415]);
    asked.saw("POST /v1/events/lookup", &[200, 400, 413, 415]);
    asked.saw("GET /v1/events/correlation/{id}", &[200, 400, 403]);
    asked.saw("GET /v1/events/account/{accountId}/summary", &[400, 404]);
    asked.saw("GET /v1/correlation-links/{id}", &[200, 400, 403]);
    asked.saw("GET /v1/traces", &[200, 400, 403]);
}

#[tokio::test]
async fn a_request_without_the_token_or_above_the_rate_is_in_the_document() {
    let options = EventLogOptions {
        rate_limit: Some(1),
        ..EventLogOptions::default()
    };
    let mut asked = Asked::of(start(config_with_token(), options).await).await;
    for operation in asked.operations() {
        let (method, path, _) = &operation;
        let (name, path) = (format!("{method} {path}"), filled(path, "a"));
        let status = asked.ask(&operation, &path, "", "").await;
        let is_open = path.starts_with("/v1/healthcheck");
        assert_eq!(status, if is_open { 200 } else { 401 }, "{name}");
    }
    // So many at once use up the allowance of the next 50 seconds.
    let batch = format!("{{\"events\":[{}]}}", [SAMPLES[0]; 50].join(","));
    let first = post(&asked.server, "/v1/events/batch", TOKEN, &batch).await;
    assert_eq!(first.status, 201, "{first:?}");
    let headers = format!("{JSON}{TOKEN}");
    for operation in asked.operations() {
        let body = match operation.1.as_str() {
            "/v1/events" => SAMPLES[1],
            "/v1/events/batch" => batch.as_str(),
            _ => continue,
        };
        let path = operation.1.clone();
        assert_eq!(asked.ask(&operation, &path, &headers, body).await, 429);
    }
    assert!(asked.undocumented.is_empty(), "{:#?}", asked.undocumented);
}

#[tokio::test]
async fn a_store_that_is_away_is_in_the_document_of_all_that_asks_it() {
    let asked = Asked::of(start(config(), EventLogOptions::default()).await).await;
    for (method, path, operation) in asked.operations() {
        let asks_nobody = ["/v1/healthcheck", "/v1/version"].contains(&path.as_str());
        let is_there = operation["responses"].get("503").is_some();
        assert_eq!(is_there, !asks_nobody, "{method} {path}");
    }
}

#[tokio::test]
async fn the_page_sizes_of_the_document_are_those_that_are_taken() {
    let mut asked = Asked::of(start(config(), EventLogOptions::default()).await).await;
    let mut listings = 0;
    for operation in asked.operations() {
        let (_, template, documented) = &operation;
        let mut parameters = documented["parameters"].as_array().into_iter().flatten();
        let Some(page_size) = parameters.find(|one| one["name"] == "pageSize") else {
            continue;
        };
        let path = filled(template, "a");
        let most = page_size["schema"]["maximum"].as_u64().unwrap();
        for (size, status) in [(0, 400), (1, 200), (most, 200), (most + 1, 400)] {
            let path = format!("{path}?pageSize={size}");
            assert_eq!(asked.ask(&operation, &path, "", "").await, status, "{path}");
        }
        listings += 1;
    }
    assert_eq!(listings, 5);
}
