//! Each fault of the stub, and what the client makes of it.

use std::time::{Duration, Instant};

use tidegate_core::Code;
use tidegate_logger::{Api, ApiAnswer, ApiFailure, HttpApi, RESPONSE_LIMIT};
use tidegate_testkit::{Fault, StubApi};

use super::{LIMIT, client, events, start, words};

async fn check(stub: &StubApi, fault: Fault, one: &str, several: &str) {
    let api = client(stub);
    for (count, expect) in [(1, one), (3, several)] {
        stub.fail_next(fault.clone());
        let got = words(&api.send(&events(count)).await);
        assert_eq!(got, [expect], "{fault:?} for {count}");
    }
}

#[tokio::test]
async fn every_status_is_told_by_its_code() {
    let stub = StubApi::start().unwrap();
    for (status, one, several) in [
        (302, "failed http.302", "failed http.302"),
        (400, "rejected stub.scripted", "split"),
        (401, "failed auth.denied", "failed auth.denied"),
        (403, "failed auth.denied", "failed auth.denied"),
        (404, "failed not_found", "failed not_found"),
        (408, "failed timeout.request", "failed timeout.request"),
        (409, "rejected stub.scripted", "split"),
        (413, "rejected stub.scripted", "split"),
        (415, "rejected stub.scripted", "split"),
        (418, "failed http.418", "failed http.418"),
        (422, "rejected stub.scripted", "split"),
        (425, "failed http.425", "failed http.425"),
        (429, "failed rate.limited", "failed rate.limited"),
        (500, "failed http.500", "failed http.500"),
        (502, "failed http.502", "failed http.502"),
        (503, "failed store.unavailable", "failed store.unavailable"),
        (504, "failed http.504", "failed http.504"),
    ] {
        check(&stub, Fault::status(status), one, several).await;
    }
    assert_eq!(stub.count(), 0);
}

#[tokio::test]
async fn a_page_of_a_proxy_stores_nothing() {
    let stub = StubApi::start().unwrap();
    let unreadable = "failed answer.unreadable";
    for status in [200, 201] {
        for body in ["<html>Welcome</html>", "", "{}", r#"{"success":tru"#] {
            let fault = Fault::status(status).body(body);
            check(&stub, fault, unreadable, unreadable).await;
        }
    }
    let long = format!(r#"{{"success":true,"x":"{}"}}"#, "x".repeat(RESPONSE_LIMIT));
    check(&stub, Fault::status(201).body(long), unreadable, unreadable).await;
}

#[tokio::test]
async fn an_error_page_of_any_length_still_has_its_status() {
    let stub = StubApi::start().unwrap();
    let long = "x".repeat(RESPONSE_LIMIT + 1);
    let expect = "failed http.502";
    check(&stub, Fault::status(502).body(long), expect, expect).await;
}

#[tokio::test]
async fn the_wait_that_was_asked_for_is_handed_on() {
    let stub = StubApi::start().unwrap();
    let api = client(&stub);
    for (text, expect) in [
        ("7", Some(7)),
        ("Wed, 21 Oct 2015 07:28:00 GMT", Some(0)),
        ("whenever", None),
    ] {
        stub.fail_next(Fault::status(429).retry_after(text));
        let ApiAnswer::Failed(ApiFailure { retry_after, .. }) = api.send(&events(2)).await else {
            panic!("not failed");
        };
        assert_eq!(retry_after, expect.map(Duration::from_secs), "{text}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_is_a_failure_whatever_was_stored() {
    let stub = StubApi::start().unwrap();
    let lost = "failed connection.lost";
    check(&stub, Fault::Reset, lost, lost).await;
    assert_eq!(stub.count(), 0);
    check(&stub, Fault::ApplyThenDrop, lost, lost).await;
    assert_eq!(stub.count(), 3);
    let unreadable = "failed answer.unreadable";
    check(&stub, Fault::HalfAnswer, unreadable, unreadable).await;
    assert_eq!(
        words(&client(&stub).send(&events(3)).await),
        vec!["stored"; 3]
    );
    assert_eq!(stub.count(), 3);
}

#[tokio::test]
async fn each_call_is_one_request() {
    let stub = StubApi::start().unwrap();
    let api = client(&stub);
    let faults = [
        Fault::Reset,
        Fault::ApplyThenDrop,
        Fault::HalfAnswer,
        Fault::status(503),
        Fault::status(302),
    ];
    for (calls, fault) in (1..).zip(faults) {
        stub.fail_next(fault);
        drop(api.send(&events(2)).await);
        assert_eq!(stub.requests(), calls);
    }
}

#[tokio::test]
async fn a_batch_that_fails_in_part_is_told_event_by_event() {
    let stub = StubApi::start().unwrap();
    let api = client(&stub);
    stub.fail_next(Fault::Partial(vec![0, 2]));
    let later = "later store.unavailable";
    assert_eq!(words(&api.send(&events(3)).await), [later, "stored", later]);
    stub.fail_next(Fault::Partial(vec![0]));
    assert_eq!(
        words(&api.send(&events(1)).await),
        ["failed store.unavailable"]
    );
    assert_eq!(stub.count(), 1);
}

#[tokio::test]
async fn silence_is_cut_by_the_request_timeout() {
    let stub = StubApi::start().unwrap();
    let patience = Duration::from_millis(200);
    let api = start(HttpApi::builder(stub.url()).request_timeout(patience));
    let begin = Instant::now();
    stub.fail_next(Fault::Hang);
    assert_eq!(words(&api.send(&events(2)).await), ["failed timeout.read"]);
    stub.fail_next(Fault::Delay(LIMIT * 2));
    assert_eq!(words(&api.send(&events(2)).await), ["failed timeout.read"]);
    assert!(begin.elapsed() >= patience * 2);
    assert_eq!(stub.count(), 0);

    let patient = client(&stub);
    stub.fail_next(Fault::Delay(Duration::from_millis(20)));
    assert_eq!(words(&patient.send(&events(2)).await), ["stored", "stored"]);
}

#[tokio::test]
async fn a_rule_decides_request_by_request_until_it_is_healed() {
    let stub = StubApi::start().unwrap();
    let api = client(&stub);
    stub.fail_by(|request| (request.number % 2 == 1).then(|| Fault::status(500)));
    assert_eq!(words(&api.send(&events(1)).await), ["failed http.500"]);
    assert_eq!(words(&api.send(&events(1)).await), ["stored"]);
    stub.fail_always(Fault::status(501));
    assert_eq!(words(&api.send(&events(1)).await), ["failed http.501"]);
    stub.heal();
    assert_eq!(words(&api.send(&events(1)).await), ["stored"]);
}

#[tokio::test]
async fn plain_http_behind_https_is_a_failure_of_tls() {
    let stub = StubApi::start().unwrap();
    let url = stub.url().replace("http://", "https://");
    let answer = start(HttpApi::builder(url)).send(&events(1)).await;
    let ApiAnswer::Failed(failure) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(failure.code, Code::from_static("tls.failed"), "{failure:?}");
}
