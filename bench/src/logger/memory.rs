//! Resident memory while a backlog is sent: a large one takes no more than a small one.
//!
//! Each backlog is replayed by a process of its own, which prints the most memory it ever had.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tidegate_logger::spill;

use super::{Scratch, apis, config, fill, start, wait_for};
use crate::measure::{Measurement, peak_resident_mib};

/// The argument that makes this program the process that is measured.
pub(crate) const CHILD: &str = "--replay-and-print-memory";

/// Lines of the shape that is spilled here have a little more than this.
const LINE: u64 = 375;

pub(super) fn run() {
    let small = peak("10-mb", 10_000_000, Books::Kept);
    let large = peak("1-gib", 1 << 30, Books::Kept);
    print("logger/replay-memory-1-gib", large, small);
    // As after a kill, or with files of another client: every line is news to the books.
    let small = peak("10-mb-unknown", 10_000_000, Books::Gone);
    let large = peak("1-gib-unknown", 1 << 30, Books::Gone);
    print("logger/replay-memory-1-gib-without-books", large, small);
}

fn print(bench: &str, ours: f64, reference: f64) {
    Measurement {
        bench,
        ours,
        reference,
        reference_is: "a backlog of 10 MB",
        unit: "MiB at most",
    }
    .print();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Books {
    Kept,
    Gone,
}

fn peak(name: &str, bytes: u64, books: Books) -> f64 {
    let scratch = Scratch::new(name);
    fill(scratch.path(), bytes / LINE);
    if books == Books::Gone {
        let path = scratch.path().join(spill::BOOKS);
        std::fs::remove_file(path).expect("the books can be removed");
    }
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program)
        .arg(CHILD)
        .arg(scratch.path())
        .output()
        .expect("this program starts again");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().expect("a number of MiB")
}

/// Replays the directory that is named and prints how much memory that took.
pub(crate) fn run_child(arguments: &[String]) {
    let dir = arguments.first().map(Path::new).expect("a directory");
    let logger = start(config().spillover_path(dir), Arc::new(apis::Instantly));
    wait_for(|| logger.account().spilled == 0);
    assert!(logger.shutdown().account.delivered > 0);
    println!("{:.1}", peak_resident_mib());
}
