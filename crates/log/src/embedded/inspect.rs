//! Looks at a directory: what is in it, and what is not as it should be. Takes no lock and changes
//! nothing.

use std::path::Path;

use tidegate_core::env::Disk;
use tidegate_core::{GroupName, Offset};

use super::audit::{self, TopicAudit};
use super::files::{self, Doing};
use super::recover;
use super::scan::{Scan, ScanItem, read_index};
use super::secret::LogSecret;
use super::segment::{Minutes, Segment};
use super::state::{LogState, UnknownLoss};
use crate::error::LogError;
use crate::port::Committed;
use crate::record::{TopicPartition, offsets_in_words};
use crate::topic::TopicConfig;

/// The content of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The name of the log.
    pub cluster: String,
    /// The partitions of all topics, in the order in which the topics were made.
    pub partitions: Vec<ListedPartition>,
    /// The offsets that the registered groups have committed.
    pub groups: Vec<ListedGroup>,
    /// Bytes of records.
    pub bytes: u64,
    /// Groups of the journal that are in no checkpoint yet.
    pub replayed: u64,
    /// Files that were kept aside.
    pub aside: Vec<String>,
}

/// A partition as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPartition {
    /// Which one.
    pub at: TopicPartition,
    /// How its topic is set up.
    pub config: TopicConfig,
    /// The first offset that is there, and the one behind the last.
    pub start: Offset,
    /// The offset behind the last one.
    pub end: Offset,
    /// The segments of it that are on disk: name, first offset, offset behind the last, bytes.
    pub segments: Vec<(String, Offset, Offset, u64)>,
    /// Bytes of it that are only in the journal.
    pub journaled: u64,
}

/// The committed offset of a group for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedGroup {
    /// The group.
    pub group: GroupName,
    /// The partition.
    pub at: TopicPartition,
    /// Its committed offset.
    pub committed: Option<Committed>,
}

/// Lists a directory; none where there is no log.
///
/// # Errors
/// The directory or a file in it cannot be read, or is of another version.
pub fn ls(disk: &dyn Disk, dir: &Path) -> Result<Option<Listing>, LogError> {
    let Some(found) = recover::look(disk, dir)? else {
        return Ok(None);
    };
    let state = found.state;
    let mut partitions = Vec::new();
    let mut groups = Vec::new();
    for ((topic, number), partition) in state.all() {
        let known = state.topics.get(topic as usize);
        let known = known.filter(|known| !known.is_removed);
        let (Some(at), Some(known)) = (state.name((topic, number)), known) else {
            continue;
        };
        let segments = partition.segments.iter();
        let listed = |s: &Segment| (s.name(number), Offset(s.base), Offset(s.end), s.len);
        for (group, by_topic) in &state.groups {
            if let Some(progress) = by_topic.get(&topic) {
                let committed = progress.committed.get(number as usize).cloned().flatten();
                groups.push(ListedGroup {
                    group: group.clone(),
                    at: at.clone(),
                    committed,
                });
            }
        }
        partitions.push(ListedPartition {
            at,
            config: known.config.clone(),
            start: Offset(partition.start),
            end: Offset(partition.end),
            segments: segments.map(listed).collect(),
            journaled: partition.unflushed_bytes,
        });
    }
    Ok(Some(Listing {
        cluster: state.cluster.clone(),
        partitions,
        groups,
        bytes: state.used,
        replayed: found.replayed,
        aside: aside(disk, dir, &state)?,
    }))
}

