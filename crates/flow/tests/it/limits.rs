//! Each limit of the language is named where it is hit, and what is just inside of it passes.

use tidegate_flow::check::{CheckedFlows, MAX_ATTEMPTS, MAX_WINDOWS, Registered, check_flows};
use tidegate_flow::syntax::{MAX_DURATION_DAYS, MAX_FIELDS, MAX_LIST, MAX_NESTING, MAX_STATEMENTS};

fn check(text: &str) -> CheckedFlows {
    check_flows(&[text], &Registered::default())
}

/// A finding with a code and these words; the text is shown in part, because it may be long.
#[track_caller]
fn assert_found(text: &str, code: &str, words: &str) {
    let flows = check(text);
    assert!(flows.plan.is_none(), "{:.200}", text);
    let mut with_code = flows.diagnostics.iter().filter(|found| found.code == code);
    let is_found = with_code.any(|found| found.message.contains(words));
    assert!(is_found, "{words}: {:.200}\n{:?}", text, flows.diagnostics);
}

#[track_caller]
fn assert_right(text: &str) {
    let flows = check(text);
    assert!(
        flows.plan.is_some(),
        "{:.200}\n{:?}",
        text,
        flows.diagnostics
    );
}

fn in_process(statements: &str) -> String {
    format!("process p receive a {statements} emit to b end")
}

fn repeated(count: usize, part: impl Fn(usize) -> String) -> String {
    (0..count).map(part).collect()
}

#[test]
fn a_path_has_as_many_names_as_types_may_be_nested() {
    let path = |names: usize| vec!["a"; names].join(".");
    for names in [MAX_NESTING + 1, 100_000] {
        let path = path(names);
        for statement in [
            format!("transform {path} = 1"),
            format!("deduplicate by {path}"),
            format!("state local n keyed by {path} type counter end"),
        ] {
            assert_found(&in_process(&statement), "TG0016", "`nesting`");
        }
    }
    assert_right(&in_process(&format!("transform {} = 1", path(MAX_NESTING))));
}

#[test]
fn values_that_wrap_each_other_are_nested_up_to_the_limit() {
    for (first, wrap) in [("1", "[a]"), ("1", "{\"k\": a}"), ("{}", "record")] {
        let wrapped = |count: usize| {
            let assignments = repeated(count, |_| format!("a = {wrap} "));
            in_process(&format!("transform a = {first} {assignments}"))
        };
        assert_found(&wrapped(MAX_LIST - 2), "TG0016", "`nesting`");
        assert_right(&wrapped(20));
        let steps = repeated(MAX_STATEMENTS - 5, |_| format!("transform a = {wrap} "));
        assert_found(
            &in_process(&format!("transform a = {first} {steps}")),
            "TG0016",
            "`nesting`",
        );
    }
}

#[test]
fn results_that_hold_each_other_are_nested_up_to_the_limit() {
    let joins = |count: usize| {
        let steps = repeated(count, |n| {
            format!(
                "receive s{n} join r{n} with s{n} on k within 1h into r{} ",
                n + 1
            )
        });
        format!("process p receive r0 {steps} emit to b end")
    };
    assert_right(&joins(20));
    let windows = |count: usize| {
        let steps = repeated(count, |n| {
            format!("window tumbling 1h key by k aggregate collect(record) as r{n} end ")
        });
        in_process(&steps)
    };
    assert_found(&windows(70), "TG0016", "`nesting`");
    assert_right(&windows(20));
}

#[test]
fn types_of_the_deepest_nesting_are_estimated_without_overflow() {
    for (open, close) in [("list<", ">"), ("map<", ">"), ("object f: ", " end")] {
        let kind = format!("{}string{}", open.repeat(60), close.repeat(60));
        let fields = format!("k: string a: {kind} b: {kind}");
        let text = format!(
            "schema s {fields} end process p receive x schema s receive y schema s \
             join x with y on k within 1h emit to b end"
        );
        assert_right(&text);
    }
    let objects = format!("schema s {}string end", "a: object ".repeat(100_000));
    assert_found(&objects, "TG0016", "`nesting`");
}

