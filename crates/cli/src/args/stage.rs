//! The arguments of `tidegate stage`.

use clap::Subcommand;

use super::{ConfigFile, LedgerArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum StageArgs {
    /// List the stages of a running process, with their states and counts
    #[command(after_help = "Example: tidegate stage ls -o json")]
    Ls(LedgerArgs),
    /// Show one stage: its state, its tasks, and why it failed
    #[command(after_help = "Example: tidegate stage show loan_enrich")]
    Show {
        /// The process of the flow
        process: String,
        #[command(flatten)]
        at: LedgerArgs,
    },
    /// List the records that wait in `await` and `hold`, the soonest first
    #[command(after_help = "Example: tidegate stage pending auth_match")]
    Pending {
        /// The process of the flow
        process: String,
        #[command(flatten)]
        at: LedgerArgs,
    },
    /// Take a checkpoint of a running stage now
    #[command(after_help = "Example: tidegate stage checkpoint loan_enrich")]
    Checkpoint {
        /// The process of the flow
        process: String,
        #[command(flatten)]
        at: LedgerArgs,
    },
    /// Let a running stage finish what it has, and end; it starts again with its process
    #[command(after_help = "Example: tidegate stage drain loan_enrich")]
    Drain {
        /// The process of the flow
        process: String,
        #[command(flatten)]
        at: LedgerArgs,
    },
    /// Take a stopped stage back to a checkpoint, or give it back the offsets that the log forgot
    #[command(after_help = "Example: tidegate stage restore loan_enrich --checkpoint 12 --yes")]
    Restore {
        /// The process of the flow
        process: String,
        /// The number of the checkpoint, or `last` for the newest that is whole [default: the offsets of its
        /// changelog]
        #[arg(long, value_name = "NUMBER")]
        checkpoint: Option<String>,
        /// Do it without asking
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        file: ConfigFile,
    },
    /// Look into the state of a running stage
    #[command(subcommand)]
    State(StageStateArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum StageStateArgs {
    /// Show the value of a key, or the first 1,000 of all keys
    #[command(after_help = "Example: tidegate stage state get order_totals total c1")]
    Get {
        /// The process of the flow
        process: String,
        /// The state
        name: String,
        /// The key
        key: Option<String>,
        #[command(flatten)]
        at: LedgerArgs,
    },
}
