//! The manifest: the log as of a checkpoint.
//!
//! Everything it speaks of is synced before it is written; what came later is in the journal from
//! the place that it names. Files that neither speaks of are left-overs.
//!
//! ```text
//! "TGMAN\x06\0\0", u32 CRC32C of what follows
//! cluster; u64 secret; u64 sequence, u32 CRC of the last group; u64 journal file, u64 place in it
//! topics: name, configuration, books, books of groups that were forgotten, whether it was removed, partitions:
//!     {start, end, damaged ranges, segments}
//! groups: name, topics: {number, starts, committed offsets, postings, what was gone before, offsets that they
//!     were moved past}
//! damage: parts of the journal that were lost: file, place, sequences, at least how many events, why
//! lost commits: commits of groups before which others were lost, and how many events they passed unposted
//! ```
//!
//! It is written twice, the copy first, and nothing is given up before both are there. So either of
//! them can be used alone: the copy is as new as the manifest, or newer. Where it is newer a start makes
//! it as old again, before it gives up what only the copy speaks of.

use std::path::Path;

use tidegate_core::Topic;
use tidegate_core::books::Books;
use tidegate_core::env::Disk;

use super::change::{
    put_committed, put_key, put_topic_config, read_committed, read_group, read_key,
    read_topic_config,
};
use super::codec::{Decoder, length, put_books, put_i64, put_list, put_text, put_u32, put_u64};
use super::files::{self, Doing, MANIFEST, MANIFEST_COPY, MANIFEST_NEW};
use super::secret::LogSecret;
use super::segment::Segment;
use super::state::{
    GroupProgress, JournalDamage, JournalPlace, LogState, LostCommit, PartitionState, TopicState,
};
use crate::error::LogError;

/// The first bytes of a manifest, by version: the last one is written. The first one has no copy
/// and does not tell what was lost, the second one has no secret. Versions 2 and 3 keep what was lost in
/// another way. Before version 5 no chunk named its partition. Before version 6 none named its topic, and
/// neither topics that were removed nor groups that were forgotten left anything.
const MAGICS: [[u8; 8]; 6] = [
    *b"TGMAN\x01\0\0",
    *b"TGMAN\x02\0\0",
    *b"TGMAN\x03\0\0",
    *b"TGMAN\x04\0\0",
    *b"TGMAN\x05\0\0",
    *b"TGMAN\x06\0\0",
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
    match (
        read_one(disk, dir, MANIFEST)?,
        read_one(disk, dir, MANIFEST_COPY)?,
    ) {
        (Err(Unusable::Missing), Err(Unusable::Missing)) => Ok(None),
        (Ok(one), Err(Unusable::Missing)) if one.version == 1 => whole(one, None),
        (Ok(one), Ok(copy)) => Ok(Some(Checkpoint {
            is_copy_newer: one.bytes != copy.bytes,
            state: one.state,
            damage: None,
            is_old: one.version < VERSION,
        })),
        (Ok(one), Err(why)) => whole(one, Some((MANIFEST_COPY, why.to_string()))),
        (Err(why), Ok(copy)) => whole(copy, Some((MANIFEST, why.to_string()))),
        (Err(Unusable::Missing), Err(Unusable::Damaged(why))) => Err(LogError::Format {
            path: dir.join(MANIFEST_COPY),
            why: why.to_owned(),
        }),
        (Err(Unusable::Damaged(why)), Err(copy)) => Err(LogError::Format {
            path: dir.join(MANIFEST),
            why: match copy {
                Unusable::Missing => format!("{why}, and `{MANIFEST_COPY}` is missing"),
                Unusable::Damaged(copy) => format!("{why}; of `{MANIFEST_COPY}`: {copy}"),
            },
        }),
    }
}

