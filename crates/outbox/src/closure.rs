//! Closes table → topic: each row that is sent is in its topic, each one that is dead among the dead letters.
//!
//! The table is read before the topics. So a relay that runs meanwhile calls nothing sent that is not there
//! yet. Records that a topic may have removed by its retention or by compaction are unverifiable. A topic that is
//! gone is a finding of its own, and so is a dead letter that is: its row still has the event.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::books::{
    AuditFinding, AuditedPath, Bucket, ComponentKind, Discrepancy, NotCompared, Place,
};
use tidegate_core::{EventId, Offset, Topic};
use tidegate_log::embedded::ScannedPartition;
use tidegate_log::{Log, LogDirectory, LogError, Read, TopicPartition};

use crate::OutboxOptions;
use crate::dead_letter::dlq_of_named;
use crate::port::OutboxStatus;
use crate::recount::{Expected, ExpectedEvents, OutboxRecount};

/// Clocks of the database and of the log may differ by so much.
const SKEW_MS: i64 = 60_000;

/// The log that rows are followed into.
#[derive(Debug, Clone)]
pub(crate) enum ClosingLog {
    /// It is open.
    Open(Arc<dyn Log>),
    /// The directory of one that no process has open.
    Directory(Arc<LogDirectory>),
}

/// The findings in the topics.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    /// Events that should be in a topic and are not.
    pub(crate) missing: Vec<Discrepancy>,
    /// Events of which nobody can tell any more.
    pub(crate) unverifiable: u64,
    /// Topics that are gone, with the events that they had.
    pub(crate) gone: Vec<AuditedPath>,
    /// The same topics, and dead letters that are not there.
    pub(crate) findings: Vec<AuditFinding>,
}

/// Before when the partitions of a topic may have removed records themselves.
#[derive(Debug)]
struct RemovedBefore {
    /// In the order of the partitions.
    times: Vec<i64>,
    /// Whether every record that was found lies in the partition of its key. Where partitions were added, or
    /// another partitioner is configured, some do not.
    is_by_key: bool,
}

impl RemovedBefore {
    /// The time for the record of this row.
    fn of(&self, expected: &Expected) -> i64 {
        let own = expected.partition(self.times.len());
        let time = match self.is_by_key {
            true => self.times.get(own),
            false => self.times.iter().max(),
        };
        time.copied().unwrap_or(i64::MAX)
    }
}

/// Looks for every finished row of a recount.
pub(crate) async fn close(
    log: &ClosingLog,
    options: &OutboxOptions,
    recount: &mut OutboxRecount,
) -> Result<Closure, LogError> {
    let mut by_topic: BTreeMap<String, ExpectedEvents> = BTreeMap::new();
    for (named, events) in std::mem::take(&mut recount.finished) {
        let configured = options.topic.as_ref().map(Topic::as_str);
        let meant = named.as_deref().or(configured).unwrap_or(&options.name);
        for (id, expected) in events {
            let topic = match expected.place {
                OutboxStatus::Dead => dlq_of_named(named.as_deref(), options),
                OutboxStatus::Pending | OutboxStatus::Claimed | OutboxStatus::Sent => {
                    meant.to_owned()
                }
            };
            by_topic.entry(topic).or_default().insert(id, expected);
        }
    }
    let mut closure = Closure::default();
    for (name, mut events) in by_topic {
        let removed = match Topic::new(name.clone()) {
            Ok(topic) => match log {
                ClosingLog::Open(log) => strike_out(&**log, &topic, &mut events).await?,
                ClosingLog::Directory(log) => strike_out_of_files(log, &topic, &mut events)?,
            },
            Err(_) => None,
        };
        let Some(removed) = removed else {
            closure.is_gone(name, events.len() as u64);
            continue;
        };
        for (id, expected) in events {
            if expected.at_ms < removed.of(&expected) {
                closure.unverifiable += 1;
                continue;
            }
            match expected.place {
                OutboxStatus::Dead => closure.has_no_letter(&name, id),
                OutboxStatus::Pending | OutboxStatus::Claimed | OutboxStatus::Sent => {
                    closure.missing.push(missing(id));
                }
            }
        }
    }
    Ok(closure)
}

