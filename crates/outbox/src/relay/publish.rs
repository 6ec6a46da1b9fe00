//! Publishing a batch, and finding out which of its rows the log refuses.

use std::collections::BTreeSet;

use tidegate_core::{Classify, Code, FailureClass, Topic, error_chain};
use tidegate_log::{Append, Log, LogError};

use super::keeper::make_dlq;
use super::state::RelayShared;
use crate::OutboxOptions;
use crate::dead_letter::{GiveUp, dead_letter_of, dlq_of};
use crate::decide::PublishOutcome;
use crate::port::ClaimedRow;
use crate::record::{append_of, topic_of};

/// The end of publishing a batch.
#[derive(Debug)]
pub(super) struct Publication {
    /// How it ended for each row.
    pub(super) outcomes: Vec<PublishOutcome>,
    /// Why the log took nothing more.
    pub(super) away: Option<LogError>,
}

/// The thing that an error of the log is about.
enum Blame {
    /// Every record of a topic that is not there.
    Topic(Topic),
    /// One of the records, and nobody said which; none was added.
    Record,
    /// The log itself.
    Log,
}

fn blame(error: &LogError) -> Blame {
    match error {
        LogError::UnknownTopic { topic } => Blame::Topic(topic.clone()),
        LogError::RecordTooLarge { .. }
        | LogError::HeaderTooLong { .. }
        | LogError::CommitTooLarge { .. }
        | LogError::UnknownPartition { .. } => Blame::Record,
        LogError::Remote { code, .. } => match code.as_str() {
            "log.unknown-topic"
            | "log.record-too-large"
            | "log.header-too-long"
            | "log.commit-too-large"
            | "http.body-too-large" => Blame::Record,
            _ => Blame::Log,
        },
        LogError::TopicConfig { .. }
        | LogError::MetadataTooLong { .. }
        | LogError::MetadataNotAscii { .. }
        | LogError::Full { .. }
        | LogError::Overloaded { .. }
        | LogError::Fenced { .. }
        | LogError::OffsetRegressed { .. }
        | LogError::PrecedingCommitFailed { .. }
        | LogError::OutOfRange { .. }
        | LogError::Damaged { .. }
        | LogError::Closed
        | LogError::OutcomeUnknown { .. }
        | LogError::Unavailable { .. }
        | LogError::Login { .. }
        | LogError::Refused { .. }
        | LogError::Locked { .. }
        | LogError::Format { .. }
        | LogError::Disk { .. }
        | LogError::Stopped { .. } => Blame::Log,
    }
}

/// A missing topic may be made by somebody any moment; a record that does not fit never will.
fn failed(error: &LogError) -> PublishOutcome {
    let class = match error.class() {
        FailureClass::Permanent => FailureClass::Permanent,
        FailureClass::Transient | FailureClass::System => FailureClass::Transient,
    };
    PublishOutcome::Failed {
        class,
        code: error.code(),
        message: error_chain(error),
    }
}

/// Publishes rows in their order. A row that the log refuses holds up the rest of its key, and nothing else.
///
/// `is_alone` says that rows are tried one by one, because a batch ended without a word about which of
/// its records was at fault. A row that ends so on its own has failed.
pub(super) async fn publish(
    log: &dyn Log,
    options: &OutboxOptions,
    shared: &RelayShared,
    rows: &[ClaimedRow],
    is_alone: bool,
) -> Publication {
    let mut batch = BatchInProgress {
        rows,
        outcomes: vec![PublishOutcome::LogAway; rows.len()],
        appends: Vec::with_capacity(rows.len()),
        held_up: BTreeSet::new(),
    };
    batch.prepare(options);
    let all: Vec<usize> = (0..rows.len()).collect();
    // The list on top goes first.
    let mut stack = vec![all];
    while let Some(mut list) = stack.pop() {
        batch.pass_over_held_up(&mut list);
        if list.is_empty() {
            continue;
        }
        let appends = list
            .iter()
            .filter_map(|i| batch.appends.get(*i).cloned().flatten());
        let error = match log.append(appends.collect()).await {
            Ok(_) => {
                for index in list {
                    batch.outcomes[index] = PublishOutcome::Published;
                    if let Some(Some(append)) = batch.appends.get(index) {
                        shared.topic_found(append.topic.as_str());
                    }
                }
                continue;
            }
            Err(error) => error,
        };
        let is_unknown = matches!(error, LogError::OutcomeUnknown { .. });
        match (blame(&error), list.as_slice()) {
            (Blame::Topic(topic), _) => {
                shared.topic_missing(topic.as_str());
                let (gone, rest) = list.into_iter().partition(|i| batch.is_for(*i, &topic));
                batch.fail(gone, &error);
                stack.push(rest);
            }
            (Blame::Record, [_]) => batch.fail(list, &error),
            (Blame::Log, [_]) if is_unknown && is_alone => batch.fail(list, &error),
            (Blame::Record, _) => {
                let second = list.split_off(list.len() / 2);
                stack.push(second);
                stack.push(list);
            }
            (Blame::Log, _) => {
                return Publication {
                    outcomes: batch.outcomes,
                    away: Some(error),
                };
            }
        }
    }
    Publication {
        outcomes: batch.outcomes,
        away: None,
    }
}

