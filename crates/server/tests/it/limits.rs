//! Every limit holds, says so, and is counted.

use std::num::NonZeroUsize;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::routing::{get, post};
use tidegate_server::{Exporter, Limits, ServerConfig};
use utoipa_axum::router::OpenApiRouter;

use crate::fixture::{Running, config, within};

fn limited(change: impl FnOnce(&mut Limits)) -> ServerConfig {
    let mut config = config();
    change(&mut config.limits);
    config
}

fn echo() -> OpenApiRouter {
    OpenApiRouter::new()
        .route("/echo", post(|body: Bytes| async { body }))
        .route("/ignore", post(|_: Body| async { "ignored" }))
        .route(
            "/raw",
            post(|body: Body| async {
                to_bytes(body, usize::MAX)
                    .await
                    .map_or(0, |b| b.len())
                    .to_string()
            }),
        )
        .route("/hang", get(std::future::pending::<()>))
}

#[tokio::test]
async fn a_body_that_is_refused_for_its_length_is_read_and_the_connection_kept() {
    let server = Running::start(limited(|l| l.max_body = 10), |b| b.routes(echo())).await;
    let mut client = server.client().await;
    // More than any socket keeps for a server that does not read.
    let long = "x".repeat(15 * 1024 * 1024);
    for path in ["/echo", "/nowhere"] {
        assert_eq!(client.ask("POST", path, "", &long).await.status, 413);
    }
    let answer = client.ask("POST", "/echo", "", "short").await;
    assert_eq!(answer.short(), "200 short");
}

fn hits(exporter: &Exporter, limit: &str) -> String {
    let label = format!("limit=\"{limit}\"");
    let text = exporter.render();
    let line = text.lines().find(|line| line.contains(&label));
    line.and_then(|line| line.rsplit(' ').next())
        .unwrap_or("0")
        .to_owned()
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let (recorder, exporter) = Exporter::with_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Running::start(limited(|l| l.max_body = 10), |b| b.routes(echo())).await;
    assert_eq!(
        server.ask("POST", "/echo", "", "0123456789").await.short(),
        "200 0123456789"
    );
    insta::assert_snapshot!(server.ask("POST", "/echo", "", "0123456789a").await.short(), @r#"413 {"code":"http.body-too-large","message":"the body is longer than `server.max-body` allows","details":{}}"#);
    assert_eq!(
        server
            .ask("POST", "/ignore", "", "0123456789a")
            .await
            .status,
        413
    );
    // One that does not say how long it is.
    let chunked =
        "transfer-encoding: chunked\r\nhost: localhost\r\n\r\nb\r\n0123456789a\r\n0\r\n\r\n";
    let mut client = server.client().await;
    client
        .send(format!("POST /echo HTTP/1.1\r\n{chunked}"))
        .await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (413, &"http.body-too-large".into())
    );
    // A handler that reads the body itself gets no more than the limit either.
    let mut client = server.client().await;
    client
        .send(format!("POST /raw HTTP/1.1\r\n{chunked}"))
        .await;
    assert_eq!(client.answer().await.short(), "200 0");
    assert_eq!(hits(&exporter, "max-body"), "3");
}

