//! A disk that says no after it has done what it was asked: the nearest that a log in this process
//! comes to an answer that is lost on its way.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_core::env::Disk;
use tidegate_sim::{DiskHook, DiskProxy};

/// Which syncs of journals are done and said to have failed, and which writes find no room.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses {
    is_next: Arc<AtomicBool>,
    is_refused: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl Losses {
    /// The next one.
    pub(crate) fn lose_next(&self) {
        self.is_next.store(true, Ordering::SeqCst);
    }

    /// There is no room for the next write, and there is for the one after it.
    pub(crate) fn refuse_next(&self) {
        self.is_refused.store(true, Ordering::SeqCst);
    }

    /// How many have been.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }

    /// A disk on which they happen.
    pub(crate) fn on(&self, disk: Arc<dyn Disk>) -> DiskProxy {
        DiskProxy::new(disk, Arc::new(self.clone()))
    }
}

impl DiskHook for Losses {
    fn before(&self, operation: &'static str, path: &Path) -> io::Result<()> {
        if operation == "write_at"
            && is_journal(path)
            && self.is_refused.swap(false, Ordering::SeqCst)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn after(&self, operation: &'static str, path: &Path, _: usize) -> io::Result<()> {
        if operation == "sync" && is_journal(path) && self.is_next.swap(false, Ordering::SeqCst) {
            self.lost.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::other("the answer of the disk is lost"));
        }
        Ok(())
    }
}

/// A journal, or what becomes one.
fn is_journal(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("journal-") || name.starts_with("spare-"))
}
