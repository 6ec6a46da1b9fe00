//! Running other programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// The program `name` on the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Runs `command` to its end with both outputs in the file `log`, which is made anew.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<ExitStatus> {
    let file =
        File::create(log).with_context(|| format!("could not create `{}`", log.display()))?;
    let copy = file.try_clone().context("could not share a log file")?;
    command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .status()
        .with_context(|| format!("could not start {}", program(command)))
}

/// Runs `command` and returns what it printed; a failure carries its standard error.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start {}", program(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        // Maven and keytool explain themselves on standard output.
        let said = format!("{}\n{}", stdout.trim(), stderr.trim());
        bail!(
            "{} ended with {}: {}",
            program(command),
            output.status,
            last_lines(&said, 12)
        );
    }
    Ok(stdout.into_owned())
}

/// The last `count` lines of the file, or why there are none.
pub(crate) fn tail(log: &Path, count: usize) -> String {
    match fs::read(log) {
        Ok(bytes) => last_lines(&String::from_utf8_lossy(&bytes), count),
        Err(error) => format!("({} cannot be read: {error})", log.display()),
    }
}

/// The last `count` lines of a log of cargo's that are no progress. A clean build names some hundred
/// packages, and the one line about the mistake would be lost behind them.
pub(crate) fn complaints(log: &Path, count: usize) -> String {
    match fs::read(log) {
        Ok(bytes) => last_lines(&without_progress(&String::from_utf8_lossy(&bytes)), count),
        Err(error) => format!("({} cannot be read: {error})", log.display()),
    }
}

fn without_progress(text: &str) -> String {
    const PROGRESS: [&str; 4] = ["Compiling ", "Checking ", "Downloading ", "Downloaded "];
    let is_progress = |line: &&str| {
        PROGRESS
            .iter()
            .any(|verb| line.trim_start().starts_with(verb))
    };
    let lines: Vec<&str> = text.lines().filter(|line| !is_progress(line)).collect();
    lines.join("\n")
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn program(command: &Command) -> String {
    format!("`{}`", command.get_program().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_brings_its_own_words_along() {
        let error = output_of(Command::new("sh").args(["-c", "echo out; echo why >&2; exit 3"]));
        let text = format!("{:#}", error.unwrap_err());
        assert!(
            text.contains("out") && text.contains("why") && text.contains('3'),
            "{text}"
        );
    }

    #[test]
    fn progress_does_not_hide_what_is_wrong() {
        let log = "   Compiling a v1\nerror: no room\n  Downloaded b v2\n   Compiling c v3\n";
        assert_eq!(last_lines(&without_progress(log), 5), "error: no room");
    }

    #[test]
    fn the_tail_is_short_even_of_a_short_text() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 5), "a");
        assert_eq!(last_lines("", 5), "");
    }
}