#[tokio::test]
async fn a_mebibyte_is_taken_by_default() {
    let server = Running::start(config(), |b| b.routes(echo())).await;
    let body = "x".repeat(1024 * 1024);
    assert_eq!(
        server.ask("POST", "/echo", "", &body).await.body.len(),
        body.len()
    );
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_ended() {
    let (recorder, exporter) = Exporter::with_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Running::start(config(), |b| b.routes(echo())).await;
    let limit = Limits::default().request_timeout;
    let mut client = server.client().await;
    let (answer, ()) = tokio::join!(client.get("/hang"), async {
        server.clock.asked_for(limit).await;
        server.clock.advance(limit);
    });
    insta::assert_snapshot!(answer.short(), @r#"504 {"code":"http.timeout","message":"no answer within 30s","details":{}}"#);
    assert_eq!(hits(&exporter, "request-timeout"), "1");
    assert_eq!(client.get("/livez").await.status, 200);
}

#[tokio::test]
async fn a_body_that_never_comes_is_given_up_on() {
    let server = Running::start(config(), |b| b.routes(echo())).await;
    let limit = Limits::default().request_timeout;
    let mut client = server.client().await;
    client
        .send("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n01")
        .await;
    server.clock.asked_for(limit).await;
    server.clock.advance(limit);
    assert_eq!(client.answer().await.status, 504);
}

#[tokio::test]
async fn a_head_that_dribbles_in_is_cut_off() {
    let (recorder, exporter) = Exporter::with_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let config = limited(|l| l.header_timeout = Duration::from_millis(50));
    let server = Running::start(config, |b| b).await;
    let mut slow = server.client().await;
    slow.send_some("GET /livez HTTP/1.1\r\nhost: local").await;
    let mut silent = server.client().await;
    assert_eq!(
        (slow.closed().await, silent.closed().await),
        (String::new(), String::new())
    );
    assert_eq!(hits(&exporter, "header-timeout"), "2");
    // On a busy machine a client may not get its head out in that time either; one of them does.
    let mut cut_off = 2;
    let mut idle = loop {
        let mut client = server.client().await;
        match client.try_get("/livez").await {
            Some(answer) => {
                assert_eq!(answer.status, 200);
                break client;
            }
            None => cut_off += 1,
        }
    };
    assert_eq!(idle.closed().await, "");
    assert_eq!(
        (hits(&exporter, "header-timeout"), hits(&exporter, "idle")),
        (cut_off.to_string(), "1".into())
    );
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let (recorder, exporter) = Exporter::with_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Running::plain().await;
    for head in [
        format!("x-large: {}\r\n", "x".repeat(40 * 1024)),
        "x-many: 1\r\n".repeat(3000),
        "a: b\r\n".repeat(200),
    ] {
        let mut client = server.client().await;
        client
            .send_some(format!(
                "GET /livez HTTP/1.1\r\nhost: localhost\r\n{head}\r\n"
            ))
            .await;
        let answer = client.closed().await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
            "{answer}"
        );
    }
    assert_eq!(hits(&exporter, "max-header"), "3");
    let fine = format!("x-fine: {}\r\n", "x".repeat(16 * 1024));
    assert_eq!(server.ask("GET", "/livez", &fine, "").await.status, 200);
}

fn two_connections() -> ServerConfig {
    limited(|l| l.max_connections = NonZeroUsize::new(2).unwrap())
}

#[tokio::test]
async fn a_connection_beyond_the_limit_takes_the_place_of_the_longest_idle() {
    let (recorder, exporter) = Exporter::with_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Running::start(two_connections(), |b| b).await;
    let (mut one, mut two) = (server.client().await, server.client().await);
    assert_eq!(one.get("/livez").await.status, 200);
    assert_eq!(two.get("/livez").await.status, 200);
    assert_eq!(one.get("/livez").await.status, 200);
    assert_eq!(hits(&exporter, "connections"), "0");
    let mut three = server.client().await;
    assert_eq!(three.get("/livez").await.status, 200);
    // The first asked again after the second, so it is the second that has to go.
    assert_eq!(two.closed().await, "");
    assert_eq!(one.get("/livez").await.status, 200);
    assert_eq!(hits(&exporter, "connections"), "1");
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_while_all_others_work() {
    let (recorder, exporter) = Exporter::with_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let server = Running::start(two_connections(), |b| b.routes(echo())).await;
    let (mut one, mut two) = (server.client().await, server.client().await);
    for client in [&mut one, &mut two] {
        client
            .send("GET /hang HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await;
    }
    let limit = Limits::default().request_timeout;
    server.clock.asked_for_twice(limit).await;
    let mut three = server.client().await;
    three
        .send("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    let mut answered = std::pin::pin!(three.answer());
    let counted = async {
        while hits(&exporter, "connections") != "1" {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        answer = answered.as_mut() => panic!("answered beyond the limit: {answer:?}"),
        () = within(counted) => {}
    }
    // Neither request in flight is cut for it; it has its answer once one of them is done.
    server.clock.advance(limit);
    assert_eq!(
        (one.answer().await.status, two.answer().await.status),
        (504, 504)
    );
    assert_eq!(within(answered).await.status, 200);
}

#[tokio::test]
async fn silent_sockets_do_not_keep_a_probe_out() {
    let config = limited(|l| l.max_connections = NonZeroUsize::new(8).unwrap());
    let server = Running::start(config, |b| b).await;
    let mut silent = Vec::new();
    for n in 0..40 {
        let mut client = server.client().await;
        if n % 2 == 0 {
            client.send_some("GET /livez HTTP/1.1\r\nhost: lo").await;
        }
        silent.push(client);
    }
    // The clock stands still, so room is made by asking somebody to leave and not by waiting.
    for _ in 0..3 {
        assert_eq!(server.get("/livez").await.status, 200);
    }
    // Those that came last are still there.
    let last = silent.last_mut().unwrap();
    assert_eq!(last.get("/livez").await.status, 200);
}
