//! Names that say nothing, files that nobody can proofread, work put off without a condition, and enums that
//! hide a forgotten variant from the compiler.

use crate::tidy::Finding;
use crate::tidy::rust;
use crate::tidy::tree::Tree;

/// A module of this name collects whatever has no home.
pub(crate) const EMPTY_NAMES: [&str; 6] = ["common", "util", "utils", "types", "shared", "helpers"];
const TOO_LONG: usize = 1_000;
const LONG: usize = 600;
const PUT_OFF: [&str; 2] = ["TODO", "FIXME"];

/// Checks every Rust file, and the comments of settings files.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in tree.with(&["rs"]) {
        check_path(path, &mut findings);
        let lines = source.lines().count();
        if lines > TOO_LONG {
            let text = format!("has {lines} lines, at most {TOO_LONG} are allowed");
            findings.push(Finding::new(path, TOO_LONG + 1, text));
        }
        for (index, line) in rust::lines(source).iter().enumerate() {
            if let Some(name) = inline_module(&line.code)
                && EMPTY_NAMES.contains(&name)
            {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    format!("module `{name}` says nothing"),
                ));
            }
            if line.code.contains("#[non_exhaustive]") {
                let text = "`#[non_exhaustive]` hides a forgotten variant from the compiler";
                findings.push(Finding::new(path, index + 1, text));
            }
            findings.extend(put_off(path, index + 1, &line.comment));
        }
    }
    for (path, text) in tree.with(&["toml", "yaml", "yml"]) {
        for (index, line) in text.lines().enumerate() {
            let comment = line.split_once('#').map_or("", |(_, comment)| comment);
            findings.extend(put_off(path, index + 1, comment));
        }
    }
    findings
}

/// Files that are allowed but long.
pub(crate) fn long_files(tree: &Tree) -> Vec<Finding> {
    let counted = tree
        .with(&["rs"])
        .map(|(path, source)| (path, source.lines().count()));
    counted
        .filter(|(_, lines)| (LONG + 1..=TOO_LONG).contains(lines))
        .map(|(path, lines)| Finding::new(path, 1, format!("has {lines} lines")))
        .collect()
}

fn check_path(path: &str, findings: &mut Vec<Finding>) {
    let mut parts: Vec<&str> = path.split('/').collect();
    let file = parts.pop().unwrap_or_default();
    if file == "mod.rs" {
        findings.push(Finding::new(
            path,
            1,
            "use `name.rs` beside `name/` instead of `mod.rs`",
        ));
    }
    parts.extend(file.strip_suffix(".rs"));
    for part in parts.into_iter().filter(|part| EMPTY_NAMES.contains(part)) {
        findings.push(Finding::new(
            path,
            1,
            format!("the name `{part}` says nothing"),
        ));
    }
}

/// The name in `mod name {`; a `mod name;` is judged by its file.
fn inline_module(code: &str) -> Option<&str> {
    let (before, after) = code.split_once("mod ")?;
    let is_declaration = before.trim().is_empty() || before.trim_start().starts_with("pub");
    let name = after.trim_end().strip_suffix('{')?.trim();
    is_declaration.then_some(name)
}

/// Work may be put off only until something named: `TODO(when the broker answers)`.
fn put_off(path: &str, line: usize, comment: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for word in PUT_OFF {
        for (at, _) in comment.match_indices(word) {
            let before = comment[..at].chars().next_back();
            let after = &comment[at + word.len()..];
            // Part of a longer word, or the word itself being talked about.
            let is_other = |c: char| c.is_alphanumeric() || c == '_' || c == '`';
            if before.is_some_and(is_other) || after.starts_with(is_other) {
                continue;
            }
            let condition = after
                .strip_prefix('(')
                .and_then(|rest| rest.split_once(')'));
            if condition.is_none_or(|(condition, _)| condition.trim().is_empty()) {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("{word} without (its condition)"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn empty_names_are_found_wherever_they_stand() {
        let found = messages(&[
            ("crates/core/src/spill/mod.rs", ""),
            ("crates/core/src/util.rs", ""),
            ("crates/log/src/a.rs", "\npub(crate) mod helpers {\n}\n"),
            ("crates/shared/src/lib.rs", ""),
        ]);
        assert_eq!(
            found,
            [
                "crates/core/src/spill/mod.rs:1: use `name.rs` beside `name/` instead of `mod.rs`",
                "crates/core/src/util.rs:1: the name `util` says nothing",
                "crates/log/src/a.rs:2: module `helpers` says nothing",
                "crates/shared/src/lib.rs:1: the name `shared` says nothing",
            ]
        );
    }

    #[test]
    fn long_files_are_refused_or_noted() {
        let lines = |count: usize| "x\n".repeat(count);
        let (short, long, too_long) = (lines(600), lines(601), lines(1_001));
        let files = [
            ("a.rs", short.as_str()),
            ("b.rs", &long),
            ("c.rs", &too_long),
        ];
        assert_eq!(
            messages(&files),
            ["c.rs:1001: has 1001 lines, at most 1000 are allowed"]
        );
        let notes = long_files(&Tree::of(&files));
        assert_eq!(notes, [Finding::new("b.rs", 1, "has 601 lines")]);
    }

    #[test]
    fn work_is_put_off_only_with_a_condition() {
        let source = "// TODO later\n// TODO(when 2.0 is out) drop it\nlet x = \"FIXME\"; // FIXME()\n\
                      // `TODO` is a word\n";
        let toml = "a = 1 # FIXME: b\n";
        assert_eq!(
            messages(&[("a.rs", source), ("b.toml", toml)]),
            [
                "a.rs:1: TODO without (its condition)",
                "a.rs:3: FIXME without (its condition)",
                "b.toml:1: FIXME without (its condition)",
            ]
        );
    }

    #[test]
    fn enums_that_hide_a_forgotten_variant_are_refused() {
        let source = "#[non_exhaustive]\npub enum Kind {}\n// #[non_exhaustive] in a comment\n";
        assert_eq!(
            messages(&[("a.rs", source)]),
            ["a.rs:1: `#[non_exhaustive]` hides a forgotten variant from the compiler"]
        );
    }
}
