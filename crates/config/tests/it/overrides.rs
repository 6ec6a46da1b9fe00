//! The environment stands over the file, and arguments over the environment.

use tidegate_config::{Inputs, Loaded, Origin, Part, load};

use crate::{of, with};

const FILE: &str = "
eventbus:
  bindings:
    orders: {topic: orders.events, group-id: g, concurrency: 2}
    orders-retry: {topic: r, group-id: g}
log: {topics: {orders.events: {partitions: 8}}}
";

#[test]
fn later_stands_over_earlier() {
    let mut inputs = Inputs::of_text("a.yaml", "store: {max-connections: 1}\nflows: [a, b]");
    let origin = |loaded: &Loaded| {
        let number = loaded.config.integer("store.max-connections").unwrap();
        (
            number,
            loaded.config.origin("store.max-connections").unwrap(),
        )
    };
    let file = |file: &str| Origin::File {
        file: file.to_owned(),
        line: 1,
        column: 26,
    };
    assert_eq!(origin(&of("")), (10, Origin::Default));
    inputs.sources.push(inputs.sources[0].clone());
    inputs.sources[1].name = "b.yaml".to_owned();
    inputs.sources[1].text = "store: {maxConnections : 2}\nflows: [c]".to_owned();
    assert_eq!(origin(&load(&inputs)), (2, file("b.yaml")));
    assert_eq!(load(&inputs).config.texts("flows"), ["c"]);
    inputs
        .environment
        .insert("STORE_MAX_CONNECTIONS".to_owned(), "3".to_owned());
    let loaded = load(&inputs);
    assert_eq!(
        origin(&loaded),
        (3, Origin::Env("STORE_MAX_CONNECTIONS".to_owned()))
    );
    inputs.environment.insert(
        "TIDEGATE__STORE__MAX_CONNECTIONS".to_owned(),
        "4".to_owned(),
    );
    assert_eq!(origin(&load(&inputs)).0, 4);
    inputs
        .arguments
        .push(("store.maxConnections".to_owned(), "5".to_owned()));
    let loaded = load(&inputs);
    assert_eq!(
        origin(&loaded),
        (5, Origin::Argument("store.maxConnections".to_owned()))
    );
    assert!(loaded.problems.is_empty());
}

#[test]
fn a_path_is_found_in_a_variable() {
    for (variable, value, path) in [
        (
            "EVENTBUS_BINDINGS_ORDERS_CONCURRENCY",
            "7",
            "eventbus.bindings.orders.concurrency",
        ),
        (
            "EVENTBUS_BINDINGS_ORDERS_RETRY_CONCURRENCY",
            "7",
            "eventbus.bindings.orders-retry.concurrency",
        ),
        (
            "EVENTBUS_BINDINGS_ORDERS_RETRY_TIER0_MAX_ATTEMPTS",
            "7",
            "eventbus.bindings.orders.retry.tier0.max-attempts",
        ),
        (
            "LOG_TOPICS_ORDERS_EVENTS_PARTITIONS",
            "7",
            "log.topics.orders.events.partitions",
        ),
        (
            "TIDEGATE__EVENTBUS__BINDINGS__ORDERS-RETRY__CONCURRENCY",
            "7",
            "eventbus.bindings.orders-retry.concurrency",
        ),
        (
            "TIDEGATE__EVENTBUS__BINDINGS__orders__max-poll-records",
            "7",
            "eventbus.bindings.orders.max-poll-records",
        ),
        (
            "TIDEGATE__STORE__MAX_CONNECTIONS",
            "7",
            "store.max-connections",
        ),
        ("OUTBOX_BATCH_SIZE", "7", "outbox.batch-size"),
        ("TIDEGATE__OUTBOX__BATCH_SIZE", "7", "outbox.batch-size"),
        (
            "TIDEGATE__OUTBOX__LOANS__BATCH_SIZE",
            "7",
            "outbox.loans.batch-size",
        ),
    ] {
        let loaded = with(FILE, &[(variable, value)]);
        assert_eq!(loaded.problems.to_string(), "", "{variable}");
        assert_eq!(loaded.config.integer(path), Some(7), "{variable}");
        assert_eq!(
            loaded.config.origin(path),
            Some(Origin::Env(variable.to_owned()))
        );
    }
}

#[test]
fn variables_of_others_are_left_alone() {
    let loaded = with(
        FILE,
        &[
            ("LOG_LEVEL", "debug"),
            ("SERVER_PORT", "80"),
            ("STORE", "x"),
            ("QUEUE", "x"),
            ("FLOWS", "x"),
            ("SHUTDOWN_TIMEOUT", "x"),
            ("store_url", "x"),
            ("EVENTBUS_BINDINGS_UNKNOWN_CONCURRENCY", "x"),
            ("EVENTLOG_ASYNC", "x"),
            ("TIDEGATE_TOKEN", "x"),
            ("_", "x"),
            ("", "x"),
            ("ÄÖÜ__ÄÖÜ", "x"),
        ],
    );
    assert_eq!(loaded.problems.to_string(), "");
    assert_eq!(loaded.config, of(FILE).config);
}

