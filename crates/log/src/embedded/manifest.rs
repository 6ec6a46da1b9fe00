//! The manifest: the log as of a checkpoint.
//!
//! Everything it speaks of is synced before it is written; what came later is in the journal from
//! the place that it names. Files that neither speaks of are left-overs.
//!
//! ```text
//! "TGMAN\x04\0\0", u32 CRC32C of what follows
//! cluster; u64 secret; u64 sequence, u32 CRC of the last group; u64 journal file, u64 place in it
//! topics: name, configuration, books, partitions: {start, end, damaged ranges, segments}
//! groups: name, topics: {number, starts, committed offsets, postings, what was gone before}
//! damage: parts of the journal that were lost: file, place, sequences, at least how many events, why
//! lost commits: commits of groups before which others were lost, and how many events they passed unposted
//! ```
//!
//! It is written twice, the copy first, and nothing is given up before both are there. So either of
//! them can be used alone: the copy is as new as the manifest, or newer. Where it is newer a start makes
//! it as old again, before it gives up what only the copy speaks of.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use tidegate_core::env::Disk;
use tidegate_core::{GroupName, Topic};

use super::change::{put_committed, put_topic_config, read_committed, read_topic_config};
use super::codec::{Decoder, length, put_books, put_bytes, put_i64, put_u32, put_u64};
use super::files::{self, Doing, MANIFEST, MANIFEST_COPY, MANIFEST_NEW};
use super::secret::LogSecret;
use super::segment::Segment;
use super::state::{
    GroupProgress, JournalDamage, JournalPlace, LogState, LostCommit, PartitionState, TopicState,
};
use crate::error::LogError;

/// What a manifest begins with, by version: the last one is what is written. The first one has no copy
/// and does not tell what was lost, the second one has no secret. Versions 2 and 3 keep what was lost in
/// another way.
const MAGICS: [[u8; 8]; 4] = [
    *b"TGMAN\x01\0\0",
    *b"TGMAN\x02\0\0",
    *b"TGMAN\x03\0\0",
    *b"TGMAN\x04\0\0",
];
const VERSION: usize = MAGICS.len();
/// More than any manifest has.
const LIMIT: u64 = 1 << 30;

/// Writes a checkpoint: the state without what is only in the journal.
pub(super) fn write(disk: &dyn Disk, dir: &Path, state: &LogState) -> Result<(), LogError> {
    let mut content = Vec::new();
    put_state(&mut content, state);
    let mut bytes = MAGICS[VERSION - 1].to_vec();
    put_u32(&mut bytes, crc32c::crc32c(&content));
    bytes.extend_from_slice(&content);
    files::replace(disk, dir, (MANIFEST_NEW, MANIFEST_COPY), &bytes)?;
    files::replace(disk, dir, (MANIFEST_NEW, MANIFEST), &bytes)
}

/// A checkpoint as it was found.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) state: LogState,
    /// The file that cannot be used, while the other one can, and why.
    pub(super) damage: Option<(&'static str, String)>,
    /// Whether it is of an earlier version.
    pub(super) is_old: bool,
    /// Whether the copy says something else: a checkpoint ended between the two.
    pub(super) is_copy_newer: bool,
}

