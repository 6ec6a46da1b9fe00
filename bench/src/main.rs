//! Measurements of Tidegate beside a reference, in one run: `cargo xtask bench NAME`.
//!
//! Each prints one line of JSON per measurement. Nothing here asserts a time.

#![expect(clippy::print_stdout, reason = "the measurements are the output")]

mod api;
mod connector;
mod flow;
mod ids;
mod kafka;
mod log;
mod logger;
mod measure;
mod outbox;
mod program;
mod queue;
mod report;
mod server;
mod stage;

use std::process::ExitCode;

/// The benches by name.
const BENCHES: [(&str, fn()); 10] = [
    ("api", api::run),
    ("connector", connector::run),
    ("flow", flow::run),
    ("ids", ids::run),
    ("kafka", kafka::run),
    ("log", log::run),
    ("logger", logger::run),
    ("outbox", outbox::run),
    ("queue", queue::run),
    ("stage", stage::run),
];

/// Runs with the arguments behind the first.
type RunChild = fn(&[String]);

/// The arguments that make this program one of those that are measured.
const CHILDREN: [(&str, RunChild); 4] = [
    (api::CHILD, api::run_child),
    (connector::CHILD, connector::run_child),
    (logger::CHILD, logger::run_child),
    (queue::CHILD, queue::run_child),
];

/// As in the `tidegate` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() || names == ["--list"] {
        for (name, _) in BENCHES {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    if let [flag, rest @ ..] = names.as_slice()
        && let Some((_, run_child)) = CHILDREN.iter().find(|(child, _)| child == flag)
    {
        run_child(rest);
        return ExitCode::SUCCESS;
    }
    for name in &names {
        match BENCHES.iter().find(|(known, _)| known == name) {
            Some((_, run)) => run(),
            None => {
                eprintln!("no bench `{name}`; `--list` names them");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::SUCCESS
}
