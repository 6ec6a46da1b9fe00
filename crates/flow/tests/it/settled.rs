//! Questions that the language settles: ambiguities, recovery, declarations of the document it was written for.

use tidegate_config::{Color, ConfigSource};
use tidegate_flow::check::{CheckedFlows, Registered, RegisteredTransform, check_flows};
use tidegate_flow::diagnostic::problems;
use tidegate_flow::plan::{
    CompletePlan, FailureKind, LeavePlan, OperatorPlan, OtherwisePlan, ProcessPlan, SlowPlan,
};

fn check(text: &str) -> CheckedFlows {
    let mut registered = Registered::default();
    for name in ["f", "assemble"] {
        registered
            .transforms
            .insert(name.to_owned(), RegisteredTransform::default());
    }
    registered.rules.insert("is_complete".to_owned());
    check_flows(&[text], &registered)
}

fn codes(text: &str) -> Vec<&'static str> {
    check(text)
        .diagnostics
        .iter()
        .map(|found| found.code)
        .collect()
}

/// The only process of a text, which must be right.
fn process(text: &str) -> ProcessPlan {
    let flows = check(text);
    let plan = flows
        .plan
        .unwrap_or_else(|| panic!("{text}: {:?}", flows.diagnostics));
    plan.processes.into_values().next().unwrap()
}

fn in_process(statements: &str) -> String {
    format!("process p\nreceive a\n{statements}\nemit to b\nend\n")
}

#[test]
fn settled_01_receive_has_three_forms() {
    for (text, alias, stream) in [
        ("from x", "x", "x"),
        ("x", "x", "x"),
        ("a from x", "a", "x"),
    ] {
        let plan = process(&format!("process p receive {text} emit to b end"));
        assert_eq!(
            (
                plan.sources[0].alias.as_str(),
                plan.sources[0].stream.as_str()
            ),
            (alias, stream)
        );
    }
}

#[test]
fn settled_02_until_must_name_an_alias_and_the_near_one_is_suggested() {
    let text = "process p receive auths receive captures\nawait auths\n    until capture arrives\n        matching on \
                authorization_code\n    timeout 7 days\n        emit to orphan_authorizations\nemit to b end";
    let flows = check(text);
    assert_eq!(flows.diagnostics.len(), 1);
    assert_eq!(
        flows.diagnostics[0].help.as_deref(),
        Some("did you mean `captures`?")
    );
}

#[test]
fn settled_03_holds_receives_and_blocks_stand_in_any_order() {
    let plan = process(
        "process p emit to early metrics counter n end hold h keyed by k complete when count >= 2 timeout 1h \
         emit to late receive a store in h checkpoint every 5 minutes emit to b end",
    );
    assert_eq!(plan.steps.len(), 3);
}

#[test]
fn settled_04_the_end_of_a_block_is_optional() {
    for blocks in [
        "metrics counter n",
        "metrics counter n end",
        "on error rule failure dead_letter d",
    ] {
        let plan = process(&format!("process p receive a emit to b {blocks} end"));
        assert_eq!(plan.sources.len(), 1, "{blocks}");
    }
    let two = "process p receive a emit to b state uses x end\ntransform t apply y = 1 end end";
    assert!(check(two).plan.is_some());
    // Here the `end` is the one of the block: a statement follows it.
    assert!(
        check("process p receive a metrics counter n end transform t = 1 emit to b end")
            .plan
            .is_some()
    );
}

#[test]
fn settled_05_buckets_record_checkpoints_and_complete_on_timeout_are_grammar() {
    let plan = process(
        "process p hold h keyed by k complete on timeout timeout 1h receive a store in h emit to b \
         checkpoint every 100000 records metrics histogram m buckets 10, 100, 1000, 10000 end end",
    );
    assert_eq!(plan.checkpoint.records, Some(100_000));
}

#[test]
fn settled_06_07_17_retry_counts_all_attempts_and_the_next_action_follows() {
    let plan = process(&in_process(
        "on error lookup failure retry 3 lookup failure dead_letter d end",
    ));
    let handler = plan
        .handlers
        .iter()
        .find(|handler| handler.failure == FailureKind::Lookup)
        .unwrap();
    assert_eq!(handler.retry.unwrap().attempts, 3);
    assert_eq!(handler.leave, LeavePlan::DeadLetter("d".to_owned()));
}

