//! Names of topics and groups that a binding makes out of its own.

use super::View;
use crate::findings::Findings;
use crate::path::{KeyPath, PathStep};
use crate::value::ValueEntry;

/// The longest name of a topic or a group.
const NAME_LIMIT: usize = 249;

/// The binding's group has this name where it hands dead letters to their handler.
const DLT_GROUP: &str = "DLT";

pub(super) fn check(binding: &View<'_>, findings: &mut Findings<'_>) {
    let (Some(topic), Some(group)) = (binding.entry("topic"), binding.entry("group-id")) else {
        return;
    };
    let (Some(topic_name), Some(group_name)) = (topic.text(), group.text()) else {
        return;
    };
    has_name(binding, findings);
    let is_topic = fits(
        "a topic",
        topic_name,
        topic,
        &binding.path.name("topic"),
        findings,
    );
    let is_group = fits(
        "a group",
        group_name,
        group,
        &binding.path.name("group-id"),
        findings,
    );
    if is_topic {
        topics(binding, (topic_name, topic), findings);
    }
    if is_group {
        let tiers = tiers(binding).len();
        let all = (1..=tiers).map(|tier| format!("{group_name}.retry-{tier}"));
        for name in all.chain([format!("{group_name}.{DLT_GROUP}")]) {
            if !fits(
                "a group",
                &name,
                group,
                &binding.path.name("group-id"),
                findings,
            ) {
                return;
            }
        }
    }
}

/// The topic of each tier and that of the dead letters: names, each with a role of its own.
fn topics(binding: &View<'_>, (topic, entry): (&str, &ValueEntry), findings: &mut Findings<'_>) {
    let mut roles = vec![(topic.to_owned(), entry, binding.path.name("topic"))];
    let is_ordered = binding.text("ordering-mode") == Some("KEY_ORDERED");
    for (n, tier) in tiers(binding).iter().enumerate().filter(|_| !is_ordered) {
        let suffix = tier.as_branch().and_then(|tier| tier.get("topic-suffix"));
        if let Some((suffix, text)) = suffix.and_then(|entry| Some((entry, entry.text()?))) {
            let name = format!("{topic}.{}", text.replace("{n}", &(n + 1).to_string()));
            let path = binding.path.name("retry").name("tiers").index(n);
            roles.push((name, suffix, path.name("topic-suffix")));
        }
    }
    if let Some(dlt) = binding.at(&["dlt"]) {
        let given = dlt
            .entry("topic")
            .and_then(|entry| Some((entry, entry.text()?)));
        let suffix = || {
            dlt.entry("topic-suffix")
                .and_then(|entry| Some((entry, entry.text()?)))
        };
        let (name, found) = match (given, suffix()) {
            (Some((entry, name)), _) => (name.to_owned(), Some((entry, "topic"))),
            (None, Some((entry, suffix))) => {
                (format!("{topic}.{suffix}"), Some((entry, "topic-suffix")))
            }
            (None, None) => (String::new(), None),
        };
        roles.extend(found.map(|(entry, key)| (name, entry, dlt.path.name(key))));
    }
    for (n, (name, entry, path)) in roles.iter().enumerate().skip(1) {
        if !fits("a topic", name, entry, path, findings) {
            continue;
        }
        if let Some((_, _, twin)) = roles[..n].iter().find(|(other, _, _)| other == name) {
            let message = format!(
                "makes the topic `{name}`, which is that of `{twin}`: the topic, each tier and the dead \
                 letters are topics of their own"
            );
            findings.problem(findings.at(&entry.spot, path, message));
        }
    }
}

fn tiers<'a>(binding: &View<'a>) -> &'a [ValueEntry] {
    let retry = binding.at(&["retry"]);
    let tiers = retry.and_then(|retry| retry.entry("tiers"));
    tiers.map_or(&[][..], ValueEntry::as_list)
}

/// A binding is named in metrics and in the ids of its consumers.
fn has_name(binding: &View<'_>, findings: &mut Findings<'_>) {
    let Some(entry) = binding.entry("topic") else {
        return;
    };
    let Some(PathStep::Name(name)) = binding.path.steps().last() else {
        return;
    };
    if name.is_empty() || strange(name).is_some() {
        let message =
            format!("has the name `{name}`; letters, digits, `.`, `_` and `-` are allowed");
        findings.problem(findings.at(&entry.spot, &binding.path, message));
    }
}

/// Topics are directories and topics of a broker by their names.
pub(super) fn topics_have_names(topics: &View<'_>, findings: &mut Findings<'_>) {
    for (name, entry) in topics.branch {
        let is_none = matches!(name.as_str(), "" | "." | "..");
        if is_none || strange(name).is_some() || name.len() > NAME_LIMIT {
            // The path shows the name, unless a password is in it.
            let message = format!(
                "has a name that no topic can have: letters, digits, `.`, `_` and `-` are allowed, at most \
                 {NAME_LIMIT}"
            );
            findings.problem(findings.at(&entry.key_spot(), &topics.path.name(name), message));
        }
    }
}

fn strange(name: &str) -> Option<char> {
    let is_word = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.chars().find(|c| !is_word(c))
}

/// Whether something can be called that; reported at `entry` if not.
fn fits(
    what: &str,
    name: &str,
    entry: &ValueEntry,
    path: &KeyPath,
    findings: &mut Findings<'_>,
) -> bool {
    let message = match strange(name) {
        Some(found) => format!(
            "gives {what} the name `{name}`, which holds {found:?}; letters, digits, `.`, `_` and `-` are \
             allowed"
        ),
        None if name.is_empty() || (what == "a topic" && matches!(name, "." | "..")) => {
            format!("gives {what} the name `{name}`, which is none")
        }
        None if name.len() > NAME_LIMIT => format!(
            "gives {what} a name of {} bytes, and it may have at most {NAME_LIMIT}",
            name.len()
        ),
        None => return true,
    };
    findings.problem(findings.at(&entry.spot, path, message));
    false
}
