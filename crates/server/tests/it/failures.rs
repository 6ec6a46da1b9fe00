//! Every failure is a problem body, and a panic ends one request alone.

use std::io;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::routing::{get, post};
use tracing_subscriber::fmt::MakeWriter;
use utoipa_axum::router::OpenApiRouter;

use crate::fixture::{Running, config};

#[derive(serde::Deserialize)]
struct Order {
    amount: u32,
}

async fn panics() -> &'static str {
    panic!("the till of table 7 is empty")
}

fn parts() -> OpenApiRouter {
    OpenApiRouter::new()
        .route(
            "/order",
            post(|Json(order): Json<Order>| async move { order.amount.to_string() }),
        )
        .route(
            "/search",
            get(|Query(order): Query<Order>| async move { order.amount.to_string() }),
        )
        .route("/panic", get(panics))
        .route(
            "/leak",
            get(|| async { (StatusCode::BAD_GATEWAY, "password: hunter2") }),
        )
}

#[tokio::test]
async fn an_unknown_route_is_a_problem() {
    let server = Running::plain().await;
    insta::assert_snapshot!(server.get("/no/where?x=1").await.short(), @r#"404 {"code":"http.not-found","message":"there is no such route","details":{"path":"/no/where"}}"#);
}

#[tokio::test]
async fn a_wrong_method_is_a_problem_that_names_the_right_ones() {
    let server = Running::plain().await;
    let answer = server.ask("DELETE", "/metrics", "", "").await;
    assert_eq!(answer.header("allow"), Some("GET,HEAD"));
    insta::assert_snapshot!(answer.short(), @r#"405 {"code":"http.method-not-allowed","message":"the route does not take this method; the header `allow` lists those it takes","details":{}}"#);
}

#[tokio::test]
async fn a_request_that_an_extractor_refuses_is_a_problem() {
    let server = Running::start(config(), |b| b.routes(parts())).await;
    let json = "content-type: application/json\r\n";
    let broken = server.ask("POST", "/order", json, "{").await;
    let wrong = server
        .ask("POST", "/order", json, "{\"amount\":\"x\"}")
        .await;
    let text = server
        .ask("POST", "/order", "content-type: text/plain\r\n", "{}")
        .await;
    let query = server.get("/search?amount=x").await;
    for answer in [&broken, &wrong, &text, &query] {
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let all = [broken, wrong, text, query]
        .map(|answer| answer.short())
        .join("\n");
    insta::assert_snapshot!(all, @r#"
    400 {"code":"http.bad-request","message":"Failed to parse the request body as JSON: EOF while parsing an object at line 1 column 1","details":{}}
    400 {"code":"http.bad-request","message":"Failed to deserialize the JSON body into the target type: amount: invalid type: string \"x\", expected u32 at line 1 column 13","details":{}}
    415 {"code":"http.unsupported-media-type","message":"Expected request with `Content-Type: application/json`","details":{}}
    400 {"code":"http.bad-request","message":"Failed to deserialize query string: amount: invalid digit found in string","details":{}}
    "#);
    assert_eq!(
        server
            .ask("POST", "/order", json, "{\"amount\":3}")
            .await
            .short(),
        "200 3"
    );
}

#[tokio::test]
async fn g11_a_panic_is_500_with_an_id_that_the_log_explains() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let server = Running::start(config(), |b| b.routes(parts())).await;
    let mut client = server.client().await;

    let answer = client.get("/panic").await;
    insta::assert_snapshot!(answer.short(), @r#"500 {"code":"internal","message":"something went wrong here; the log has more under the id","details":{"id":"018bcfe56800-4d036920e34df11d"}}"#);
    let id = answer.json()["details"]["id"].as_str().unwrap().to_owned();
    assert_eq!(answer.header("x-request-id"), Some(id.as_str()));
    let line = log.line_with("panicked");
    assert!(
        line.contains(&id) && line.contains("the till of table 7 is empty"),
        "{line}"
    );
    assert!(line.contains("ERROR"), "{line}");

    // The connection and the server live on.
    assert_eq!(client.get("/livez").await.status, 200);
    assert_eq!(server.get("/livez").await.status, 200);
}

#[tokio::test]
async fn details_of_a_failure_stay_in_the_log() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let server = Running::start(config(), |b| b.routes(parts())).await;
    let answer = server
        .ask("GET", "/leak", "x-request-id: my-id\r\n", "")
        .await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["code"], "internal");
    assert_eq!(answer.json()["details"]["id"], "my-id");
    assert!(!answer.body.contains("hunter2"), "{}", answer.body);
    assert!(log.line_with("my-id").contains("hunter2"));
}

/// Keeps what is logged.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn line_with(&self, text: &str) -> String {
        let bytes = self.0.lock().unwrap().clone();
        let all = String::from_utf8(bytes).unwrap();
        let line = all.lines().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no {text:?} in {all}"))
            .to_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
