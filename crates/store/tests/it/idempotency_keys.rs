//! Requests that are made twice.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate_core::env::{Clock, Env, Sleep};
use tidegate_core::{Component, Shutdown};
use tidegate_store::idempotency::{
    KeptAnswer, KeyState, KeyedRequest, LOCK, begin, clean, fingerprint, finish, finish_in, release,
};
use tidegate_store::{Store, StoreComponent, StoreOptions};

use super::{runtime, sqlite};

const DAY: Duration = Duration::from_secs(86_400);

fn request(key: &str, body: &[u8]) -> KeyedRequest {
    KeyedRequest {
        scope: "POST /v1/processes".to_owned(),
        key: key.to_owned(),
        fingerprint: fingerprint(body),
    }
}

pub(crate) async fn a_key_is_answered_once(store: &Store) {
    let at = |key: &'static str, body: &'static [u8], now_ms| async move {
        begin(store, request(key, body), now_ms, DAY).await.unwrap()
    };
    let KeyState::New(claim) = at("a", b"1", 1_000).await else {
        panic!("nobody has used it");
    };
    assert_eq!(at("a", b"1", 1_000).await, KeyState::Running);
    let answer = KeptAnswer {
        status: 201,
        body: "{}".to_owned(),
    };
    assert!(finish(store, claim.clone(), answer.clone()).await.unwrap());
    assert!(!finish(store, claim, answer.clone()).await.unwrap());
    assert_eq!(at("a", b"1", 2_000).await, KeyState::Answered(answer));
    assert_eq!(at("a", b"2", 2_000).await, KeyState::Conflict);

    let KeyState::New(claim) = at("b", b"1", 1_000).await else {
        panic!("nobody has used it");
    };
    release(store, claim).await.unwrap();
    let KeyState::New(died) = at("b", b"1", 1_000).await else {
        panic!("it was given back");
    };
    let later = 1_000 + u64::try_from(LOCK.as_millis()).unwrap();
    let KeyState::New(taken) = at("b", b"1", later).await else {
        panic!("its lock has run out");
    };
    let late = KeptAnswer {
        status: 200,
        body: String::new(),
    };
    assert!(
        !finish(store, died, late.clone()).await.unwrap(),
        "it is fenced"
    );
    assert!(finish(store, taken, late).await.unwrap());

    assert_eq!(clean(store, 2_000).await.unwrap(), 0);
    assert_eq!(clean(store, u64::MAX).await.unwrap(), 2);
}

/// The answer is kept together with the work, or neither is.
pub(crate) async fn an_answer_commits_with_its_work(store: &Store) {
    let begun = || async { begin(store, request("c", b"1"), 1_000, DAY).await.unwrap() };
    let KeyState::New(claim) = begun().await else {
        panic!("nobody has used it");
    };
    let answer = KeptAnswer {
        status: 201,
        body: "{\"loan\":1}".to_owned(),
    };
    let mut tx = store.begin().await.unwrap();
    assert!(finish_in(&mut tx, &claim, &answer).await.unwrap());
    tx.rollback().await.unwrap();
    assert_eq!(begun().await, KeyState::Running, "the work was taken back");
    let mut tx = store.begin().await.unwrap();
    assert!(finish_in(&mut tx, &claim, &answer).await.unwrap());
    tx.commit().await.unwrap();
    // The request failed after its commit, and its key is given back: the answer stands.
    release(store, claim.clone()).await.unwrap();
    assert_eq!(begun().await, KeyState::Answered(answer.clone()));
    let mut tx = store.begin().await.unwrap();
    assert!(!finish_in(&mut tx, &claim, &answer).await.unwrap());
    tx.rollback().await.unwrap();
}

#[test]
fn a_key_is_answered_once_on_sqlite() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        a_key_is_answered_once(&store).await;
        an_answer_commits_with_its_work(&store).await;
    });
}

/// A clock of a later day, on which every pause is over at once.
#[derive(Debug)]
struct LaterDay;

impl Clock for LaterDay {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 2
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(tokio::task::yield_now())
    }
}

#[test]
fn the_component_of_the_store_removes_keys_whose_time_is_over() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = sqlite(&dir).await;
        let begun = begin(&store, request("old", b"1"), 1_000, DAY).await;
        assert!(matches!(begun, Ok(KeyState::New(_))));
        let env = Env {
            clock: Arc::new(LaterDay),
            ..Env::system()
        };
        let options = StoreOptions::new("sqlite://unused");
        let component = Arc::new(StoreComponent::new(store.clone(), &options, &env));
        let (trigger, stop) = Shutdown::new();
        let running = tokio::spawn(component.run(stop));
        let removed = async {
            let other = || begin(&store, request("old", b"2"), 1_000, DAY);
            while other().await.unwrap() == KeyState::Conflict {}
        };
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, removed).await.unwrap();
        trigger.stop();
        running.await.unwrap();
    });
}
