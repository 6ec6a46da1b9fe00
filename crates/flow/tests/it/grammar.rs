//! Each rule of the grammar has a text, its tree and its printed form.

use tidegate_flow::check::{CheckedFlows, Registered, RegisteredTransform, check_flows};
use tidegate_flow::syntax::{MAX_STEPS_PER_BYTE, parse, print, published};
use tidegate_flow::value::ObjectType;

use crate::{assert_golden, names, read};

/// Names that the texts use and Rust would bring.
fn registered() -> Registered {
    let mut registered = Registered::default();
    for name in ["f", "g", "score"] {
        let transform = RegisteredTransform::default();
        registered.transforms.insert(name.to_owned(), transform);
    }
    for name in ["rule", "decide"] {
        registered.rules.insert(name.to_owned());
    }
    let lookup = ObjectType::open();
    registered.lookups.insert("rates".to_owned(), lookup);
    registered
}

#[test]
fn each_rule_has_a_golden_file() {
    let published = published();
    let rules: Vec<&str> = published
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(rules.len(), 45);
    let files = names("tests/grammar");
    for rule in rules {
        let name = format!("{rule}.flow");
        assert!(files.contains(&name), "tests/grammar has no {name}");
    }
}

#[test]
fn each_golden_text_has_its_tree_and_its_printed_form() {
    for name in names("tests/grammar")
        .iter()
        .filter(|name| name.ends_with(".flow"))
    {
        let text = read(&format!("tests/grammar/{name}"));
        let (tree, diagnostics) = parse(&text, 0);
        assert!(diagnostics.is_empty(), "{name}: {diagnostics:?}");
        let printed = print(&tree);
        let plan = match check_flows(&[&text], &registered()) {
            CheckedFlows {
                plan: Some(plan), ..
            } => serde_json::to_string_pretty(&plan.to_json()).unwrap(),
            flows => flows
                .diagnostics
                .iter()
                .filter(|found| found.is_error())
                .map(|found| format!("{}: {}\n", found.code, found.message))
                .collect(),
        };
        assert!(plan.starts_with('{'), "{name}: {plan}");
        let golden = format!("{}\n---\n{printed}\n---\n{plan}\n", tree.outline());
        assert_golden(
            &format!("tests/grammar/{}", name.replace(".flow", ".golden")),
            &golden,
        );
        assert_prints_the_same(&text, name);
    }
}

#[test]
fn the_examples_are_printed_as_they_stand() {
    for name in names("../../examples/flows")
        .iter()
        .filter(|name| name.ends_with(".flow"))
    {
        let text = read(&format!("../../examples/flows/{name}"));
        let (tree, diagnostics) = parse(&text, 0);
        assert!(diagnostics.is_empty(), "{name}: {diagnostics:?}");
        assert_eq!(print(&tree), text, "{name}");
    }
}

/// The printed text has the same tree, and is printed the same.
pub(crate) fn assert_prints_the_same(text: &str, name: &str) {
    let (tree, _) = parse(text, 0);
    let printed = print(&tree);
    let (again, diagnostics) = parse(&printed, 0);
    assert!(diagnostics.is_empty(), "{name}: {diagnostics:?}\n{printed}");
    assert_eq!(again.outline(), tree.outline(), "{name}\n{text}\n{printed}");
    assert_eq!(print(&again), printed, "{name}");
    assert!(
        tree.steps() <= MAX_STEPS_PER_BYTE * (text.len() as u64 + 1),
        "{name}: {}",
        tree.steps()
    );
}

#[test]
fn numbers_that_begin_with_a_dot_and_long_raw_texts_keep_their_meaning() {
    for expression in [
        "(a ? .5 : 1.0) > 0.25",
        "x in [.5, - .5]",
        r#"(s == r"""a \ ) "b" """)"#,
        "(s == b'''a '' ) b''')",
        r#"(s == """a \""" ) b""")"#,
        "(x.exists(y, .y == y))",
    ] {
        let text = format!("process p receive a filter {expression} emit to b end");
        assert!(parse(&text, 0).1.is_empty(), "{text}");
        assert_prints_the_same(&text, expression);
        let (tree, _) = parse(&text, 0);
        let before = check_flows(&[&text], &registered());
        let again = check_flows(&[&print(&tree)], &registered());
        assert_eq!(again.plan, before.plan, "{text}");
        let found = before.diagnostics.iter().chain(&again.diagnostics);
        let codes: Vec<&str> = found.map(|found| found.code).collect();
        assert!(!codes.contains(&"TG0012"), "{text}: {codes:?}");
    }
}
