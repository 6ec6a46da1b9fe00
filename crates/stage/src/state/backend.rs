//! Where the committed epochs of a task are kept.

mod rows;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;

use bytes::Bytes;

use self::rows::HashRows;
use crate::task_state::TableId;

/// The place of an entry: its table, the hash of the text that its key begins with, then its key.
///
/// So the entries of one text stand together, and those of a table in an order that has nothing to do with texts.
#[derive(Debug, Clone)]
pub struct EntryKey {
    /// The table.
    pub table: TableId,
    hash: u32,
    /// The key.
    pub key: Bytes,
}

/// A place that is looked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryAt<'k> {
    pub(crate) table: TableId,
    pub(crate) hash: u32,
    pub(crate) key: &'k [u8],
}

impl<'k> EntryAt<'k> {
    pub(crate) fn new(table: TableId, key: &'k [u8]) -> Self {
        let hash = text_hash(table, key);
        Self { table, hash, key }
    }

    pub(crate) fn to_key(self) -> EntryKey {
        EntryKey {
            table: self.table,
            hash: self.hash,
            key: Bytes::copy_from_slice(self.key),
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        let place = |at: &Self| (at.table, at.hash);
        place(self)
            .cmp(&place(other))
            .then_with(|| self.key.cmp(other.key))
    }
}

/// The hash of the text that a key begins with, up to its end `00 01`; of the whole key, where it has no such end. The
/// rows of the chain itself have none: their keys are no texts.
#[must_use]
pub fn text_hash(table: TableId, key: &[u8]) -> u32 {
    if table == TableId::CHAIN {
        return 0;
    }
    let mut end = 0;
    while let Some(zero) = memchr::memchr(0, &key[end..]) {
        end += zero;
        if key.get(end + 1) == Some(&1) {
            return crc32c::crc32c(&key[..end]);
        }
        // A zero byte of the text has `ff` behind it.
        end = (end + 2).min(key.len());
    }
    crc32c::crc32c(key)
}

impl EntryKey {
    /// The place of a key in a table.
    #[must_use]
    pub fn new(table: TableId, key: impl Into<Bytes>) -> Self {
        let key = key.into();
        let hash = text_hash(table, &key);
        Self { table, hash, key }
    }

    /// The first place of all.
    #[must_use]
    pub fn first() -> Self {
        Self::new(TableId(0), Bytes::new())
    }

    /// The first place of a table.
    #[must_use]
    pub(crate) fn first_of(table: TableId) -> Self {
        let (hash, key) = (0, Bytes::new());
        Self { table, hash, key }
    }

    pub(crate) fn at(&self) -> EntryAt<'_> {
        EntryAt {
            table: self.table,
            hash: self.hash,
            key: &self.key,
        }
    }

    pub(crate) fn hash(&self) -> u32 {
        self.hash
    }
}

/// A place by what it is made of, so that one can be looked for without its own bytes.
pub(crate) trait AsPlace {
    fn place(&self) -> EntryAt<'_>;
}

impl AsPlace for EntryKey {
    fn place(&self) -> EntryAt<'_> {
        self.at()
    }
}

impl AsPlace for EntryAt<'_> {
    fn place(&self) -> EntryAt<'_> {
        *self
    }
}

impl<'a> Borrow<dyn AsPlace + 'a> for EntryKey {
    fn borrow(&self) -> &(dyn AsPlace + 'a) {
        self
    }
}

impl PartialEq for dyn AsPlace + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place().order(&other.place()).is_eq()
    }
}

impl Eq for dyn AsPlace + '_ {}

impl PartialOrd for dyn AsPlace + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn AsPlace + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().order(&other.place())
    }
}

impl PartialEq for EntryKey {
    fn eq(&self, other: &Self) -> bool {
        self.table == other.table && self.key == other.key
    }
}

impl Eq for EntryKey {}

impl Hash for EntryKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.table.hash(state);
        self.key.hash(state);
    }
}

impl PartialOrd for EntryKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EntryKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at().order(&other.at())
    }
}

/// Takes a place and its value, and says whether to go on.
pub type EntryVisit<'v> = dyn FnMut(&EntryKey, &Bytes) -> ControlFlow<()> + 'v;

/// The committed epochs of one task.
///
/// An implementation must keep: an epoch is applied whole; entries are in the order of their [places](EntryKey); nothing
/// of an epoch that was not applied is ever seen.
pub trait StateBackend: Send + Sync + fmt::Debug {
    /// The last epoch that was applied; 0 before the first one.
    fn epoch(&self) -> u64;

    /// The value of an entry.
    fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes>;

