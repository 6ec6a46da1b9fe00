//! The keeper: fills segments from the journal, writes checkpoints, and removes what may go.
//!
//! | when | it does | what makes that safe |
//! |---|---|---|
//! | fresh records take much memory | writes them to their segments, and lets the system begin to write them out | they are in the journal as well |
//! | the journal has begun another file | syncs segments, then writes the manifest | only then are journal files used again |
//! | records are past their retention | has their removal written to the journal | files go after the next manifest |
//! | a compacted topic repeats its keys | writes new segments, syncs them, has the switch journaled | the same |

mod clean;
mod compact;
mod last;
mod owed;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::{DiskFile, OpenMode};

use super::files::{self, Doing};
use super::hub::{Hub, Refusing};
use super::journal;
use super::manifest;
use super::planted::{self, Bug};
use super::scan::rebuild_index;
use super::segment::{self, Segment};
use super::state::{Fresh, Garbage, State};
use crate::error::LogError;
pub(super) use owed::Owed;

/// Fresh bytes of one partition that are worth a write of their own.
const FILL: u64 = 256 * 1024;
/// A chunk of this size is written from where it is, not copied together with others.
const LARGE: usize = 64 * 1024;
/// Files that are open for writing at a time.
const MAX_OPEN: usize = 256;
/// How much of a segment the system is told to write out at a time, between two syncs of the journal.
/// Were everything left for the checkpoint, the journal's own sync would stand behind all of it: for
/// milliseconds in which no commit ends.
const PIECE: u64 = 512 * 1024;
/// Journal files that are kept for later use.
const MAX_POOL: usize = 2;

/// Fills segments, writes checkpoints, removes what may go.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) hub: Arc<Hub>,
    /// Segment files that were written to since they were last synced.
    open: BTreeMap<PathBuf, Box<dyn DiskFile>>,
    /// Directories with names that are not synced.
    dirs: BTreeSet<PathBuf>,
    /// The first journal file that is not in the pool.
    oldest: u64,
    next_spare: u64,
    /// Partitions whose segments cannot be compacted as they are, because they are damaged.
    damaged: BTreeMap<(u32, u32), Vec<Segment>>,
    /// What the start found and nobody has written down yet.
    owed: Option<Owed>,
}

impl Keeper {
    pub(super) fn new(hub: Arc<Hub>, oldest: u64, next_spare: u64, owed: Option<Owed>) -> Self {
        Self {
            hub,
            open: BTreeMap::new(),
            dirs: BTreeSet::new(),
            oldest,
            next_spare,
            damaged: BTreeMap::new(),
            owed,
        }
    }

    /// Writes fresh records to their segments: those of partitions that have many of them, or all.
    ///
    /// # Errors
    /// The disk has no room, and it can be tried again; or it fails, and the log must stop.
    pub(super) fn fill(&mut self, everything: bool) -> Result<(), LogError> {
        self.write_down()?;
        let is_due = |fresh_bytes: u64| fresh_bytes > 0 && (everything || fresh_bytes >= FILL);
        let due: Vec<(u32, u32)> = {
            let state = self.hub.state();
            let all = state.all();
            let due = all.filter(|(.., partition)| is_due(partition.fresh_bytes));
            due.map(|(topic, partition, _)| (topic, partition))
                .collect()
        };
        for (topic, partition) in due {
            let fresh: Vec<Fresh> = {
                let state = self.hub.state();
                let found = state.partition(topic, partition);
                found
                    .map(|p| p.fresh.iter().cloned().collect())
                    .unwrap_or_default()
            };
            self.fill_partition((topic, partition), &fresh)?;
        }
        self.hub.writer_bell.notify_one();
        Ok(())
    }

    fn fill_partition(&mut self, at: (u32, u32), fresh: &[Fresh]) -> Result<(), LogError> {
        let mut rest = fresh;
        while let Some(first) = rest.first() {
            let (dir, segment, size) = self.segment_for(at, first)?;
            let mut taken = 0;
            let mut len = segment.len;
            for fresh in rest {
                let chunk = fresh.bytes.len() as u64;
                if taken > 0 && len + chunk > size {
                    break;
                }
                len += chunk;
                taken += 1;
            }
            let path = dir.join(segment.name(at.1));
            self.write_chunks(path, segment.len, &rest[..taken])?;
            self.note_filled(at, &rest[..taken]);
            rest = &rest[taken..];
        }
        Ok(())
    }

