//! An accepted text means what is written: what would be taken for something else is refused.

use tidegate_config::{Inputs, load};
use tidegate_flow::check::{Bindings, CheckedFlows, Registered, check_bindings, check_flows};

fn check(text: &str) -> CheckedFlows {
    check_flows(&[text], &Registered::default())
}

/// The text has errors of this code and no others.
#[track_caller]
fn assert_refused(text: &str, code: &str) {
    let flows = check(text);
    let errors = flows.diagnostics.iter().filter(|found| found.is_error());
    let mut codes: Vec<&str> = errors.map(|found| found.code).collect();
    codes.dedup();
    assert_eq!(codes, [code], "{text}\n{:?}", flows.diagnostics);
}

#[track_caller]
fn assert_right(text: &str) {
    let flows = check(text);
    assert!(flows.plan.is_some(), "{text}\n{:?}", flows.diagnostics);
}

fn in_process(statements: &str) -> String {
    format!("process p receive a {statements} emit to b end")
}

#[test]
fn an_unknown_escape_in_a_text_is_refused() {
    let schema = |pattern: &str| format!("schema s f: string pattern \"{pattern}\" end");
    assert_refused(&schema(r"^\d+$"), "TG0012");
    assert_right(&schema(r"^\\d+\u0041\n$"));
    let require = r#"validate_input require true else "a\qb""#;
    assert_refused(&in_process(require), "TG0012");
}

#[test]
fn an_included_field_that_a_completion_has_already_is_refused() {
    let told = |include: &str| {
        format!(
            "process p receive a emit to b on commit emit completion to done correlation id include {include} end"
        )
    };
    for include in ["status", "x.timestamp", "correlation_id", "x.v, y.v"] {
        assert_refused(&told(include), "TG0101");
    }
    assert_right(&told("x.v, y.w"));
}

#[test]
fn the_schema_of_a_completion_is_checked() {
    let told = |fields: &str| {
        format!(
            "schema s id: string amount: integer end schema done_s {fields} end
             process p receive a schema s emit to b
                 on commit emit completion to done correlation id include amount schema done_s end"
        )
    };
    assert_right(&told(
        "correlation_id: string status: string amount: integer",
    ));
    assert_refused(&told("amount: boolean"), "TG0306");
    assert_refused(&told("missing: string"), "TG0307");
}

#[test]
fn state_is_refused_where_the_record_has_no_field_of_its_key() {
    let flow = |before: &str, after: &str| {
        format!(
            "schema s id: string v: integer end
             process p receive a schema s {before} transform k = id {after} emit to b
                 state local n keyed by k type counter end end"
        )
    };
    assert_right(&flow("", "transform x = state.n + 1"));
    assert_right(&flow("", "transform state.n = state.n + 1"));
    assert_refused(&flow("transform x = state.n", ""), "TG0301");
    assert_refused(&flow("transform state.n = 1", ""), "TG0301");
    // Behind a window the record has other fields, and the state was used before.
    assert_right(&flow(
        "",
        "transform state.n = state.n + 1 window tumbling 1h key by id aggregate count() as c end",
    ));
    // A transform with an input may name fewer fields than the record has.
    assert_right(
        "schema s id: string v: integer end schema part v: integer end
         transform t input part apply v = state.n end end
         process p receive a schema s transform using t emit to b
             state local n keyed by id type counter end end",
    );
}

#[test]
fn the_priority_of_a_buffer_may_be_a_path_and_must_be_a_field() {
    let flow = |path: &str| {
        format!(
            "schema s k: string x: object n: integer end end
             process p receive part schema s store in h
                 hold h keyed by k complete when count >= 3 timeout 1 hour dead_letter d
                 emit to c
                 state buffer h keyed by k type priority by {path} end end"
        )
    };
    let order = |path: &str| {
        let flows = check(&flow(path));
        let plan = flows
            .plan
            .unwrap_or_else(|| panic!("{:?}", flows.diagnostics));
        let state = plan.processes["p"]
            .state
            .iter()
            .find(|state| state.id == "hold/h");
        format!("{:?}", state.unwrap().kind)
    };
    assert!(order("x.n").contains("priority by x.n"), "{}", order("x.n"));
    assert!(order("`x`.`n`").contains("priority by x.n"));
    assert_refused(&flow("y"), "TG0301");
}

#[test]
fn two_ways_to_emit_to_one_stream_are_refused() {
    let flow = |first: &str, second: &str| {
        format!("process p receive a emit to b {first} transform x = 1 emit to b {second} end")
    };
    assert_right(&flow("", ""));
    assert_right(&flow("key by id", "key by id"));
    for (first, second) in [
        ("key by id", "key by other"),
        ("key by id", ""),
        ("fanout broadcast", "fanout round_robin"),
    ] {
        assert_refused(&flow(first, second), "TG0013");
    }
    assert_refused(
        "schema s id: string end schema t id: string end
         process p receive a schema s emit to b schema s emit to b schema t end",
        "TG0013",
    );
}

