//! The ledger in the text format of Prometheus.

use tidegate_core::books::{Account, Ledger};

/// Where the events of each component are.
const EVENTS: &str = "tidegate_events";
/// The events that each component took on.
const ACCEPTED: &str = "tidegate_accepted_total";
/// The events that arrived.
const DELIVERED: &str = "tidegate_delivered_total";
/// The events that are gone, by reason.
const LOST: &str = "tidegate_lost_total";

/// Writes the families of the ledger. A component that lost nothing has no line of `lost`.
pub(crate) fn render(ledger: &Ledger) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, lines: fn(&Account) -> Vec<Line<'_>>| {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for component in &ledger.components {
            let of = escaped(&component.name);
            for (label, value) in lines(&component.account) {
                let label = label.map(|(name, value)| format!(",{name}=\"{}\"", escaped(value)));
                let label = label.unwrap_or_default();
                text.push_str(&format!("{name}{{component=\"{of}\"{label}}} {value}\n"));
            }
        }
        text.push('\n');
    };
    let took_on = "Events a component ever took on.";
    family(ACCEPTED, "counter", took_on, |a| vec![(None, a.accepted)]);
    let arrived = "Events that arrived.";
    family(DELIVERED, "counter", arrived, |a| vec![(None, a.delivered)]);
    family(EVENTS, "gauge", "Events by the place they are in.", |a| {
        let places = a.places().into_iter();
        places
            .map(|(place, n)| (Some(("place", place)), n))
            .collect()
    });
    family(LOST, "counter", "Events that are gone, by reason.", |a| {
        let reasons = a.lost.reasons();
        reasons
            .map(|(reason, n)| (Some(("reason", reason)), n))
            .collect()
    });
    text
}

/// The label of a line, beside its component, and its value.
type Line<'a> = (Option<(&'static str, &'a str)>, i64);

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
