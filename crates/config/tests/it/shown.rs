//! The shown configuration loads again to the same.

use proptest::prelude::*;
use tidegate_config::{Config, Inputs, Origins, load};

use crate::{fixtures, of};

fn assert_round_trip(config: &Config) {
    for origins in [Origins::Hidden, Origins::Commented] {
        let text = config.to_yaml(origins);
        let again = of(&text);
        assert_eq!(again.problems.to_string(), "", "{text}");
        assert_eq!(
            again.config.to_yaml(Origins::Hidden),
            config.to_yaml(Origins::Hidden)
        );
        assert_eq!(again.config.to_json(), config.to_json());
    }
}

#[test]
fn the_shown_configuration_loads_to_the_same() {
    for text in fixtures::ALL {
        assert_round_trip(&of(text).config);
    }
    let all = fixtures::ALL.iter().take(3).chain([&fixtures::OUTBOX]);
    let mut inputs = Inputs::default();
    for text in all {
        inputs
            .sources
            .extend(Inputs::of_text("all.yaml", text).sources);
    }
    assert_round_trip(&load(&inputs).config);
}

#[test]
fn origins_stand_beside_the_values() {
    let mut inputs = Inputs::of_text("tidegate.yaml", "store:\n  maxConnections: 3\n");
    inputs
        .environment
        .insert("STORE_URL".to_owned(), "sqlite:x".to_owned());
    inputs
        .arguments
        .push(("server.token".to_owned(), "t".to_owned()));
    let text = load(&inputs).config.to_yaml(Origins::Commented);
    let lines: Vec<&str> = text.lines().skip(18).take(10).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    store:
      url: sqlite:x # environment: STORE_URL
      max-connections: 3 # tidegate.yaml:2:19
      timeout: 10s # default
      idle-transaction-timeout: 1m # default
    server:
      listen: "127.0.0.1:8080" # default
      token: "***" # argument: server.token
      read-only: false # default
      max-body: 1MiB # default
    "#);
    let json = load(&inputs).config.to_json_with_origins();
    insta::assert_snapshot!(json[16].to_string(), @r#"{"origin":"environment: STORE_URL","path":"store.url","value":"sqlite:x"}"#);
}

#[test]
fn a_list_of_sections_shows_its_entries() {
    let text = of(fixtures::MINIMAL).config.to_yaml(Origins::Hidden);
    let lines: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains("tiers:"))
        .take(6)
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    tiers:
      - delay-ms: 10000
        max-attempts: 3
        topic-suffix: retry-1
        concurrency: 1
      - delay-ms: 60000
    "#);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_survives_being_shown(
        topic in "\\PC{1,12}",
        name in "[^\\p{C}]{1,8}",
        table in "[ -~]{1,10}",
        control in "[\\x01-\\x1f\"'$#{}:,]{1,6}",
        delay in 0_u64..10_000_000_000,
        bytes in 1_u64..100_000_000_000,
    ) {
        let mut inputs = Inputs::default();
        let name = name.replace('"', "x");
        for (path, value) in [
            (format!("circuit-breakers.\"{name}\".failure-threshold"), (bytes % 1000 + 1).to_string()),
            ("outbox.loans.topic".to_owned(), topic),
            ("outbox.loans.table".to_owned(), table),
            ("outbox.loans.dlq-topic".to_owned(), control),
            ("eventlog.async.max-spillover-size-bytes".to_owned(), bytes.to_string()),
            ("eventlog.async.shutdown-timeout".to_owned(), delay.to_string()),
        ] {
            inputs.arguments.push((path, value));
        }
        let loaded = load(&inputs);
        assert_round_trip(&loaded.config);
    }
}
