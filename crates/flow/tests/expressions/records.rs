//! Records stay their bytes.

use proptest::prelude::*;
use tidegate_flow::value::{FlowType, FlowValue, JsonRecord};

#[test]
fn untouched_fields_are_written_back_byte_for_byte() {
    let text =
        "{ \"a\" : 1.50 ,\n \"b\\u0062\":\t[1, 2.00 ], \"c\": {\"x\" : 1e5}, \"d\":\"\\u00e4\" }";
    let mut record = JsonRecord::of_text(text).unwrap();
    assert_eq!(record.to_string(), text);
    record.set("c", &FlowValue::Boolean(true)).unwrap();
    record.set("new", &FlowValue::text("x\"y")).unwrap();
    assert_eq!(
        record.to_string(),
        "{\"a\" : 1.50,\"b\\u0062\":\t[1, 2.00 ],\"c\":true,\"d\":\"\\u00e4\",\"new\":\"x\\\"y\"}"
    );
    record.remove("a");
    record.set("bb", &FlowValue::Integer(1)).unwrap();
    record.retain(|name| name != "d" && name != "nothing");
    assert_eq!(
        record.to_string(),
        "{\"b\\u0062\":1,\"c\":true,\"new\":\"x\\\"y\"}"
    );
}

#[test]
fn a_record_that_is_no_json_object_is_refused_with_its_place() {
    let many = |last: &str| {
        let fields: Vec<String> = (0..100).map(|at| format!("\"f{at}\":1")).collect();
        format!("{{{},\"{last}\":1}}", fields.join(","))
    };
    assert!(JsonRecord::of_text(&many("f100")).is_ok());
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    for (text, expect) in [
        ("[1]", "an object is missing at byte 0"),
        ("{\"a\":1,\"a\":2}", "the name `a` is repeated at byte 7"),
        (
            "{\"a\":1,\"\\u0061\":2}",
            "the name `a` is repeated at byte 7",
        ),
        (
            "{\"x\":{\"a\":1,\"b\":2,\"a\":2}}",
            "the name `a` is repeated at byte 18",
        ),
        (&many("f7"), "the name `f7` is repeated"),
        ("{\"a\":01}", "a `,` or `}` is missing at byte 6"),
        ("{\"a\":1.}", "a digit is missing at byte 7"),
        (
            "{\"a\":1} x",
            "there is more after the end of the value at byte 8",
        ),
        (
            "{\"a\":\"\\ud800\"}",
            "half of a surrogate pair stands alone at byte 13",
        ),
        (
            "{\"a\":\"\u{1}\"}",
            "a control character stands in a string at byte 6",
        ),
        ("{\"a\":\"x}", "a string has no end at byte 8"),
        ("{\"a\" 1}", "a `:` is missing after the name at byte 5"),
        ("{\"a\":1,}", "a name in quotes is missing at byte 7"),
        ("{\"a\":nul}", "a value is missing at byte 5"),
        ("", "an object is missing at byte 0"),
        (&deep, "values are nested more than 128 deep at byte 132"),
    ] {
        let error = JsonRecord::of_text(text).unwrap_err().to_string();
        assert!(error.starts_with(expect), "{text}: {error}");
    }
    assert!(JsonRecord::parse(b"{\"a\":\"\xff\"}").is_err());
}