#[test]
fn settled_08_sample_keeps_the_fraction() {
    let plan = process(&in_process(
        "when slow\n    strategy sample 0.1\n    alert after 5 minutes",
    ));
    assert_eq!(
        plan.slow,
        SlowPlan::Sample {
            rate: "0.1".to_owned(),
            alert_ms: Some(300_000)
        }
    );
}

#[test]
fn settled_09_ttl_has_three_forms_and_two_clocks() {
    let plan = process(&in_process(
        "time by ts state local a keyed by k type map ttl 1h local b keyed by k type map ttl sliding 1h by \
         processing_time local c keyed by k type map ttl absolute 1h end",
    ));
    let ttls: Vec<(&str, bool)> = plan
        .state
        .iter()
        .filter_map(|state| state.ttl.as_ref())
        .map(|ttl| (ttl.since.as_str(), ttl.is_event_time))
        .collect();
    assert_eq!(
        ttls,
        [("write", true), ("access", false), ("creation", true)]
    );
}

#[test]
fn settled_10_aggregate_using_takes_a_transform() {
    let hold = "hold h keyed by k complete when count >= 3 timeout 1h emit to late";
    let plan = process(&format!(
        "process p {hold} receive a store in h aggregate using assemble emit to b end"
    ));
    assert!(
        matches!(&plan.steps[1].operator, OperatorPlan::Aggregate { using } if using.name == "assemble")
    );
}

#[test]
fn settled_11_an_emit_to_a_route_target_sets_options_only() {
    let plan = process(
        "process p receive a route by kind \"x\" to xs emit to xs key by id fanout broadcast end",
    );
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.sinks[0].fanout.as_deref(), Some("broadcast"));
    assert!(matches!(
        &plan.steps[0].operator,
        OperatorPlan::Route {
            otherwise: OtherwisePlan::Fail,
            ..
        }
    ));
}

#[test]
fn settled_12_hold_in_is_short_for_store_in() {
    let long = process(
        "process p receive a store in h hold h keyed by k complete when count >= 2 timeout 1h skip emit to b end",
    );
    let short = process(
        "process p receive a hold a in h keyed by k complete when count >= 2 timeout 1h skip emit to b end",
    );
    assert_eq!(short.sources[0].hold, long.sources[0].hold);
    assert_eq!(short.state, long.state);
}

#[test]
fn settled_13_14_holds_complete_by_count_marker_rule_timeout_or_never() {
    let hold = |complete: &str, marker: &str| {
        let text = format!(
            "process p hold h keyed by k {complete} receive a store in h receive m match from h on k {marker} emit to b end"
        );
        let OperatorPlan::Hold { complete, .. } = process(&text).steps[0].operator.clone() else {
            panic!("{text}")
        };
        complete
    };
    assert_eq!(
        hold("complete when count >= 3 timeout 1h emit to late", ""),
        CompletePlan::Count(3)
    );
    assert_eq!(
        hold(
            "complete when marker received timeout 1h emit to late",
            "as marker"
        ),
        CompletePlan::Marker
    );
    assert!(matches!(
        hold("complete using is_complete timeout 1h emit to late", ""),
        CompletePlan::Rule(_)
    ));
    assert!(matches!(
        hold("complete when using is_complete timeout 1h skip", ""),
        CompletePlan::Rule(_)
    ));
    assert_eq!(
        hold("complete on timeout timeout 1h", ""),
        CompletePlan::Timeout
    );
    assert_eq!(
        hold("timeout 24 hours emit to late", ""),
        CompletePlan::Never
    );
}

#[test]
fn settled_15_an_emit_after_complete_on_timeout_is_a_statement() {
    let plan = process(
        "process p hold h keyed by k complete on timeout timeout 1h emit to b receive a store in h end",
    );
    assert!(matches!(&plan.steps[1].operator, OperatorPlan::Emit { stream } if stream == "b"));
}

#[test]
fn settled_16_18_checkpoints_and_dead_letters_have_default_names() {
    let plan = process(&in_process(""));
    assert_eq!(
        (plan.checkpoint.to.as_str(), plan.checkpoint.every_ms),
        ("default", Some(300_000))
    );
    assert!(
        plan.handlers
            .iter()
            .all(|handler| handler.leave == LeavePlan::DeadLetter("p_dlq".to_owned()))
    );
}