    /// Visits the entries from one place (inclusive) to another (exclusive; none for the end), in order.
    fn scan(&self, from: &EntryKey, to: Option<&EntryKey>, visit: &mut EntryVisit<'_>);

    /// Applies the changes of an epoch.
    fn apply(&mut self, epoch: u64, changes: BTreeMap<EntryKey, Option<Bytes>>);

    /// Replaces everything from one place (inclusive) to another (exclusive; none for the end) by these entries.
    fn replace(&mut self, from: &EntryKey, to: Option<&EntryKey>, entries: Vec<(EntryKey, Bytes)>);

    /// Entries, and about how many bytes they take.
    fn size(&self) -> (u64, u64);
}

/// A backend in memory, without files of its own: a hash table for each table, in the order of the hashes.
#[derive(Debug, Default)]
pub struct MapBackend {
    /// The rows of the chain itself, which are few, and have no hashes.
    chain: BTreeMap<Bytes, Bytes>,
    tables: BTreeMap<TableId, HashRows>,
    epoch: u64,
    entries: u64,
    bytes: u64,
}

/// Bytes that an entry takes beside its key and value.
const ENTRY_BYTES: u64 = 96;

fn size_of(key: &[u8], value: &Bytes) -> u64 {
    (key.len() + value.len()) as u64 + ENTRY_BYTES
}

impl MapBackend {
    fn set(&mut self, key: EntryKey, value: Option<Bytes>) {
        let length = key.key.len();
        let added = value.as_ref().map(|value| size_of(&key.key, value));
        let old = match (key.table, value) {
            (TableId::CHAIN, Some(value)) => self.chain.insert(key.key, value),
            (TableId::CHAIN, None) => self.chain.remove(&key.key),
            (table, Some(value)) => {
                let rows = self.tables.entry(table).or_default();
                rows.insert(key.hash, &key.key, value)
            }
            (table, None) => {
                let rows = self.tables.get_mut(&table);
                rows.and_then(|rows| rows.remove(key.hash, &key.key))
            }
        };
        if let Some(added) = added {
            self.bytes += added;
            self.entries += 1;
        }
        if let Some(old) = old {
            self.bytes -= (length + old.len()) as u64 + ENTRY_BYTES;
            self.entries -= 1;
        }
    }
}

impl StateBackend for MapBackend {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes> {
        match table {
            TableId::CHAIN => self.chain.get(key).cloned(),
            _ => self.tables.get(&table)?.get(text_hash(table, key), key),
        }
    }

    fn scan(&self, from: &EntryKey, to: Option<&EntryKey>, visit: &mut EntryVisit<'_>) {
        let is_behind = |key: &EntryKey| to.is_some_and(|to| key >= to);
        if from.table == TableId::CHAIN {
            for (key, value) in self.chain.range(from.key.clone()..) {
                let key = EntryKey {
                    table: TableId::CHAIN,
                    hash: 0,
                    key: key.clone(),
                };
                if is_behind(&key) || visit(&key, value).is_break() {
                    return;
                }
            }
        }
        for (table, rows) in self.tables.range(from.table..) {
            let begin = match *table == from.table {
                true => (from.hash, &from.key[..]),
                false => (0, &[][..]),
            };
            let flow = rows.scan(begin, &mut |hash, key, value| {
                let key = EntryKey {
                    table: *table,
                    hash,
                    key: Bytes::copy_from_slice(key),
                };
                match is_behind(&key) {
                    true => ControlFlow::Break(()),
                    false => visit(&key, value),
                }
            });
            if flow.is_break() {
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
        (self.entries, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::env::{Entropy, Stream};

    #[test]
    fn bytes_are_those_of_the_entries() {
        let mut backend = MapBackend::default();
        let at = |key: &str| EntryKey::new(TableId(0), key.as_bytes().to_vec());
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
        assert_eq!(backend.get(TableId(0), b"a"), None);
        assert_eq!((backend.epoch(), backend.size()), (2, (1, ENTRY_BYTES + 2)));
    }

    #[test]
    fn the_rows_of_a_text_stand_together() {
        let table = TableId(7);
        let hash = |key: &[u8]| text_hash(table, key);
        assert_eq!(hash(b"abc\x00\x01"), hash(b"abc\x00\x01\x00\x00\x00\x07"));
        assert_eq!(hash(b"abc\x00\x01"), crc32c::crc32c(b"abc"));
        assert_ne!(hash(b"abc\x00\x01"), hash(b"abd\x00\x01"));
        assert_eq!(text_hash(TableId::CHAIN, b"p"), 0);
    }

    /// Random epochs beside a map in the same order: reads, scans from any place, and replaced ranges.
    #[test]
    fn a_backend_is_a_map_in_the_order_of_places() {
        for seed in 0..60 {
            let mut draws = Stream::new(seed);
            let draws: &mut dyn Entropy = &mut draws;
            let mut backend = MapBackend::default();
            let mut model: BTreeMap<EntryKey, Bytes> = BTreeMap::new();
            let keys = 1 + draws.below(2_000);
            let place = |draws: &mut dyn Entropy| {
                let table = TableId(u16::try_from(draws.below(3)).unwrap());
                let mut key = format!("k{}", draws.below(keys)).into_bytes();
                key.extend_from_slice(&[0, 1]);
                key.extend_from_slice(&draws.below(3).to_be_bytes());
                EntryKey::new(table, key)
            };
            for epoch in 1..=40 {
                let mut changes = BTreeMap::new();
                for _ in 0..draws.below(120) {
                    let value = Bytes::from(draws.below(1_000).to_string());
                    changes.insert(place(draws), (draws.below(3) > 0).then_some(value));
                }
                for (key, value) in &changes {
                    match value {
                        Some(value) => drop(model.insert(key.clone(), value.clone())),
                        None => drop(model.remove(key)),
                    }
                }
                backend.apply(epoch, changes);
                if draws.below(4) == 0 {
                    let (one, two) = (place(draws), place(draws));
                    let to = (draws.below(3) > 0).then_some(one.clone().max(two.clone()));
                    let from = one.min(two);
                    let entries = vec![(from.clone(), Bytes::from_static(b"new"))];
                    model.retain(|key, _| *key < from || to.as_ref().is_some_and(|to| key >= to));
                    model.extend(entries.clone());
                    backend.replace(&from, to.as_ref(), entries);
                }
                let from = place(draws);
                let mut found = Vec::new();
                backend.scan(&from, None, &mut |key, value| {
                    found.push((key.clone(), value.clone()));
                    ControlFlow::Continue(())
                });
                let expected = model.range(from..);
                let expected: Vec<_> = expected
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                assert_eq!(found, expected, "seed {seed}");
                let asked = place(draws);
                let value = backend.get(asked.table, &asked.key);
                assert_eq!(value.as_ref(), model.get(&asked), "seed {seed}");
            }
            assert_eq!(backend.size().0, model.len() as u64);
        }
    }
}
