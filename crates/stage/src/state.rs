//! The state of a task: committed epochs in a backend, those on their way in layers over it.

pub mod backend;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use bytes::Bytes;

use crate::task_state::{RowVisit, TableId, TaskState};
use backend::{AsPlace, EntryAt, EntryKey, EntryVisit, StateBackend};

/// A change of one entry; none removes it.
pub type Change = (EntryKey, Option<Bytes>);

/// The changes of one epoch.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    changes: BTreeMap<EntryKey, Option<Bytes>>,
    bytes: usize,
}

impl Overlay {
    fn set(&mut self, at: EntryAt<'_>, value: Option<Bytes>) {
        let place: &dyn AsPlace = &at;
        self.bytes += value.as_ref().map_or(0, Bytes::len);
        match self.changes.get_mut(place) {
            Some(old) => {
                self.bytes -= old.as_ref().map_or(0, Bytes::len).min(self.bytes);
                *old = value;
            }
            None => {
                self.bytes += at.key.len() + 8;
                self.changes.insert(at.to_key(), value);
            }
        }
    }

    /// Whether nothing was changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// About how many bytes the changes take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The changes, in the order of tables and keys.
    pub fn changes(&self) -> impl Iterator<Item = (&EntryKey, Option<&Bytes>)> {
        self.changes
            .iter()
            .map(|(key, value)| (key, value.as_ref()))
    }
}

/// A backend with the layers of epochs that are not committed: the last one is open, those before it are on their way.
#[derive(Debug)]
pub struct LayeredState {
    backend: Box<dyn StateBackend>,
    sealed: VecDeque<(u64, Overlay)>,
    open: Overlay,
}

impl LayeredState {
    /// The state that a backend holds.
    #[must_use]
    pub fn new(backend: Box<dyn StateBackend>) -> Self {
        Self {
            backend,
            sealed: VecDeque::new(),
            open: Overlay::default(),
        }
    }

    /// The committed epochs, without the layers over them.
    #[must_use]
    pub fn into_backend(self) -> Box<dyn StateBackend> {
        self.backend
    }

    /// The committed epochs.
    #[must_use]
    pub fn backend(&self) -> &dyn StateBackend {
        &*self.backend
    }

    /// The changes of the open epoch.
    #[must_use]
    pub fn open(&self) -> &Overlay {
        &self.open
    }

    /// Closes the open epoch under its number: its changes are on their way, and a new layer lies over them.
    pub fn seal(&mut self, epoch: u64) -> &Overlay {
        let sealed = std::mem::take(&mut self.open);
        self.sealed.push_back((epoch, sealed));
        self.sealed.back().map_or(&self.open, |(_, last)| last)
    }

    /// The epoch that is on its way the longest was committed: the backend has it from now on.
    pub fn committed(&mut self, epoch: u64) {
        if let Some((sealed, overlay)) = self.sealed.pop_front() {
            debug_assert_eq!(sealed, epoch, "epochs are committed in their order");
            self.backend.apply(epoch, overlay.changes);
        }
    }

    /// Takes everything back that is not committed.
    pub fn abort(&mut self) {
        self.sealed.clear();
        self.open = Overlay::default();
    }

    /// Visits the entries of all sealed layers over the backend, from a place on: the state before the open epoch.
    pub fn scan_sealed(&self, from: &EntryKey, visit: &mut EntryVisit<'_>) {
        let layers = self.sealed.iter().map(|(_, layer)| &layer.changes);
        merged(
            &*self.backend,
            &layers.collect::<Vec<_>>(),
            from,
            None,
            visit,
        );
    }

    fn layers(&self) -> Vec<&BTreeMap<EntryKey, Option<Bytes>>> {
        let sealed = self.sealed.iter().map(|(_, layer)| &layer.changes);
        let all = sealed.chain(std::iter::once(&self.open.changes));
        all.filter(|layer| !layer.is_empty()).collect()
    }
}

/// Visits entries in their order; a later layer hides those under it.
fn merged(
    backend: &dyn StateBackend,
    layers: &[&BTreeMap<EntryKey, Option<Bytes>>],
    from: &EntryKey,
    to: Option<&EntryKey>,
    visit: &mut EntryVisit<'_>,
) {
    // The layers side by side, so that a scan that stops early has looked at no more than it needs.
    let mut layers: Vec<_> = layers
        .iter()
        .map(|layer| layer.range(from.clone()..).peekable())
        .collect();
    let mut changes = std::iter::from_fn(move || {
        let heads = layers
            .iter_mut()
            .filter_map(|layer| layer.peek().map(|(key, _)| *key));
        let first = heads.min().filter(|key| to.is_none_or(|to| *key < to))?;
        let mut newest = None;
        for layer in &mut layers {
            if let Some((_, value)) = layer.next_if(|(key, _)| *key == first) {
                newest = value.as_ref();
            }
        }
        Some((first, newest))
    })
    .peekable();
    let mut stopped = false;
    backend.scan(from, to, &mut |key, value| {
        while let Some((changed, new)) = changes.next_if(|(changed, _)| *changed < key) {
            if let Some(new) = new
                && visit(changed, new).is_break()
            {
                stopped = true;
                return ControlFlow::Break(());
            }
        }
        let flow = match changes.next_if(|(changed, _)| *changed == key) {
            Some((_, Some(new))) => visit(key, new),
            Some((_, None)) => ControlFlow::Continue(()),
            None => visit(key, value),
        };
        stopped |= flow.is_break();
        flow
    });
    if stopped {
        return;
    }
    for (key, value) in changes {
        if let Some(value) = value
            && visit(key, value).is_break()
        {
            return;
        }
    }
}

