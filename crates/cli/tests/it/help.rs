//! What the command line says of itself.

use crate::command::run;

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
    check(&["demo", "spam"], "flaky");
    check(&["run", "--set", "x"], "write it as KEY=VALUE");
    check(&[], "Usage:");
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
