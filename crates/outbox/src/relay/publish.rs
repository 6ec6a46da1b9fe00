//! Publishing a batch, and finding out which of its rows the log refuses.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{Classify, Code, FailureClass, Topic, error_chain};
use tidegate_log::{Append, Log, LogError};

use super::state::RelayShared;
use crate::OutboxOptions;
use crate::decide::PublishOutcome;
use crate::error::with_code;
use crate::port::ClaimedRow;
use crate::record::append_of;

/// The end of publishing a batch.
#[derive(Debug)]
pub(super) struct Publication {
    /// How it ended for each row.
    pub(super) outcomes: Vec<PublishOutcome>,
    /// Why the log took nothing more.
    pub(super) away: Option<LogError>,
    /// The rows that the log refused while it took later ones of their keys.
    pub(super) overtaken: Vec<usize>,
}

/// The thing that an error of the log is about.
pub(super) enum Blame {
    /// Every record of a topic that is not there, or that the broker keeps from us.
    Topic(Topic),
    /// A record, which may be another one of the same call; it was not added.
    Record,
    /// The log itself: no record is to blame, and it may have been added.
    Log,
}

pub(super) fn blame(error: &LogError) -> Blame {
    match error {
        LogError::UnknownTopic { topic } | LogError::Forbidden { topic, .. } => {
            Blame::Topic(topic.clone())
        }
        LogError::RecordTooLarge { .. }
        | LogError::RecordRefused { .. }
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
        | LogError::UnknownGroup { .. }
        | LogError::Unread { .. }
        | LogError::InUse { .. }
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
/// A log that is away is waited for, with the records on their way: they are not handed over a second time.
pub(super) async fn publish(
    log: &dyn Log,
    options: &OutboxOptions,
    shared: &RelayShared,
    rows: &[ClaimedRow],
) -> Publication {
    let mut batch = BatchInProgress {
        rows,
        outcomes: vec![PublishOutcome::LogAway; rows.len()],
        appends: Vec::with_capacity(rows.len()),
        held_up: BTreeSet::new(),
        answered: None,
        calls: vec![None; rows.len()],
    };
    batch.prepare(options);
    let all: Vec<usize> = (0..rows.len()).collect();
    // The list on top goes first.
    let mut stack = vec![all];
    let (mut away, mut call, mut has_refused) = (None, 0, false);
    while let (Some(mut list), None) = (stack.pop(), &away) {
        batch.pass_over_held_up(&mut list);
        if list.is_empty() {
            continue;
        }
        let later = batch.split_by_topic(&mut list);
        if !later.is_empty() {
            stack.push(later);
        }
        let appends = list
            .iter()
            .filter_map(|i| batch.appends.get(*i).cloned().flatten());
        let is_single = list.len() == 1;
        call += 1;
        let mut again = Vec::new();
        match log.deliver(appends.collect()).await {
            Ok(outcomes) => {
                for (index, outcome) in list.into_iter().zip(outcomes) {
                    let error = match outcome {
                        Ok(()) => {
                            batch.published(index, call, shared);
                            continue;
                        }
                        Err(error) => error,
                    };
                    has_refused = true;
                    match blame(&error) {
                        Blame::Topic(topic) => {
                            shared.topic_failed(&topic, with_code(&error.code(), &error));
                            batch.fail(vec![index], &error);
                        }
                        Blame::Record if is_single => batch.fail(vec![index], &error),
                        Blame::Record => again.push(index),
                        Blame::Log => away = Some(error),
                    }
                }
            }
            Err(error) => match blame(&error) {
                Blame::Topic(topic) => {
                    shared.topic_failed(&topic, with_code(&error.code(), &error));
                    let (gone, rest) = list.into_iter().partition(|i| batch.is_for(*i, &topic));
                    batch.fail(gone, &error);
                    stack.push(rest);
                }
                Blame::Record if is_single => batch.fail(list, &error),
                Blame::Record => again = list,
                Blame::Log => away = Some(error),
            },
        }
        // Nobody said which of them is at fault.
        if !again.is_empty() {
            let second = again.split_off(again.len() / 2);
            stack.push(second);
            stack.push(again);
        }
    }
    let overtaken = match has_refused {
        true => batch.overtaken(),
        false => Vec::new(),
    };
    Publication {
        outcomes: batch.outcomes,
        away,
        overtaken,
    }
}

struct BatchInProgress<'a> {
    rows: &'a [ClaimedRow],
    outcomes: Vec<PublishOutcome>,
    appends: Vec<Option<Append>>,
    /// Keys of which a row failed.
    held_up: BTreeSet<&'a str>,
    /// The topic that took a record last.
    answered: Option<Topic>,
    /// The call that published each row.
    calls: Vec<Option<u32>>,
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

    /// Takes rows out of the list that come behind one of their key for another topic. A topic that refuses its
    /// record must hold them up, and the topics of one call do not wait for each other.
    fn split_by_topic(&self, list: &mut Vec<usize>) -> Vec<usize> {
        let topic_of = |index: usize| self.appends[index].as_ref().map(|append| &append.topic);
        let first = list.first().map(|index| topic_of(*index));
        if list.iter().all(|index| Some(topic_of(*index)) == first) {
            return Vec::new();
        }
        // The topic of each key; none once a row of it is left for later.
        let mut topics = BTreeMap::new();
        let (now, later) = list.drain(..).partition(|index| {
            let key = self.rows[*index].aggregate_id.as_str();
            let topic = topic_of(*index);
            let kept = topics.entry(key).or_insert(topic);
            if *kept != topic {
                *kept = None;
            }
            kept.is_some()
        });
        *list = now;
        later
    }

    /// The rows that are behind later ones of their keys now: those were in an earlier call.
    fn overtaken(&self) -> Vec<usize> {
        let mut earliest: BTreeMap<&str, u32> = BTreeMap::new();
        let mut overtaken = Vec::new();
        for (index, row) in self.rows.iter().enumerate().rev() {
            let key = row.aggregate_id.as_str();
            let call = self.calls[index];
            let later = earliest.get(key).copied();
            let is_behind = matches!(self.outcomes[index], PublishOutcome::Failed { .. });
            if later.is_some_and(|later| call.map_or(is_behind, |call| call > later)) {
                overtaken.push(index);
            }
            if let Some(call) = call {
                earliest.insert(key, later.map_or(call, |later| later.min(call)));
            }
        }
        overtaken.reverse();
        overtaken
    }

    fn published(&mut self, index: usize, call: u32, shared: &RelayShared) {
        self.outcomes[index] = PublishOutcome::Published;
        self.calls[index] = Some(call);
        if let Some(Some(append)) = self.appends.get(index)
            && self.answered.as_ref() != Some(&append.topic)
        {
            shared.topic_answered(append.topic.as_str());
            self.answered = Some(append.topic.clone());
        }
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
