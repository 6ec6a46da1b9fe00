//! No path of somebody's machine in what everybody gets.

use crate::tidy::Finding;
use crate::tidy::tree::Tree;

/// Top directories that exist, or differ, on one machine only. They are written apart here, or this
/// file would find itself.
const TOPS: [(&str, bool); 3] = [("root", true), ("home", false), ("work", false)];

/// Checks sources, documents and settings.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with(&["rs", "md", "toml", "yaml", "yml"]) {
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = machine_path(line) {
                let text = format!("`{found}` is a path of one machine");
                findings.push(Finding::new(path, index + 1, text));
            }
        }
    }
    findings
}

fn machine_path(line: &str) -> Option<&str> {
    for (top, counts_alone) in TOPS {
        for (at, _) in line.match_indices(&format!("/{top}")) {
            let before = line[..at].chars().next_back();
            // Part of a longer path or of an address.
            if before.is_some_and(|c| c.is_alphanumeric() || "/._-}*)>".contains(c)) {
                continue;
            }
            let after = &line[at + 1 + top.len()..];
            let goes_on = after.starts_with('/')
                && after[1..].starts_with(|c: char| c.is_alphanumeric() || "._$<{".contains(c));
            let ends = !after.starts_with(|c: char| c.is_alphanumeric() || "-_".contains(c));
            if goes_on || (counts_alone && ends) {
                let rest = line[at..].find(|c: char| c.is_whitespace() || "\"'`)".contains(c));
                return Some(&line[at..rest.map_or(line.len(), |end| at + end)]);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_are_found() {
        let (root, home) = (["", "root"].join("/"), ["", "home", "ann", "x"].join("/"));
        let text = format!("fine\nlet a = \"{root}\";\nsee {home} there\n");
        let found = check(&Tree::of(&[("a.rs", &text)]));
        assert_eq!(
            found.iter().map(|finding| finding.line).collect::<Vec<_>>(),
            [2, 3]
        );
        assert!(found[1].text.contains(&home));
    }

    #[test]
    fn routes_and_longer_words_are_not_paths_of_a_machine() {
        for line in [
            "/homework/x",
            "GET /work",
            "a/home/b",
            "/rooted",
            "https://x.org/home/a",
            "/work/",
        ] {
            assert_eq!(machine_path(line), None, "{line}");
        }
    }
}
