//! The suite itself.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

#[test]
fn q24_every_rule_is_a_test_on_every_store() {
    let this = std::env::current_exe().unwrap();
    let listed = Command::new(this)
        .args(["--list", "--include-ignored"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut rules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
    {
        let Some((store, rule)) = line
            .strip_prefix("stores::")
            .and_then(|l| l.split_once("::"))
        else {
            continue;
        };
        rules.entry(store).or_default().insert(rule);
    }
    let stores: Vec<&&str> = rules.keys().collect();
    assert_eq!(stores, [&"model", &"needs_postgres", &"on_sqlite_file"]);
    let on_model = &rules["model"];
    assert!(on_model.len() >= 63, "{}", on_model.len());
    assert!(rules.values().all(|on_store| on_store == on_model));
}
