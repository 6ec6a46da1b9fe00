//! The section of bindings, as people write it down.

use crate::command::run_in;

/// A binding with nothing but its names has exactly these values.
const DEFAULTS: [(&str, &str); 47] = [
    ("topic", "notification.events"),
    ("group-id", "notification-group"),
    ("listener-type", "SINGLE"),
    ("ack-mode", "MANUAL_IMMEDIATE"),
    ("concurrency", "1"),
    ("max-poll-records", "50"),
    ("max-poll-interval-ms", "600000"),
    ("session-timeout-ms", "45000"),
    ("heartbeat-interval-ms", "10000"),
    ("auto-startup", "true"),
    ("static-membership", "false"),
    ("cluster", "default"),
    ("batch-failure-strategy", "SEEK_TO_FAILED"),
    ("ordering-mode", "RELAXED_IN_RETRY"),
    ("retry.tier0.max-attempts", "3"),
    ("retry.tier0.initial-backoff-ms", "100"),
    ("retry.tier0.multiplier", "2.0"),
    ("retry.tier0.max-backoff-ms", "2000"),
    ("retry.tiers.0.delay-ms", "10000"),
    ("retry.tiers.0.max-attempts", "3"),
    ("retry.tiers.0.topic-suffix", "retry-1"),
    ("retry.tiers.0.concurrency", "1"),
    ("retry.tiers.1.delay-ms", "60000"),
    ("retry.tiers.1.max-attempts", "3"),
    ("retry.tiers.1.topic-suffix", "retry-2"),
    ("retry.tiers.1.concurrency", "1"),
    ("retry.tiers.2.delay-ms", "300000"),
    ("retry.tiers.2.max-attempts", "3"),
    ("retry.tiers.2.topic-suffix", "retry-3"),
    ("retry.tiers.2.concurrency", "1"),
    ("retry.retryable-exceptions", "null"),
    ("retry.non-retryable-exceptions", "[]"),
    ("retry.skip-to-tier-mapping", "{}"),
    ("circuit-breaker.enabled", "false"),
    ("circuit-breaker.failure-rate-threshold", "50.0"),
    ("circuit-breaker.slow-call-rate-threshold", "80.0"),
    ("circuit-breaker.slow-call-duration-ms", "5000"),
    ("circuit-breaker.wait-duration-in-open-state-ms", "60000"),
    ("circuit-breaker.sliding-window-size", "100"),
    ("circuit-breaker.minimum-number-of-calls", "10"),
    (
        "circuit-breaker.permitted-number-of-calls-in-half-open-state",
        "5",
    ),
    ("circuit-breaker.automatic-pause-on-open", "true"),
    ("dlt.topic-suffix", "DLT"),
    ("dlt.strategy", "STORE_ONLY"),
    ("dlt.replay.max-replays", "3"),
    ("dlt.replay.cooldown-ms", "3600000"),
    ("dlt.replay.batch-size", "100"),
];

/// The scalars below a key of the shown file, by their paths. Lists are numbered.
fn scalars(shown: &str, below: &str) -> Vec<(String, String)> {
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut found = Vec::new();
    let mut items: Vec<(usize, usize)> = Vec::new();
    for line in shown.lines() {
        let mut indent = line.len() - line.trim_start().len();
        let mut text = line.trim_start();
        if let Some(rest) = text.strip_prefix("- ") {
            items.retain(|(at, _)| *at <= indent);
            match items.iter_mut().find(|(at, _)| *at == indent) {
                Some((_, count)) => *count += 1,
                None => items.push((indent, 0)),
            }
            path.retain(|(at, _)| *at < indent);
            let number = items.iter().find(|(at, _)| *at == indent).unwrap().1;
            path.push((indent, number.to_string()));
            (indent, text) = (indent + 2, rest);
        }
        path.retain(|(at, _)| *at < indent);
        let Some((key, value)) = text.split_once(':') else {
            continue;
        };
        path.push((indent, key.to_owned()));
        if !value.trim().is_empty() {
            let whole: Vec<&str> = path.iter().map(|(_, key)| key.as_str()).collect();
            let whole = whole.join(".");
            if let Some(rest) = whole.strip_prefix(below) {
                found.push((rest.to_owned(), value.trim().to_owned()));
            }
        }
    }
    found
}

