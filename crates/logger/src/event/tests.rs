//! Properties of a whole event on its way to the wire and back.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_core::EventId;

use super::*;

/// The two lines of the documented file format.
const SAMPLES: [&str; 2] = [
    r#"{"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_START","step":"BookingCreated","details":"Booking BK-20260601-001 created for PET-001","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-06-01T10:15:30.123Z","userId":"system"}"#,
    r#"{"applicationId":"pet-resort-api","correlationId":"a1b2c3d4","processName":"CreateBooking","processStatus":"PROCESS_END","step":"BookingCompleted","details":"Booking BK-20260601-001 completed successfully","targetSystem":"PET_RESORT","originatingSystem":"PET_RESORT","timestamp":"2026-06-01T10:15:30.456Z","userId":"system"}"#,
];

/// Every documented field, in the order of the wire.
const FIELDS: [&str; 30] = [
    "applicationId",
    "correlationId",
    "processName",
    "processStatus",
    "step",
    "details",
    "targetSystem",
    "originatingSystem",
    "timestamp",
    "userId",
    "traceId",
    "spanId",
    "parentSpanId",
    "accountId",
    "identifiers",
    "metadata",
    "result",
    "executionTimeMs",
    "errorCode",
    "errorMessage",
    "idempotencyKey",
    "eventStatus",
    "stepSequence",
    "batchId",
    "spanLinks",
    "endpoint",
    "httpMethod",
    "httpStatusCode",
    "requestPayload",
    "responsePayload",
];

const PROCESS_STATUSES: [ProcessStatus; 4] = [
    ProcessStatus::ProcessStart,
    ProcessStatus::Step,
    ProcessStatus::ProcessEnd,
    ProcessStatus::Error,
];

const STEP_STATUSES: [StepStatus; 5] = [
    StepStatus::Success,
    StepStatus::Failure,
    StepStatus::InProgress,
    StepStatus::Skipped,
    StepStatus::Warning,
];

const ID: &str = "019a8f3e-5c00-7abc-8def-0123456789ab";

fn id() -> EventId {
    ID.parse().unwrap()
}

fn encoded(event: &Event, defaults: &Defaults) -> String {
    let mut line = Vec::new();
    event.encode(id(), 1_780_308_930_123, defaults, &mut line);
    String::from_utf8(line).unwrap()
}

fn decoded(json: &str) -> Decoded {
    Event::decode(json.as_bytes()).unwrap()
}

fn refused(json: &[u8]) -> String {
    Event::decode(json).unwrap_err().to_string()
}

/// Every field set, in the order of the wire.
fn full() -> Event {
    Event::step("CheckIn", "KeyHandedOver", "Key of K-7 handed over")
        .application_id("pet-resort-api")
        .correlation_id("a1b2c3d4")
        .target_system("KENNEL")
        .originating_system("PET_RESORT")
        .timestamp(std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_780_308_930_123))
        .user_id("anna")
        .trace_id("4bf92f3577b34da6a3ce929d0e0e4736")
        .span_id("00f067aa0ba902b7")
        .parent_span_id("b7ad6b7169203331")
        .account_id("OWN-001")
        .identifier("bookingId", "BK-1")
        .metadata("nights", 3)
        .metadata("diet", json!({"wet": false, "grams": [80, 120]}))
        .result("OK")
        .execution_time_ms(42)
        .error_code("E1")
        .error_message("none")
        .idempotency_key("k-1")
        .event_status(StepStatus::Warning)
        .step_sequence(2)
        .batch_id("nightly-7")
        .span_link("00f067aa0ba902b8")
        .span_link("00f067aa0ba902b9")
        .endpoint("/keys")
        .http_method("POST")
        .http_status_code(201)
        .request_payload(json!({"key": "K-7"}))
        .response_payload("handed over")
        .property("mood", "good")
        .property("_shift", 2)
}

#[test]
fn the_documented_lines_decode_and_encode_to_the_same_bytes() {
    for sample in SAMPLES {
        let Decoded { event, id } = decoded(sample);
        assert_eq!(id, None);
        assert!(
            event.extras.0.is_none(),
            "the documented fields need no extras"
        );
        assert_eq!(event.validate(&Defaults::default()), []);
        let with_id = format!("{},\"_id\":\"{}\"}}", sample.trim_end_matches('}'), ID);
        assert_eq!(encoded(&event, &Defaults::default()), with_id);
    }
}

