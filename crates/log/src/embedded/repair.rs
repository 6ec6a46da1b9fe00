//! Makes a directory whole again: nothing is thrown away, and what is lost is said and posted.

mod losses;
mod settle;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::books::{LossReason, Place};
use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_core::{GroupName, Topic};

use losses::{Damage, Harm};

use super::config::EmbeddedConfig;
use super::files::{self, Doing};
use super::inspect::{DamagedPart, damaged_parts, read_index, segment_path};
use super::manifest;
use super::open::{Opened, open};
use super::presence::{Presence, presence};
use super::scan::{Scan, Seen, rebuild_index};
use super::segment::{MAGIC, Segment, index_file};
use super::state::State;
use crate::error::LogError;
use crate::record::TopicPartition;

/// Why records are lost that a repair could not read.
pub const DAMAGED: LossReason = LossReason::from_static("damaged");

/// Why events are lost that a group passed with a commit that was damaged: the records are there, and
/// nobody can say what became of them.
pub const COMMIT_DAMAGED: LossReason = LossReason::from_static("commit_damaged");

/// One thing that a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repaired {
    /// Damaged bytes were kept aside; the offsets they held are lost.
    Records {
        /// The partition.
        at: TopicPartition,
        /// The offsets: the first, and the one behind the last.
        offsets: (i64, i64),
        /// Where the bytes are now; none if their file was missing, or they were lost with a part of
        /// the journal.
        aside: Option<String>,
    },
    /// The manifest or its copy was made again from the other one.
    Manifest {
        /// The file.
        file: String,
    },
    /// What an earlier start left in doubt was taken note of: nobody can say whether it was lost.
    Doubt(String),
    /// A topic whose creation was lost, and with it its name, keeps the one under which it was found.
    MadeUp {
        /// That name.
        topic: Topic,
    },
    /// A group passed events with commits that were damaged: what became of them nobody can say, and
    /// they are posted as lost to the group. Their records are there.
    Commits {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: Topic,
        /// How many events.
        events: u64,
    },
    /// Events that were removed in their time, which only damage kept from the books: they are not
    /// lost.
    Removed {
        /// The topic.
        topic: Topic,
        /// How many events.
        events: u64,
    },
    /// An index was made again.
    Index {
        /// Its file.
        file: String,
    },
}

/// Makes a directory whole: what a start does, then indexes are made again, and segments that are
/// damaged are written anew without the damage, which is kept aside and posted as lost. Returns
/// when all of it is durable. Repairing twice changes nothing more. What `config` says of the size of
/// the journal holds where no file of it tells.
///
/// # Errors
/// [`LogError::Locked`] while a process has the directory; [`LogError::Disk`].
pub fn repair(
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    config: impl Into<EmbeddedConfig>,
    write: u64,
) -> Result<Vec<Repaired>, LogError> {
    let mut config = config.into();
    let dir = &config.dir.clone();
    config.journal_size = journal_size(&**disk, dir)?.unwrap_or(config.journal_size);
    let damaged = manifest::read(&**disk, dir)?.and_then(|found| found.damage);
    let opened = open(Arc::clone(disk), Arc::clone(clock), config, write)?;
    let Opened {
        hub,
        mut keeper,
        lock,
        ..
    } = opened;
    // From here on everything is in segments, and the manifest is all there is.
    keeper.checkpoint()?;
    let mut state = hub.state().clone();
    let is_journal_damaged = losses::is_journal_damaged(&state);
    let mut repaired = Vec::new();
    repaired.extend(damaged.map(|(file, _)| Repaired::Manifest {
        file: file.to_owned(),
    }));
    let doubts = state.doubts.drain(..);
    repaired.extend(doubts.map(|doubt| Repaired::Doubt(doubt.what)));
    for topic in state.topics.iter_mut().filter(|topic| topic.is_made_up) {
        topic.is_made_up = false;
        let name = topic.name.clone();
        repaired.push(Repaired::MadeUp { topic: name });
    }
    let mut harms = Vec::new();
    for topic in 0..state.topics.len() {
        let topic = u32::try_from(topic).unwrap_or(u32::MAX);
        let partitions = state.topics[topic as usize].partitions.len();
        for number in 0..u32::try_from(partitions).unwrap_or(0) {
            let mut repair = Repair {
                disk: &**disk,
                dir,
                state: &mut state,
                at: (topic, number),
                repaired: &mut repaired,
                harms: &mut harms,
            };
            repair.partition()?;
        }
    }
    let is_unread = |topic| losses::removed_unread(topic) > 0;
    let is_removed = state.topics.iter().any(is_unread);
    if is_journal_damaged || is_removed || !harms.is_empty() {
        let damage = Damage {
            harms: &harms,
            is_journal_damaged,
            now_ms: clock.now_ms().max(state.folded_from()),
        };
        let before = settled_blindly(&state);
        repaired.extend(losses::post(&**disk, dir, &mut state, &damage)?);
        repaired.extend(before.lost_since(&state));
    }
    manifest::write(&**disk, dir, &state)?;
    drop(lock);
    Ok(repaired)
}