impl Closure {
    fn is_gone(&mut self, topic: String, events: u64) {
        let message = format!("topic `{topic}` does not exist, and {events} rows call it theirs");
        self.findings
            .push(AuditFinding::new("outbox.topic-gone", message));
        self.unverifiable += events;
        self.gone.push(AuditedPath {
            kind: ComponentKind::Topic,
            to: Some(topic),
            origin: None,
            compared: 0,
            not_compared: events,
            reason: Some(NotCompared::TopicGone),
            missing: Vec::new(),
        });
    }

    fn has_no_letter(&mut self, topic: &str, id: EventId) {
        let message =
            format!("the dead letter of event {id} is not in `{topic}`; its row has the event");
        let finding = AuditFinding::new("outbox.letter-missing", message);
        self.findings.push(finding.about(Some(id)));
    }
}

fn missing(id: EventId) -> Discrepancy {
    Discrepancy {
        bucket: Bucket::of(id),
        place: Place::Delivered,
        count: 1,
        id: Some(id),
    }
}

/// Removes every event that the topic has. Gives the times before which it may have removed some itself; none
/// where there is no such topic.
async fn strike_out(
    log: &dyn Log,
    topic: &Topic,
    events: &mut ExpectedEvents,
) -> Result<Option<RemovedBefore>, LogError> {
    let mut described = match log.describe(topic).await {
        Ok(described) => described,
        Err(LogError::UnknownTopic { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    described.partitions.sort_by_key(|one| one.partition);
    let count = described.partitions.len();
    let mut removed = RemovedBefore {
        times: Vec::with_capacity(count),
        is_by_key: true,
    };
    for (number, partition) in described.partitions.into_iter().enumerate() {
        let at = TopicPartition::new(topic.clone(), partition.partition.0);
        let (mut next, mut oldest) = (partition.start, None);
        while next < partition.end {
            let batch = match log.read(Read::new(at.clone(), next)).await {
                Ok(batch) => batch,
                // Retention went on meanwhile, or these cannot be read: the rest may be.
                Err(LogError::OutOfRange { start, .. }) if start > next => {
                    next = start;
                    continue;
                }
                Err(LogError::Damaged { to, .. }) => {
                    next = to;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for stored in &batch.records {
                oldest.get_or_insert(stored.record.timestamp_ms);
                let found = events.remove(&stored.event_id(log.cluster(), &at));
                removed.is_by_key &= found.is_none_or(|one| one.partition(count) == number);
            }
            if batch.next <= next {
                break;
            }
            next = batch.next;
        }
        removed.times.push(match described.config.compact {
            // Compaction removes records of any age.
            true => i64::MAX,
            false => removed_before(partition.start, oldest),
        });
    }
    Ok(Some(removed))
}

/// The same from the files of a log that nobody has open, whose partitions never change.
fn strike_out_of_files(
    log: &LogDirectory,
    topic: &Topic,
    events: &mut ExpectedEvents,
) -> Result<Option<RemovedBefore>, LogError> {
    let scanned = log.scan_topic(topic, &mut |id| {
        events.remove(&id);
    })?;
    let time = |partition: ScannedPartition| match partition.is_compacted {
        true => i64::MAX,
        false => removed_before(partition.start, partition.first_ms),
    };
    Ok(scanned.map(|partitions| RemovedBefore {
        times: partitions.into_iter().map(time).collect(),
        is_by_key: true,
    }))
}

/// The time before which a partition may have removed records.
fn removed_before(start: Offset, oldest: Option<u64>) -> i64 {
    if start <= Offset(0) {
        return i64::MIN;
    }
    // A partition of which nothing is left may have held anything.
    let oldest = oldest.map_or(i64::MAX, |ms| i64::try_from(ms).unwrap_or(i64::MAX));
    oldest.saturating_add(SKEW_MS)
}