#[test]
fn a_full_event_has_every_documented_field_in_order_and_its_own_last() {
    let line = encoded(&full(), &Defaults::default());
    let mut from = 0;
    for name in FIELDS.into_iter().chain(["mood", "_shift", "_id"]) {
        let at = line[from..].find(&format!("\"{name}\":"));
        from += at.unwrap_or_else(|| panic!("{name} is missing or out of order in {line}"));
    }
    let back = decoded(&line);
    assert_eq!(back.event, full());
    assert_eq!(back.id, Some(id()));
    assert_eq!(full().validate(&Defaults::default()), []);
}

#[test]
fn an_open_object_takes_further_properties_of_the_transport() {
    let mut line = b"before\n".to_vec();
    Encoder::new(&Defaults::default()).encode_open(&full(), id(), 0, &mut line);
    line.extend_from_slice(b",\"_seq\":7,\"_sum\":\"ff\",\"_crc\":\"0a\"}");
    let text = String::from_utf8(line).unwrap();
    let back = decoded(text.strip_prefix("before\n").unwrap());
    assert_eq!(back.event, full());
    assert_eq!(back.id, Some(id()));
}

#[test]
fn one_encoder_writes_the_time_of_each_event_as_a_new_one_would() {
    let defaults = Defaults::default();
    let mut encoder = Encoder::new(&defaults);
    let times = [5, 999, 1_000, 1_001, 999, 1_780_308_930_123, u64::MAX, 7];
    for timestamp_ms in times {
        let mut event = Event::end("P", "d");
        let (mut one, mut other) = (Vec::new(), Vec::new());
        encoder.encode(&event, id(), timestamp_ms, &mut one);
        let at = i64::try_from(timestamp_ms).map(Timestamp::from_millisecond);
        let at = at.ok().and_then(Result::ok).unwrap_or(Timestamp::MAX);
        event.timestamp = Some(at);
        event.encode(id(), 0, &defaults, &mut other);
        assert_eq!(
            String::from_utf8(one).unwrap(),
            String::from_utf8(other).unwrap()
        );
    }
}

#[test]
fn absent_fields_come_from_the_defaults_and_given_ones_stay() {
    let defaults = Defaults::new("app", "FROM", "TO");
    let line = encoded(&Event::end("P", "d").target_system("OTHER"), &defaults);
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["applicationId"], "app");
    assert_eq!(value["originatingSystem"], "FROM");
    assert_eq!(value["targetSystem"], "OTHER");
    assert_eq!(value["userId"], "system");
    assert_eq!(value["timestamp"], "2026-06-01T10:15:30.123Z");
    assert_eq!(value["spanId"], Value::Null, "no trace, no span");
}

#[test]
fn an_event_of_a_trace_gets_the_same_span_at_every_sending() {
    let event = Event::end("P", "d").trace_id("4bf92f3577b34da6a3ce929d0e0e4736");
    let value: Value = serde_json::from_str(&encoded(&event, &Defaults::default())).unwrap();
    assert_eq!(value["spanId"], "8def0123456789ab");
}

