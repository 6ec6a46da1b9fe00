//! `using` takes the kind of thing that its statement needs, wherever that was declared.

use tidegate_flow::check::{Registered, RegisteredTransform, check_flows};
use tidegate_flow::value::ObjectType;

const DECLARED: &str = "schema a_schema f: string end
lookup a_lookup key f tier: string end
transform a_transform apply x = 1 end end
decision_table a_table | f => r | | * => true | end
";

fn registered() -> Registered {
    let mut registered = Registered::default();
    let transform = RegisteredTransform::default();
    registered
        .transforms
        .insert("rust_transform".to_owned(), transform);
    registered.rules.insert("rust_rule".to_owned());
    let lookup = ObjectType::open();
    registered.lookups.insert("rust_lookup".to_owned(), lookup);
    registered
}

#[test]
fn each_using_takes_its_kinds_and_no_other() {
    let names = [
        "a_schema",
        "a_lookup",
        "a_transform",
        "a_table",
        "rust_transform",
        "rust_rule",
        "rust_lookup",
        "p",
        "nothing",
    ];
    let hold = "hold h keyed by f complete when count >= 2 timeout 1h skip";
    let (mut shown, mut wrong) = (String::new(), Vec::new());
    for (statements, takes) in [
        (
            "receive i transform using NAME emit to b".to_owned(),
            vec!["a_transform", "a_table", "rust_transform"],
        ),
        (
            "receive i enrich using NAME on f emit to b".to_owned(),
            vec!["a_lookup", "rust_lookup"],
        ),
        (
            "receive i route using NAME \"x\" to b otherwise to c".to_owned(),
            vec!["a_table", "rust_rule"],
        ),
        (
            format!("{hold} receive i store in h aggregate using NAME emit to b"),
            vec!["a_transform", "rust_transform"],
        ),
        (
            "receive i window tumbling 1h key by f aggregate using NAME emit to b".to_owned(),
            vec!["a_transform", "rust_transform"],
        ),
        (
            format!(
                "{} receive i store in h emit to b",
                hold.replace("when count >= 2", "using NAME")
            ),
            vec!["a_table", "rust_rule"],
        ),
    ] {
        for name in names {
            let text = format!(
                "{DECLARED}process p {} end",
                statements.replace("NAME", name)
            );
            let flows = check_flows(&[&text], &registered());
            let errors = flows.diagnostics.iter().filter(|found| found.is_error());
            let codes: Vec<&str> = errors.map(|found| found.code).collect();
            let is_boolean_for_text = takes.contains(&name) && codes == ["TG0308"];
            let expect: &[&str] = match name {
                name if takes.contains(&name) => &[],
                "nothing" => &["TG0102"],
                _ => &["TG0107"],
            };
            if codes != expect && !is_boolean_for_text {
                wrong.push(format!("{statements}: {name}: {codes:?}, not {expect:?}"));
            }
            for found in flows.diagnostics.iter().filter(|one| one.code == "TG0107") {
                shown += &format!("{}\n", found.message);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        shown.contains("`rust_rule` is a rule, and a transform is needed"),
        "{shown}"
    );
}

#[test]
fn a_field_is_told_apart_also_where_the_record_may_have_others() {
    let text = "process p receive i transform kind = \"x\" route using kind \"x\" to b end";
    let flows = check_flows(&[text], &Registered::default());
    assert_eq!(flows.diagnostics[0].code, "TG0107");
    assert_eq!(
        flows.diagnostics[0].help.as_deref(),
        Some("write `route by kind` to route by a field")
    );
    let text = "process p receive i transform kind = \"x\" transform using kind emit to b end";
    let flows = check_flows(&[text], &Registered::default());
    assert_eq!(flows.diagnostics[0].code, "TG0107");
    assert!(
        !flows.diagnostics[0]
            .help
            .as_deref()
            .unwrap_or("")
            .contains("route"),
        "{:?}",
        flows.diagnostics[0]
    );
}
