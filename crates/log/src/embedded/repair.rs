//! Makes a directory whole again: nothing is thrown away, and what is lost is said and posted.

mod losses;
mod salvage;

use std::path::Path;
use std::sync::Arc;

use tidegate_core::books::LossReason;
use tidegate_core::env::{Clock, Disk, OpenMode};
use tidegate_core::{GroupName, Topic};

use losses::DamagedSegment;
use salvage::Salvage;

use super::change::PartitionKey;
use super::chunk::Chunk;
use super::config::EmbeddedConfig;
use super::files::{self, Doing};
use super::inspect::{DamagedPart, SegmentSurvey};
use super::manifest;
use super::open::{OpenedLog, open};
use super::presence::{Presence, presence};
use super::recover;
use super::scan::{Scan, ScanItem, index_content, read_index};
use super::segment::{MAGIC, Segment};
use super::state::{LogState, UnknownLoss};
use crate::error::LogError;
use crate::record::TopicPartition;

/// Why records are lost that a repair could not read.
pub const DAMAGED: LossReason = LossReason::from_static("damaged");

/// Why events are lost that a group passed with a commit that was damaged: what became of them is unknown.
pub const COMMIT_DAMAGED: LossReason = LossReason::from_static("commit_damaged");

/// One thing that a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Damaged bytes were kept aside; the records they held were taken from the journal.
    Recovered {
        /// The partition.
        at: TopicPartition,
        /// The offsets: the first, and the one behind the last.
        offsets: (i64, i64),
        /// Where the bytes are now; none if their file was missing.
        aside: Option<String>,
    },
    /// The manifest or its copy was made again from the other one.
    Manifest {
        /// The file.
        file: String,
    },
    /// A loss with the journal was taken note of.
    UnknownLoss(UnknownLoss),
    /// A group passed events with commits that were damaged: what became of them is unknown, and they are
    /// posted as lost to the group.
    Commits {
        /// The group.
        group: GroupName,
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

/// The events that a repair would post as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepairPlan {
    /// Events of topics, as `lost:damaged`.
    pub damaged: u64,
    /// Events of groups, as `lost:commit_damaged`.
    pub commit_damaged: u64,
    /// Records of damaged segments that it would take from the journal.
    pub recovered: u64,
}

/// Says what a repair would post as lost. Takes no lock and changes nothing.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn plan_repair(disk: &dyn Disk, clock: &dyn Clock, dir: &Path) -> Result<RepairPlan, LogError> {
    let mut plan = RepairPlan::default();
    let Some(found) = recover::look(disk, dir)? else {
        return Ok(plan);
    };
    let mut state = found.state;
    let salvage = Salvage::look(disk, dir, &state)?;
    let mut damaged_segments = Vec::new();
    for at in keys(&state) {
        let segments = state.partition(at).map(|p| p.segments.clone());
        for segment in segments.unwrap_or_default() {
            let Some(damaged) = assess(disk, dir, &state, (at, &segment), &salvage)? else {
                continue;
            };
            let Some(chunks) = damaged.found else {
                damaged_segments.push(damaged.segment);
                continue;
            };
            let records = chunks.iter().map(|chunk| u64::from(chunk.head.count));
            plan.recovered += records.sum::<u64>();
            // There they are counted.
            if let Some(partition) = state.partition_mut(at) {
                partition.unflushed.extend(chunks);
            }
        }
    }
    let posted = losses::post(disk, dir, &mut state, &damaged_segments, clock.now_ms())?;
    plan.damaged = posted.damaged;
    plan.commit_damaged = posted.commit_damaged;
    Ok(plan)
}

