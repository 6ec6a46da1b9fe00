//! Every error code has a page for operators, and every page a code.
//!
//! Source that brings a code into the world marks it with a comment `error-page: <code>`; the page
//! is `docs/errors/<code>.md`, listed in the README beside it.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::rust;
use crate::tidy::tree::Tree;

const PAGES: &str = "docs/errors/";
const INDEX: &str = "docs/errors/README.md";
const MARK: &str = "error-page: ";

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
}