fn aside(disk: &dyn Disk, dir: &Path, state: &LogState) -> Result<Vec<String>, LogError> {
    let mut found = Vec::new();
    let topics = state
        .topics
        .iter()
        .map(|topic| files::topic_dir(dir, &topic.name));
    for place in std::iter::once(dir.to_owned()).chain(topics) {
        let entries = disk.list(&place).if_there().doing("list", &place)?;
        let entries = entries.into_iter().flatten();
        let kept = entries.filter(|entry| entry.name.starts_with("aside-"));
        found.extend(kept.map(|entry| place.join(entry.name).display().to_string()));
    }
    Ok(found)
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogProblem {
    /// Records that were acknowledged cannot be read.
    #[error("{at}: damaged: {}{}", offsets_in_words(*.from, *.to), in_file(.place))]
    Records {
        /// The partition.
        at: TopicPartition,
        /// The first offset.
        from: Offset,
        /// The offset behind the last.
        to: Offset,
        /// The file, and where in it; none where they were lost with a part of the journal.
        place: Option<(String, u64)>,
    },
    /// Something was lost with the journal and is in no books, until a repair takes note of it.
    #[error("journal: {0}")]
    UnknownLoss(UnknownLoss),
    /// Records that cannot be read and are counted as lost.
    #[error("{at}: lost to damage, and posted so: {}", offsets_in_words(*.from, *.to))]
    Posted {
        /// The partition.
        at: TopicPartition,
        /// The first offset.
        from: Offset,
        /// The offset behind the last.
        to: Offset,
    },
    /// Of the manifest and its copy one cannot be used. Both say the same.
    #[error("`{file}` cannot be used: {why}; the next start makes it again from the other one")]
    Manifest {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
    /// The journal ends in bytes that cannot be read. The next start keeps them aside.
    #[error(
        "journal: {bytes} bytes of `{file}` from byte {at} cannot be told from a write that was cut; they \
         may have been acknowledged"
    )]
    Torn {
        /// The file.
        file: String,
        /// Where it begins.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// An index is missing or damaged. It is made again when it is needed.
    #[error("index `{file}` is missing or damaged")]
    Index {
        /// The file.
        file: String,
    },
    /// A segment does not begin as one does. Its records can be read: each is checked by itself.
    #[error("`{file}` does not start with the header of a segment")]
    Beginning {
        /// The file.
        file: String,
    },
    /// Books and records differ.
    #[error("{component}: books and records differ by {events} event{}", if *.events == 1 { "" } else { "s" })]
    Books {
        /// The topic, or the group on it.
        component: String,
        /// How many events.
        events: u64,
    },
}

fn in_file(place: &Option<(String, u64)>) -> String {
    let text = |(file, position): &(String, u64)| format!(" (`{file}` at byte {position})");
    place.as_ref().map(text).unwrap_or_default()
}

impl LogProblem {
    /// Whether something is lost that nobody has taken note of; the others mend themselves.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Records { .. } | Self::UnknownLoss(_) | Self::Books { .. } => true,
            Self::Posted { .. }
            | Self::Manifest { .. }
            | Self::Torn { .. }
            | Self::Beginning { .. }
            | Self::Index { .. } => false,
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Everything that is not as it should be.
    pub problems: Vec<LogProblem>,
    /// Segments that were read.
    pub segments: u64,
    /// Groups of the journal that were read.
    pub groups: u64,
}

/// Reads everything in a directory and says what is not as it should be. A directory without a log
/// has no problems.
///
/// # Errors
/// The directory or a file in it cannot be read, or is of another version.
pub fn check(disk: &dyn Disk, dir: &Path) -> Result<Checked, LogError> {
    let mut checked = Checked::default();
    let Some(found) = recover::look(disk, dir)? else {
        return Ok(checked);
    };
    checked.groups = found.replayed;
    if let Some((file, why)) = found.manifest {
        let file = file.to_owned();
        checked.problems.push(LogProblem::Manifest { file, why });
    }
    let loss = found.state.unknown_loss();
    checked.problems.extend(loss.map(LogProblem::UnknownLoss));
    if let Some(torn) = found.torn {
        checked.problems.push(LogProblem::Torn {
            file: torn.file,
            at: torn.at,
            bytes: torn.bytes.len() as u64,
        });
    }
    let mut is_readable = true;
    for (key, partition) in found.state.all() {
        let Some(at) = found.state.name(key) else {
            continue;
        };
        for (from, to) in &partition.damaged {
            let is_posted = found.state.is_posted(&at, (*from, *to));
            let (at, from, to) = (at.clone(), Offset(*from), Offset(*to));
            let place = None;
            checked.problems.push(match is_posted {
                true => LogProblem::Posted { at, from, to },
                false => LogProblem::Records {
                    at,
                    from,
                    to,
                    place,
                },
            });
        }
        for segment in partition.segments.iter().filter(|s| !s.is_empty()) {
            checked.segments += 1;
            let survey = SegmentSurvey::of(disk, dir, (&at, segment), found.state.secret)?;
            is_readable &= survey.damaged.is_empty();
            let named = |part: &DamagedPart| LogProblem::Records {
                at: at.clone(),
                from: Offset(part.offsets.0),
                to: Offset(part.offsets.1),
                place: Some((segment.name(key.1), part.bytes.0)),
            };
            checked.problems.extend(survey.damaged.iter().map(named));
            let file = segment.name(key.1);
            match survey.has_magic {
                // Everything was said of one that is missing.
                None => continue,
                Some(false) => checked.problems.push(LogProblem::Beginning { file }),
                Some(true) => {}
            }
            let path = files::segment_path(dir, &at, segment);
            if segment.is_sealed && read_index(disk, &path, segment).is_none() {
                let file = files::index_of(&segment.name(key.1));
                checked.problems.push(LogProblem::Index { file });
            }
        }
    }
    // Records that cannot be read are missing in the books too; they were named above.
    if is_readable {
        let audited = audit::recount(disk, dir)?;
        let problems = audited.iter().filter_map(books_problem);
        checked.problems.extend(problems);
    }
    Ok(checked)
}

fn books_problem(audited: &TopicAudit) -> Option<LogProblem> {
    let component = match &audited.group {
        Some(group) => format!("{group}@{}", audited.topic),
        None => audited.topic.to_string(),
    };
    (audited.unaccounted() > 0).then(|| LogProblem::Books {
        component,
        events: audited.unaccounted(),
    })
}

/// A part of a segment that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DamagedPart {
    /// From the first byte to the one behind the last.
    pub(super) bytes: (u64, u64),
    /// From the first offset to the one behind the last.
    pub(super) offsets: (i64, i64),
}

