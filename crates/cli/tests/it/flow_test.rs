//! `tidegate flow test`.

use crate::command::{run, run_in};

const FLOW: &str =
    "process big\n    receive orders\n    filter amount > 10\n    emit to large\nend\n";
const TESTS: &str = "flow: big.flow
process: big
tests:
  - name: small orders stay behind
    steps:
      - send: { stream: orders, value: { amount: 5 } }
      - send: { stream: orders, value: { amount: 12.50 } }
      - expect: { stream: large, values: [ { amount: 12.50 } ], ledger: { delivered: 2 } }
";

#[test]
fn r25_the_tests_of_the_examples_pass() {
    let directory = format!("{}/../../examples/flows", env!("CARGO_MANIFEST_DIR"));
    let ran = run(&["flow", "test", &directory]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert!(ran.stdout.contains(" 0 failed"), "{}", ran.stdout);
}

#[test]
fn a_test_that_fails_shows_the_difference_and_ends_with_three() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("big.flow", FLOW);
    write("big.test.yaml", TESTS);
    let ran = run_in(dir.path(), &["flow", "test", "."]);
    let passed = "1 test: 1 passed, 0 failed\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), passed));
    write(
        "big.test.yaml",
        &TESTS.replace("values: [ { amount: 12.50", "values: [ { amount: 12.51"),
    );
    let ran = run_in(dir.path(), &["flow", "test", "big.test.yaml"]);
    let failed = "big.test.yaml: small orders stay behind
    step 3: expected {\"amount\":12.51}, found {\"amount\":12.50}
1 test: 0 passed, 1 failed\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), failed));
    let ran = run_in(dir.path(), &["flow", "test", "big.test.yaml", "-o", "json"]);
    let json = ran.json();
    assert_eq!(
        (
            json["failed"].as_u64(),
            json["tests"][0]["passed"].as_bool()
        ),
        (Some(1), Some(false))
    );
    write("big.flow", "process big receive orders end");
    let ran = run_in(dir.path(), &["flow", "test", "big.test.yaml"]);
    assert!(ran.stdout.contains("TG0202"), "{}", ran.stdout);
    assert_eq!(ran.code, Some(3));
    let ran = run_in(
        dir.path(),
        &["flow", "test", "missing.test.yaml", "-o", "json"],
    );
    assert_eq!(
        ran.json()["error"]["code"].as_str(),
        Some("flow.unreadable")
    );
    assert_eq!(ran.code, Some(1));
}

/// R02, R10, R11, R13, R14: the runtime gives what the model gives, also when it dies at any call of the log.
#[cfg(feature = "simulation")]
#[test]
fn r25_the_tests_pass_on_the_runtime_whenever_it_dies() {
    let root = env!("CARGO_MANIFEST_DIR");
    // Each of their tests has days and hundreds of calls.
    let waits = ["account.", "auth.", "await.", "order_assembly."];
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    let (mut passed, mut deaths) = (0, 0);
    for directory in ["../../examples/flows", "../stage/tests/scenarios"] {
        let directory = std::fs::read_dir(format!("{root}/{directory}")).unwrap();
        let mut files: Vec<_> = directory.map(|entry| entry.unwrap()).collect();
        files.retain(|file| file.file_name().to_string_lossy().ends_with(".test.yaml"));
        for file in files {
            let name = file.file_name().to_string_lossy().into_owned();
            let path = file.path().to_string_lossy().into_owned();
            let mut args = vec!["flow", "test", &path, "--runtime", "-o", "json"];
            if is_long || !waits.iter().any(|waits| name.starts_with(waits)) {
                args.push("--crash");
            }
            let ran = run(&args);
            assert_eq!(ran.code, Some(0), "{name}: {}{}", ran.stdout, ran.stderr);
            let json = ran.json();
            passed += json["passed"].as_u64().unwrap();
            deaths += json["deaths"].as_u64().unwrap_or(0);
        }
    }
    assert!(passed >= 30 && deaths > 1_000, "{passed} {deaths}");
}
