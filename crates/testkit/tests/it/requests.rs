//! The requests that are sent, and the meaning of their answers.

use std::net::{Ipv4Addr, SocketAddr};

use tidegate_core::books::Place;
use tidegate_logger::{Api, Authentication, HttpApi, LoggerId};
use tidegate_testkit::{Stored, StubApi};

use super::{client, event, event_saying, events, start, words};

#[tokio::test]
async fn one_event_goes_to_the_single_endpoint_with_its_id_as_key() {
    let stub = StubApi::start().unwrap();
    let api = start(
        HttpApi::builder(format!("{}/", stub.url()))
            .application_id("pet-resort-api")
            .authentication(Authentication::token("t1")),
    );
    let one = event(1);
    assert_eq!(
        words(&api.send(std::slice::from_ref(&one)).await),
        ["stored"]
    );
    assert_eq!(stub.stored(one.id), Some(one.json));

    let seen = stub.seen();
    let [request] = seen.as_slice() else {
        panic!("{seen:?}")
    };
    let id = one.id.to_string();
    assert_eq!(request.path, "/v1/events");
    for (name, value) in [
        ("idempotency-key", id.as_str()),
        ("x-tidegate-event-id", id.as_str()),
        ("x-application-id", "pet-resort-api"),
        ("authorization", "Bearer t1"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn several_events_go_to_the_batch_endpoint_in_their_order() {
    let stub = StubApi::start().unwrap();
    let batch = events(100);
    let answer = client(&stub).send(&batch).await;
    assert_eq!(words(&answer), vec!["stored"; 100]);
    let ids: Vec<_> = batch.iter().map(|payload| payload.id).collect();
    assert_eq!(stub.ids(), ids);
    assert_eq!(stub.seen()[0].path, "/v1/events/batch");
    assert_eq!(stub.seen()[0].header("idempotency-key"), None);
    assert_eq!(stub.seen()[0].header("authorization"), None);
    for payload in batch {
        assert_eq!(stub.stored(payload.id), Some(payload.json));
    }
}

#[tokio::test]
async fn the_logger_is_named_with_single_events_and_with_batches() {
    let stub = StubApi::start().unwrap();
    let api = client(&stub);
    let logger: LoggerId = "019a8f3e-5c00-7abc-8def-0123456789ab".parse().unwrap();
    let batch = events(3);
    for part in [&batch[..1], &batch[1..]] {
        let answer = api.send_from(Some(logger), part).await;
        assert_eq!(words(&answer), vec!["stored"; part.len()]);
    }
    for request in stub.seen() {
        let named = request.header("x-tidegate-logger");
        assert_eq!(named, Some(logger.to_string().as_str()), "{request:?}");
    }
    assert_eq!(stub.books_of(logger).in_place(&Place::Delivered), 3);
    // A sender without books names nobody.
    assert_eq!(words(&api.send(&batch[..1]).await), ["stored"]);
    let last = stub.seen().pop().unwrap();
    assert_eq!(last.header("x-tidegate-logger"), None);
}

#[tokio::test]
async fn no_events_are_no_request() {
    let stub = StubApi::start().unwrap();
    assert!(words(&client(&stub).send(&[]).await).is_empty());
    assert_eq!(stub.requests(), 0);
}

#[tokio::test]
async fn a_batch_with_bad_events_stores_the_good_ones() {
    let stub = StubApi::start().unwrap();
    let mut batch = events(100);
    for place in [0, 50, 99] {
        batch[place] = event_saying(1000 + place as u128, "REJECT me");
    }
    let words = words(&client(&stub).send(&batch).await);
    for (place, word) in words.iter().enumerate() {
        let expect = if [0, 50, 99].contains(&place) {
            "rejected event.invalid"
        } else {
            "stored"
        };
        assert_eq!(word, expect, "{place}");
    }
    assert_eq!((stub.count(), stub.rejected()), (97, 3));
}

#[tokio::test]
async fn a_repeat_is_stored_once_and_another_content_is_rejected() {
    let stub = StubApi::start().unwrap();
    let api = client(&stub);
    let batch = [event(1), event(2)];
    for _ in 0..2 {
        assert_eq!(words(&api.send(&batch).await), ["stored", "stored"]);
        assert_eq!(words(&api.send(&batch[..1]).await), ["stored"]);
    }
    assert_eq!((stub.count(), stub.duplicates()), (2, 4));

    let other = event_saying(1, "something else");
    let conflict = "rejected idempotency.conflict";
    assert_eq!(
        words(&api.send(std::slice::from_ref(&other)).await),
        [conflict]
    );
    assert_eq!(
        words(&api.send(&[other, event(3)]).await),
        [conflict, "stored"]
    );
    assert_eq!(stub.stored(batch[0].id), Some(batch[0].json.clone()));
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_split_and_a_single_event_rejected() {
    let stub = StubApi::start().unwrap();
    let large = "x".repeat(600 * 1024);
    let halves = [event_saying(1, &large), event_saying(2, &large)];
    let api = start(HttpApi::builder(stub.url()).batch_limit(usize::MAX));
    assert_eq!(words(&api.send(&halves).await), ["split"]);
    assert_eq!(stub.requests(), 1);
    // The usual limit is that of the API, so there is nothing to ask.
    let api = client(&stub);
    assert_eq!(words(&api.send(&halves).await), ["split"]);
    assert_eq!(stub.requests(), 1);
    assert_eq!(words(&api.send(&halves[..1]).await), ["stored"]);
    assert_eq!(words(&api.send(&halves[1..]).await), ["stored"]);
    let huge = event_saying(3, &"x".repeat(1100 * 1024));
    assert_eq!(words(&api.send(&[huge]).await), ["rejected body.too_large"]);

    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let stub = StubApi::start_at(any_port, Stored::new(), 3).unwrap();
    let api = client(&stub);
    assert_eq!(words(&api.send(&events(4)).await), ["split"]);
    assert_eq!(words(&api.send(&events(3)).await), vec!["stored"; 3]);
}

#[tokio::test]
async fn a_wrong_token_or_address_fails_and_rejects_nothing() {
    let stub = StubApi::start().unwrap();
    stub.require_token("right");
    let with =
        |token| start(HttpApi::builder(stub.url()).authentication(Authentication::token(token)));
    for batch in [&events(1), &events(3)] {
        assert_eq!(
            words(&client(&stub).send(batch).await),
            ["failed auth.denied"]
        );
        assert_eq!(
            words(&with("wrong").send(batch).await),
            ["failed auth.denied"]
        );
    }
    assert_eq!(
        words(&with("right").send(&events(3)).await),
        vec!["stored"; 3]
    );

    stub.require_no_token();
    let lost = start(HttpApi::builder(format!("{}/elsewhere", stub.url())));
    assert_eq!(words(&lost.send(&events(1)).await), ["failed not_found"]);
    assert_eq!(words(&lost.send(&events(2)).await), ["failed not_found"]);
}