/// Makes a directory whole: what a start does, then indexes are made again, and segments that are
/// damaged are written anew. Records that the journal still has are taken from there; the rest is kept
/// aside and posted as lost, as [`plan_repair`] says. Returns when all of it is durable. Repairing twice
/// changes nothing more. The size of the journal in `config` holds where no file of it tells.
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
    // A start uses journal files again.
    let salvage = match recover::look(&**disk, dir)? {
        Some(found) => Salvage::look(&**disk, dir, &found.state)?,
        None => Salvage::default(),
    };
    let opened = open(Arc::clone(disk), Arc::clone(clock), config, write)?;
    let OpenedLog {
        context,
        mut maintenance,
        lock,
        ..
    } = opened;
    // From here on everything is in segments, and the manifest is all there is.
    maintenance.checkpoint()?;
    let mut repaired = Vec::new();
    repaired.extend(damaged.map(|(file, _)| Repaired::Manifest {
        file: file.to_owned(),
    }));
    repaired.extend(context.state().unknown_loss().map(Repaired::UnknownLoss));
    let mut repair = Repair {
        disk: &**disk,
        dir,
        state: context.state().clone(),
        salvage: &salvage,
        repaired,
        damaged_segments: Vec::new(),
    };
    for key in keys(&repair.state) {
        repair.partition(key)?;
    }
    let Repair {
        mut state,
        mut repaired,
        damaged_segments,
        ..
    } = repair;
    let posted = losses::post(&**disk, dir, &mut state, &damaged_segments, clock.now_ms())?;
    repaired.extend(posted.repaired);
    state.journal_damage.clear();
    state.lost_commits.clear();
    manifest::write(&**disk, dir, &state)?;
    drop(lock);
    Ok(repaired)
}

/// All partitions.
fn keys(state: &LogState) -> Vec<PartitionKey> {
    state.all().map(|(key, _)| key).collect()
}

/// A segment that is damaged.
struct Damaged {
    parts: Vec<DamagedPart>,
    segment: DamagedSegment,
    /// All that it lacks, where the journal has it.
    found: Option<Vec<Chunk>>,
}

/// The damage of a segment; none where there is none.
fn assess(
    disk: &dyn Disk,
    dir: &Path,
    state: &LogState,
    (key, segment): (PartitionKey, &Segment),
    salvage: &Salvage,
) -> Result<Option<Damaged>, LogError> {
    let Some(at) = state.name(key) else {
        return Ok(None);
    };
    let survey = SegmentSurvey::of(disk, dir, (&at, segment), state.secret)?;
    let (parts, minutes) = (survey.damaged, survey.missing);
    let from = parts.iter().map(|part| part.offsets.0).min();
    let to = parts.iter().map(|part| part.offsets.1).max();
    Ok(from.zip(to).map(|offsets| Damaged {
        found: salvage.fill(key, &parts, &minutes),
        parts,
        segment: DamagedSegment {
            at: key,
            offsets,
            minutes,
        },
    }))
}

/// How long the files of the journal were made, but for one that a large commit made longer. A
/// repair may not know how the log is configured, and its disk may have no room for larger ones.
fn journal_size(disk: &dyn Disk, dir: &Path) -> Result<Option<u64>, LogError> {
    if presence(disk, dir)? == Presence::Absent {
        return Ok(None);
    }
    let names = files::journals(disk, dir)?.into_values();
    Ok(names.filter_map(|name| files::journal_len(&name)).min())
}

struct Repair<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    state: LogState,
    salvage: &'a Salvage,
    repaired: Vec<Repaired>,
    damaged_segments: Vec<DamagedSegment>,
}

