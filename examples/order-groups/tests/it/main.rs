//! The example does what it says.

use std::process::Command;

#[test]
fn two_consumers_share_a_thousand_orders() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_order-groups"))
        .arg(dir.path().join("log"))
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}");
    assert!(
        stdout.contains("accepted 1000, queued 0, delivered 1000"),
        "{stdout}"
    );
    assert!(stdout.contains("every event is accounted for"), "{stdout}");
}