/// Everything that a segment holds, as far as it can be read.
#[derive(Debug, Default)]
pub(super) struct SegmentSurvey {
    /// The parts that cannot be read; all of it where its file is missing.
    pub(super) damaged: Vec<DamagedPart>,
    /// The contribution to the books that is missing in the records which can be read.
    pub(super) missing: Minutes,
    /// Whether it begins as a segment does; none where its file is missing.
    pub(super) has_magic: Option<bool>,
}

impl SegmentSurvey {
    /// Reads a segment. One that was begun and holds nothing misses nothing.
    pub(super) fn of(
        disk: &dyn Disk,
        dir: &Path,
        (at, segment): (&TopicPartition, &Segment),
        secret: LogSecret,
    ) -> Result<Self, LogError> {
        let mut survey = Self::default();
        if segment.is_empty() {
            return Ok(survey);
        }
        survey.missing = segment.minutes.clone();
        let path = files::segment_path(dir, at, segment);
        let Some(scan) = Scan::open(disk, &path, segment, secret)? else {
            survey.damaged.push(DamagedPart {
                bytes: (0, segment.len),
                offsets: (segment.base, segment.end),
            });
            return Ok(survey);
        };
        survey.has_magic = Some(scan.has_magic()?);
        for seen in scan {
            match seen? {
                ScanItem::Chunk { chunk, .. } => {
                    for (minute, tally) in chunk.head.tallies {
                        let rest = survey.missing.entry(minute).or_default();
                        *rest = rest.minus(tally);
                    }
                }
                ScanItem::Damage { bytes, offsets, .. } => {
                    survey.damaged.push(DamagedPart { bytes, offsets });
                }
            }
        }
        survey.missing.retain(|_, tally| !tally.is_zero());
        Ok(survey)
    }
}
