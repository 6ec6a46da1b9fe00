//! Writing dead letters, and making the topic that they go to.

use tidegate_core::Topic;
use tidegate_log::{Log, LogError, TopicConfig};

use super::RelayParts;
use super::publish::{Blame, blame};
use crate::OutboxOptions;
use crate::dead_letter::{GiveUp, LetterContent, dead_letter_of, dlq_of};
use crate::error::with_code;
use crate::port::ClaimedRow;
use crate::record::topic_of;

/// How writing the dead letter of a row ended.
pub(super) enum DeadLetterOutcome {
    /// It is written, with or without the payload.
    Written,
    /// It cannot be written, for this reason.
    Refused(String),
    /// The log takes nothing at present.
    LogAway(LogError),
}

/// Writes the dead letter of a row. A payload that the topic refuses stays in the row, and the letter says how
/// large it is. Headers that it refuses stay there, too.
pub(super) async fn write_dead_letter(
    log: &dyn Log,
    options: &OutboxOptions,
    row: &ClaimedRow,
    why: &GiveUp,
) -> DeadLetterOutcome {
    let mut content = LetterContent::Whole;
    let mut is_made = false;
    loop {
        let Some(append) = dead_letter_of(row, options, why, content) else {
            let why = "the topic of dead letters has no name";
            return DeadLetterOutcome::Refused(why.to_owned());
        };
        let error = match log.deliver(vec![append]).await {
            Ok(outcomes) => match outcomes.into_iter().find_map(Result::err) {
                None => return DeadLetterOutcome::Written,
                Some(error) => error,
            },
            Err(error) => error,
        };
        match (blame(&error), dlq_of(row, options)) {
            (Blame::Topic(_), Some(dlq)) if is_missing(&error) && !is_made => {
                let meant = topic_of(row, options).ok();
                match make_dlq(log, &dlq, meant.as_ref()).await {
                    Ok(()) => is_made = true,
                    Err(error) if is_refusal(&error) => {
                        return DeadLetterOutcome::Refused(with_code(&error.code(), &error));
                    }
                    Err(error) => return DeadLetterOutcome::LogAway(error),
                }
            }
            (Blame::Record, _) if content == LetterContent::Whole => {
                content = LetterContent::NoPayload;
            }
            (Blame::Record, _) if content == LetterContent::NoPayload => {
                content = LetterContent::KeyOnly;
            }
            (Blame::Record | Blame::Topic(_), _) => {
                return DeadLetterOutcome::Refused(with_code(&error.code(), &error));
            }
            (Blame::Log, _) => return DeadLetterOutcome::LogAway(error),
        }
    }
}

fn is_missing(error: &LogError) -> bool {
    matches!(error, LogError::UnknownTopic { .. })
}

/// Whether an error of making a topic is about that topic alone.
fn is_refusal(error: &LogError) -> bool {
    matches!(
        error,
        LogError::TopicConfig { .. } | LogError::Refused { .. } | LogError::Forbidden { .. }
    )
}

/// Makes the topic of dead letters that is known before any row is. Says whether that is done.
pub(super) async fn make_known_dlq(parts: &RelayParts) -> bool {
    let options = parts.outbox.options();
    let meant = options.topic.as_ref().map(Topic::as_str);
    let name = match (options.dlq_topic.contains("{topic}"), meant) {
        (false, _) => options.dlq_topic.clone(),
        (true, Some(topic)) => options.dlq_of(topic),
        (true, None) => return true,
    };
    let Ok(dlq) = Topic::new(name) else {
        return true;
    };
    match make_dlq(&*parts.log, &dlq, options.topic.as_ref()).await {
        Ok(()) => {
            parts.shared.topic_answered(dlq.as_str());
            true
        }
        Err(error) => {
            parts
                .shared
                .topic_failed(&dlq, with_code(&error.code(), &error));
            false
        }
    }
}

/// Makes a topic of dead letters where it is missing: it keeps everything, and has the partitions of the
/// topic that they were meant for.
async fn make_dlq(log: &dyn Log, dlq: &Topic, meant: Option<&Topic>) -> Result<(), LogError> {
    match log.describe(dlq).await {
        Err(LogError::UnknownTopic { .. }) => {}
        described => return described.map(drop),
    }
    let mut config = TopicConfig::default();
    if let Some(meant) = meant {
        match log.describe(meant).await {
            Ok(described) => config.partitions = described.config.partitions,
            Err(LogError::UnknownTopic { .. } | LogError::Forbidden { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    log.create_topic(dlq, config).await
}
