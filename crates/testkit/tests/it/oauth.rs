//! Tokens by client credentials.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use tidegate_logger::{Api, ClientCredentials, HttpApi};
use tidegate_testkit::{Fault, StubApi};
use tokio::sync::{Semaphore, watch};

use super::{HandClock, events, words};

/// `pet resort` and `s3/cret`, percent-encoded and joined, in base 64.
const LOGIN: &str = "Basic cGV0JTIwcmVzb3J0OnMzJTJGY3JldA==";

/// Gives out the tokens `t1`, `t2` and so on.
struct Login {
    /// Whether it answers; until then, whoever asks waits.
    answers: watch::Sender<bool>,
    given: u32,
    forms: Vec<String>,
    /// The life of a token by its answer.
    life: Option<&'static str>,
    /// A status and a body, in place of a token.
    broken: Option<(u16, &'static str)>,
}

type Shared = Arc<Mutex<Login>>;

impl Default for Login {
    fn default() -> Self {
        Self {
            answers: watch::Sender::new(true),
            given: 0,
            forms: Vec::new(),
            life: None,
            broken: None,
        }
    }
}

async fn login(State(login): State<Shared>, headers: HeaderMap, form: String) -> impl IntoResponse {
    let mut answers = login.lock().unwrap().answers.subscribe();
    answers.wait_for(|answers| *answers).await.unwrap();
    let mut login = login.lock().unwrap();
    login.forms.push(form);
    if let Some((status, body)) = login.broken {
        return (StatusCode::from_u16(status).unwrap(), body.to_owned());
    }
    if headers
        .get("authorization")
        .is_none_or(|value| value != LOGIN)
    {
        let body = r#"{"error":"invalid_client"}"#.to_owned();
        return (StatusCode::UNAUTHORIZED, body);
    }
    login.given += 1;
    let life = login
        .life
        .map(|life| format!(r#","expires_in":{life}"#))
        .unwrap_or_default();
    let body = format!(
        r#"{{"access_token":"t{}","token_type":"Bearer"{life}}}"#,
        login.given
    );
    (StatusCode::OK, body)
}

struct World {
    stub: StubApi,
    login: Shared,
    clock: Arc<HandClock>,
    token_url: String,
}

impl World {
    async fn new(life: Option<&'static str>) -> Self {
        let state = Shared::default();
        state.lock().unwrap().life = life;
        let router = Router::new()
            .route("/token", post(login))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let token_url = format!("http://{}/token", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let stub = StubApi::start().unwrap();
        stub.require_token("t1");
        Self {
            stub,
            login: state,
            clock: Arc::default(),
            token_url,
        }
    }

    fn client(&self, secret: &str) -> HttpApi {
        self.client_at(&self.token_url, secret)
    }

    fn client_at(&self, token_url: &str, secret: &str) -> HttpApi {
        let login = ClientCredentials::new(token_url, "pet resort", secret).scope("events write");
        HttpApi::builder(self.stub.url())
            .authentication(login)
            .build(self.clock.clone())
            .unwrap()
    }

    fn asked(&self) -> usize {
        self.login.lock().unwrap().forms.len()
    }
}

async fn send(api: &HttpApi) -> String {
    words(&api.send(&events(1)).await).remove(0)
}

/// Sends from many tasks at once, and lets the login answer when all of them have begun. Each has a
/// request for a token on its way by then, or waits for that of another.
async fn send_together(world: &World) -> Vec<String> {
    const SENDERS: usize = 8;
    world.login.lock().unwrap().answers.send_replace(false);
    let api = Arc::new(world.client("s3/cret"));
    let begun = Arc::new(Semaphore::new(0));
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let (api, begun) = (Arc::clone(&api), Arc::clone(&begun));
            tokio::spawn(async move {
                let mut sending = std::pin::pin!(send(&api));
                let first = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
                assert!(first.is_pending(), "there is no token yet");
                begun.add_permits(1);
                sending.await
            })
        })
        .collect();
    let all = u32::try_from(SENDERS).unwrap();
    drop(begun.acquire_many(all).await.unwrap());
    world.login.lock().unwrap().answers.send_replace(true);
    let mut said = Vec::new();
    for sender in senders {
        said.push(sender.await.unwrap());
    }
    said
}

#[tokio::test]
async fn a_token_is_fetched_once_and_kept() {
    let world = World::new(Some("300")).await;
    let api = world.client("s3/cret");
    for _ in 0..3 {
        assert_eq!(send(&api).await, "stored");
    }
    let forms = world.login.lock().unwrap().forms.clone();
    assert_eq!(
        forms,
        ["grant_type=client_credentials&scope=events%20write"]
    );
}

#[tokio::test]
async fn a_token_is_replaced_sixty_seconds_before_its_end() {
    for (life, last_good) in [(Some("300"), 239), (Some("\"300\""), 239), (None, 3539)] {
        let world = World::new(life).await;
        let api = world.client("s3/cret");
        assert_eq!(send(&api).await, "stored");
        world.clock.advance(last_good);
        assert_eq!(send(&api).await, "stored");
        assert_eq!(world.asked(), 1, "{life:?}");
        world.clock.advance(1);
        world.stub.require_token("t2");
        assert_eq!(send(&api).await, "stored");
        assert_eq!(world.asked(), 2, "{life:?}");
    }
}

#[tokio::test]
async fn a_short_life_is_used_for_its_first_half() {
    let world = World::new(Some("40")).await;
    let api = world.client("s3/cret");
    assert_eq!(send(&api).await, "stored");
    world.clock.advance(19);
    assert_eq!(send(&api).await, "stored");
    assert_eq!(world.asked(), 1);
    world.clock.advance(1);
    world.stub.require_token("t2");
    assert_eq!(send(&api).await, "stored");
}

#[tokio::test]
async fn many_senders_fetch_one_token() {
    let world = World::new(Some("300")).await;
    assert_eq!(send_together(&world).await, ["stored"; 8]);
    assert_eq!(world.asked(), 1);
}

#[tokio::test]
async fn a_token_that_the_api_refuses_is_replaced_at_the_next_attempt() {
    let world = World::new(Some("300")).await;
    let api = world.client("s3/cret");
    assert_eq!(send(&api).await, "stored");
    world.stub.require_token("t2");
    assert_eq!(send(&api).await, "failed auth.denied");
    assert_eq!(world.asked(), 1, "one attempt per call");
    assert_eq!(send(&api).await, "stored");
    assert_eq!(world.asked(), 2);
    // Only 401 is about the token.
    for status in [403, 404, 500] {
        world.stub.fail_next(Fault::status(status));
        assert!(send(&api).await.starts_with("failed "));
    }
    assert_eq!(send(&api).await, "stored");
    assert_eq!(world.asked(), 2);
}

#[tokio::test]
async fn a_wrong_secret_fails_and_reaches_no_api() {
    let world = World::new(None).await;
    let api = world.client("wrong");
    for batch in [events(1), events(3)] {
        assert_eq!(words(&api.send(&batch).await), ["failed auth.denied"]);
    }
    assert_eq!(world.stub.requests(), 0);
}

#[tokio::test]
async fn a_login_that_is_down_fails_and_rejects_nothing() {
    let world = World::new(None).await;
    let closed = StubApi::start().unwrap();
    closed.down();
    let api = world.client_at(&closed.url(), "s3/cret");
    assert_eq!(send(&api).await, "failed connection.refused");

    let api = world.client("s3/cret");
    for (status, body, expect) in [
        (500, "", "failed auth.unavailable"),
        (400, r#"{"error":"invalid_scope"}"#, "failed auth.denied"),
        (200, "<html>", "failed auth.unavailable"),
        (200, r#"{"access_token":""}"#, "failed auth.unavailable"),
        (302, "", "failed auth.unavailable"),
    ] {
        world.login.lock().unwrap().broken = Some((status, body));
        assert_eq!(send(&api).await, expect, "{status} {body}");
    }
    assert_eq!(world.stub.requests(), 0);

    world.login.lock().unwrap().broken = None;
    assert_eq!(send(&api).await, "stored");
}

#[tokio::test]
async fn an_old_token_is_used_up_while_the_login_is_down() {
    let world = World::new(Some("300")).await;
    let api = world.client("s3/cret");
    assert_eq!(send(&api).await, "stored");
    world.login.lock().unwrap().broken = Some((503, ""));
    world.clock.advance(299);
    assert_eq!(send(&api).await, "stored");
    world.clock.advance(1);
    assert_eq!(send(&api).await, "failed auth.unavailable");
}

#[tokio::test]
async fn many_senders_share_one_failure_of_the_login() {
    let world = World::new(None).await;
    world.login.lock().unwrap().broken = Some((503, ""));
    assert_eq!(send_together(&world).await, ["failed auth.unavailable"; 8]);
    assert_eq!(world.asked(), 1);
}
