//! The Event Log API over HTTP.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_core::env::system::SystemClock;
use tidegate_core::env::{Clock, Env};
use tidegate_eventlog::{EventLog, EventLogComponent, EventLogOptions};
use tidegate_server::eventlog::{EventLogApi, event_log_routes};
use tidegate_server::{ServerBuilder, ServerConfig};
use tidegate_store::idempotency::{KeyState, KeyedRequest, begin, fingerprint};
use tidegate_store::{Store, StoreOptions};
use tokio::sync::oneshot;

use crate::client::Answer;
use crate::fixture::{HandClock, Running, config, config_with_token, within};

const JSON: &str = "content-type: application/json\r\n";
/// The two lines of the documented sample.
pub(crate) const SAMPLES: [&str; 2] = [
    r#"{"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_START","step":"BookingCreated","details":"Booking BK-20260601-001 created for PET-001","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-06-01T10:15:30.123Z","userId":"system"}"#,
    r#"{"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_END","step":"BookingCompleted","details":"Booking BK-20260601-001 completed successfully","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-06-01T10:15:30.456Z","userId":"system"}"#,
];

pub(crate) async fn start(config: ServerConfig, options: EventLogOptions) -> (Running, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let store = open(&dir, 10, &env).await;
    (serve(config, store, options, &env).await, dir)
}

async fn open(dir: &TempDir, max_connections: u32, env: &Env) -> Store {
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    let options = StoreOptions {
        max_connections,
        ..StoreOptions::new(url)
    };
    Store::open(&options, env).await.unwrap()
}

async fn serve(config: ServerConfig, store: Store, options: EventLogOptions, env: &Env) -> Running {
    let log = EventLog::open(store, options, env).await.unwrap();
    let component = Arc::new(EventLogComponent::new(log.clone(), env));
    let routes = event_log_routes(EventLogApi {
        log,
        clock: Arc::clone(&env.clock),
        version: "0.0.0",
        build: "test".to_owned(),
    });
    let build = |b: ServerBuilder| b.routes(routes).component(component);
    Running::start(config, build).await
}

async fn plain() -> (Running, TempDir) {
    start(config(), EventLogOptions::default()).await
}

pub(crate) async fn post(server: &Running, path: &str, headers: &str, body: &str) -> Answer {
    let headers = format!("{JSON}{headers}");
    server.ask("POST", path, &headers, body).await
}

/// Checks the form of a failure.
fn assert_problem(answer: &Answer, status: u16, error: &str, code: &str) -> Value {
    let body = answer.json();
    assert_eq!(answer.status, status, "{body}");
    assert_eq!(
        (&body["error"], &body["code"]),
        (&json!(error), &json!(code)),
        "{body}"
    );
    assert!(body["message"].is_string(), "{body}");
    assert_eq!(body["details"].is_array(), status == 400, "{body}");
    body
}

#[tokio::test]
async fn p01_p07_the_documented_samples_are_stored_and_read_back() {
    let (server, _dir) = plain().await;
    for sample in SAMPLES {
        let answer = post(&server, "/v1/events", "", sample).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.json()["correlationId"], "a1b2c3d4");
    }
    let found = server.get("/v1/events/correlation/a1b2c3d4").await.json();
    assert_eq!(found["totalCount"], 2);
    assert_eq!(found["hasMore"], false);
    assert_eq!(found["events"][1]["step"], "BookingCompleted");
}

