//! A real disk that tells who uses it and can be made slow.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_core::env::Disk;
use tidegate_core::env::system::SystemDisk;
use tidegate_sim::{DiskHook, DiskProxy};

struct Probe<F>(F);

impl<F: Fn(&'static str, &Path) + Send + Sync> DiskHook for Probe<F> {
    fn before(&self, operation: &'static str, path: &Path) -> io::Result<()> {
        (self.0)(operation, path);
        Ok(())
    }
}

/// The real disk; `probe` is called before each operation with its name and its path.
pub(crate) fn probed_disk(
    probe: impl Fn(&'static str, &Path) + Send + Sync + 'static,
) -> Arc<dyn Disk> {
    Arc::new(DiskProxy::new(Arc::new(SystemDisk), Arc::new(Probe(probe))))
}
