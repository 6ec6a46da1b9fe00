//! The README's five minutes.

use std::path::Path;
use std::process::Command;

use crate::command::Ran;

#[test]
fn five_minutes_of_the_readme_run_as_written() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/five-minutes.sh");
    let mut command = Command::new("bash");
    command
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_tidegate"))
        .env("JOURNAL_SIZE", "1MiB");
    // The demos have tests of their own.
    if !crate::guides::is_long() {
        command.env("LEFT_OUT", "^cargo install\\|^tidegate demo");
    }
    let ran = Ran::from(command.output().unwrap());
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("  customer-7  hello"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("✓ every event is accounted for"),
        "{}",
        ran.stdout
    );
}
