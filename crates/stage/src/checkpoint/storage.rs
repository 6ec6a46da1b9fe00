//! The port to where checkpoints are kept, and a directory behind it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::env::{Disk, DiskFile, OpenMode};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// There is none of this name.
    #[error("there is no `{0}`")]
    Missing(String),
    /// There is one of this name.
    #[error("there is a `{0}`")]
    Exists(String),
    /// The storage does not answer.
    #[error("could not use `{name}`")]
    Unusable {
        /// The file.
        name: String,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A call on its way.
pub type StorageFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StorageError>> + Send + 'a>>;

/// Where the files of checkpoints are kept.
///
/// An implementation must keep: a file is there whole once it is finished, and survives a crash from then on. One that was
/// not finished is never listed. Of two files with one name, only one is finished.
pub trait CheckpointStorage: Send + Sync + fmt::Debug {
    /// The names of all files.
    fn list(&self) -> StorageFuture<'_, Vec<String>>;

    /// Begins a file.
    fn create<'a>(&'a self, name: &'a str) -> StorageFuture<'a, Box<dyn CheckpointFile>>;

    /// Reads so many bytes of a file from a place on; fewer where it ends.
    fn read<'a>(&'a self, name: &'a str, from: u64, length: u64) -> StorageFuture<'a, Bytes>;

    /// Removes a file. Removing what is not there changes nothing.
    fn remove<'a>(&'a self, name: &'a str) -> StorageFuture<'a, ()>;
}

/// A file that is being written.
pub trait CheckpointFile: Send {
    /// Adds bytes at its end.
    fn append(&mut self, bytes: Bytes) -> StorageFuture<'_, ()>;

    /// Makes it a file. Dropped without this, it is none.
    fn finish(self: Box<Self>) -> StorageFuture<'static, ()>;
}

/// A directory.
pub(super) struct Directory {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.dir.display())
    }
}

fn unusable(name: &str, error: io::Error) -> StorageError {
    if error.kind() == io::ErrorKind::NotFound {
        return StorageError::Missing(name.to_owned());
    }
    if error.kind() == io::ErrorKind::AlreadyExists {
        return StorageError::Exists(name.to_owned());
    }
    StorageError::Unusable {
        name: name.to_owned(),
        source: Box::new(error),
    }
}

/// The end of the names of files that are not finished.
const BEGUN: &str = ".new";

impl Directory {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf) -> Self {
        Self { disk, dir }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        match self.disk.list(&self.dir) {
            Ok(entries) => Ok(entries.into_iter().map(|entry| entry.name).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn begin(&self, name: &str) -> io::Result<DirectoryFile> {
        self.disk.create_dir_all(&self.dir)?;
        let begun = self.dir.join(format!("{name}{BEGUN}"));
        let file = match self.disk.open(&begun, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // It was left behind.
                self.disk.remove(&begun)?;
                self.disk.open(&begun, OpenMode::CreateNew)
            }
            opened => opened,
        }?;
        Ok(DirectoryFile {
            disk: Arc::clone(&self.disk),
            dir: self.dir.clone(),
            name: name.to_owned(),
            file,
        })
    }

    fn read_some(&self, name: &str, from: u64, length: u64) -> io::Result<Bytes> {
        let file = self.disk.open(&self.dir.join(name), OpenMode::Read)?;
        let length = length.min(file.len()?.saturating_sub(from));
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        let read = file.read_at(from, &mut bytes)?;
        bytes.truncate(read);
        Ok(Bytes::from(bytes))
    }
}

impl CheckpointStorage for Directory {
    fn list(&self) -> StorageFuture<'_, Vec<String>> {
        Box::pin(async move {
            let names = self.names().map_err(|error| unusable("", error))?;
            let is_whole = |name: &String| !name.ends_with(BEGUN);
            Ok(names.into_iter().filter(is_whole).collect())
        })
    }

