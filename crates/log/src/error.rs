//! Errors of a log.

use std::io;
use std::path::PathBuf;

use tidegate_core::{Classify, Code, Failure, FailureClass, GroupName, Offset, Topic};

use crate::embedded::LockHolder;
use crate::record::{RecordHeaderError, TopicPartition, offsets_in_words};

/// An error of a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is no topic of that name.
    #[error("topic `{topic}` does not exist; `log.topics` in the configuration creates topics")]
    UnknownTopic {
        /// The name.
        topic: Topic,
    },
    /// The topic has no such partition.
    #[error(
        "partition {at} does not exist; the topic has {partitions} partitions, numbered from 0"
    )]
    UnknownPartition {
        /// The one that was asked for.
        at: TopicPartition,
        /// How many there are.
        partitions: u32,
    },
    /// There is no group of that name.
    #[error("group `{group}` does not exist; `tidegate group ls` lists those that do")]
    UnknownGroup {
        /// The name.
        group: GroupName,
    },
    /// Groups have still to read some of the topic.
    #[error("topic `{topic}` is not read yet by {}", unread_in_words(.groups))]
    Unread {
        /// The topic.
        topic: Topic,
        /// The groups, and how many records each has still to read.
        groups: Vec<(GroupName, u64)>,
    },
    /// Somebody uses it, so that it cannot be changed from outside.
    #[error("{what} is in use: {why}; nothing was changed")]
    InUse {
        /// The group or the topic.
        what: String,
        /// The use.
        why: String,
    },
    /// A topic cannot be set up like that, or is set up otherwise and that cannot be changed.
    #[error("invalid configuration of topic `{topic}`: {why}")]
    TopicConfig {
        /// The name.
        topic: Topic,
        /// The reason.
        why: String,
    },
    /// A record is larger than its topic takes.
    #[error(
        "a record for `{topic}` has {size} bytes and may have at most {limit} (`max-record-size`)"
    )]
    RecordTooLarge {
        /// The topic.
        topic: Topic,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// A header of a record is longer than a log can hold, or its name is no text; nothing is ever cut.
    #[error("a record for `{topic}` cannot be stored: {why}")]
    HeaderTooLong {
        /// The topic.
        topic: Topic,
        /// The header that does not fit.
        why: RecordHeaderError,
    },
    /// A commit is larger than the log takes at once.
    #[error("a commit has {size} bytes and may have at most {limit} (`max-commit-size`)")]
    CommitTooLarge {
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The text of a committed offset is longer than it may be.
    #[error("commit metadata for {at} has {length} bytes and may have at most {limit}")]
    MetadataTooLong {
        /// The partition.
        at: TopicPartition,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The text of a committed offset is not plain ASCII.
    #[error("commit metadata for {at} holds a byte that is not printable ASCII")]
    MetadataNotAscii {
        /// The partition.
        at: TopicPartition,
    },
    /// The log is full; commits that free space still go through.
    #[error("the log is full: {used} of {limit} bytes (`log.embedded.max-size`) are used")]
    Full {
        /// Bytes that are used.
        used: u64,
        /// Bytes that may be.
        limit: u64,
    },
    /// More commits wait for the disk than may.
    #[error(
        "{queued} bytes of commits wait for the disk, and the limit is {limit} (`log.embedded.max-queued-size`)"
    )]
    Overloaded {
        /// Bytes that wait.
        queued: u64,
        /// Bytes that may.
        limit: u64,
    },
    /// The session does not own the partition any more; nothing was changed.
    #[error("this session no longer owns partition {at}; nothing was committed")]
    Fenced {
        /// The partition.
        at: TopicPartition,
    },
    /// A commit has a lower offset than the committed one; nothing was changed.
    #[error(
        "offset {next} of {at} is before the committed offset {committed}; nothing was committed"
    )]
    OffsetRegressed {
        /// The partition.
        at: TopicPartition,
        /// The offset that was to be committed.
        next: Offset,
        /// The committed offset.
        committed: Offset,
    },
    /// An earlier commit of the partition was not done, and this one was called before its caller saw
    /// the error; nothing was changed.
    #[error(
        "an earlier commit of {at} failed, so this one was rejected; continue from the committed offset"
    )]
    PrecedingCommitFailed {
        /// The partition.
        at: TopicPartition,
    },
    /// An offset is not there: removed, or not written yet.
    #[error(
        "offset {asked} of {at} is out of range; the partition begins at {start} and ends before {end}"
    )]
    OutOfRange {
        /// The partition.
        at: TopicPartition,
        /// The one that was asked for.
        asked: Offset,
        /// The first offset that is there.
        start: Offset,
        /// The offset behind the last one.
        end: Offset,
    },
    /// Records are damaged on disk; those around them can be read.
    #[error("{at}: {} cannot be read, being damaged; see `tidegate log check`", offsets_in_words(*.from, *.to))]
    Damaged {
        /// The partition.
        at: TopicPartition,
        /// The first one.
        from: Offset,
        /// The one behind the last.
        to: Offset,
    },
    /// The session has ended, or the log is closed.
    #[error("the log or its session is closed")]
    Closed,
    /// No answer came, so it is unknown whether it was done.
    #[error("the outcome of {doing} is unknown: {why}")]
    OutcomeUnknown {
        /// The operation.
        doing: &'static str,
        /// The reason, as far as it is known.
        why: String,
    },
    /// The broker cannot be reached; it was not done.
    #[error("no broker answers at {servers}: {why}")]
    Unavailable {
        /// The addresses that were tried.
        servers: String,
        /// The reason, as far as it is known.
        why: String,
    },
    /// The broker does not believe who we are, or we do not believe who it is. Asking again will not help.
    #[error("login at {servers} failed: {why}")]
    Login {
        /// The addresses that were tried.
        servers: String,
        /// The answer.
        why: String,
        /// The settings of the client that decide about it, as text.
        settings: &'static str,
    },
    /// The broker refuses us: settings, rights or version. Asking again will not help.
    #[error("the broker refuses {doing}: {why}")]
    Refused {
        /// The operation.
        doing: &'static str,
        /// The answer.
        why: String,
    },
    /// The broker does not allow us to use this topic.
    #[error("the broker does not allow {doing} for topic `{topic}`: {why}")]
    Forbidden {
        /// The topic.
        topic: Topic,
        /// The operation.
        doing: &'static str,
        /// The answer.
        why: String,
    },
    /// The broker takes others, but not a record like this one.
    #[error("the broker refuses a record for `{topic}`: {why}")]
    RecordRefused {
        /// The topic.
        topic: Topic,
        /// The answer.
        why: String,
    },
    /// The process that has the log refused over HTTP, or did not answer.
    #[error("{why} (the process at {process} has the log)")]
    Remote {
        /// Where that process answers.
        process: String,
        /// The code of its own error.
        code: Code,
        /// The answer.
        why: String,
    },
    /// Another process has the directory.
    #[error("log directory `{dir}` is used by another process ({holder})")]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The holder that its lock file names.
        holder: LockHolder,
    },
    /// The directory holds something that this version does not read.
    #[error("`{path}` cannot be read by this version: {why}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The disk failed.
    #[error("could not {doing} `{path}`: {source}")]
    Disk {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The log stopped taking anything after an earlier failure.
    #[error("the log has stopped: {why}")]
    Stopped {
        /// The failure.
        why: String,
    },
}