#[test]
fn reserved_and_documented_names_are_not_written_as_properties() {
    let event = Event::end("P", "d")
        .property("_id", "mine")
        .property("_seq", 1)
        .property("_sum", 1)
        .property("_crc", 1)
        .property("details", "mine")
        .property("_identity", "kept");
    let line = encoded(&event, &Defaults::default());
    assert!(!line.contains("mine"), "{line}");
    assert!(!line.contains("_seq") && !line.contains("_sum") && !line.contains("_crc"));
    assert!(line.contains(r#""_identity":"kept""#), "{line}");
    let problems = event.validate(&Defaults::new("a", "b", "c"));
    assert_eq!(
        problems.len(),
        6,
        "five names and the correlation id: {problems:?}"
    );
}

#[test]
fn unknown_properties_keep_their_bytes_and_order() {
    let unknown = r#""zeta":1.10,"alpha":123456789012345678901234567890,"eventType":"STEP","deep":{"b":[1,2e5],"a":null},"esc":"é""#;
    let line = format!("{{{unknown},\"processName\":\"P\"}}");
    let again = encoded(&decoded(&line).event, &Defaults::default());
    assert!(again.contains(unknown), "{again}");
}

#[test]
fn a_pretty_printed_event_becomes_one_line() {
    let pretty = "{\n  \"details\": \"a\\nb\",\r\n  \"extra\": [\n    1,\n    \"x y\"\n  ],\n \"metadata\": {\n \"k\": {\n}\n}\n}\n";
    let line = encoded(&decoded(pretty).event, &Defaults::default());
    assert!(!line.contains(['\n', '\r']), "{line}");
    assert!(line.contains(r#""extra":[1,"x y"]"#), "{line}");
    assert!(line.contains(r#""metadata":{"k":{}}"#), "{line}");
}

#[test]
fn a_java_peer_may_write_nulls_offsets_and_nanoseconds() {
    let line = r#"{"processName":"P","step":null,"accountId":null,"identifiers":null,"requestPayload":null,"eventStatus":null,"timestamp":"2026-06-01T12:15:30.123456789+02:00","_id":null}"#;
    let Decoded { event, id } = decoded(line);
    assert_eq!(id, None);
    assert_eq!(event.step, None);
    assert_eq!(event.extras(), &Extras::default());
    let line = encoded(&event, &Defaults::default());
    assert!(
        line.contains(r#""timestamp":"2026-06-01T10:15:30.123456789Z""#),
        "{line}"
    );
    assert!(!line.contains("null"), "{line}");
}

#[test]
fn decode_errors_name_the_field_and_its_expected_type() {
    for (json, expected) in [
        (
            &b"{\"details\":\"\xff\"}"[..],
            "the event is not valid UTF-8 from byte 12 on",
        ),
        (b"[1]", "the event is not a JSON object"),
        (b"", "the event is not a JSON object"),
        (b"{\"details\":\"a\"} x", "the event is not a JSON object"),
        (b"{\"details\":\"a\"", "the event is not a JSON object"),
        (b"{\"details\":5}", "`details` is 5, and must be a text"),
        (
            b"{\"processStatus\":\"BEGUN\"}",
            "`processStatus` is \"BEGUN\", and must be PROCESS_START, STEP, PROCESS_END or ERROR",
        ),
        (
            b"{\"eventStatus\":{\"SUCCESS\":null}}",
            "`eventStatus` is {\"SUCCESS\":null}, and must be SUCCESS, FAILURE, IN_PROGRESS, SKIPPED or WARNING",
        ),
        (
            b"{\"timestamp\":\"2026-06-01T10:15:30\"}",
            "`timestamp` is \"2026-06-01T10:15:30\", and must be a time in ISO-8601 with an offset or `Z`",
        ),
        (
            b"{\"executionTimeMs\":-1}",
            "`executionTimeMs` is -1, and must be a whole number that is not negative",
        ),
        (
            b"{\"metadata\":[1]}",
            "`metadata` is [1], and must be a JSON object",
        ),
        (
            b"{\"spanLinks\":[1]}",
            "`spanLinks` is [1], and must be a list of texts",
        ),
        (b"{\"_id\":\"7\"}", "`_id` is \"7\", and must be a UUID"),
    ] {
        assert_eq!(refused(json), expected);
    }
}

#[test]
fn every_documented_name_is_read_as_a_field() {
    for name in FIELDS {
        let event = decoded(&format!("{{\"{name}\":null}}")).event;
        assert!(event.extras().properties.is_empty(), "{name}");
        assert!(is_taken(name), "{name}");
    }
}

#[test]
fn validation_names_every_problem_at_once() {
    let long = |length| "ü".repeat(length);
    let event = Event::error("", "d")
        .at_step(long(511))
        .application_id(long(201))
        .trace_id("4BF92F3577B34DA6A3CE929D0E0E4736")
        .span_link("00f067aa0ba902b7")
        .span_link("short")
        .account_id(long(64))
        .result("")
        .http_method("get")
        .http_status_code(99);
    let mut lines: Vec<String> = Vec::new();
    for problem in event.validate(&Defaults::default()) {
        lines.push(problem.to_string());
    }
    insta::assert_snapshot!(lines.join("\n"), @r"
    applicationId: has 201 characters, and may have at most 200
    correlationId: missing
    processName: must not be empty
    step: has 511 characters, and may have at most 510
    step: must be absent for ERROR
    targetSystem: missing
    originatingSystem: missing
    traceId: must be 32 lowercase hex digits
    result: must not be empty
    spanLinks[1]: must be 16 lowercase hex digits
    httpMethod: must be one of GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS
    httpStatusCode: is 99, and must be 100 to 599
    ");
}

#[test]
fn a_missing_field_names_the_older_property_that_was_given() {
    let event = decoded(r#"{"eventType":"STEP","summary":"s"}"#).event;
    let problems = event.validate(&Defaults::default());
    let message = |path| &problems.iter().find(|p| p.path == path).unwrap().message;
    assert_eq!(message("processStatus"), "missing; eventType was given");
    assert_eq!(message("details"), "missing; summary was given");
    assert_eq!(message("correlationId"), "missing");
}

#[test]
fn an_event_is_cheap_to_move() {
    assert!(size_of::<Event>() <= 240, "{}", size_of::<Event>());
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        // Any characters at all, control characters and those outside the basic plane included.
        vec(any::<char>(), 0..12).prop_map(String::from_iter),
        vec(0_u8..0x80, 0..12).prop_map(|bytes| bytes.into_iter().map(char::from).collect()),
        "[a-zA-Z]{1,12}",
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((any_text(), inner), 0..4).prop_map(Value::from_iter::<Vec<(String, Value)>>),
        ]
    })
}

prop_compose! {
    fn any_line_fields()(
        texts in vec(of(any_text()), 7),
        status in of(0..4_usize),
        outcome in of(0..5_usize),
        // The years 0 to 9999.
        ms in of(-62_167_219_200_000..253_402_300_799_999_i64),
    ) -> Event {
        let mut texts = texts.into_iter().map(|text| text.map(Text::Owned));
        let mut next = || texts.next().flatten();
        Event {
            application_id: next(),
            correlation_id: next(),
            process_name: next(),
            process_status: status.map(|index| PROCESS_STATUSES[index]),
            step: next(),
            details: next(),
            target_system: next(),
            originating_system: next(),
            timestamp: ms.map(|ms| Timestamp::from_millisecond(ms).unwrap()),
            user_id: None,
            event_status: outcome.map(|index| STEP_STATUSES[index]),
            extras: LazyExtras::default(),
        }
    }
}

prop_compose! {
    fn any_event()(
        mut event in any_line_fields(),
        error in of(any_text()),
        links in of(vec(any_text(), 0..3)),
        took in of(any::<u64>()),
        payload in of(any_json()),
        identifiers in of(vec((any_text(), any_json()), 0..4)),
        own in vec((any_text(), any_json()), 0..4),
    ) -> Event {
        let extras = event.extras_mut();
        extras.error_message = error.map(Text::Owned);
        extras.span_links = links.map(|links| links.into_iter().map(Text::Owned).collect());
        extras.execution_time_ms = took;
        extras.request_payload = payload.filter(|payload| !payload.is_null()).map(Json::from);
        extras.identifiers = identifiers.map(properties);
        extras.properties = properties(own);
        event
    }
}

fn properties(members: Vec<(String, Value)>) -> Properties {
    let mut properties = Properties::new();
    for (name, value) in members.into_iter().filter(|(name, _)| !is_taken(name)) {
        properties.set(name, value);
    }
    properties
}

proptest! {
    #[test]
    fn every_event_reads_back_as_it_was_written(event in any_event(), id: u128) {
        let mut line = Vec::new();
        let no_defaults = Defaults { user_id: Text::Borrowed(""), ..Defaults::default() };
        event.encode(EventId::from_u128(id), 5, &no_defaults, &mut line);
        prop_assert!(!line.contains(&b'\n'));
        prop_assert!(serde_json::from_slice::<Value>(&line).is_ok());

        let back = Event::decode(&line).unwrap();
        let mut expected = event;
        expected.timestamp.get_or_insert(Timestamp::from_millisecond(5).unwrap());
        prop_assert_eq!(back.id, Some(EventId::from_u128(id)));
        prop_assert_eq!(&back.event, &expected);

        let mut again = Vec::new();
        back.event.encode(EventId::from_u128(id), 6, &no_defaults, &mut again);
        prop_assert_eq!(again, line);
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes in vec(any::<u8>(), 0..80)) {
        if let Ok(decoded) = Event::decode(&bytes) {
            prop_assert!(decoded.event.validate(&Defaults::default()).len() > 3);
        }
    }
}
