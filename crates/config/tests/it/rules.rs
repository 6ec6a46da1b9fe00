//! Values that must fit each other.

use crate::{of, problems};

fn binding(keys: &str) -> String {
    problems(&format!(
        "eventbus:\n  bindings:\n    orders:\n      topic: t\n      group-id: g\n{keys}"
    ))
}

#[test]
fn a_session_holds_three_heartbeats() {
    insta::assert_snapshot!(
        binding("      session-timeout: 29s\n      heartbeat-interval: 10s\n"), @"tidegate.yaml:6:24: eventbus.bindings.orders.session-timeout-ms: is 29s, and must be at least three times `heartbeat-interval-ms`, which is 10s (line 7)");
    insta::assert_snapshot!(binding("      heartbeat-interval: 20s\n"), @"tidegate.yaml:6:27: eventbus.bindings.orders.session-timeout-ms: is 45s by default, and must be at least three times `heartbeat-interval-ms`, which is 20s (line 6)");
    assert_eq!(binding("      session-timeout: 30s\n"), "");
}

#[test]
fn tiers_grow() {
    insta::assert_snapshot!(
        binding("      retry: {tiers: [{delay: 10s}, {delay: 10s}, {delay: 5s}, {delay: 1m}]}\n"),
        @r#"
    tidegate.yaml:6:45: eventbus.bindings.orders.retry.tiers[1].delay-ms: is 10s, and must be longer than the delay of the tier before, which is 10s (line 6)
    tidegate.yaml:6:59: eventbus.bindings.orders.retry.tiers[2].delay-ms: is 5s, and must be longer than the delay of the tier before, which is 10s (line 6)
    "#);
}

#[test]
fn a_tier_without_a_default_delay_needs_one() {
    insta::assert_snapshot!(binding("      retry: {tiers: [{}, {}, {}, {}]}\n"), @"tidegate.yaml:6:35: eventbus.bindings.orders.retry.tiers[3].delay-ms: is missing and must be given");
}

#[test]
fn retries_fit_into_the_poll_interval() {
    insta::assert_snapshot!(
        binding("      max-poll-records: 500\n      retry:\n        tier0: {max-attempts: 5}\n"),
        @"tidegate.yaml:6:25: eventbus.bindings.orders.max-poll-records: lets 500 records wait 750 s in their retries (5 attempts each), and 70 % of `max-poll-interval-ms`, which is 10m (the default), is 420 s (take fewer records per poll, retry less, or allow a longer interval)");
    assert_eq!(
        binding("      max-poll-records: 279\n      retry: {tier0: {max-attempts: 5}}\n"),
        ""
    );
    insta::assert_snapshot!(binding("      max-poll-interval: 20s\n"), @"tidegate.yaml:6:26: eventbus.bindings.orders.max-poll-interval-ms: lets 50 records wait 15 s in their retries (3 attempts each), and 70 % of `max-poll-interval-ms`, which is 20s (line 6), is 14 s (take fewer records per poll, retry less, or allow a longer interval)");
    insta::assert_snapshot!(binding("      max-poll-records: 2000\n"), @"tidegate.yaml:6:25: eventbus.bindings.orders.max-poll-records: lets 2000 records wait 600 s in their retries (3 attempts each), and 70 % of `max-poll-interval-ms`, which is 10m (the default), is 420 s (take fewer records per poll, retry less, or allow a longer interval)");
}

#[test]
fn a_failure_is_retried_or_not() {
    insta::assert_snapshot!(
        binding("      retry:\n        retryable-exceptions: [a.b, c.*]\n        \
                 non-retryable-exceptions: [x, c.d]\n"),
        @"tidegate.yaml:8:39: eventbus.bindings.orders.retry.non-retryable-exceptions[1]: is `c.d`, and `retryable-exceptions` has `c.*` (line 7): a failure is one or the other");
}

#[test]
fn a_java_class_is_named_in_every_list_of_codes() {
    let text = "eventbus:\n  bindings:\n    orders:\n      topic: t\n      group-id: g\n      \
                handler: {log: {}}\n      retry: {pause-on: [a.AccessDeniedException]}\n";
    let warnings = of(text).warnings.to_string();
    let expect = "retry.pause-on[0]: is the Java class `a.AccessDeniedException`";
    assert!(warnings.contains(expect), "{warnings}");
}

#[test]
fn names_of_topics_and_groups_can_be_used() {
    let named = |topic: &str, group: &str| {
        problems(&format!(
            "eventbus:\n  bindings:\n    orders:\n      topic: {topic}\n      group-id: {group}\n"
        ))
    };
    let suffix = |suffix: &str| binding(&format!("      dlt: {{topic-suffix: {suffix}}}\n"));
    let twins = "[{delay: 1s, topic-suffix: x}, {delay: 2s, topic-suffix: x}]";
    let found = [
        (named("a b", "g"), "the name `a b`, which holds ' '"),
        (named("t", "g/1"), "the name `g/1`, which holds '/'"),
        (named("..", "g"), "the name `..`, which is none"),
        (named(&"t".repeat(245), "g"), "a name of 253 bytes"),
        (named("t", &"g".repeat(245)), "a name of 253 bytes"),
        (suffix("'D L'"), "the name `t.D L`, which holds ' '"),
        (suffix("retry-1"), "makes the topic `t.retry-1`"),
        (
            binding("      dlt: {topic: t}\n"),
            "makes the topic `t`, which is that of",
        ),
        (
            binding(&format!("      retry: {{tiers: {twins}}}\n")),
            "makes the topic `t.x`",
        ),
        (
            problems("eventbus:\n  bindings:\n    a b:\n      topic: t\n      group-id: g\n"),
            "has the name `a b`",
        ),
    ];
    for (problems, expect) in found {
        assert!(problems.contains(expect), "{problems:?} has no {expect:?}");
    }
    assert_eq!(binding("      dlt: {topic: letters}\n"), "");
    // Where keys are ordered no tier has a topic.
    let ordered = "      ordering-mode: KEY_ORDERED\n      \
                   retry: {tiers: [{delay: 1s, topic-suffix: DLT}]}\n";
    assert_eq!(binding(ordered), "");
}

#[test]
fn a_skip_leads_to_a_tier_that_exists() {
    insta::assert_snapshot!(binding("      retry: {skip-to-tier-mapping: {a.b: 3, a.c: 4}}\n"), @r#"tidegate.yaml:6:51: eventbus.bindings.orders.retry.skip-to-tier-mapping."a.c": is 4, and the last of the tiers is 3 (the default)"#);
}

#[test]
fn strict_order_has_no_tiers() {
    insta::assert_snapshot!(
        binding("      ordering-mode: strict\n      retry:\n        tiers:\n          - delay: 1s\n"),
        @"tidegate.yaml:8:9: eventbus.bindings.orders.retry.tiers: has tiers, and `ordering-mode` is STRICT (line 6), which keeps a failing record in its place (leave the tiers out, or use KEY_ORDERED to keep delays and the order of a key)");
    let key_ordered = binding("      ordering-mode: key-ordered\n      retry: {tiers: [{}]}\n");
    assert_eq!(key_ordered, "");
    assert_eq!(
        binding("      ordering-mode: strict\n      retry: {tiers: []}\n"),
        ""
    );
}

#[test]
fn ordered_keys_refuse_a_copy_that_is_one_commit_with_its_offset() {
    let forward = |keys: &str| {
        binding(&format!(
            "      ordering-mode: KEY_ORDERED\n      handler: {{forward: {{topic: copies}}}}\n{keys}"
        ))
    };
    insta::assert_snapshot!(forward(""), @"tidegate.yaml:7:17: eventbus.bindings.orders.handler.forward: writes each record in one commit with its offset, and `ordering-mode` is KEY_ORDERED (line 6): its records settle in the store (set `hand-off: at-least-once`, or keep another order)");
    assert_eq!(forward("      hand-off: at-least-once\n"), "");
    // One error for one mistake.
    let told = forward("      transactional: true\n");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("orders.transactional"), "{told}");
}

#[test]
fn ordered_keys_on_a_broker_need_a_store_that_is_shared() {
    let on_kafka = |store: &str| {
        problems(&format!(
            "log: {{clusters: {{default: {{bootstrap-servers: [\"a:1\"]}}}}}}\n{store}eventbus:\n  bindings:\n    \
             orders: {{topic: t, group-id: g, ordering-mode: KEY_ORDERED, handler: {{log: {{}}}}}}\n"
        ))
    };
    assert!(
        on_kafka("").contains("the store is SQLite"),
        "{}",
        on_kafka("")
    );
    assert!(on_kafka("store: {url: \"sqlite://x.db\"}\n").contains("the store is SQLite"));
    assert_eq!(on_kafka("store: {url: \"postgres://localhost/x\"}\n"), "");
}

#[test]
fn offsets_are_committed_by_hand() {
    insta::assert_snapshot!(binding("      listener-type: BATCH\n      ack-mode: RECORD\n"), @r#"tidegate.yaml:7:17: eventbus.bindings.orders.ack-mode: is "RECORD", and must be one of MANUAL, MANUAL_IMMEDIATE"#);
}

#[test]
fn a_binding_has_one_handler() {
    insta::assert_snapshot!(
        binding("      handler:\n        log: {}\n        http: {url: http://x/}\n"), @"tidegate.yaml:8:9: eventbus.bindings.orders.handler.http: is a second handler beside `log` (line 7), and a binding has one");
}

#[test]
fn a_server_that_others_reach_has_a_token() {
    insta::assert_snapshot!(problems("server: {listen: 0.0.0.0:80}"), @"tidegate.yaml:1:18: server.listen: is 0.0.0.0:80, which others can reach, and `server.token` is not given (give a token, or listen on 127.0.0.1)");
    assert_eq!(problems("server: {listen: 0.0.0.0:80, token: t}"), "");
    for listen in ["localhost:1", "'[::1]:80'", "127.0.0.2:80"] {
        assert_eq!(problems(&format!("server: {{listen: {listen}}}")), "");
    }
}

#[test]
fn limits_of_the_log_fit_each_other() {
    insta::assert_snapshot!(
        problems("log:\n  embedded:\n    max-size: 64MiB\n    max-record-size: 65MiB\n"), @r#"
    tidegate.yaml:3:15: log.embedded.reserve: is 64MiB by default, and must be less than `max-size`, which is 64MiB (line 3)
    tidegate.yaml:4:22: log.embedded.max-record-size: is 65MiB, and must be at most `max-commit-size`, which is 64MiB (the default)
    "#);
    insta::assert_snapshot!(
        problems("log:\n  embedded: {max-commit-size: 8MiB}\n  topics: {a: {max-record-size: 9MiB}, b: {max-record-size: 8MiB}}\n"), @"tidegate.yaml:3:33: log.topics.a.max-record-size: is 9MiB, and must be at most `log.embedded.max-commit-size`, which is 8MiB (line 2)");
}

#[test]
fn waits_begin_below_their_ceiling() {
    insta::assert_snapshot!(problems("
eventlog: {async: {base-retry-delay: 1m}}
outbox: {backoff: {initial: 2m}, loans: {backoff: {initial: 2s, max: 1s}}}
queue: {retry: {max: 10ms}}
"), @r#"
    tidegate.yaml:2:38: eventlog.async.base-retry-delay-ms: is 1m, and must be at most `max-retry-delay-ms`, which is 30s (the default)
    tidegate.yaml:3:29: outbox.default.backoff.initial-ms: is 2m, and must be at most `max-ms`, which is 1m (the default)
    tidegate.yaml:3:61: outbox.loans.backoff.initial-ms: is 2s, and must be at most `max-ms`, which is 1s (line 3)
    tidegate.yaml:4:22: queue.retry.initial-ms: is 1s by default, and must be at most `max-ms`, which is 10ms (line 4)
    "#);
}

#[test]
fn more_consumers_than_partitions_is_a_warning() {
    let loaded = of("
log: {topics: {t: {partitions: 2}}}
eventbus: {bindings: {a: {topic: t, group-id: g, concurrency: 3, handler: {log: {}}}}}
");
    assert!(loaded.problems.is_empty());
    insta::assert_snapshot!(loaded.warnings.to_string(), @"tidegate.yaml:3:63: eventbus.bindings.a.concurrency: is 3, and the topic has 2 partitions (line 2): the others stay idle");
}

#[test]
fn a_rule_about_a_wrong_value_is_skipped() {
    insta::assert_snapshot!(
        binding("      session-timeout: soon\n      heartbeat-interval: 60s\n"), @r#"tidegate.yaml:6:24: eventbus.bindings.orders.session-timeout-ms: is "soon", and must be a duration (a duration is written like `500ms`, `10s`, `1m30s` or `7d`)"#);
}

#[test]
fn what_is_not_built_is_refused_or_warned_about_by_name() {
    let check = |keys: &str, expect: &str| {
        let found = binding(keys);
        assert!(found.contains(expect), "{keys}: {found}");
    };
    check(
        "      cluster: dr\n",
        "is `dr`, and this version reads topics of the cluster `default` alone",
    );
    check(
        "      dlt: {strategy: SCHEDULED_REPLAY}\n",
        "is SCHEDULED_REPLAY, which this version",
    );
    check(
        "      ordering-mode: strict\n      concurrency-mode: KEY\n",
        "only PARTITION keeps that order",
    );
    check(
        "      transactional: true\n      hand-off: at-least-once\n",
        "`hand-off` is at-least-once",
    );
    let warnings = |keys: &str| {
        let text = format!(
            "eventbus:\n  bindings:\n    orders:\n      topic: t\n      group-id: g\n{keys}"
        );
        of(&text).warnings.to_string()
    };
    assert!(warnings("").contains("has no `handler`"));
    let quiet = "      handler: {log: {}}\n";
    assert_eq!(warnings(quiet), "");
    for keys in [
        "      idempotency: {ttl: 1h}\n",
        "      retry: {preset: consumer-ladder}\n",
        "      dlt: {replay: {max-replays: 1}}\n",
    ] {
        let found = warnings(&format!("{quiet}{keys}"));
        assert!(
            found.contains("does nothing with it yet"),
            "{keys}: {found}"
        );
    }
}

#[test]
fn keys_of_flows_that_are_not_built_are_warned_about_where_they_are_given() {
    let text = "streams: {a: {topic: t, partitions: 3, format: json}}
lookups: {l: {type: file, path: f.json, cache: {ttl: 1h}}}
circuit-breakers: {b: {failure-threshold: 3}}
checkpoints: {default: {min-pause: 5s}}
state-backends: {default: {budget: 1GiB}}
resources: {p: {parallelism: 2, delivery: at-least-once, poison: {window: 1m}, restart: {max-delay: 5s}}}
";
    let loaded = of(text);
    assert!(loaded.problems.is_empty(), "{}", loaded.problems);
    let warnings = loaded.warnings.to_string();
    let paths = warnings.lines().filter_map(|line| {
        let (path, rest) =
            line.split_once(": is read, and this version does nothing with it yet")?;
        assert!(rest.starts_with(": "), "{line}");
        path.split_once(' ').map(|(_, path)| path)
    });
    assert_eq!(
        paths.collect::<Vec<_>>(),
        [
            "streams.a.format",
            "lookups.l.cache",
            "circuit-breakers.b.failure-threshold",
            "checkpoints.default.min-pause",
            "state-backends.default.budget",
            "resources.p.delivery",
            "resources.p.poison",
        ],
        "{warnings}"
    );
    assert_eq!(
        of("streams: {a: {}}\nlookups: {l: {type: file, path: f}}\n")
            .warnings
            .to_string(),
        ""
    );
}

#[test]
fn a_topic_and_a_group_are_bound_once() {
    let text =
        "eventbus:\n  bindings:\n    a: {topic: t, group-id: g}\n    b: {topic: t, group-id: g}\n";
    let found = problems(text);
    assert!(
        found.contains("reads topic `t` in that group as well"),
        "{found}"
    );
}

#[test]
fn a_topic_has_a_name_that_a_directory_and_a_broker_can_have() {
    let found =
        problems("log: {topics: {\"bad name\": {}, \"..\": {}, \"a/b\": {}, good.one: {}}}");
    assert_eq!(found.lines().count(), 3, "{found}");
    for part in [
        "log.topics.\"bad name\"",
        "log.topics.\"a/b\"",
        "log.topics.\"..\"",
    ] {
        assert!(
            found.contains(&format!("{part}: has a name that no topic can have")),
            "{found}"
        );
    }
    assert!(found.starts_with("tidegate.yaml:1:16: "), "{found}");
}