/// Groups with what each has still to read.
fn unread_in_words(groups: &[(GroupName, u64)]) -> String {
    let each = groups.iter().map(|(group, count)| {
        let records = if *count == 1 { "record" } else { "records" };
        format!("`{group}` ({count} {records})")
    });
    each.collect::<Vec<_>>().join(", ")
}

impl LogError {
    /// The code by which retry rules and metrics know it.
    #[must_use]
    pub fn code(&self) -> Code {
        self.row().0
    }

    /// The code and the class of each error.
    fn row(&self) -> (Code, FailureClass) {
        use FailureClass::{Permanent, System, Transient};
        let (code, class) = match self {
            // error-page: log.unknown-topic
            Self::UnknownTopic { .. } => ("log.unknown-topic", System),
            Self::UnknownPartition { .. } => ("log.unknown-partition", System),
            Self::UnknownGroup { .. } => ("log.unknown-group", System),
            Self::Unread { .. } => ("log.unread", System),
            Self::InUse { .. } => ("log.in-use", System),
            Self::TopicConfig { .. } => ("log.topic-config", System),
            Self::RecordTooLarge { .. } => ("log.record-too-large", Permanent),
            Self::HeaderTooLong { .. } => ("log.header-too-long", Permanent),
            Self::CommitTooLarge { .. } => ("log.commit-too-large", Permanent),
            Self::MetadataTooLong { .. } => ("log.metadata-too-long", Permanent),
            Self::MetadataNotAscii { .. } => ("log.metadata-not-ascii", Permanent),
            Self::Full { .. } => ("log.full", Transient),
            Self::Overloaded { .. } => ("log.overloaded", Transient),
            Self::Fenced { .. } => ("log.fenced", Transient),
            Self::OffsetRegressed { .. } => ("log.offset-regressed", Permanent),
            Self::PrecedingCommitFailed { .. } => ("log.preceding-commit-failed", Transient),
            Self::OutOfRange { .. } => ("log.out-of-range", System),
            Self::Damaged { .. } => ("log.damaged", System),
            Self::Closed => ("log.closed", Transient),
            Self::OutcomeUnknown { .. } => ("log.outcome-unknown", Transient),
            Self::Unavailable { .. } => ("log.unavailable", Transient),
            // error-page: log.login
            Self::Login { .. } => ("log.login", System),
            Self::Refused { .. } => ("log.refused", System),
            Self::Forbidden { .. } => ("log.forbidden", System),
            Self::RecordRefused { .. } => ("log.record-refused", Permanent),
            Self::Remote { code, .. } => return (code.clone(), class_of_code(code.as_str())),
            Self::Locked { .. } => ("log.locked", System),
            Self::Format { .. } => ("log.format", System),
            // error-page: log.disk
            Self::Disk { .. } => ("log.disk", System),
            // error-page: log.stopped
            Self::Stopped { .. } => ("log.stopped", System),
        };
        (Code::from_static(code), class)
    }
}

