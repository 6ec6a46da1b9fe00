//! The numbers of the promises that bindings keep, and the rules that prove them on every log.
//!
//! On a log in real time delays are scaled down. Nothing else differs between the three.
//!
//! | numbers | scaled on the embedded log and on Kafka |
//! |---|---|
//! | C09, C04 | a poll interval of 50 ms instead of 10 minutes: 12,000 times |
//! | C12 | one hour without records in half a second: 7,200 times |
//! | C20, C21 | tiers of 40, 60 and 80 ms instead of 10 s, 1 and 5 minutes: 250 to 3,750 times |
//! | C23 | a tier of 300 ms instead of 10 s: 33 times |
//! | C40, C41, A07 | a breaker that is open for 200 ms instead of 1 minute: 300 times |
//! | a System failure | probed after 100 ms instead of 1 s: 10 times |
//! | C43 | an outage of one second instead of one hour: 3,600 times |
//!
//! On the model C20 and C43 are played unscaled as well, in virtual time.

use crate::suite::{embedded, model, needs_kafka};

/// Numbers without a rule here are those of replay and of the admin interface.
const NUMBERS: [&str; 35] = [
    "a05", "a07", "c01", "c02", "c03", "c04", "c05", "c06", "c07", "c08", "c09", "c10", "c11",
    "c12", "c20", "c21", "c22", "c23", "c24", "c25", "c26", "c27", "c28", "c29", "c30", "c31",
    "c32", "c33", "c40", "c41", "c42", "c43", "c44", "c46", "c47",
];

/// The numbers at the beginning of a rule's name.
fn numbers(rule: &str) -> impl Iterator<Item = &str> {
    let is_number = |word: &&str| {
        let (letter, digits) = word.split_at(1);
        "ac".contains(letter) && digits.len() == 2 && digits.parse::<u32>().is_ok()
    };
    rule.split('_')
        .filter(|word| !word.is_empty())
        .take_while(is_number)
}

#[test]
fn every_number_has_a_rule_on_every_log() {
    for (log, rules) in [
        ("model", model::RULES),
        ("embedded", embedded::RULES),
        ("kafka", needs_kafka::RULES),
    ] {
        let proven: Vec<&str> = rules.iter().flat_map(|rule| numbers(rule)).collect();
        let holes: Vec<&&str> = NUMBERS
            .iter()
            .filter(|number| !proven.contains(number))
            .collect();
        assert!(holes.is_empty(), "{log}: {holes:?}");
    }
}