    fn write_chunks(&mut self, path: PathBuf, at: u64, chunks: &[Fresh]) -> Result<(), LogError> {
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&path) {
            self.sync_segments()?;
        }
        let file = match self.open.entry(path.clone()) {
            std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let file = self
                    .hub
                    .disk
                    .open(&path, OpenMode::Write)
                    .doing("open", &path)?;
                vacant.insert(file)
            }
        };
        let mut at = at;
        let mut begun = at;
        let mut gathered: Vec<u8> = Vec::new();
        let mut put = |bytes: &[u8]| {
            file.write_at(at, bytes).doing("write", &path)?;
            at += bytes.len() as u64;
            if at - begun >= PIECE {
                self.hub.syncing.let_pass();
                file.begin_sync(begun, at - begun);
                begun = at;
            }
            Ok::<(), LogError>(())
        };
        for chunk in chunks {
            if chunk.bytes.len() < LARGE {
                gathered.extend_from_slice(&chunk.bytes);
                if gathered.len() < LARGE {
                    continue;
                }
            }
            if !gathered.is_empty() {
                put(&gathered)?;
                gathered.clear();
            }
            if chunk.bytes.len() >= LARGE {
                put(&chunk.bytes)?;
            }
        }
        if !gathered.is_empty() {
            put(&gathered)?;
        }
        Ok(())
    }

    /// The first fresh chunks of a partition are in its last segment by now.
    fn note_filled(&self, (topic, partition): (u32, u32), filled: &[Fresh]) {
        let mut state = self.hub.state();
        let bytes: u64 = filled.iter().map(|fresh| fresh.bytes.len() as u64).sum();
        state.fresh_bytes = state.fresh_bytes.saturating_sub(bytes);
        let Some(partition) = state.partition_mut(topic, partition) else {
            return;
        };
        partition.fresh_bytes = partition.fresh_bytes.saturating_sub(bytes);
        if let Some(segment) = partition.segments.last_mut() {
            filled.iter().for_each(|fresh| segment.add(&fresh.head));
        }
        let filled: Vec<Fresh> = partition.fresh.drain(..filled.len()).collect();
        // Many large pieces of memory are given back, for which nobody has to wait.
        drop(state);
        drop(filled);
    }

    /// Writes the index of a segment beside it. Without it, it is made again from the segment; so
    /// nothing depends on whether this works.
    fn write_index(&self, dir: &Path, partition: u32, segment: &Segment) {
        let path = dir.join(segment.name(partition));
        if let Err(error) = self.try_write_index(&path, segment) {
            tracing::debug!(path = %path.display(), %error, "an index was not written");
        }
    }

    fn try_write_index(&self, path: &Path, segment: &Segment) -> Result<(), LogError> {
        let disk = &self.hub.disk;
        let mut indexed = segment.clone();
        if !indexed.index.is_whole() {
            // It was found on disk at the start, and nobody has looked in it since.
            let file = disk.open(path, OpenMode::Read).doing("open", path)?;
            indexed.index.complete(rebuild_index(
                &*file,
                path,
                (segment, segment.len),
                self.hub.seal,
            )?);
        }
        let path = path.with_extension("idx");
        match disk.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.doing("remove", &path)?,
        }
        let mut file = disk.open(&path, OpenMode::CreateNew).doing("make", &path)?;
        let bytes = segment::index_file(&indexed);
        file.append(&bytes).doing("write", &path)
    }

    /// Writes the indexes of the segments that are still open, so that the next process finds its
    /// way in them; for the end, after a checkpoint.
    pub(super) fn write_open_indexes(&self) {
        let open: Vec<_> = {
            let state = self.hub.state();
            let segments = state.all().filter_map(|(topic, number, partition)| {
                let last = partition.segments.last()?;
                let dir = self.hub.topic_dir(&state.topics.get(topic as usize)?.name);
                (!last.is_sealed && !last.is_empty()).then(|| (dir, number, last.clone()))
            });
            segments.collect()
        };
        for (dir, number, segment) in open {
            self.write_index(&dir, number, &segment);
        }
    }

    fn sync_segments(&mut self) -> Result<(), LogError> {
        while let Some(mut open) = self.open.first_entry() {
            if !planted::is(Bug::UnsyncedSegments) {
                self.hub.syncing.let_pass();
                let done = open.get_mut().sync().doing("sync", open.key());
                self.hub.synced(done)?;
            }
            open.remove();
        }
        Ok(())
    }

    fn sync_dirs(&mut self) -> Result<(), LogError> {
        while let Some(dir) = self.dirs.first() {
            self.hub
                .synced(self.hub.disk.sync_dir(dir).doing("sync", dir))?;
            self.dirs.pop_first();
        }
        Ok(())
    }

    /// Whether a checkpoint would let go of a journal file; or is owed; or the last one speaks of the
    /// beginning of a file to which something was written since, so that nobody would miss that file.
    pub(super) fn is_checkpoint_due(&self) -> bool {
        let place = self.hub.state().journal;
        let status = self.hub.status();
        let last = status.checkpoint;
        place.file > last.file || status.is(Refusing::Owed) || (last.at == 0 && place.at > 0)
    }

    /// Puts everything that is durable into synced segments and writes the manifest.
    ///
    /// # Errors
    /// As for [`fill`](Self::fill); or the log has stopped, and what its segments hold is not known.
    pub(super) fn checkpoint(&mut self) -> Result<(), LogError> {
        self.hub.check_running()?;
        self.write_down()?;
        let now_ms = self.hub.clock.now_ms();
        // From here on nobody but this thread changes segments or starts: what is filled below is
        // exactly what the snapshot speaks of.
        let (mut snapshot, fresh) = {
            let mut state = self.hub.state();
            state.fold(now_ms);
            let fresh: Vec<((u32, u32), Vec<Fresh>)> = state
                .all()
                .filter(|(.., partition)| !partition.fresh.is_empty())
                .map(|(topic, number, p)| ((topic, number), p.fresh.iter().cloned().collect()))
                .collect();
            (state.checkpoint(), fresh)
        };
        if snapshot.sequence == self.hub.status().checkpoint_sequence {
            self.hub.status().checkpoint_topics = snapshot.topics.len();
            self.remove_garbage(snapshot.sequence);
            return Ok(());
        }
        for (at, fresh) in &fresh {
            if !planted::is(Bug::CheckpointAhead) {
                self.fill_partition(*at, fresh)?;
            }
        }
        self.sync_segments()?;
        self.sync_dirs()?;
        self.hub.state().put_segments_into(&mut snapshot);
        manifest::write(&*self.hub.disk, &self.hub.config.dir, &snapshot)?;
        {
            let mut status = self.hub.status();
            status.checkpoint = snapshot.journal;
            status.checkpoint_sequence = snapshot.sequence;
            status.checkpoint_topics = snapshot.topics.len();
            status.set(Refusing::Owed, None);
        }
        self.free_journals(&snapshot);
        self.remove_garbage(snapshot.sequence);
        self.hub.writer_bell.notify_one();
        Ok(())
    }

    /// Lets go of the journal files before the one in which the checkpoint lies.
    fn free_journals(&mut self, snapshot: &State) {
        let freed = self.oldest..snapshot.journal.file;
        self.oldest = self.oldest.max(snapshot.journal.file);
        let dir = &self.hub.config.dir;
        let names = match files::journals(&*self.hub.disk, dir) {
            Ok(names) => names,
            Err(error) => {
                // The next start finds them.
                tracing::warn!(%error, "journal files were not let go of");
                return;
            }
        };
        let mut pool = self.hub.pool();
        for (_, name) in names
            .into_iter()
            .filter(|(number, _)| freed.contains(number))
        {
            if pool.len() < MAX_POOL {
                pool.push(name);
                continue;
            }
            self.remove_file(&dir.join(name));
        }
    }

    /// Removes a file that is nobody's by now; the next start removes what is left.
    fn remove_file(&self, path: &Path) {
        match self.hub.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "a file was not removed");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Removes segments that were taken out up to this group, unless somebody looks at them.
    fn remove_garbage(&mut self, sequence: u64) {
        if self.hub.status().pins > 0 {
            return;
        }
        let garbage: Vec<PathBuf> = {
            let mut state = self.hub.state();
            let all = std::mem::take(&mut state.garbage);
            let (gone, kept): (Vec<_>, Vec<_>) = all
                .into_iter()
                .partition(|garbage| garbage.sequence <= sequence);
            state.garbage = kept;
            let path = |garbage: &Garbage| {
                let topic = state.topics.get(garbage.topic as usize)?;
                Some(self.hub.topic_dir(&topic.name).join(&garbage.name))
            };
            // Whatever brought its name here: a file that is in use stays.
            let gone = gone.iter().filter(|garbage| !state.uses(garbage));
            gone.filter_map(path).collect()
        };
        for path in garbage {
            // What was written to it last is nobody's either, and holds no room from here on.
            self.open.remove(&path);
            let index = path.with_extension("idx");
            [path, index].iter().for_each(|path| self.remove_file(path));
        }
    }

    /// Whether the journal needs another file soon: one that is just begun lasts for a while, and a
    /// log that is not used needs none.
    fn is_file_due(&self) -> bool {
        self.hub.state().journal.at >= self.hub.config.journal_size / 2
    }

    /// Keeps a zero-filled file ready for the journal, where there is room for it.
    ///
    /// # Errors
    /// The disk has no room or fails; the journal makes its own file when it needs one.
    pub(super) fn make_spare(&mut self) -> Result<(), LogError> {
        let is_there = !self.hub.pool().is_empty();
        if !self.is_file_due() || is_there || !self.has_room_for_a_file() {
            return Ok(());
        }
        let dir = &self.hub.config.dir;
        let name = files::spare(self.next_spare);
        journal::make(
            &*self.hub.disk,
            &dir.join(&name),
            self.hub.config.journal_size,
        )?;
        self.hub
            .synced(self.hub.disk.sync_dir(dir).doing("sync", dir))?;
        self.next_spare += 1;
        self.hub.pool().push(name);
        Ok(())
    }
}
