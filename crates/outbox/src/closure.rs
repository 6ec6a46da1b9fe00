//! Closes table → topic: each row that is sent is in its topic, each one that is dead among the dead letters.
//!
//! The table is read before the topics. So a relay that runs meanwhile calls nothing sent that is not there
//! yet. Records that a topic may have removed by its retention or by compaction are unverifiable. A topic that is
//! gone is a finding of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::books::{AuditedPath, Bucket, ComponentKind, Discrepancy, NotCompared, Place};
use tidegate_core::{EventId, Offset, Topic};
use tidegate_log::embedded::ScannedPartition;
use tidegate_log::{Log, LogDirectory, LogError, Read, TopicPartition};

use crate::OutboxOptions;
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
                OutboxStatus::Dead => options.dlq_of(meant),
                OutboxStatus::Pending | OutboxStatus::Claimed | OutboxStatus::Sent => {
                    meant.to_owned()
                }
            };
            by_topic.entry(topic).or_default().insert(id, expected);
        }
    }
    let mut closure = Closure::default();
    for (name, mut events) in by_topic {
        let cut = match Topic::new(name.clone()) {
            Ok(topic) => match log {
                ClosingLog::Open(log) => strike_out(&**log, &topic, &mut events).await?,
                ClosingLog::Directory(log) => strike_out_of_files(log, &topic, &mut events)?,
            },
            Err(_) => None,
        };
        let Some(cut) = cut else {
            closure.unverifiable += events.len() as u64;
            closure.gone.push(AuditedPath {
                kind: ComponentKind::Topic,
                to: Some(name),
                origin: None,
                compared: 0,
                not_compared: events.len() as u64,
                reason: Some(NotCompared::TopicGone),
                missing: Vec::new(),
            });
            continue;
        };
        for (id, expected) in events {
            match expected.at_ms < cut {
                true => closure.unverifiable += 1,
                false => closure.missing.push(missing(id, expected)),
            }
        }
    }
    Ok(closure)
}

fn missing(id: EventId, expected: Expected) -> Discrepancy {
    Discrepancy {
        bucket: Bucket::of(id),
        place: match expected.place {
            OutboxStatus::Dead => Place::DeadLettered,
            OutboxStatus::Pending | OutboxStatus::Claimed | OutboxStatus::Sent => Place::Delivered,
        },
        count: 1,
        id: Some(id),
    }
}

/// Removes every event that the topic has. Gives the time before which it may have removed some itself; none
/// where there is no such topic.
async fn strike_out(
    log: &dyn Log,
    topic: &Topic,
    events: &mut ExpectedEvents,
) -> Result<Option<i64>, LogError> {
    let described = match log.describe(topic).await {
        Ok(described) => described,
        Err(LogError::UnknownTopic { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    // Compaction removes records of any age.
    let mut cut = match described.config.compact {
        true => i64::MAX,
        false => i64::MIN,
    };
    for partition in described.partitions {
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
                events.remove(&stored.event_id(log.cluster(), &at));
            }
            if batch.next <= next {
                break;
            }
            next = batch.next;
        }
        cut = cut.max(removed_before(partition.start, oldest));
    }
    Ok(Some(cut))
}

/// The same from the files of a log that nobody has open.
fn strike_out_of_files(
    log: &LogDirectory,
    topic: &Topic,
    events: &mut ExpectedEvents,
) -> Result<Option<i64>, LogError> {
    let scanned = log.scan_topic(topic, &mut |id| {
        events.remove(&id);
    })?;
    let cuts = |partitions: Vec<ScannedPartition>| {
        let cuts = partitions.iter();
        let cuts = cuts.map(|partition| match partition.is_compacted {
            true => i64::MAX,
            false => removed_before(partition.start, partition.first_ms),
        });
        cuts.fold(i64::MIN, i64::max)
    };
    Ok(scanned.map(cuts))
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
