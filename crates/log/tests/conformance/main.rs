//! One suite of rules on every log that there is.
//!
//! [`TABLE`] is made of the lists from which each module made its tests, so an implementation that
//! leaves out a rule cannot be in it.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod embedded;
#[cfg(feature = "kafka")]
mod kafka;
mod local;
mod lossy;
mod model;
#[cfg(feature = "kafka")]
#[path = "../kafka/proxy.rs"]
#[expect(
    clippy::disallowed_methods,
    reason = "a line to a broker is threads and sockets"
)]
mod proxy;
mod restarts;
mod simulation;
mod work;

/// Every implementation, with the rules that are tests of it.
const TABLE: &[(&str, &[&str])] = &[
    ("model", model::RULES),
    ("embedded, simulated disk", embedded::simulated::RULES),
    ("embedded, directory", embedded::directory::RULES),
    #[cfg(feature = "kafka")]
    ("Kafka", kafka::needs_kafka::RULES),
];

#[test]
fn every_rule_is_a_test_of_every_log() {
    let rules = TABLE[0].1;
    let width = rules.iter().map(|rule| rule.len()).max().unwrap();
    let names: Vec<&str> = TABLE.iter().map(|(name, _)| *name).collect();
    println!("{:width$}  {}", "rule", names.join("  "));
    for rule in rules {
        let marks = TABLE.iter().map(|(name, tested)| {
            assert!(tested.contains(rule), "{name} leaves out `{rule}`");
            format!("{:^1$}", "x", name.len())
        });
        println!("{rule:width$}  {}", marks.collect::<Vec<_>>().join("  "));
    }
    println!("{} rules on {} logs, no hole", rules.len(), names.len());
    assert!(TABLE.iter().all(|(_, tested)| tested.len() == rules.len()));
}
