//! Looks at a directory: what is in it, and what is not as it should be. Takes no lock and changes
//! nothing.

use std::fmt;
use std::io;
use std::path::Path;

use tidegate_core::env::Disk;
use tidegate_core::{GroupName, Offset};

use super::audit::{self, TopicAudit};
use super::files::{self, Doing};
use super::recover;
use super::scan::{Scan, ScanItem, has_magic, open_segment};
use super::secret::LogSecret;
use super::segment::{MAGIC, Segment, read_index_file};
use super::state::{LogState, UnknownLoss};
use crate::error::LogError;
use crate::port::Committed;
use crate::record::TopicPartition;
use crate::topic::TopicConfig;

/// More than any index file has.
const INDEX_LIMIT: u64 = 256 * 1024 * 1024;

/// What is in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The name of the log.
    pub cluster: String,
    /// The partitions of all topics, in the order in which the topics were made.
    pub partitions: Vec<ListedPartition>,
    /// What the registered groups have committed.
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
#[non_exhaustive]
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

/// What a group has committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedGroup {
    /// The group.
    pub group: GroupName,
    /// The partition.
    pub at: TopicPartition,
    /// What it has committed.
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
    for (topic, number, partition) in state.all() {
        let (Some(at), Some(known)) = (state.name(topic, number), state.topics.get(topic as usize))
        else {
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
        let entries = match disk.list(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            listed => listed.doing("list", &place)?,
        };
        let kept = entries
            .into_iter()
            .filter(|entry| entry.name.starts_with("aside-"));
        found.extend(kept.map(|entry| place.join(entry.name).display().to_string()));
    }
    Ok(found)
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogProblem {
    /// Records that were acknowledged cannot be read.
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
    /// What was lost with the journal and is in no books, until a repair takes note of it.
    UnknownLoss(UnknownLoss),
    /// Records that cannot be read and are counted as lost.
    Posted {
        /// The partition.
        at: TopicPartition,
        /// The first offset.
        from: Offset,
        /// The offset behind the last.
        to: Offset,
    },
    /// Of the manifest and its copy one cannot be used. Both say the same.
    Manifest {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// The journal ends in a write that was never acknowledged. The next start keeps it aside.
    Torn {
        /// The file.
        file: String,
        /// Where it begins.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// An index is missing or damaged. It is made again when it is needed.
    Index {
        /// The file.
        file: String,
    },
    /// A segment does not begin as one does. Its records can be read: each is checked by itself.
    Beginning {
        /// The file.
        file: String,
    },
    /// Books and records differ.
    Books {
        /// The topic, or the group on it.
        component: String,
        /// How many events.
        events: u64,
    },
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

impl fmt::Display for LogProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Records {
                at,
                from,
                to,
                place,
            } => {
                write!(f, "{at}: offsets {from} up to {to} are damaged")?;
                match place {
                    Some((file, position)) => write!(f, " (`{file}` at byte {position})"),
                    None => Ok(()),
                }
            }
            Self::UnknownLoss(loss) => write!(f, "journal: {loss}"),
            Self::Posted { at, from, to } => write!(
                f,
                "{at}: offsets {from} up to {to} were lost to damage and are posted as lost"
            ),
            Self::Manifest { file, why } => write!(
                f,
                "`{file}` cannot be used: {why}; the next start makes it again from the other one"
            ),
            Self::Torn { file, at, bytes } => write!(
                f,
                "journal: {bytes} bytes of `{file}` from byte {at} were never acknowledged"
            ),
            Self::Beginning { file } => {
                write!(f, "`{file}` does not start with the header of a segment")
            }
            Self::Index { file } => write!(f, "index `{file}` is missing or damaged"),
            Self::Books { component, events } => {
                write!(
                    f,
                    "{component}: books and records differ by {events} events"
                )
            }
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Checked {
    /// What is not as it should be.
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
    let secret = found.state.secret;
    for (topic, number, partition) in found.state.all() {
        let Some(at) = found.state.name(topic, number) else {
            continue;
        };
        for (from, to) in &partition.damaged {
            let (at, from, to) = (at.clone(), Offset(*from), Offset(*to));
            checked
                .problems
                .push(match found.state.is_posted(&at, from, to) {
                    true => LogProblem::Posted { at, from, to },
                    false => LogProblem::Records {
                        at,
                        from,
                        to,
                        place: None,
                    },
                });
        }
        for segment in partition.segments.iter().filter(|s| !s.is_empty()) {
            checked.segments += 1;
            let found = damaged_parts(disk, dir, (&at, segment), secret)?;
            is_readable &= found.is_empty();
            let named = |part: DamagedPart| LogProblem::Records {
                at: at.clone(),
                from: Offset(part.offsets.0),
                to: Offset(part.offsets.1),
                place: Some((segment.name(number), part.bytes.0)),
            };
            checked.problems.extend(found.into_iter().map(named));
            let path = segment_path(dir, &at, segment);
            // Of one that is missing everything was said.
            let Some(file) = open_segment(disk, &path, secret)? else {
                continue;
            };
            if !has_magic(&*file, &path)? {
                let file = segment.name(number);
                checked.problems.push(LogProblem::Beginning { file });
            }
            if segment.is_sealed && read_index(disk, dir, &at, segment).is_none() {
                let file = files::index_of(&segment.name(number));
                checked.problems.push(LogProblem::Index { file });
            }
        }
    }
    // Records that cannot be read are missing in the books too; they were named above.
    if is_readable {
        let audited = audit::recount(disk, dir)?;
        checked
            .problems
            .extend(audited.iter().filter_map(books_problem));
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

/// The parts of a segment that cannot be read; all of it where its file is missing. One that was begun
/// and holds nothing misses nothing.
pub(super) fn damaged_parts(
    disk: &dyn Disk,
    dir: &Path,
    (at, segment): (&TopicPartition, &Segment),
    secret: LogSecret,
) -> Result<Vec<DamagedPart>, LogError> {
    let path = segment_path(dir, at, segment);
    if segment.is_empty() {
        return Ok(Vec::new());
    }
    let Some(file) = open_segment(disk, &path, secret)? else {
        return Ok(vec![DamagedPart {
            bytes: (0, segment.len),
            offsets: (segment.base, segment.end),
        }]);
    };
    let mut parts = Vec::new();
    let mut scan = Scan::whole(segment, secret);
    let mut expected = segment.base;
    while let Some(seen) = scan.next(&*file, &path)? {
        match seen {
            ScanItem::Chunk { head, .. } => expected = head.end(),
            ScanItem::Damage { at, to, held, next } => {
                let offsets = held.unwrap_or((expected, next.unwrap_or(segment.end)));
                expected = offsets.1;
                parts.push(DamagedPart {
                    bytes: (at, to),
                    offsets,
                });
            }
        }
    }
    Ok(parts)
}

pub(super) fn segment_path(
    dir: &Path,
    at: &TopicPartition,
    segment: &Segment,
) -> std::path::PathBuf {
    let number = u32::try_from(at.partition.0).unwrap_or(0);
    files::topic_dir(dir, &at.topic).join(segment.name(number))
}

/// The index of a segment, if it is there and right.
pub(super) fn read_index(
    disk: &dyn Disk,
    dir: &Path,
    at: &TopicPartition,
    segment: &Segment,
) -> Option<()> {
    let path = segment_path(dir, at, segment).with_extension("idx");
    let bytes = disk.read(&path, INDEX_LIMIT).ok()?;
    let entries = read_index_file(&bytes, segment.len)?;
    let is_within = |position: u64| (MAGIC.len() as u64..segment.len).contains(&position);
    entries
        .iter()
        .all(|entry| is_within(entry.position))
        .then_some(())
}
