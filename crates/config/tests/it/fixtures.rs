//! The documents' own files load unchanged, in every spelling of their keys.

use std::time::Duration;

use tidegate_config::{Config, Origins, load};

use crate::of;

pub(crate) const EVENTLOG: &str = include_str!("../fixtures/eventlog-full.yaml");
pub(crate) const PET_RESORT: &str = include_str!("../fixtures/eventlog-pet-resort.yaml");
pub(crate) const EVENTBUS: &str = include_str!("../fixtures/eventbus-full.yaml");
pub(crate) const MINIMAL: &str = include_str!("../fixtures/eventbus-minimal.yaml");
pub(crate) const OUTBOX: &str = include_str!("../fixtures/outbox.yaml");
pub(crate) const ALL: [&str; 5] = [EVENTLOG, PET_RESORT, EVENTBUS, MINIMAL, OUTBOX];

#[test]
fn the_documents_files_have_no_problems() {
    for text in ALL {
        assert_eq!(of(text).problems.to_string(), "", "{text}");
    }
}

/// The warnings without those about a binding's own handler, which a library brings, and about what is not built.
fn about_java(text: &str) -> String {
    let warnings = of(text).warnings.to_string();
    let is_other = |line: &&str| {
        !line.contains("has no `handler`") && !line.contains("does nothing with it yet")
    };
    warnings
        .lines()
        .filter(is_other)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_full_samples_warn_only_about_java() {
    insta::assert_snapshot!(of(EVENTLOG).warnings.to_string(), @"tidegate.yaml:16:5: eventlog.async.virtual-threads: is read and has no effect: it chooses between kinds of Java threads, and there are none here");
    insta::assert_snapshot!(about_java(EVENTBUS), @r#"
    tidegate.yaml:38:13: eventbus.bindings.orders.retry.retryable-exceptions[0]: is the Java class `java.net.SocketTimeoutException`, which nothing here raises (it resembles `timeout.read`)
    tidegate.yaml:39:13: eventbus.bindings.orders.retry.retryable-exceptions[1]: is the Java class `org.springframework.dao.OptimisticLockingFailureException`, which nothing here raises (it resembles `conflict.optimistic-lock`)
    tidegate.yaml:40:13: eventbus.bindings.orders.retry.retryable-exceptions[2]: is the Java class `org.springframework.dao.TransientDataAccessException`, which nothing here raises (it resembles `database.transient`)
    tidegate.yaml:42:13: eventbus.bindings.orders.retry.non-retryable-exceptions[0]: is the Java class `com.enterprise.schema.SchemaValidationException`, which nothing here raises (it resembles `schema.invalid`)
    tidegate.yaml:43:13: eventbus.bindings.orders.retry.non-retryable-exceptions[1]: is the Java class `com.enterprise.domain.BusinessRuleViolationException`, which nothing here raises (it resembles `business.rule-violated`)
    tidegate.yaml:45:11: eventbus.bindings.orders.retry.skip-to-tier-mapping."javax.ws.rs.ServiceUnavailableException": is the Java class `javax.ws.rs.ServiceUnavailableException`, which nothing here raises (it resembles `service.unavailable`)
    "#);
    assert_eq!(about_java(MINIMAL), "");
    assert!(of(OUTBOX).warnings.is_empty());
}

#[test]
fn the_event_logger_reads_as_documented() {
    let config = of(EVENTLOG).config;
    let base = "eventlog.async";
    assert_eq!(
        config.text("eventlog.base-url"),
        Some("https://your-eventlog-api.example.com")
    );
    assert_eq!(
        config.size("eventlog.async.max-spillover-size"),
        Some(50 << 20)
    );
    assert_eq!(
        config.duration("eventlog.async.replayInterval"),
        Some(Duration::from_secs(10))
    );
    assert_eq!(
        config.text(&format!("{base}.spillover-path")),
        Some("./spillover")
    );
    assert_eq!(config.text(&format!("{base}.on-full")), Some("drop-newest"));
    assert_eq!(config.flag("eventlog.metrics.enabled"), Some(true));
    // Every value of the reference block is the default, apart from the two that have none.
    let defaults = of("").config;
    for shown in config.show().filter(|shown| !shown.value.contains('/')) {
        let default = defaults
            .show()
            .find(|other| other.path == shown.path)
            .unwrap();
        assert_eq!(shown.value, default.value, "{}", shown.path);
    }
}

#[test]
fn the_bindings_read_as_documented() {
    let config = of(EVENTBUS).config;
    assert_eq!(config.names("eventbus.bindings"), ["orders", "payments"]);
    let orders = "eventbus.bindings.orders";
    assert_eq!(config.count(&format!("{orders}.retry.tiers")), 3);
    let delay = format!("{orders}.retry.tiers[2].delay-ms");
    assert_eq!(config.duration(&delay), Some(Duration::from_secs(300)));
    let skip =
        format!("{orders}.retry.skip-to-tier-mapping.javax.ws.rs.ServiceUnavailableException");
    assert_eq!(config.integer(&skip), Some(2));
    assert_eq!(
        config.float(&format!("{orders}.circuit-breaker.failure-rate-threshold")),
        Some(50.0)
    );
    let payments = "eventbus.bindings.payments";
    assert_eq!(
        config.count(&format!("{payments}.retry.tiers")),
        0,
        "STRICT has no default tiers"
    );
    assert_eq!(
        config.integer(&format!("{payments}.max-poll-records")),
        Some(50)
    );
    assert_eq!(
        config.integer(&format!("{payments}.retry.tier0.max-backoff-ms")),
        None
    );
    let ceiling = config.duration(&format!("{payments}.retry.tier0.max-backoff-ms"));
    assert_eq!(ceiling, Some(Duration::from_secs(2)));
}

#[test]
fn a_minimal_binding_gets_every_default() {
    let config = of(MINIMAL).config;
    let path = |key: &str| format!("eventbus.bindings.notifications.{key}");
    assert_eq!(config.text(&path("listener-type")), Some("SINGLE"));
    assert_eq!(config.text(&path("ack-mode")), Some("MANUAL_IMMEDIATE"));
    assert_eq!(config.integer(&path("concurrency")), Some(1));
    assert_eq!(config.count(&path("retry.tiers")), 3);
    let suffixes: Vec<_> = (0..3)
        .map(|n| config.text(&path(&format!("retry.tiers[{n}].topic-suffix"))))
        .collect();
    assert_eq!(
        suffixes,
        [Some("retry-1"), Some("retry-2"), Some("retry-3")]
    );
    assert_eq!(config.text(&path("dlt.strategy")), Some("STORE_ONLY"));
    assert_eq!(config.flag(&path("circuit-breaker.enabled")), Some(false));
}

#[test]
fn the_flat_outbox_is_the_relay_default() {
    let config = of(OUTBOX).config;
    assert_eq!(config.names("outbox"), ["default"]);
    assert_eq!(config.integer("outbox.batch-size"), Some(100));
    assert_eq!(config.integer("outbox.default.batch-size"), Some(100));
    assert_eq!(
        config.duration("outbox.backoff.max-ms"),
        Some(Duration::from_secs(60))
    );

    let config = of("outbox: {batch-size: 7, loans: {table: loan_outbox}}").config;
    assert_eq!(config.names("outbox"), ["default", "loans"]);
    assert_eq!(config.integer("outbox.default.batch-size"), Some(7));
    assert_eq!(config.integer("outbox.loans.batch-size"), Some(100));
}

/// Rewrites every documented key of a text; names the user chose stay as they are.
fn respell(text: &str, spell: impl Fn(&str) -> String) -> String {
    let free = ["orders", "payments", "notifications"];
    let lines = text.lines().map(|line| {
        let indent = line.len() - line.trim_start_matches([' ', '-']).len();
        let (head, rest) = line.split_at(indent);
        match rest.split_once(':') {
            Some((key, value)) if !free.contains(&key) && !key.contains(['.', '#']) => {
                format!("{head}{}:{value}", spell(key))
            }
            _ => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn camel(key: &str) -> String {
    let mut words = key.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut camel, word| {
        let (head, tail) = word.split_at(1);
        camel.push_str(&head.to_uppercase());
        camel.push_str(tail);
        camel
    })
}

fn values(config: &Config) -> String {
    config.to_yaml(Origins::Hidden)
}

#[test]
fn every_spelling_of_the_keys_loads_the_same() {
    for text in ALL {
        let expect = values(&of(text).config);
        let spellings: [fn(&str) -> String; 4] = [
            camel,
            |key| key.replace('-', "_"),
            str::to_uppercase,
            |key| key.replace('-', "_").to_uppercase(),
        ];
        for spell in spellings {
            let loaded = of(&respell(text, spell));
            assert_eq!(loaded.problems.to_string(), "");
            assert_eq!(values(&loaded.config), expect);
        }
    }
}

#[test]
fn all_documents_load_from_one_set_of_files() {
    let mut inputs = tidegate_config::Inputs::of_text("0.yaml", EVENTLOG);
    for (n, text) in [EVENTBUS, OUTBOX, MINIMAL].iter().enumerate() {
        inputs.sources.push(tidegate_config::ConfigSource {
            name: format!("{}.yaml", n + 1),
            text: (*text).to_owned(),
        });
    }
    let loaded = load(&inputs);
    assert!(loaded.problems.is_empty());
    let names = loaded.config.names("eventbus.bindings");
    assert_eq!(names, ["notifications", "orders", "payments"]);
}

#[test]
fn a_whole_file_in_flow_style_loads() {
    let text = "
log:      { embedded: { path: ./data/log } }
store:    { url: \"sqlite://./data/tidegate.db\" }
server:   { listen: 127.0.0.1:8080, token: ${TIDEGATE_TOKEN:-} }
eventlog: { api: { enabled: true }, base-url: \"${EVENTLOG_URL:-http://localhost:3000}\" }
queue:    { abandonment-timeout: 1m, poll-delay-ms: 200 }
outbox:   { loans: { table: outbox_event, batch-size: 500, max-attempts: 10 } }
eventbus: { bindings: { orders: { topic: t, group-id: g, handler: { http: { url: http://x } } } } }
flows:    [ ./flows/*.flow ]
";
    let loaded = of(text);
    assert_eq!(loaded.problems.to_string(), "");
    assert_eq!(loaded.warnings.to_string(), "");
    assert_eq!(loaded.config.secret("server.token"), None);
    let loaded = crate::with(text, &[("TIDEGATE_TOKEN", "t")]);
    assert_eq!(loaded.config.secret("server.token").unwrap().expose(), "t");
    assert_eq!(
        loaded.config.text("eventlog.base-url"),
        Some("http://localhost:3000")
    );
    assert_eq!(loaded.config.texts("flows"), ["./flows/*.flow"]);
}
