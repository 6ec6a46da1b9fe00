//! A real disk on which reads of some files take as long as a test likes.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tidegate_core::env::Disk;
use tidegate_core::env::system::SystemDisk;
use tidegate_sim::{DiskHook, DiskProxy};

/// A real disk that holds up whoever reads from some files.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlowDisk(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<Held>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// Files whose names begin so.
    prefix: Option<&'static str>,
    waiting: u32,
    /// The names of the files that were read from, one for each read.
    reads: Vec<String>,
}

impl SlowDisk {
    /// The disk itself.
    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        let gate: Arc<Gate> = Arc::clone(&self.0);
        Arc::new(DiskProxy::new(Arc::new(SystemDisk), gate))
    }

    /// From now on, whoever reads from a file whose name begins so waits.
    pub(crate) fn hold(&self, prefix: &'static str) {
        self.0.state.lock().unwrap().prefix = Some(prefix);
    }

    /// Everybody goes on.
    pub(crate) fn let_go(&self) {
        self.0.state.lock().unwrap().prefix = None;
        self.0.opened.notify_all();
    }

    /// How often files whose names begin so were read from.
    pub(crate) fn reads(&self, prefix: &str) -> usize {
        let held = self.0.state.lock().unwrap();
        let reads = held.reads.iter();
        reads.filter(|name| name.starts_with(prefix)).count()
    }

    pub(crate) async fn wait_until_somebody_is_held(&self) {
        for _ in 0..6_000 {
            if self.0.state.lock().unwrap().waiting > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nobody reads from a file that is held");
    }
}

impl Gate {
    fn pass(&self, name: &str) {
        let mut held = self.state.lock().unwrap();
        held.waiting += 1;
        held.reads.push(name.to_owned());
        while held.prefix.is_some_and(|prefix| name.starts_with(prefix)) {
            held = self.opened.wait(held).unwrap();
        }
        held.waiting -= 1;
    }
}

impl DiskHook for Gate {
    fn before(&self, operation: &'static str, path: &Path) -> io::Result<()> {
        if operation == "read_at" {
            let name = path.file_name().unwrap_or_default();
            self.pass(&name.to_string_lossy());
        }
        Ok(())
    }
}
