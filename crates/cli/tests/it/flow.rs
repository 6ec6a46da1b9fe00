//! `tidegate flow check|fmt|explain` and `tidegate explain`.

use std::path::Path;

use crate::command::{run, run_in};

const RIGHT: &str = "process copy\n    receive a\n    emit to b\nend\n";
const WRONG: &str = "process copy\n    recieve a\n    receive c\n    emit to b\nend\n";

fn examples() -> String {
    format!("{}/../../examples/flows", env!("CARGO_MANIFEST_DIR"))
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

#[test]
fn a_right_flow_is_checked_and_a_wrong_one_is_shown_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.flow", RIGHT);
    write(dir.path(), "b.flow", WRONG);
    let ran = run_in(dir.path(), &["flow", "check", "a.flow"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 file: 0 errors, 0 warnings\n")
    );
    let ran = run_in(dir.path(), &["flow", "check", "b.flow"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(3), "1 file: 1 error, 0 warnings\n")
    );
    assert!(ran.stderr.contains("2 |     recieve a"), "{}", ran.stderr);
    // Both files declare `copy`, and share one namespace.
    let ran = run_in(dir.path(), &["flow", "check", ".", "-o", "json"]);
    let json = ran.json();
    let codes: Vec<&str> = json["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["code"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["TG0101", "TG0010"]);
    let ran = run_in(dir.path(), &["flow", "check", "missing.flow", "-o", "json"]);
    assert_eq!(
        (ran.code, ran.json()["error"]["code"].as_str()),
        (Some(1), Some("flow.unreadable"))
    );
}

#[test]
fn a_configuration_is_checked_with_its_flows() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.flow", RIGHT);
    write(
        dir.path(),
        "tidegate.yaml",
        "flows: [ \"*.flow\" ]\nstreams: { a: {}, copy_dlq: {} }\n",
    );
    let ran = run_in(dir.path(), &["check", "-o", "json"]);
    assert_eq!(ran.code, Some(3));
    assert_eq!(ran.json()["flows"][0]["code"], "TG0701");
    let ran = run_in(
        dir.path(),
        &["flow", "check", "a.flow", "-c", "tidegate.yaml"],
    );
    assert_eq!(ran.code, Some(3));
    assert!(ran.stderr.contains("TG0701"), "{}", ran.stderr);
    write(
        dir.path(),
        "tidegate.yaml",
        "flows: [ \"*.flow\" ]\nstreams: { a: {}, b: {}, copy_dlq: {} }\n",
    );
    let ran = run_in(dir.path(), &["check"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout
            .ends_with("1 flow file: no errors, no warnings\n"),
        "{}",
        ran.stdout
    );
    // The runtime is part of this build.
    assert_eq!(ran.stderr, "");
}

#[test]
fn fmt_writes_the_one_form_and_keeps_comments() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "a.flow",
        "process   copy // why\nreceive a emit to b end",
    );
    let ran = run_in(dir.path(), &["flow", "fmt", "--check", "a.flow"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(3), "a.flow would change\n1 file would change\n")
    );
    let ran = run_in(dir.path(), &["flow", "fmt", "a.flow"]);
    assert_eq!(ran.code, Some(0));
    let text = std::fs::read_to_string(dir.path().join("a.flow")).unwrap();
    assert_eq!(text, RIGHT.replace("copy", "copy  // why"));
    let ran = run_in(dir.path(), &["flow", "fmt", "--check", "."]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "0 files would change\n")
    );
    write(dir.path(), "b.flow", WRONG);
    let ran = run_in(dir.path(), &["flow", "fmt", "b.flow"]);
    assert_eq!(ran.code, Some(3));
    assert_eq!(
        std::fs::read_to_string(dir.path().join("b.flow")).unwrap(),
        WRONG
    );
}

#[test]
fn explain_shows_the_plan_the_picture_and_the_fate_of_state() {
    let auth = format!("{}/auth.flow", examples());
    let ran = run(&["flow", "explain", &auth]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for expect in [
        "await/auths/captures by auth_code",
        "timer 7d",
        "correlation failure to unmatched_captures: dead-lettered",
    ] {
        assert!(ran.stdout.contains(expect), "{expect}: {}", ran.stdout);
    }
    let ran = run(&["flow", "explain", &auth, "auth_match", "--graph"]);
    assert!(ran.stdout.starts_with("flowchart LR\n"), "{}", ran.stdout);
    let ran = run(&["flow", "explain", &auth, "-o", "json"]);
    assert_eq!(ran.json()["plan"]["version"], 1);
    let ran = run(&["flow", "explain", &auth, "auth_mach"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("did you mean `auth_match`?"),
        "{}",
        ran.stderr
    );

    let dir = tempfile::tempdir().unwrap();
    let with = |kind: &str| {
        RIGHT.replace(
            "end\n",
            &format!("state local n keyed by id type {kind} end end\n"),
        )
    };
    write(dir.path(), "old.flow", &with("counter"));
    write(dir.path(), "new.flow", &with("map"));
    let ran = run_in(
        dir.path(),
        &[
            "flow",
            "explain",
            "new.flow",
            "--against",
            "old.flow",
            "-o",
            "json",
        ],
    );
    assert_eq!(ran.code, Some(3));
    assert_eq!(ran.json()["changes"][0]["code"], "TG0901");
    let ran = run_in(
        dir.path(),
        &["flow", "explain", "old.flow", "--against", "old.flow"],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
}

#[test]
fn a_code_is_explained() {
    let ran = run(&["explain", "tg0301"]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.stdout.contains("TG0301 (error): unknown field"),
        "{}",
        ran.stdout
    );
    assert_eq!(run(&["explain", "TG9999"]).code, Some(2));
}
