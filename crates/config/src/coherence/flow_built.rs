//! Keys of flows that are read and that a stage does nothing with yet.

use super::View;
use crate::findings::Findings;
use crate::value::{ValueEntry, ValueLocation};

/// Sections by name, their keys that nothing reads, and what happens instead. No key stands for all of them.
const NOT_BUILT: [(&str, &[&str], &str); 6] = [
    (
        "streams",
        &["cluster", "format"],
        "records are JSON on the cluster `default`",
    ),
    (
        "lookups",
        &[
            "url",
            "query",
            "timeout",
            "on-missing",
            "cache",
            "breaker",
            "fallback",
            "default",
        ],
        "a stage asks files alone",
    ),
    ("circuit-breakers", &[], "a stage asks files alone"),
    (
        "checkpoints",
        &["bucket", "mode", "timeout", "min-pause"],
        "each checkpoint holds everything, in a directory",
    ),
    ("state-backends", &[], "state is kept in memory"),
    (
        "resources",
        &["delivery", "state-backend", "poison"],
        "each epoch is committed once, and state is kept in memory",
    ),
];

pub(super) fn check(root: &View<'_>, findings: &mut Findings<'_>) {
    for (section, keys, instead) in NOT_BUILT {
        let Some(map) = root.at(&[section]) else {
            continue;
        };
        for view in map.sections() {
            let names = view.branch.keys().map(String::as_str);
            let unread = names.filter(|name| keys.is_empty() || keys.contains(name));
            for name in unread {
                if let Some(given) = view.entry(name).and_then(given) {
                    let message =
                        format!("is read, and this version does nothing with it yet: {instead}");
                    findings.warning(findings.at(&given.spot, &view.path.name(name), message));
                }
            }
        }
    }
}

/// The value, or the first one in it, that stands in the file.
fn given(entry: &ValueEntry) -> Option<&ValueEntry> {
    match entry.as_branch() {
        Some(branch) => branch.values().find_map(given),
        None => Some(entry).filter(|value| value.spot != ValueLocation::Default),
    }
}
