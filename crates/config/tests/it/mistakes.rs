//! Everything wrong is reported at once, where it stands.

use tidegate_config::Color;

use crate::{of, problems};

const TEN: &str = "\
server:
  lisen: 127.0.0.1:8080
  read-only: perhaps
store:
  max-connections: 0
shutdown-timeout: soon
eventlog:
  base-url: ${EVENTLOG_URL}
eventbus:
  bindings:
    orders:
      topic: orders.events
      topic: orders.other
      listener-type: BULK
      session-timeout-ms: 20000
      heartbeat-interval-ms: 10000
      retry:
        tiers:
          - delay-ms: 10000
            delay: 10s
";

#[test]
fn names_every_problem_at_once() {
    let loaded = of(TEN);
    insta::assert_snapshot!(loaded.problems.to_string(), @r#"
    tidegate.yaml:2:3: server.lisen: is not a key of `server` (did you mean `listen`?)
    tidegate.yaml:3:14: server.read-only: is "perhaps", and must be `true` or `false`
    tidegate.yaml:5:20: store.max-connections: is 0, and must be at least 1 and at most 2147483647
    tidegate.yaml:6:19: shutdown-timeout: is "soon", and must be a duration (a duration is written like `500ms`, `10s`, `1m30s` or `7d`)
    tidegate.yaml:8:13: eventlog.base-url: needs the variable `EVENTLOG_URL`, which is not set (set it, or give a default: `${EVENTLOG_URL:-…}`)
    tidegate.yaml:11:5: eventbus.bindings.orders.group-id: is missing and must be given
    tidegate.yaml:13:7: eventbus.bindings.orders.topic: is given twice; first in line 12 (keep one of the two)
    tidegate.yaml:14:22: eventbus.bindings.orders.listener-type: is "BULK", and must be one of SINGLE, BATCH
    tidegate.yaml:15:27: eventbus.bindings.orders.session-timeout-ms: is 20s, and must be at least three times `heartbeat-interval-ms`, which is 10s (line 16)
    tidegate.yaml:20:13: eventbus.bindings.orders.retry.tiers[0].delay: means the same as `delay-ms`, and both are given; first in line 19 (keep one of the two)
    "#);
    assert_eq!(loaded.problems.len(), 10);
}

#[test]
fn a_problem_serializes_for_machines() {
    let loaded = of("sever: {}\nshutdown-timeout: 0s\n");
    insta::assert_snapshot!(serde_json::to_string_pretty(&loaded.problems).unwrap(), @r#"
    [
      {
        "file": "tidegate.yaml",
        "line": 1,
        "column": 1,
        "path": "sever",
        "message": "is not a key of the file",
        "hint": "did you mean `server`?"
      },
      {
        "file": "tidegate.yaml",
        "line": 2,
        "column": 19,
        "path": "shutdown-timeout",
        "message": "is 0ms, and must be at least 1ms"
      }
    ]
    "#);
}

#[test]
fn a_rendering_shows_the_lines() {
    let loaded = of(
        "eventbus:\n  bindings:\n    orders:\n      topic: a\n      group-id: b\n      \
         session-timeout: 20s\n      concurrency: 3\n      heartbeat-interval-ms: 10000\n      \
         conurrency: 4\n",
    );
    insta::assert_snapshot!(loaded.problems.render(Color::Never), @r#"
    error: eventbus.bindings.orders.session-timeout-ms: is 20s, and must be at least three times `heartbeat-interval-ms`, which is 10s (line 8)
     --> tidegate.yaml:6:24
      |
    6 |       session-timeout: 20s
      |                        ^^^
    7 |       concurrency: 3
    8 |       heartbeat-interval-ms: 10000
      |                              -----

    error: eventbus.bindings.orders.conurrency: is not a key of `eventbus.bindings.orders`
     --> tidegate.yaml:9:7
      |
    9 |       conurrency: 4
      |       ^^^^^^^^^^
      |
      = help: did you mean `concurrency`?
    "#);
    let colored = loaded.problems.render(Color::Always);
    assert!(colored.contains("\u{1b}["));
}

#[test]
fn columns_count_characters() {
    insta::assert_snapshot!(
        problems("server: { listen: \"öäü:x\", tökén: 1 }\n"), @r#"
    tidegate.yaml:1:19: server.listen: is "öäü:x", and must be a host and a port (write it like `127.0.0.1:8080`)
    tidegate.yaml:1:28: server."tökén": is not a key of `server` (the keys here are listen, token, read-only, max-body, max-header, max-connections, header-timeout, request-timeout)
    "#);
}

#[test]
fn unknown_keys_come_with_advice() {
    insta::assert_snapshot!(problems("
eventlog:
  spillover-path: ./spill
  asink: {}
eventLog: {}
queue: {retry: {maxMillis: 3, initialMS: 3}}
log: {embedded: {frobnicate: 1}}
outbox: {batch-sizes: 5}
"), @r#"
    tidegate.yaml:3:3: eventlog.spillover-path: is not a key of `eventlog` (did you mean to put it under `eventlog.async`?)
    tidegate.yaml:4:3: eventlog.asink: is not a key of `eventlog` (the keys here are enabled, base-url, application-id, async, metrics, api)
    tidegate.yaml:5:1: eventLog: means the same as `eventlog`, and both are given; first in line 2 (keep one of the two)
    tidegate.yaml:6:17: queue.retry.maxMillis: is not a key of `queue.retry` (the keys here are initial-ms, max-ms, multiplier, jitter)
    tidegate.yaml:7:18: log.embedded.frobnicate: is not a key of `log.embedded` (the keys here are path, segment-size, journal-size, max-size, reserve, max-commit-size, max-record-size, group-commit-delay, max-queued-size, cache-size, compaction-memory, retention, retention-size)
    tidegate.yaml:8:10: outbox.batch-sizes: is not a key of `outbox` (did you mean `batch-size`?)
    "#);
}

#[test]
fn a_text_that_cannot_be_parsed_is_one_problem_with_a_position() {
    let texts = [
        "a: [1, 2\nb: 3\n",
        "server:\n\tlisten: x\n",
        "server:\n  listen: x\n read-only: true\n",
        "server: *nope\n",
        "--- {}\n--- {}\n",
        "server: !mine {}\n",
        "server: &a [*a]\n",
        "server:\n  <<: {}\n",
        "? [a]\n: b\n",
        "just a text",
        "\"\\x\"",
    ];
    let found = texts.map(|text| {
        let loaded = of(text);
        assert_eq!(loaded.problems.len(), 1, "{text}: {}", loaded.problems);
        format!("{text:?} {}", loaded.problems)
    });
    insta::assert_snapshot!(found.join("\n"), @r#"
    "a: [1, 2\nb: 3\n" tidegate.yaml:2:2: is not valid YAML: illegal placement of ':' indicator
    "server:\n\tlisten: x\n" tidegate.yaml:2:2: is not valid YAML: tabs disallowed within this context (block indentation)
    "server:\n  listen: x\n read-only: true\n" tidegate.yaml:3:2: is not valid YAML: while parsing a block mapping, did not find expected key
    "server: *nope\n" tidegate.yaml:1:9: is not valid YAML: while parsing node, found unknown anchor
    "--- {}\n--- {}\n" tidegate.yaml:2:1: holds a second document (use one file each)
    "server: !mine {}\n" tidegate.yaml:1:15: carries a tag, and tags have no meaning here
    "server: &a [*a]\n" tidegate.yaml:1:13: is an alias of something it stands in
    "server:\n  <<: {}\n" tidegate.yaml:2:3: is a merge key, and these are not supported (write the keys out, or give a whole section as an alias)
    "? [a]\n: b\n" tidegate.yaml:1:3: is not a name, so it cannot be a key
    "just a text" tidegate.yaml:1:1: is a single value, and the file must be a section of keys
    "\"\\x\"" tidegate.yaml:1:1: is not valid YAML: while parsing a quoted scalar, did not find expected hexadecimal number
    "#);
}

#[test]
fn text_and_machines_get_the_same_position() {
    for text in [
        "server:\n  token: \"abc\n",
        "server:\n  listen: ${A:-x} \"y\n  z: \"q\n",
        "öö: \"ä\n\n\n",
        "a: 'x",
        "server: {a: b\n",
        "server:\n  listen: x\n read-only: true\n",
    ] {
        let loaded = of(text);
        let problem = &loaded.problems[0];
        let arrow = format!("--> tidegate.yaml:{}:{}\n", problem.line, problem.column);
        let rendered = loaded.problems.render(Color::Never);
        assert!(rendered.contains(&arrow), "{arrow}{rendered}");
        let line = text.lines().nth(problem.line - 1).unwrap();
        assert!(
            problem.column <= line.chars().count() + 1,
            "{text:?}: {problem}"
        );
    }
}

#[test]
fn however_deep_a_file_is_the_limit_is_ours() {
    for opening in ["[", "{a: ", "- ", "? ", "[{a: "] {
        for start in ["", "flows: ", "flows:\n  "] {
            let deep = format!("{start}{}", opening.repeat(5_000));
            let found = problems(&deep);
            let expect = if opening.starts_with(['-', '?']) && start == "flows: " {
                "not allowed"
            } else {
                "is nested deeper than 32 levels"
            };
            assert!(found.contains(expect), "{start}{opening}…: {found}");
        }
    }
    let stairs: String = (0..1_000)
        .map(|n| format!("{}a:\n", " ".repeat(n)))
        .collect();
    assert!(problems(&stairs).contains("is nested deeper than 32 levels"));
}

#[test]
fn limits_have_names_and_are_kept() {
    use tidegate_config::{MAX_DEPTH, MAX_FILE_SIZE, MAX_NODES};
    let large = format!("# {}\n", "x".repeat(MAX_FILE_SIZE));
    assert!(problems(&large).contains(&MAX_FILE_SIZE.to_string()));
    let deep = format!(
        "flows: {}{}",
        "[".repeat(MAX_DEPTH + 1),
        "]".repeat(MAX_DEPTH + 1)
    );
    insta::assert_snapshot!(problems(&deep), @"tidegate.yaml:1:39: is nested deeper than 32 levels");
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for n in 1..8 {
        let aliases = vec![format!("*a{}", n - 1); 10].join(",");
        bomb.push_str(&format!("a{n}: &a{n} [{aliases}]\n"));
    }
    let found = problems(&bomb);
    assert!(found.contains(&MAX_NODES.to_string()), "{found}");

    let many: String = (0..2000).map(|n| format!("wrong{n}: 1\n")).collect();
    let loaded = of(&many);
    assert_eq!(loaded.problems.len(), tidegate_config::MAX_PROBLEMS);
    assert!(
        loaded
            .problems
            .render(Color::Never)
            .ends_with("… and 900 more")
    );
}
