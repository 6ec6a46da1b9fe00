//! The `tidegate` command.

mod args;
mod commands;
mod demo;
mod logs;
mod report;
mod settings;
mod table;

use std::future::Future;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use report::{Exit, Report};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let exit = dispatch(&arguments).unwrap_or_else(|report| report.print(arguments.output));
    exit.into()
}

fn dispatch(arguments: &Arguments) -> Result<Exit, Report> {
    let output = arguments.output;
    match &arguments.command {
        Command::Demo(demo) => Ok(commands::demo::run(demo, output)),
        Command::Run(file) => {
            logs::start(arguments.log_format, &arguments.log)?;
            on_tokio(commands::run::run(file, output))
        }
        Command::Check { file } => commands::check::run(file, output),
        Command::Config(command) => commands::config::run(command, output),
        Command::Ledger(ledger) => on_tokio(commands::ledger::run(ledger, output)),
        Command::Completions { shell } => Ok(commands::shell::completions(*shell)),
        Command::Man => commands::shell::man(),
    }
}

fn on_tokio(command: impl Future<Output = Result<Exit, Report>>) -> Result<Exit, Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Report::of("internal", "cannot start the runtime", &error))?;
    runtime.block_on(command)
}