#[test]
fn a_process_has_a_limit_of_statements_and_a_list_one_of_parts() {
    let steps = |count: usize| in_process(&"transform x = 1 ".repeat(count));
    assert_found(&steps(MAX_STATEMENTS), "TG0016", "`statements`");
    assert_right(&steps(MAX_STATEMENTS - 3));
    let fields = |count: usize| vec!["f"; count].join(", ");
    let arms = |count: usize| repeated(count, |n| format!("\"{n}\" to b "));
    let values = |count: usize| {
        let values: Vec<String> = (0..count).map(|n| format!("\"{n}\"")).collect();
        values.join(", ")
    };
    for count in [MAX_LIST + 2, 40_000] {
        let rows = "| 1 => 1 |\n".repeat(count);
        for text in [
            in_process(&format!("deduplicate by {}", fields(count))),
            in_process(&format!("enrich using l on k select {}", fields(count))),
            format!("process p receive a route by kind {} end", arms(count)),
            in_process(&format!("transform {}", "a = 1 ".repeat(count))),
            format!("schema s f: string values ({}) end", values(count)),
            format!("decision_table t | a => b |\n{rows} end"),
        ] {
            assert_found(&text, "TG0016", "`list`");
        }
    }
    assert_right(&in_process(&format!("deduplicate by {}", fields(1_000))));
    assert_right(&format!(
        "process p receive a route by kind {} end",
        arms(MAX_LIST)
    ));
}

/// A transform counts again wherever it is used, and a head again in each row.
#[test]
fn flows_that_grow_when_they_are_expanded_have_a_limit() {
    let long = vec!["x == 1"; 400].join(" || ");
    let body = repeated(15, |n| format!("f{n} = {long}\n"));
    let uses = |count: usize| {
        let processes = repeated(count, |n| {
            format!("process p{n} receive a transform using t emit to b end\n")
        });
        format!("transform t apply {body} end end\n{processes}")
    };
    assert_found(&uses(400), "TG0016", "`expansion`");
    assert_right(&uses(20));
    let table = |rows: usize| {
        let head = format!("\"{}\" + s", "x".repeat(10_000));
        let rows = "| \"y\" => 1 |\n".repeat(rows);
        format!("decision_table t\n| {head} => r |\n{rows}end\n")
    };
    assert_found(&table(2_000), "TG0016", "`expansion`");
    assert_right(&table(100));
}

#[test]
fn a_wide_record_that_is_looked_at_again_and_again_has_a_limit() {
    // One statement adds a field.
    let fields = repeated(MAX_FIELDS - 1, |n| format!("f{n}: string\n"));
    let processes = |count: usize, statement: &str| {
        let statements = format!("{statement} ").repeat(200);
        let processes = repeated(count, |n| {
            format!("process p{n} receive a schema s {statements} emit to b end\n")
        });
        format!("schema s {fields} end\n{processes}")
    };
    for statement in [
        "transform f0 = f1",
        "transform x = size(record)",
        "validate_input require true else \"m\"",
    ] {
        assert_found(&processes(120, statement), "TG0016", "`expansion`");
        assert_right(&processes(2, statement));
    }
    let inputs = repeated(240, |n| format!("receive i{n} from a schema s "));
    let names: Vec<String> = (0..240).map(|n| format!("i{n}")).collect();
    let merged = format!("{inputs} merge {}", names.join(", "));
    let many = repeated(60, |n| format!("process p{n} {merged} emit to b end\n"));
    assert_found(
        &format!("schema s {fields} end\n{many}"),
        "TG0016",
        "`expansion`",
    );
}

