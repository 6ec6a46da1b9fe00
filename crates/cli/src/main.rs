//! The `tidegate` command.

mod args;
mod commands;
mod confirm;
#[cfg(feature = "demo")]
mod demo;
mod log;
mod logs;
mod parts;
mod progress;
mod report;
mod settings;
mod signals;
mod store;
mod table;
mod watch;
mod witness;

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use args::{Arguments, CommandArgs, FlowArgs, LogArgs, Output, RunArgs, SpillArgs};
use report::{ErrorReport, Exit, MessageFormat};

/// Records are many small pieces of memory that one thread makes and another one frees. The allocator of
/// the system takes up to a tenth of the time of a commit for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the end of a command waits for its Kafka clients.
const CLIENTS_END: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(refused) => return report::refuse_usage(&refused).into(),
    };
    let exit = dispatch(&arguments).unwrap_or_else(|report| {
        report.print(arguments.output(), MessageFormat::of(arguments.log_format))
    });
    // A Kafka client that still runs when the process exits can crash it.
    tidegate_log::kafka::wait_until_closed(CLIENTS_END);
    exit.into()
}

fn run_process(arguments: &Arguments, run: &RunArgs, output: Output) -> Result<Exit, ErrorReport> {
    logs::start(arguments.log_format, &arguments.log)?;
    let format = MessageFormat::of(arguments.log_format);
    on_tokio(commands::run::run(run, output, format))
}

fn dispatch(arguments: &Arguments) -> Result<Exit, ErrorReport> {
    let output = arguments.output();
    match &arguments.command {
        #[cfg(feature = "demo")]
        CommandArgs::Demo(demo) => commands::demo::run(demo, output),
        CommandArgs::Run(run) => run_process(arguments, run, output),
        CommandArgs::Flow(FlowArgs::Run { files, run }) => {
            let run = commands::flow::run_arguments(files, run);
            run_process(arguments, &run, output)
        }
        CommandArgs::Bench(bench) => on_tokio(commands::bench::run(bench, output)),
        CommandArgs::Doctor { file, bundle } => {
            on_tokio(commands::doctor::run(file, bundle.as_deref(), output))
        }
        CommandArgs::Init { file } => commands::init::run(file, output),
        CommandArgs::Check { file, rate } => commands::check::run(file, *rate, output),
        CommandArgs::Flow(command) => commands::flow::run(command, output),
        CommandArgs::Explain { code } => commands::explain::run(code, output),
        CommandArgs::Config(command) => commands::config::run(command, output),
        CommandArgs::Ledger(ledger) => on_tokio(commands::ledger::watch(ledger, output)),
        CommandArgs::Audit(books) => on_tokio(commands::audit::run(books, output)),
        CommandArgs::Where { id, books } => on_tokio(commands::where_is::run(*id, books, output)),
        CommandArgs::Send(send) => on_tokio(commands::send::run(send, output)),
        CommandArgs::Tail(tail) => on_tokio(commands::tail::run(tail, output)),
        CommandArgs::Topic(command) => on_tokio(commands::topic::run(command, output)),
        CommandArgs::Group(command) => on_tokio(commands::group::run(command, output)),
        CommandArgs::Log(LogArgs::Ls(dir)) => commands::log::list(dir, output),
        CommandArgs::Log(LogArgs::Check(dir)) => commands::log::check(dir, output),
        CommandArgs::Log(LogArgs::Repair { dir, yes }) => commands::log::repair(dir, *yes, output),
        CommandArgs::Spill(SpillArgs::Ls { dir }) => commands::spill::list(dir, output),
        CommandArgs::Spill(SpillArgs::Check { dir }) => commands::spill::check(dir, output),
        CommandArgs::Spill(SpillArgs::Replay(replay)) => {
            on_tokio(commands::spill::replay(replay, output))
        }
        CommandArgs::Queue(command) => on_tokio(commands::queue::run(command, output)),
        CommandArgs::Outbox(command) => on_tokio(commands::outbox::run(command, output)),
        CommandArgs::Stage(command) => on_tokio(commands::stage::run(command, output)),
        CommandArgs::Projection(command) => on_tokio(commands::projection::run(command, output)),
        CommandArgs::Completions { shell } => commands::shell::completions(*shell, output),
        CommandArgs::Man => commands::shell::man(output),
    }
}

fn on_tokio(command: impl Future<Output = Result<Exit, ErrorReport>>) -> Result<Exit, ErrorReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| ErrorReport::of("internal", "cannot start the runtime", &error))?;
    runtime.block_on(command)
}
