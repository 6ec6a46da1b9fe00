//! The `tidegate` command.

mod args;
mod commands;
mod confirm;
mod demo;
mod log;
mod logs;
mod parts;
mod report;
mod settings;
mod signals;
mod store;
mod table;

use std::future::Future;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command, LogCommand, Spill};
use report::{Exit, Report, Voice};

/// Records are many small pieces of memory that one thread makes and another one lets go of: that takes
/// the allocator of the system up to a tenth of the time of a commit.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let exit = dispatch(&arguments)
        .unwrap_or_else(|report| report.print(arguments.output, Voice::of(arguments.log_format)));
    exit.into()
}

fn dispatch(arguments: &Arguments) -> Result<Exit, Report> {
    let output = arguments.output;
    match &arguments.command {
        Command::Demo(demo) => commands::demo::run(demo, output),
        Command::Run(file) => {
            logs::start(arguments.log_format, &arguments.log)?;
            let voice = Voice::of(arguments.log_format);
            on_tokio(commands::run::run(file, output, voice))
        }
        Command::Check { file, rate } => commands::check::run(file, *rate, output),
        Command::Config(command) => commands::config::run(command, output),
        Command::Ledger(ledger) => on_tokio(commands::ledger::run(ledger, output)),
        Command::Audit(books) => on_tokio(commands::audit::run(books, output)),
        Command::Where { id, books } => on_tokio(commands::where_is::run(*id, books, output)),
        Command::Send(send) => on_tokio(commands::send::run(send, output)),
        Command::Tail(tail) => on_tokio(commands::tail::run(tail, output)),
        Command::Log(LogCommand::Ls(dir)) => commands::log::list(dir, output),
        Command::Log(LogCommand::Check(dir)) => commands::log::check(dir, output),
        Command::Log(LogCommand::Repair { dir, yes }) => commands::log::repair(dir, *yes, output),
        Command::Spill(Spill::Ls { dir }) => commands::spill::list(dir, output),
        Command::Spill(Spill::Check { dir }) => commands::spill::check(dir, output),
        Command::Spill(Spill::Replay(replay)) => on_tokio(commands::spill::replay(replay, output)),
        Command::Queue(command) => on_tokio(commands::queue::run(command, output)),
        Command::Projection(command) => on_tokio(commands::projection::run(command, output)),
        Command::Completions { shell } => commands::shell::completions(*shell, output),
        Command::Man => commands::shell::man(output),
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