#[test]
fn a_problem_names_the_variable() {
    let loaded = with(
        FILE,
        &[
            ("EVENTBUS_BINDINGS_ORDERS_CONCURRENCY", "many"),
            ("TIDEGATE__STORE__MAX_CONNECTION", "3"),
            ("TIDEGATE__SERVER____TOKEN", "3"),
            ("TIDEGATE__EVENTBUS__BINDINGS__NEW__TOPIC", "t"),
            ("TIDEGATE__FLOWS", "[a"),
        ],
    );
    insta::assert_snapshot!(loaded.problems.to_string(), @r#"
    environment: variable `TIDEGATE__FLOWS`: is not valid YAML: unclosed bracket '['
    environment: variable `TIDEGATE__SERVER____TOKEN`: has an empty step in its name
    environment: eventbus.bindings.new.group-id: variable `TIDEGATE__EVENTBUS__BINDINGS__NEW__TOPIC`: is missing and must be given
    environment: eventbus.bindings.orders.concurrency: variable `EVENTBUS_BINDINGS_ORDERS_CONCURRENCY`: is "many", and must be a whole number
    environment: store.MAX_CONNECTION: variable `TIDEGATE__STORE__MAX_CONNECTION`: is not a key of `store` (did you mean `max-connections`?)
    "#);
    let first = &loaded.problems[0];
    assert_eq!(
        (first.file.as_str(), first.line, first.column),
        ("environment", 0, 0)
    );
}

#[test]
fn lists_come_with_commas_or_in_brackets() {
    for value in ["a, b", "[a, b]", "[\"a\", 'b']"] {
        let loaded = with("", &[("TIDEGATE__FLOWS", value)]);
        assert_eq!(loaded.config.texts("flows"), ["a", "b"]);
    }
}

#[test]
fn an_entry_of_a_list_can_be_changed() {
    let text = "eventbus: {bindings: {a: {topic: t, group-id: g, retry: {tiers: [{delay: 1s}]}}}}";
    let loaded = with(
        text,
        &[("EVENTBUS_BINDINGS_A_RETRY_TIERS_0_DELAY_MS", "2000")],
    );
    assert_eq!(loaded.problems.to_string(), "");
    let delay = loaded
        .config
        .duration("eventbus.bindings.a.retry.tiers[0].delay")
        .unwrap();
    assert_eq!(delay.as_secs(), 2);
    let loaded = with(
        text,
        &[(
            "TIDEGATE__EVENTBUS__BINDINGS__A__RETRY__TIERS__5__DELAY",
            "2s",
        )],
    );
    insta::assert_snapshot!(loaded.problems.to_string(), @"environment: eventbus.bindings.a.retry.tiers[5]: variable `TIDEGATE__EVENTBUS__BINDINGS__A__RETRY__TIERS__5__DELAY`: does not exist, and the number of entries is 1");
}

#[test]
fn arguments_spell_the_path_as_the_file_does() {
    let mut inputs = Inputs::of_text("tidegate.yaml", FILE);
    for (path, value) in [
        ("log.topics.orders.events.partitions", "3"),
        ("log.topics.\"new.topic\".partitions", "5"),
        ("log.clusters.default.properties.sasl.mechanism", "PLAIN"),
        ("log.clusters.default.bootstrap-servers", "a:1,b:2"),
        ("shutdown-timeout", "5s"),
    ] {
        inputs.arguments.push((path.to_owned(), value.to_owned()));
    }
    let loaded = load(&inputs);
    assert_eq!(loaded.problems.to_string(), "");
    assert_eq!(
        loaded.config.integer("log.topics.orders.events.partitions"),
        Some(3)
    );
    assert_eq!(
        loaded.config.integer("log.topics.new.topic.partitions"),
        Some(5)
    );
    let mechanism = loaded
        .config
        .text("log.clusters.default.properties.sasl.mechanism");
    assert_eq!(mechanism, Some("PLAIN"));
    inputs.arguments = vec![
        ("store.max-conections".to_owned(), "1".to_owned()),
        ("..".to_owned(), String::new()),
    ];
    insta::assert_snapshot!(load(&inputs).problems.to_string(), @r#"
    arguments: argument `..`: is not a path of a key
    arguments: store.max-conections: argument `store.max-conections`: is not a key of `store` (did you mean `max-connections`?)
    "#);
}

#[test]
fn a_section_without_its_part_is_a_warning_until_it_is_to_run() {
    let mut inputs = Inputs::of_text("tidegate.yaml", "store: {}\nqueue:\n  batch-size: 3\n");
    inputs
        .environment
        .insert("OUTBOX_BATCH_SIZE".to_owned(), "3".to_owned());
    inputs.built = vec![Part::Store];
    let mut loaded = load(&inputs);
    assert!(loaded.problems.is_empty());
    insta::assert_snapshot!(loaded.warnings.to_string(), @r#"
    tidegate.yaml:2:1: queue: is valid, but this build does not include queue
    environment: outbox: variable `OUTBOX_BATCH_SIZE`: is valid, but this build does not include outbox
    "#);
    loaded.require_built(&[Part::Store, Part::Outbox]);
    loaded.require_built(&[Part::Store, Part::Outbox]);
    insta::assert_snapshot!(loaded.problems.to_string(), @"tidegate.yaml:2:1: queue: is valid, but this build does not include queue");
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.checked().is_err());
}
