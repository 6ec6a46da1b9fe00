//! The arguments of `tidegate flow`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::RunArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum FlowArgs {
    /// Check flow files and report everything that is wrong with them
    #[command(after_long_help = "Example: tidegate flow check flows -c tidegate.yaml")]
    Check {
        /// The files, or directories of them; they share one namespace
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Check the bindings of this configuration, too
        #[arg(short, long)]
        config: Option<PathBuf>,
    },
    /// Write flow files in their one form; comments stay
    #[command(after_long_help = "Example: tidegate flow fmt --check flows")]
    Fmt {
        /// The files, or directories of them
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Change nothing, and say which files would change
        #[arg(long)]
        check: bool,
    },
    /// Run flow files with the bindings of a configuration, as `tidegate run` does with those of `flows`
    #[command(after_help = "Example: tidegate flow run order_totals.flow -c tidegate.yaml")]
    Run {
        /// The files; they share one namespace
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Show the plan of a flow: inputs, state, timers, topics, and every way out
    #[command(after_long_help = "Example: tidegate flow explain order_totals.flow --graph")]
    Explain(FlowExplain),
    /// Run test files on a model of the flow, in virtual time
    #[command(after_long_help = "Example: tidegate flow test tests --runtime --crash")]
    Test {
        /// The test files, or directories of them
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Play them on the runtime, over a simulated log
        #[cfg(feature = "simulation")]
        #[arg(long)]
        runtime: bool,
        /// Repeat each with a death before and after every call of the log
        #[cfg(feature = "simulation")]
        #[arg(long, requires = "runtime")]
        crash: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FlowExplain {
    /// The file, or a directory of files
    pub(crate) file: PathBuf,
    /// Only this process
    pub(crate) process: Option<String>,
    /// Draw it, as Mermaid text
    #[arg(long)]
    pub(crate) graph: bool,
    /// Compare with the flow that wrote the stored state: kept, dropped, needs migration
    #[arg(long, value_name = "OLD", conflicts_with = "graph")]
    pub(crate) against: Option<PathBuf>,
}