impl LogError {
    /// A hint at what to do about it, for people.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        const FULL: &str =
            "let the groups read on, shorten `retention`, or raise `log.embedded.max-size`";
        let hint = match self {
            Self::UnknownTopic { topic } => {
                return Some(format!(
                    "make it with `tidegate topic create {topic}`, or put it under `log.topics` in the \
                     configuration; `tidegate topic ls` lists what is there"
                ));
            }
            Self::Unread { .. } => {
                "let the groups read on, forget those that nobody runs any more, or give `--force`: what they \
                 have not read is lost to them"
            }
            Self::InUse { .. } => {
                "stop whoever uses it, or take it out of the configuration; then try again"
            }
            Self::Login { settings, .. } => {
                return Some(format!(
                    "check {settings} under `log.clusters.default.properties`"
                ));
            }
            Self::Locked { .. } => {
                "stop that process, or start it as `tidegate run`, which answers for the directory"
            }
            Self::Unavailable { .. } => {
                "is the broker up? see `log.clusters.default.bootstrap-servers`"
            }
            Self::Damaged { .. } => "see what `tidegate log check` finds; nothing was changed",
            Self::Format { .. } => {
                "nothing was changed; use the version that wrote it, or put back a backup of the \
                 directory: without its manifest it is unknown what is missing"
            }
            Self::Full { .. } => FULL,
            Self::Remote { code, .. } => match code.as_str() {
                "log.unavailable" => "is `tidegate run` still running there?",
                "log.full" => FULL,
                "http.unauthorized" => "give its token by `--token` or `server.token`",
                _ => "that process tells more in its own log and under `/health`",
            },
            Self::Disk { source, .. } if source.kind() != io::ErrorKind::StorageFull => {
                return None;
            }
            Self::Disk { path, .. } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                match name.starts_with("spare-") || name.starts_with("journal-") {
                    true => {
                        "make room on the disk, or set a smaller `log.embedded.journal-size`: each file of the \
                         journal takes all of it"
                    }
                    false => "make room on the disk; what was acknowledged is there",
                }
            }
            Self::Forbidden { topic, .. } => {
                return Some(format!(
                    "the access rules of the broker must let this user describe and write `{topic}`"
                ));
            }
            Self::OutcomeUnknown { .. } => {
                "look with `tidegate where ID` before sending again: it may be there"
            }
            Self::UnknownPartition { .. }
            | Self::UnknownGroup { .. }
            | Self::TopicConfig { .. }
            | Self::RecordTooLarge { .. }
            | Self::HeaderTooLong { .. }
            | Self::CommitTooLarge { .. }
            | Self::MetadataTooLong { .. }
            | Self::MetadataNotAscii { .. }
            | Self::Overloaded { .. }
            | Self::Fenced { .. }
            | Self::OffsetRegressed { .. }
            | Self::PrecedingCommitFailed { .. }
            | Self::OutOfRange { .. }
            | Self::Closed
            | Self::Refused { .. }
            | Self::RecordRefused { .. }
            | Self::Stopped { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        Self::of(&error, error.code(), error.hint())
    }
}

impl Classify for LogError {
    fn class(&self) -> FailureClass {
        self.row().1
    }
}

/// The class of an error of another process, of which only the code is known.
fn class_of_code(code: &str) -> FailureClass {
    match code {
        "log.full"
        | "log.overloaded"
        | "log.closed"
        | "log.unavailable"
        | "log.outcome-unknown" => FailureClass::Transient,
        "log.record-too-large" | "log.commit-too-large" | "http.body-too-large" => {
            FailureClass::Permanent
        }
        _ => FailureClass::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_for_the_journal_names_the_key_to_change() {
        let full = |name: &str| LogError::Disk {
            doing: "fill",
            path: PathBuf::from("/log").join(name),
            source: io::ErrorKind::StorageFull.into(),
        };
        for name in [
            "spare-0000000000000002",
            "journal-0000000000000002-67108864",
        ] {
            let hint = full(name).hint().unwrap();
            assert!(hint.contains("`log.embedded.journal-size`"), "{hint}");
        }
        let hint = full("0-00000000000000000000-0.seg").hint().unwrap();
        assert!(!hint.contains("journal-size"), "{hint}");
    }

    #[test]
    fn offsets_are_said_in_words() {
        let damaged = |from, to| LogError::Damaged {
            at: TopicPartition::new(Topic::new("orders").unwrap(), 0),
            from: Offset(from),
            to: Offset(to),
        };
        for (from, to, expect) in [(41, 42, "offset 41 "), (41, 44, "offsets 41 to 43 ")] {
            let said = damaged(from, to).to_string();
            assert!(said.contains(expect), "{said}");
        }
        let nowhere = TopicPartition::new(Topic::new("orders").unwrap(), -1);
        assert_eq!(nowhere.to_string(), "orders partition -1");
    }
}