impl Repair<'_> {
    fn partition(&mut self, key: PartitionKey) -> Result<(), LogError> {
        let Some(at) = self.state.name(key) else {
            return Ok(());
        };
        let partition = self.state.partition_mut(key);
        let segments = partition.map(|p| std::mem::take(&mut p.segments));
        let mut kept = Vec::new();
        for segment in segments.into_iter().flatten() {
            let place = (key, &segment);
            let damaged = assess(self.disk, self.dir, &self.state, place, self.salvage)?;
            let segment = match damaged {
                None => Some(segment),
                Some(damaged) => self.rewrite((key, &at), &segment, damaged)?,
            };
            let Some(segment) = segment else {
                continue;
            };
            let path = files::segment_path(self.dir, &at, &segment);
            if segment.is_sealed && read_index(self.disk, &path, &segment).is_none() {
                self.index(&at, &path, &segment)?;
            }
            kept.push(segment);
        }
        if let Some(partition) = self.state.partition_mut(key) {
            partition.segments = kept;
            partition.damaged.sort_unstable();
        }
        Ok(())
    }

    /// Writes a segment anew without what is damaged, and with what was found of it; none if nothing is
    /// left of it.
    fn rewrite(
        &mut self,
        (key, at): (PartitionKey, &TopicPartition),
        segment: &Segment,
        damaged: Damaged,
    ) -> Result<Option<Segment>, LogError> {
        let path = files::segment_path(self.dir, at, segment);
        let Damaged {
            parts,
            segment: lost,
            found,
        } = damaged;
        let is_found = found.is_some();
        let is_missing = parts.iter().any(|part| part.bytes.0 == 0);
        let mut rest = Segment::new(segment.base, segment.generation + 1);
        if !is_missing || is_found {
            self.copy(at, (segment, &mut rest), found.unwrap_or_default())?;
        }
        for part in &parts {
            let (at, offsets) = (at.clone(), part.offsets);
            let aside = match is_missing {
                true => None,
                false => Some(self.keep(&path, part)?),
            };
            self.repaired.push(match is_found {
                true => Repaired::Recovered { at, offsets, aside },
                false => Repaired::Records { at, offsets, aside },
            });
        }
        if !is_found {
            self.damaged_segments.push(lost);
            if let Some(partition) = self.state.partition_mut(key) {
                let damaged = parts.iter().map(|part| part.offsets);
                partition.damaged.extend(damaged);
            }
        }
        rest.end = segment.end;
        rest.is_sealed = true;
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// Copies the chunks of a segment that can be read to another one, and these between them.
    fn copy(
        &self,
        at: &TopicPartition,
        (segment, to): (&Segment, &mut Segment),
        found: Vec<Chunk>,
    ) -> Result<(), LogError> {
        let from = files::segment_path(self.dir, at, segment);
        let path = files::segment_path(self.dir, at, to);
        let mut out = files::make_anew(self.disk, &path)?;
        out.append(&MAGIC).doing("write", &path)?;
        let mut found = found.into_iter().peekable();
        let mut put = |chunk: &Chunk| {
            to.add(&chunk.head);
            out.append(&chunk.bytes).doing("write", &path)
        };
        let scan = Scan::open(self.disk, &from, segment, self.state.secret)?;
        for seen in scan.into_iter().flatten() {
            if let ScanItem::Chunk { chunk, .. } = seen? {
                while let Some(before) = found.next_if(|found| found.head.base < chunk.head.base) {
                    put(&before)?;
                }
                put(&chunk)?;
            }
        }
        found.try_for_each(|chunk| put(&chunk))?;
        out.sync().doing("sync", &path)?;
        let dir = files::topic_dir(self.dir, &at.topic);
        self.disk.sync_dir(&dir).doing("sync", &dir)
    }

    /// Keeps the bytes of a damaged part aside.
    fn keep(&self, path: &Path, part: &DamagedPart) -> Result<String, LogError> {
        let file = self.disk.open(path, OpenMode::Read).doing("open", path)?;
        let len = usize::try_from(part.bytes.1 - part.bytes.0).unwrap_or(0);
        let mut bytes = vec![0; len];
        let read = file.read_at(part.bytes.0, &mut bytes).doing("read", path)?;
        bytes.truncate(read);
        let name = path.file_name().and_then(|name| name.to_str());
        let dir = path.parent().unwrap_or(self.dir);
        let what = format!("{}-{}", name.unwrap_or("segment"), part.bytes.0);
        let kept = files::keep_aside(self.disk, dir, &what, &bytes)?;
        Ok(kept.display().to_string())
    }

    fn index(
        &mut self,
        at: &TopicPartition,
        path: &Path,
        segment: &Segment,
    ) -> Result<(), LogError> {
        let content = index_content(self.disk, path, segment, self.state.secret)?;
        let number = u32::try_from(at.partition.0).unwrap_or(0);
        let file = files::index_of(&segment.name(number));
        let dir = files::topic_dir(self.dir, &at.topic);
        let new = format!("{file}.new");
        files::replace(self.disk, &dir, (&new, &file), &content)?;
        self.repaired.push(Repaired::Index { file });
        Ok(())
    }
}
