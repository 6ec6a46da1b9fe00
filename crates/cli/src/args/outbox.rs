//! `tidegate outbox`.

use clap::{Args, Subcommand, ValueEnum};

use super::queue::parse_event;
use super::{EventRef, SqlDialect, StoreAt};
use crate::commands::tail::{Moment, parse_moment};

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxArgs {
    /// List rows: those that are not sent, or those of one state
    #[command(
        after_help = "Examples:\n  tidegate outbox ls\n  tidegate outbox ls --status dead\n  \
                            tidegate outbox ls --key loan-7 --after 50 --limit 50"
    )]
    Ls(OutboxLs),
    /// Show one row: its payload, its attempts, and why the last one failed
    #[command(after_help = "Example: tidegate outbox show 17")]
    Show {
        /// The number of the row, or the id of its event
        #[arg(value_parser = parse_event)]
        row: EventRef,
        #[command(flatten)]
        at: OutboxAt,
    },
    /// Count the rows by what they wait for
    #[command(after_help = "Example: tidegate outbox stats -o json")]
    Stats(OutboxAt),
    /// Give DEAD rows back to the relay, and try those that wait for their next attempt now
    #[command(
        override_usage = "tidegate outbox retry [OPTIONS] <ROWS>...\n       tidegate outbox retry [OPTIONS] --all",
        after_help = "Examples:\n  tidegate outbox retry 17 18\n  tidegate outbox retry --all"
    )]
    Retry(OutboxRetry),
    /// Remove rows that are SENT or DEAD for good
    #[command(
        after_help = "A purged DEAD row was never delivered: the books count it as lost, with the \
                            reason `purged`.\n\nExamples:\n  tidegate outbox purge --status sent \
                            --before -7d --yes\n  tidegate outbox purge --status dead --before \
                            2026-05-01T12:00:00Z"
    )]
    Purge(OutboxPurge),
    /// Make the tables, or bring them up to date
    #[command(
        after_help = "Examples:\n  tidegate outbox migrate\n  tidegate outbox migrate --print \
                            --dialect postgres > migrations/0008_outbox.sql"
    )]
    Migrate {
        /// Write the SQL to standard output, for migrations of your own, and change nothing
        #[arg(long)]
        print: bool,
        /// For which database [default: that of `store.url`]
        #[arg(long, value_enum, requires = "print")]
        dialect: Option<SqlDialect>,
        #[command(flatten)]
        at: OutboxAt,
    },
}

/// Which outbox, and where it is.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutboxAt {
    /// The relay, by its name below `outbox` [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) relay: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreAt,
}

#[derive(Debug, Args)]
pub(crate) struct OutboxLs {
    /// Only those in this state [default: those that are not sent]
    #[arg(long, value_enum)]
    pub(crate) status: Option<RowStatusArg>,
    /// Only those of this key, the aggregate id
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only those above this number; each page says where the next one begins
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: i64,
    /// So many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) at: OutboxAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowStatusArg {
    /// It waits
    Pending,
    /// A relay is publishing it
    Claimed,
    /// It is in its topic
    Sent,
    /// It was given up on
    Dead,
}

#[derive(Debug, Args)]
pub(crate) struct OutboxRetry {
    /// The numbers of the rows, or the ids of their events
    #[arg(required_unless_present = "all", conflicts_with = "all", value_parser = parse_event)]
    pub(crate) rows: Vec<EventRef>,
    /// All that are DEAD or wait for another attempt
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) at: OutboxAt,
}

#[derive(Debug, Args)]
pub(crate) struct OutboxPurge {
    /// Which rows
    #[arg(long, value_enum)]
    pub(crate) status: PurgeStatusArg,
    /// Only those that were sent, or failed last, before this time, such as 2026-05-01T12:00:00Z, or a
    /// span such as -7d
    #[arg(long, value_parser = parse_moment, allow_hyphen_values = true)]
    pub(crate) before: Moment,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) at: OutboxAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PurgeStatusArg {
    /// Rows that are in their topic
    Sent,
    /// Rows that were given up on: their events are lost then
    Dead,
}