/// Writes both files anew from the one that can be read, or from the older one, as this version writes
/// them. A file that cannot be read is kept aside.
///
/// # Errors
/// The disk has no room or fails; both are as they were, or one of them is right.
pub(super) fn mend(disk: &dyn Disk, dir: &Path, found: &Checkpoint) -> Result<(), LogError> {
    if let Some((name, _)) = &found.damage {
        let path = dir.join(name);
        if let Some(bytes) = disk.read(&path, LIMIT).if_there().doing("read", &path)? {
            files::keep_aside(disk, dir, &format!("damaged-{name}"), &bytes)?;
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

/// Why one of the two files cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("it is missing")]
    Missing,
    #[error("{0}")]
    Damaged(&'static str),
}

/// Reads one of the two files.
fn read_one(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Result<One, Unusable>, LogError> {
    let path = dir.join(name);
    Ok(
        match disk.read(&path, LIMIT).if_there().doing("read", &path)? {
            Some(bytes) => decode(bytes).map_err(Unusable::Damaged),
            None => Err(Unusable::Missing),
        },
    )
}

fn decode(bytes: Vec<u8>) -> Result<One, &'static str> {
    let version = MAGICS.iter().position(|magic| bytes.starts_with(magic));
    let version = version.ok_or("it is not a manifest of version 1 to 6")? + 1;
    let mut decoder = Decoder(bytes.get(MAGICS[0].len()..).unwrap_or_default());
    if decoder.u32() != Some(crc32c::crc32c(decoder.0)) {
        return Err("its checksum does not match");
    }
    let state = read_state(&mut decoder, version).filter(|_| decoder.is_empty());
    Ok(One {
        state: state.ok_or("it makes no sense")?,
        version,
        bytes,
    })
}

/// The losses that no books tell.
fn read_losses(decoder: &mut Decoder<'_>, state: &mut LogState) -> Option<()> {
    state.journal_damage = decoder.list(40, |decoder| {
        Some(JournalDamage {
            file: decoder.text()?,
            at: decoder.u64()?,
            sequences: (decoder.u64()?, decoder.u64()?),
            events: decoder.u64()?,
            why: decoder.text()?,
        })
    })?;
    state.lost_commits = decoder.list(28, |decoder| {
        Some(LostCommit {
            group: read_group(decoder)?,
            at: read_key(decoder)?,
            next: decoder.i64()?,
            events: decoder.u64()?,
        })
    })?;
    Some(())
}

/// The same in versions 2 and 3: texts, and commits with all that they posted.
fn read_old_losses(decoder: &mut Decoder<'_>, state: &mut LogState) -> Option<()> {
    state.journal_damage = decoder.list(12, |decoder| {
        Some(JournalDamage {
            file: String::new(),
            at: 0,
            sequences: (0, 0),
            why: decoder.text()?,
            events: decoder.u64()?,
        })
    })?;
    state.lost_commits = decoder.list(32, |decoder| {
        let (group, at) = (read_group(decoder)?, read_key(decoder)?);
        let (from, next) = (decoder.i64()?, decoder.i64()?);
        let postings = decoder.postings()?;
        Some(LostCommit::new(group, at, (from, next), &postings))
    })?;
    Some(())
}

fn put_state(out: &mut Vec<u8>, state: &LogState) {
    put_text(out, &state.cluster);
    put_u64(out, state.secret.number());
    put_u64(out, state.sequence);
    put_u32(out, state.crc);
    put_u64(out, state.journal.file);
    put_u64(out, state.journal.at);
    put_list(out, state.topics.iter(), |out, topic| {
        put_text(out, topic.name.as_str());
        put_topic_config(out, &topic.config);
        put_books(out, &topic.books);
        put_books(out, &topic.forgotten);
        out.push(u8::from(topic.is_removed));
        let partitions = topic.partitions.iter();
        partitions.for_each(|partition| put_partition(out, partition));
    });
    put_list(out, state.groups.iter(), |out, (group, by_topic)| {
        put_text(out, group.as_str());
        put_list(out, by_topic.iter(), |out, (topic, progress)| {
            put_u32(out, *topic);
            put_progress(out, progress);
        });
    });
    put_list(out, state.journal_damage.iter(), |out, damage| {
        put_text(out, &damage.file);
        put_u64(out, damage.at);
        put_u64(out, damage.sequences.0);
        put_u64(out, damage.sequences.1);
        put_u64(out, damage.events);
        put_text(out, &damage.why);
    });
    put_list(out, state.lost_commits.iter(), |out, lost| {
        put_text(out, lost.group.as_str());
        put_key(out, lost.at);
        put_i64(out, lost.next);
        put_u64(out, lost.events);
    });
}

fn put_partition(out: &mut Vec<u8>, partition: &PartitionState) {
    put_i64(out, partition.start);
    put_i64(out, partition.end);
    put_list(out, partition.damaged.iter(), |out, (from, to)| {
        put_i64(out, *from);
        put_i64(out, *to);
    });
    put_list(out, partition.segments.iter(), |out, segment| {
        segment.write(out);
    });
}

fn put_progress(out: &mut Vec<u8>, progress: &GroupProgress) {
    let partitions = progress.starts.iter().zip(&progress.committed);
    put_list(out, partitions, |out, (start, committed)| {
        put_i64(out, *start);
        out.push(u8::from(committed.is_some()));
        if let Some(committed) = committed {
            put_committed(out, committed);
        }
    });
    put_books(out, &progress.posted);
    put_books(out, &progress.before);
    put_list(
        out,
        progress.skipped.iter(),
        |out, (partition, from, to)| {
            put_u32(out, *partition);
            put_i64(out, *from);
            put_i64(out, *to);
        },
    );
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
        let (forgotten, is_removed) = match version {
            6.. => (decoder.books()?, decoder.flag()?),
            _ => (Books::default(), false),
        };
        let partitions: Option<Vec<_>> = (0..config.partitions)
            .map(|_| read_partition(decoder))
            .collect();
        if !is_removed {
            state.numbers.insert(name.clone(), number);
        }
        state.topics.push(TopicState {
            name,
            config,
            books,
            forgotten,
            is_removed,
            partitions: partitions?,
        });
    }
    state.groups = decoder.list(1, |decoder| {
        let group = read_group(decoder)?;
        let progress =
            |decoder: &mut Decoder<'_>| Some((decoder.u32()?, read_progress(decoder, version)?));
        Some((group, decoder.list(1, progress)?))
    })?;
    let lengths = state.all().flat_map(|(_, partition)| &partition.segments);
    state.used = lengths.map(|segment| segment.len).sum();
    state.count_assigned_offsets();
    match version {
        1 => {}
        2 | 3 => read_old_losses(decoder, &mut state)?,
        _ => read_losses(decoder, &mut state)?,
    }
    Some(state)
}

fn read_partition(decoder: &mut Decoder<'_>) -> Option<PartitionState> {
    Some(PartitionState {
        start: decoder.i64()?,
        end: decoder.i64()?,
        damaged: decoder.list(16, |decoder| Some((decoder.i64()?, decoder.i64()?)))?,
        segments: decoder.list(Segment::LEAST, Segment::read)?,
        ..PartitionState::default()
    })
}

fn read_progress(decoder: &mut Decoder<'_>, version: usize) -> Option<GroupProgress> {
    let partitions: Vec<_> = decoder.list(9, |decoder| {
        Some((decoder.i64()?, decoder.option(read_committed)?))
    })?;
    let (starts, committed) = partitions.into_iter().unzip();
    Some(GroupProgress {
        starts,
        committed,
        posted: decoder.books()?,
        before: decoder.books()?,
        skipped: match version {
            6.. => decoder.list(20, |decoder| {
                Some((decoder.u32()?, decoder.i64()?, decoder.i64()?))
            })?,
            _ => Vec::new(),
        },
    })
}
