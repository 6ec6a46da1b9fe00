//! Every promise has a test that carries its number, and every such number is a promise.
//!
//! A promise is a line `- **B03** text` in `docs/promises.md`; its tests are named `b03_…`. Rules of
//! a conformance suite are plain functions until a macro makes tests of them. So functions in files
//! or directories named `conformance` count as tests.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::rust;
use crate::tidy::tree::Tree;

const PAGE: &str = "docs/promises.md";

/// Checks both directions.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else {
        return vec![Finding::new(
            PAGE,
            1,
            "is missing; it lists what Tidegate promises",
        )];
    };
    let mut findings = Vec::new();
    let mut promises: BTreeMap<String, usize> = BTreeMap::new();
    for (index, line) in page.lines().enumerate() {
        let Some(number) = promise(line) else {
            continue;
        };
        if promises.insert(number.to_lowercase(), index + 1).is_some() {
            findings.push(Finding::new(
                PAGE,
                index + 1,
                format!("{number} is promised twice"),
            ));
        }
    }
    let mut unproved = promises.clone();
    for (path, source) in tree.with(&["rs"]) {
        for (line, name) in tests(path, source) {
            let parts: Vec<&str> = name.split('_').collect();
            for part in &parts[..parts.len() - 1] {
                unproved.remove(*part);
            }
            let first = parts[0];
            if parts.len() > 1
                && looks_like_number(first, &promises)
                && !promises.contains_key(first)
            {
                let number = first.to_uppercase();
                let text = format!("`{name}`: {number} is not in {PAGE}");
                findings.push(Finding::new(path, line, text));
            }
        }
    }
    for (number, line) in unproved {
        let text = format!("{} has no test named `{number}_…`", number.to_uppercase());
        findings.push(Finding::new(PAGE, line, text));
    }
    findings
}

/// The number on a line `- **B03** text`.
fn promise(line: &str) -> Option<&str> {
    let (number, _) = line.trim_start().strip_prefix("- **")?.split_once("**")?;
    split(number).map(|_| number)
}

/// Letters and digits of a number.
fn split(number: &str) -> Option<(&str, &str)> {
    let letters = number.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &number[letters.len()..];
    let is_number = !letters.is_empty()
        && !digits.is_empty()
        && letters.chars().all(|c| c.is_ascii_alphabetic());
    is_number.then_some((letters, digits))
}

/// Whether a test that begins with `word` means a promise by it.
///
/// Words such as `utf8` or `u64` also are letters with digits. A number has the shape of some promise:
/// its letters, and as many digits. Or it is one or two letters and two digits without being the name
/// of a type.
fn looks_like_number(word: &str, promises: &BTreeMap<String, usize>) -> bool {
    let Some((letters, digits)) = split(word) else {
        return false;
    };
    let is_alike =
        |other: &String| split(other).is_some_and(|(l, d)| l == letters && d.len() == digits.len());
    let is_type = matches!(
        word,
        "u16" | "u32" | "u64" | "i16" | "i32" | "i64" | "f32" | "f64" | "x86"
    );
    promises.keys().any(is_alike) || (letters.len() <= 2 && digits.len() == 2 && !is_type)
}

/// Names of test functions with their lines.
fn tests(path: &str, source: &str) -> Vec<(usize, String)> {
    let in_suite = path.split(['/', '.']).any(|part| part == "conformance");
    let mut found = Vec::new();
    let mut is_test = false;
    for (index, line) in rust::lines(source).iter().enumerate() {
        let code = line.code.trim();
        if code.starts_with("#[") {
            is_test |= is_test_attribute(code);
        }
        if let Some(name) = function(code) {
            if is_test || in_suite {
                found.push((index + 1, name.to_owned()));
            }
            is_test = false;
        } else if !code.is_empty() && !code.starts_with("#[") && code.ends_with([';', '}', '{']) {
            is_test = false;
        }
    }
    found
}

fn is_test_attribute(code: &str) -> bool {
    // `#[test]`, `#[tokio::test(…)]`, `#[test_case(…)]`, several on one line.
    code.split("#[").any(|attribute| {
        let name = attribute.split(['(', ']', ' ']).next().unwrap_or_default();
        name.rsplit("::")
            .next()
            .is_some_and(|last| last == "test" || last == "test_case")
    })
}

fn function(code: &str) -> Option<&str> {
    let at = if code.starts_with("fn ") {
        3
    } else {
        code.find(" fn ")? + 4
    };
    let name = code[at..]
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    (!name.is_empty()).then_some(name)
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
    fn a_missing_page_is_a_finding() {
        assert_eq!(messages(&[]).len(), 1);
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        let page = (
            PAGE,
            "# Promises\n\n- **B03** The books balance.\n- **B04** Always.\n",
        );
        let source = "#[test]\nfn b03_books_balance() {}\nfn b04_is_no_test() {}\n";
        assert_eq!(
            messages(&[page, ("crates/core/src/book.rs", source)]),
            ["docs/promises.md:4: B04 has no test named `b04_…`"]
        );
    }

    #[test]
    fn a_test_of_an_unknown_promise_is_found() {
        let page = (PAGE, "- **B03** The books balance.\n- **B03** Twice.\n");
        let source =
            "#[tokio::test]\nasync fn b03_x() {}\n\n#[test]\n#[ignore = \"q\"]\nfn q11_y() {}\n";
        assert_eq!(
            messages(&[page, ("crates/core/src/book.rs", source)]),
            [
                "docs/promises.md:2: B03 is promised twice",
                "crates/core/src/book.rs:6: `q11_y`: Q11 is not in docs/promises.md",
            ]
        );
    }

    #[test]
    fn names_that_only_look_like_numbers_pass() {
        let page = (PAGE, "- **B03** The books balance.\n");
        let source = "#[test] fn u64_max() {}\n#[test] fn utf8_text() {}\n#[test] fn x_b03_y() {}";
        assert!(messages(&[page, ("a.rs", source)]).is_empty());
    }

    #[test]
    fn rules_of_a_suite_and_macros_count() {
        let page = (PAGE, "- **C01** One.\n- **C02** Two.\n");
        let rule = "pub async fn c01_append_is_durable() {}\n";
        let prop = "proptest! {\n    #[test]\n    fn c02_round_trip(x in any::<u8>()) {}\n}\n";
        assert!(messages(&[page, ("src/conformance.rs", rule), ("src/a.rs", prop)]).is_empty());
    }
}
