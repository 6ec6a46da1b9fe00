//! Every error code is explained to operators, and every page has a code.
//!
//! Source that brings a code into the world marks it with a comment `error-page: <code>`; the page
//! is `docs/errors/<code>.md`, listed in the README beside it. Every code that the command line
//! reports has a row in that README, with a page or without.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::rust;
use crate::tidy::tree::Tree;

const PAGES: &str = "docs/errors/";
const INDEX: &str = "docs/errors/README.md";
const MARK: &str = "error-page: ";
/// Where reports are made, and how.
const REPORTS: &str = "crates/cli/src/";
const MAKERS: [&str; 2] = ["Report::new(", "Report::of("];

/// Checks marks, pages and the list of pages against each other.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut codes: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for (path, source) in tree.with(&["rs"]) {
        for (index, line) in rust::lines(source).iter().enumerate() {
            if let Some(code) = line.comment.trim().strip_prefix(MARK) {
                codes
                    .entry(code.trim().to_owned())
                    .or_insert((path, index + 1));
            }
        }
    }
    for (code, (path, line)) in &codes {
        let page = format!("{PAGES}{code}.md");
        if tree.text(&page).is_none() {
            findings.push(Finding::new(
                path,
                *line,
                format!("error `{code}` has no page `{page}`"),
            ));
        }
    }
    let index = tree.text(INDEX).unwrap_or_default();
    for (path, _) in tree.below(PAGES) {
        let Some(code) = path
            .strip_prefix(PAGES)
            .and_then(|name| name.strip_suffix(".md"))
        else {
            continue;
        };
        if path == INDEX {
            continue;
        }
        if !codes.contains_key(code) {
            findings.push(Finding::new(
                path,
                1,
                format!("no source is marked `{MARK}{code}`"),
            ));
        }
        let forms = [
            format!("({code}.md)"),
            format!("(./{code}.md)"),
            format!("]: {code}.md"),
        ];
        if !forms.iter().any(|link| index.contains(link.as_str())) {
            findings.push(Finding::new(path, 1, format!("is not linked from {INDEX}")));
        }
    }
    findings.extend(reports_without_row(tree, index));
    findings
}

/// Codes of reports that the table of the README does not have.
fn reports_without_row(tree: &Tree, index: &str) -> Vec<Finding> {
    let rows: Vec<&str> = index
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix('|')?.split('|').next())
        .collect();
    let mut findings = Vec::new();
    let sources = tree
        .below(REPORTS)
        .filter(|(path, _)| path.ends_with(".rs"));
    for (path, source) in sources {
        for (at, maker) in MAKERS.iter().flat_map(|maker| source.match_indices(maker)) {
            let line = source[..at].matches('\n').count() + 1;
            let argument = source[at + maker.len()..].trim_start().strip_prefix('"');
            let Some((code, _)) = argument.and_then(|rest| rest.split_once('"')) else {
                let text = "the code of a report must be written out, so that it can be found";
                findings.push(Finding::new(path, line, text));
                continue;
            };
            if !rows.iter().any(|row| row.contains(&format!("`{code}`"))) {
                let text = format!("error `{code}` has no row in {INDEX}");
                findings.push(Finding::new(path, line, text));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_pages_and_list_must_agree() {
        let tree = Tree::of(&[
            (
                "crates/core/src/a.rs",
                "// error-page: spill.full\nconst A: u8 = 1;\n// error-page: spill.gone\n",
            ),
            ("docs/errors/README.md", "- [spill.full](spill.full.md)\n"),
            ("docs/errors/spill.full.md", ""),
            ("docs/errors/spill.old.md", ""),
        ]);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/core/src/a.rs:3: error `spill.gone` has no page `docs/errors/spill.gone.md`",
                "docs/errors/spill.old.md:1: no source is marked `error-page: spill.old`",
                "docs/errors/spill.old.md:1: is not linked from docs/errors/README.md",
            ]
        );
    }

    #[test]
    fn every_report_has_a_row() {
        let tree = Tree::of(&[
            (
                "crates/cli/src/a.rs",
                "let a = Report::new(\"known\", x);\nlet b = Report::of(\n    \"unknown\",\n    x);\nlet c = \
                 Report::new(code, x);\n",
            ),
            ("crates/core/src/a.rs", "Report::new(\"elsewhere\", x)"),
            (
                "docs/errors/README.md",
                "| code | what |\n|---|---|\n| `known` | not `unknown` |\n",
            ),
        ]);
        let mut found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        found.sort();
        assert_eq!(
            found,
            [
                "crates/cli/src/a.rs:2: error `unknown` has no row in docs/errors/README.md",
                "crates/cli/src/a.rs:5: the code of a report must be written out, so that it can be found",
            ]
        );
    }
}