#[test]
fn settled_19_a_filter_right_after_a_receive_is_its_clause() {
    let plan = process(
        "process p receive a filter x > 0 receive c filter y > 0 merge a, c filter z > 0 emit to b end",
    );
    assert!(plan.sources.iter().all(|source| source.filter.is_some()));
    assert_eq!(plan.steps.len(), 3);
}

#[test]
fn words_before_a_colon_are_fields() {
    let text = "schema s key: string optional: boolean time: timestamp default: integer to: string end: date end";
    assert_eq!(check(text).plan.unwrap().schemas["s"].fields.len(), 6);
}

#[test]
fn a_dead_letter_needs_a_name_and_one_is_suggested() {
    let flows = check(
        "process loans\nreceive a\nemit to b\non error\n    rule failure dead_letter\nend\nend\n",
    );
    assert_eq!(flows.diagnostics[0].code, "TG0010");
    assert_eq!(
        flows.diagnostics[0].help.as_deref(),
        Some("name the stream, for instance `dead_letter loans_dlq`")
    );
}

#[test]
fn an_alias_that_is_a_key_field_is_refused() {
    let text = "process p receive a receive k join a with k on k within 1h emit to b end";
    assert_eq!(codes(text), ["TG0101"]);
}

#[test]
fn words_of_the_grammar_are_names_elsewhere() {
    let text = "schema s key: string type: string count: integer reason: string window: integer mode: string end\n\
                process p receive time from window schema s filter mode == \"open\"\n\
                transform count = count + 1 reason = type emit to key end";
    assert!(check(text).plan.is_some(), "{:?}", check(text).diagnostics);
}

#[test]
fn declarations_of_the_document_compile_or_get_the_code_of_a_table() {
    for (statements, expect) in [
        (
            "state\nlocal daily_counts keyed by account_id\n    type counter\n    ttl 24 hours\n    cleanup on_checkpoint\nend",
            vec![],
        ),
        ("on error\n    lookup failure retry 3\nend", vec![]),
        ("checkpoint every 5 minutes", vec![]),
        ("checkpoint every 100000 records", vec![]),
        ("when slow\n    strategy block", vec![]),
        ("when slow\n    strategy drop", vec!["TG0607"]),
        (
            "when slow\n    strategy sample 0.1    // Keep 10%\n    alert after 5 minutes  // Alert",
            vec!["TG0607"],
        ),
        ("transform using f", vec![]),
        (
            "enrichment = lookup(customer_id, timeout=500ms)",
            vec!["TG0806"],
        ),
        (
            "transform enrichment = lookup(customer_id, timeout=500ms)",
            vec!["TG0806"],
        ),
        (
            "metrics\n    counter approved_count\n    counter declined_count\n    histogram amount_distribution\n        buckets 10, 100, 1000, 10000",
            vec![],
        ),
    ] {
        assert_eq!(codes(&in_process(statements)), expect, "{statements}");
    }
    let hold = "hold pending_orders\n    keyed by order_id\n    timeout 24 hours\n        emit to incomplete_orders";
    let with =
        |hold: &str| format!("process p {hold}\nreceive a store in pending_orders\nemit to b end");
    assert_eq!(codes(&with(hold)), ["TG0508"]);
    for complete in [
        "complete when count >= 3",
        "complete on timeout",
        "complete using is_complete",
    ] {
        let statement = hold.replace("    timeout", &format!("    {complete}\n    timeout"));
        let statement = if complete.ends_with("timeout") {
            statement.replace("emit to incomplete_orders", "")
        } else {
            statement
        };
        assert_eq!(codes(&with(&statement)), Vec::<&str>::new(), "{statement}");
    }
    let marked = hold.replace(
        "    timeout",
        "    complete when marker received\n    timeout",
    );
    let marker = "receive m match from pending_orders on order_id as marker";
    let text = with(&marked).replace("emit to b end", &format!("{marker}\nemit to b end"));
    assert_eq!(codes(&text), Vec::<&str>::new(), "{text}");
    let hint = check(&in_process(
        "enrichment = lookup(customer_id, timeout=500ms)",
    ))
    .diagnostics[0]
        .help
        .clone();
    assert!(hint.unwrap().contains("enrich using"));
}

