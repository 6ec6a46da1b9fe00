//! Records of damaged segments that a journal file still has.
//!
//! A journal file is used again long after its records are in segments, so that it may have what a
//! segment lost. Offsets prove nothing: those of a torn group are given again. So records are taken
//! only where they are exactly what the manifest says the segment lacks, by offset, number and sum of ids.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::env::Disk;

use crate::embedded::change::{LogChange, PartitionKey};
use crate::embedded::chunk::Chunk;
use crate::embedded::files::{self, Doing};
use crate::embedded::inspect::{DamagedPart, SegmentSurvey};
use crate::embedded::recover::groups;
use crate::embedded::segment::Minutes;
use crate::embedded::state::LogState;
use crate::embedded::tally::add_all;
use crate::error::LogError;

/// More ways to put chunks together than torn writes leave.
const TRIES: usize = 1_000;

/// The chunks in journal files that have offsets of damaged segments, by partition and first offset.
#[derive(Debug, Default)]
pub(super) struct Salvage(BTreeMap<PartitionKey, BTreeMap<i64, Vec<Chunk>>>);

impl Salvage {
    /// Looks through all journal files, where a segment is damaged.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn look(disk: &dyn Disk, dir: &Path, state: &LogState) -> Result<Self, LogError> {
        let mut wanted: BTreeMap<PartitionKey, Vec<DamagedPart>> = BTreeMap::new();
        for (key, partition) in state.all() {
            let Some(at) = state.name(key) else {
                continue;
            };
            for segment in &partition.segments {
                let survey = SegmentSurvey::of(disk, dir, (&at, segment), state.secret)?;
                wanted.entry(key).or_default().extend(survey.damaged);
            }
        }
        wanted.retain(|_, parts| !parts.is_empty());
        let mut found = Self::default();
        if wanted.is_empty() {
            return Ok(found);
        }
        for name in files::journals(disk, dir)?.into_values() {
            let path = dir.join(name);
            let bytes = disk.read(&path, u64::MAX).doing("read", &path)?.into();
            for (at, frame) in groups(&bytes, state.secret, 0) {
                let from = usize::try_from(at).unwrap_or(usize::MAX);
                let payload = frame.payload(&bytes.slice(from..));
                let changes = LogChange::read_all(&payload, state.secret).unwrap_or_default();
                changes
                    .into_iter()
                    .for_each(|change| found.add(change, &wanted));
            }
        }
        Ok(found)
    }

    fn add(&mut self, change: LogChange, wanted: &BTreeMap<PartitionKey, Vec<DamagedPart>>) {
        let LogChange::Chunk { at, chunk } = change else {
            return;
        };
        let parts = wanted.get(&at).into_iter().flatten();
        let mut parts = parts.map(|part| part.offsets);
        let (head, bytes) = (chunk.head, &chunk.bytes);
        let is_wanted = parts.any(|(from, to)| from <= head.base && head.end() <= to);
        if !is_wanted || head.checked_body(bytes).is_none() {
            return;
        }
        let chunks = self.0.entry(at).or_default();
        let same = chunks.entry(head.base).or_default();
        if same.iter().all(|chunk| chunk.bytes != *bytes) {
            // Not a part of the whole file.
            let bytes = bytes::Bytes::copy_from_slice(bytes);
            same.push(Chunk { head, bytes });
        }
    }

    /// The chunks that fill these parts of a segment, which lacks exactly these records; none where it is
    /// not certain that they are the same.
    pub(super) fn fill(
        &self,
        at: PartitionKey,
        parts: &[DamagedPart],
        missing: &Minutes,
    ) -> Option<Vec<Chunk>> {
        let mut filling = Filling {
            chunks: self.0.get(&at)?,
            parts,
            missing,
            taken: Vec::new(),
            tries: 0,
        };
        let first = parts.first()?;
        let is_filled = filling.fill(0, first.offsets.0);
        is_filled.then(|| filling.taken.into_iter().cloned().collect())
    }
}

struct Filling<'a> {
    chunks: &'a BTreeMap<i64, Vec<Chunk>>,
    parts: &'a [DamagedPart],
    missing: &'a Minutes,
    taken: Vec<&'a Chunk>,
    tries: usize,
}

impl Filling<'_> {
    /// Goes on in a part at this offset; false where no way leads to the end.
    fn fill(&mut self, part: usize, offset: i64) -> bool {
        let Some(this) = self.parts.get(part) else {
            return self.is_the_same();
        };
        if offset >= this.offsets.1 {
            let next = self.parts.get(part + 1).map_or(0, |next| next.offsets.0);
            return self.fill(part + 1, next);
        }
        let chunks = self.chunks;
        for chunk in chunks.get(&offset).into_iter().flatten() {
            self.tries += 1;
            if self.tries > TRIES || chunk.head.end() > this.offsets.1 {
                continue;
            }
            self.taken.push(chunk);
            if self.fill(part, chunk.head.end()) {
                return true;
            }
            self.taken.pop();
        }
        false
    }

    fn is_the_same(&self) -> bool {
        let mut held = Minutes::new();
        for chunk in &self.taken {
            add_all(&mut held, chunk.head.tallies.iter().copied());
        }
        held == *self.missing
    }
}
