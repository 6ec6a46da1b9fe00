//! Which mistakes there are, as cargo-mutants sees them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::command::{find_program, output_of};
use crate::mutants::scope::{NOT_JUDGED, Scope};
use crate::workspace::Workspace;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// File and description. No line is in it, so that a judgment outlives a change further up.
    pub(crate) key: String,
    /// Where in the table of scopes it comes from.
    pub(crate) scope: usize,
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) what: String,
    span: Span,
    replacement: String,
}

/// A mutant in the list of cargo-mutants.
#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    file: String,
    span: Span,
    replacement: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// Both count from one, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

/// The program `cargo-mutants`, installed below `target/tools` unless there is one.
pub(crate) fn tool(workspace: &Workspace) -> Result<PathBuf> {
    let root = workspace.root().join("target/tools");
    let own = root.join("bin/cargo-mutants");
    if own.is_file() {
        return Ok(own);
    }
    if let Some(found) = find_program("cargo-mutants") {
        return Ok(found);
    }
    println!("installing cargo-mutants below {}", root.display());
    let mut command = workspace.cargo();
    command
        .args(["install", "cargo-mutants", "--locked", "--root"])
        .arg(&root)
        .env_remove("CARGO_TARGET_DIR");
    output_of(&mut command).context("could not install cargo-mutants")?;
    Ok(own)
}

/// The mutants of the scope number `number` in the checkout at `tree`.
pub(crate) fn list(tool: &Path, tree: &Path, number: usize, scope: &Scope) -> Result<Vec<Mutant>> {
    let directory = directory(scope);
    let mut command = Command::new(tool);
    command
        .args(["mutants", "--list", "--json", "--no-config", "--dir"])
        .arg(tree)
        .args(["--package", scope.package])
        .env_remove("CARGO_TARGET_DIR");
    for glob in scope.files {
        command.args(["--file", &format!("{directory}/{glob}")]);
    }
    for pattern in NOT_JUDGED {
        command.arg(format!("--exclude-re={pattern}"));
    }
    let output = output_of(&mut command).context("could not list the mutants")?;
    let mutants = read(&output, number)?;
    for file in scope.files.iter().filter(|file| !file.contains('*')) {
        let path = format!("{directory}/{file}");
        if !tree.join(&path).is_file() {
            bail!("`{path}` is to be mutated and does not exist");
        }
    }
    if mutants.is_empty() {
        bail!("cargo-mutants finds nothing in {}", scope.package);
    }
    Ok(mutants)
}

fn directory(scope: &Scope) -> String {
    let name = scope.package.trim_start_matches("tidegate-");
    format!("crates/{name}/src")
}

fn read(output: &str, scope: usize) -> Result<Vec<Mutant>> {
    let listed: Vec<Listed> =
        serde_json::from_str(output).context("could not read what cargo-mutants printed")?;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mutants = listed.into_iter().map(|listed| {
        let Position { line, column } = listed.span.start;
        let place = format!("{}:{line}:{column}: ", listed.file);
        let what = listed.name.trim_start_matches(&place).to_owned();
        let plain = format!("{}: {what}", listed.file);
        let count = seen.entry(plain.clone()).or_default();
        *count += 1;
        let key = match *count {
            1 => plain,
            count => format!("{plain} ({count})"),
        };
        Mutant {
            key,
            scope,
            file: listed.file,
            line,
            what,
            span: listed.span,
            replacement: listed.replacement,
        }
    });
    Ok(mutants.collect())
}

impl Mutant {
    /// The text of its file with the mistake in.
    pub(crate) fn apply(&self, text: &str) -> Result<String> {
        let (from, to) = (offset(text, self.span.start), offset(text, self.span.end));
        let (Some(from), Some(to)) = (from, to) else {
            bail!("`{}` is not as it was listed", self.file);
        };
        let mark = "/* changed by cargo xtask mutants */";
        Ok(format!(
            "{}{} {mark}{}",
            &text[..from],
            self.replacement,
            &text[to..]
        ))
    }

    /// Reads its file below `tree`.
    pub(crate) fn original(&self, tree: &Path) -> Result<String> {
        let path = tree.join(&self.file);
        fs::read_to_string(&path).with_context(|| format!("could not read `{}`", path.display()))
    }

    #[cfg(test)]
    pub(crate) fn of(file: &str, what: &str) -> Self {
        let start = Position { line: 1, column: 1 };
        Self {
            key: format!("{file}: {what}"),
            scope: 0,
            file: file.to_owned(),
            line: 1,
            what: what.to_owned(),
            span: Span { start, end: start },
            replacement: String::new(),
        }
    }
}

fn offset(text: &str, position: Position) -> Option<usize> {
    let mut begin = 0;
    for _ in 1..position.line {
        begin += text[begin..].find('\n')? + 1;
    }
    let line = text[begin..].split('\n').next()?;
    let columns = line
        .char_indices()
        .map(|(at, _)| at)
        .chain([line.len()])
        .nth(position.column.checked_sub(1)?)?;
    Some(begin + columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"[
      {"name": "a.rs:2:7: replace + with - in add", "package": "p", "file": "a.rs", "function": null,
       "span": {"start": {"line": 2, "column": 7}, "end": {"line": 2, "column": 8}},
       "replacement": "-", "genre": "BinaryOperator", "diff": ""},
      {"name": "a.rs:2:11: replace + with - in add", "package": "p", "file": "a.rs", "function": null,
       "span": {"start": {"line": 2, "column": 11}, "end": {"line": 2, "column": 12}},
       "replacement": "-", "genre": "BinaryOperator", "diff": ""}
    ]"#;

    #[test]
    fn mutants_have_keys_that_differ_and_know_no_line() {
        let keys: Vec<String> = read(LIST, 0).unwrap().into_iter().map(|m| m.key).collect();
        assert_eq!(
            keys,
            [
                "a.rs: replace + with - in add",
                "a.rs: replace + with - in add (2)"
            ]
        );
    }

    #[test]
    fn a_mutant_replaces_its_span_and_nothing_else() {
        let mutants = read(LIST, 0).unwrap();
        let text = "fn add() {\n    ä + b + c\n}\n";
        let mark = "/* changed by cargo xtask mutants */";
        assert_eq!(
            mutants[1].apply(text).unwrap(),
            format!("fn add() {{\n    ä + b - {mark} c\n}}\n")
        );
        assert_eq!(
            mutants[0].apply(text).unwrap(),
            format!("fn add() {{\n    ä - {mark} b + c\n}}\n")
        );
        assert!(mutants[0].apply("short").is_err());
    }
}
