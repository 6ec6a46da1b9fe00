//! Stopping lets requests finish, and counts those it had to cut.

use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use tidegate_server::{Limits, ServeReport, ServerConfig};
use tokio::sync::Notify;
use utoipa_axum::router::OpenApiRouter;

use crate::client::Client;
use crate::fixture::{Running, config, within};

/// A handler that says when it began and ends when it is told.
#[derive(Clone, Default)]
struct Slow {
    began: Arc<Notify>,
    end: Arc<Notify>,
}

impl Slow {
    fn routes(&self) -> OpenApiRouter {
        let this = self.clone();
        let handler = move || async move {
            this.began.notify_one();
            this.end.notified().await;
            "finished"
        };
        OpenApiRouter::new().route("/slow", get(handler))
    }

    async fn begin(&self, server: &Running) -> Client {
        let mut client = server.client().await;
        client
            .send("GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await;
        within(self.began.notified()).await;
        client
    }
}

#[tokio::test]
async fn a_request_in_flight_finishes_while_probes_hear_that_we_stop() {
    let slow = Slow::default();
    let mut server = Running::start(config(), |b| b.routes(slow.routes())).await;
    let mut busy = slow.begin(&server).await;
    let mut probe = server.client().await;
    assert_eq!(probe.get("/readyz").await.status, 200);

    server.stop();
    let answer = probe.get("/readyz").await;
    insta::assert_snapshot!(answer.short(), @r#"503 {"status":"DOWN","draining":true,"parts":[]}"#);
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(probe.closed().await, "");
    // Nobody is accepted any more.
    assert!(
        tokio::net::TcpStream::connect(server.address)
            .await
            .is_err()
    );

    slow.end.notify_one();
    assert_eq!(busy.answer().await.short(), "200 finished");
    assert_eq!(
        server.report().await,
        ServeReport {
            connections: 2,
            requests: 3,
            cut: 0,
            closed: 0
        }
    );
}

#[tokio::test]
async fn a_request_that_outlasts_the_drain_is_cut_and_counted() {
    let slow = Slow::default();
    let mut server = Running::start(config(), |b| b.routes(slow.routes())).await;
    let mut busy = slow.begin(&server).await;
    server.stop();
    let limit = Limits::default().drain_timeout;
    server.clock.asked_for(limit).await;
    server.clock.advance(limit);
    assert_eq!(busy.closed().await, "");
    assert_eq!(
        server.report().await,
        ServeReport {
            connections: 1,
            requests: 1,
            cut: 1,
            closed: 1
        }
    );
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_the_end() {
    let mut server = Running::plain().await;
    let mut idle = server.client().await;
    assert_eq!(idle.get("/livez").await.status, 200);
    server.stop();
    assert_eq!(idle.closed().await, "");
    assert_eq!(
        server.report().await,
        ServeReport {
            connections: 1,
            requests: 1,
            cut: 0,
            closed: 0
        }
    );
}

#[tokio::test]
async fn half_a_head_holds_up_the_end_for_the_drain_timeout_at_most() {
    let mut server = Running::plain().await;
    let mut half = server.client().await;
    half.send("GET /livez HTT").await;
    // An answer on a later connection means that the server has seen those bytes.
    assert_eq!(server.get("/livez").await.status, 200);
    server.stop();
    let limit = Limits::default().drain_timeout;
    server.clock.asked_for(limit).await;
    server.clock.advance(limit);
    assert_eq!(half.closed().await, "");
    let report = server.report().await;
    assert_eq!((report.requests, report.cut, report.closed), (1, 0, 1));
}

#[tokio::test]
async fn a_response_that_is_read_slowly_still_arrives_whole() {
    // More than the socket buffers of both sides hold.
    const SIZE: usize = 64 * 1024 * 1024;
    let routes = OpenApiRouter::new().route("/large", get(|| async { "x".repeat(SIZE) }));
    let mut server = Running::start(config(), |b| b.routes(routes)).await;
    let mut reader = server.client().await;
    reader
        .send("GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    reader.first_byte().await;
    server.stop();
    server
        .clock
        .asked_for(Limits::default().drain_timeout)
        .await;
    assert_eq!(reader.answer().await.body.len(), SIZE);
    let report = server.report().await;
    assert_eq!((report.requests, report.cut, report.closed), (1, 0, 0));
}

#[tokio::test]
async fn a_drain_of_no_time_cuts_at_once() {
    let slow = Slow::default();
    let limits = Limits {
        drain_timeout: Duration::ZERO,
        ..Limits::default()
    };
    let config = ServerConfig { limits, ..config() };
    let mut server = Running::start(config, |b| b.routes(slow.routes())).await;
    let _busy = slow.begin(&server).await;
    server.stop();
    assert_eq!(server.report().await.cut, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_load_every_answer_that_began_is_whole() {
    const CLIENTS: usize = 20;
    const ANSWERS_BEFORE_STOP: u64 = 200;
    let mut server = Running::start(config(), |b| b).await;
    let answered = tokio::sync::watch::Sender::new(0_u64);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let mut client = server.client().await;
        let answered = answered.clone();
        clients.spawn(async move {
            // `try_get` fails on half an answer.
            while let Some(answer) = client.try_get("/openapi.json").await {
                assert_eq!(answer.json()["openapi"], "3.1.0");
                answered.send_modify(|n| *n += 1);
            }
        });
    }
    let mut progress = answered.subscribe();
    within(progress.wait_for(|n| *n >= ANSWERS_BEFORE_STOP))
        .await
        .unwrap();
    server.stop();
    within(clients.join_all()).await;
    let report = server.report().await;
    assert_eq!(
        (report.requests, report.cut, report.closed),
        (*answered.borrow(), 0, 0)
    );
}

#[tokio::test]
async fn dropping_the_run_closes_every_connection() {
    use std::net::SocketAddr;
    use tidegate_core::env::Env;
    use tidegate_server::Server;

    let server = Server::builder(config())
        .bind(&Env::system())
        .await
        .unwrap();
    let address: SocketAddr = server.local_addr();
    let mut running = Box::pin(server.run(std::future::pending()));
    let mut client = tokio::select! {
        _ = running.as_mut() => panic!("nobody stopped it"),
        client = async {
            let mut client = Client::connect(address).await;
            assert_eq!(client.get("/livez").await.status, 200);
            client
        } => client,
    };
    drop(running);
    assert_eq!(client.closed().await, "");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
