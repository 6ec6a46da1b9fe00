//! Results on a terminal: colors, widths, and what moves.

use std::path::Path;

use crate::command::Ran;
use crate::log::{CONFIG, configured, send_one};

/// Runs a command on a terminal of so many columns.
fn on_terminal(dir: &Path, columns: u16, arguments: &str, env: &[(&str, &str)]) -> Ran {
    let program = env!("CARGO_BIN_EXE_tidegate");
    let line = format!("stty cols {columns} && exec {program} {arguments}");
    let mut command = std::process::Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .current_dir(dir)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TERM", "xterm")
        .envs(env.iter().copied())
        .stdin(std::process::Stdio::null());
    Ran::from(command.output().unwrap())
}

#[test]
fn the_marks_of_a_report_have_colors_on_a_terminal_and_say_the_same_without() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    send_one(dir, "x");
    let colored = on_terminal(dir, 100, "audit", &[]);
    assert_eq!(colored.code, Some(0), "{}", colored.stdout);
    let verdict = "✓\u{1b}[0m every event is accounted for";
    assert!(
        colored.stdout.contains(&format!("\u{1b}[32m{verdict}")),
        "{}",
        colored.stdout
    );
    let plain = on_terminal(dir, 100, "audit", &[("NO_COLOR", "1")]);
    assert!(
        plain.stdout.contains("✓ every event is accounted for"),
        "{}",
        plain.stdout
    );
    assert!(!plain.stdout.contains("\u{1b}["), "{}", plain.stdout);
    let piped = crate::command::run_in(dir, &["audit"]).stdout;
    assert!(!piped.contains('\u{1b}'), "{piped}");
}

#[test]
fn a_table_fits_into_the_terminal() {
    let dir = configured(CONFIG);
    let dir = dir.path();
    send_one(dir, "x");
    for columns in [48, 80] {
        for command in ["audit", "log ls", "topic show orders"] {
            let shown = on_terminal(dir, columns, command, &[("NO_COLOR", "1")]).stdout;
            // The verdict and the name of the log are sentences, which a terminal wraps itself.
            let table = shown.lines().filter(|line| line.starts_with([' ', '─']));
            let width = table.map(|line| line.trim_end().chars().count()).max();
            assert!(
                width > Some(10) && width <= Some(columns.into()),
                "{command}:\n{shown}"
            );
        }
    }
}
