//! The command line.

mod flow;
mod group;
mod outbox;
mod queue;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::tail::{From, parse_from};
pub(crate) use flow::{FlowArgs, FlowExplain};
pub(crate) use group::{
    GroupArgs, GroupSeekArgs, GroupShow, LogTarget, RetentionArg, TopicArgs, TopicCreate,
};
pub(crate) use outbox::{
    OutboxArgs, OutboxAt, OutboxLs, OutboxPurge, OutboxRetry, PurgeStatusArg, RowStatusArg,
};
pub(crate) use queue::{
    EventRef, ProjectionArgs, ProjectionRebuild, QueueArgs, QueueLs, QueuePublish, QueueRetry,
    SqlDialect, StatusArg, StoreAt,
};
pub(crate) use stage::{StageArgs, StageStateArgs};

/// How often `--watch` may show something, in seconds.
const WATCH_SECONDS: std::ops::RangeInclusive<u64> = 1..=3600;

/// The heading of the options that every command has.
const GLOBAL: &str = "Global options";

/// A zero-loss event backbone: every accepted event is in one place, and can be shown to be.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(
    after_help = "Exit codes: 0 ok · 1 failed · 2 usage · 3 findings · 4 loss, or too many duplicates"
)]
pub(crate) struct Arguments {
    /// How results are written [default: table]; `--json` is `-o json`
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table,
          value_name = "table|json", help_heading = GLOBAL, hide_possible_values = true,
          hide_default_value = true)]
    pub(crate) output: Output,

    /// The same as `-o json`
    #[arg(long, global = true, hide = true)]
    pub(crate) json: bool,

    /// How log lines are written to standard error [default: text]
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text,
          value_name = "text|json", help_heading = GLOBAL, hide_possible_values = true,
          hide_default_value = true)]
    pub(crate) log_format: LogFormat,

    /// Which log lines are written, such as `debug` [default: info]
    #[arg(long, global = true, env = "TIDEGATE_LOG", default_value = "info", value_name = "FILTER",
          help_heading = GLOBAL, hide_env = true, hide_default_value = true, hide_short_help = true)]
    pub(crate) log: String,

    #[command(subcommand)]
    pub(crate) command: CommandArgs,
}