#[test]
fn a_commit_of_routes_alone_is_told_about_by_nobody() {
    let flow = |emit: &str, on: &str| {
        format!(
            "process p receive a route by kind \"x\" to x otherwise continue {emit}
                 on {on} emit completion to done correlation id end"
        )
    };
    assert_refused(&flow("emit to x key by id", "commit"), "TG0208");
    assert_right(&flow("emit to x key by id", "commit failure"));
    assert_right(&flow("emit to y", "commit"));
}

#[test]
fn two_fields_of_one_name_in_a_result_are_refused() {
    let join = |on: &str| {
        format!("process p receive a receive b join a with b on {on} within 1h emit to c end")
    };
    assert_right(&join("x.id, y.other"));
    assert_refused(&join("x.id, y.id"), "TG0101");
    for key in ["count", "reason"] {
        assert_refused(
            &format!(
                "process p receive a store in h hold h keyed by {key} complete when count >= 2
                     timeout 1h dead_letter d emit to b end"
            ),
            "TG0101",
        );
        assert_refused(
            &format!(
                "process p receive {key} from a store in h hold h keyed by k
                     complete when count >= 2 timeout 1h dead_letter d emit to b end"
            ),
            "TG0101",
        );
    }
    for key in ["reason", "correlation_latency", "waited_duration"] {
        assert_refused(
            &format!(
                "process p receive a receive b await a until b arrives matching on {key}
                     timeout 1h dead_letter d emit to c end"
            ),
            "TG0101",
        );
    }
    let window = |key: &str, name: &str| {
        in_process(&format!(
            "window tumbling 1h key by {key} aggregate count() as {name} end"
        ))
    };
    assert_right(&window("x.id, y.other", "n"));
    for (key, name) in [
        ("x.id, y.id", "n"),
        ("revision", "n"),
        ("id", "window_start"),
        ("id", "id"),
    ] {
        assert_refused(&window(key, name), "TG0101");
    }
    let select = |fields: &str| in_process(&format!("enrich using l on id select {fields}"));
    let lookup = "lookup l key id x: object id: string end y: object id: string v: string end end ";
    assert_right(&(lookup.to_owned() + &select("x.id, y.v")));
    assert_refused(&(lookup.to_owned() + &select("x.id, y.id")), "TG0101");
    assert_refused(
        "decision_table t | a => r | r | | * => 1 | 2 | end",
        "TG0101",
    );
}

#[test]
fn a_default_that_the_field_may_not_have_is_refused() {
    let schema = |field: &str| format!("schema s f: {field} end");
    for field in [
        "integer default 007",
        "decimal(4,2) default 12345.678",
        "decimal(4,2) default \"123.4\"",
        "timestamp default \"2026-01-05\"",
        "date default \"2026-1-5\"",
        "bytes default \"%%\"",
        "integer default 5 range 6..9",
        "integer range 6..9 default 5",
        "string default \"c\" values (\"a\", \"b\")",
        "string default \"x1\" pattern \"[a-z]\"",
        "string default \"abc\" length 1..2",
    ] {
        assert_refused(&schema(field), "TG0310");
    }
    for field in [
        "integer default -7",
        "decimal(4,2) default 12.50",
        "timestamp default \"2026-01-05T10:00:00Z\"",
        "date default \"2026-01-05\"",
        "bytes default \"aGk=\"",
        "integer default 7 range 6..9",
        "string default \"a\" values (\"a\", \"b\")",
        "json default 5",
    ] {
        assert_right(&schema(field));
    }
}

#[test]
fn a_name_with_a_dot_is_no_path() {
    assert_refused(&in_process("deduplicate by `x.id`"), "TG0001");
    assert_refused("schema s `x.id`: string end", "TG0001");
    assert_right(&in_process("deduplicate by `x`.`id`"));
    assert_right("schema s `x-id`: string end");
}

#[test]
fn a_reserved_word_in_backquotes_begins_an_expression() {
    assert_right(&in_process(
        "filter `to` == 1 transform x = `from` y = -`by`",
    ));
}

#[test]
fn a_state_backend_of_resources_must_be_bound() {
    let flows = check(&in_process(""));
    let bindings = |backend: &str| {
        let yaml = format!(
            "streams: {{a: {{}}, b: {{}}, p_dlq: {{}}}}\n\
             state-backends: {{fast: {{type: memory}}}}\n\
             resources: {{p: {{state-backend: {backend}}}}}"
        );
        Bindings::from_config(&load(&Inputs::of_text("tidegate.yaml", &yaml)).config)
    };
    let codes = |backend: &str| {
        let found = check_bindings(&flows, &bindings(backend)).into_iter();
        let errors = found.filter(|found| found.is_error());
        errors.map(|found| found.code).collect::<Vec<_>>()
    };
    assert_eq!(codes("nosuch"), ["TG0705"]);
    assert!(codes("fast").is_empty() && codes("default").is_empty());
}
