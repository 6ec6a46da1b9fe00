//! `tidegate queue` and `tidegate projection`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use tidegate_core::EventId;

use super::{ConfigFile, WATCH_SECONDS, parse_header};

#[derive(Debug, Subcommand)]
pub(crate) enum QueueArgs {
    /// List events: those that are not finalized, or those of the log
    #[command(
        after_help = "Examples:\n  tidegate queue ls\n  tidegate queue ls --status \
                            completed-with-errors --type OrderPlaced\n  tidegate queue ls --after \
                            50 --limit 50"
    )]
    Ls(QueueLs),
    /// Show one event: its payload, and what each of its handlers said
    #[command(after_help = "Example: tidegate queue show 17")]
    Show {
        /// The number of the event, or its id
        #[arg(value_parser = parse_event)]
        event: EventRef,
        #[command(flatten)]
        at: StoreAt,
    },
    /// Count the events by what they wait for
    #[command(
        after_help = "Examples:\n  tidegate queue stats -o json\n  tidegate queue stats --watch 5"
    )]
    Stats {
        /// Show it again every so many seconds, until Ctrl-C
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
              value_parser = clap::value_parser!(u64).range(WATCH_SECONDS))]
        watch: Option<u64>,
        #[command(flatten)]
        at: StoreAt,
    },
    /// Give events that were completed with errors back to the handlers that failed, and try those
    /// that wait for their next attempt now
    #[command(
        override_usage = "tidegate queue retry [OPTIONS] <EVENTS>...\n       tidegate queue retry [OPTIONS] --all [--type <TYPE>]",
        after_help = "Examples:\n  tidegate queue retry 17 18\n  tidegate queue retry --all \
                            --type OrderPlaced"
    )]
    Retry(QueueRetry),
    /// End events that nobody handles just now, as completed with errors; `retry` takes it back
    #[command(after_help = "Example: tidegate queue cancel 17")]
    Cancel {
        /// The numbers of the events, or their ids
        #[arg(required = true, value_parser = parse_event)]
        events: Vec<EventRef>,
        #[command(flatten)]
        at: StoreAt,
    },
    /// Publish events: one per line of standard input, or one payload
    #[command(
        after_help = "Examples:\n  tidegate queue publish OrderPlaced '{\"order\": 7}' --key \
                            ada\n  tidegate queue publish OrderPlaced < orders.jsonl"
    )]
    Publish(QueuePublish),
    /// List the handlers that are registered, by type
    #[command(after_help = "Example: tidegate queue handlers")]
    Handlers(StoreAt),
    /// Take a handler out of the registry that is gone for good: events stop waiting for it
    #[command(after_help = "Example: tidegate queue unregister OrderPlaced send-fax --yes")]
    Unregister {
        /// The type of the events
        #[arg(value_name = "TYPE")]
        type_name: String,
        /// The id of the handler
        handler: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        at: StoreAt,
    },
    /// Make the tables, or bring them up to date
    #[command(
        after_help = "Examples:\n  tidegate queue migrate\n  tidegate queue migrate --print \
                            --dialect postgres > migrations/0007_tidegate.sql"
    )]
    Migrate {
        /// Write the SQL to standard output, for migrations of your own, and change nothing
        #[arg(long)]
        print: bool,
        /// For which database [default: that of `store.url`]
        #[arg(long, value_enum, requires = "print")]
        dialect: Option<SqlDialect>,
        #[command(flatten)]
        at: StoreAt,
    },
}

#[derive(Debug, Args)]
pub(crate) struct QueueLs {
    /// Only those in this state [default: those that are not finalized]
    #[arg(long, value_enum)]
    pub(crate) status: Option<StatusArg>,
    /// Only those of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) type_name: Option<String>,
    /// Only those above this number; each page says where the next one begins
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: i64,
    /// So many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) at: StoreAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusArg {
    /// It waits
    Pending,
    /// It is being handled
    Processing,
    /// Every handler succeeded
    Completed,
    /// It was given up on
    CompletedWithErrors,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlDialect {
    /// A file
    Sqlite,
    /// A server
    Postgres,
}

#[derive(Debug, Args)]
pub(crate) struct QueueRetry {
    /// The numbers of the events, or their ids
    #[arg(required_unless_present = "all", conflicts_with = "all", value_parser = parse_event)]
    pub(crate) events: Vec<EventRef>,
    /// All that were completed with errors
    #[arg(long)]
    pub(crate) all: bool,
    /// With `--all`: only those of this type
    #[arg(long = "type", value_name = "TYPE", requires = "all")]
    pub(crate) type_name: Option<String>,
    #[command(flatten)]
    pub(crate) at: StoreAt,
}

#[derive(Debug, Args)]
pub(crate) struct QueuePublish {
    /// The type of the events
    #[arg(value_name = "TYPE")]
    pub(crate) type_name: String,
    /// The payload of one event, as JSON, instead of standard input
    pub(crate) payload: Option<String>,
    /// The key that orders them: events of one key are handled one after the other
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// A header of each event; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_header)]
    pub(crate) headers: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) at: StoreAt,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProjectionArgs {
    /// List the projections, with how far they are
    #[command(after_help = "Example: tidegate projection ls")]
    Ls(StoreAt),
    /// Ask the process that runs a projection to build it anew, and wait until it has
    #[command(
        after_help = "Readers see the old view until the new one is swapped in whole. The \
                            request stays until it is served, also when this command is \
                            ended.\n\nExample: tidegate projection rebuild order_totals"
    )]
    Rebuild(ProjectionRebuild),
    /// Forget a projection that is gone for good: the log stops being kept for it
    #[command(
        after_help = "Its tables stay. Should it run again, it begins with the first event \
                            of the log.\n\nExample: tidegate projection forget order_totals --yes"
    )]
    Forget {
        /// The projection
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        at: StoreAt,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ProjectionRebuild {
    /// The projection
    pub(crate) name: String,
    /// Do not wait
    #[arg(long, conflicts_with_all = ["timeout", "withdraw"])]
    pub(crate) no_wait: bool,
    /// Wait so long at most, such as 10m [default: until it is done]
    #[arg(long, value_parser = parse_wait)]
    pub(crate) timeout: Option<Duration>,
    /// Build it from the events that are left, where retention has removed some
    #[arg(long, conflicts_with = "withdraw")]
    pub(crate) partial: bool,
    /// Take the request back
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) withdraw: bool,
    #[command(flatten)]
    pub(crate) at: StoreAt,
}

/// Where a queue is.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreAt {
    /// The database [default: `store.url` of the configuration]
    #[arg(long = "store", value_name = "URL")]
    pub(crate) store: Option<String>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

/// An event, as people name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventRef {
    Number(i64),
    Id(EventId),
}

pub(super) fn parse_event(text: &str) -> Result<EventRef, String> {
    if let Ok(number) = text.parse::<i64>() {
        return Ok(EventRef::Number(number));
    }
    let id = text.parse::<EventId>().map(EventRef::Id);
    id.map_err(|_| "an event is named by its number, such as 17, or by its id, a UUID".to_owned())
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    let span = tidegate_config::parse_duration(text);
    span.ok_or_else(|| "write it as 30s, 10m or 1h30m".to_owned())
}
