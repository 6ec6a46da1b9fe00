//! How values are written: spellings, units, variables, aliases, nothing.

use std::time::Duration;

use crate::{of, problems, with};

#[test]
fn durations_and_sizes_go_by_two_names() {
    for text in [
        "outbox: {backoff: {max-ms: 90000}}",
        "outbox: {backoff: {max: 90s}}",
        "outbox: {backoff: {max: 1m30s}}",
        "outbox: {backoff: {max: 90000}}",
        "outbox: {backoff: {max: \"90000\"}}",
        "outbox: {BACKOFF: {MAX_MS: 90_000}}",
    ] {
        let loaded = of(text);
        assert_eq!(loaded.problems.to_string(), "", "{text}");
        let max = loaded.config.duration("outbox.backoff.max-ms");
        assert_eq!(max, Some(Duration::from_secs(90)), "{text}");
    }
    for text in [
        "server: {max-body: 2MiB}",
        "server: {max-body: 2MB}",
        "server: {max-body-mb: 2}",
        "server: {maxBodyBytes: 2097152}",
        "server: {max_body: 2097152}",
    ] {
        assert_eq!(
            of(text).config.size("server.max-body"),
            Some(2 << 20),
            "{text}"
        );
    }
}

#[test]
fn both_names_at_once_are_a_contradiction_with_both_lines() {
    let loaded = of("queue:\n  poll-delay-ms: 5\n  pollDelay: 5ms\n");
    let problem = &loaded.problems[0];
    assert_eq!(problem.line, 3);
    assert!(problem.message.contains("first in line 2"), "{problem}");
    insta::assert_snapshot!(loaded.problems.to_string(), @"tidegate.yaml:3:3: queue.pollDelay: means the same as `poll-delay-ms`, and both are given; first in line 2 (keep one of the two)");
    insta::assert_snapshot!(problems("queue:\n  batch-size: 5\n  batchSize: 5\n"), @"tidegate.yaml:3:3: queue.batchSize: means the same as `batch-size`, and both are given; first in line 2 (keep one of the two)");
}

#[test]
fn a_unit_beside_a_name_that_has_one_is_refused() {
    insta::assert_snapshot!(problems("queue: {poll-delay-ms: 5s}"), @r#"tidegate.yaml:1:24: queue.poll-delay-ms: is "5s", and must be a whole number of milliseconds, because the key ends in `-ms`"#);
}

#[test]
fn text_stays_text() {
    let loaded = of("outbox: {topic: 012, table: true, dlq-topic: 1e3}");
    assert_eq!(loaded.problems.to_string(), "");
    assert_eq!(loaded.config.text("outbox.topic"), Some("012"));
    assert_eq!(loaded.config.text("outbox.table"), Some("true"));
    assert_eq!(loaded.config.text("outbox.dlq-topic"), Some("1e3"));
}

#[test]
fn free_names_are_kept_as_written() {
    let text = "log:\n  topics: {Orders_Events.v1: {partitions: 2}}\n  clusters:\n    \
                default: {bootstrap-servers: 'a:1, b:2', properties: {sasl.mechanism: PLAIN}}\n";
    let config = of(text).config;
    assert_eq!(config.names("log.topics"), ["Orders_Events.v1"]);
    assert_eq!(
        config.integer("log.topics.Orders_Events.v1.partitions"),
        Some(2)
    );
    assert_eq!(
        config.integer("log.topics.\"Orders_Events.v1\".partitions"),
        Some(2)
    );
    assert_eq!(
        config.texts("log.clusters.default.bootstrap-servers"),
        ["a:1", "b:2"]
    );
    let mechanism = config.text("log.clusters.default.properties.sasl.mechanism");
    assert_eq!(mechanism, Some("PLAIN"));
}

#[test]
fn variables_are_typed_as_if_they_stood_there() {
    let text = "store: {url: 'postgres://${HOST:-localhost}/x', max-connections: ${N}}\n\
                flows: ['${DIR:-./flows}/*.flow', $$HOME]\nserver: {token: ${TOKEN:-}}\n";
    let loaded = with(text, &[("N", "12")]);
    assert_eq!(loaded.problems.to_string(), "");
    assert_eq!(loaded.config.integer("store.max-connections"), Some(12));
    assert_eq!(
        loaded.config.text("store.url"),
        Some("postgres://localhost/x")
    );
    assert_eq!(loaded.config.texts("flows"), ["./flows/*.flow", "$HOME"]);
    assert_eq!(
        loaded.config.secret("server.token"),
        None,
        "an empty token is none"
    );
    insta::assert_snapshot!(of(text).problems.to_string(), @"tidegate.yaml:1:66: store.max-connections: needs the variable `N`, which is not set (set it, or give a default: `${N:-…}`)");
    let wrong = with(text, &[("N", "many")]);
    insta::assert_snapshot!(wrong.problems.to_string(), @r#"tidegate.yaml:1:66: store.max-connections: is "many", and must be a whole number"#);
}

#[test]
fn nothing_given_is_the_default_and_none_is_none() {
    let config = of("log: {embedded: {retention: none, max-size: null, path: }}").config;
    assert_eq!(config.duration("log.embedded.retention"), None);
    assert!(config.is_set("log.embedded.retention"));
    assert_eq!(config.size("log.embedded.max-size"), Some(10 << 30));
    assert!(!config.is_set("log.embedded.max-size"));
    assert_eq!(config.text("log.embedded.path"), Some("./data/log"));
    insta::assert_snapshot!(problems("log: {embedded: {max-size: none}}"), @r#"tidegate.yaml:1:28: log.embedded.max-size: is "none", and must be a byte size (a byte size is written like `512KiB`, `50MiB` or `10GiB`)"#);
}

#[test]
fn aliases_stand_for_what_they_name() {
    let text = "eventbus:\n  bindings:\n    a: {topic: t, group-id: g, dlt: &a {topic-suffix: dead}}\n    \
                b: {topic: u, group-id: g, dlt: *a}\n";
    let loaded = of(text);
    assert!(loaded.problems.is_empty());
    let suffix = loaded.config.text("eventbus.bindings.b.dlt.topic-suffix");
    assert_eq!(suffix, Some("dead"));
}

#[test]
fn words_go_in_any_case() {
    for word in [
        "SEEK_TO_FAILED",
        "seek-to-failed",
        "SeekToFailed",
        "seek_to_failed",
    ] {
        let text = format!(
            "eventbus: {{bindings: {{a: {{topic: t, groupId: g, batchFailureStrategy: {word}}}}}}}"
        );
        assert!(of(&text).problems.is_empty(), "{word}");
    }
}

#[test]
fn a_handler_without_settings_is_given_by_its_name() {
    let text = "eventbus: {bindings: {a: {topic: t, group-id: g, handler: {log: }}}}";
    let loaded = of(text);
    assert!(loaded.problems.is_empty());
    assert_eq!(loaded.config.names("eventbus.bindings.a.handler"), ["log"]);
}
