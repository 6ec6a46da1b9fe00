//! Keys: the same for the same values, and different for others.

use std::collections::BTreeMap;

use tidegate_flow::value::JsonRecord;
use tidegate_flow::value::paths::{by_priority, key_of, topic_key, topic_key_of};

fn record(text: &str) -> JsonRecord {
    JsonRecord::of_text(text).unwrap()
}

fn paths(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Values that are easily taken for each other.
const VALUES: [&str; 24] = [
    "null",
    "true",
    "false",
    "1",
    "-1",
    "0.5",
    "\"\"",
    "\"null\"",
    "\"true\"",
    "\"false\"",
    "\"1\"",
    "\"-1\"",
    "\"0.5\"",
    "\"1e0\"",
    "\",\"",
    "\"a,b\"",
    "\"a\"",
    "\"b\"",
    "\"\\\"a\\\"\"",
    "[\"a\",\"b\"]",
    "\"[\\\"a\\\",\\\"b\\\"]\"",
    "{\"a\":1}",
    "\"{\\\"a\\\":1}\"",
    "\"a\\\\,b\"",
];

#[test]
fn different_values_have_different_keys() {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut add = |text: String, names: &[&str]| {
        let key = key_of(&record(&text), &paths(names));
        if let Some(other) = seen.insert(format!("{} {key}", names.len()), text.clone()) {
            panic!("{other} and {text} have the key {key}");
        }
    };
    for a in VALUES {
        add(format!("{{\"a\":{a}}}"), &["a"]);
        for b in VALUES {
            add(format!("{{\"a\":{a},\"b\":{b}}}"), &["a", "b"]);
            for c in ["null", "\"a\"", "\"b,c\"", "\"\""] {
                add(
                    format!("{{\"a\":{a},\"b\":{b},\"c\":{c}}}"),
                    &["a", "b", "c"],
                );
            }
        }
    }
    assert!(seen.len() > 2_000);
}

#[test]
fn equal_values_have_one_key_however_they_are_written() {
    for (one, other) in [
        (r#"{"a":1}"#, r#"{"a": 1 }"#),
        (r#"{"a":12.50}"#, r#"{"a":12.5}"#),
        (r#"{"a":100}"#, r#"{"a":1e2}"#),
        (r#"{"a":0}"#, r#"{"a":-0.0}"#),
        (r#"{"a":"x"}"#, r#"{"a":"\u0078"}"#),
        (r#"{"a":{"b":[1,2]}}"#, r#"{"a": { "b" : [ 1, 2 ] } }"#),
        (r#"{"a":{"b":"x y"}}"#, r#"{"a":{ "b":"x y"}}"#),
        (r#"{"a":null}"#, "{}"),
    ] {
        let paths = paths(&["a"]);
        assert_eq!(
            key_of(&record(one), &paths),
            key_of(&record(other), &paths),
            "{one} {other}"
        );
    }
    // Beyond the digits of a decimal, numbers are told apart by their text.
    let long = |digit: u8| format!("{{\"a\":1{}{digit}}}", "0".repeat(40));
    assert_ne!(
        key_of(&record(&long(1)), &paths(&["a"])),
        key_of(&record(&long(2)), &paths(&["a"]))
    );
}

/// Producers write the text of a field as the key of a record; the partition of a topic follows from it.
#[test]
fn a_key_in_a_topic_is_the_text_that_a_producer_writes() {
    for (text, expect) in [
        (r#"{"a":"o-1"}"#, "o-1"),
        (r#"{"a":"4711"}"#, "4711"),
        (r#"{"a":4711}"#, "4711"),
        (r#"{"a":"null"}"#, "null"),
        (r#"{"a":"a,b"}"#, "a,b"),
        (r#"{"a":"say \"x\""}"#, "say \"x\""),
    ] {
        let (record, paths) = (record(text), paths(&["a"]));
        assert_eq!(topic_key_of(&record, &paths), expect);
        assert_eq!(topic_key(&key_of(&record, &paths)), expect);
    }
    let two = record(r#"{"a":"x,y","b":7}"#);
    assert_eq!(topic_key_of(&two, &paths(&["a", "b"])), "\"x,y\",7");
    let plain = record(r#"{"a":"x","b":"y"}"#);
    assert_eq!(topic_key_of(&plain, &paths(&["a", "b"])), "x,y");
}

#[test]
fn priorities_of_any_kinds_have_one_order() {
    let texts = (0..200).map(|n| match n % 7 {
        0 => format!("{{\"n\":{}}}", n * 37 % 100),
        1 => format!("{{\"n\":\"{}\"}}", n * 41 % 100),
        2 => format!("{{\"n\":{}.5}}", n * 31 % 100),
        3 => "{\"n\":null}".to_owned(),
        4 => "{}".to_owned(),
        5 => format!("{{\"n\":[{n}]}}"),
        _ => format!("{{\"n\":{}}}", n % 2 == 0),
    });
    let records: Vec<JsonRecord> = texts.map(|text| record(&text)).collect();
    let mut sorted: Vec<&JsonRecord> = records.iter().collect();
    by_priority(&mut sorted, "n");
    let kinds = sorted.iter().map(|record| match record.raw("n") {
        Some(raw) if raw.starts_with('"') => 1,
        Some(raw) if raw == "true" || raw == "false" => 2,
        Some(raw) if raw.starts_with('[') => 3,
        Some("null") | None => 4,
        Some(_) => 0,
    });
    assert!(kinds.is_sorted());
    let numbers = sorted
        .iter()
        .filter_map(|record| record.raw("n")?.parse::<f64>().ok());
    assert!(numbers.is_sorted_by(|a, b| a >= b));
}
