//! The result of recovery, which is saved before anything else is written.
//!
//! | it is | done by | why in this order |
//! |---|---|---|
//! | parts of the journal that cannot be read | a copy, kept aside | the checkpoint lets go of their files |
//! | damage of the journal | a manifest that says nothing else new | the files that are moved next are all that tells of some |
//! | files that nothing follows | another name | by their numbers they would be used again |
//! | the log as it was found | a checkpoint | what is written behind it speaks of it |
//!
//! A disk without room is no reason not to open. Then all of it is tried again, and until it is done the
//! log takes nothing: a group behind what only this process knows would be taken by the next start for
//! proof that something is lost.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_core::env::Disk;

use super::Maintenance;
use crate::embedded::files::{self, Doing};
use crate::embedded::manifest;
use crate::embedded::open::Leftovers;
use crate::error::LogError;

/// The result of recovery that is not saved yet; saved parts are taken out.
#[derive(Debug)]
pub(in crate::embedded) struct PendingRecovery {
    /// The journal files that cannot be read, and from where on.
    pub(in crate::embedded) unread: BTreeMap<String, u64>,
    /// The names of journal files behind the end of the journal, in which nothing was found that follows.
    pub(in crate::embedded) behind: Vec<String>,
    /// Whether the manifest knows of the damage.
    pub(in crate::embedded) is_noted: bool,
}

impl Maintenance {
    /// Does what comes before a checkpoint. Done twice, it changes nothing more.
    ///
    /// # Errors
    /// The disk has no room, and it goes on from there the next time; or it fails.
    pub(super) fn persist_recovery(&mut self) -> Result<(), LogError> {
        let Some(pending_recovery) = &mut self.pending_recovery else {
            return Ok(());
        };
        let (disk, dir) = (&*self.context.disk, &*self.context.config.dir);
        while let Some((name, at)) = pending_recovery.unread.first_key_value() {
            keep_unread(disk, dir, name, *at)?;
            pending_recovery.unread.pop_first();
        }
        let state = self.context.state().clone();
        if !pending_recovery.is_noted {
            manifest::note_damage(disk, dir, &state.journal_damage)?;
            pending_recovery.is_noted = true;
        }
        while let Some(name) = pending_recovery.behind.last() {
            match files::rename_aside(disk, dir, name) {
                // It was renamed, and only the sync of that found no room.
                Err(error) if files::is_missing(&error) => {}
                kept => {
                    let kept = kept?;
                    tracing::error!(kept = %kept.display(), "a journal file follows a missing one; it was renamed");
                }
            }
            pending_recovery.behind.pop();
        }
        let leftovers = Leftovers {
            disk,
            dir,
            is_damaged: true,
        };
        leftovers.clear(&state)?;
        self.pending_recovery = None;
        Ok(())
    }
}

/// Keeps a journal file aside from this place on, once and whatever lies behind it. Zeros at its end tell
/// nothing.
fn keep_unread(disk: &dyn Disk, dir: &Path, name: &str, at: u64) -> Result<(), LogError> {
    let path = dir.join(name);
    let read = disk.read(&path, u64::MAX).if_there();
    let Some(file) = read.doing("read", &path)? else {
        return Ok(());
    };
    // Of a file that was cut off before that place, all that there is.
    let rest = file.get(usize::try_from(at).unwrap_or(usize::MAX)..);
    let rest = rest.unwrap_or(&file);
    let end = rest.iter().rposition(|byte| *byte != 0);
    let Some(rest) = end.and_then(|end| rest.get(..=end)) else {
        return Ok(());
    };
    let kept = files::keep_aside(disk, dir, &format!("damaged-{name}-{at}"), rest)?;
    tracing::error!(kept = %kept.display(), "an unreadable part of the journal was copied to another file");
    Ok(())
}
