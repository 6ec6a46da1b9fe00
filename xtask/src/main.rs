#![doc = include_str!("../README.md")]
#![expect(
    clippy::print_stdout,
    reason = "what a command has to say goes to standard output"
)]

mod arguments;
mod bench;
mod command;
mod dist;
mod gate;
mod java;
mod mutants;
mod services;
mod table;
mod tidy;
mod workspace;

use std::process::ExitCode;

use crate::arguments::{Command, ServicesAction};
use crate::workspace::Workspace;

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("xtask: {problem}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command and says whether all was well.
fn run(command: Command) -> anyhow::Result<bool> {
    let workspace = Workspace::find()?;
    match command {
        Command::Help => {
            println!("{}", arguments::USAGE);
            Ok(true)
        }
        Command::Services(ServicesAction::Up) => services::up_command(&workspace),
        Command::Services(ServicesAction::Down) => services::down_command(&workspace),
        Command::Services(ServicesAction::Status) => services::status_command(&workspace),
        Command::Test(options) => gate::run(&workspace, &options),
        Command::Bench(options) => bench::run(&workspace, &options),
        Command::Dist => dist::run(&workspace),
        Command::Tidy => tidy::run(&workspace),
        Command::Mutants(options) => mutants::run(&workspace, &options),
    }
}
