//! What people are told when a log does not do what it is asked.

use tidegate_log::LogError;

use crate::report::Report;

/// The report of a failure, with its code and what to do about it.
pub(crate) fn report(error: &LogError) -> Report {
    let report = Report::coded(&error.code(), error.to_string());
    match hint(error) {
        Some(hint) => report.with_hint(hint),
        None => report,
    }
}

fn hint(error: &LogError) -> Option<String> {
    Some(match error {
        LogError::UnknownTopic { topic } => format!(
            "put it under `log.topics` in the configuration, or try it with `--set \
             log.topics.{topic}.partitions=4`; `tidegate log ls` lists what is there"
        ),
        LogError::Locked { .. } => {
            "stop that process, or start it as `tidegate run`, which answers for the directory"
                .to_owned()
        }
        LogError::Away { .. } => {
            "is the broker up? see `log.clusters.default.bootstrap-servers`".to_owned()
        }
        LogError::Login { settings, .. } => {
            format!("check {settings} under `log.clusters.default.properties`")
        }
        LogError::Damaged { .. } => {
            "see what `tidegate log check` finds; nothing was changed".to_owned()
        }
        LogError::Format { .. } => {
            "nothing was changed; use the version that wrote it, or put back a backup of the \
             directory: without its manifest nobody can say what is missing"
                .to_owned()
        }
        LogError::Full { .. } => {
            "let the groups read on, shorten `retention`, or raise `log.embedded.max-size`"
                .to_owned()
        }
        LogError::Elsewhere { code, .. } => match code.as_str() {
            "log.away" => "is `tidegate run` still running there?".to_owned(),
            "log.full" => {
                "let the groups read on, shorten `retention`, or raise `log.embedded.max-size`"
                    .to_owned()
            }
            "http.unauthorized" => "give its token by `--token` or `server.token`".to_owned(),
            _ => "that process tells more in its own log and under `/health`".to_owned(),
        },
        LogError::Unknown { .. } => {
            "look with `tidegate where ID` before sending again: it may be there".to_owned()
        }
        LogError::UnknownPartition { .. }
        | LogError::TopicConfig { .. }
        | LogError::RecordTooLarge { .. }
        | LogError::CommitTooLarge { .. }
        | LogError::MetadataTooLong { .. }
        | LogError::MetadataNotAscii { .. }
        | LogError::Busy { .. }
        | LogError::Fenced { .. }
        | LogError::WentBack { .. }
        | LogError::OutOfRange { .. }
        | LogError::Closed
        | LogError::Refused { .. }
        | LogError::Disk { .. }
        | LogError::Stopped { .. }
        | _ => return None,
    })
}