#[tokio::test]
async fn every_failure_has_the_form_of_the_api() {
    let (server, _dir) = plain().await;
    let bad = post(&server, "/v1/events", "", r#"{"eventType":"STEP"}"#).await;
    let body = assert_problem(&bad, 400, "Validation Error", "event.invalid");
    let fields = body["details"].as_array().unwrap();
    let hint = json!({"path": "processStatus", "message": "missing; eventType was given"});
    assert!(fields.contains(&hint), "{body}");
    let text = server.ask("POST", "/v1/events", "", SAMPLES[0]).await;
    assert_problem(&text, 415, "Unsupported Media Type", "body.unsupported");
    let lost = server.get("/v1/nowhere").await;
    assert_problem(&lost, 404, "NOT_FOUND", "not_found");
    let query = server.get("/v1/traces?pageSize=many").await;
    assert_problem(&query, 400, "Validation Error", "event.invalid");
    let large = server.get("/v1/traces?pageSize=101").await;
    let body = assert_problem(&large, 400, "Validation Error", "event.invalid");
    assert_eq!(body["details"][0]["path"], "pageSize");
    let nobody = server.get("/v1/events/account/A/summary").await;
    assert_problem(&nobody, 404, "NOT_FOUND", "not_found");
}

#[tokio::test]
async fn the_logger_of_an_event_is_kept_from_single_and_batch_posts() {
    let (server, _dir) = plain().await;
    let logger = "019a8f3e-5c00-7abc-8def-0123456789ab";
    let header = format!("x-tidegate-logger: {logger}\r\n");
    let id = |n: u32| format!("019a8f3e-5c00-7abc-8def-00000000000{n}");
    let sample = |n: u32| {
        let id = id(n);
        SAMPLES[0].replace(
            "{\"applicationId",
            &format!("{{\"_id\":\"{id}\",\"applicationId"),
        )
    };
    let one = post(&server, "/v1/events", &header, &sample(1)).await;
    assert_eq!(one.status, 201, "{one:?}");
    let batch = |n: u32| format!("{{\"events\":[{},{}]}}", sample(n), sample(n + 1));
    let many = post(&server, "/v1/events/batch", &header, &batch(2)).await;
    assert_eq!(many.json()["success"], true, "{many:?}");
    let own = post(&server, "/v1/events", "", &sample(4)).await;
    assert_eq!(own.status, 201);
    for (n, expect) in [
        (1, json!(logger)),
        (2, json!(logger)),
        (3, json!(logger)),
        (4, Value::Null),
    ] {
        let found = server
            .get(&format!("/tidegate/where/{}", id(n)))
            .await
            .json();
        assert_eq!(found["history"][0]["logger"], expect, "{found}");
    }
    let executions = &many.json()["executionIds"];
    let found = server
        .get(&format!("/tidegate/where/{}", id(3)))
        .await
        .json();
    assert_eq!(found["history"][0]["executionId"], executions[1], "{found}");
    // One that is none is refused by its own code, which makes a logger keep its events.
    for (wrong, path, body) in [
        ("a b", "/v1/events", sample(5)),
        ("", "/v1/events", sample(5)),
        ("a, b", "/v1/events/batch", batch(5)),
    ] {
        let header = format!("x-tidegate-logger: {wrong}\r\n");
        let refused = post(&server, path, &header, &body).await;
        let body = assert_problem(&refused, 400, "Validation Error", "logger.invalid");
        assert_eq!(body["details"][0]["path"], "x-tidegate-logger", "{body}");
    }
    let lost = server.get(&format!("/tidegate/where/{}", id(5))).await;
    assert_eq!(lost.status, 404, "nothing of it is stored");
    let audit = server.get("/tidegate/audit").await.json();
    assert_eq!(audit["unaccounted"], 0, "{audit}");
}

#[tokio::test]
async fn a_token_is_asked_for_in_the_form_of_the_api() {
    let (server, _dir) = start(config_with_token(), EventLogOptions::default()).await;
    let refused = post(&server, "/v1/events", "", SAMPLES[0]).await;
    assert_problem(&refused, 401, "Unauthorized", "auth.denied");
    let token = "authorization: Bearer s3cret\r\n";
    assert_eq!(
        post(&server, "/v1/events", token, SAMPLES[0]).await.status,
        201
    );
    assert_eq!(
        server.get("/v1/healthcheck").await.json(),
        json!({"status": "ok"})
    );
    assert_eq!(server.get("/v1/healthcheck/ready").await.status, 200);
}

#[tokio::test]
async fn p06_a_body_above_the_limit_is_refused() {
    let (server, _dir) = plain().await;
    let large = SAMPLES[0].replace("Booking BK", &"x".repeat(1024 * 1024));
    let head = format!("POST /v1/events HTTP/1.1\r\nhost: localhost\r\n{JSON}");
    let mut client = server.client().await;
    let length = large.len();
    client
        .send_some(format!("{head}content-length: {length}\r\n\r\n{large}"))
        .await;
    let refused = client.answer().await;
    assert_problem(&refused, 413, "Payload Too Large", "body.too_large");
}

#[tokio::test]
async fn p12_an_idempotency_key_answers_a_repeat_and_refuses_another_request() {
    let (server, _dir) = plain().await;
    let process = |name: &str| {
        json!({"processName": name, "displayName": "d", "description": "e", "owningTeam": "t"})
            .to_string()
    };
    let key = "idempotency-key: k1\r\n";
    let first = post(&server, "/v1/processes", key, &process("CheckIn")).await;
    assert_eq!(first.status, 201, "{first:?}");
    let again = post(&server, "/v1/processes", key, &process("CheckIn")).await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    let other = post(&server, "/v1/processes", key, &process("CheckOut")).await;
    assert_problem(&other, 409, "Conflict", "idempotency.conflict");
    let taken = post(&server, "/v1/processes", "", &process("CheckIn")).await;
    assert_problem(&taken, 409, "Conflict", "name.taken");
    let listed = server.get("/v1/processes?isActive=true").await.json();
    assert_eq!(listed["processes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn p12_a_process_whose_request_died_before_its_answer_is_answered_again() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let store = open(&dir, 10, &env).await;
    let server = serve(config(), store.clone(), EventLogOptions::default(), &env).await;
    let process = |team: &str| {
        let process = json!({"processName": "CheckIn", "displayName": "d", "description": "e",
            "owningTeam": team});
        process.to_string()
    };
    // Both requests took their keys two minutes ago; one of them defined the process.
    let made = post(&server, "/v1/processes", "", &process("desk")).await;
    for (key, team) in [("k1", "desk"), ("k2", "kennel")] {
        let keyed = KeyedRequest {
            scope: "POST /v1/processes".to_owned(),
            key: key.to_owned(),
            fingerprint: fingerprint(process(team).as_bytes()),
        };
        let before = env.clock.now_ms() - 120_000;
        let hour = Duration::from_secs(3_600);
        let begun = begin(&store, keyed, before, hour).await.unwrap();
        assert!(matches!(begun, KeyState::New(_)));
    }
    let (desk, kennel) = (process("desk"), process("kennel"));
    let own = post(&server, "/v1/processes", "idempotency-key: k1\r\n", &desk).await;
    assert_eq!((own.status, own.json()), (201, made.json()));
    let other = post(&server, "/v1/processes", "idempotency-key: k2\r\n", &kennel).await;
    assert_problem(&other, 409, "Conflict", "name.taken");
}

#[tokio::test]
async fn p13_a_store_that_stands_still_is_told_within_three_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let env = Env {
        clock: clock.clone(),
        ..Env::system()
    };
    let store = open(&dir, 1, &env).await;
    let server = serve(config(), store.clone(), EventLogOptions::default(), &env).await;
    // Somebody has the one reader and the one writer.
    let Store::Sqlite(file) = store.clone() else {
        panic!("it is SQLite");
    };
    let (is_held, held) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let (done, ended) = oneshot::channel();
    let reading = async move {
        let read = file.read("stand still", |_| {
            Box::pin(async move {
                is_held.send(()).ok();
                released.await.ok();
                Ok(())
            })
        });
        read.await.ok();
        done.send(()).ok();
    };
    drop(env.spawn.spawn("reader", Box::pin(reading)));
    within(held).await.unwrap();
    let writing = store.begin().await.unwrap();
    let three_seconds = async {
        clock.asked_for(Duration::from_secs(3)).await;
        clock.advance(Duration::from_secs(3));
    };
    let (answer, ()) = tokio::join!(server.get("/v1/healthcheck/ready"), three_seconds);
    let not_ready = json!({"status": "not_ready"});
    assert_eq!((answer.status, answer.json()), (503, not_ready));
    assert_eq!(server.get("/v1/healthcheck").await.status, 200);
    let refused = {
        let post = post(&server, "/v1/events", "", SAMPLES[0]);
        let time_passes = async {
            loop {
                clock.advance(Duration::from_secs(1));
                SystemClock::new().sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            biased;
            answer = post => answer,
            () = time_passes => unreachable!("time does not end"),
        }
    };
    assert_problem(&refused, 503, "Service Unavailable", "store.unavailable");
    assert!(refused.header("retry-after").is_some());
    drop(release);
    // Its own time may be over by now, too.
    within(ended).await.unwrap();
    writing.rollback().await.unwrap();
    assert_eq!(server.get("/v1/healthcheck/ready").await.status, 200);
    let stats = server.get("/v1/dashboard/stats").await.json();
    assert_eq!(stats["totalEvents"], 0, "a refused post is not there");
    let stored = post(&server, "/v1/events", "", SAMPLES[0]).await;
    assert_eq!(stored.status, 201);
}

#[tokio::test]
async fn p14_the_debug_endpoint_is_there_only_when_it_is_switched_on() {
    let path = "/v1/debug/events/clear";
    let (server, _dir) = plain().await;
    let absent = post(&server, path, "", r#"{"confirm":true}"#).await;
    assert_problem(&absent, 404, "NOT_FOUND", "not_found");
    let options = EventLogOptions {
        debug: true,
        ..EventLogOptions::default()
    };
    let (server, _dir) = start(config(), options).await;
    post(&server, "/v1/events", "", SAMPLES[0]).await;
    let unsure = post(&server, path, "", r#"{"confirm":false}"#).await;
    assert_problem(&unsure, 400, "Validation Error", "event.invalid");
    assert_eq!(
        post(&server, path, "", r#"{"confirm":true}"#).await.status,
        204
    );
    let stats = server.get("/v1/dashboard/stats").await.json();
    assert_eq!(
        (&stats["totalEvents"], &stats["successRate"]),
        (&json!(0), &json!(100.0))
    );
}

#[tokio::test]
async fn an_application_that_sends_too_much_is_told_when_to_come_back() {
    let options = EventLogOptions {
        rate_limit: Some(1),
        ..EventLogOptions::default()
    };
    let (server, _dir) = start(config(), options).await;
    assert_eq!(
        post(&server, "/v1/events", "", SAMPLES[0]).await.status,
        201
    );
    let refused = post(&server, "/v1/events", "", SAMPLES[1]).await;
    assert_problem(&refused, 429, "Too Many Requests", "rate.limited");
    let wait = refused.header("retry-after");
    assert!(matches!(wait, Some("1" | "2")), "{wait:?}");
}
