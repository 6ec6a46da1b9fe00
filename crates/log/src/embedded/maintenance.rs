//! The maintenance thread: fills segments from the journal, writes checkpoints, and removes what may go.
//!
//! | when | it does | what makes that safe |
//! |---|---|---|
//! | unflushed records take much memory | writes them to their segments, and lets the system begin to write them out | they are in the journal as well |
//! | the journal has begun another file | syncs segments, then writes the manifest | only then are journal files used again |
//! | records are past their retention | has their removal written to the journal | files go after the next manifest |
//! | a compacted topic repeats its keys | writes new segments, syncs them, has the switch journaled | the same |

mod active_segment;
mod compaction;
mod disk_full;
mod recovery_record;
mod retention;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::{DiskFile, OpenMode};

use super::change::PartitionKey;
use super::chunk::Chunk;
use super::context::{EmbeddedContext, RefusalReason};
use super::files::{self, Doing};
use super::injected_bugs::{self, InjectedBug};
use super::journal;
use super::manifest;
use super::scan::index_content;
use super::segment::Segment;
use super::state::{Garbage, LogState};
use crate::error::LogError;
pub(super) use recovery_record::PendingRecovery;

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
pub(super) struct Maintenance {
    pub(super) context: Arc<EmbeddedContext>,
    /// Segment files that were written to since they were last synced.
    open: BTreeMap<PathBuf, Box<dyn DiskFile>>,
    /// Directories with names that are not synced.
    dirs: BTreeSet<PathBuf>,
    /// The first journal file that is not in the pool.
    oldest: u64,
    next_spare: u64,
    /// Partitions whose segments cannot be compacted as they are, because they are damaged.
    damaged: BTreeMap<PartitionKey, Vec<Segment>>,
    /// The result of the start that is not saved yet.
    pending_recovery: Option<PendingRecovery>,
}

impl Maintenance {
    pub(super) fn new(
        context: Arc<EmbeddedContext>,
        oldest: u64,
        next_spare: u64,
        pending_recovery: Option<PendingRecovery>,
    ) -> Self {
        Self {
            context,
            open: BTreeMap::new(),
            dirs: BTreeSet::new(),
            oldest,
            next_spare,
            damaged: BTreeMap::new(),
            pending_recovery,
        }
    }

    /// Writes unflushed records to their segments: those of partitions that have many of them, or all.
    ///
    /// # Errors
    /// The disk has no room, and it can be tried again; or it fails, and the log must stop.
    pub(super) fn fill(&mut self, everything: bool) -> Result<(), LogError> {
        self.persist_recovery()?;
        let is_due =
            |unflushed_bytes: u64| unflushed_bytes > 0 && (everything || unflushed_bytes >= FILL);
        let due: Vec<PartitionKey> = {
            let state = self.context.state();
            let due = state.all().filter(|(_, p)| is_due(p.unflushed_bytes));
            due.map(|(at, _)| at).collect()
        };
        for at in due {
            let unflushed: Vec<Chunk> = {
                let state = self.context.state();
                let chunks = state.partition(at).map(|p| p.unflushed.iter().cloned());
                chunks.into_iter().flatten().collect()
            };
            self.fill_partition(at, &unflushed)?;
        }
        self.context.wake_writer.notify_one();
        Ok(())
    }