struct BatchInProgress<'a> {
    rows: &'a [ClaimedRow],
    outcomes: Vec<PublishOutcome>,
    appends: Vec<Option<Append>>,
    /// Keys of which a row failed.
    held_up: BTreeSet<&'a str>,
}

impl<'a> BatchInProgress<'a> {
    /// Makes records of the rows. Those that cannot become one have failed.
    fn prepare(&mut self, options: &OutboxOptions) {
        for (index, row) in self.rows.iter().enumerate() {
            let append = match append_of(row, options) {
                Ok(append) => Some(append),
                Err(error) => {
                    self.outcomes[index] = PublishOutcome::Failed {
                        class: FailureClass::Permanent,
                        code: Code::from_static("outbox.row"),
                        message: error.to_string(),
                    };
                    None
                }
            };
            self.appends.push(append);
        }
    }

    fn is_for(&self, index: usize, topic: &Topic) -> bool {
        let append = self.appends.get(index).and_then(Option::as_ref);
        append.is_some_and(|append| append.topic == *topic)
    }

    /// Takes rows out of the list that come behind one that failed, or that are none themselves.
    fn pass_over_held_up(&mut self, list: &mut Vec<usize>) {
        let mut kept = Vec::with_capacity(list.len());
        for index in list.drain(..) {
            let key = self.rows[index].aggregate_id.as_str();
            if self.held_up.contains(key) {
                self.outcomes[index] = PublishOutcome::Behind;
            } else if self.appends[index].is_none() {
                self.held_up.insert(key);
            } else {
                kept.push(index);
            }
        }
        *list = kept;
    }

    /// The first row of each key has failed; the others are behind it.
    fn fail(&mut self, list: Vec<usize>, error: &LogError) {
        for index in list {
            let rows: &'a [ClaimedRow] = self.rows;
            let is_first = self.held_up.insert(rows[index].aggregate_id.as_str());
            self.outcomes[index] = match is_first {
                true => failed(error),
                false => PublishOutcome::Behind,
            };
        }
    }
}

/// How giving up on a row ended.
pub(super) enum Buried {
    /// Its dead letter is written, with or without the payload.
    Done,
    /// It cannot be written, for this reason.
    Refused(String),
    /// The log takes nothing at present.
    LogAway(LogError),
}

/// Writes the dead letter of a row. A payload that the topic refuses stays in the row, and the letter says how
/// large it is.
pub(super) async fn bury(
    log: &dyn Log,
    options: &OutboxOptions,
    row: &ClaimedRow,
    why: &GiveUp,
) -> Buried {
    let mut has_payload = true;
    let mut is_made = false;
    loop {
        let Some(append) = dead_letter_of(row, options, why, has_payload) else {
            return Buried::Refused("the topic of dead letters has no name".to_owned());
        };
        let error = match log.append(vec![append]).await {
            Ok(_) => return Buried::Done,
            Err(error) => error,
        };
        match (blame(&error), dlq_of(row, options)) {
            (Blame::Topic(_), Some(dlq)) if !is_made => {
                let meant = topic_of(row, options).ok();
                if let Err(error) = make_dlq(log, &dlq, meant.as_ref()).await {
                    return Buried::LogAway(error);
                }
                is_made = true;
            }
            (Blame::Record, _) if has_payload => has_payload = false,
            (Blame::Record | Blame::Topic(_), _) => return Buried::Refused(error_chain(&error)),
            (Blame::Log, _) => return Buried::LogAway(error),
        }
    }
}
