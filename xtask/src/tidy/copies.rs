//! Code that stands in two places.

use std::collections::HashMap;

use crate::tidy::Finding;
use crate::tidy::product::Source;

/// Equal lines in a row that make a copy.
const LINES: usize = 10;
/// Copies that the tree may have.
const AT_MOST: usize = 10;
/// A model that judges a program must not share its code, so it may say the same again.
const MODEL: &str = "crates/flow/src/model/";

/// One finding for all of them, once there are too many.
pub(crate) fn check(sources: &[Source<'_>]) -> Vec<Finding> {
    let mut copies = copies(sources);
    copies.retain(|copy| !copy.file.starts_with(MODEL));
    if copies.len() <= AT_MOST {
        return Vec::new();
    }
    let mut findings = vec![Finding::new(
        "crates",
        1,
        format!(
            "{} pairs of places have {LINES} or more equal lines, at most {AT_MOST} may",
            copies.len()
        ),
    )];
    findings.extend(copies);
    findings
}

/// Pairs of places with equal code; imports do not count.
pub(crate) fn copies(sources: &[Source<'_>]) -> Vec<Finding> {
    let files: Vec<Vec<(usize, &str)>> = sources.iter().map(without_imports).collect();
    let text = |file: usize, line: usize| files.get(file).and_then(|lines| lines.get(line));
    let mut places: HashMap<Vec<&str>, Vec<(usize, usize)>> = HashMap::new();
    for (file, lines) in files.iter().enumerate() {
        for (start, window) in lines.windows(LINES).enumerate() {
            let key = window.iter().map(|(_, code)| *code).collect();
            places.entry(key).or_default().push((file, start));
        }
    }
    let mut found = Vec::new();
    for starts in places.values() {
        for (index, &one) in starts.iter().enumerate() {
            for &other in &starts[index + 1..] {
                // The run began further up, and was found there.
                let before = |(file, line): (usize, usize)| {
                    let line = line.checked_sub(1)?;
                    text(file, line).map(|(_, code)| *code)
                };
                if before(one).is_some() && before(one) == before(other) {
                    continue;
                }
                let equal = (0..)
                    .take_while(|step| {
                        let code = |(file, line): (usize, usize)| {
                            text(file, line + step).map(|(_, code)| *code)
                        };
                        code(one).is_some() && code(one) == code(other)
                    })
                    .count();
                let place = |(file, line): (usize, usize)| {
                    let number = text(file, line).map_or(0, |(number, _)| *number);
                    (sources[file].path, number)
                };
                let ((path, line), (again, at)) = (place(one), place(other));
                let said = format!("{equal} lines stand again at {again}:{at}");
                found.push(Finding::new(path, line, said));
            }
        }
    }
    found.sort();
    found
}

fn without_imports<'a>(source: &'a Source<'_>) -> Vec<(usize, &'a str)> {
    let mut is_import = false;
    let mut lines = Vec::new();
    for (number, code) in &source.lines {
        let code = code.as_str();
        is_import |= code.starts_with("use ") || code.starts_with("pub use ");
        if !is_import {
            lines.push((*number, code));
        }
        is_import &= !code.ends_with(';');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::product::sources;
    use crate::tidy::tree::Tree;

    #[test]
    fn a_run_of_equal_lines_is_one_pair() {
        let equal: String = (0..12).map(|n| format!("call({n});\n\n// {n}\n")).collect();
        let one = format!("use a::{{\n    b,\n}};\nfn one() {{\n{equal}}}\nstruct A;\n");
        let other = format!("fn other() {{\n{equal}}}\nstruct B;\n");
        let tree = Tree::of(&[("crates/a/src/a.rs", &one), ("crates/b/src/b.rs", &other)]);
        let found = copies(&sources(&tree));
        let text = "13 lines stand again at crates/b/src/b.rs:2";
        assert_eq!(found, [Finding::new("crates/a/src/a.rs", 5, text)]);
        assert_eq!(check(&sources(&tree)), []);
    }
}
