//! The product's own code: what is below `crates/*/src` without tests, comments and blank lines.

use crate::tidy::rust;
use crate::tidy::tree::Tree;

/// A file of the product: its path, and its lines of code with their numbers.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) path: &'a str,
    /// Counted from 1; the code without comments and the blanks around it.
    pub(crate) lines: Vec<(usize, String)>,
}

/// Every file of the product. Tests, conformance suites and what only tests use do not count.
pub(crate) fn sources(tree: &Tree) -> Vec<Source<'_>> {
    tree.with(&["rs"])
        .filter(|(path, _)| is_product(path))
        .map(|(path, text)| Source {
            path,
            lines: code(text),
        })
        .collect()
}

/// Lines of code of the product.
pub(crate) fn count(sources: &[Source<'_>]) -> usize {
    sources.iter().map(|source| source.lines.len()).sum()
}

fn is_product(path: &str) -> bool {
    const FOR_TESTS: [&str; 3] = ["tests", "conformance", "interleavings"];
    let parts: Vec<&str> = path.split('/').collect();
    let ["crates", package, "src", rest @ ..] = parts.as_slice() else {
        return false;
    };
    *package != "testkit"
        && rest
            .iter()
            .all(|part| !FOR_TESTS.contains(&part.trim_end_matches(".rs")))
}

fn code(text: &str) -> Vec<(usize, String)> {
    let mut code = Vec::new();
    // The texts as they are: two lines that differ in a string are not equal.
    let mut written = text.lines();
    let mut is_test_next = false;
    for (index, line) in rust::lines(text).iter().enumerate() {
        let whole = written.next().unwrap_or_default().trim();
        let bare = line.code.trim();
        if bare.is_empty() {
            continue;
        }
        if is_test_next && bare.starts_with("mod ") && bare.ends_with('{') {
            // Tests stand last.
            code.pop();
            break;
        }
        is_test_next = bare == "#[cfg(test)]";
        let shown = if line.comment.is_empty() { whole } else { bare };
        code.push((index + 1, shown.to_owned()));
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_are_not_the_product() {
        let text =
            "//! Doc.\n\nuse a::b;\nfn f() { g(\"//\"); } // why\n\n#[cfg(test)]\nmod tests {\n}\n";
        let tree = Tree::of(&[
            ("crates/log/src/a.rs", text),
            ("crates/log/src/a/tests.rs", "fn t() {}\n"),
            ("crates/log/src/conformance/b.rs", "fn t() {}\n"),
            ("crates/testkit/src/a.rs", "fn t() {}\n"),
            ("crates/log/tests/it/a.rs", "fn t() {}\n"),
            ("xtask/src/a.rs", "fn t() {}\n"),
        ]);
        let sources = sources(&tree);
        assert_eq!(sources.len(), 1);
        let lines: Vec<usize> = sources[0].lines.iter().map(|(line, _)| *line).collect();
        assert_eq!((lines, count(&sources)), (vec![3, 4], 2));
    }
}
