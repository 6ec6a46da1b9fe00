use proptest::option;
use proptest::prelude::*;

use super::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from),
        "\\PC{0,20}".prop_map(Bytes::from),
        Just(Bytes::from_static(br#"{"a": [1,  2.50], "b":"c"}"#)),
        Just(Bytes::from_static(b" {} ")),
        Just(Bytes::from_static(b"null")),
        Just(Bytes::from_static(br#"{"hex":"00"}"#)),
    ]
}

fn headers() -> impl Strategy<Value = Vec<Header>> {
    let name = prop_oneof![
        "[a-z-]{1,8}",
        Just("x-eventbus-tier07-exception".to_owned())
    ];
    let header = (name, option::of(bytes())).prop_map(|(name, value)| Header { name, value });
    proptest::collection::vec(header, 0..4)
}

fn trail() -> impl Strategy<Value = Vec<TierFailure>> {
    (0_u32..4, any::<u64>()).prop_map(|(tiers, at)| {
        let seen = |tier| TierFailure {
            tier: TierIndex(tier),
            code: Code::from_static("timeout.read"),
            exhausted_at_ms: at,
            attempts: tier,
        };
        (0..tiers).map(seen).collect()
    })
}

prop_compose! {
    fn letters()(
        id: u128, partition: i32, offset: i64, timestamp_ms: i64,
        key in option::of(bytes()), value in option::of(bytes()), headers in headers(),
        reason in proptest::sample::select(Reason::ALL.to_vec()),
        (dead_at_ms, first_failure_ms) in (0_u64..(1 << 62), 0_u64..(1 << 62)),
        (attempts, tier, replays) in any::<(u32, u32, u32)>(),
        message in "\\PC{0,600}", trail in trail(),
        (is_stage, has_group) in any::<(bool, bool)>(),
    ) -> DeadLetter {
        let stage = is_stage.then(|| StageContext {
            stage_name: "s".into(), stage_instance: "s-1".into(), operator_name: "é".into(),
            failure_kind: has_group.then(|| "transform_failure".to_owned()),
        });
        DeadLetter {
            event_id: EventId::from_u128(id),
            origin: RecordOrigin {
                topic: Topic::new("auth_events").unwrap(),
                partition: Partition(partition), offset: Offset(offset), timestamp_ms,
            },
            key, value, headers, reason, dead_at_ms, attempts, first_failure_ms,
            failure: LastFailure {
                code: Code::verbatim("java.lang.NullPointerException".into()),
                stack: message.repeat(5), message,
            },
            tier: TierIndex(tier), trail, replays, stage,
            group: has_group.then(|| GroupName::new("billing").unwrap()),
        }
        .bounded()
    }
}

proptest! {
    #[test]
    fn every_rendering_reads_back_to_the_same_letter(letter in letters()) {
        let record = DeadLetter::from_record(
            letter.key.clone(), letter.value.clone(), &letter.to_headers());
        prop_assert_eq!(record.as_ref(), Ok(&letter));
        let envelope = DeadLetter::from_envelope(&letter.to_envelope()).unwrap();
        prop_assert_eq!(&envelope, &letter);
        let row = DeadLetter::try_from(DeadLetterRow::from(&letter));
        prop_assert_eq!(row.as_ref(), Ok(&letter));
    }

    #[test]
    fn message_and_stack_stay_within_their_limits(text in "\\PC{0,3000}") {
        prop_assert!(text::first_bytes(&text, STACK_LIMIT).len() <= STACK_LIMIT);
        prop_assert!(text::first_chars(&text, MESSAGE_LIMIT).chars().count() <= MESSAGE_LIMIT);
        prop_assert!(text.starts_with(text::first_bytes(&text, STACK_LIMIT)));
    }
}

fn sample() -> DeadLetter {
    DeadLetter {
        event_id: "019a8f3e-5c00-7abc-8def-0123456789ab".parse().unwrap(),
        origin: RecordOrigin {
            topic: Topic::new("orders.events").unwrap(),
            partition: Partition(42),
            offset: Offset(123_456),
            timestamp_ms: 1_736_937_000_000,
        },
        key: Some("o-1".into()),
        value: Some(r#"{"total": 1.50}"#.into()),
        headers: vec![Header::text(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )],
        reason: Reason::RetriesExhausted,
        dead_at_ms: 1_736_937_000_500,
        attempts: 30,
        first_failure_ms: 1_736_937_000_100,
        failure: LastFailure {
            code: Code::from_static("timeout.read"),
            message: "no answer".into(),
            stack: "caused by: closed".into(),
        },
        tier: TierIndex(3),
        trail: vec![TierFailure {
            tier: TierIndex(0),
            code: Code::from_static("timeout.connect"),
            exhausted_at_ms: 1_736_937_000_200,
            attempts: 3,
        }],
        replays: 0,
        group: GroupName::new("billing").ok(),
        stage: None,
    }
}

#[test]
fn the_headers_have_the_documented_names() {
    let shown: Vec<String> = sample()
        .to_headers()
        .iter()
        .map(|h| {
            format!(
                "{}: {}",
                h.name,
                String::from_utf8_lossy(h.value.as_deref().unwrap())
            )
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n"), @"
    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
    x-tidegate-event-id: 019a8f3e-5c00-7abc-8def-0123456789ab
    x-eventbus-original-topic: orders.events
    x-eventbus-original-partition: 42
    x-eventbus-original-offset: 123456
    x-eventbus-original-timestamp: 1736937000000
    x-eventbus-dlt-reason: RETRIES_EXHAUSTED
    x-eventbus-dlt-timestamp: 1736937000500
    x-eventbus-total-attempts: 30
    x-eventbus-first-failure-timestamp: 1736937000100
    x-eventbus-last-exception-class: timeout.read
    x-eventbus-last-exception-message: no answer
    x-eventbus-last-exception-stacktrace: caused by: closed
    x-eventbus-retry-tier: 3
    x-eventbus-tier0-exception: timeout.connect
    x-eventbus-tier0-exhausted-at: 1736937000200
    x-eventbus-tier0-attempts: 3
    x-tidegate-group: billing
    ");
}

#[test]
fn the_envelope_has_the_documented_fields_and_the_value_byte_for_byte() {
    insta::assert_snapshot!(sample().to_envelope(), @r#"{"event_id":"019a8f3e-5c00-7abc-8def-0123456789ab","original_record":{"total": 1.50},"original_encoding":"json","original_key":"o-1","original_headers":[["traceparent","00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]],"original_topic":"orders.events","original_partition":42,"original_offset":123456,"original_timestamp":1736937000000,"reason":"RETRIES_EXHAUSTED","error_type":"timeout.read","error_code":"timeout.read","error_message":"no answer","error_stack_trace":"caused by: closed","retry_count":30,"retry_tier":3,"tiers":[[0,"timeout.connect",1736937000200,3]],"replay_count":0,"group":"billing","first_failure_time":1736937000100,"stage_name":null,"stage_instance":null,"operator_name":null,"processing_time":"2025-01-15T10:30:00.5Z","processing_time_ms":1736937000500,"trace_id":"0af7651916cd43dd8448eb211c80319c","span_id":"b7ad6b7169203331"}"#);
}

#[test]
fn the_letter_of_a_stage_has_the_kind_of_failure_with_the_code_beside_it() {
    let mut letter = sample();
    letter.stage = Some(StageContext {
        stage_name: "auth_enrichment".into(),
        stage_instance: "auth_enrichment-42".into(),
        operator_name: "customer_lookup".into(),
        failure_kind: Some("lookup_failure".into()),
    });
    let envelope = letter.to_envelope();
    assert!(envelope.contains(r#""error_type":"lookup_failure","error_code":"timeout.read","#));
    assert_eq!(DeadLetter::from_envelope(&envelope).unwrap(), letter);
}

#[test]
fn a_record_that_is_no_dead_letter_says_which_header_is_wrong() {
    let check = |change: &dyn Fn(&mut Vec<Header>), expect: &str| {
        let mut headers = sample().to_headers();
        change(&mut headers);
        let error = DeadLetter::from_record(None, None, &headers).unwrap_err();
        assert_eq!(error.to_string(), expect);
    };
    check(
        &|headers| headers.retain(|h| h.name != name::DLT_REASON),
        "header `x-eventbus-dlt-reason` is missing",
    );
    check(
        &|headers| {
            headers.retain(|h| h.name != name::TOTAL_ATTEMPTS);
            headers.push(Header::text(name::TOTAL_ATTEMPTS, "many"));
        },
        "header `x-eventbus-total-attempts` holds `many`, which is not a number",
    );
}

#[test]
fn letters_written_before_attempts_and_groups_were_kept_are_read() {
    let mut letter = sample();
    letter.group = None;
    letter.trail[0].attempts = 0;
    let envelope = letter.to_envelope();
    let old = envelope
        .replace("200,0]]", "200]]")
        .replace(r#""group":null,"#, "")
        .replace(r#""error_code":"timeout.read","#, "");
    assert_ne!(old, envelope);
    assert_eq!(DeadLetter::from_envelope(&old).unwrap(), letter);
    let mut row = DeadLetterRow::from(&letter);
    row.trail = row.trail.replace("200,0]]", "200]]");
    assert_eq!(DeadLetter::try_from(row).unwrap(), letter);
}

#[test]
fn headers_of_tiers_and_handlers_are_no_headers_of_others() {
    let mut letter = sample();
    let foreign = letter.headers.clone();
    let ours = [
        "x-eventbus-retry-attempt",
        "x-eventbus-retry-timestamp",
        "x-eventbus-tier1-attempts",
        "x-tidegate-replay-for",
        "x-eventbus-binding-name",
        "x-eventbus-received-timestamp",
        "x-eventbus-consumer-instance",
        "x-tidegate-copy-of",
    ];
    letter
        .headers
        .extend(ours.map(|name| Header::text(name, "1")));
    let headers = letter.to_headers();
    assert!(headers.iter().all(|header| !ours.contains(&&*header.name)));
    let read = DeadLetter::from_record(None, None, &headers).unwrap();
    assert_eq!(read.headers, foreign);
    assert_eq!(TierFailure::read_all(&headers).unwrap(), letter.trail);
}
