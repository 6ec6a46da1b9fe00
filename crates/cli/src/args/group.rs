//! `tidegate topic` and `tidegate group`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{ConfigFile, LogAt, WATCH_SECONDS};
use crate::commands::tail::{From, parse_from};

/// Which log is meant.
#[derive(Debug, Args)]
pub(crate) struct LogTarget {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) at: LogAt,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TopicArgs {
    /// List all topics, with their partitions and records
    #[command(after_long_help = "Example: tidegate topic ls -o json")]
    Ls(LogTarget),
    /// Show the partitions of one topic
    #[command(after_long_help = "Example: tidegate topic show orders")]
    Show {
        /// The topic
        name: String,
        #[command(flatten)]
        target: LogTarget,
    },
    /// Make a topic
    #[command(
        after_long_help = "Examples:\n  tidegate topic create orders\n  tidegate topic create orders --partitions 8 \
                           --retention 30d"
    )]
    Create(TopicCreate),
    /// Remove a topic with all its records
    #[command(after_long_help = "Example: tidegate topic rm orders --yes")]
    Rm {
        /// The topic
        name: String,
        /// Remove it although groups have still to read some of it
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        target: LogTarget,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TopicCreate {
    /// The topic
    pub(crate) name: String,
    /// How many partitions; it never changes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) partitions: u32,
    /// How long records are kept, such as 7d, or `none` [default: `log.embedded.retention`]
    #[arg(long, value_name = "SPAN", value_parser = parse_retention)]
    pub(crate) retention: Option<RetentionArg<Duration>>,
    /// How many bytes each partition keeps, such as 1GiB, or `none`
    /// [default: `log.embedded.retention-size`]
    #[arg(long, value_name = "SIZE", value_parser = parse_kept_size)]
    pub(crate) retention_size: Option<RetentionArg<u64>>,
    /// Keep only the last record of each key in the long run
    #[arg(long)]
    pub(crate) compact: bool,
    /// The largest record it takes, such as 1MiB [default: `log.embedded.max-record-size`]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_record_size: Option<u64>,
    #[command(flatten)]
    pub(crate) target: LogTarget,
}

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetentionArg<T> {
    Everything,
    UpTo(T),
}

impl<T> RetentionArg<T> {
    /// None keeps everything.
    pub(crate) fn limit(self) -> Option<T> {
        match self {
            Self::Everything => None,
            Self::UpTo(limit) => Some(limit),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupArgs {
    /// List all groups, with how much they have still to read
    #[command(after_long_help = "Example: tidegate group ls -o json")]
    Ls(LogTarget),
    /// Show how far a group is in each partition, and what became of its records
    #[command(
        after_long_help = "Examples:\n  tidegate group show billing\n  tidegate group show billing --watch"
    )]
    Show(GroupShow),
    /// Have a group without members begin elsewhere
    #[command(
        after_long_help = "Examples:\n  tidegate group seek billing --to earliest\n  tidegate group seek billing --to \
                           -1h --topic orders --yes"
    )]
    Seek(GroupSeekArgs),
    /// Forget a group without members: retention does not wait for it any more
    #[command(after_long_help = "Example: tidegate group forget billing --yes")]
    Forget {
        /// The group
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        target: LogTarget,
    },
}

#[derive(Debug, Args)]
pub(crate) struct GroupShow {
    /// The group
    pub(crate) name: String,
    /// Show it again every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(WATCH_SECONDS))]
    pub(crate) watch: Option<u64>,
    #[command(flatten)]
    pub(crate) target: LogTarget,
}

#[derive(Debug, Args)]
pub(crate) struct GroupSeekArgs {
    /// The group
    pub(crate) name: String,
    /// Where it goes on: `earliest`, `latest`, an offset, a time such as 2026-05-01T12:00:00Z, or a span
    /// such as -1h
    #[arg(long, value_parser = parse_from, allow_hyphen_values = true)]
    pub(crate) to: From,
    /// Only in this topic [default: all that it reads]
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only in this partition
    #[arg(long, requires = "topic", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partition: Option<i32>,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) target: LogTarget,
}

fn parse_retention(text: &str) -> Result<RetentionArg<Duration>, String> {
    if text == "none" {
        return Ok(RetentionArg::Everything);
    }
    let span = tidegate_config::parse_duration(text).map(RetentionArg::UpTo);
    span.ok_or_else(|| "write a span such as 7d or 12h, or `none`".to_owned())
}

fn parse_kept_size(text: &str) -> Result<RetentionArg<u64>, String> {
    match text {
        "none" => Ok(RetentionArg::Everything),
        size => parse_size(size).map(RetentionArg::UpTo),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    tidegate_config::parse_size(text).ok_or_else(|| "write a size such as 64MiB".to_owned())
}
