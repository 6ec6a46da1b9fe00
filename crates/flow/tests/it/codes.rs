//! Each code has a row, a file that gets it and nothing else, and its words as text and JSON.

use std::collections::BTreeMap;

use tidegate_config::{Color, ConfigSource, Inputs, Severity, load};
use tidegate_flow::Diagnostic;
use tidegate_flow::check::{
    Bindings, Registered, RegisteredTransform, check_bindings, check_flows, problem_code,
};
use tidegate_flow::diagnostic::{CODES, problems};
use tidegate_flow::plan::compare;

use crate::{assert_golden, names, read};

/// Codes that need the configuration, and have their tests where that is read.
const WITH_CONFIGURATION: [&str; 9] = [
    "TG0701", "TG0702", "TG0703", "TG0704", "TG0705", "TG0706", "TG0707", "TG0708", "TG0710",
];
/// Codes that need the plan before.
const WITH_OLD_PLAN: [&str; 4] = ["TG0709", "TG0901", "TG0902", "TG0903"];

fn registered() -> Registered {
    let mut registered = Registered::default();
    registered.transforms.insert(
        "registered_twice".to_owned(),
        RegisteredTransform::default(),
    );
    registered
}

pub(crate) fn shown(name: &str, text: &str, diagnostics: &[Diagnostic]) -> String {
    shown_in(&[(name, text)], diagnostics)
}

fn shown_in(texts: &[(&str, &str)], diagnostics: &[Diagnostic]) -> String {
    let texts = texts.iter().map(|(name, text)| ConfigSource {
        name: (*name).to_owned(),
        text: (*text).to_owned(),
    });
    let texts: Vec<ConfigSource> = texts.collect();
    let (errors, warnings) = problems(diagnostics, &texts);
    let mut shown = String::new();
    for (severity, list) in [(Severity::Problem, errors), (Severity::Warning, warnings)] {
        if !list.is_empty() {
            shown += &format!("{}\n", list.render_as(severity, Color::Never));
        }
    }
    let json = tidegate_flow::diagnostic::shown(diagnostics, &texts);
    shown + &format!("{}\n", serde_json::to_string_pretty(&json).unwrap())
}

#[test]
fn r25_each_code_has_a_row_in_order_a_file_and_its_words() {
    let codes: Vec<&str> = CODES.iter().map(|row| row.code).collect();
    assert!(codes.is_sorted());
    assert_eq!(codes.len(), 83);
    let is_example = |name: &String| name.ends_with(".flow") && !name.contains(".old.");
    let files: Vec<String> = names("codes").into_iter().filter(is_example).collect();
    let expected: Vec<String> = codes.iter().map(|code| format!("{code}.flow")).collect();
    assert_eq!(files, expected);
    for row in CODES {
        for text in [row.text, row.cause, row.example, row.repair] {
            assert!(!text.is_empty(), "{}", row.code);
        }
    }
}

#[test]
fn r25_each_file_gets_its_code_and_nothing_else() {
    let mut wrong = Vec::new();
    for row in CODES
        .iter()
        .filter(|row| !WITH_CONFIGURATION.contains(&row.code) && !WITH_OLD_PLAN.contains(&row.code))
    {
        let flows = check_flows(&[row.example], &registered());
        let found: Vec<&str> = flows
            .diagnostics
            .iter()
            .map(|diagnostic| diagnostic.code)
            .collect();
        let shown = shown(
            &format!("{}.flow", row.code),
            row.example,
            &flows.diagnostics,
        );
        if found != [row.code] {
            wrong.push(format!("{}: {found:?}\n{shown}", row.code));
            continue;
        }
        assert_golden(&format!("tests/codes/{}.txt", row.code), &shown);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn r25_flows_with_a_configuration_get_the_codes_of_bindings() {
    for code in WITH_CONFIGURATION {
        let (flow, yaml) = (
            read(&format!("codes/{code}.flow")),
            read(&format!("codes/{code}.yaml")),
        );
        let flows = check_flows(&[&flow], &Registered::default());
        assert!(flows.plan.is_some(), "{code}: {:?}", flows.diagnostics);
        let loaded = load(&Inputs::of_text("tidegate.yaml", &yaml));
        let found = check_bindings(&flows, &Bindings::from_config(&loaded.config));
        let mut codes: Vec<&str> = found.iter().map(|found| found.code).collect();
        codes.extend(loaded.problems.iter().map(problem_code));
        assert_eq!(codes, [code], "{found:?} {}", loaded.problems);
        let text = match found.is_empty() {
            true => {
                let json = serde_json::to_string_pretty(&loaded.problems).unwrap();
                format!("{}\n{json}\n", loaded.problems.render(Color::Never))
            }
            false => {
                let name = format!("{code}.flow");
                shown_in(&[(&name, &flow), ("tidegate.yaml", &yaml)], &found)
            }
        };
        assert_golden(&format!("tests/codes/{code}.txt"), &text);
    }
}

#[test]
fn r25_two_plans_get_the_codes_of_state() {
    for code in WITH_OLD_PLAN {
        let new = check_flows(
            &[&read(&format!("codes/{code}.flow"))],
            &Registered::default(),
        )
        .plan
        .unwrap();
        let mut partitions = BTreeMap::new();
        let old = if code == "TG0709" {
            partitions.insert("a".to_owned(), (12, 24));
            new.clone()
        } else {
            let text = read(&format!("codes/{code}.old.flow"));
            check_flows(&[&text], &Registered::default()).plan.unwrap()
        };
        let changes = compare(&old, &new, &partitions);
        let refused: Vec<_> = changes
            .iter()
            .filter(|change| change.code.is_some())
            .collect();
        assert_eq!(
            refused
                .iter()
                .filter_map(|change| change.code)
                .collect::<Vec<_>>(),
            [code]
        );
        let json = serde_json::to_string_pretty(&refused).unwrap();
        let text: String = refused.iter().map(|change| format!("{change}\n")).collect();
        assert_golden(
            &format!("tests/codes/{code}.txt"),
            &format!("{text}{json}\n"),
        );
    }
}
