//! The recovery of a journal that has lost something.
//!
//! Records that an intact segment still has are taken in. Those that are missing for certain are in the
//! books. Whatever else there may have been is a part of the unknown loss.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::resync::ResyncPoint;
use super::{RecoveredLog, Replay};
use crate::embedded::change::{LogChange, PartitionKey};
use crate::embedded::chunk::Chunk;
use crate::embedded::state::{InvalidChange, JournalDamage};
use crate::error::LogError;

/// A part of the journal's last files that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// The file in which the journal ends.
    File,
    /// The content of that file up to the checkpoint, and whatever came later.
    End,
    /// The end of a file behind it, of which so many bytes are left and none that follows.
    TailChunks { number: u64, len: u64 },
}

impl Replay<'_> {
    /// Goes on at a later group: what lies between was acknowledged, and is lost.
    pub(super) fn skip_damage(&mut self, resync: &ResyncPoint) {
        let place = self.found.state.journal;
        self.leave_unread(place.file, place.at);
        let behind = self.behind(place.file);
        let behind: Vec<u64> = behind.take_while(|n| *n <= resync.place.file).collect();
        for number in behind {
            if (number, 0) != (resync.place.file, resync.place.at) {
                self.leave_unread(number, 0);
            }
        }
        let file = self.name(place.file);
        let state = &mut self.found.state;
        self.found.damage.push(JournalDamage {
            file,
            at: place.at,
            sequences: (state.sequence + 1, resync.frame.sequence),
            events: 0,
            why: "it cannot be read, and a later group says that it was synced".to_owned(),
        });
        self.evidence.begin();
        state.sequence = resync.frame.sequence - 1;
        state.crc = resync.frame.previous;
        state.journal = resync.place;
    }

    /// Takes note that a journal file cannot be read from this place on.
    pub(super) fn leave_unread(&mut self, number: u64, at: u64) {
        let first = self.found.unread.entry(self.name(number)).or_insert(at);
        *first = at.min(*first);
    }

    /// Takes in the records before a group that only segments have, though no group before it is lost. The
    /// one writer leaves no holes: it knew of them, and died before any checkpoint did.
    pub(super) fn take_in_before(&mut self, changes: &[LogChange]) -> Result<(), LogError> {
        if self.tails.is_empty() {
            return Ok(());
        }
        let mut is_any = false;
        for (at, before) in ends_before(changes) {
            is_any |= self.take_in(at, before)?;
        }
        if is_any {
            let why = "records before the next group were found in their segments; what else there was is \
                       unknown";
            self.may_be_lost(self.place(), why.to_owned());
        }
        Ok(())
    }

    /// Applies a group behind others that are lost. The records before it may be in their segments.
    pub(super) fn apply_behind_damage(
        &mut self,
        sequence: u64,
        changes: Vec<LogChange>,
    ) -> Result<Result<(), InvalidChange>, LogError> {
        for (at, before) in ends_before(&changes) {
            self.take_in(at, before)?;
        }
        let state = &mut self.found.state;
        let commits = self.evidence.take(&changes, state);
        let applied = state.apply(sequence, changes);
        if applied.is_ok() {
            state.note_commits(commits);
        }
        Ok(applied)
    }

    /// Takes in what segments have of a partition behind its end and before `limit`; says whether there
    /// was any.
    fn take_in(&mut self, at: PartitionKey, limit: i64) -> Result<bool, LogError> {
        let mut is_any = false;
        let Some(name) = self.found.state.name(at) else {
            return Ok(false);
        };
        loop {
            let state = &mut self.found.state;
            let end = state.partition(at).map_or(0, |p| p.end);
            let Some(kept) = self.tails.next(&name, end, limit) else {
                return Ok(is_any);
            };
            let Some(bytes) = kept.bytes(self.disk)? else {
                continue;
            };
            let head = kept.head;
            let chunk = Chunk { head, bytes };
            let found = LogChange::Chunk { at, chunk };
            is_any |= state.apply(state.sequence, vec![found]).is_ok();
        }
    }

    /// Takes in the records that a segment has and the journal does not have any more: they were
    /// acknowledged, for only then are they written to a segment. So were those whose place in it is
    /// known, whatever became of them.
    pub(super) fn rescue(&mut self) -> Result<(), LogError> {
        let mut is_any = false;
        let mut unknown = BTreeSet::new();
        let offsets_assigned = self.found.state.offsets_assigned;
        for (name, proven) in self.tails.partitions() {
            let Some(at) = self.found.state.find(&name) else {
                unknown.insert(name.topic);
                continue;
            };
            is_any |= self.take_in(at, i64::MAX)?;
            let state = &mut self.found.state;
            let end = state.partition(at).map_or(0, |p| p.end);
            if proven > end {
                let ends = LogChange::EndOffsets {
                    offsets_assigned: state.offsets_reported,
                    ends: vec![(at, proven)],
                };
                is_any |= state.apply(state.sequence, vec![ends]).is_ok();
            }
        }
        // They may have come later than the last group. If they were taken for some of those that it
        // says were given, others that are lost would be counted nowhere. The offsets of the lost ones
        // would then be given again.
        let state = &mut self.found.state;
        state.offsets_reported = state
            .offsets_reported
            .saturating_add(state.offsets_assigned.saturating_sub(offsets_assigned));
        if is_any {
            let why = "records that came later were found in their segments; what else there was is \
                       unknown";
            self.may_be_lost(self.place(), why.to_owned());
        }
        for topic in unknown {
            let why = format!("there are records of a topic `{topic}` whose creation is lost");
            self.may_be_lost(self.place(), why);
        }
        Ok(())
    }

    /// Where the journal ends.
    fn place(&self) -> (u64, u64) {
        let place = self.found.state.journal;
        (place.file, place.at)
    }

    /// The first file behind this one that was cut. One that was begun is as long as its name says, also
    /// where nothing was written to it.
    pub(super) fn cut_behind(&self, number: u64) -> Result<Option<Missing>, LogError> {
        for number in self.behind(number) {
            if let Some((bytes, true)) = self.file(number)? {
                let len = bytes.len() as u64;
                return Ok(Some(Missing::TailChunks { number, len }));
            }
        }
        Ok(None)
    }

    /// The file in which the journal ends is not there, or cut off before its end, or one behind it is.
    /// That is as it should be only where nothing was written to it yet.
    pub(super) fn end_without_file(&mut self, bytes: &Bytes, missing: Missing) {
        let place = self.found.state.journal;
        let behind: Vec<u64> = self.behind(place.file).collect();
        let is_begun = place.at > 0 || missing != Missing::File;
        if !is_begun && behind.is_empty() {
            return;
        }
        self.end(bytes);
        let (what, place) = match missing {
            Missing::File => ("the file is missing", (place.file, place.at)),
            Missing::End => ("the file is shorter than it was", (place.file, place.at)),
            Missing::TailChunks { number, len } => {
                ("the file is shorter than it was", (number, len))
            }
        };
        let why = format!("{what}; whether it held more is unknown");
        let names = behind.iter().map(|number| self.name(*number)).collect();
        self.found.lost_end = Some(names);
        self.may_be_lost(place, why);
    }

    /// Groups may have followed the last one, in this file at this place.
    fn may_be_lost(&mut self, (file, at): (u64, u64), why: String) {
        self.leave_unread(file, at);
        let file = self.name(file);
        let next = self.found.state.sequence + 1;
        self.found.damage.push(JournalDamage {
            file,
            at,
            sequences: (next, next),
            events: 1,
            why,
        });
    }

    /// Takes note of what was lost with damaged groups and is in no books. Of records it is known how
    /// many there were; of commits and of changes of topics and groups nothing is known.
    pub(super) fn note_damage(&mut self) {
        let unplaced = self.found.state.unplaced();
        let is_lost = |damage: &JournalDamage| damage.sequences.0 < damage.sequences.1;
        if unplaced > 0 && !self.found.damage.iter().any(is_lost) {
            let why = "fewer records were found than were written".to_owned();
            self.may_be_lost(self.place(), why);
        }
        let RecoveredLog { state, damage, .. } = &mut self.found;
        let lost = damage.iter().rposition(is_lost);
        let last = lost.or(damage.len().checked_sub(1));
        if let Some(last) = last.and_then(|last| damage.get_mut(last)) {
            last.events = unplaced.max(1);
        }
        if unplaced > 0 {
            state.skip_offsets(&self.evidence.ends);
        }
        damage.iter().for_each(|damage| state.note_damage(damage));
    }
}

/// Where each partition that a group speaks of ended, at least, before that group.
fn ends_before(changes: &[LogChange]) -> BTreeMap<PartitionKey, i64> {
    let mut chunks = BTreeMap::new();
    let mut spoken: BTreeMap<PartitionKey, i64> = BTreeMap::new();
    for change in changes {
        if let LogChange::Chunk { at, chunk } = change {
            chunks.entry(*at).or_insert(chunk.head.base);
        }
        change.for_each_end(|at, end| {
            let known = spoken.entry(at).or_default();
            *known = end.max(*known);
        });
    }
    // The end that it names of a partition that it writes to counts its own records.
    spoken.extend(chunks);
    spoken
}
