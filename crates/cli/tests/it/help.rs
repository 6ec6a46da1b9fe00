//! The help of the command line.

use crate::command::{run, run_in, tidegate};

#[test]
fn help_lists_every_command_and_the_exit_codes() {
    let ran = run(&["-h"]);
    assert_eq!(ran.code, Some(0));
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_was_meant() {
    let check = |arguments: &[&str], expect: &str| {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains(expect), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    };
    check(&["chek"], "check");
    check(
        &["demo", "--seed", "seven"],
        "a seed is a number such as 7 or 0x5f3a",
    );
    check(&["demo", "spam"], "outage");
    check(&["demo", "--seed", "7"], "usage.demo");
    check(
        &["demo", "log", "--fast"],
        "--fast is an option of the demo outage",
    );
    check(&["run", "--set", "x"], "write it as KEY=VALUE");
    check(&["run", "--log", "a=b=c"], "usage.log-filter");
    check(&[], "Usage:");
}

#[test]
fn with_json_every_command_writes_one_document() {
    let completions = run(&["completions", "bash"]).stdout;
    let ran = run(&["completions", "bash", "-o", "json"]);
    assert_eq!(ran.json(), serde_json::json!({ "text": completions }));
    let ran = run(&["man", "-o", "json"]);
    assert!(ran.json()["text"].as_str().unwrap().contains(".TH"));
    let ran = run(&["run", "--log", "a=b=c", "-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(2), &"usage.log-filter".into())
    );
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["demo", "retry", "-o", "json"][..],
        &["demo", "retry"],
        &["demo", "--fast"],
        &["config", "show"],
        &["config", "schema"],
        &["completions", "bash"],
        &["man", "-o", "json"],
    ] {
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = tidegate(dir.path(), arguments)
            .stdout(full)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_eq!(
            stderr.matches("error[output.failed]").count(),
            1,
            "{arguments:?}: {stderr}"
        );
    }
    // A reader that has seen enough is nobody's failure.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = tidegate(dir.path(), &["demo", "retry"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(run_in(dir.path(), &["config", "show"]).code, Some(0));
}

#[test]
fn version_completions_and_manual_are_there() {
    assert!(run(&["--version"]).stdout.starts_with("tidegate 0.1.0"));
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell]);
        assert!(
            ran.stdout.contains("tidegate") && ran.code == Some(0),
            "{shell}"
        );
    }
    let man = run(&["man"]).stdout;
    assert!(
        man.contains(".TH") && man.contains("Check a configuration file"),
        "{man}"
    );
}

/// The lines and columns that the short help of a command may take.
const HELP_LINES: usize = 40;
const HELP_COLUMNS: usize = 100;

/// The commands below one, by the list of its help.
pub(crate) fn commands_below(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // Text that is indented further is the rest of the line before.
    let named = listed.filter_map(|line| {
        line.strip_prefix("  ")
            .filter(|line| !line.starts_with(' '))
    });
    let names = named.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn each_command(path: &[&str], visit: &mut impl FnMut(&[&str], &str, bool)) {
    let help = run(&[path, &["-h"]].concat());
    assert_eq!(help.code, Some(0), "{path:?}: {}", help.stderr);
    let below = commands_below(&help.stdout);
    visit(path, &help.stdout, below.is_empty());
    for name in &below {
        each_command(&[path, &[name.as_str()]].concat(), visit);
    }
}

#[test]
fn every_command_has_a_short_help_an_example_and_refuses_wrong_usage_as_json() {
    let mut count = 0;
    each_command(&[], &mut |path, help, is_leaf| {
        count += 1;
        let lines = help.lines().count();
        assert!(lines <= HELP_LINES, "{path:?} takes {lines} lines\n{help}");
        let columns = help.lines().map(|line| line.chars().count()).max();
        assert!(
            columns <= Some(HELP_COLUMNS),
            "{path:?} takes {columns:?} columns\n{help}"
        );
        if is_leaf {
            let long = run(&[path, &["--help"]].concat()).stdout;
            let name = format!("tidegate {}", path.join(" "));
            let example = long.split_once("Example").map(|(_, example)| example);
            assert!(
                example.is_some_and(|text| text.contains(&name)),
                "{path:?}\n{long}"
            );
        }
        for asks in [&["-o", "json"][..], &["--output=json"]] {
            let ran = run(&[path, &["--no-such-option"], asks].concat());
            assert_eq!(ran.code, Some(2), "{path:?}: {}", ran.stderr);
            let error = &ran.json()["error"];
            assert_eq!(error["code"], "usage.arguments", "{path:?}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("--no-such-option"), "{path:?}: {message}");
        }
    });
    assert!(count > 40, "{count} commands");
    let ran = run(&["-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["error"]["code"]),
        (Some(2), &"usage.arguments".into())
    );
}

#[test]
fn explain_prints_the_page_of_any_code() {
    for (code, text) in [
        ("log.missing", "restore a backup of the directory"),
        ("line.unproven", "cannot be told from a write that was cut"),
        ("http.body-too-large", "server.max-body"),
        ("stage.init.metrics", "a step of a start failed"),
        ("TG0301", "TG0301"),
    ] {
        let ran = run(&["explain", code]);
        assert_eq!(ran.code, Some(0), "{code}: {}", ran.stderr);
        assert!(ran.stdout.contains(text), "{code}: {}", ran.stdout);
        assert!(!ran.stdout.contains("]("), "{code}: {}", ran.stdout);
        let ran = run(&["explain", code, "-o", "json"]);
        assert_eq!(ran.json()["code"], code);
    }
    let ran = run(&["explain", "log.mising", "-o", "json"]);
    assert_eq!(
        (ran.code, &ran.json()["error"]["hint"]),
        (Some(2), &"did you mean `log.missing`?".into())
    );
}