/// How long the files of the journal were made, but for one that a large commit made longer. Whoever
/// repairs a log may not know how it is configured, and its disk may have no room for larger ones.
fn journal_size(disk: &dyn Disk, dir: &Path) -> Result<Option<u64>, LogError> {
    if presence(disk, dir)? == Presence::Absent {
        return Ok(None);
    }
    let names = files::journals(disk, dir)?.into_values();
    Ok(names.filter_map(|name| files::journal_len(&name)).min())
}

/// How many events groups have passed with commits that were damaged, by group and topic.
fn settled_blindly(state: &State) -> Blind {
    let mut blind = BTreeMap::new();
    for (group, readings) in &state.groups {
        for (topic, reading) in readings {
            let lost = reading.posted.in_place(&Place::Lost(COMMIT_DAMAGED));
            let name = state.topics.get(*topic as usize).map(|topic| &topic.name);
            blind.extend(name.map(|name| ((group.clone(), name.clone()), lost)));
        }
    }
    Blind(blind)
}

struct Blind(BTreeMap<(GroupName, Topic), i64>);

impl Blind {
    /// What was added to that.
    fn lost_since(&self, state: &State) -> Vec<Repaired> {
        let now = settled_blindly(state).0.into_iter();
        now.filter_map(|((group, topic), now)| {
            let before = self.0.get(&(group.clone(), topic.clone())).copied();
            let events = u64::try_from(now - before.unwrap_or(0)).unwrap_or(0);
            (events > 0).then_some(Repaired::Commits {
                group,
                topic,
                events,
            })
        })
        .collect()
    }
}

struct Repair<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    state: &'a mut State,
    at: (u32, u32),
    repaired: &'a mut Vec<Repaired>,
    harms: &'a mut Vec<Harm>,
}

