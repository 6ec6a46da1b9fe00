//! The fields of an event.

use serde_json::{Value, json};
use tidegate_eventlog::{EventLog, EventLogError, PageRequest, PostOrigin};

use crate::databases::event;

crate::on_every_database!(
    p05_each_limit_is_accepted_and_one_beyond_is_refused_with_its_path,
    p05_each_required_field_is_missed_by_name,
    p07_the_documented_sample_lines_are_accepted_as_they_stand,
);

/// Texts, with the fewest and the most characters that they may have.
const TEXTS: [(&str, usize, Option<usize>); 17] = [
    ("applicationId", 1, Some(200)),
    ("correlationId", 1, Some(200)),
    ("processName", 1, Some(510)),
    ("targetSystem", 1, Some(200)),
    ("originatingSystem", 1, Some(200)),
    ("details", 1, None),
    ("step", 0, Some(510)),
    ("userId", 0, Some(200)),
    ("accountId", 0, Some(64)),
    ("result", 1, Some(2048)),
    ("errorCode", 0, Some(100)),
    ("errorMessage", 0, Some(2048)),
    ("idempotencyKey", 1, Some(128)),
    ("batchId", 0, Some(200)),
    ("endpoint", 0, Some(510)),
    ("traceId", 32, Some(32)),
    ("spanId", 16, Some(16)),
];

/// A field, values that are accepted, and values that are refused with the path that is named.
type FieldValues = (&'static str, Vec<Value>, Vec<(Value, &'static str)>);

fn values() -> Vec<FieldValues> {
    let hex = "0123456789abcdef";
    let times = ["2026-06-01T10:15:30Z", "2026-06-01T12:15:30.123+02:00"];
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    let outcomes = ["SUCCESS", "FAILURE", "IN_PROGRESS", "SKIPPED", "WARNING"];
    let kinds = ["PROCESS_START", "STEP", "PROCESS_END", "ERROR"];
    let all = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<_>>();
    let wrong = |path, values: &[Value]| {
        let values = values.iter().map(|value| (value.clone(), path));
        values.collect::<Vec<_>>()
    };
    vec![
        (
            "processStatus",
            all(&kinds),
            wrong("processStatus", &[json!("BEGUN"), json!("step"), json!(1)]),
        ),
        (
            "eventStatus",
            all(&outcomes),
            wrong("eventStatus", &[json!("DONE")]),
        ),
        (
            "timestamp",
            all(&times),
            wrong(
                "timestamp",
                &[json!("2026-06-01T10:15:30"), json!("yesterday"), json!(17)],
            ),
        ),
        (
            "parentSpanId",
            vec![json!(hex), Value::Null],
            wrong("parentSpanId", &[json!(hex.to_uppercase()), json!("")]),
        ),
        (
            "traceId",
            vec![Value::Null],
            wrong("traceId", &[json!("G".repeat(32)), json!("A".repeat(32))]),
        ),
        (
            "accountId",
            vec![Value::Null],
            wrong("accountId", &[json!(7)]),
        ),
        (
            "spanLinks",
            vec![json!([]), json!([hex, hex])],
            vec![
                (json!([hex, "abc"]), "spanLinks[1]"),
                (json!("x"), "spanLinks"),
            ],
        ),
        (
            "identifiers",
            vec![json!({}), json!({ "bookingId": "BK-1" })],
            wrong("identifiers", &[json!([]), json!("x")]),
        ),
        (
            "metadata",
            vec![json!({ "deep": { "er": [1] } })],
            wrong("metadata", &[json!(1)]),
        ),
        (
            "executionTimeMs",
            vec![json!(0), json!(86_400_000)],
            wrong("executionTimeMs", &[json!(-1), json!(1.5), json!("3")]),
        ),
        (
            "stepSequence",
            vec![json!(0), json!(i64::MAX)],
            wrong("stepSequence", &[json!(-1), json!(u64::MAX)]),
        ),
        (
            "httpMethod",
            all(&methods),
            wrong("httpMethod", &[json!("get"), json!("TRACE")]),
        ),
        (
            "httpStatusCode",
            vec![json!(100), json!(599)],
            wrong("httpStatusCode", &[json!(99), json!(600)]),
        ),
        (
            "requestPayload",
            vec![json!("text"), json!({ "a": [1] }), json!(7)],
            vec![],
        ),
        ("responsePayload", vec![json!(["x"])], vec![]),
    ]
}

