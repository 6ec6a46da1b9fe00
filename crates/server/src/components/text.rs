//! The ledger in the text format of Prometheus.

use std::fmt::Write;

use tidegate_core::books::{ComponentAccount, Ledger};

/// Where the events of each component are.
const EVENTS: &str = "tidegate_events";
/// What each component took on.
const ACCEPTED: &str = "tidegate_accepted_total";
/// What arrived.
const DELIVERED: &str = "tidegate_delivered_total";
/// What is gone, by reason.
const LOST: &str = "tidegate_lost_total";

/// Writes the families of the ledger. A component that lost nothing has no line of `lost`.
pub(crate) fn render(ledger: &Ledger) -> String {
    let mut text = String::new();
    family(
        &mut text,
        ACCEPTED,
        "counter",
        "Events a component ever took on.",
        ledger,
        |c| vec![(Vec::new(), c.account.accepted)],
    );
    family(
        &mut text,
        DELIVERED,
        "counter",
        "Events that arrived.",
        ledger,
        |c| vec![(Vec::new(), c.account.delivered)],
    );
    family(
        &mut text,
        EVENTS,
        "gauge",
        "Events by the place they are in.",
        ledger,
        |c| {
            c.account
                .places()
                .into_iter()
                .map(|(place, n)| (vec![("place", place)], n))
                .collect()
        },
    );
    family(
        &mut text,
        LOST,
        "counter",
        "Events that are gone, by reason.",
        ledger,
        |c| {
            c.account
                .lost
                .reasons()
                .map(|(reason, n)| (vec![("reason", reason)], n))
                .collect()
        },
    );
    text
}

/// The labels of a line, beside its component, and its value.
type Line<'a> = (Vec<(&'static str, &'a str)>, i64);

fn family(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    ledger: &Ledger,
    lines: impl Fn(&ComponentAccount) -> Vec<Line<'_>>,
) {
    text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    for component in &ledger.components {
        for (labels, value) in lines(component) {
            let mut all = format!("component=\"{}\"", escaped(&component.name));
            for (label, label_value) in labels {
                // Writing to a string does not fail.
                write!(all, ",{label}=\"{}\"", escaped(label_value)).ok();
            }
            text.push_str(&format!("{name}{{{all}}} {value}\n"));
        }
    }
    text.push('\n');
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        assert_eq!(escaped("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}