impl Repair<'_> {
    fn partition(&mut self) -> Result<(), LogError> {
        let (topic, number) = self.at;
        let Some(at) = self.state.name(topic, number) else {
            return Ok(());
        };
        let partition = self.state.partition_mut(topic, number);
        let segments = partition
            .map(|p| std::mem::take(&mut p.segments))
            .unwrap_or_default();
        let mut kept = Vec::new();
        for segment in segments {
            let parts = damaged_parts(self.disk, self.dir, (&at, &segment), self.state.seal)?;
            let segment = match parts.is_empty() {
                true => Some(segment),
                false => self.rewrite(&at, &segment, &parts)?,
            };
            let Some(segment) = segment else {
                continue;
            };
            if segment.is_sealed && read_index(self.disk, self.dir, &at, &segment).is_none() {
                self.index(&at, &segment)?;
            }
            kept.push(segment);
        }
        if let Some(partition) = self.state.partition_mut(topic, number) {
            partition.segments = kept;
            partition.damaged.sort_unstable();
        }
        Ok(())
    }

    /// Writes a segment anew without what is damaged; none if nothing is left of it.
    fn rewrite(
        &mut self,
        at: &TopicPartition,
        segment: &Segment,
        parts: &[DamagedPart],
    ) -> Result<Option<Segment>, LogError> {
        let path = segment_path(self.dir, at, segment);
        let is_missing = parts.iter().any(|part| part.bytes.0 == 0);
        let mut rest = Segment::new(segment.base, segment.generation + 1);
        if !is_missing {
            let file = self.disk.open(&path, OpenMode::Read).doing("open", &path)?;
            let to = segment_path(self.dir, at, &rest);
            if let Err(error) = self.disk.remove(&to)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(error).doing("remove", &to);
            }
            let mut out = self
                .disk
                .open(&to, OpenMode::CreateNew)
                .doing("make", &to)?;
            out.append(&MAGIC).doing("write", &to)?;
            let mut scan = Scan::whole(segment, self.state.seal);
            while let Some(seen) = scan.next(&*file, &path)? {
                if let Seen::Chunk { head, bytes, .. } = seen {
                    out.append(&bytes).doing("write", &to)?;
                    rest.add(&head);
                }
            }
            out.sync().doing("sync", &to)?;
            let dir = files::topic_dir(self.dir, &at.topic);
            self.disk.sync_dir(&dir).doing("sync", &dir)?;
        }
        for part in parts {
            let aside = match is_missing {
                true => None,
                false => Some(self.keep(&path, part)?),
            };
            self.repaired.push(Repaired::Records {
                at: at.clone(),
                offsets: part.offsets,
                aside,
            });
        }
        let (topic, number) = self.at;
        let mut minutes = segment.minutes.clone();
        for (minute, tally) in &rest.minutes {
            let held = minutes.entry(*minute).or_default();
            *held = held.minus(*tally);
        }
        let from = parts.iter().map(|part| part.offsets.0).min();
        let to = parts.iter().map(|part| part.offsets.1).max();
        self.harms.push(Harm {
            topic,
            partition: number,
            offsets: (from.unwrap_or(segment.base), to.unwrap_or(segment.end)),
            minutes,
        });
        if let Some(partition) = self.state.partition_mut(topic, number) {
            let damaged = parts.iter().map(|part| part.offsets);
            partition.damaged.extend(damaged);
        }
        rest.end = segment.end;
        rest.is_sealed = true;
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// Keeps the bytes of a damaged part aside.
    fn keep(&self, path: &Path, part: &DamagedPart) -> Result<String, LogError> {
        let file = self.disk.open(path, OpenMode::Read).doing("open", path)?;
        let len = usize::try_from(part.bytes.1 - part.bytes.0).unwrap_or(0);
        let mut bytes = vec![0; len];
        let read = file.read_at(part.bytes.0, &mut bytes).doing("read", path)?;
        bytes.truncate(read);
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("segment");
        let dir = path.parent().unwrap_or(self.dir);
        let what = format!("{name}-{}", part.bytes.0);
        let kept = files::keep_aside(self.disk, dir, &what, &bytes)?;
        Ok(kept.display().to_string())
    }

    fn index(&mut self, at: &TopicPartition, segment: &Segment) -> Result<(), LogError> {
        let path = segment_path(self.dir, at, segment);
        let file = self.disk.open(&path, OpenMode::Read).doing("open", &path)?;
        let mut indexed = segment.clone();
        indexed.index.complete(rebuild_index(
            &*file,
            &path,
            (segment, segment.len),
            self.state.seal,
        )?);
        let name = segment.name(self.at.1);
        let index = files::index_of(&name);
        let dir = files::topic_dir(self.dir, &at.topic);
        let new = format!("{index}.new");
        files::replace(self.disk, &dir, (&new, &index), &index_file(&indexed))?;
        self.repaired.push(Repaired::Index { file: index });
        Ok(())
    }
}