/// A text of so many characters, which are more bytes where the field takes any text.
fn text(field: &str, characters: usize) -> String {
    let character = match field {
        "traceId" | "spanId" => "a",
        _ => "🐢",
    };
    character.repeat(characters)
}

async fn post(log: &EventLog, field: &str, value: &Value) -> Result<(), EventLogError> {
    let json = event(json!({ field: value }));
    log.post_one(&json, PostOrigin::default()).await.map(drop)
}

async fn accepted(log: &EventLog, field: &str, value: &Value) {
    let answer = post(log, field, value).await;
    assert!(answer.is_ok(), "{field} = {value:.40}: {answer:?}");
}

/// Refused, for this field alone.
async fn refused(log: &EventLog, field: &str, value: &Value, path: &str) {
    match post(log, field, value).await {
        Err(EventLogError::Invalid(invalid)) => {
            let paths: Vec<&str> = invalid
                .problems
                .iter()
                .map(|one| one.path.as_str())
                .collect();
            assert_eq!(paths, [path], "{field} = {value:.40}");
        }
        other => panic!("{field} = {value:.40}: {other:?}"),
    }
}

async fn p05_each_limit_is_accepted_and_one_beyond_is_refused_with_its_path(log: EventLog) {
    for (field, fewest, most) in TEXTS {
        accepted(&log, field, &json!(text(field, fewest.max(1)))).await;
        if fewest > 0 {
            refused(&log, field, &json!(text(field, fewest - 1)), field).await;
        } else {
            accepted(&log, field, &json!("")).await;
        }
        if let Some(most) = most {
            accepted(&log, field, &json!(text(field, most))).await;
            refused(&log, field, &json!(text(field, most + 1)), field).await;
        }
    }
    for (field, taken, not_taken) in values() {
        for value in taken {
            accepted(&log, field, &value).await;
        }
        for (value, path) in not_taken {
            refused(&log, field, &value, path).await;
        }
    }
    // A long text is bounded by the body alone.
    accepted(&log, "details", &json!("word ".repeat(100_000))).await;
    let error = event(json!({ "processStatus": "ERROR", "step": "CheckIn" }));
    let answer = log.post_one(&error, PostOrigin::default()).await;
    assert!(
        matches!(answer, Err(EventLogError::Invalid(_))),
        "ERROR has no step"
    );
}

async fn p05_each_required_field_is_missed_by_name(log: EventLog) {
    for field in [
        "applicationId",
        "correlationId",
        "processName",
        "processStatus",
        "targetSystem",
        "originatingSystem",
        "details",
        "timestamp",
    ] {
        refused(&log, field, &Value::Null, field).await;
    }
}

/// The two lines of the documented file.
const SAMPLES: [&str; 2] = [
    r#"{"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_START","step":"BookingCreated","details":"Booking BK-20260601-001 created for PET-001","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-06-01T10:15:30.123Z","userId":"system"}"#,
    r#"{"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_END","step":"BookingCompleted","details":"Booking BK-20260601-001 completed successfully","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-06-01T10:15:30.456Z","userId":"system"}"#,
];

async fn p07_the_documented_sample_lines_are_accepted_as_they_stand(log: EventLog) {
    for sample in SAMPLES {
        let answer = log.post_one(sample, PostOrigin::default()).await.unwrap();
        assert!(answer.success);
    }
    let page = PageRequest::default();
    let found = log.correlation("a1b2c3d4".to_owned(), &page).await.unwrap();
    for (stored, sample) in found.page.events.iter().zip(SAMPLES) {
        let shown = serde_json::to_value(stored).unwrap();
        let posted: Value = serde_json::from_str(sample).unwrap();
        for (name, value) in posted.as_object().unwrap() {
            assert_eq!(&shown[name], value, "{name}");
        }
    }
    assert_eq!(found.page.total_count, 2);
}