impl TaskState for LayeredState {
    fn get(&self, table: TableId, key: &[u8]) -> Option<Bytes> {
        let is_layered = !self.open.is_empty() || !self.sealed.is_empty();
        if is_layered {
            let at = EntryAt::new(table, key);
            let place: &dyn AsPlace = &at;
            let sealed = self.sealed.iter().rev().map(|(_, layer)| layer);
            for layer in std::iter::once(&self.open).chain(sealed) {
                if let Some(found) = layer.changes.get(place) {
                    return found.clone();
                }
            }
        }
        self.backend.get(table, key)
    }

    fn put(&mut self, table: TableId, key: &[u8], value: Bytes) {
        self.open.set(EntryAt::new(table, key), Some(value));
    }

    fn delete(&mut self, table: TableId, key: &[u8]) {
        self.open.set(EntryAt::new(table, key), None);
    }

    fn rows(&self, table: TableId, start: &[u8], visit: &mut RowVisit<'_>) {
        let from = EntryAt::new(table, start).to_key();
        self.visit(&from, &mut |key, value| {
            let is_one =
                key.table == table && key.hash() == from.hash() && key.key.starts_with(start);
            match is_one {
                true => visit(&key.key, value),
                false => ControlFlow::Break(()),
            }
        });
    }

    fn rows_behind(&self, table: TableId, key: Option<&[u8]>, visit: &mut RowVisit<'_>) {
        let from = match key {
            Some(key) => EntryAt::new(table, key).to_key(),
            None => EntryKey::first_of(table),
        };
        self.visit(&from, &mut |found, value| {
            if found.table != table {
                return ControlFlow::Break(());
            }
            match key.is_some_and(|key| found.key[..] == *key) {
                true => ControlFlow::Continue(()),
                false => visit(&found.key, value),
            }
        });
    }

    fn rows_of_hash(&self, table: TableId, hash: u32, visit: &mut RowVisit<'_>) {
        let (hash, key) = (hash, &[][..]);
        let from = EntryAt { table, hash, key }.to_key();
        self.visit(
            &from,
            &mut |found, value| match found.table == table && found.hash() == hash {
                true => visit(&found.key, value),
                false => ControlFlow::Break(()),
            },
        );
    }
}

impl LayeredState {
    /// Visits the entries of all layers from a place on.
    fn visit(&self, from: &EntryKey, visit: &mut EntryVisit<'_>) {
        merged(&*self.backend, &self.layers(), from, None, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::backend::MapBackend;
    use super::*;
    use tidegate_core::env::{Entropy, Stream};

    const TABLE: TableId = TableId(3);

    fn found(state: &LayeredState) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        state.rows_behind(TABLE, None, &mut |key, value| {
            all.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        });
        all.sort();
        all
    }

    /// R03: random writes, seals, commits and aborts, beside maps that are copied whole.
    #[test]
    fn r03_layers_are_those_of_maps_that_are_copied_whole() {
        for seed in 0..200 {
            let mut draws = Stream::new(seed);
            let draws: &mut dyn Entropy = &mut draws;
            let mut state = LayeredState::new(Box::new(MapBackend::default()));
            let mut open: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            let mut committed = open.clone();
            let mut on_way: VecDeque<BTreeMap<Vec<u8>, Vec<u8>>> = VecDeque::new();
            let mut next = 1;
            let mut first = 1;
            for _ in 0..120 {
                let key = vec![u8::try_from(draws.below(12)).unwrap()];
                match draws.below(12) {
                    0..6 => {
                        let value = vec![u8::try_from(draws.below(250)).unwrap()];
                        state.put(TABLE, &key, Bytes::from(value.clone()));
                        state.put(TableId(4), &key, Bytes::from_static(b"other"));
                        open.insert(key, value);
                    }
                    6..9 => {
                        state.delete(TABLE, &key);
                        open.remove(&key);
                    }
                    9 => {
                        state.seal(next);
                        next += 1;
                        on_way.push_back(open.clone());
                    }
                    10 if !on_way.is_empty() => {
                        state.committed(first);
                        first += 1;
                        committed = on_way.pop_front().unwrap();
                    }
                    _ => {
                        state.abort();
                        on_way.clear();
                        next = first;
                        open = committed.clone();
                    }
                }
                let expected: Vec<_> = open.clone().into_iter().collect();
                assert_eq!(found(&state), expected, "seed {seed}");
                for key in 0..12_u8 {
                    let value = state.get(TABLE, &[key]).map(|value| value.to_vec());
                    assert_eq!(value, open.get(&vec![key]).cloned(), "seed {seed}");
                }
            }
        }
    }
}
