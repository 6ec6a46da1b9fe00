//! The real disk, counted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::env::Disk;
use tidegate_core::env::system::SystemDisk;
use tidegate_sim::{DiskHook, DiskProxy};

/// Counts syncs of the journal and bytes that are read.
#[derive(Debug, Default)]
pub(super) struct DiskCounts {
    journal_syncs: AtomicU64,
    bytes_read: AtomicU64,
}

impl DiskCounts {
    /// The real disk, counted here.
    pub(super) fn disk(self: &Arc<Self>) -> Arc<dyn Disk> {
        let counts: Arc<Self> = Arc::clone(self);
        Arc::new(DiskProxy::new(Arc::new(SystemDisk), counts))
    }

    pub(super) fn journal_syncs(&self) -> u64 {
        self.journal_syncs.load(Ordering::Relaxed)
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

impl DiskHook for DiskCounts {
    fn after(&self, operation: &'static str, path: &Path, bytes: usize) -> io::Result<()> {
        let name = path.file_name().and_then(|name| name.to_str());
        if operation == "sync" && name.is_some_and(|name| name.starts_with("journal-")) {
            self.journal_syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }
}
