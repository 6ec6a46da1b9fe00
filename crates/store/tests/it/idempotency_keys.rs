//! Requests that are made twice.

use std::time::Duration;

use tidegate_store::Store;
use tidegate_store::idempotency::{
    KeptAnswer, KeyState, KeyedRequest, LOCK, begin, clean, fingerprint, finish, release,
};

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

#[test]
fn a_key_is_answered_once_on_sqlite() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        a_key_is_answered_once(&sqlite(&dir).await).await;
    });
}