#[test]
fn fields_are_read_as_their_types_or_refused() {
    let read = |raw: &str, kind: &FlowType| {
        let value = FlowValue::parse_json(raw, kind);
        value
            .and_then(|value| value.to_json())
            .unwrap_or_else(|error| error.to_string())
    };
    for (raw, kind, expect) in [
        ("12.50", FlowType::Decimal, "12.50"),
        ("\"12.50\"", FlowType::Decimal, "12.50"),
        ("1e2", FlowType::Decimal, "100"),
        (
            "0.1000000000000000000000000001",
            FlowType::Decimal,
            "0.1000000000000000000000000001",
        ),
        (
            "123456789012345678901234567890",
            FlowType::Decimal,
            "`123456789012345678901234567890` is not of type decimal",
        ),
        (
            "\"1_000\"",
            FlowType::Decimal,
            "`\"1_000\"` is not of type decimal",
        ),
        ("true", FlowType::Decimal, "`true` is not of type decimal"),
        ("7", FlowType::Integer, "7"),
        ("7.0", FlowType::Integer, "`7.0` is not of type integer"),
        (
            "9223372036854775808",
            FlowType::Integer,
            "`9223372036854775808` is not of type integer",
        ),
        ("7", FlowType::Double, "7.0"),
        ("\"7\"", FlowType::Double, "`\"7\"` is not of type double"),
        (
            "1767609000250",
            FlowType::Timestamp,
            "\"2026-01-05T10:30:00.25Z\"",
        ),
        (
            "\"2026-01-05T12:30:00+02:00\"",
            FlowType::Timestamp,
            "\"2026-01-05T10:30:00Z\"",
        ),
        (
            "\"2026-01-05\"",
            FlowType::Timestamp,
            "`\"2026-01-05\"` is not of type timestamp",
        ),
        (
            "\"2026-01-05 10:30:00Z\"",
            FlowType::Timestamp,
            "`\"2026-01-05 10:30:00Z\"` is not of type timestamp",
        ),
        ("\"AQI=\"", FlowType::Bytes, "\"AQI=\""),
        ("\"x\"", FlowType::Boolean, "`\"x\"` is not of type boolean"),
        ("[1, 2.50]", FlowType::list(FlowType::Decimal), "[1,2.50]"),
        (
            "{\"a\": 2.50}",
            FlowType::map(FlowType::Decimal),
            "{\"a\":2.50}",
        ),
        ("null", FlowType::Integer, "null"),
        (
            "[1, 2.5, \"x\", {\"a\": null}]",
            FlowType::Dynamic,
            "[1,2.5,\"x\",{\"a\":null}]",
        ),
        ("\"\\ud83d\\ude00\\u00e4\\/\"", FlowType::String, "\"😀ä/\""),
    ] {
        assert_eq!(read(raw, &kind), expect, "{raw} as {kind}");
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-1_000_000..1_000_000_i32).prop_map(|eighths| (f64::from(eighths) / 8.0).into()),
        "\\PC{0,8}".prop_map(Into::into),
        "[\"\\\\\u{1}\n/]{0,4}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::btree_map("\\PC{0,6}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_reads_and_writes_what_serde_json_does(value in json()) {
        let object = serde_json::json!({ "v": value, "w": 1 });
        let text = object.to_string();
        let mut record = JsonRecord::of_text(&text).unwrap();
        let read = record.get("v", &FlowType::Dynamic).unwrap().unwrap().into_owned();
        record.set("copy", &read).unwrap();
        let back: serde_json::Value = serde_json::from_str(&record.to_string()).unwrap();
        prop_assert_eq!(&back["copy"], &object["v"]);
        prop_assert_eq!(&back["v"], &object["v"]);
    }

    #[test]
    fn random_bytes_are_a_record_exactly_if_serde_json_says_so(
        parts in prop::collection::vec(
            prop_oneof![
                Just("{"), Just("}"), Just("["), Just("]"), Just(","), Just(":"), Just("\"a\""), Just("\"b\""),
                Just("1"), Just("-0.5e+3"), Just("01"), Just("true"), Just("null"), Just(" "), Just("\"\\n\""),
                Just("\"\\u00zz\""), Just("\"ä"), Just("\\"), Just("1."),
            ],
            0..14,
        )
    ) {
        let text = format!("{{{}", parts.concat());
        let theirs = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text);
        match JsonRecord::of_text(&text) {
            Ok(_) => prop_assert!(theirs.is_ok(), "{}", text),
            Err(error) => prop_assert!(theirs.is_err() || error.message.contains("repeated"), "{text}: {error}"),
        }
    }
}
