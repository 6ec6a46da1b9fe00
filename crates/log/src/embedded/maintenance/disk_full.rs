//! A disk without room: what can be given up, and what makes room.

use super::Maintenance;
use crate::embedded::context::RefusalReason;
use crate::error::LogError;

impl Maintenance {
    /// Whether the disk has room for another journal file. Where it does not say, it is tried.
    pub(super) fn has_room_for_a_file(&self) -> bool {
        let left = self.context.disk.space_left(&self.context.config.dir);
        !left.is_ok_and(|left| left < self.context.config.journal_size)
    }

    /// Removes at once the segments that were taken out, without waiting for a manifest that does
    /// not speak of them: their removal is durable in the journal, and a start that reads the manifest
    /// reads that too.
    pub(in crate::embedded) fn remove_now(&mut self) {
        self.remove_garbage(u64::MAX);
    }

    /// Gives up the files that were kept for the journal, but for one that it needs soon.
    pub(in crate::embedded) fn give_up_files(&self) {
        let kept = usize::from(self.is_file_due());
        // The writer takes its files under the same lock.
        let mut pool = self.context.pool();
        while pool.len() > kept {
            let name = pool.remove(0);
            self.remove_file(&self.context.config.dir.join(name));
        }
    }

    /// Says whether a write that found no room would find some now.
    ///
    /// # Errors
    /// [`LogError::Disk`] without room for another journal file.
    pub(in crate::embedded) fn check_journal(&self) -> Result<(), LogError> {
        let Some(why) = self.context.status().why(RefusalReason::Unwritten).cloned() else {
            return Ok(());
        };
        let is_there = !self.context.pool().is_empty();
        if is_there || self.has_room_for_a_file() {
            self.context.status().set(RefusalReason::Unwritten, None);
            return Ok(());
        }
        Err(self.context.no_space("extend the journal in", why))
    }
}
