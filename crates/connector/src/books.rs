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
    Committed, Log, LogError, LogFuture, OwnedGroup, SettledMarks, StoredRecord, TopicPartition,
    copies_of,
};

use crate::hop::RetryHistory;
use crate::marks::Ranges;
use crate::options::BindingOptions;
use crate::parked::{ParkedIn, ParkedRow, ParkedStore};
use crate::progress::{self, CommitNotes};

/// How often a binding that seems to lack events is looked at.
const LOOKS: usize = 5;

/// Reads the marks that bindings write beside their offsets, and in their store.
#[derive(Debug, Clone, Default)]
pub struct CommitMarks {
    /// The component, and its store.
    store: Option<(String, Arc<dyn ParkedStore>)>,
}

impl SettledMarks for CommitMarks {
    fn settled_above<'a>(
        &'a self,
        _: &'a GroupName,
        at: &'a TopicPartition,
        committed: &'a Committed,
    ) -> LogFuture<'a, Vec<(Offset, Offset)>> {
        Box::pin(async move {
            let (ranges, _) = self.read(at, committed).await?;
            let ranges = ranges.into_iter();
            let ranges = ranges.map(|(from, to)| (Offset(from), Offset(to)));
            Ok(ranges.collect())
        })
    }
}

impl CommitMarks {
    /// The meaning of a commit's text; without its progress it tells nothing of settled records.
    async fn read(
        &self,
        at: &TopicPartition,
        committed: &Committed,
    ) -> Result<(Ranges, CommitNotes), LogError> {
        let next = committed.next.0;
        let told = progress::read(at, next, &committed.metadata);
        let (ranges, notes) = told.unwrap_or_default();
        let (Some(name), Some((component, store))) = (notes.progress, &self.store) else {
            return Ok((ranges, notes));
        };
        let of = ParkedIn {
            component: component.clone(),
            at: at.clone(),
        };
        let row = store.progress(&of, name.id).await;
        let row = row.map_err(|error| LogError::Remote {
            process: "the store".to_owned(),
            code: error.code(),
            why: error.to_string(),
        })?;
        let kept = progress::from_row(at, name, row);
        let ranges = kept.map(|kept| progress::union(&ranges, &kept, next));
        Ok((ranges.unwrap_or_default(), notes))
    }
}

impl BindingOptions {
    /// The group that reads a topic of its records.
    fn group_of(&self, topic: &Topic) -> Result<GroupName, Failure> {
        let owned = owned(self)?;
        let tier = owned.tiers.into_iter().find(|(of, _)| of == topic);
        Ok(tier.map_or(owned.group, |(_, group)| group))
    }

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
            dead_letters: vec![self.dlt_topic()?],
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
    store: Option<Arc<dyn ParkedStore>>,
}

impl BindingBooks {
    /// The books of these bindings on this log.
    #[must_use]
    pub fn new(log: Arc<dyn Log>, bindings: Vec<BindingOptions>) -> Self {
        Self {
            log,
            bindings,
            store: None,
        }
    }

    /// The same with the store that the bindings have.
    #[must_use]
    pub fn with_store(mut self, store: Option<Arc<dyn ParkedStore>>) -> Self {
        self.store = store;
        self
    }

    fn marks(&self, options: &BindingOptions) -> CommitMarks {
        let store = self.store.clone();
        CommitMarks {
            store: store.map(|store| (options.component_name(), store)),
        }
    }

    /// The postings of the store, and the events that are parked in it: their offsets are committed, and no commit
    /// gave them up.
    async fn parked(&self, options: &BindingOptions) -> Result<(Books, Vec<EventId>), Failure> {
        let Some(store) = &self.store else {
            return Ok((Books::default(), Vec::new()));
        };
        let counted = store.count(&options.component_name()).await;
        let counted = counted.map_err(Failure::from)?;
        let mut parked = Vec::new();
        let mut told: Option<(TopicPartition, i64, Ranges, CommitNotes)> = None;
        for (at, offset, id) in counted.rows {
            if told.as_ref().is_none_or(|(of, ..)| *of != at) {
                let group = options.group_of(&at.topic)?;
                let held = self
                    .log
                    .committed(&group, std::slice::from_ref(&at))
                    .await?;
                let held = held.into_iter().next().flatten();
                let (next, (ranges, notes)) = match &held {
                    Some(held) => (held.next.0, self.marks(options).read(&at, held).await?),
                    None => (i64::MIN, Default::default()),
                };
                told = Some((at.clone(), next, ranges, notes));
            }
            let Some((_, next, ranges, notes)) = &told else {
                continue;
            };
            let below = ranges.range(..=offset.0).next_back();
            let is_committed = offset.0 < *next || below.is_some_and(|(_, to)| offset.0 < *to);
            if is_committed && !notes.given_up.contains(&offset.0) {
                parked.push(id);
            }
        }
        Ok((counted.books, parked))
    }

