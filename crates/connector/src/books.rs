//! The books of bindings: one component `group@topic` over the topic, its tiers and its dead letters.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tidegate_core::books::{Audited, Books, ComponentAccount, Place};
use tidegate_core::dead_letter::name;
use tidegate_core::{
    EventId, EventLocation, Failure, GroupName, NameError, Offset, TierIndex, Topic, iso_time,
};
use tidegate_log::{
    Committed, Log, LogError, LogFuture, OwnedGroup, Read, SettledMarks, StoredRecord,
    TopicPartition,
};

use crate::hop::RetryHistory;
use crate::marks::{self, Ranges};
use crate::options::BindingOptions;

/// Reads the marks that bindings write beside their offsets.
#[derive(Debug, Clone, Copy)]
pub struct CommitMarks;

impl SettledMarks for CommitMarks {
    fn settled_above<'a>(
        &'a self,
        _: &'a GroupName,
        at: &'a TopicPartition,
        committed: &'a Committed,
    ) -> LogFuture<'a, Vec<(Offset, Offset)>> {
        let ranges = marks::decode(at, committed.next.0, &committed.metadata).unwrap_or_default();
        let ranges = ranges
            .into_iter()
            .map(|(from, to)| (Offset(from), Offset(to)));
        let ranges: Vec<(Offset, Offset)> = ranges.collect();
        Box::pin(async { Ok(ranges) })
    }
}

impl BindingOptions {
    /// The groups and topics that its events may be in: the log leaves their books to the binding.
    ///
    /// # Errors
    /// A tier has no name.
    pub fn owned_group(&self) -> Result<OwnedGroup, NameError> {
        let tiers = self
            .tier_indexes()
            .map(|tier| Ok((self.tier_topic(tier)?, self.tier_group(tier)?)));
        Ok(OwnedGroup {
            tiers: tiers.collect::<Result<_, NameError>>()?,
            dead_letters: Some(self.dlt_topic()?),
            dead_letter_reader: Some(self.dlt_group()?),
            ..OwnedGroup::new(self.topic.clone(), self.group.clone())
        })
    }
}

/// The books of bindings, read from their log.
#[derive(Debug, Clone)]
pub struct BindingBooks {
    log: Arc<dyn Log>,
    bindings: Vec<BindingOptions>,
}

impl BindingBooks {
    /// The books of these bindings on this log.
    #[must_use]
    pub fn new(log: Arc<dyn Log>, bindings: Vec<BindingOptions>) -> Self {
        Self { log, bindings }
    }