impl Arguments {
    /// How results are written.
    pub(crate) fn output(&self) -> Output {
        match self.json {
            true => Output::Json,
            false => self.output,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// For programs: one JSON document; one per line where results come one by one
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text per event
    Text,
    /// One JSON object per event
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CommandArgs {
    /// Show an outage or a crash without a loss, with nothing installed
    #[cfg(feature = "demo")]
    #[command(after_long_help = "Examples:\n  tidegate demo\n  tidegate demo log --seed 7")]
    Demo(DemoArgs),
    /// Start what is configured and run until SIGTERM or Ctrl-C
    #[command(
        after_long_help = "Example: tidegate run -c tidegate.yaml --set server.listen=127.0.0.1:9000"
    )]
    Run(RunArgs),
    /// Write a configuration file to begin with
    #[command(after_long_help = "Example: tidegate init")]
    Init {
        /// The file, which must not be there
        #[arg(default_value = "tidegate.yaml")]
        file: PathBuf,
    },
    /// Check a configuration file and report everything that is wrong with it
    #[command(after_long_help = "Example: tidegate check tidegate.yaml -o json")]
    Check {
        /// The file to check; `-` is standard input
        #[arg(default_value = "tidegate.yaml")]
        file: PathBuf,
        /// Events per second, for the note on how long the spill lasts
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
        rate: u64,
    },
    /// Look at all that `run` needs on this machine, and say what to do
    #[command(
        after_long_help = "Examples:\n  tidegate doctor -c tidegate.yaml\n  tidegate doctor --bundle support.json"
    )]
    Doctor {
        #[command(flatten)]
        file: ConfigFile,
        /// Write a new file for whoever helps: names, numbers and settings, without secrets and without
        /// anything of an event
        #[arg(long, value_name = "FILE")]
        bundle: Option<PathBuf>,
    },
    /// Put a small load on the log or the queue, and show how long each call takes
    #[command(
        after_long_help = "Examples:\n  tidegate bench log\n  tidegate bench queue --events 50000 --concurrency 64"
    )]
    Bench(BenchArgs),
    /// Check, format, explain or test flow files
    #[command(subcommand)]
    Flow(FlowArgs),
    /// Explain an error code: what happened, what is safe, what to do
    #[command(
        after_long_help = "Examples:\n  tidegate explain log.missing\n  tidegate explain TG0301"
    )]
    Explain {
        /// The code, such as log.missing or TG0301
        code: String,
    },
    /// Show the configuration, or what may stand in it
    #[command(subcommand)]
    Config(ConfigArgs),
    /// Show where the events of a running process are
    #[command(after_long_help = "Example: tidegate ledger --url http://127.0.0.1:8080")]
    Ledger(LedgerCommand),
    /// Recount all events where they are, and compare that with the books
    #[command(
        after_long_help = "Examples:\n  tidegate audit\n  tidegate audit --witness /backup/tidegate.witness\n  \
                           tidegate audit --log-dir ./data/log --direct"
    )]
    Audit(AuditCommand),
    /// Say where an event is
    #[command(
        after_long_help = "Examples:\n  tidegate where 019a8f3e-5c00-7abc-8def-0123456789ab\n  tidegate where - \
                           < ids.txt"
    )]
    Where {
        /// The id of the event; `-` reads ids from standard input, one per line
        #[arg(value_parser = parse_where)]
        id: WhereArg,
        #[command(flatten)]
        books: AuditArgs,
    },
    /// Add records to a topic: one per line of standard input, or one value
    #[command(
        after_long_help = "Examples:\n  tidegate send orders --value hello --key ada\n  tidegate send orders < \
                           values.txt"
    )]
    Send(SendArgs),
    /// Show the records of a topic, and those that come
    #[command(
        after_long_help = "Examples:\n  tidegate tail orders\n  tidegate tail orders --from -1h --until end -o json"
    )]
    Tail(TailArgs),
    /// List, make or remove topics, wherever the log is
    #[command(subcommand)]
    Topic(TopicArgs),
    /// List, move or forget the groups that read topics
    #[command(subcommand)]
    Group(GroupArgs),
    /// List, check or repair the directory of an embedded log
    #[command(subcommand)]
    Log(LogArgs),
    /// List, check or replay a spill directory
    #[command(subcommand)]
    Spill(SpillArgs),
    /// Look at the durable queue, publish into it, and mend what failed
    #[command(subcommand)]
    Queue(QueueArgs),
    /// Look at the rows of an outbox, and mend what failed
    #[command(subcommand)]
    Outbox(OutboxArgs),
    /// Look at the stages of a running process, and at the records that wait in them
    #[command(subcommand)]
    Stage(StageArgs),
    /// List or rebuild the read models that are made from the queue's log
    #[command(subcommand)]
    Projection(ProjectionArgs),
    /// Write the completions for a shell to standard output
    #[command(
        after_long_help = "Example: tidegate completions bash > /etc/bash_completion.d/tidegate"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual page to standard output
    #[command(after_long_help = "Example: tidegate man > tidegate.1")]
    Man,
}

#[cfg(feature = "demo")]
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Which one: `outage`, a real Event Log API that is stopped while a service logs to it; `retry`, a
    /// service that fails and is down; `log`, a consumer that dies and a power cut; `queue`, orders in
    /// a database and a dispatcher that is killed; `outbox`, rows on their way to a topic, and a relay
    /// that is killed; `poison`, records that nobody can handle, and an outage; `await`, orders that wait
    /// seven days for their payments, and a machine that dies
    #[arg(default_value = crate::demo::OutageStory::NAME,
          value_parser = [crate::demo::OutageStory::NAME, crate::demo::RetryStory::NAME,
                          crate::demo::LogStory::NAME, crate::demo::QueueStory::NAME,
                          crate::demo::OutboxStory::NAME, crate::demo::PoisonStory::NAME,
                          crate::demo::AwaitStory::NAME])]
    pub(crate) name: String,
    /// Tell the same story again: the seed that an earlier run printed (`retry`, `log`, `queue`,
    /// `outbox`, `poison`, `await`)
    #[arg(long, value_parser = parse_seed)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) outage: OutageArgs,
}

