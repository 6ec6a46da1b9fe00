//! Requests that are made twice.

use std::time::Duration;

use tidegate_store::Store;
use tidegate_store::idempotency::{
    KeptAnswer, KeyState, KeyedRequest, LOCK, begin, clean, fingerprint, finish, finish_in, release,
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
