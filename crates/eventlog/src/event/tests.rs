//! Events as they are read from posts.

use tidegate_core::env::Env;

use super::*;

const SAMPLE: &str = r#"{"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_START","step":"BookingCreated","details":"Booking BK-20260601-001 created for PET-001","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-06-01T10:15:30.123Z","userId":"system"}"#;

fn read_from(json: &str, origin: &PostOrigin) -> Result<PostedEvent, InvalidEvent> {
    let env = Env::system();
    let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
    PostedEvent::read(json, origin, &ids)
}

fn read(json: &str) -> Result<PostedEvent, InvalidEvent> {
    read_from(json, &PostOrigin::default())
}

/// The sample with more properties in front.
fn with(members: &str) -> String {
    format!("{{{members},{}", &SAMPLE[1..])
}

#[test]
fn the_documented_sample_is_read() {
    let event = read(SAMPLE).unwrap();
    assert_eq!(event.outcome, StepStatus::InProgress);
    assert_eq!(event.at_us, 1_780_308_930_123_000);
    assert_eq!(event.key, event.event_id.to_string());
    assert!(!event.has_own_id);
    assert!(event.body.ends_with(r#""eventStatus":"IN_PROGRESS"}"#));
}

#[test]
fn unknown_properties_keep_their_bytes_and_the_transport_goes() {
    let id = "019a8f3e-5c00-7abc-8def-0123456789ab";
    let json = with(&format!(
        r#""_id":"{id}","_seq":7,"_other":1.10,"eventLogId":3,"mood": {{"b":1e2,"a":[ ]}}"#
    ));
    let event = read(&json).unwrap();
    assert!(event.has_own_id);
    assert_eq!(event.key, id);
    assert!(
        event
            .body
            .starts_with(r#"{"_other":1.10,"mood":{"b":1e2,"a":[ ]},"applicationId""#),
        "{}",
        event.body
    );
    let stored = StoredEvent {
        id: 5,
        event_id: event.event_id,
        execution_id: event.event_id,
        created_ms: 0,
        body: event.body,
    };
    let shown: serde_json::Value = serde_json::to_value(&stored).unwrap();
    assert_eq!(shown["eventLogId"], 5);
    assert_eq!(shown["eventId"], id);
    assert_eq!(shown["isDeleted"], false);
    assert_eq!(shown["userId"], "system");
}

#[test]
fn the_key_is_that_of_the_body_then_of_the_header_then_the_id() {
    let id = "019a8f3e-5c00-7abc-8def-0123456789ab";
    let origin = PostOrigin {
        key: Some("header".to_owned()),
        event_id: id.parse().ok(),
        ..PostOrigin::default()
    };
    let keyed = with(r#""idempotencyKey":"body""#);
    assert_eq!(read_from(&keyed, &origin).unwrap().key, "body");
    assert_eq!(read_from(SAMPLE, &origin).unwrap().key, "header");
    let origin = PostOrigin {
        key: None,
        ..origin
    };
    assert_eq!(read_from(SAMPLE, &origin).unwrap().key, id);
}

#[test]
fn a_missing_field_is_named_with_the_older_name_that_was_given() {
    let json = SAMPLE
        .replace("processStatus", "eventType")
        .replace("timestamp", "eventTimestamp");
    let error = read(&json).unwrap_err();
    assert_eq!(
        error.to_string(),
        "missing processStatus; eventType was given, missing timestamp; eventTimestamp was given"
    );
    let error = read(&with(r#""accountId":"a\u0000b""#)).unwrap_err();
    assert_eq!(error.problems[0].path, "accountId");
    let error = read("[1]").unwrap_err();
    assert_eq!(error.problems[0].path, "");
}

#[test]
fn an_outcome_is_given_or_derived() {
    for (status, more, expect) in [
        ("PROCESS_START", "", StepStatus::InProgress),
        ("STEP", "", StepStatus::Success),
        ("STEP", r#""errorCode":"E1","#, StepStatus::Failure),
        ("PROCESS_END", r#""errorCode":"E1","#, StepStatus::Failure),
        ("PROCESS_END", "", StepStatus::Success),
        ("ERROR", "", StepStatus::Failure),
        ("STEP", r#""eventStatus":"WARNING","#, StepStatus::Warning),
    ] {
        let json = SAMPLE
            .replace("PROCESS_START", status)
            .replace(r#""step":"BookingCreated","#, more);
        assert_eq!(read(&json).unwrap().outcome, expect, "{status} {more}");
    }
}

#[test]
fn content_is_compared_without_order_space_and_envelope() {
    let of = |json: &str, batch: Option<&str>| {
        let origin = PostOrigin {
            batch_id: batch.map(str::to_owned),
            ..PostOrigin::default()
        };
        read_from(json, &origin).unwrap().body
    };
    let plain = of(SAMPLE, None);
    let spaced = of(&SAMPLE.replace("\":\"", "\" : \""), None);
    assert!(is_same_content(&plain, &spaced));
    assert!(is_same_content(&of(SAMPLE, Some("nightly-7")), &plain));
    assert!(!is_same_content(
        &of(SAMPLE, Some("nightly-7")),
        &of(SAMPLE, Some("nightly-8"))
    ));
    assert!(!is_same_content(&of(&with(r#""mood":1"#), None), &plain));
    let of_number = |number: &str| of(&with(&format!(r#""n":{{"of":[1,{number}]}}"#)), None);
    let (one, other) = ("123456789012345678901", "123456789012345678902");
    assert!(!is_same_content(&of_number(one), &of_number(other)));
    assert!(is_same_content(
        &of_number(one),
        &of_number(&format!("  {one} "))
    ));
}
