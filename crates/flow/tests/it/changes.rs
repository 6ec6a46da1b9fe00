//! A plan that replaces another is told which stored state it cannot read.

use std::collections::BTreeMap;

use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::plan::{FlowPlan, compare};

fn plan(statements: &str) -> FlowPlan {
    let text = format!(
        "transform t apply n = 1 end end
         process p time by ts late data to late receive a receive c {statements} emit to b end"
    );
    let flows = check_flows(&[&text], &Registered::default());
    flows
        .plan
        .unwrap_or_else(|| panic!("{text}\n{:?}", flows.diagnostics))
}

/// The codes and words of the changes that refuse a start.
fn refused(old: &str, new: &str) -> Vec<String> {
    let changes = compare(&plan(old), &plan(new), &BTreeMap::new());
    let refused = changes.into_iter().filter_map(|change| {
        let code = change.code?;
        Some(format!("{code} {} {}", change.id, change.text))
    });
    refused.collect()
}

#[test]
fn a_window_that_is_made_otherwise_needs_a_migration() {
    let window = |shape: &str, aggregates: &str| {
        format!("merge a, c window {shape} key by k aggregate {aggregates} end")
    };
    let usual = window("tumbling 1 hour", "count() as n sum(net) as total");
    assert_eq!(
        refused(
            &usual,
            &window("tumbling 2 hours", "count() as n sum(net) as total")
        ),
        [
            "TG0901 window/k/n,total was made by tumbling 3600000 ms: count() as n, sum(net) as total, \
             and is made by tumbling 7200000 ms: count() as n, sum(net) as total"
        ]
    );
    for other in [
        window(
            "sliding 1 hour every 10 minutes",
            "count() as n sum(net) as total",
        ),
        window("session gap 1 hour", "count() as n sum(net) as total"),
        window("tumbling 1 hour", "count() as n max(net) as total"),
        window("tumbling 1 hour", "count() as n sum(gross) as total"),
    ] {
        let found = refused(&usual, &other);
        assert!(
            found.len() == 1 && found[0].starts_with("TG0901 window/k/n,total"),
            "{other}: {found:?}"
        );
    }
    // The same hour in other words, another blank, and a later late record change nothing that is stored.
    for same in [
        window("tumbling 60 minutes", "count() as n sum( net ) as total"),
        window("tumbling 1 hour", "count() as n sum(net) as total")
            .replace("key by k", "key by k allowed lateness 5 minutes"),
    ] {
        assert_eq!(refused(&usual, &same), Vec::<String>::new(), "{same}");
    }
}

#[test]
fn a_join_of_another_type_needs_a_migration() {
    let join = |kind: &str| format!("join a with c on k within 1h {kind}");
    assert_eq!(
        refused(&join(""), &join("type left")),
        ["TG0901 join/a/c was made by inner, and is made by left"]
    );
    assert_eq!(
        refused(&join(""), &join("type inner")),
        Vec::<String>::new()
    );
    assert_eq!(
        refused(&join("type left"), &join("type left").replace("1h", "2h")),
        Vec::<String>::new()
    );
}
