//! Where the committed epochs of a task are kept.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;

use crate::task_state::TableId;

/// The place of an entry: its table, then its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: Bytes,
}

impl EntryKey {
    /// The place of a key in a table.
    #[must_use]
    pub fn new(table: TableId, key: &[u8]) -> Self {
        Self {
            table,
            key: Bytes::copy_from_slice(key),
        }
    }

    /// The first place of all.
    #[must_use]
    pub fn first() -> Self {
        Self::new(TableId(0), &[])
    }

    /// The place right behind this one.
    #[must_use]
    pub fn next(&self) -> Self {
        let mut key = Vec::with_capacity(self.key.len() + 1);
        key.extend_from_slice(&self.key);
        key.push(0);
        Self {
            table: self.table,
            key: Bytes::from(key),
        }
    }
}

/// The committed epochs of one task.
///
/// An implementation must keep: an epoch is applied whole; entries are in the order of their keys; nothing of an epoch
/// that was not applied is ever seen.
pub trait StateBackend: Send + Sync + fmt::Debug {
    /// The last epoch that was applied; 0 before the first one.
    fn epoch(&self) -> u64;

    /// The value of an entry.
    fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes>;

    /// Visits the entries from one place (inclusive) to another (exclusive; none for the end), in order.
    fn scan(
        &self,
        from: &EntryKey,
        to: Option<&EntryKey>,
        visit: &mut dyn FnMut(&EntryKey, &Bytes) -> ControlFlow<()>,
    );

    /// Applies the changes of an epoch.
    fn apply(&mut self, epoch: u64, changes: BTreeMap<EntryKey, Option<Bytes>>);

    /// Replaces everything from one place (inclusive) to another (exclusive; none for the end) by these entries.
    fn replace(&mut self, from: &EntryKey, to: Option<&EntryKey>, entries: Vec<(EntryKey, Bytes)>);

    /// Entries, and about how many bytes they take.
    fn size(&self) -> (u64, u64);
}

/// A backend in memory, without files of its own.
#[derive(Debug, Default)]
pub struct MapBackend {
    entries: BTreeMap<EntryKey, Bytes>,
    epoch: u64,
    bytes: u64,
}

/// Bytes that an entry takes beside its key and value.
const ENTRY_BYTES: u64 = 64;

fn size_of(key: &EntryKey, value: &Bytes) -> u64 {
    (key.key.len() + value.len()) as u64 + ENTRY_BYTES
}

impl MapBackend {
    fn set(&mut self, key: EntryKey, value: Option<Bytes>) {
        let old = match value {
            Some(value) => {
                self.bytes += size_of(&key, &value);
                // The key stays the one that is there, so its bytes are the same.
                let old = self.entries.get_mut(&key);
                match old {
                    Some(place) => Some((size_of(&key, place), *place = value)),
                    None => {
                        self.entries.insert(key, value);
                        None
                    }
                }
            }
            None => {
                let removed = self.entries.remove(&key);
                removed.map(|old| (size_of(&key, &old), ()))
            }
        };
        self.bytes -= old.map_or(0, |(size, ())| size);
    }
}

impl StateBackend for MapBackend {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes> {
        self.entries.get(&EntryKey::new(table, key)).cloned()
    }

    fn scan(
        &self,
        from: &EntryKey,
        to: Option<&EntryKey>,
        visit: &mut dyn FnMut(&EntryKey, &Bytes) -> ControlFlow<()>,
    ) {
        for (key, value) in self.entries.range(from.clone()..) {
            if to.is_some_and(|to| key >= to) || visit(key, value).is_break() {
                return;
            }
        }
    }

    fn apply(&mut self, epoch: u64, changes: BTreeMap<EntryKey, Option<Bytes>>) {
        for (key, value) in changes {
            self.set(key, value);
        }
        self.epoch = epoch;
    }

    fn replace(&mut self, from: &EntryKey, to: Option<&EntryKey>, entries: Vec<(EntryKey, Bytes)>) {
        let mut old = Vec::new();
        self.scan(from, to, &mut |key, _| {
            old.push(key.clone());
            ControlFlow::Continue(())
        });
        for key in old {
            self.set(key, None);
        }
        for (key, value) in entries {
            self.set(key, Some(value));
        }
    }

    fn size(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_entries() {
        let mut backend = MapBackend::default();
        let at = |key: &str| EntryKey::new(TableId(1), key.as_bytes());
        let set =
            |key: &str, value: &'static str| (at(key), Some(Bytes::from_static(value.as_bytes())));
        backend.apply(1, BTreeMap::from([set("a", "one"), set("b", "two")]));
        backend.apply(
            2,
            BTreeMap::from([set("a", "longer"), (at("b"), None), (at("c"), None)]),
        );
        assert_eq!(backend.size(), (1, ENTRY_BYTES + 7));
        let entries = vec![(at("b"), Bytes::from_static(b"x"))];
        backend.replace(&EntryKey::first(), Some(&at("c")), entries);
        assert_eq!(backend.get(TableId(1), b"a"), None);
        assert_eq!((backend.epoch(), backend.size()), (2, (1, ENTRY_BYTES + 2)));
    }
}
