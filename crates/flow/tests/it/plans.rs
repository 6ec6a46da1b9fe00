//! Plans of the examples, and what does not change them.

use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::syntax::{parse, print};

use crate::{assert_golden, names, read};

pub(crate) fn examples() -> Vec<(String, String)> {
    let names = names("../../examples/flows")
        .into_iter()
        .filter(|name| name.ends_with(".flow"));
    names
        .map(|name| (name.clone(), read(&format!("../../examples/flows/{name}"))))
        .collect()
}

#[test]
fn r25_the_six_processes_have_golden_plans() {
    let examples = examples();
    assert_eq!(examples.len(), 6);
    for (name, text) in examples {
        let flows = check_flows(&[&text], &Registered::default());
        let errors: Vec<_> = flows
            .diagnostics
            .iter()
            .filter(|found| found.is_error())
            .collect();
        assert!(
            errors.is_empty(),
            "{name}: {}",
            crate::codes::shown(&name, &text, &flows.diagnostics)
        );
        let json = serde_json::to_string_pretty(&flows.plan.unwrap().to_json()).unwrap();
        assert_golden(
            &format!("tests/plans/{}", name.replace(".flow", ".json")),
            &format!("{json}\n"),
        );
    }
}

#[test]
fn the_examples_are_one_namespace() {
    let examples = examples();
    let texts: Vec<&str> = examples.iter().map(|(_, text)| text.as_str()).collect();
    let flows = check_flows(&texts, &Registered::default());
    assert_eq!(flows.plan.unwrap().processes.len(), 6);
}

#[test]
fn a_plan_is_read_back_from_its_json() {
    for (_, text) in examples() {
        let plan = check_flows(&[&text], &Registered::default()).plan.unwrap();
        let again: tidegate_flow::plan::FlowPlan = serde_json::from_value(plan.to_json()).unwrap();
        assert_eq!(again, plan);
        assert_eq!(again.fingerprint(), plan.fingerprint());
    }
}

#[test]
fn white_space_and_comments_do_not_change_the_fingerprint() {
    for (name, text) in examples() {
        let plan = check_flows(&[&text], &Registered::default()).plan.unwrap();
        let (tree, _) = parse(&text, 0);
        let words: Vec<&str> = tree
            .tokens()
            .iter()
            .map(|token| &text[token.start as usize..token.end as usize])
            .collect();
        for other in [words.join(" "), words.join(" /* */\n"), print(&tree)] {
            let again = check_flows(&[&other], &Registered::default());
            let again = again
                .plan
                .unwrap_or_else(|| panic!("{name}: {:?}\n{other}", again.diagnostics));
            assert_eq!(again.fingerprint(), plan.fingerprint(), "{name}\n{other}");
        }
        let changed = text.replacen("emit to ", "emit to x", 1).replacen(
            "otherwise to ",
            "otherwise to x",
            1,
        );
        let changed = check_flows(&[&changed], &Registered::default())
            .plan
            .unwrap();
        assert_ne!(changed.fingerprint(), plan.fingerprint(), "{name}");
    }
}

#[test]
fn a_moved_or_added_step_renames_no_state() {
    let ids = |text: &str| {
        let flows = check_flows(&[text], &Registered::default());
        let plan = flows
            .plan
            .unwrap_or_else(|| panic!("{:?}", flows.diagnostics));
        let mut ids: Vec<String> = plan.processes["p"]
            .state
            .iter()
            .map(|state| state.id.clone())
            .collect();
        ids.sort();
        ids
    };
    let one = "process p receive a receive c join a with c on id within 1h deduplicate by id window 1h \
               emit to b state local n keyed by id type counter end end";
    let other = "process p state local n keyed by id type counter end receive c receive a filter true \
                 join a with c on id within 1h filter id != \"\" transform x = 1 deduplicate by id window 1h emit to b end";
    let other = other.replace("receive a filter true", "receive a");
    assert_eq!(ids(one), ["deduplicate/id", "join/a/c", "state/n"]);
    assert_eq!(ids(&other), ids(one));
}