    /// Where the events of each binding are by its books.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn accounts(&self) -> Result<Vec<ComponentAccount>, Failure> {
        let mut accounts = Vec::new();
        for options in &self.bindings {
            let owned = owned(options)?;
            match owned
                .account(&*self.log, &CommitMarks, &Books::default())
                .await
            {
                Ok(account) => accounts.push(account),
                // A binding that never started has no topics yet.
                Err(LogError::UnknownTopic { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(accounts)
    }

    /// Counts the records of each binding where they lie, and compares that with its books.
    ///
    /// # Errors
    /// The log does not answer, or a record cannot be read.
    pub async fn audit(&self) -> Result<Vec<Audited>, Failure> {
        let mut audited = Vec::new();
        for options in &self.bindings {
            match owned(options)?.audit(&*self.log, &CommitMarks).await {
                Ok(audit) => audited.push(audit.audited()),
                Err(LogError::UnknownTopic { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(audited)
    }

    /// Where a binding has an event that left its topic: in a tier, with its attempts and its time, or among
    /// the dead letters.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn locate(&self, id: EventId) -> Result<Vec<EventLocation>, Failure> {
        let mut found = Vec::new();
        for options in &self.bindings {
            found.extend(self.locate_in(options, id).await?);
        }
        Ok(found)
    }

    async fn locate_in(
        &self,
        options: &BindingOptions,
        id: EventId,
    ) -> Result<Vec<EventLocation>, Failure> {
        let owned = owned(options)?;
        let name = owned.name();
        let mut seen = Vec::new();
        for (tier, (topic, group)) in options.tier_indexes().zip(&owned.tiers) {
            for (at, stored) in self.copies(options, topic, id).await? {
                let is_settled = self.is_settled(group, &at, stored.offset).await?;
                seen.push(in_tier(options, &name, tier, &at, &stored, is_settled));
            }
        }
        if let Some(letters) = &owned.dead_letters {
            for (at, stored) in self.copies(options, letters, id).await? {
                seen.push(as_letter(&name, &at, &stored));
            }
        }
        // A copy that was handed on is no more than a step on the way.
        let last = seen.len().saturating_sub(1);
        for location in seen.iter_mut().take(last) {
            location.place = Place::Retrying;
        }
        Ok(seen)
    }

    /// The copies of an event that this binding wrote to a topic.
    async fn copies(
        &self,
        options: &BindingOptions,
        topic: &Topic,
        id: EventId,
    ) -> Result<Vec<(TopicPartition, StoredRecord)>, Failure> {
        let described = match self.log.describe(topic).await {
            Ok(described) => described,
            Err(LogError::UnknownTopic { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for partition in described.partitions {
            let at = TopicPartition::new(topic.clone(), partition.partition.0);
            let mut from = partition.start;
            while from < partition.end {
                let batch = self.log.read(Read::new(at.clone(), from)).await?;
                if batch.next == from {
                    break;
                }
                from = batch.next;
                let is_ours = |stored: &StoredRecord| {
                    let group = stored.record.headers.get(name::GROUP);
                    let is_group = group == Some(options.group.as_str().as_bytes());
                    is_group && stored.record.headers.event_id() == Some(id)
                };
                let ours = batch.records.into_iter().filter(is_ours);
                found.extend(ours.map(|stored| (at.clone(), stored)));
            }
        }
        Ok(found)
    }

    async fn is_settled(
        &self,
        group: &GroupName,
        at: &TopicPartition,
        offset: Offset,
    ) -> Result<bool, Failure> {
        let held = self.log.committed(group, std::slice::from_ref(at)).await?;
        let Some(held) = held.into_iter().next().flatten() else {
            return Ok(false);
        };
        let ranges: Ranges = marks::decode(at, held.next.0, &held.metadata).unwrap_or_default();
        let is_marked = ranges
            .iter()
            .any(|(from, to)| (*from..*to).contains(&offset.0));
        Ok(offset < held.next || is_marked)
    }
}

fn owned(options: &BindingOptions) -> Result<OwnedGroup, Failure> {
    let owned = options.owned_group();
    owned.map_err(|error| crate::ConnectorError::Name(error).into())
}

fn in_tier(
    options: &BindingOptions,
    name: &str,
    tier: TierIndex,
    at: &TopicPartition,
    stored: &StoredRecord,
    is_settled: bool,
) -> EventLocation {
    let history = RetryHistory::read(at, stored, tier);
    let handed = history.handed_ms.unwrap_or(stored.record.timestamp_ms);
    let delay = u64::try_from(options.delay(tier).as_millis()).unwrap_or(u64::MAX);
    let mut details = BTreeMap::from([
        ("topic", json!(at.topic)),
        ("partition", json!(at.partition)),
        ("offset", json!(stored.offset)),
        ("tier", json!(tier)),
        ("delivery", json!(history.rung.delivery)),
    ]);
    if !is_settled {
        details.insert("due", json!(iso_time(handed.saturating_add(delay))));
    }
    let place = match is_settled {
        true => Place::Delivered,
        false => Place::Retrying,
    };
    EventLocation {
        at: iso_time(handed),
        attempts: Some(history.attempts),
        ..EventLocation::new(name, place, json!(details))
    }
}

fn as_letter(name: &str, at: &TopicPartition, stored: &StoredRecord) -> EventLocation {
    let text = |header: &str| {
        let value = stored.record.headers.get(header)?;
        std::str::from_utf8(value).ok().map(str::to_owned)
    };
    let number = |header: &str| text(header)?.parse::<u64>().ok();
    let details = json!({
        "topic": at.topic, "partition": at.partition, "offset": stored.offset,
        "reason": text(name::DLT_REASON), "code": text(name::LAST_EXCEPTION_CLASS),
    });
    EventLocation {
        at: number(name::DLT_TIMESTAMP).and_then(iso_time),
        attempts: number(name::TOTAL_ATTEMPTS).and_then(|attempts| u32::try_from(attempts).ok()),
        ..EventLocation::new(name, Place::DeadLettered, details)
    }
}
