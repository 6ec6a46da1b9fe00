//! The arguments of `tidegate stage`.

use clap::Subcommand;

use super::LedgerArgs;

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
}
