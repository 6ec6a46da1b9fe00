//! The one writer of the journal.
//!
//! | it is given | it does | then |
//! |---|---|---|
//! | writes that wait | gives them offsets, frames them, writes them in one piece, syncs once | applies them, answers all |
//! | a change of topics, groups or segments | the same, alone | the same |
//! | a disk without room | refuses what it was about to write | goes on |
//! | a write or a sync that fails | refuses it and everything later | reads go on |

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::{GroupName, Topic};

use super::change::{LogChange, PartitionEnd, PartitionKey, put_ends};
use super::context::{EmbeddedContext, RefusalReason};
use super::files;
use super::group;
use super::journal::{Journal, Use};
use super::pending::PendingWrite;
use super::secret::LogSecret;
use super::state::{JournalPlace, LogState};
use super::tally::PartitionSnapshot;
use super::telemetry;
use crate::commit_order;
use crate::error::LogError;
use crate::topic::TopicConfig;

/// The one writer of the journal.
#[derive(Debug)]
pub(super) struct JournalWriter {
    pub(super) context: Arc<EmbeddedContext>,
    journal: Journal,
    /// The number of the next write.
    write: u64,
    cluster: String,
    secret: LogSecret,
    /// The partitions that were written to recently, the last one behind the others.
    recent_partitions: VecDeque<PartitionKey>,
    /// Whether the last write found no room, or the last append was refused for want of it.
    is_refusing: bool,
    /// Whether the last group holds something, which no group behind it proves to have been synced.
    is_unproven: bool,
}

/// Groups on their way to the disk.
struct Framed {
    sequence: u64,
    crc: u32,
    bytes: Vec<u8>,
}

impl JournalWriter {
    /// A writer that goes on where the state ends. `write` must never have been used before.
    pub(super) fn new(
        context: Arc<EmbeddedContext>,
        journal: Journal,
        write: u64,
        is_unproven: bool,
    ) -> Self {
        let (cluster, secret, recent_partitions) = {
            let state = context.state();
            let unflushed = state.all().filter(|(_, p)| !p.unflushed.is_empty());
            let recent_partitions = unflushed.map(|(at, _)| at);
            (
                state.cluster.clone(),
                state.secret,
                recent_partitions.take(MAX_RECENT_PARTITIONS).collect(),
            )
        };
        Self {
            context,
            journal,
            write,
            cluster,
            secret,
            recent_partitions,
            is_refusing: false,
            is_unproven,
        }
    }

    /// Whether damage to the last commit would look like a write that was cut: until a group behind it says
    /// that it was synced.
    pub(super) fn is_unproven(&self) -> bool {
        self.is_unproven
    }

    /// Writes an empty group behind the last commit, so that from here on damage to that is noticed. Nobody
    /// waits for it, so a disk without room for it is no failure; it is tried again after the next quiet second.
    pub(super) fn prove_last_commit(&mut self) {
        if !self.is_unproven {
            return;
        }
        // A group that would need a new file is not worth one. The maintenance thread makes one ready, or another
        // commit does.
        let size = group::size(group::HEADER + EMPTY_GROUP);
        if self.journal.needs_file(size, Use::Commits) && self.context.pool().is_empty() {
            return;
        }
        if let Err(error) = self.change(&[]) {
            tracing::debug!(%error, "could not write behind the last commit");
        }
    }

    /// Where the journal ends.
    pub(super) fn place(&self) -> JournalPlace {
        self.journal.place()
    }

