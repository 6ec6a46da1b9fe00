//! `tidegate config`.

use crate::command::{run, run_in, tidegate};

#[test]
fn it_shows_where_each_value_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("tidegate.yaml"),
        "server:\n  maxBody: 2MiB\n",
    )
    .unwrap();
    let output = tidegate(
        dir.path(),
        &[
            "config",
            "show",
            "--origin",
            "--set",
            "store.url=sqlite://x",
        ],
    )
    .env("SERVER_READ_ONLY", "true")
    .output()
    .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| {
        let found = shown.lines().find(|line| line.contains(key));
        found.unwrap_or_default().to_owned()
    };
    assert!(line("max-body").contains("tidegate.yaml:2"), "{shown}");
    assert!(line("read-only").contains("SERVER_READ_ONLY"), "{shown}");
    assert!(line("url").contains("sqlite://x"), "{shown}");
    assert!(line("listen").contains("default"), "{shown}");
}

#[test]
fn the_shown_file_can_be_loaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let shown = run_in(dir.path(), &["config", "show"]).stdout;
    std::fs::write(dir.path().join("tidegate.yaml"), &shown).unwrap();
    assert_eq!(run_in(dir.path(), &["check"]).code, Some(0));
    assert_eq!(run_in(dir.path(), &["config", "show"]).stdout, shown);
}

#[test]
fn the_schema_is_json_and_knows_the_keys() {
    let schema = run(&["config", "schema"]).json();
    assert!(schema["properties"]["server"].is_object(), "{schema}");
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn g09_a_secret_is_in_no_output() {
    const SECRET: &str = "hunter2-very-secret";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tidegate.yaml");
    std::fs::write(&path, format!("server: {{ token: {SECRET}, lisen: x }}\n")).unwrap();
    let with_problem = run_in(dir.path(), &["check", "-o", "json"]);
    let for_people = run_in(dir.path(), &["check"]);
    let run = run_in(dir.path(), &["run"]);
    std::fs::write(&path, "server: { token: \"${TOKEN}\" }\n").unwrap();
    let shown = tidegate(dir.path(), &["config", "show", "--origin"])
        .env("TOKEN", SECRET)
        .output();
    let shown = crate::command::Ran::from(shown.unwrap());
    assert!(shown.stdout.contains("***"), "{}", shown.stdout);
    for ran in [with_problem, for_people, run, shown] {
        assert!(!ran.stdout.contains(SECRET), "{}", ran.stdout);
        assert!(!ran.stderr.contains(SECRET), "{}", ran.stderr);
    }
}

#[test]
fn a_password_in_an_address_is_in_no_output() {
    const SECRET: &str = "hunter2-very-secret";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tidegate.yaml");
    for address in [
        format!("postgres://me:{SECRET}@db/x"),
        format!("postgres://me:a/{SECRET}@db/x"),
        format!("postgres://db/x?password={SECRET}"),
        format!("host=db password={SECRET}"),
        format!("postgres:me:{SECRET}@db"),
    ] {
        std::fs::write(
            &path,
            format!("store:\n  url: \"{address}\"\nserver: {{ lisen: 1 }}\n"),
        )
        .unwrap();
        let mut all = vec![
            run_in(dir.path(), &["check"]),
            run_in(dir.path(), &["check", "-o", "json"]),
            run_in(dir.path(), &["run", "-o", "json"]),
        ];
        std::fs::write(&path, format!("store:\n  url: \"{address}\"\n")).unwrap();
        for more in [
            &["config", "show"][..],
            &["config", "show", "--origin", "-o", "json"],
        ] {
            all.push(run_in(dir.path(), more));
        }
        for ran in all {
            assert!(!ran.stdout.contains(SECRET), "{address}: {}", ran.stdout);
            assert!(!ran.stderr.contains(SECRET), "{address}: {}", ran.stderr);
        }
    }
}

#[test]
fn problems_are_part_of_the_one_document() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("tidegate.yaml"),
        "sever: {}\nqueue: {batch-size: 1}\n",
    )
    .unwrap();
    let checked = run_in(dir.path(), &["check", "-o", "json"]).json();
    for command in [
        &["config", "show", "-o", "json"][..],
        &["run", "-o", "json"],
    ] {
        let ran = run_in(dir.path(), command);
        assert_eq!(ran.code, Some(3), "{command:?}");
        let document = ran.json();
        assert_eq!(document["error"]["code"], "config.invalid");
        assert_eq!(
            document["problems"][0], checked["problems"][0],
            "{command:?}"
        );
    }
}
