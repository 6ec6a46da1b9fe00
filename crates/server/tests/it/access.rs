//! Who may ask for what.

use std::net::SocketAddr;

use axum::routing::post;
use tidegate_core::HealthFinding;
use tidegate_core::env::Env;
use tidegate_server::{Server, ServerConfig};
use utoipa_axum::router::OpenApiRouter;

use crate::fixture::{Running, config, config_with_token};

const PROBES: [&str; 6] = [
    "/livez",
    "/readyz",
    "/health",
    "/actuator/health",
    "/actuator/health/liveness",
    "/actuator/health/readiness",
];

/// A route that changes something.
fn commands() -> OpenApiRouter {
    OpenApiRouter::new().route("/command", post(|| async { "done" }))
}

#[tokio::test]
async fn g10_without_a_token_we_listen_on_loopback_alone() {
    let env = Env::system();
    for address in ["0.0.0.0:0", "192.0.2.1:0", "[::]:0", "[2001:db8::1]:0"] {
        let listen: SocketAddr = address.parse().unwrap();
        let config = ServerConfig { listen, ..config() };
        let error = Server::builder(config).bind(&env).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(address) && text.contains("server.token"),
            "{text}"
        );
    }
    for address in ["127.0.0.1:0", "127.8.0.1:0"] {
        let listen: SocketAddr = address.parse().unwrap();
        assert!(
            Server::builder(ServerConfig { listen, ..config() })
                .bind(&env)
                .await
                .is_ok()
        );
    }
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let config = ServerConfig {
        listen,
        ..config_with_token()
    };
    assert!(Server::builder(config).bind(&env).await.is_ok());
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let server = Running::plain().await;
    let config = ServerConfig {
        listen: server.address,
        ..config()
    };
    let error = Server::builder(config)
        .bind(&Env::system())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("could not listen on {} (`server.listen`)", server.address)
    );
}

#[tokio::test]
async fn with_a_token_every_route_but_the_probes_needs_it() {
    let server = Running::start(config_with_token(), |b| b.routes(commands())).await;
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/metrics"),
        ("GET", "/tidegate/ledger"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("POST", "/command"),
        ("POST", "/metrics"),
        ("GET", "/health/"),
        ("GET", "//health"),
    ] {
        for authorization in [
            "",
            "authorization: Bearer\r\n",
            "authorization: Bearer \r\n",
            "authorization: Bearer wrong\r\n",
            "authorization: Bearer s3cret2\r\n",
            "authorization: Basic s3cret\r\n",
            "authorization: s3cret\r\n",
        ] {
            let answer = server.ask(method, path, authorization, "").await;
            assert_eq!(answer.status, 401, "{method} {path} {authorization}");
            assert_eq!(
                answer.header("www-authenticate"),
                Some("Bearer realm=\"tidegate\"")
            );
            assert_eq!(answer.json()["code"], "http.unauthorized");
        }
    }
    for authorization in [
        "authorization: Bearer s3cret\r\n",
        "Authorization: bearer s3cret\r\n",
    ] {
        assert_eq!(
            server
                .ask("GET", "/metrics", authorization, "")
                .await
                .status,
            200
        );
        assert_eq!(
            server
                .ask("GET", "/nowhere", authorization, "")
                .await
                .status,
            404
        );
        assert_eq!(
            server.ask("POST", "/command", authorization, "").await.body,
            "done"
        );
    }
}

#[tokio::test]
async fn probes_without_the_token_see_a_status_and_no_details() {
    let server = Running::start(config_with_token(), |b| b).await;
    server.watch("store", || async {
        HealthFinding::degraded("secret detail")
    });
    for path in PROBES {
        let answer = server.get(path).await;
        let fields: Vec<String> = answer.json().as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            (answer.status, fields),
            (200, vec!["status".to_owned()]),
            "{path}"
        );
        let full = server
            .ask("GET", path, "authorization: Bearer s3cret\r\n", "")
            .await;
        assert!(full.json()["parts"].is_array(), "{path}");
    }
    assert_eq!(server.get("/health").await.json()["status"], "DEGRADED");
}

#[tokio::test]
async fn a_read_only_server_takes_get_and_head_alone() {
    let config = ServerConfig {
        read_only: true,
        ..config()
    };
    let server = Running::start(config, |b| b.routes(commands())).await;
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
        for path in ["/command", "/nowhere"] {
            let answer = server.ask(method, path, "", "").await;
            assert_eq!(answer.status, 403, "{method} {path}");
            assert_eq!(answer.json()["code"], "server.read-only", "{method} {path}");
        }
    }
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.ask("HEAD", "/health", "", "").await.status, 200);
}

#[tokio::test]
async fn a_read_only_server_asks_for_the_token_first() {
    let config = ServerConfig {
        read_only: true,
        ..config_with_token()
    };
    let server = Running::start(config, |b| b).await;
    assert_eq!(server.ask("POST", "/metrics", "", "").await.status, 401);
    let authorization = "authorization: Bearer s3cret\r\n";
    assert_eq!(
        server
            .ask("POST", "/metrics", authorization, "")
            .await
            .status,
        403
    );
}

#[tokio::test]
async fn a_name_that_was_rebound_to_loopback_is_refused() {
    let server = Running::plain().await;
    for (head, status) in [
        ("GET /livez HTTP/1.1\r\nhost: 127.0.0.1:99\r\n\r\n", 200),
        ("GET /livez HTTP/1.1\r\nhost: [::1]:99\r\n\r\n", 200),
        ("GET /livez HTTP/1.1\r\nhost: evil.example\r\n\r\n", 403),
        (
            "GET /livez HTTP/1.1\r\nhost: evil.example:8080\r\n\r\n",
            403,
        ),
        (
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
            403,
        ),
        (
            "GET http://evil.example/livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
            403,
        ),
        (
            "GET http://localhost/livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
            200,
        ),
        ("GET /livez HTTP/1.1\r\n\r\n", 403),
    ] {
        let mut client = server.client().await;
        client.send(head).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{head}");
        if status == 403 {
            assert_eq!(answer.json()["code"], "http.foreign-host", "{head}");
        }
    }
}

#[tokio::test]
async fn a_page_of_another_site_may_not_command_us() {
    let server = Running::start(config(), |b| b.routes(commands())).await;
    for (origin, status) in [
        ("http://localhost:8080", 200),
        ("http://evil.example", 403),
        ("null", 403),
    ] {
        let header = format!("origin: {origin}\r\n");
        let answer = server.ask("POST", "/command", &header, "").await;
        assert_eq!(answer.status, status, "{origin}");
        if status == 403 {
            assert_eq!(answer.json()["code"], "http.foreign-origin");
        }
    }
}

#[tokio::test]
async fn with_a_token_any_host_may_be_named() {
    let server = Running::start(config_with_token(), |b| b).await;
    let mut client = server.client().await;
    client
        .send("GET /metrics HTTP/1.1\r\nhost: gate.example\r\nauthorization: Bearer s3cret\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.status, 200);
}
