//! An open file on a simulated disk.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tidegate_core::env::{DiskFile, Entropy};

use super::image::FileChange;
use super::{FaultKind, FileId, Operation, SimDisk, die};

pub(super) struct SimFile {
    disk: SimDisk,
    id: FileId,
    path: PathBuf,
    life: u64,
    is_writable: bool,
}

impl SimFile {
    pub(super) fn new(
        disk: SimDisk,
        id: FileId,
        path: PathBuf,
        life: u64,
        is_writable: bool,
    ) -> Self {
        Self {
            disk,
            id,
            path,
            life,
            is_writable,
        }
    }

    fn writable(&self) -> io::Result<()> {
        if self.is_writable {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        }
    }

    fn write(&mut self, offset: Option<u64>, bytes: &[u8]) -> io::Result<()> {
        self.writable()?;
        let mut inner = self.disk.inner.lock();
        let begun = inner.begin(self.life, Operation::Write, &self.path, bytes)?;
        if begun.is_last
            && begun
                .fault
                .is_some_and(|kind| kind != FaultKind::ShortWrite)
        {
            die(inner);
        }
        begun.whole()?;
        let len = inner.image.len(self.id);
        let offset = offset.unwrap_or(len);
        let growth = (offset + bytes.len() as u64).saturating_sub(len);
        let room = inner.capacity.saturating_sub(inner.image.used());
        let mut written = bytes.len();
        if growth > room {
            written = written.saturating_sub(usize::try_from(growth - room).unwrap_or(usize::MAX));
        }
        if begun.fault == Some(FaultKind::ShortWrite) {
            let entropy: &mut dyn Entropy = &mut inner.entropy;
            written = written.min(usize::try_from(entropy.below(bytes.len() as u64)).unwrap_or(0));
        }
        if written > 0 {
            let bytes = bytes[..written].to_vec();
            inner
                .image
                .change(self.id, FileChange::Data { offset, bytes });
        }
        if begun.is_last {
            die(inner);
        }
        if written < bytes.len() {
            Err(FaultKind::ShortWrite.error())
        } else {
            Ok(())
        }
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.writable()?;
        let mut inner = self.disk.inner.lock();
        let begun = inner.begin(
            self.life,
            Operation::Truncate,
            &self.path,
            &len.to_le_bytes(),
        )?;
        if begun.is_last && begun.fault.is_some() {
            die(inner);
        }
        begun.whole()?;
        let growth = len.saturating_sub(inner.image.len(self.id));
        if growth > inner.capacity.saturating_sub(inner.image.used()) {
            return Err(FaultKind::Full.error());
        }
        inner.image.change(self.id, FileChange::Len(len));
        if begun.is_last {
            die(inner);
        }
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(None, bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(Some(offset), bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.disk.inner.lock();
        let place = offset.to_le_bytes();
        let begun = inner.begin(self.life, Operation::Read, &self.path, &place)?;
        begun.whole()?;
        let read = inner.image.read_at(self.id, offset, buffer);
        if let Some(trace) = &inner.trace {
            trace.add(&[b"read", &buffer[..read]]);
        }
        Ok(read)
    }

    fn len(&self) -> io::Result<u64> {
        let inner = self.disk.inner.lock();
        inner.alive(self.life)?;
        Ok(inner.image.len(self.id))
    }

    /// Nothing: what is not synced may survive a crash here anyway, or not.
    fn begin_sync(&mut self, _offset: u64, _len: u64) {}

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn preallocate(&mut self, len: u64) -> io::Result<()> {
        /// As the real disk does it: in pieces, any of which may be the last.
        const CHUNK: usize = 64 * 1024;
        loop {
            let at = self.len()?;
            if at >= len {
                return Ok(());
            }
            let step = usize::try_from(len - at).unwrap_or(CHUNK).min(CHUNK);
            self.append(&vec![0; step])?;
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inner = self.disk.inner.lock();
        let begun = inner.begin(self.life, Operation::Sync, &self.path, &[])?;
        if begun.is_last {
            die(inner);
        }
        if begun.fault == Some(FaultKind::SyncDropsDirty) {
            let seed = inner.entropy.next_u64();
            inner.image.drop_dirty(self.id, seed);
        }
        begun.whole()?;
        inner.image.sync(self.id);
        Ok(())
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.path.display())
    }
}
