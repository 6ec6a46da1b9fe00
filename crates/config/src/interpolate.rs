//! Variables in values: `${NAME}`, `${NAME:-default}`, and `$$` for a dollar sign.
//!
//! A default may hold variables itself. As in a shell, the default also holds when the variable
//! is set and empty.

use std::collections::BTreeMap;

/// How deep defaults may hold variables with defaults.
const MAX_NESTING: usize = 8;

/// Why a value could not be put together. The texts name variables and never hold their values.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// The variable is not set and has no default.
    Unset(String),
    /// `${` without its `}`.
    Open,
    /// The text between the braces is not the name of a variable.
    Name(String),
    /// Defaults within defaults go too deep.
    Deep,
}

/// The value with its variables filled in; `None` when it holds none.
pub(crate) fn interpolate(
    text: &str,
    environment: &BTreeMap<String, String>,
) -> Result<Option<String>, Gap> {
    if !text.contains('$') {
        return Ok(None);
    }
    fill(text, environment, 0).map(Some)
}

/// The text written so that interpolation gives it back.
pub(crate) fn escape(text: &str) -> String {
    text.replace('$', "$$")
}

fn fill(text: &str, environment: &BTreeMap<String, String>, depth: usize) -> Result<String, Gap> {
    if depth > MAX_NESTING {
        return Err(Gap::Deep);
    }
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        filled.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            filled.push('$');
            rest = tail;
        } else if let Some(inner) = after.strip_prefix('{') {
            let end = closing(inner).ok_or(Gap::Open)?;
            filled.push_str(&variable(&inner[..end], environment, depth)?);
            rest = &inner[end + 1..];
        } else {
            filled.push('$');
            rest = after;
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Where the brace that was opened before `text` is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut previous = '\0';
    for (at, c) in text.char_indices() {
        match c {
            '{' if previous == '$' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
        previous = c;
    }
    None
}

fn variable(
    inner: &str,
    environment: &BTreeMap<String, String>,
    depth: usize,
) -> Result<String, Gap> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let mut letters = name.chars();
    let starts = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !starts || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(Gap::Name(name.to_owned()));
    }
    match (environment.get(name), default) {
        (Some(value), None) => Ok(value.clone()),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value.clone()),
        (_, Some(default)) => fill(default, environment, depth + 1),
        (None, None) => Err(Gap::Unset(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&str, Gap>) {
        let environment = [("A", "1"), ("EMPTY", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let filled = interpolate(text, &environment.into());
        assert_eq!(
            filled.map(|t| t.unwrap_or(text.to_owned())),
            expect.map(str::to_owned),
            "{text}"
        );
    }

    #[test]
    fn variables_are_filled_in() {
        check("${A}", Ok("1"));
        check("x${A}y${A}", Ok("x1y1"));
        check("${B:-two}", Ok("two"));
        check("${EMPTY:-two}", Ok("two"));
        check("${EMPTY}", Ok(""));
        check("${B:-${A}}", Ok("1"));
        check("${B:-${C:-}}", Ok(""));
        check("$${A} costs 5$", Ok("${A} costs 5$"));
        check("${B}", Err(Gap::Unset("B".to_owned())));
        check("${A", Err(Gap::Open));
        check("${a.b}", Err(Gap::Name("a.b".to_owned())));
        check(
            &format!("{}{}", "${B:-".repeat(10), "}".repeat(10)),
            Err(Gap::Deep),
        );
    }
}
