//! Every relative link in a document leads somewhere, down to the heading.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Finding;
use crate::tidy::tree::Tree;

/// Checks the links of every Markdown file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let anchors: BTreeMap<&str, BTreeSet<String>> = tree
        .with(&["md"])
        .map(|(path, text)| (path, anchors(text)))
        .collect();
    let mut findings = Vec::new();
    for (path, text) in tree.with(&["md"]) {
        for (line, target) in links(text) {
            if is_foreign(&target) {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let Some(file) = resolve(path, file) else {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{target}` leaves the repository"),
                ));
                continue;
            };
            if !tree.holds(&file) {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{target}` leads nowhere"),
                ));
            } else if !anchor.is_empty()
                && anchors
                    .get(file.as_str())
                    .is_some_and(|known| !known.contains(anchor))
            {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{target}`: no such heading"),
                ));
            }
        }
    }
    findings.extend(file_names(tree));
    findings
}

/// Names of Rust files in the map of the code that are the end of no path.
fn file_names(tree: &Tree) -> Vec<Finding> {
    const MAP: &str = "ARCHITECTURE.md";
    let mut findings = Vec::new();
    for (index, line) in tree.text(MAP).unwrap_or_default().lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2) {
            let is_one = name.ends_with(".rs") && !name.contains(['<', '*']);
            let end = format!("/{name}");
            if is_one && !tree.with(&["rs"]).any(|(path, _)| path.ends_with(&end)) {
                findings.push(Finding::new(
                    MAP,
                    index + 1,
                    format!("there is no `{name}`"),
                ));
            }
        }
    }
    findings
}

/// Addresses of the web, and links that rustdoc resolves when a README is crate documentation.
fn is_foreign(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:") || target.contains("::")
}

/// The path that `target`, written in the file `from`, means.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => vec![],
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Lines outside code blocks, numbered from 1, without code spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => lines.push((index + 1, line.to_owned())),
            (Some(_), _) => {}
        }
    }
    lines
}

fn without_code(line: &str) -> String {
    // Every second piece between backticks is code.
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of `[text](target)` and `[name]: target`.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(&line);
        for (at, _) in line.match_indices("](") {
            let inner = &line[at + 2..];
            let target = inner.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target.trim_matches(['<', '>']).to_owned()));
        }
        if let Some((_, target)) = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
        {
            let target = target.split_whitespace().next().unwrap_or_default();
            found.push((number, target.to_owned()));
        }
    }
    found
}

/// The names that can stand behind `#`: the headings as GitHub names them, and explicit ids.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        for mark in ["id=\"", "name=\""] {
            for (at, _) in line.match_indices(mark) {
                anchors.extend(line[at + mark.len()..].split('"').next().map(str::to_owned));
            }
        }
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let slug = slug(title.trim().trim_end_matches('#').trim());
        // A heading that occurs again gets a number.
        let mut name = slug.clone();
        let mut again = 0;
        while anchors.contains(&name) {
            again += 1;
            name = format!("{slug}-{again}");
        }
        anchors.insert(name);
    }
    anchors
}

fn slug(title: &str) -> String {
    title
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_names_files_that_exist() {
        let map = "Look in `b.rs`, `src/b.rs`, `a/*.rs`, `c.rs`.";
        let tree = Tree::of(&[("ARCHITECTURE.md", map), ("crates/a/src/b.rs", "")]);
        let missing = Finding::new("ARCHITECTURE.md", 1, "there is no `c.rs`");
        assert_eq!(check(&tree), [missing]);
    }

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_dead_link_is_found_with_its_line() {
        let found = messages(&[(
            "docs/a.md",
            "text\n\nsee [b](b.md) and [c](../c.md).\n[d]: ../../d.md\n",
        )]);
        assert_eq!(
            found,
            [
                "docs/a.md:3: `b.md` leads nowhere",
                "docs/a.md:3: `../c.md` leads nowhere",
                "docs/a.md:4: `../../d.md` leaves the repository",
            ]
        );
    }

    #[test]
    fn a_missing_heading_is_found() {
        let files = [
            (
                "a.md",
                "[x](b.md#what-is-safe) [y](b.md#gone) [z](#here)\n# Here\n",
            ),
            ("b.md", "## What is *safe*?\n```\n# Gone\n```\n"),
        ];
        assert_eq!(messages(&files), ["a.md:1: `b.md#gone`: no such heading"]);
    }

    #[test]
    fn code_addresses_and_directories_are_no_dead_links() {
        let text =
            "`[x](y.md)` [w](https://example.org/x) [r](crate::Thing) [d](docs/) [d](docs)\n";
        assert!(messages(&[("README.md", text), ("docs/a.md", "")]).is_empty());
    }

    #[test]
    fn a_repeated_heading_is_numbered() {
        assert!(anchors("# A b\n# A b\n").contains("a-b-1"));
    }
}
