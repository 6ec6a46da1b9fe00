//! Probes answer, whatever the parts do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::HealthFinding;
use tidegate_server::{CHECK_TIMEOUT, RESULT_LIFETIME};

use crate::fixture::Running;

#[tokio::test]
async fn a_check_that_hangs_is_down_and_does_not_hang_the_probe() {
    let server = Running::plain().await;
    server.watch("log", || async { HealthFinding::up() });
    server.watch("store", std::future::pending);
    let mut client = server.client().await;
    let (answer, ()) = tokio::join!(client.get("/readyz"), async {
        server.clock.asked_for(CHECK_TIMEOUT).await;
        server.clock.advance(CHECK_TIMEOUT);
    });
    insta::assert_snapshot!(answer.short(), @r#"503 {"status":"DOWN","draining":false,"parts":[{"name":"log","status":"UP"},{"name":"store","status":"DOWN","message":"no answer within 2s"}]}"#);
}

#[tokio::test]
async fn checks_that_hang_are_waited_for_at_the_same_time() {
    let server = Running::plain().await;
    for name in ["a", "b", "c"] {
        server.watch(name, std::future::pending);
    }
    let mut client = server.client().await;
    // The clock moves once, by the limit of one check.
    let (answer, ()) = tokio::join!(client.get("/health"), async {
        server.clock.asked_for(CHECK_TIMEOUT).await;
        server.clock.advance(CHECK_TIMEOUT);
    });
    assert_eq!(answer.json()["parts"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn a_check_that_is_down_or_panics_makes_us_not_ready() {
    let server = Running::plain().await;
    server.watch("log", || async { panic!("secret") });
    server.watch("store", || async {
        HealthFinding::down("connection refused")
    });
    insta::assert_snapshot!(server.get("/readyz").await.short(), @r#"503 {"status":"DOWN","draining":false,"parts":[{"name":"log","status":"DOWN","message":"the check panicked"},{"name":"store","status":"DOWN","message":"connection refused"}]}"#);
    assert_eq!(server.get("/health").await.status, 503);
    assert_eq!(server.get("/livez").await.status, 200);
    server.watch("log", || async { HealthFinding::up() });
    server.watch("store", || async { HealthFinding::degraded("slow") });
    insta::assert_snapshot!(server.get("/readyz").await.short(), @r#"200 {"status":"DEGRADED","draining":false,"parts":[{"name":"log","status":"UP"},{"name":"store","status":"DEGRADED","message":"slow"}]}"#);
}

#[tokio::test]
async fn many_probes_ask_a_part_once() {
    let server = Running::plain().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    server.watch("store", move || {
        count.fetch_add(1, Ordering::Relaxed);
        async {
            // Others come in while this one is being asked.
            tokio::task::yield_now().await;
            HealthFinding::up()
        }
    });
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = server.client().await;
        client
            .send("GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await;
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    server.clock.advance(RESULT_LIFETIME);
    server.get("/health").await;
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_loop_that_stops_beating_ends_liveness() {
    let server = Running::plain().await;
    let limit = Duration::from_secs(30);
    let relay = server.health.heartbeat("relay", limit);
    let lost = server.health.heartbeat("dispatcher", limit * 2);
    server.clock.advance(limit);
    assert_eq!(server.get("/livez").await.status, 200);
    server.clock.advance(Duration::from_millis(1));
    insta::assert_snapshot!(server.get("/livez").await.short(), @r#"503 {"status":"DOWN","draining":false,"parts":[{"name":"relay","status":"DOWN","message":"no beat within 30s"}]}"#);
    assert_eq!(server.get("/readyz").await.status, 200);
    relay.beat();
    assert_eq!(server.get("/livez").await.status, 200);
    // A loop that died took its heartbeat along; one that ended said so.
    drop(lost);
    relay.end();
    server.clock.advance(limit * 2);
    insta::assert_snapshot!(server.get("/health").await.short(), @r#"503 {"status":"DOWN","draining":false,"parts":[{"name":"dispatcher","status":"DOWN","message":"no beat within 60s"}]}"#);
}