    /// Does each of these or nothing of it, durably and in their order. Gives the offsets of the
    /// chunks of each.
    pub(super) fn commit(&mut self, batch: Vec<PendingWrite>) -> Vec<Result<Vec<i64>, LogError>> {
        let mut answers: Vec<Result<Vec<i64>, LogError>> = Vec::with_capacity(batch.len());
        let mut framed = Vec::with_capacity(batch.len());
        let mut tickets = Vec::new();
        let mut use_ = Use::Commits;
        let mut next = Next::new(&self.context.state());
        self.write = self.write.wrapping_add(1);
        for mut pending in batch {
            match self.admit(&pending, &next) {
                Err(refused) => {
                    self.note_refusal(&refused);
                    // Before those behind it are looked at.
                    commit_order::fail(&pending.tickets);
                    answers.push(Err(refused));
                }
                Ok(()) => {
                    next.used += pending.bytes.len() as u64;
                    if !pending.chunks.is_empty() {
                        use_ = Use::Records;
                    }
                    let is_first = framed.is_empty();
                    let bases = pending.place(self.secret, &self.cluster, |chunk| {
                        let at = chunk.at;
                        note(&mut self.recent_partitions, at);
                        next.offsets_assigned += chunk.span();
                        let end = next.ends.entry(at).or_insert_with(|| {
                            let state = self.context.state();
                            state.partition(at).map_or(0, |p| p.end)
                        });
                        let base = *end;
                        *end = end.saturating_add_unsigned(chunk.span());
                        base
                    });
                    tickets.append(&mut pending.tickets);
                    let ends = self.ends(&next, is_first);
                    framed.push(next.frame(pending.bytes, self.write, &ends));
                    answers.push(Ok(bases));
                }
            }
        }
        if framed.is_empty() {
            return answers;
        }
        if let Err(error) = self.make_durable(framed, use_) {
            commit_order::fail(&tickets);
            for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                *answer = Err(self.refusal(&error));
            }
        }
        answers
    }

    /// Makes changes that are no records durable, as one group.
    pub(super) fn change(&mut self, changes: &[LogChange]) -> Result<(), LogError> {
        self.change_for(changes, Use::Commits)
    }

    fn change_for(&mut self, changes: &[LogChange], use_: Use) -> Result<(), LogError> {
        self.context.check_running()?;
        self.context.check_recovery_saved()?;
        let mut bytes = vec![0; group::HEADER];
        changes.iter().for_each(|change| change.write(&mut bytes));
        self.write = self.write.wrapping_add(1);
        let mut next = Next::new(&self.context.state());
        let ends = self.ends(&next, true);
        let framed = next.frame(bytes, self.write, &ends);
        self.make_durable(vec![framed], use_)
            .map_err(|error| self.refusal(&error))?;
        // An empty group proves those before it, and needs no proof itself.
        self.is_unproven = !changes.is_empty();
        Ok(())
    }

    /// Where the partitions end that were written to recently, for the first group of a write.
    fn ends(&self, next: &Next, is_first: bool) -> Vec<PartitionEnd> {
        if !is_first {
            return Vec::new();
        }
        let state = self.context.state();
        let ends = self.recent_partitions.iter().map(|at| {
            let known = || state.partition(*at).map_or(0, |p| p.end);
            (*at, next.ends.get(at).copied().unwrap_or_else(known))
        });
        ends.collect()
    }

    /// Makes or changes a topic.
    pub(super) fn create_topic(
        &mut self,
        name: &Topic,
        config: TopicConfig,
    ) -> Result<(), LogError> {
        let number = {
            let state = self.context.state();
            match state.known_topic(name) {
                Some((_, topic)) if topic.config == config && !topic.is_removed => return Ok(()),
                Some((_, topic)) if topic.config.partitions != config.partitions => {
                    let (has, asked) = (topic.config.partitions, config.partitions);
                    let why = match topic.is_removed {
                        true => format!(
                            "it was removed, and its offsets go on: it has {has} partitions again, not {asked}"
                        ),
                        false => format!("it has {has} partitions and cannot have {asked}"),
                    };
                    let topic = name.clone();
                    return Err(LogError::TopicConfig { topic, why });
                }
                Some((number, _)) => number,
                None => u32::try_from(state.topics.len()).unwrap_or(u32::MAX),
            }
        };
        check_config(name, &config)?;
        let name = name.clone();
        self.change(&[LogChange::Topic {
            number,
            name,
            config,
        }])?;
        self.context.renew_catalog();
        Ok(())
    }

    /// Registers a group that reads these topics; one that is known to read them stays as it is.
    pub(super) fn register(&mut self, group: GroupName, topics: Vec<u32>) -> Result<(), LogError> {
        let reads = |known: &BTreeMap<u32, _>| topics.iter().all(|topic| known.contains_key(topic));
        let is_there = self.context.state().groups.get(&group).is_some_and(reads);
        match is_there {
            true => Ok(()),
            false => self.change(&[LogChange::Register { group, topics }]),
        }
    }

    /// Lets a group begin behind all that these partitions hold, those of which it has committed
    /// nothing; what it never had of them is said along with it.
    pub(super) fn skip(
        &mut self,
        group: &GroupName,
        partitions: &[PartitionKey],
    ) -> Result<(), LogError> {
        let mut changes = Vec::new();
        for at in partitions {
            let held = PartitionSnapshot::before_group(&self.context.state(), group, *at);
            if let Some(held) = held {
                changes.push(LogChange::Skip {
                    group: group.clone(),
                    at: *at,
                    next: held.end,
                    before: held.postings(&self.context)?,
                });
            }
        }
        match changes.is_empty() {
            true => Ok(()),
            false => self.change(&changes),
        }
    }

    /// Takes records out of a partition, unless a group needs them by now: then it gives false.
    pub(super) fn remove(&mut self, change: LogChange) -> Result<bool, LogError> {
        let is_stale = {
            let state = self.context.state();
            match &change {
                LogChange::Start { at, start, .. } => {
                    let now = state.partition(*at).map_or(0, |p| p.start);
                    *start <= now || *start > state.needed_from(*at)
                }
                LogChange::Switch { at, end, .. } => *end > state.needed_from(*at),
                LogChange::Chunk { .. }
                | LogChange::Offset { .. }
                | LogChange::Topic { .. }
                | LogChange::Register { .. }
                | LogChange::Skip { .. }
                | LogChange::EndOffsets { .. }
                | LogChange::Seek { .. }
                | LogChange::RemoveTopic { .. }
                | LogChange::Forget { .. } => true,
            }
        };
        if is_stale {
            return Ok(false);
        }
        self.change_for(&[change], Use::Removal)?;
        self.context.status().set(RefusalReason::OverLimit, None);
        Ok(true)
    }

    /// Lets others see that appends are refused by the log's own limit.
    fn note_refusal(&mut self, refused: &LogError) {
        if matches!(refused, LogError::Full { .. }) {
            self.is_refusing = true;
            let why = Some(refused.to_string());
            self.context.status().set(RefusalReason::OverLimit, why);
        }
    }

    /// Lets others see whether there is room for what is written.
    fn note_room(&mut self, written: &Result<(), LogError>, use_: Use) {
        match written {
            Err(error) if files::is_full(error) => {
                self.is_refusing = true;
                let why = Some(error.to_string());
                self.context.status().set(RefusalReason::Unwritten, why);
                self.context.wake_maintenance.notify_one();
            }
            Ok(()) if self.is_refusing && use_ == Use::Records => {
                self.is_refusing = false;
                let mut status = self.context.status();
                status.set(RefusalReason::Unwritten, None);
                status.set(RefusalReason::OverLimit, None);
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Whether a write may be done.
    fn admit(&self, pending: &PendingWrite, next: &Next) -> Result<(), LogError> {
        self.context.check_running()?;
        commit_order::check(&pending.tickets)?;
        self.check_topics(pending)?;
        self.context.check_recovery_saved()?;
        let config = &self.context.config;
        if let Some(why) = self.context.status().why(RefusalReason::Full)
            && !pending.chunks.is_empty()
        {
            return Err(self.context.no_space("write segments in", why.clone()));
        }
        let limit = if !pending.tickets.is_empty() {
            config.max_size.saturating_add(config.reserve)
        } else {
            config.max_size
        };
        let used = next.used;
        if !pending.chunks.is_empty() && used.saturating_add(pending.bytes.len() as u64) > limit {
            self.context.wake_maintenance.notify_one();
            return Err(LogError::Full { used, limit });
        }
        Ok(())
    }

    /// Refuses records for a topic that was removed since they were encoded.
    fn check_topics(&self, pending: &PendingWrite) -> Result<(), LogError> {
        let state = self.context.state();
        let topics = pending.chunks.iter();
        let mut topics = topics.filter_map(|chunk| state.topics.get(chunk.at.0 as usize));
        match topics.find(|topic| topic.is_removed) {
            Some(topic) => Err(LogError::UnknownTopic {
                topic: topic.name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Writes the groups in one piece, syncs once, and applies them.
    fn make_durable(&mut self, mut groups: Vec<Framed>, use_: Use) -> Result<(), LogError> {
        let sizes: Vec<(u64, u32, usize)> = groups
            .iter()
            .map(|group| (group.sequence, group.crc, group.bytes.len()))
            .collect();
        let total = sizes.iter().map(|(.., size)| size).sum();
        let bytes = match groups.len() {
            1 => groups.remove(0).bytes,
            _ => {
                let mut bytes = Vec::with_capacity(total);
                groups
                    .iter()
                    .for_each(|group| bytes.extend_from_slice(&group.bytes));
                bytes
            }
        };
        drop(groups);
        let written = self.write_and_sync(&bytes, use_);
        self.note_room(&written, use_);
        if let Err(error) = written {
            if !files::is_full(&error) {
                self.context.stop(&error);
            }
            return Err(error);
        }
        self.publish(&sizes, &Bytes::from(bytes));
        self.is_unproven = true;
        Ok(())
    }

    fn write_and_sync(&mut self, bytes: &[u8], use_: Use) -> Result<(), LogError> {
        if self.journal.needs_file(bytes.len(), use_) {
            let begun = self
                .journal
                .begin_file(bytes.len(), &mut self.context.pool());
            if let Err(error) = begun {
                // The name or the length of the file may not last, and groups would go with it.
                if files::is_failed_sync(&error) {
                    self.context.stop(&error);
                }
                return Err(error);
            }
            // The maintenance thread can let go of the file before, and make another one ready.
            self.context.wake_maintenance.notify_one();
        }
        self.journal.write(bytes)?;
        let before = self.context.now();
        let synced = {
            let _others_give_way = self.context.sync_gate.begin();
            self.journal.sync(bytes.len())
        };
        if let Err(error) = synced {
            // A failed sync is final, also when it says that there is no room.
            self.context.stop(&error);
            return Err(error);
        }
        telemetry::synced(self.context.now().saturating_sub(before));
        Ok(())
    }

    fn publish(&mut self, groups: &[(u64, u32, usize)], bytes: &Bytes) {
        let mut place = self.journal.place();
        place.at -= bytes.len() as u64;
        let mut at = 0;
        let mut to_wake = Vec::new();
        let mut state = self.context.state();
        for (sequence, crc, size) in groups {
            let group = bytes.slice(at..at + size);
            at += size;
            place.at += *size as u64;
            let payload =
                group::JournalFrame::peek(&group, self.secret).map(|frame| frame.payload(&group));
            let changes =
                payload.and_then(|payload| LogChange::read_all(&payload, self.secret).ok());
            // We wrote it ourselves a moment ago: whatever does not read back is a mistake of ours.
            let changes = changes.expect("a group that was just written reads back");
            for change in &changes {
                if let LogChange::Chunk { at, .. } = change
                    && let Some(partition) = state.partition(*at)
                {
                    to_wake.push(Arc::clone(&partition.appended));
                }
            }
            let applied = state.apply(*sequence, changes);
            assert_eq!(applied, Ok(()), "what was just written can be applied");
            state.sequence = *sequence;
            state.crc = *crc;
            state.journal = place;
        }
        let is_keeper_due = state.unflushed_bytes > self.context.config.cache_size;
        telemetry::used(state.used, state.unflushed_bytes);
        drop(state);
        to_wake
            .iter()
            .for_each(|appended| appended.notify_waiters());
        if is_keeper_due {
            self.context.wake_maintenance.notify_one();
        }
    }

    /// The error of the callers whose groups could not be written.
    fn refusal(&self, error: &LogError) -> LogError {
        if let LogError::Disk {
            doing,
            path,
            source,
        } = error
            && files::is_full(error)
            && !self.context.status().is(RefusalReason::Stopped)
        {
            return LogError::Disk {
                doing,
                path: path.clone(),
                source: io::Error::new(source.kind(), source.to_string()),
            };
        }
        LogError::Stopped {
            why: error.to_string(),
        }
    }
}

/// More bytes than the payload of a group without changes has: the ends of the partitions.
const EMPTY_GROUP: usize = 640;

/// How many partitions a group tells the ends of.
const MAX_RECENT_PARTITIONS: usize = 32;

/// Takes note that a partition is written to.
fn note(recent_partitions: &mut VecDeque<PartitionKey>, at: PartitionKey) {
    if recent_partitions.back() == Some(&at) {
        return;
    }
    if let Some(known) = recent_partitions.iter().position(|known| *known == at) {
        recent_partitions.remove(known);
    } else if recent_partitions.len() >= MAX_RECENT_PARTITIONS {
        recent_partitions.pop_front();
    }
    recent_partitions.push_back(at);
}

/// The state that the next groups follow.
struct Next {
    secret: LogSecret,
    sequence: u64,
    crc: u32,
    synced: u64,
    used: u64,
    /// Offsets that all partitions together have given.
    offsets_assigned: u64,
    /// The ends of partitions that were written to in this batch.
    ends: BTreeMap<PartitionKey, i64>,
}

impl Next {
    fn new(state: &LogState) -> Self {
        Self {
            secret: state.secret,
            sequence: state.sequence,
            crc: state.crc,
            synced: state.sequence,
            used: state.used,
            offsets_assigned: state.offsets_assigned,
            ends: BTreeMap::new(),
        }
    }

    fn frame(&mut self, mut bytes: Vec<u8>, write: u64, ends: &[PartitionEnd]) -> Framed {
        put_ends(&mut bytes, self.offsets_assigned, ends);
        self.sequence += 1;
        self.crc = group::frame(
            &mut bytes,
            self.secret,
            self.sequence,
            self.crc,
            write,
            self.synced,
        );
        Framed {
            sequence: self.sequence,
            crc: self.crc,
            bytes,
        }
    }
}

/// More partitions than one machine serves well.
const MAX_PARTITIONS: u32 = 10_000;

fn check_config(topic: &Topic, config: &TopicConfig) -> Result<(), LogError> {
    let why = if config.partitions == 0 {
        "it needs at least one partition".to_owned()
    } else if config.partitions > MAX_PARTITIONS {
        format!("it may have at most {MAX_PARTITIONS} partitions")
    } else if config.max_record_size == 0 {
        "`max-record-size` must be more than 0".to_owned()
    } else {
        return Ok(());
    };
    let topic = topic.clone();
    Err(LogError::TopicConfig { topic, why })
}