#[test]
fn a_binding_with_nothing_but_its_names_has_the_documented_values() {
    let dir = tempfile::tempdir().unwrap();
    let text = "eventbus:\n  bindings:\n    notifications:\n      topic: notification.events\n      \
                group-id: notification-group\n";
    std::fs::write(dir.path().join("tidegate.yaml"), text).unwrap();
    let ran = run_in(dir.path(), &["config", "show"]);
    let shown = scalars(&ran.stdout, "eventbus.bindings.notifications.");
    for (key, value) in DEFAULTS {
        let found = shown.iter().find(|(path, _)| path == key);
        let found = found.unwrap_or_else(|| panic!("no `{key}` in {shown:?}"));
        assert_eq!(found.1, value, "{key}");
    }
    let tiers = shown
        .iter()
        .filter(|(path, _)| path.starts_with("retry.tiers."));
    assert_eq!(tiers.count(), 12, "three tiers, no more");
}

#[test]
fn a_binding_that_names_every_setting_has_warnings_only() {
    const SAMPLE: &str = "
eventbus:
  bindings:
    orders:
      topic: orders.events
      group-id: order-processing-group
      listener-type: BATCH
      ack-mode: MANUAL_IMMEDIATE
      concurrency: 3
      max-poll-records: 200
      max-poll-interval-ms: 600000
      session-timeout-ms: 45000
      heartbeat-interval-ms: 10000
      auto-startup: true
      static-membership: true
      batch-failure-strategy: SEEK_TO_FAILED
      ordering-mode: RELAXED_IN_RETRY
      retry:
        tier0: { max-attempts: 3, initial-backoff-ms: 100, multiplier: 2.0, max-backoff-ms: 2000 }
        tiers:
          - { delay-ms: 10000, max-attempts: 3, topic-suffix: retry-1, concurrency: 1 }
          - { delay-ms: 60000, max-attempts: 3, topic-suffix: retry-2, concurrency: 1 }
          - { delay-ms: 300000, max-attempts: 3, topic-suffix: retry-3, concurrency: 1 }
        retryable-exceptions:
          - java.net.SocketTimeoutException
          - org.springframework.dao.OptimisticLockingFailureException
          - org.springframework.dao.TransientDataAccessException
        non-retryable-exceptions:
          - com.enterprise.schema.SchemaValidationException
          - com.enterprise.domain.BusinessRuleViolationException
        skip-to-tier-mapping:
          javax.ws.rs.ServiceUnavailableException: 2
      circuit-breaker:
        enabled: true
        failure-rate-threshold: 50.0
        slow-call-rate-threshold: 80.0
        slow-call-duration-ms: 5000
        wait-duration-in-open-state-ms: 60000
        sliding-window-size: 100
        minimum-number-of-calls: 10
        permitted-number-of-calls-in-half-open-state: 5
        automatic-pause-on-open: true
      dlt:
        topic-suffix: DLT
        strategy: ALERT_AND_STORE
        replay: { max-replays: 3, cooldown-ms: 3600000, batch-size: 100 }
    payments:
      topic: payments.events
      group-id: payment-processing-group
      listener-type: SINGLE
      ack-mode: MANUAL_IMMEDIATE
      concurrency: 2
      ordering-mode: STRICT
      retry:
        tier0: { max-attempts: 5, initial-backoff-ms: 200, multiplier: 2.0 }
      circuit-breaker: { enabled: true, failure-rate-threshold: 30.0, automatic-pause-on-open: true }
      dlt: { strategy: STORE_ONLY }
";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tidegate.yaml"), SAMPLE).unwrap();
    let ran = run_in(dir.path(), &["check", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert_eq!(ran.json()["problems"].as_array().map(Vec::len), Some(0));
    let warnings = ran.json()["warnings"].as_array().unwrap().clone();
    let of_codes = warnings.iter().filter(|warning| {
        let text = warning["message"].as_str().unwrap_or_default();
        text.contains("Java class")
    });
    assert_eq!(of_codes.count(), 6, "{warnings:?}");
}

#[test]
fn ordered_keys_and_a_copy_in_one_commit_are_refused_before_a_start() {
    const CONFIG: &str = "
log: {topics: {orders: {partitions: 1}, copies: {partitions: 1}}}
store: {url: \"sqlite://shop.db\"}
eventbus:
  bindings:
    copies:
      topic: orders
      group-id: copies
      ordering-mode: KEY_ORDERED
      handler: {forward: {topic: copies}}
";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tidegate.yaml");
    std::fs::write(&file, CONFIG).unwrap();
    let ran = run_in(dir.path(), &["check", "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stdout);
    let problems = ran.json()["problems"].as_array().unwrap().clone();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(
        problems[0]["path"],
        "eventbus.bindings.copies.handler.forward"
    );
    let ran = run_in(dir.path(), &["run"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("KEY_ORDERED"), "{}", ran.stderr);
    let early = CONFIG.replace("KEY_ORDERED", "KEY_ORDERED\n      hand-off: at-least-once");
    std::fs::write(&file, early).unwrap();
    let ran = run_in(dir.path(), &["check"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
}