const TEN: &str = r#"schema order
    id: string
    amount: decimal(12, 2
    placed: timestmp
end

process first
    parallelsm 4
    receive orders schema ordr
    filter amount > "five"
    dedup by id
    deduplicate by id window 5 parsecs
    transform total = amount +
    emit too big
    emit to b key by id key by id
end

process second
    receive a
    emit to b
    on error
        lookup failure retry 0
    end
"#;

#[test]
fn ten_mistakes_are_ten_diagnostics_at_their_places() {
    let flows = check(TEN);
    let line = |at: u32| 1 + TEN[..at as usize].matches('\n').count();
    let column = |at: u32| 1 + at as usize - TEN[..at as usize].rfind('\n').map_or(0, |at| at + 1);
    let found: Vec<(&str, usize, usize)> = flows
        .diagnostics
        .iter()
        .map(|found| (found.code, line(found.span.start), column(found.span.start)))
        .collect();
    let expect = [
        ("TG0010", 4, 5),
        ("TG0010", 4, 13),
        ("TG0010", 8, 5),
        ("TG0102", 9, 27),
        ("TG0010", 11, 5),
        ("TG0003", 12, 32),
        ("TG0012", 13, 30),
        ("TG0010", 14, 10),
        ("TG0013", 15, 25),
        ("TG0602", 22, 30),
    ];
    assert_eq!(found, expect);
    // All of them are shown at once, each with its line, a caret and advice.
    let text = ConfigSource {
        name: "ten.flow".to_owned(),
        text: TEN.to_owned(),
    };
    let (errors, warnings) = problems(&flows.diagnostics, &[text]);
    assert_eq!((errors.len(), warnings.len()), (10, 0));
    let shown = errors.render(Color::Never);
    for (problem, (code, line, column)) in errors.iter().zip(expect) {
        assert_eq!((problem.line, problem.column), (line, column));
        let hint = problem.hint.as_deref().unwrap_or_default();
        assert!(!hint.is_empty(), "{code} at {line} has no advice");
        for part in [
            format!("{code}: {}", problem.message),
            format!(" --> ten.flow:{line}:{column}\n"),
            format!("{line} | {}\n", TEN.lines().nth(line - 1).unwrap()),
            format!("\n  = help: {hint}\n"),
        ] {
            assert!(shown.contains(part.trim()), "{part}\n{shown}");
        }
    }
    for near in ["timestamp", "parallelism", "order", "to"] {
        assert!(
            shown.contains(&format!("did you mean `{near}`?")),
            "{shown}"
        );
    }
}

#[test]
fn the_schema_says_nothing_about_a_field_that_was_set_since() {
    let schema = "schema s tier: string values (\"gold\", \"standard\") end\n";
    let route = "route by tier \"silver\" to silvers otherwise to others";
    let text = |step: &str| format!("{schema}process p receive a schema s {step} {route} end");
    assert_eq!(codes(&text("")), ["TG0308"]);
    assert_eq!(
        codes(&text("transform tier = \"silver\"")),
        Vec::<&str>::new()
    );
}

#[test]
fn an_entry_of_state_needs_a_state_block() {
    assert_eq!(
        codes(&in_process("transform state.seen[\"x\"] = 1")),
        ["TG0105"]
    );
    let plan = process(&in_process("transform state.seen = 1"));
    assert!(
        matches!(&plan.steps[0].operator, OperatorPlan::Assign { assignments } if format!("{:?}", assignments[0].target) == "Field(\"state.seen\")")
    );
}

#[test]
fn a_hold_may_be_filtered_before_it_is_aggregated() {
    let text = "process p receive a store in h hold h keyed by k complete when count >= 3 timeout 1h emit to late \
                filter count > 2 aggregate using assemble emit to b end";
    assert_eq!(codes(text), Vec::<&str>::new());
    assert_eq!(process(text).steps.len(), 4);
}

/// Without one of its tokens, an example has at most four findings, and nearly always one.
#[test]
fn one_mistake_is_one_diagnostic() {
    let (mut files, mut single) = (0, 0);
    for (name, text) in crate::plans::examples() {
        let (tree, _) = tidegate_flow::syntax::parse(&text, 0);
        for token in tree.tokens().iter().filter(|token| token.end > token.start) {
            let range = token.start as usize..token.end as usize;
            let mut broken = text.clone();
            broken.replace_range(range.clone(), "");
            let flows = check_flows(&[&broken], &Registered::default());
            let errors = flows.diagnostics.iter().filter(|found| found.is_error());
            let errors = errors.count();
            assert!(errors <= 4, "{name} without {}", &text[range]);
            files += 1;
            single += usize::from(errors <= 1);
        }
    }
    assert!(single * 100 >= files * 90, "{single} of {files}");
}