#[test]
fn what_a_deployment_of_a_megabyte_needs_is_inside_the_limit() {
    let process = |n: usize| {
        format!(
            "process p{n}
    receive orders{n} filter amount > 100.0 && merchant.startsWith(\"Store\")
    transform net = amount - discount
        label = country in [\"DE\", \"FR\"] ? \"eu\" : \"other\"
    route when net > 1000.0 to large{n} otherwise continue
    emit to small{n}
end
"
        )
    };
    let file = repeated(3_000, process);
    assert!(file.len() > 600_000);
    assert_right(&file);
}

#[test]
fn a_pattern_is_as_small_as_one_of_an_expression() {
    let schema = |pattern: &str| format!("schema s f: string pattern \"{pattern}\" end");
    assert_found(&schema("(a{1000}){1000}"), "TG0016", "`pattern`");
    assert_found(&schema("(\\\\w{100}){100}"), "TG0016", "`pattern`");
    assert_found(&schema("(a"), "TG0310", "pattern");
    assert_right(&schema("[A-Z]{2}[0-9]{4}"));
    let many = repeated(MAX_FIELDS, |n| {
        format!("f{n}: string pattern \"a{{10}}\"\n")
    });
    let schemas = repeated(20, |n| format!("schema s{n} {many} end\n"));
    assert_found(&schemas, "TG0016", "`expansion`");
}

#[test]
fn numbers_that_no_plan_can_hold_are_refused() {
    let huge = "18446744073709551616";
    for statement in [
        format!("parallelism {huge}"),
        format!("checkpoint every {huge} records"),
        format!("on error transform failure retry {huge} end"),
    ] {
        assert_found(&in_process(&statement), "TG0003", "64 bits");
    }
    let hold = format!(
        "process p hold h keyed by k complete when count >= {huge} timeout 1h skip receive a store in h emit to b end"
    );
    assert_found(&hold, "TG0003", "64 bits");
    let schema = |modifier: &str| format!("schema s f: {modifier} end");
    assert_found(
        &schema(&format!("string length 1..{huge}")),
        "TG0003",
        "64 bits",
    );
    assert_found(
        &schema(&format!("string length {huge}..{huge}")),
        "TG0003",
        "64 bits",
    );
    let long = "1".repeat(30);
    for field in [
        format!("integer range 0..{long}"),
        format!("decimal range {long}..{long}"),
        format!("double range 0.{long}..1"),
    ] {
        assert_found(&schema(&field), "TG0003", "28 digits");
    }
    assert_found(
        &in_process(&format!("metrics histogram h buckets {long} end")),
        "TG0003",
        "28 digits",
    );
    assert_right(&in_process("checkpoint every 18446744073709551615 records"));
}

#[test]
fn durations_that_no_clock_can_reach_are_refused() {
    let past = MAX_DURATION_DAYS + 1;
    for duration in [
        format!("{past} days"),
        "99999999999999999999 seconds".to_owned(),
        "18446744073709551615w".to_owned(),
        format!("{}h", past * 24),
    ] {
        for statement in [
            format!("deduplicate by k window {duration}"),
            format!("checkpoint every {duration}"),
            format!("when slow strategy block alert after {duration}"),
        ] {
            assert_found(&in_process(&statement), "TG0016", "`duration`");
        }
    }
    assert_right(&in_process(&format!(
        "deduplicate by k window {MAX_DURATION_DAYS} days"
    )));
}

#[test]
fn each_trigger_of_a_checkpoint_counts() {
    for trigger in [
        "999ms",
        "0 seconds",
        "5 minutes or 999 milliseconds",
        "0 records",
        "5 minutes or 0 records",
        "100 records or 500ms",
    ] {
        assert_found(
            &in_process(&format!("checkpoint every {trigger}")),
            "TG0604",
            "1 second or 1 record",
        );
    }
    // Of two triggers the first to come counts, whichever is written first.
    let plan = |trigger: &str| {
        let flows = check(&in_process(&format!("checkpoint every {trigger}")));
        flows.plan.unwrap().processes["p"].checkpoint.clone()
    };
    assert_eq!(plan("10 minutes or 5 minutes").every_ms, Some(300_000));
    assert_eq!(plan("70 records or 7 records").records, Some(7));
    assert_eq!(plan("7 records").every_ms, None);
}

#[test]
fn a_record_is_in_as_many_windows_as_the_limit_and_a_retry_has_as_many_attempts() {
    let window = |every: u64| {
        let size = MAX_WINDOWS * 10;
        in_process(&format!(
            "window sliding {size}ms every {every}ms key by k aggregate count() as n end"
        ))
    };
    assert_found(&window(9), "TG0016", "`windows`");
    assert_right(&window(10));
    assert_found(
        &in_process(
            "window sliding 7 days every 1 millisecond key by k aggregate count() as n end",
        ),
        "TG0016",
        "`windows`",
    );
    let retry = |attempts: u64| {
        in_process(&format!(
            "on error lookup failure retry {attempts} times then dead_letter d end"
        ))
    };
    assert_found(&retry(MAX_ATTEMPTS + 1), "TG0016", "`attempts`");
    assert_found(&retry(u64::MAX), "TG0016", "`attempts`");
    assert_right(&retry(MAX_ATTEMPTS));
}

/// Each of these expressions takes hundreds of bytes when it is checked.
#[test]
fn short_expressions_count_by_the_memory_that_they_take() {
    let steps = "transform using t ".repeat(200);
    let uses = format!("process p receive i {steps} emit to o end");
    for row in [
        "| (a == 1 && b == 2) => {\"x\": [1,2,3]} |\n",
        "| 1 => 1 |\n",
    ] {
        let table = format!("decision_table t | c => r |\n{} end ", row.repeat(4_000));
        assert_found(&(table + &uses), "TG0016", "`expansion`");
    }
}