/// Reads the checkpoint; none where there is none yet.
///
/// # Errors
/// The manifest and its copy are damaged, or of another version.
pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Checkpoint>, LogError> {
    let whole = |one: One, damage| {
        Ok(Some(Checkpoint {
            state: one.state,
            damage,
            is_old: one.version < VERSION,
            is_copy_newer: false,
        }))
    };
    let missing = || "it is missing".to_owned();
    match (
        read_one(disk, dir, MANIFEST),
        read_one(disk, dir, MANIFEST_COPY),
    ) {
        (Ok(None), Ok(None)) => Ok(None),
        (Ok(Some(one)), Ok(None)) if one.version == 1 => whole(one, None),
        (Ok(Some(one)), Ok(Some(copy))) => Ok(Some(Checkpoint {
            is_copy_newer: one.bytes != copy.bytes,
            state: one.state,
            damage: None,
            is_old: one.version < VERSION,
        })),
        (Ok(Some(one)), Ok(None)) => whole(one, Some((MANIFEST_COPY, missing()))),
        (Ok(Some(one)), Err(LogError::Format { why, .. })) => {
            whole(one, Some((MANIFEST_COPY, why)))
        }
        (Ok(None), Ok(Some(copy))) => whole(copy, Some((MANIFEST, missing()))),
        (Err(LogError::Format { why, .. }), Ok(Some(copy))) => whole(copy, Some((MANIFEST, why))),
        (Err(LogError::Format { path, why }), Ok(None)) => Err(LogError::Format {
            path,
            why: format!("{why}, and `{MANIFEST_COPY}` is missing"),
        }),
        (Err(LogError::Format { path, why }), Err(LogError::Format { why: copy, .. })) => {
            Err(LogError::Format {
                path,
                why: format!("{why}; of `{MANIFEST_COPY}`: {copy}"),
            })
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Writes both files anew from the one that can be read, or from the older one, as this version writes
/// them. What cannot be read is kept aside.
///
/// # Errors
/// The disk has no room or fails; both are as they were, or one of them is right.
pub(super) fn mend(disk: &dyn Disk, dir: &Path, found: &Checkpoint) -> Result<(), LogError> {
    let damaged = found.damage.as_ref().map(|(name, _)| *name);
    if let Some(name) = damaged {
        match disk.read(&dir.join(name), LIMIT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => {
                let bytes = read.doing("read", &dir.join(name))?;
                files::keep_aside(disk, dir, &format!("damaged-{name}"), &bytes)?;
            }
        }
    }
    write(disk, dir, &found.state)
}

/// Gives up a copy that is newer than the manifest, where there is no room to write it again: what only
/// the copy speaks of will be given up as well.
///
/// # Errors
/// The disk fails.
pub(super) fn remove_copy(disk: &dyn Disk, dir: &Path) -> Result<(), LogError> {
    let path = dir.join(MANIFEST_COPY);
    disk.remove(&path).doing("remove", &path)?;
    disk.sync_dir(dir).doing("sync", dir)
}

/// Has the checkpoint know of damage, and of nothing else that came later: before the files are moved
/// that it was found in.
///
/// # Errors
/// The disk has no room or fails; the checkpoint is as it was.
pub(super) fn note_damage(
    disk: &dyn Disk,
    dir: &Path,
    damage: &[JournalDamage],
) -> Result<(), LogError> {
    let Some(Checkpoint { mut state, .. }) = read(disk, dir)? else {
        return Ok(());
    };
    state.journal_damage = damage.to_vec();
    write(disk, dir, &state)
}

/// One of the two files.
struct One {
    state: LogState,
    version: usize,
    bytes: Vec<u8>,
}

/// Reads one of the two files.
fn read_one(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Option<One>, LogError> {
    let path = dir.join(name);
    let bytes = match disk.read(&path, LIMIT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.doing("read", &path)?,
    };
    let format = |why: &str| LogError::Format {
        path: path.clone(),
        why: why.to_owned(),
    };
    let version = MAGICS.iter().position(|magic| bytes.starts_with(magic));
    let version = version.map(|earlier| earlier + 1);
    let version = version.ok_or_else(|| format("it is not a manifest of version 1 to 4"))?;
    let content = bytes.get(MAGICS[0].len()..).unwrap_or_default();
    let mut decoder = Decoder(content);
    let crc = decoder.u32();
    if crc != Some(crc32c::crc32c(decoder.0)) {
        return Err(format("its checksum does not match"));
    }
    let mut state = read_state(&mut decoder, version);
    if let Some(state) = state.as_mut().filter(|_| version > 1) {
        let read = match version {
            4.. => read_losses(&mut decoder, state),
            _ => read_old_losses(&mut decoder, state),
        };
        read.ok_or_else(|| format("it makes no sense"))?;
    }
    let state = state.filter(|_| decoder.is_empty());
    let state = state.ok_or_else(|| format("it makes no sense"))?;
    Ok(Some(One {
        state,
        version,
        bytes,
    }))
}

/// What was lost, as far as no books tell it.
fn read_losses(decoder: &mut Decoder<'_>, state: &mut LogState) -> Option<()> {
    for _ in 0..decoder.count(40)? {
        state.journal_damage.push(JournalDamage {
            file: decoder.text()?,
            at: decoder.u64()?,
            sequences: (decoder.u64()?, decoder.u64()?),
            events: decoder.u64()?,
            why: decoder.text()?,
        });
    }
    for _ in 0..decoder.count(28)? {
        state.lost_commits.push(LostCommit {
            group: GroupName::new(decoder.text()?).ok()?,
            topic: decoder.u32()?,
            partition: decoder.u32()?,
            next: decoder.i64()?,
            events: decoder.u64()?,
        });
    }
    Some(())
}

/// The same in versions 2 and 3: texts, and commits with all that they posted.
fn read_old_losses(decoder: &mut Decoder<'_>, state: &mut LogState) -> Option<()> {
    for _ in 0..decoder.count(12)? {
        state.journal_damage.push(JournalDamage {
            file: String::new(),
            at: 0,
            sequences: (0, 0),
            why: decoder.text()?,
            events: decoder.u64()?,
        });
    }
    for _ in 0..decoder.count(32)? {
        let group = GroupName::new(decoder.text()?).ok()?;
        let (topic, partition) = (decoder.u32()?, decoder.u32()?);
        let (from, next) = (decoder.i64()?, decoder.i64()?);
        let posted = LostCommit::posted(&decoder.postings()?);
        state.lost_commits.push(LostCommit {
            group,
            topic,
            partition,
            next,
            events: next.abs_diff(from).saturating_sub(posted),
        });
    }
    Some(())
}

fn put_state(out: &mut Vec<u8>, state: &LogState) {
    put_bytes(out, state.cluster.as_bytes());
    put_u64(out, state.secret.number());
    put_u64(out, state.sequence);
    put_u32(out, state.crc);
    put_u64(out, state.journal.file);
    put_u64(out, state.journal.at);
    put_u32(out, length(state.topics.len()));
    for topic in &state.topics {
        put_bytes(out, topic.name.as_str().as_bytes());
        put_topic_config(out, &topic.config);
        put_books(out, &topic.books);
        for partition in &topic.partitions {
            put_partition(out, partition);
        }
    }
    put_u32(out, length(state.groups.len()));
    for (group, by_topic) in &state.groups {
        put_bytes(out, group.as_str().as_bytes());
        put_u32(out, length(by_topic.len()));
        for (topic, progress) in by_topic {
            put_u32(out, *topic);
            put_progress(out, progress);
        }
    }
    put_u32(out, length(state.journal_damage.len()));
    for damage in &state.journal_damage {
        put_bytes(out, damage.file.as_bytes());
        put_u64(out, damage.at);
        put_u64(out, damage.sequences.0);
        put_u64(out, damage.sequences.1);
        put_u64(out, damage.events);
        put_bytes(out, damage.why.as_bytes());
    }
    put_u32(out, length(state.lost_commits.len()));
    for lost in &state.lost_commits {
        put_bytes(out, lost.group.as_str().as_bytes());
        put_u32(out, lost.topic);
        put_u32(out, lost.partition);
        put_i64(out, lost.next);
        put_u64(out, lost.events);
    }
}

fn put_partition(out: &mut Vec<u8>, partition: &PartitionState) {
    put_i64(out, partition.start);
    put_i64(out, partition.end);
    put_u32(out, length(partition.damaged.len()));
    for (from, to) in &partition.damaged {
        put_i64(out, *from);
        put_i64(out, *to);
    }
    put_u32(out, length(partition.segments.len()));
    partition
        .segments
        .iter()
        .for_each(|segment| segment.write(out));
}

fn put_progress(out: &mut Vec<u8>, progress: &GroupProgress) {
    put_u32(out, length(progress.starts.len()));
    for (start, committed) in progress.starts.iter().zip(&progress.committed) {
        put_i64(out, *start);
        out.push(u8::from(committed.is_some()));
        if let Some(committed) = committed {
            put_committed(out, committed);
        }
    }
    put_books(out, &progress.posted);
    put_books(out, &progress.before);
}

fn read_state(decoder: &mut Decoder<'_>, version: usize) -> Option<LogState> {
    let mut state = LogState {
        cluster: decoder.text()?,
        secret: match version {
            3.. => LogSecret::of_number(decoder.u64()?),
            _ => LogSecret::default(),
        },
        sequence: decoder.u64()?,
        crc: decoder.u32()?,
        journal: JournalPlace {
            file: decoder.u64()?,
            at: decoder.u64()?,
        },
        ..LogState::default()
    };
    for number in 0..length(decoder.count(1)?) {
        let name = Topic::new(decoder.text()?).ok()?;
        let config = read_topic_config(decoder)?;
        if (2..4).contains(&version) {
            // Whether it was made up for one whose creation was lost; since then it is a topic as any.
            decoder.flag()?;
        }
        let books = decoder.books()?;
        let partitions: Option<Vec<_>> = (0..config.partitions)
            .map(|_| read_partition(decoder))
            .collect();
        state.numbers.insert(name.clone(), number);
        state.topics.push(TopicState {
            name,
            config,
            books,
            partitions: partitions?,
        });
    }
    for _ in 0..decoder.count(1)? {
        let group = GroupName::new(decoder.text()?).ok()?;
        let mut by_topic = BTreeMap::new();
        for _ in 0..decoder.count(1)? {
            by_topic.insert(decoder.u32()?, read_progress(decoder)?);
        }
        state.groups.insert(group, by_topic);
    }
    let lengths = state.all().flat_map(|(.., partition)| &partition.segments);
    state.used = lengths.map(|segment| segment.len).sum();
    state.count_assigned_offsets();
    Some(state)
}

fn read_partition(decoder: &mut Decoder<'_>) -> Option<PartitionState> {
    let start = decoder.i64()?;
    let end = decoder.i64()?;
    let damaged: Option<Vec<_>> = (0..decoder.count(16)?)
        .map(|_| Some((decoder.i64()?, decoder.i64()?)))
        .collect();
    let segments: Option<Vec<_>> = (0..decoder.count(Segment::LEAST)?)
        .map(|_| Segment::read(decoder))
        .collect();
    Some(PartitionState {
        start,
        end,
        damaged: damaged?,
        segments: segments?,
        ..PartitionState::default()
    })
}

fn read_progress(decoder: &mut Decoder<'_>) -> Option<GroupProgress> {
    let mut progress = GroupProgress::default();
    for _ in 0..decoder.count(9)? {
        progress.starts.push(decoder.i64()?);
        let committed = if decoder.flag()? {
            Some(read_committed(decoder)?)
        } else {
            None
        };
        progress.committed.push(committed);
    }
    progress.posted = decoder.books()?;
    progress.before = decoder.books()?;
    Some(progress)
}