    fn create<'a>(&'a self, name: &'a str) -> StorageFuture<'a, Box<dyn CheckpointFile>> {
        Box::pin(async move {
            let begun = self.begin(name).map_err(|error| unusable(name, error))?;
            Ok(Box::new(begun) as Box<dyn CheckpointFile>)
        })
    }

    fn read<'a>(&'a self, name: &'a str, from: u64, length: u64) -> StorageFuture<'a, Bytes> {
        Box::pin(async move {
            self.read_some(name, from, length)
                .map_err(|error| unusable(name, error))
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            match self.disk.remove(&self.dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(name, error)),
                Ok(()) | Err(_) => Ok(()),
            }
        })
    }
}

/// A file of a directory that is being written.
struct DirectoryFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    name: String,
    file: Box<dyn DiskFile>,
}

impl DirectoryFile {
    fn end(mut self) -> io::Result<()> {
        self.file.sync()?;
        drop(self.file);
        self.disk.sync_dir(&self.dir)?;
        let begun = self.dir.join(format!("{}{BEGUN}", self.name));
        let done = self.dir.join(&self.name);
        if self.disk.open(&done, OpenMode::Read).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.disk.replace(&begun, &done)
    }
}

impl CheckpointFile for DirectoryFile {
    fn append(&mut self, bytes: Bytes) -> StorageFuture<'_, ()> {
        Box::pin(async move {
            let written = self.file.append(&bytes);
            written.map_err(|error| unusable(&self.name, error))
        })
    }

    fn finish(self: Box<Self>) -> StorageFuture<'static, ()> {
        Box::pin(async move {
            let name = self.name.clone();
            self.end().map_err(|error| unusable(&name, error))
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The promises of the port, on an empty storage.
    pub(crate) async fn keeps_its_promises(storage: &dyn CheckpointStorage) {
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(storage.list().await.unwrap(), Vec::<String>::new());
        assert!(matches!(
            storage.read("one", 0, 10).await,
            Err(StorageError::Missing(_))
        ));
        let mut file = storage.create("one").await.unwrap();
        file.append(Bytes::from_static(b"he")).await.unwrap();
        file.append(Bytes::from_static(b"llo")).await.unwrap();
        assert_eq!(
            storage.list().await.unwrap(),
            Vec::<String>::new(),
            "not finished"
        );
        file.finish().await.unwrap();
        assert_eq!(storage.list().await.unwrap(), ["one"]);
        assert_eq!(text(storage.read("one", 0, 100).await.unwrap()), "hello");
        assert_eq!(text(storage.read("one", 1, 3).await.unwrap()), "ell");
        assert!(storage.read("one", 5, 3).await.unwrap().is_empty());
        // One that is dropped is none, and does not stand in the way.
        let mut dropped = storage.create("two").await.unwrap();
        dropped.append(Bytes::from_static(b"half")).await.unwrap();
        drop(dropped);
        let mut large = storage.create("two").await.unwrap();
        for _ in 0..5 {
            large.append(Bytes::from(vec![7; 3_000_000])).await.unwrap();
        }
        large.finish().await.unwrap();
        let end = storage.read("two", 14_999_998, 10).await.unwrap();
        assert_eq!(end, Bytes::from_static(&[7, 7]));
        // The first one of a name stays.
        let mut other = storage.create("one").await.unwrap();
        other.append(Bytes::from_static(b"other")).await.unwrap();
        assert!(matches!(other.finish().await, Err(StorageError::Exists(_))));
        assert_eq!(text(storage.read("one", 0, 100).await.unwrap()), "hello");
        for _ in 0..2 {
            storage.remove("one").await.unwrap();
        }
        assert_eq!(storage.list().await.unwrap(), ["two"]);
    }

    #[tokio::test]
    async fn a_directory_keeps_the_promises_of_the_port() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::clone(&tidegate_core::env::Env::system().disk);
        let storage = Directory::new(disk, dir.path().join("not/there/yet"));
        keeps_its_promises(&storage).await;
    }
}
