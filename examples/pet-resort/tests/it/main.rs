//! The service from outside: the twelve scenarios with a real Event Log API, the rest with a stub of it.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

mod event_log;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use pet_resort::{METRICS, Pace, Probes, Resort, describe, router, serve};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tidegate_core::env::Env;
use tidegate_logger::{Defaults, HttpApi, Logger, LoggerConfig, ProcessTemplate, RunningLogger};
use tidegate_testkit::StubApi;

const LIMIT: Duration = Duration::from_secs(30);

/// The numbers of all tests of this process.
static RECORDER: LazyLock<PrometheusHandle> = LazyLock::new(|| {
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();
    describe();
    recorder
});

struct House {
    /// The address of its Event Log API.
    event_log: String,
    logger: RunningLogger,
    client: Client,
    url: String,
    probes: Probes,
    _spill: tempfile::TempDir,
}

impl House {
    async fn with(event_log: String) -> Self {
        let (spill, env) = (tempfile::tempdir().unwrap(), Env::system());
        let config = LoggerConfig::builder()
            .spillover_path(spill.path())
            .defaults(Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT"))
            .build()
            .unwrap();
        let api = HttpApi::builder(event_log.as_str());
        let api = api.build(env.clock.clone()).unwrap();
        let logger = RunningLogger::start(config, Arc::new(api), None).unwrap();
        let sink = Arc::new(Logger::clone(&logger));
        let template = ProcessTemplate::new(sink, env.clock.clone(), env.entropy.fork("processes"));
        let pace = Pace {
            kennel_timeout: Duration::from_millis(5),
            agent: Duration::from_millis(5),
        };
        let resort = Resort::new(template, env.entropy.fork("traces"), pace);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let probes = Probes::new(Logger::clone(&logger));
        let app = router(Arc::new(resort)).merge(probes.clone().router());
        tokio::spawn(serve(listener, app, std::future::pending()));
        Self {
            event_log,
            logger,
            client: Client::new(),
            url,
            probes,
            _spill: spill,
        }
    }

    /// Sends a request, expects this status, and gives the answer.
    async fn ask(&self, what: &str, body: Value, headers: &[(&str, &str)], status: u16) -> Value {
        let (method, path) = what.split_once(' ').unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if !body.is_null() {
            request = request.json(&body);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{what} {headers:?}");
        assert!(response.headers().contains_key("x-trace-id"));
        response.json().await.unwrap()
    }

    async fn book(&self, headers: &[(&str, &str)], status: u16) -> String {
        let body =
            json!({"petId": "PET-001", "checkInDate": "2099-06-01", "checkOutDate": "2099-06-04"});
        let booking = self.ask("POST /api/bookings", body, headers, status).await;
        booking["id"].as_str().unwrap_or_default().to_owned()
    }

    async fn desk(&self, id: &str, what: &str, headers: &[(&str, &str)], status: u16) -> Value {
        let body = match what {
            "check-out" => json!({"paymentAmount": 120.5, "cardNumberLast4": "4242"}),
            _ => json!({"kennelPreference": "sunny"}),
        };
        self.ask(
            &format!("POST /api/bookings/{id}/{what}"),
            body,
            headers,
            status,
        )
        .await
    }

    /// Everything logged so far of a business case, once it has arrived.
    async fn events(&self, correlation: &str) -> Vec<Value> {
        assert!(self.logger.flush(LIMIT).await);
        let url = format!("{}/v1/events/correlation/{correlation}", self.event_log);
        let page: Value = self
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        assert_eq!(page["hasMore"], false, "{page}");
        page["events"].as_array().unwrap().clone()
    }
}

fn distinct<'a>(events: &'a [Value], field: &str) -> BTreeSet<&'a str> {
    events
        .iter()
        .filter_map(|event| event[field].as_str())
        .collect()
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The twelve scenarios, with an Event Log API at this address.
async fn the_twelve_scenarios_give_the_listed_status_codes(event_log: String) {
    let house = House::with(event_log).await;
    // 1: book and check in.
    let id = house.book(&[], 201).await;
    house.desk(&id, "check-in", &[], 200).await;
    // 2: kennel timeout. 4: the failed booking made again as a new request.
    house
        .book(
            &[
                ("x-simulate", "kennel-timeout"),
                ("x-correlation-id", "two"),
            ],
            504,
        )
        .await;
    house.book(&[("x-correlation-id", "two")], 201).await;
    assert_eq!(distinct(&house.events("two").await, "traceId").len(), 2);
    // 3: kennel retry, then check in.
    let id = house.book(&[("x-simulate", "kennel-retry")], 201).await;
    house.desk(&id, "check-in", &[], 200).await;
    // 5: room service with account retry.
    let order = json!({"petId": "PET-001", "bookingId": id, "item": "steak", "quantity": 2});
    let retry = [("x-simulate", "account-retry")];
    house
        .ask("POST /api/room-service", order, &retry, 201)
        .await;
    // 6: book, look up, cancel.
    let six = house.book(&[], 201).await;
    let found = house
        .ask(&format!("GET /api/bookings/{six}"), Value::Null, &[], 200)
        .await;
    assert_eq!(found["state"], "PENDING");
    let gone = house
        .ask(
            &format!("DELETE /api/bookings/{six}"),
            Value::Null,
            &[],
            200,
        )
        .await;
    assert_eq!(gone["state"], "CANCELLED");
    // 7: second check-in.
    house.desk(&id, "check-in", &[], 409).await;
    // 8: check-out fails, then succeeds: one business case, two traces.
    let case = ("x-correlation-id", "eight");
    house
        .desk(
            &id,
            "check-out",
            &[case, ("x-simulate", "payment-failure")],
            422,
        )
        .await;
    house.desk(&id, "check-out", &[case], 200).await;
    assert_eq!(distinct(&house.events("eight").await, "traceId").len(), 2);
    // 9: agent gate: two events of one step on one span.
    let id = house.book(&[], 201).await;
    let gate = [("x-simulate", "agent-gate"), ("x-correlation-id", "nine")];
    house.desk(&id, "check-in", &gate, 200).await;
    let nine = house.events("nine").await;
    let review: Vec<Value> = nine
        .into_iter()
        .filter(|e| e["step"] == "AgentReview")
        .collect();
    assert_eq!(review.len(), 2);
    assert_eq!(distinct(&review, "spanId").len(), 1);
    assert_eq!(distinct(&review, "eventStatus").len(), 2);
    // 10: awaited approval across two requests.
    let ten = house.book(&[], 201).await;
    house.desk(&ten, "approve-check-in", &[], 409).await;
    let awaiting = [
        ("x-simulate", "awaiting-approval"),
        ("x-correlation-id", "ten"),
    ];
    house.desk(&ten, "check-in", &awaiting, 202).await;
    let approved = house.desk(&ten, "approve-check-in", &[], 200).await;
    assert_eq!(approved["state"], "CHECKED_IN");
    let events = house.events("ten").await;
    assert_eq!((events.len(), distinct(&events, "traceId").len()), (5, 1));
    // 11: vet warning.
    house
        .book(
            &[
                ("x-simulate", "vet-warning"),
                ("x-correlation-id", "eleven"),
            ],
            201,
        )
        .await;
    assert!(distinct(&house.events("eleven").await, "eventStatus").contains("WARNING"));
    // 12: check-out fails, then succeeds, in one trace.
    let trace = [("x-correlation-id", "twelve"), ("x-trace-id", TRACE)];
    let failing = [trace[0], trace[1], ("x-simulate", "payment-failure")];
    house.desk(&id, "check-out", &failing, 422).await;
    house.desk(&id, "check-out", &trace, 200).await;
    let twelve = house.events("twelve").await;
    assert_eq!(distinct(&twelve, "traceId"), BTreeSet::from([TRACE]));
    assert!(distinct(&twelve, "eventStatus").is_superset(&BTreeSet::from(["FAILURE", "SUCCESS"])));
    for (path, status) in [
        ("/api/pets/PET-005", 200),
        ("/api/pets/PET-006", 404),
        ("/api/owners/OWN-003", 200),
        ("/api/owners/OWN-001/bookings", 200),
        ("/api/bookings", 200),
        ("/api/bookings/BK-0", 404),
    ] {
        house
            .ask(&format!("GET {path}"), Value::Null, &[], status)
            .await;
    }
    for (kind, pet) in ["dog", "cat", "bird", "rabbit", "reptile"]
        .into_iter()
        .zip(1..)
    {
        let pet = format!("GET /api/pets/PET-{pet:03}");
        assert_eq!(house.ask(&pet, Value::Null, &[], 200).await["kind"], kind);
    }
    let account = house.logger.account();
    assert_eq!(
        (account.delivered, account.lost.total()),
        (account.accepted, 0)
    );
    let stats = format!("{}/v1/dashboard/stats", house.event_log);
    let stats: Value = house
        .client
        .get(stats)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(stats["totalEvents"], account.accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_request_is_refused_with_its_problem() {
    let stub = StubApi::start().unwrap();
    let house = House::with(stub.url()).await;
    let dates = |from: &str, until: &str| json!({"petId": "PET-001", "checkInDate": from, "checkOutDate": until});
    let id = house.book(&[], 201).await;
    house.desk(&id, "check-in", &[], 200).await;
    let order = |quantity: i64| json!({"petId": "PET-001", "bookingId": id, "item": "steak", "quantity": quantity});
    let pay = |amount: Value| json!({ "paymentAmount": amount });
    let check_out = format!("POST /api/bookings/{id}/check-out");
    for (what, body) in [
        ("POST /api/bookings", dates("2020-06-01", "2020-06-04")),
        ("POST /api/bookings", dates("2099-06-04", "2099-06-01")),
        ("POST /api/bookings", dates("tomorrow", "2099-06-01")),
        ("POST /api/bookings", json!({"petId": "PET-001"})),
        ("POST /api/room-service", order(0)),
        ("POST /api/room-service", order(-1)),
        (&check_out, pay(json!(0))),
        (&check_out, pay(json!(-5.5))),
        (&check_out, pay(json!("much"))),
    ] {
        let answer = house.ask(what, body.clone(), &[], 400).await;
        assert_eq!(answer["code"], "request.invalid", "{what} {body}");
        assert!(!answer["message"].as_str().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_counted_and_explained() {
    let recorder = &*RECORDER;
    let stub = StubApi::start().unwrap();
    let house = House::with(stub.url()).await;
    let id = house.book(&[], 201).await;
    house.desk(&id, "check-in", &[], 200).await;
    let order = json!({"petId": "PET-001", "bookingId": id, "item": "steak", "quantity": 2});
    house.ask("POST /api/room-service", order, &[], 201).await;
    let failing = [("x-simulate", "payment-failure")];
    house.desk(&id, "check-out", &failing, 422).await;
    house.desk(&id, "check-out", &[], 200).await;
    let other = house.book(&[], 201).await;
    let cancel = format!("DELETE /api/bookings/{other}");
    house.ask(&cancel, Value::Null, &[], 200).await;
    let shown = recorder.render();
    for name in METRICS {
        let name = name.replace('.', "_");
        let is_counted = |line: &str| line.starts_with(&format!("{name} "));
        assert!(shown.lines().any(is_counted), "{name} in {shown}");
        assert!(shown.contains(&format!("# HELP {name} ")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_come_in_while_the_event_log_is_down() {
    let stub = StubApi::start().unwrap();
    let house = House::with(stub.url()).await;
    stub.down();
    for _ in 0..15 {
        house.book(&[], 201).await;
    }
    let report = house.logger.shutdown();
    assert_eq!(
        (report.account.spilled, report.account.lost.total()),
        (75, 0)
    );
    assert_eq!(stub.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probes_say_alive_and_ready_until_the_service_stops() {
    let stub = StubApi::start().unwrap();
    let house = House::with(stub.url()).await;
    let status = |path: &'static str| {
        let request = house.client.get(format!("{}{path}", house.url));
        async move { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(status("/livez").await, 200);
    assert_eq!(status("/actuator/health/liveness").await, 200);
    assert_eq!(status("/readyz").await, 200);
    assert_eq!(status("/health").await, 200);
    house.probes.stop();
    assert_eq!(status("/readyz").await, 503);
    assert_eq!(status("/actuator/health/readiness").await, 503);
    assert_eq!(status("/livez").await, 200);
    // A service that stops is well.
    assert_eq!(status("/actuator/health").await, 200);
}