    /// Where the events of each binding are by its books.
    ///
    /// # Errors
    /// The log does not answer.
    pub async fn accounts(&self) -> Result<Vec<ComponentAccount>, Failure> {
        let mut accounts = Vec::new();
        for options in &self.bindings {
            let owned = owned(options)?;
            let (store, _) = self.parked(options).await?;
            let marks = self.marks(options);
            match owned.account(&*self.log, &marks, &store).await {
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
            let mut look = 1;
            while let Some(found) = self.audit_one(options).await? {
                // Log and store are read one after the other; a difference that moves is looked at again.
                if found.missing.is_empty() || self.store.is_none() || look == LOOKS {
                    audited.push(found);
                    break;
                }
                look += 1;
            }
        }
        Ok(audited)
    }

    async fn audit_one(&self, options: &BindingOptions) -> Result<Option<Audited>, Failure> {
        let marks = self.marks(options);
        let audit = match owned(options)?.audit(&*self.log, &marks).await {
            Ok(audit) => audit,
            Err(LogError::UnknownTopic { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (books, parked) = self.parked(options).await?;
        Ok(Some(audit.with_store(&books, parked).audited()))
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
            for (at, stored) in copies_of(&*self.log, topic, &options.group, id).await? {
                let is_settled = self.is_settled(options, group, &at, stored.offset).await?;
                seen.push(in_tier(options, &name, tier, &at, &stored, is_settled));
            }
        }
        if let Some(store) = &self.store {
            let rows = store.find(&name, id).await;
            for (at, row) in rows.map_err(Failure::from)? {
                seen.extend(self.in_store(options, &name, at, &row).await?);
            }
        }
        for letters in &owned.dead_letters {
            for (at, stored) in copies_of(&*self.log, letters, &options.group, id).await? {
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

    /// A row of the store, if its record is parked: what it waits for, and until when.
    async fn in_store(
        &self,
        options: &BindingOptions,
        name: &str,
        at: TopicPartition,
        row: &ParkedRow,
    ) -> Result<Option<EventLocation>, Failure> {
        let (Some(store), group) = (&self.store, options.group_of(&at.topic)?) else {
            return Ok(None);
        };
        if !self.is_settled(options, &group, &at, row.offset).await? {
            return Ok(None);
        }
        let of = ParkedIn {
            component: name.to_owned(),
            at,
        };
        let all = store.rows(&of, -1).await;
        let all = all.map_err(Failure::from)?;
        let key = row.record.key.as_ref();
        let first = all
            .iter()
            .find(|other| key.is_some() && other.record.key.as_ref() == key);
        let behind = first.filter(|first| first.offset < row.offset);
        let history = RetryHistory::read(&of.at, &stored(row), row.tier);
        let details = json!({
            "topic": of.at.topic, "partition": of.at.partition, "offset": row.offset, "tier": row.tier,
            "delivery": row.delivery, "due": iso_time(row.due_ms),
            "waits-for": match (behind, &row.target) {
                (Some(behind), _) => format!("offset {} of its key", behind.offset),
                (None, Some(topic)) => format!("room in `{topic}`"),
                (None, None) => "its time".to_owned(),
            },
        });
        Ok(Some(EventLocation {
            at: history.handed_ms.and_then(iso_time),
            attempts: Some(history.attempts),
            ..EventLocation::new(name, Place::Parked, details)
        }))
    }

    async fn is_settled(
        &self,
        options: &BindingOptions,
        group: &GroupName,
        at: &TopicPartition,
        offset: Offset,
    ) -> Result<bool, Failure> {
        let held = self.log.committed(group, std::slice::from_ref(at)).await?;
        let Some(held) = held.into_iter().next().flatten() else {
            return Ok(false);
        };
        let (ranges, _) = self.marks(options).read(at, &held).await?;
        let is_marked = ranges
            .iter()
            .any(|(from, to)| (*from..*to).contains(&offset.0));
        Ok(offset < held.next || is_marked)
    }
}

fn stored(row: &ParkedRow) -> StoredRecord {
    StoredRecord {
        offset: row.offset,
        record: row.record.clone(),
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
