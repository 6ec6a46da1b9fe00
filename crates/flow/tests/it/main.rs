//! Promises of the flow language.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "golden files are read and written here, and times are printed"
)]

mod changes;
mod codes;
mod grammar;
mod kinds;
mod limits;
mod meant;
mod plans;
mod reference;
mod robust;
mod sentences;
mod settled;
mod unbuilt;

use std::path::Path;

/// Reads a file of this package.
fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of the files of a directory of this package, in order.
fn names(directory: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Compares with a golden file, or writes it where `TIDEGATE_GOLDEN=write` asks for it.
fn assert_golden(path: &str, text: &str) {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var("TIDEGATE_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(&full, text).unwrap();
    }
    let golden = std::fs::read_to_string(&full).unwrap_or_default();
    assert_eq!(
        text, golden,
        "{path}: if this was meant, run the test with TIDEGATE_GOLDEN=write"
    );
}
