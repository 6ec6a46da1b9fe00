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