/// The options of `demo outage`.
#[cfg(feature = "demo")]
#[derive(Debug, Args)]
pub(crate) struct OutageArgs {
    /// Show it in a few seconds, with a breaker and a replay that wait one second (`outage`)
    #[arg(long)]
    pub(crate) fast: bool,
    /// Draw accepted, delivered and on disk over time, as SVG (`outage`)
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
    /// Keep all files in this new or empty directory (`outage`)
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Kill the API with SIGKILL in the outage, and again at a moment of the recovery that follows from
    /// the seed; for tests
    #[arg(long, hide = true, value_name = "SEED", value_parser = parse_seed)]
    pub(crate) kill: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Stop also when standard input ends, as it does when the parent process ends
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigFile {
    /// The configuration file; `-` is standard input [default: tidegate.yaml, where there is one]
    #[arg(short, long, env = "TIDEGATE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Set one key, as in `--set server.listen=127.0.0.1:9000`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) set: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigArgs {
    /// The values that hold, defaults included
    #[command(after_long_help = "Example: tidegate config show --origin")]
    Show {
        #[command(flatten)]
        file: ConfigFile,
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// The JSON Schema of the file, for editors
    #[command(after_long_help = "Example: tidegate config schema > tidegate.schema.json")]
    Schema,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerCommand {
    #[command(flatten)]
    pub(crate) at: LedgerArgs,
    /// Show it again every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(WATCH_SECONDS))]
    pub(crate) watch: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Where the process listens [default: `server.listen` of the configuration]
    #[arg(long, value_parser = parse_url)]
    pub(crate) url: Option<String>,
    /// Its token [default: without `--url`, `server.token` of the configuration]
    #[arg(long, env = "TIDEGATE_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SpillDirs {
    /// A spill directory; may be repeated [default: `eventlog.async.spillover-path` of the
    /// configuration]
    #[arg(long = "spill", value_name = "DIR")]
    pub(crate) spill: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SpillArgs {
    /// List its files, with what waits in them
    #[command(after_long_help = "Example: tidegate spill ls ./spillover")]
    Ls {
        /// The directory
        dir: PathBuf,
    },
    /// Check that every line can be read and none is missing
    #[command(after_long_help = "Example: tidegate spill check ./spillover")]
    Check {
        /// The directory
        dir: PathBuf,
    },
    /// Send what waits in it to an Event Log API
    #[command(
        after_long_help = "Example: tidegate spill replay ./spillover --url http://127.0.0.1:8080 --yes"
    )]
    Replay(ReplayArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The directory; no logger may be running on it
    pub(crate) dir: PathBuf,
    /// The Event Log API
    #[arg(long)]
    pub(crate) url: String,
    /// Its token
    #[arg(long, env = "TIDEGATE_EVENTLOG_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Where a log is, if not where the configuration says.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LogAt {
    /// The directory of an embedded log [default: `log.embedded.path` of the configuration]
    #[arg(long = "log-dir", value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The process that has the log open, wherever it runs [default: the one that holds the
    /// directory, if any]
    #[arg(long, conflicts_with = "dir", value_parser = parse_url)]
    pub(crate) url: Option<String>,
    /// Its token [default: `server.token` of the configuration, for a process on this machine]
    #[arg(long, env = "TIDEGATE_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) spills: SpillDirs,
    #[command(flatten)]
    pub(crate) at: LogAt,
    /// The database of a queue or of the Event Log API [default: `store.url` of the configuration]
    #[arg(long = "store", value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Read the files as they are, without a lock and without asking the process that has them
    #[arg(long, conflicts_with = "url")]
    pub(crate) direct: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AuditCommand {
    #[command(flatten)]
    pub(crate) books: AuditArgs,
    /// Compare with this file, which is kept elsewhere, and write the numbers of today to it if nothing
    /// is lost [default: compare with `audit.witness` of the configuration]
    #[arg(long, value_name = "FILE")]
    pub(crate) witness: Option<PathBuf>,
    /// Write the witness although it knows of events that are gone: they are forgotten
    #[arg(long, requires = "witness")]
    pub(crate) accept: bool,
    /// Do not ask
    #[arg(long, requires = "accept")]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The topic
    pub(crate) topic: String,
    /// The value of one record, instead of standard input
    #[arg(long, conflicts_with = "tombstone")]
    pub(crate) value: Option<String>,
    /// Send one record without a value: where a topic is compacted, its key is forgotten
    #[arg(long, requires = "key")]
    pub(crate) tombstone: bool,
    /// The key of each record
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Each line is a key, this text, and the value
    #[arg(short = 'K', long, value_name = "TEXT", conflicts_with_all = ["key", "value", "tombstone"])]
    pub(crate) key_separator: Option<String>,
    /// How lines are read: `json` takes objects with key, value, headers, partition, id
    #[arg(long, value_enum, default_value_t = LineFormat::Text, hide_possible_values = true,
          value_name = "text|json", conflicts_with_all = ["value", "key_separator"])]
    pub(crate) format: LineFormat,
    /// Begin at this line of the input, counted from 1
    #[arg(long, value_name = "N", conflicts_with = "value",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) from_line: Option<u64>,
    /// How long a log that is away is waited for
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = parse_span)]
    pub(crate) wait: Duration,
    /// A header of each record; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = parse_header)]
    pub(crate) headers: Vec<(String, String)>,
    /// The partition [default: the key decides; without a key, one after the other]
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partition: Option<i32>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) at: LogAt,
}

