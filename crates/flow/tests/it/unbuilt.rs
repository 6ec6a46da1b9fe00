//! Statements that the runtime does nothing with yet are warned about, where a configuration is there to run them.

use tidegate_config::{Inputs, load};
use tidegate_flow::Diagnostic;
use tidegate_flow::check::{Bindings, Registered, check_bindings, check_flows};

/// The findings about a process and its bindings, with the text at each place.
fn found(statements: &str, sections: &str) -> Vec<(&'static str, String, String)> {
    let text = format!("process p receive a {statements} emit to b end");
    let flows = check_flows(&[&text], &Registered::default());
    assert!(flows.plan.is_some(), "{:?}", flows.diagnostics);
    let yaml = format!("streams: {{ a: {{}}, b: {{}}, p_dlq: {{}} }}\n{sections}\n");
    let loaded = load(&Inputs::of_text("tidegate.yaml", &yaml));
    assert!(loaded.problems.is_empty(), "{}", loaded.problems);
    let found = check_bindings(&flows, &Bindings::from_config(&loaded.config));
    let place =
        |found: &Diagnostic| text[found.span.start as usize..found.span.end as usize].to_owned();
    let found = found
        .into_iter()
        .map(|one| (one.code, place(&one), one.message));
    found.collect()
}

#[test]
fn each_unbuilt_statement_gets_a_warning_at_its_place() {
    for (statements, sections, place, why) in [
        (
            "checkpoint every 5 minutes",
            "",
            "checkpoint every 5 minutes",
            "a stage does nothing with `checkpoint every` yet: `checkpoints` does not say where they are kept",
        ),
        (
            "when slow strategy sample 0.1",
            "",
            "sample 0.1",
            "a stage does nothing with `when slow strategy` yet: the input waits",
        ),
        (
            "when slow strategy block alert after 5m",
            "",
            "5m",
            "a stage does nothing with `alert after` yet: nobody is told",
        ),
        (
            "on error lookup failure retry 3 delay 1s end",
            "",
            "1s",
            "a stage does nothing with `the wait of a retry` yet: the attempts follow each other at once",
        ),
        (
            "state uses rates end",
            "state-backends: { rates: {} }",
            "rates",
            "a stage does nothing with `uses` yet: it is kept like local state, and no backend is asked",
        ),
    ] {
        let found = found(statements, sections);
        let expect = ("TG0710", place.to_owned(), why.to_owned());
        assert_eq!(found, [expect], "{statements}");
    }
    for statements in [
        "",
        "when slow strategy block",
        "on error lookup failure retry 3 end",
        "state local n keyed by k type counter ttl 1h cleanup background end",
    ] {
        let found = found(statements, "");
        assert!(found.is_empty(), "{statements}: {found:?}");
    }
}

#[test]
fn a_checkpoint_is_not_wanted_before_the_pause_after_the_last_one_is_over() {
    let sections = "checkpoints: { slow: { min-pause: 10m }, default: { min-pause: 7s } }";
    for (statement, code) in [
        ("checkpoint every 5 minutes to slow", "TG0604"),
        ("checkpoint every 5 minutes or 20 minutes to slow", "TG0604"),
        ("checkpoint every 10 minutes to slow", ""),
        ("checkpoint every 100 records to slow", ""),
        ("checkpoint every 5 seconds", "TG0604"),
        ("checkpoint every 7 seconds", ""),
    ] {
        let codes: Vec<&str> = found(statement, sections).iter().map(|one| one.0).collect();
        assert_eq!(codes.concat(), code, "{statement}");
    }
}
