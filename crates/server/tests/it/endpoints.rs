//! The answer of each endpoint, word for word.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{
    AcceptedEvents, Account, Audited, Books, ComponentAccount, ComponentKind, LostCounts, Place,
};
use tidegate_core::env::BoxFuture;
use tidegate_core::{Code, Component, EventId, EventLocation, Failure, HealthFinding};
use tidegate_server::Exporter;

use crate::fixture::{Running, config};

/// A component with books that are there, fail or hang.
#[derive(Debug)]
struct Stub {
    name: &'static str,
    books: Option<Result<Vec<ComponentAccount>, &'static str>>,
    is_required: bool,
}

impl Stub {
    fn new(name: &'static str, books: Option<Result<Vec<ComponentAccount>, &'static str>>) -> Self {
        Self {
            name,
            books,
            is_required: true,
        }
    }
}

impl Component for Stub {
    fn name(&self) -> &str {
        self.name
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            match &self.books {
                Some(books) => books.clone().map_err(|why| failure().with_source(why)),
                None => std::future::pending().await,
            }
        })
    }

    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async {
            let accounts = self.accounts().await.map_err(|_| failure())?;
            let audited = accounts.into_iter().map(|found| {
                let (books, recount) = (Books::default(), Books::default());
                Audited::new(found.name, found.kind, &books, &recount, Vec::new())
            });
            Ok(audited.collect())
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            if self.books.as_ref().is_some_and(Result::is_err) {
                return Err(failure());
            }
            let details = json!({ "number": 7 });
            let seen = EventLocation::new(self.name, Place::Queued, details);
            Ok((id == EventId::from_u128(1))
                .then_some(seen)
                .into_iter()
                .collect())
        })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async {
            match &self.books {
                Some(Ok(_)) => HealthFinding::up(),
                Some(Err(_)) | None => HealthFinding::down("away"),
            }
        })
    }

    fn gates_readiness(&self) -> bool {
        self.is_required
    }
}

fn failure() -> Failure {
    Failure::transient(Code::from_static("store.away"), "the database is away")
}

fn logger() -> Arc<dyn Component> {
    let lost: LostCounts = serde_json::from_value(json!({"queue-full": 1})).unwrap();
    let account = Account {
        accepted: 10,
        in_flight: 2,
        spilled: 3,
        delivered: 4,
        lost,
        ..Account::default()
    };
    let name = "logger \"a\"".to_owned();
    let account = ComponentAccount {
        name,
        kind: ComponentKind::Logger,
        account,
    };
    Arc::new(Stub::new("logger", Some(Ok(vec![account]))))
}

fn broken() -> Arc<dyn Component> {
    Arc::new(Stub::new(
        "orders-store",
        Some(Err("password of the database")),
    ))
}

fn hanging() -> Arc<dyn Component> {
    Arc::new(Stub::new("far-store", None))
}

