//! A name of a type that leaves its file names one thing in the whole product.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::product::Source;

/// Each type that has the name of another one.
pub(crate) fn check(sources: &[Source<'_>]) -> Vec<Finding> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for source in sources {
        for (line, code) in &source.lines {
            if let Some(name) = visible_type(code) {
                places.entry(name).or_default().push((source.path, *line));
            }
        }
    }
    let mut findings = Vec::new();
    for (name, places) in places {
        for (path, line) in places.iter().skip(1) {
            let (first, at) = places[0];
            let text = format!("a type `{name}` stands at {first}:{at} already");
            findings.push(Finding::new(path, *line, text));
        }
    }
    findings
}

/// The name of a type that other files can name.
fn visible_type(code: &str) -> Option<&str> {
    let rest = code.strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(inside) => inside.split_once(')')?.1,
        None => rest,
    };
    let (kind, rest) = rest.trim_start().split_once(' ')?;
    if !["struct", "enum", "trait", "union", "type"].contains(&kind) {
        return None;
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::product::sources;
    use crate::tidy::tree::Tree;

    #[test]
    fn two_types_of_one_name_are_found_and_private_ones_are_not() {
        let tree = Tree::of(&[
            ("crates/a/src/a.rs", "pub struct State;\nstruct Step;\n"),
            (
                "crates/b/src/b.rs",
                "pub(crate) enum State<T> {}\npub(super) struct Step(u8);\n",
            ),
            ("crates/b/src/c.rs", "pub fn state() {}\nenum State {}\n"),
        ]);
        let text = "a type `State` stands at crates/a/src/a.rs:1 already";
        let expect = [Finding::new("crates/b/src/b.rs", 1, text)];
        assert_eq!(check(&sources(&tree)), expect);
    }
}
