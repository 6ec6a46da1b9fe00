//! Parts read their sections into types of their own.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_config::Secret;

use crate::{fixtures, of, with};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawBinding {
    topic: String,
    listener_type: String,
    session_timeout_ms: u64,
    retry: RawRetry,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawRetry {
    tiers: Vec<RawTier>,
    skip_to_tier_mapping: BTreeMap<String, u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawTier {
    delay_ms: u64,
    topic_suffix: String,
}

#[test]
fn a_section_is_whole() {
    let config = of(fixtures::EVENTBUS).config;
    let bindings: BTreeMap<String, RawBinding> = config.section("eventbus.bindings").unwrap();
    let orders = &bindings["orders"];
    assert_eq!(orders.topic, "orders.events");
    assert_eq!(
        (orders.listener_type.as_str(), orders.session_timeout_ms),
        ("BATCH", 45_000)
    );
    assert_eq!(orders.retry.tiers[1].delay_ms, 60_000);
    assert_eq!(orders.retry.tiers[1].topic_suffix, "retry-2");
    assert_eq!(orders.retry.skip_to_tier_mapping.len(), 1);
    assert!(bindings["payments"].retry.tiers.is_empty());
}

#[test]
fn secrets_arrive_as_secrets() {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct RawServer {
        token: Option<Secret>,
        max_body: u64,
    }
    let server: RawServer = of("server: {token: t}").config.section("server").unwrap();
    assert_eq!(server.token.unwrap().expose(), "t");
    assert_eq!(server.max_body, 1 << 20);
}

#[derive(Debug, Deserialize)]
struct Fussy {
    #[expect(dead_code, reason = "it never deserializes")]
    retry: FussyRetry,
}

#[derive(Debug, Deserialize)]
struct FussyRetry {
    #[expect(dead_code, reason = "it never deserializes")]
    tiers: Vec<FussyTier>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct FussyTier {
    #[expect(dead_code, reason = "it never deserializes")]
    max_attempts: u8,
}

#[test]
fn a_value_that_a_type_does_not_take_is_a_problem_in_the_file() {
    let text = "eventbus:\n  bindings:\n    a:\n      topic: t\n      group-id: g\n      retry:\n        \
                tiers:\n          - maxAttempts: 300\n";
    let problem = of(text)
        .config
        .section::<Fussy>("eventbus.bindings.a")
        .unwrap_err();
    insta::assert_snapshot!(problem.to_string(), @"tidegate.yaml:8:26: eventbus.bindings.a.retry.tiers[0].max-attempts: does not fit: invalid value: integer `300`, expected u8");

    let variable = "EVENTBUS_BINDINGS_A_RETRY_TIERS_0_MAX_ATTEMPTS";
    let loaded = with(text, &[(variable, "301")]);
    let problem = loaded
        .config
        .section::<Fussy>("eventbus.bindings.a")
        .unwrap_err();
    insta::assert_snapshot!(problem.to_string(), @"environment: eventbus.bindings.a.retry.tiers[0].max-attempts: variable `EVENTBUS_BINDINGS_A_RETRY_TIERS_0_MAX_ATTEMPTS`: does not fit: invalid value: integer `301`, expected u8");

    let problem = of(text)
        .config
        .section::<Fussy>("eventbus.bindings.b")
        .unwrap_err();
    insta::assert_snapshot!(problem.to_string(), @"tidegate.yaml:2:3: eventbus.bindings.b: does not fit: invalid type: null, expected struct Fussy");
}
