//! The program itself.

use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn log_lines_that_go_to_a_file_have_no_colors() {
    let dir = tempfile::tempdir().unwrap();
    let config = "server: {listen: '127.0.0.1:0'}\noutbox: {loans: {topic: loan-events}}\n\
                  log: {topics: {loan-events: {}}}\n";
    std::fs::write(dir.path().join("my.yaml"), config).unwrap();
    let path = dir.path().join("lines");
    let mut child = Command::new(env!("CARGO_BIN_EXE_loans"))
        .arg("my.yaml")
        .current_dir(dir.path())
        .env_clear()
        .stdout(std::fs::File::create(&path).unwrap())
        .spawn()
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    let lines = loop {
        let lines = std::fs::read_to_string(&path).unwrap();
        if lines.contains("loans on http://") {
            break lines;
        }
        assert!(Instant::now() < limit, "{lines}");
        std::thread::sleep(Duration::from_millis(10));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!lines.contains('\u{1b}'), "{lines:?}");
}
