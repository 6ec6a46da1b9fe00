//! Which process holds a spill directory.
//!
//! The lock alone keeps others out; what stands in its file is for people. It is found by the disk,
//! as everything else is, so that a simulated process has none.

use std::path::Path;

use tidegate_core::env::{Disk, OpenMode};

/// Longest text that is looked at.
const LONGEST: usize = 1_024;

/// Writes down that this process holds the lock. Best effort: nothing depends on it.
pub(super) fn sign(disk: &dyn Disk, lock: &Path) {
    let Some(text) = this_process(disk) else {
        return;
    };
    let signed = disk.open(lock, OpenMode::Write).and_then(|mut file| {
        file.truncate(0)?;
        file.append(text.as_bytes())
    });
    if let Err(error) = signed {
        tracing::debug!(%error, "could not write the process id to the lock file");
    }
}

/// Which process holds the lock, in words.
pub(super) fn of(disk: &dyn Disk, lock: &Path) -> String {
    let text = start(disk, lock).unwrap_or_default();
    match text.split_whitespace().next() {
        Some(pid) if pid.bytes().all(|byte| byte.is_ascii_digit()) => format!("process {pid}"),
        Some(_) | None => "another process".to_owned(),
    }
}

/// The process id and the boot id, as two words; none where the system does not tell.
fn this_process(disk: &dyn Disk) -> Option<String> {
    let stat = start(disk, Path::new("/proc/self/stat"))?;
    let pid = stat.split_whitespace().next()?;
    let boot = start(disk, Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    Some(format!("{pid} {}\n", boot.trim()))
}

fn start(disk: &dyn Disk, path: &Path) -> Option<String> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let mut bytes = vec![0; LONGEST];
    let read = file.read_at(0, &mut bytes).ok()?;
    bytes.truncate(read);
    String::from_utf8(bytes).ok()
}