#[tokio::test]
async fn a_component_that_readiness_does_not_depend_on_is_shown_and_does_not_end_it() {
    let optional = Stub {
        is_required: false,
        ..Stub::new("extra", Some(Err("away")))
    };
    let server = Running::start(config(), |b| {
        b.component(logger()).component(Arc::new(optional))
    })
    .await;
    insta::assert_snapshot!(server.get("/readyz").await.short(), @r#"200 {"status":"UP","draining":false,"parts":[{"name":"extra","status":"DOWN","message":"away","required":false},{"name":"logger","status":"UP"}]}"#);
    assert_eq!(server.get("/health").await.status, 503);
}

#[tokio::test]
async fn audit_and_where_answer_for_every_component() {
    let queue = Arc::new(Stub::new("queue", Some(Ok(Vec::new()))));
    let server = Running::start(config(), |b| b.component(logger()).component(queue)).await;
    let audit = server.get("/tidegate/audit").await.json();
    assert_eq!(audit["components"][0]["name"], "logger \"a\"");
    assert_eq!(audit["unaccounted"], 0);
    let id = EventId::from_u128(1);
    insta::assert_snapshot!(server.get(&format!("/tidegate/where/{id}")).await.short(), @r#"200 {"id":"00000000-0000-0000-0000-000000000001","place":"queued","component":"queue","at":null,"attempts":null,"history":[{"component":"logger","place":"queued","number":7},{"component":"queue","place":"queued","number":7}]}"#);
    let path = format!("/tidegate/where/{id}?component=queue");
    assert_eq!(
        server.get(&path).await.json()["history"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let other = EventId::from_u128(2);
    insta::assert_snapshot!(server.get(&format!("/tidegate/where/{other}")).await.short(), @r#"404 {"code":"where.unknown","message":"no component has event 00000000-0000-0000-0000-000000000002","details":{}}"#);
    insta::assert_snapshot!(server.get("/tidegate/audit?component=outbox").await.short(), @r#"404 {"code":"http.not-found","message":"there is no component `outbox`","details":{}}"#);
}

#[tokio::test]
async fn an_audit_fails_as_a_whole_and_says_why() {
    let server = Running::start(config(), |b| b.component(logger()).component(broken())).await;
    insta::assert_snapshot!(server.get("/tidegate/audit").await.short(), @r#"503 {"code":"http.unavailable","message":"the database is away","details":{"cause":"store.away"}}"#);
    assert_eq!(
        server.get("/tidegate/audit?component=logger").await.status,
        200
    );
}

#[tokio::test]
async fn probes_say_how_we_are() {
    let server = Running::plain().await;
    server.watch("log", || async { HealthFinding::up() });
    server.watch("spill", || async {
        HealthFinding::degraded("3 segments wait for replay")
    });
    insta::assert_snapshot!(server.get("/livez").await.short(), @r#"200 {"status":"UP","draining":false,"parts":[]}"#);
    insta::assert_snapshot!(server.get("/readyz").await.short(), @r#"200 {"status":"DEGRADED","draining":false,"parts":[{"name":"log","status":"UP"},{"name":"spill","status":"DEGRADED","message":"3 segments wait for replay"}]}"#);
    insta::assert_snapshot!(server.get("/health").await.short(), @r#"200 {"status":"DEGRADED","draining":false,"parts":[{"name":"log","status":"UP"},{"name":"spill","status":"DEGRADED","message":"3 segments wait for replay"}]}"#);
    for (alias, path) in [
        ("/actuator/health", "/health"),
        ("/actuator/health/liveness", "/livez"),
        ("/actuator/health/readiness", "/readyz"),
    ] {
        assert_eq!(
            server.get(alias).await.short(),
            server.get(path).await.short(),
            "{alias}"
        );
    }
}

#[tokio::test]
async fn the_index_names_paths_that_are_there() {
    let server = Running::plain().await;
    let index = server.get("/").await;
    insta::assert_snapshot!(index.short(), @r#"200 {"name":"tidegate","version":"0.1.0","links":{"health":"/health","ledger":"/tidegate/ledger","liveness":"/livez","metrics":"/metrics","openapi":"/openapi.json","readiness":"/readyz"}}"#);
    for path in index.json()["links"].as_object().unwrap().values() {
        assert_eq!(
            server.get(path.as_str().unwrap()).await.status,
            200,
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_ledger_is_the_json_of_the_books() {
    let server = Running::start(config(), |b| b.component(logger())).await;
    let answer = server.get("/tidegate/ledger").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    insta::assert_snapshot!(answer.short(), @r#"200 {"components":[{"name":"logger \"a\"","kind":"logger","account":{"accepted":10,"queued":0,"in_flight":2,"retrying":0,"parked":0,"spilled":3,"dead_lettered":0,"delivered":4,"lost":{"total":1,"queue-full":1}}}],"balanced":true}"#);
}

#[tokio::test]
async fn books_that_cannot_be_read_are_not_shown_as_balanced() {
    let server = Running::start(config(), |b| b.component(logger()).component(broken())).await;
    insta::assert_snapshot!(server.get("/tidegate/ledger").await.short(), @r#"503 {"code":"ledger.unavailable","message":"could not read the books of `orders-store`","details":{}}"#);
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(
        !metrics.body.contains("tidegate_events"),
        "{}",
        metrics.body
    );
}

#[tokio::test]
async fn books_that_hang_are_given_up_on() {
    let server = Running::start(config(), |b| b.component(hanging())).await;
    let clock = server.clock.clone();
    let mut client = server.client().await;
    let limit = std::time::Duration::from_secs(2);
    let (answer, ()) = tokio::join!(client.get("/tidegate/ledger"), async {
        clock.asked_for(limit).await;
        clock.advance(limit);
    });
    insta::assert_snapshot!(answer.short(), @r#"503 {"code":"ledger.unavailable","message":"the books of `far-store` gave no answer within 2s","details":{}}"#);
}

#[tokio::test]
async fn metrics_are_the_ledger_and_what_was_recorded() {
    let (recorder, exporter) = Exporter::with_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Running::start(config(), |b| b.component(logger()).metrics(exporter)).await;
    metrics::counter!("eventlog.sent").increment(4);
    assert_eq!(server.get("/nowhere").await.status, 404);
    let answer = server.get("/metrics").await;
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let (ledger, recorded) = answer.body.split_once("# TYPE eventlog_sent").unwrap();
    insta::assert_snapshot!(ledger, @r#"
    # HELP tidegate_accepted_total Events a component ever took on.
    # TYPE tidegate_accepted_total counter
    tidegate_accepted_total{component="logger \"a\""} 10

    # HELP tidegate_delivered_total Events that arrived.
    # TYPE tidegate_delivered_total counter
    tidegate_delivered_total{component="logger \"a\""} 4

    # HELP tidegate_events Events by the place they are in.
    # TYPE tidegate_events gauge
    tidegate_events{component="logger \"a\"",place="queued"} 0
    tidegate_events{component="logger \"a\"",place="in_flight"} 2
    tidegate_events{component="logger \"a\"",place="retrying"} 0
    tidegate_events{component="logger \"a\"",place="parked"} 0
    tidegate_events{component="logger \"a\"",place="spilled"} 3
    tidegate_events{component="logger \"a\"",place="dead_lettered"} 0
    tidegate_events{component="logger \"a\"",place="delivered"} 4
    tidegate_events{component="logger \"a\"",place="lost"} 1

    # HELP tidegate_lost_total Events that are gone, by reason.
    # TYPE tidegate_lost_total counter
    tidegate_lost_total{component="logger \"a\"",reason="queue-full"} 1

    # HELP tidegate_ready Whether requests should be sent here: 1 while /readyz answers 200.
    # TYPE tidegate_ready gauge
    tidegate_ready 1
    "#);
    assert_recorded(&format!("# TYPE eventlog_sent{recorded}"));
}

/// The recorded metrics: of others, then of the server itself.
fn assert_recorded(text: &str) {
    // How many connections are still open depends on when the server sees the end of the first.
    let stable: Vec<&str> = text
        .lines()
        .filter(|l| !l.starts_with("tidegate_http_connections{"))
        .collect();
    insta::assert_snapshot!(stable.join("\n"), @r#"
    # TYPE eventlog_sent counter
    eventlog_sent 4

    # HELP tidegate_http_connections Connections that are open.
    # TYPE tidegate_http_connections gauge

    # HELP tidegate_http_request_seconds Time until the response began.
    # TYPE tidegate_http_request_seconds histogram
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.001"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.0025"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.005"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.01"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.025"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.05"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.1"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.25"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="0.5"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="1"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="2.5"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="5"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="10"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="30"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="60"} 1
    tidegate_http_request_seconds_bucket{component="server",route="none",method="GET",le="+Inf"} 1
    tidegate_http_request_seconds_sum{component="server",route="none",method="GET"} 0
    tidegate_http_request_seconds_count{component="server",route="none",method="GET"} 1

    # HELP tidegate_http_requests_total Requests answered, by route, method and class of status.
    # TYPE tidegate_http_requests_total counter
    tidegate_http_requests_total{component="server",route="none",method="GET",status="4xx"} 1
    "#);
}