/// The part that a bench loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTarget {
    /// Appends to a topic of its own
    Log,
    /// Events of a type of its own, published and handled
    Queue,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The part that is loaded
    #[arg(value_enum)]
    pub(crate) target: BenchTarget,
    /// How many events
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) events: u64,
    /// The bytes of each
    #[arg(long, default_value_t = 200)]
    pub(crate) size: usize,
    /// Events of one call
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) batch: u64,
    /// Calls at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) concurrency: u32,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) at: LogAt,
    /// The database of the queue [default: `store.url` of the configuration]
    #[arg(long = "store", value_name = "URL")]
    pub(crate) store: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LineFormat {
    /// The line is the value
    Text,
    /// The line is a JSON object
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// The topic
    pub(crate) topic: String,
    /// Where to begin: `earliest`, `latest`, an offset, a time such as 2026-05-01T12:00:00Z, or a
    /// span such as -1h [default: latest; with `--until end`, earliest]
    #[arg(long, value_parser = parse_from, allow_hyphen_values = true)]
    pub(crate) from: Option<From>,
    /// Stop at the end as it is now, instead of waiting for more
    #[arg(long, value_enum)]
    pub(crate) until: Option<Until>,
    /// Only this partition
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) partition: Option<i32>,
    /// Begin so many records before the end of each partition
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "from")]
    pub(crate) last: Option<u32>,
    /// Only records with this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// How each is shown: %k key, %v value, %t topic, %p partition, %o offset, %T time, %i id,
    /// %h headers
    #[arg(short = 'f', long, value_name = "TEXT")]
    pub(crate) format: Option<String>,
    /// Stop after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: Option<u64>,
    /// Read the files as they are, without a lock and without asking the process that has them
    #[arg(long, conflicts_with = "url")]
    pub(crate) direct: bool,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) at: LogAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// The end of each partition when the command begins
    End,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogArgs {
    /// List its topics, their partitions, and how far groups are
    #[command(after_long_help = "Example: tidegate log ls ./data/log")]
    Ls(LogDir),
    /// Read everything in it and say what is not as it should be
    #[command(after_long_help = "Example: tidegate log check ./data/log")]
    Check(LogDir),
    /// Make it whole: damaged records are kept aside and counted as lost
    #[command(after_long_help = "Example: tidegate log repair ./data/log --yes")]
    Repair {
        #[command(flatten)]
        dir: LogDir,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LogDir {
    /// The directory [default: `log.embedded.path` of the configuration]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

/// The events that are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhereArg {
    /// One.
    Event(tidegate_core::EventId),
    /// Those of standard input.
    Input,
}

fn parse_where(text: &str) -> Result<WhereArg, String> {
    match text {
        "-" => Ok(WhereArg::Input),
        id => id
            .parse()
            .map(WhereArg::Event)
            .map_err(|error| format!("{error}")),
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    match rest {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        Some(_) | None => Err("write it as http://HOST:PORT".to_owned()),
    }
}

fn parse_span(text: &str) -> Result<Duration, String> {
    let span = tidegate_config::parse_duration(text);
    span.ok_or_else(|| "write a span such as 10s or 1m30s".to_owned())
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    parse_pair(text).map_err(|_| "write it as NAME=VALUE".to_owned())
}

#[cfg(feature = "demo")]
fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a seed is a number such as 7 or 0x5f3a".to_owned())
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("write it as KEY=VALUE".to_owned()),
    }
}
