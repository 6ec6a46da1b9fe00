//! The content of a disk: what reads show, what is durable, and what lies in between.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::{DirEntry, Entropy, Stream};

use super::survivors::{Survival, Survivors};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(u64);

/// A change to the bytes of a file.
#[derive(Debug, Clone)]
pub(super) enum FileChange {
    Data { offset: u64, bytes: Vec<u8> },
    Len(u64),
}

#[derive(Debug, Clone)]
enum NameChange {
    Link(String, Item),
    Unlink(String),
    Rename(String, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    File(FileId),
    Dir,
}

type Names = BTreeMap<String, Item>;

#[derive(Debug, Clone, Default)]
struct FileState {
    /// The bytes that reads show. Shared between copies of the image, since most files do not change from
    /// one crash point to the next.
    view: Arc<Vec<u8>>,
    durable: Arc<Vec<u8>>,
    /// Changes since the last sync, each with its place in the order of all changes.
    pending: Vec<(u64, FileChange)>,
}

#[derive(Debug, Clone, Default)]
struct DirState {
    view: Names,
    durable: Names,
    pending: Vec<(u64, NameChange)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    files: BTreeMap<FileId, FileState>,
    dirs: BTreeMap<PathBuf, DirState>,
    next_file: u64,
    next_change: u64,
}

impl Image {
    /// The directory that holds `path`, and the name in it. The topmost directories are there from
    /// the start.
    fn place<'a>(&mut self, path: &'a Path) -> io::Result<(&mut DirState, &'a str)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or(io::Error::from(ErrorKind::InvalidInput))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        if is_root(dir) {
            self.dirs.entry(dir.to_owned()).or_default();
        }
        let state = self
            .dirs
            .get_mut(dir)
            .ok_or(io::Error::from(ErrorKind::NotFound))?;
        Ok((state, name))
    }

    fn item(&self, path: &Path) -> Option<Item> {
        if is_root(path) {
            return Some(Item::Dir);
        }
        let name = path.file_name()?.to_str()?;
        self.dirs.get(path.parent()?)?.view.get(name).copied()
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<FileId> {
        match self.item(path) {
            Some(Item::File(id)) => Ok(id),
            Some(Item::Dir) => Err(io::Error::from(ErrorKind::IsADirectory)),
            None => Err(io::Error::from(ErrorKind::NotFound)),
        }
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<FileId> {
        if self.item(path).is_some() {
            return Err(io::Error::from(ErrorKind::AlreadyExists));
        }
        let id = FileId(self.next_file);
        let change = self.next_change;
        let (dir, name) = self.place(path)?;
        dir.view.insert(name.to_owned(), Item::File(id));
        dir.pending
            .push((change, NameChange::Link(name.to_owned(), Item::File(id))));
        self.next_file += 1;
        self.next_change += 1;
        self.files.insert(id, FileState::default());
        Ok(id)
    }

    /// Makes one directory; durable once its parent is synced.
    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        if self.item(path).is_some() {
            return Err(io::Error::from(ErrorKind::AlreadyExists));
        }
        let change = self.next_change;
        let (dir, name) = self.place(path)?;
        dir.view.insert(name.to_owned(), Item::Dir);
        dir.pending
            .push((change, NameChange::Link(name.to_owned(), Item::Dir)));
        self.next_change += 1;
        self.dirs.insert(path.to_owned(), DirState::default());
        Ok(())
    }

    /// The directories from the top down to `path`, with whether each is there.
    pub(super) fn levels(&self, path: &Path) -> io::Result<Vec<(PathBuf, bool)>> {
        let mut levels = Vec::new();
        for level in path.ancestors().filter(|level| !is_root(level)) {
            match self.item(level) {
                Some(Item::Dir) => levels.push((level.to_owned(), true)),
                None => levels.push((level.to_owned(), false)),
                Some(Item::File(_)) => return Err(io::Error::from(ErrorKind::NotADirectory)),
            }
        }
        levels.reverse();
        Ok(levels)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if from.parent() != to.parent() {
            return Err(io::Error::from(ErrorKind::InvalidInput));
        }
        let id = self.find(from)?;
        let change = self.next_change;
        let (dir, new) = self.place(to)?;
        let old = from
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if dir.view.get(new) == Some(&Item::Dir) {
            return Err(io::Error::from(ErrorKind::IsADirectory));
        }
        dir.view.remove(old);
        dir.view.insert(new.to_owned(), Item::File(id));
        dir.pending
            .push((change, NameChange::Rename(old.to_owned(), new.to_owned())));
        self.next_change += 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        let change = self.next_change;
        let (dir, name) = self.place(path)?;
        dir.view.remove(name);
        dir.pending
            .push((change, NameChange::Unlink(name.to_owned())));
        self.next_change += 1;
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        match self.dirs.get_mut(path) {
            Some(dir) => {
                dir.durable = dir.view.clone();
                dir.pending.clear();
                Ok(())
            }
            None if is_root(path) => Ok(()),
            None => Err(io::Error::from(ErrorKind::NotFound)),
        }
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        match self.dirs.get(path) {
            Some(dir) => Ok(dir
                .view
                .iter()
                .map(|(name, item)| self.entry(name, *item))
                .collect()),
            None if is_root(path) => Ok(Vec::new()),
            None => Err(io::Error::from(ErrorKind::NotFound)),
        }
    }

    fn entry(&self, name: &str, item: Item) -> DirEntry {
        let (len, is_dir) = match item {
            Item::File(id) => (self.len(id), false),
            Item::Dir => (0, true),
        };
        DirEntry {
            name: name.to_owned(),
            len,
            is_dir,
        }
    }

    /// The state of an open file, which may have lost its name.
    fn file(&mut self, id: FileId) -> &mut FileState {
        self.files.entry(id).or_default()
    }

    pub(super) fn len(&self, id: FileId) -> u64 {
        self.files.get(&id).map_or(0, |file| file.view.len() as u64)
    }

    pub(super) fn read_at(&self, id: FileId, offset: u64, buffer: &mut [u8]) -> usize {
        let Some(file) = self.files.get(&id) else {
            return 0;
        };
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(file.view.len());
        let count = buffer.len().min(file.view.len() - start);
        buffer[..count].copy_from_slice(&file.view[start..start + count]);
        count
    }

    pub(super) fn change(&mut self, id: FileId, change: FileChange) {
        let number = self.next_change;
        self.next_change += 1;
        let file = self.file(id);
        apply(Arc::make_mut(&mut file.view), &change);
        file.pending.push((number, change));
    }

    pub(super) fn sync(&mut self, id: FileId) {
        let file = self.file(id);
        let pending = std::mem::take(&mut file.pending);
        let durable = Arc::make_mut(&mut file.durable);
        for (_, change) in &pending {
            apply(durable, change);
        }
    }

    /// A sync that failed: some of what it should have written is there, the rest never will be.
    pub(super) fn drop_dirty(&mut self, id: FileId, seed: u64) {
        let file = self.file(id);
        let pending = std::mem::take(&mut file.pending);
        let mut survival = Survival::new(&Survivors::Random(seed));
        let durable = Arc::make_mut(&mut file.durable);
        survival.resolve_file(durable, &pending);
    }

    pub(super) fn flip_bit(&mut self, id: FileId, offset: u64, bit: u8) {
        let file = self.file(id);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let mask = 1 << (bit % 8);
        Arc::make_mut(&mut file.view)[at] ^= mask;
        if let Some(byte) = Arc::make_mut(&mut file.durable).get_mut(at) {
            *byte ^= mask;
        }
        // Bytes that are not synced yet are flipped where they wait.
        for (_, change) in &mut file.pending {
            if let FileChange::Data { offset, bytes } = change
                && let Some(index) = at.checked_sub(usize::try_from(*offset).unwrap_or(usize::MAX))
                && let Some(byte) = bytes.get_mut(index)
            {
                *byte ^= mask;
            }
        }
    }

    pub(super) fn used(&self) -> u64 {
        let linked: BTreeSet<FileId> = self
            .dirs
            .values()
            .flat_map(|dir| dir.view.values())
            .filter_map(|item| match item {
                Item::File(id) => Some(*id),
                Item::Dir => None,
            })
            .collect();
        linked.into_iter().map(|id| self.len(id)).sum()
    }

    pub(super) fn pending(&self) -> usize {
        let files: usize = self.files.values().map(|file| file.pending.len()).sum();
        let dirs: usize = self.dirs.values().map(|dir| dir.pending.len()).sum();
        files + dirs
    }

    /// The content after a power cut.
    pub(super) fn after_crash(&self, survivors: &Survivors) -> Self {
        let mut survival = Survival::new(survivors).counting(self.pending_numbers());
        let mut image = Self {
            next_file: self.next_file,
            ..Self::default()
        };
        let mut linked = BTreeSet::new();
        // Parents come before what is in them, so a directory whose name did not survive takes
        // everything below it along.
        for (path, dir) in &self.dirs {
            if image.item(path) != Some(Item::Dir) {
                continue;
            }
            let mut names = dir.durable.clone();
            let numbers: Vec<u64> = dir.pending.iter().map(|(number, _)| *number).collect();
            for (_, change) in &dir.pending[..survival.names_kept(&numbers)] {
                rename(&mut names, change);
            }
            linked.extend(names.values().filter_map(|item| match item {
                Item::File(id) => Some(*id),
                Item::Dir => None,
            }));
            let state = DirState {
                view: names.clone(),
                durable: names,
                pending: Vec::new(),
            };
            image.dirs.insert(path.clone(), state);
        }
        for (id, file) in &self.files {
            let mut content = Arc::clone(&file.durable);
            if !file.pending.is_empty() {
                survival.resolve_file(Arc::make_mut(&mut content), &file.pending);
            }
            if linked.contains(id) {
                let state = FileState {
                    view: Arc::clone(&content),
                    durable: content,
                    pending: Vec::new(),
                };
                image.files.insert(*id, state);
            }
        }
        image
    }

    fn pending_numbers(&self) -> Vec<u64> {
        let files = self
            .files
            .values()
            .flat_map(|file| file.pending.iter().map(|(n, _)| *n));
        let dirs = self
            .dirs
            .values()
            .flat_map(|dir| dir.pending.iter().map(|(n, _)| *n));
        let mut numbers: Vec<u64> = files.chain(dirs).collect();
        numbers.sort_unstable();
        numbers
    }
}

pub(super) fn apply(content: &mut Vec<u8>, change: &FileChange) {
    match change {
        FileChange::Len(len) => content.resize(usize::try_from(*len).unwrap_or(usize::MAX), 0),
        FileChange::Data { offset, bytes } => {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            let end = start + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[start..end].copy_from_slice(bytes);
        }
    }
}

fn rename(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Link(name, item) => {
            names.insert(name.clone(), *item);
        }
        NameChange::Unlink(name) => {
            names.remove(name);
        }
        NameChange::Rename(from, to) => {
            if let Some(item) = names.remove(from) {
                names.insert(to.clone(), item);
            }
        }
    }
}

fn is_root(path: &Path) -> bool {
    path.parent()
        .is_none_or(|parent| parent.as_os_str().is_empty() && path.as_os_str() == ".")
}

/// A draw below `bound`.
pub(super) fn below(stream: &mut Stream, bound: u64) -> u64 {
    let entropy: &mut dyn Entropy = stream;
    entropy.below(bound)
}