    fn fill_partition(&mut self, at: PartitionKey, unflushed: &[Chunk]) -> Result<(), LogError> {
        let mut rest = unflushed;
        while let Some(first) = rest.first() {
            let (dir, segment, size) = self.segment_for(at, first)?;
            let mut taken = 0;
            let mut len = segment.len;
            for unflushed in rest {
                let chunk = unflushed.bytes.len() as u64;
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

    fn write_chunks(&mut self, path: PathBuf, at: u64, chunks: &[Chunk]) -> Result<(), LogError> {
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&path) {
            self.sync_segments()?;
        }
        let file = match self.open.entry(path.clone()) {
            std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let file = self
                    .context
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
                self.context.sync_gate.wait_for_current_sync();
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

    /// The first unflushed chunks of a partition are in its last segment by now.
    fn note_filled(&self, at: PartitionKey, filled: &[Chunk]) {
        let mut state = self.context.state();
        let bytes: u64 = filled.iter().map(|chunk| chunk.bytes.len() as u64).sum();
        state.unflushed_bytes = state.unflushed_bytes.saturating_sub(bytes);
        let Some(partition) = state.partition_mut(at) else {
            return;
        };
        partition.unflushed_bytes = partition.unflushed_bytes.saturating_sub(bytes);
        if let Some(segment) = partition.segments.last_mut() {
            filled.iter().for_each(|chunk| segment.add(&chunk.head));
        }
        let filled: Vec<Chunk> = partition.unflushed.drain(..filled.len()).collect();
        // Many large pieces of memory are given back, for which nobody has to wait.
        drop(state);
        drop(filled);
    }

    /// Writes the index of a segment beside it. Without it, it is made again from the segment; so
    /// nothing depends on whether this works.
    fn write_index(&self, dir: &Path, partition: u32, segment: &Segment) {
        let path = dir.join(segment.name(partition));
        if let Err(error) = self.try_write_index(&path, segment) {
            tracing::debug!(path = %path.display(), %error, "could not write an index file");
        }
    }

    fn try_write_index(&self, path: &Path, segment: &Segment) -> Result<(), LogError> {
        let disk = &*self.context.disk;
        let content = index_content(disk, path, segment, self.context.secret)?;
        let path = path.with_extension("idx");
        let mut file = files::make_anew(disk, &path)?;
        file.append(&content).doing("write", &path)
    }

    /// Writes the indexes of the segments that are still open, so that the next process finds its
    /// way in them; for the end, after a checkpoint.
    pub(super) fn write_open_indexes(&self) {
        let open: Vec<_> = {
            let state = self.context.state();
            let segments = state.all().filter_map(|((topic, number), partition)| {
                let last = partition.segments.last()?;
                let topic = state.topics.get(topic as usize)?;
                let dir = self.context.topic_dir(&topic.name);
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
            if !injected_bugs::is(InjectedBug::UnsyncedSegments) {
                self.context.sync_gate.wait_for_current_sync();
                let done = open.get_mut().sync().doing("sync", open.key());
                self.context.synced(done)?;
            }
            open.remove();
        }
        Ok(())
    }

    fn sync_dirs(&mut self) -> Result<(), LogError> {
        while let Some(dir) = self.dirs.first() {
            self.context
                .synced(self.context.disk.sync_dir(dir).doing("sync", dir))?;
            self.dirs.pop_first();
        }
        Ok(())
    }

    /// Whether a checkpoint would let go of a journal file; or recovery is not saved yet; or the last one speaks of the
    /// beginning of a file to which something was written since, so that nobody would miss that file.
    pub(super) fn is_checkpoint_due(&self) -> bool {
        let place = self.context.state().journal;
        let status = self.context.status();
        let last = status.checkpoint;
        place.file > last.file
            || status.is(RefusalReason::RecoveryPending)
            || (last.at == 0 && place.at > 0)
    }

    /// Puts everything that is durable into synced segments and writes the manifest.
    ///
    /// # Errors
    /// As for [`fill`](Self::fill); or the log has stopped, and what its segments hold is not known.
    pub(super) fn checkpoint(&mut self) -> Result<(), LogError> {
        self.context.check_running()?;
        self.persist_recovery()?;
        let now_ms = self.context.clock.now_ms();
        // From here on nobody but this thread changes segments or starts: what is filled below is
        // exactly what the snapshot speaks of.
        let (mut snapshot, unflushed) = {
            let mut state = self.context.state();
            state.fold(now_ms);
            let unflushed = state.all().filter(|(_, p)| !p.unflushed.is_empty());
            let unflushed = unflushed.map(|(at, p)| (at, p.unflushed.iter().cloned().collect()));
            let unflushed: Vec<(PartitionKey, Vec<Chunk>)> = unflushed.collect();
            (state.checkpoint(), unflushed)
        };
        if snapshot.sequence == self.context.status().checkpoint_sequence {
            self.context.status().checkpoint_topics = snapshot.topics.len();
            self.remove_garbage(snapshot.sequence);
            return Ok(());
        }
        for (at, unflushed) in &unflushed {
            if !injected_bugs::is(InjectedBug::CheckpointAhead) {
                self.fill_partition(*at, unflushed)?;
            }
        }
        self.sync_segments()?;
        self.sync_dirs()?;
        self.context.state().put_segments_into(&mut snapshot);
        manifest::write(&*self.context.disk, &self.context.config.dir, &snapshot)?;
        {
            let mut status = self.context.status();
            status.checkpoint = snapshot.journal;
            status.checkpoint_sequence = snapshot.sequence;
            status.checkpoint_topics = snapshot.topics.len();
            status.set(RefusalReason::RecoveryPending, None);
        }
        self.free_journals(&snapshot);
        self.remove_garbage(snapshot.sequence);
        self.context.wake_writer.notify_one();
        Ok(())
    }

    /// Lets go of the journal files before the one in which the checkpoint lies.
    fn free_journals(&mut self, snapshot: &LogState) {
        let freed = self.oldest..snapshot.journal.file;
        self.oldest = self.oldest.max(snapshot.journal.file);
        let dir = &self.context.config.dir;
        let names = match files::journals(&*self.context.disk, dir) {
            Ok(names) => names,
            Err(error) => {
                // The next start finds them.
                tracing::warn!(%error, "could not recycle old journal files");
                return;
            }
        };
        let mut pool = self.context.pool();
        let freed = names.into_iter().filter(|(n, _)| freed.contains(n));
        for (_, name) in freed {
            if pool.len() < MAX_POOL {
                pool.push(name);
                continue;
            }
            self.remove_file(&dir.join(name));
        }
    }

    /// Removes a file that is nobody's by now; the next start removes what is left.
    fn remove_file(&self, path: &Path) {
        match self.context.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "could not remove a file");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Removes segments that were taken out up to this group, unless somebody looks at them.
    fn remove_garbage(&mut self, sequence: u64) {
        if self.context.status().pins > 0 {
            return;
        }
        let garbage: Vec<PathBuf> = {
            let mut state = self.context.state();
            let all = std::mem::take(&mut state.garbage);
            let (gone, kept): (Vec<_>, Vec<_>) = all
                .into_iter()
                .partition(|garbage| garbage.sequence <= sequence);
            state.garbage = kept;
            let path = |garbage: &Garbage| {
                let topic = state.topics.get(garbage.topic as usize)?;
                Some(self.context.topic_dir(&topic.name).join(&garbage.name))
            };
            // Whatever brought its name here: a file that is in use stays.
            let gone = gone.iter().filter(|garbage| !state.uses(garbage));
            gone.filter_map(path).collect()
        };
        for path in garbage {
            // The last bytes written to it are nobody's either, and hold no room from here on.
            self.open.remove(&path);
            let index = path.with_extension("idx");
            [path, index].iter().for_each(|path| self.remove_file(path));
        }
    }

    /// Whether the journal needs another file soon: one that is just begun lasts for a while, and a
    /// log that is not used needs none.
    fn is_file_due(&self) -> bool {
        self.context.state().journal.at >= self.context.config.journal_size / 2
    }

    /// Keeps a zero-filled file ready for the journal, where there is room for it.
    ///
    /// # Errors
    /// The disk has no room or fails; the journal makes its own file when it needs one.
    pub(super) fn make_spare(&mut self) -> Result<(), LogError> {
        let is_there = !self.context.pool().is_empty();
        if !self.is_file_due() || is_there || !self.has_room_for_a_file() {
            return Ok(());
        }
        let dir = &self.context.config.dir;
        let name = files::spare(self.next_spare);
        journal::make(
            &*self.context.disk,
            &dir.join(&name),
            self.context.config.journal_size,
        )?;
        self.context
            .synced(self.context.disk.sync_dir(dir).doing("sync", dir))?;
        self.next_spare += 1;
        self.context.pool().push(name);
        Ok(())
    }
}
