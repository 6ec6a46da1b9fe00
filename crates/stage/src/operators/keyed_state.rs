//! Declared state: one value, a list or a map per key, with a time to live.
//!
//! The main table of a state has one row per key: its form, the time that its life counts from, and a plain value.
//! The elements of a list or map are rows of their own in the second table, under the key and a generation. A value
//! that begins anew has a new generation, so what is left of the old one is never read; it is removed in batches.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "every value that is neither a list nor a map is plain"
)]

use std::cell::RefMut;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::Failure;
use tidegate_flow::apply::{RecordView, state_key, state_plan, unset};
use tidegate_flow::expression::EvaluationFailure;
use tidegate_flow::plan::StatePlan;
use tidegate_flow::value::{FlowValue, MapKey, ValueMap};

use super::{CHAIN, ChainPlan, StateTables, damaged};
use crate::task_state::codec::{
    Reader, Writer, key_bytes, numbered, push_map_key, read_map_key, split_key,
};
use crate::task_state::journal::{StateJournal, rows, rows_behind};
use crate::task_state::{TableId, TaskState};

type Value = FlowValue<'static>;

/// The elements of a key: none, those of a list, or those of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    List,
    Map,
}

/// The main row of a key.
#[derive(Debug, Clone)]
struct Head {
    form: Form,
    /// The time that its life counts from.
    stamp: i64,
    /// Of its elements.
    generation: u64,
    /// Elements of a list; the number of the next one of a map.
    count: u64,
    plain: Option<Value>,
}

impl Head {
    fn read(table: TableId, bytes: &[u8]) -> Result<Self, Failure> {
        let mut reader = Reader(bytes);
        let mut read = || {
            let form = match reader.byte()? {
                0 => Form::Plain,
                1 => Form::List,
                2 => Form::Map,
                _ => return None,
            };
            let stamp = reader.signed()?;
            let is_plain = form == Form::Plain;
            Some(Self {
                form,
                stamp,
                generation: if is_plain { 0 } else { reader.number()? },
                count: if is_plain { 0 } else { reader.number()? },
                plain: if is_plain {
                    Some(reader.value()?)
                } else {
                    None
                },
            })
        };
        read().ok_or_else(|| damaged(table))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let form = match self.form {
            Form::Plain => 0,
            Form::List => 1,
            Form::Map => 2,
        };
        writer.byte(form).signed(self.stamp);
        match &self.plain {
            Some(value) => writer.value(value),
            None => writer.number(self.generation).number(self.count),
        };
        writer.0
    }

    fn is_expired(&self, plan: &StatePlan, time: i64) -> bool {
        let ttl = plan.ttl.as_ref();
        ttl.is_some_and(|ttl| time >= self.stamp.saturating_add(super::moving::ms(ttl.after_ms)))
    }
}

fn lives_since(plan: &StatePlan) -> &str {
    plan.ttl.as_ref().map_or("", |ttl| ttl.since.as_str())
}

/// The declared states of a task, while a record or timer is worked on.
#[derive(Debug)]
pub(super) struct StateWork<'w, 's> {
    pub(super) fixed: &'w ChainPlan,
    pub(super) journal: &'w mut StateJournal<'s>,
    pub(super) numbers: &'w mut u64,
    pub(super) now: i64,
}

/// One key of one state.
#[derive(Debug, Clone)]
pub(super) struct StatePlace<'w> {
    plan: &'w StatePlan,
    tables: StateTables,
    row: Vec<u8>,
    time: i64,
}

impl<'w> StateWork<'w, '_> {
    /// The place of a declared state for a record.
    pub(super) fn place(
        &self,
        name: &str,
        view: RecordView<'_>,
    ) -> Result<StatePlace<'w>, Box<EvaluationFailure>> {
        let plan = state_plan(&self.fixed.process, name);
        let found = plan.and_then(|plan| Some((plan, self.fixed.tables.get(&plan.id)?)));
        let Some((plan, tables)) = found else {
            let message = format!("there is no state `{name}`");
            return Err(EvaluationFailure::new("expr.missing", message));
        };
        let key = state_key(plan, view);
        let is_event_time = plan.ttl.as_ref().is_some_and(|ttl| ttl.is_event_time);
        Ok(StatePlace {
            plan,
            tables: *tables,
            row: key_bytes(&key),
            time: if is_event_time { view.time } else { self.now },
        })
    }

    fn next_number(&mut self) -> u64 {
        *self.numbers += 1;
        *self.numbers
    }

    /// The head of a key that has not expired; an expired one is removed.
    fn head(&mut self, place: &StatePlace<'_>) -> Result<Option<Head>, Failure> {
        let Some(bytes) = self.journal.get(place.tables.main, &place.row) else {
            return Ok(None);
        };
        let head = Head::read(place.tables.main, &bytes)?;
        if !head.is_expired(place.plan, place.time) {
            return Ok(Some(head));
        }
        self.journal.take(place.tables.main, &place.row);
        self.forget_elements(place, &head);
        Ok(None)
    }

    fn save(&mut self, place: &StatePlace<'_>, head: &Head) {
        self.journal
            .put(place.tables.main, &place.row, head.to_bytes());
    }

    /// Leaves the elements of a generation to be removed later.
    fn forget_elements(&mut self, place: &StatePlace<'_>, head: &Head) {
        if head.form != Form::Plain {
            let key = garbage_key(place.tables.elements, &place.row, head.generation);
            self.journal.put(CHAIN, &key, Vec::new());
        }
    }

    /// Reads a value. A sliding life begins again.
    pub(super) fn read(&mut self, place: &StatePlace<'_>) -> Result<Value, Failure> {
        let Some(mut head) = self.head(place)? else {
            return Ok(unset(place.plan));
        };
        if lives_since(place.plan) == "access" && head.stamp < place.time {
            head.stamp = place.time;
            self.save(place, &head);
        }
        let elements = |work: &Self| work.elements(place, &head);
        Ok(match head.form {
            Form::Plain => head.plain.unwrap_or(FlowValue::Null),
            Form::List => FlowValue::list(elements(self)?.into_iter().map(|e| e.value).collect()),
            Form::Map => {
                let mut entries = elements(self)?;
                entries.sort_by_key(|entry| entry.order);
                let entries = entries.into_iter();
                let pairs = entries.filter_map(|entry| Some((entry.key?, entry.value)));
                FlowValue::Map(Arc::new(pairs.collect::<ValueMap<'static>>()))
            }
        })
    }

    fn elements(&self, place: &StatePlace<'_>, head: &Head) -> Result<Vec<Element>, Failure> {
        let prefix = numbered(place.row.clone(), head.generation);
        let table = place.tables.elements;
        let found = self.journal.rows(table, &prefix, usize::MAX).into_iter();
        let read = found.map(|(row, bytes)| {
            let element = Element::read(head.form, &row[prefix.len()..], &bytes);
            element.ok_or_else(|| damaged(table))
        });
        read.collect()
    }

    /// The head that a write gives to a key, and whether it is new.
    fn begun(&mut self, place: &StatePlace<'_>, form: Form) -> Result<(Head, bool), Failure> {
        if let Some(mut head) = self.head(place)? {
            if lives_since(place.plan) != "creation" {
                head.stamp = place.time.max(head.stamp);
            }
            if head.form == form {
                return Ok((head, false));
            }
            self.forget_elements(place, &head);
            head.form = form;
            head.plain = None;
            head.count = 0;
            head.generation = self.next_number();
            return Ok((head, true));
        }
        let generation = if form == Form::Plain {
            0
        } else {
            self.next_number()
        };
        let head = Head {
            form,
            stamp: place.time,
            generation,
            count: 0,
            plain: None,
        };
        Ok((head, true))
    }

    /// Writes a whole value; of a list or map, only what is different.
    pub(super) fn write(&mut self, place: &StatePlace<'_>, value: Value) -> Result<(), Failure> {
        match value {
            FlowValue::List(values) => {
                let (mut head, _) = self.begun(place, Form::List)?;
                let before = self.elements(place, &head)?;
                for (at, value) in values.iter().enumerate() {
                    let is_kept = before.get(at).is_some_and(|old| is_same(&old.value, value));
                    if !is_kept {
                        self.put_element(place, &head, at as u64, value);
                    }
                }
                for at in values.len()..before.len() {
                    let row = element_row(place, &head, &(at as u64).to_be_bytes());
                    self.journal.take(place.tables.elements, &row);
                }
                head.count = values.len() as u64;
                self.save(place, &head);
            }
            FlowValue::Map(entries) => {
                let (mut head, _) = self.begun(place, Form::Map)?;
                let mut before = BTreeMap::new();
                for element in self.elements(place, &head)? {
                    if let Some(key) = element.key {
                        before.insert(entry_key(&key), (element.order, element.value));
                    }
                }
                let mut last = None;
                for (key, value) in entries.iter() {
                    let stored = before.remove(&entry_key(key));
                    // The order of the entries stays that of the value.
                    let order = stored.as_ref().map(|(order, _)| *order);
                    let kept = order.filter(|order| last.is_none_or(|last| *order > last));
                    let order = kept.unwrap_or_else(|| {
                        head.count += 1;
                        head.count
                    });
                    last = Some(order);
                    let is_kept =
                        kept.is_some() && stored.is_some_and(|(_, stored)| is_same(&stored, value));
                    if !is_kept {
                        self.put_entry(place, &head, key, order, value);
                    }
                }
                for key in before.into_keys() {
                    let row = element_row(place, &head, &key);
                    self.journal.take(place.tables.elements, &row);
                }
                self.save(place, &head);
            }
            plain => {
                let (mut head, _) = self.begun(place, Form::Plain)?;
                head.plain = Some(plain);
                self.save(place, &head);
            }
        }
        Ok(())
    }

    /// Sets one entry of a map, and writes nothing else of it but its head.
    pub(super) fn put(
        &mut self,
        place: &StatePlace<'_>,
        key: &MapKey<'_>,
        value: &FlowValue<'_>,
    ) -> Result<(), Failure> {
        let (mut head, _) = self.begun(place, Form::Map)?;
        let row = element_row(place, &head, &entry_key(key));
        let stored = self.journal.get(place.tables.elements, &row);
        let order = stored.and_then(|bytes| Reader(&bytes).number());
        let order = order.unwrap_or_else(|| {
            head.count += 1;
            head.count
        });
        self.put_entry(place, &head, key, order, value);
        self.save(place, &head);
        Ok(())
    }

    /// Adds one element to a list, and writes nothing else of it but its head.
    pub(super) fn append(
        &mut self,
        place: &StatePlace<'_>,
        value: &FlowValue<'_>,
    ) -> Result<(), Failure> {
        let (mut head, _) = self.begun(place, Form::List)?;
        self.put_element(place, &head, head.count, value);
        head.count += 1;
        self.save(place, &head);
        Ok(())
    }

    /// One entry of a map; none where there is none. A sliding life begins again.
    pub(super) fn entry(
        &mut self,
        place: &StatePlace<'_>,
        key: &MapKey<'_>,
    ) -> Result<Option<Value>, Failure> {
        let Some(mut head) = self.head(place)?.filter(|head| head.form == Form::Map) else {
            return Ok(None);
        };
        if lives_since(place.plan) == "access" && head.stamp < place.time {
            head.stamp = place.time;
            self.save(place, &head);
        }
        let table = place.tables.elements;
        let bytes = self
            .journal
            .get(table, &element_row(place, &head, &entry_key(key)));
        let read = bytes.map(|bytes| {
            let mut reader = Reader(&bytes);
            let value = reader.number().and_then(|_| reader.value());
            value.ok_or_else(|| damaged(table))
        });
        read.transpose()
    }

    /// Removes one entry of a map.
    pub(super) fn remove(
        &mut self,
        place: &StatePlace<'_>,
        key: &MapKey<'_>,
    ) -> Result<(), Failure> {
        if let Some(head) = self.head(place)?.filter(|head| head.form == Form::Map) {
            let row = element_row(place, &head, &entry_key(key));
            self.journal.take(place.tables.elements, &row);
        }
        Ok(())
    }

    /// Forgets the value of a key.
    pub(super) fn clear(&mut self, place: &StatePlace<'_>) -> Result<(), Failure> {
        if let Some(head) = self.head(place)? {
            self.journal.take(place.tables.main, &place.row);
            self.forget_elements(place, &head);
        }
        Ok(())
    }

    fn put_element(&mut self, place: &StatePlace<'_>, head: &Head, at: u64, of: &FlowValue<'_>) {
        let mut writer = Writer::default();
        writer.value(of);
        let row = element_row(place, head, &at.to_be_bytes());
        self.journal.put(place.tables.elements, &row, writer.0);
    }

    fn put_entry(
        &mut self,
        place: &StatePlace<'_>,
        head: &Head,
        key: &MapKey<'_>,
        order: u64,
        value: &FlowValue<'_>,
    ) {
        let mut writer = Writer::default();
        writer.number(order).value(value);
        let row = element_row(place, head, &entry_key(key));
        self.journal.put(place.tables.elements, &row, writer.0);
    }
}

/// A row of the second table.
struct Element {
    key: Option<MapKey<'static>>,
    /// Where it stands among the entries of a map.
    order: u64,
    value: Value,
}

impl Element {
    fn read(form: Form, rest: &[u8], bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let is_map = form == Form::Map;
        Some(Self {
            key: if is_map {
                Some(read_map_key(rest)?)
            } else {
                None
            },
            order: if is_map { reader.number()? } else { 0 },
            value: reader.value()?,
        })
    }
}

fn entry_key(key: &MapKey<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_map_key(&mut bytes, key);
    bytes
}

fn element_row(place: &StatePlace<'_>, head: &Head, rest: &[u8]) -> Vec<u8> {
    let mut row = numbered(place.row.clone(), head.generation);
    row.extend_from_slice(rest);
    row
}

/// Whether two values have the same bytes; equal numbers of two types have not.
fn is_same(a: &FlowValue<'_>, b: &FlowValue<'_>) -> bool {
    let bytes = |value: &FlowValue<'_>| {
        let mut writer = Writer::default();
        writer.value(value);
        writer.0
    };
    bytes(a) == bytes(b)
}

/// The row that says that the elements of a generation are to be removed.
fn garbage_key(table: TableId, row: &[u8], generation: u64) -> Vec<u8> {
    let mut key = vec![b'g'];
    key.extend_from_slice(&table.0.to_be_bytes());
    key.extend_from_slice(row);
    numbered(key, generation)
}

/// Removes elements that nothing refers to, at most so many. Says how many there were.
pub(super) fn remove_garbage(state: &mut dyn TaskState, limit: usize) -> usize {
    let mut left = limit;
    for (key, _) in rows(state, CHAIN, b"g", 16) {
        let Some(table) = key.get(1..3).and_then(|two| two.try_into().ok()) else {
            continue;
        };
        let table = TableId(u16::from_be_bytes(table));
        let found = rows(state, table, &key[3..], left);
        for (row, _) in &found {
            state.delete(table, row);
        }
        left -= found.len();
        if left == 0 {
            return limit;
        }
        state.delete(CHAIN, &key);
    }
    limit - left
}

/// Removes the values of a state that have expired, looking at so many rows behind a key.
///
/// The answer is the key to go on behind; none at the end of the table.
pub(super) fn remove_expired(
    state: &mut dyn TaskState,
    (plan, tables): (&StatePlan, StateTables),
    behind: Option<&[u8]>,
    time: i64,
    limit: usize,
) -> Result<Option<Vec<u8>>, Failure> {
    let found = rows_behind(state, tables.main, behind, limit);
    for (row, bytes) in &found {
        let head = Head::read(tables.main, bytes)?;
        if head.is_expired(plan, time) {
            state.delete(tables.main, row);
            if head.form != Form::Plain {
                let key = garbage_key(tables.elements, row, head.generation);
                state.put(CHAIN, &key, Bytes::new());
            }
        }
    }
    let is_full = found.len() == limit;
    let next = found.into_iter().next_back().filter(|_| is_full);
    Ok(next.map(|(row, _)| row))
}

/// The live values of a state by key.
pub(super) fn shown(
    state: &dyn TaskState,
    (plan, tables): (&StatePlan, StateTables),
    time: i64,
) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for (row, bytes) in rows_behind(state, tables.main, None, usize::MAX) {
        let Ok(head) = Head::read(tables.main, &bytes) else {
            continue;
        };
        let Some((key, _)) = split_key(&row).filter(|_| !head.is_expired(plan, time)) else {
            continue;
        };
        let prefix = numbered(row, head.generation);
        let elements = rows(state, tables.elements, &prefix, usize::MAX).into_iter();
        let read =
            |(row, bytes): (Vec<u8>, Bytes)| Element::read(head.form, &row[prefix.len()..], &bytes);
        let mut elements: Vec<Element> = elements.filter_map(read).collect();
        let value = match head.form {
            Form::Plain => head.plain.unwrap_or(FlowValue::Null),
            Form::List => FlowValue::list(elements.into_iter().map(|e| e.value).collect()),
            Form::Map => {
                elements.sort_by_key(|entry| entry.order);
                let entries = elements.into_iter();
                let pairs = entries.filter_map(|entry| Some((entry.key?, entry.value)));
                FlowValue::Map(Arc::new(pairs.collect::<ValueMap<'static>>()))
            }
        };
        values.insert(key, value.to_json().unwrap_or_default());
    }
    values
}

/// The declared states of a process for one record, for transforms in Rust.
///
/// Names are those of `local` and `uses`; the key is that of the record.
#[derive(Debug)]
pub struct KeyedState<'k, 'w, 's> {
    pub(super) work: RefMut<'k, StateWork<'w, 's>>,
    pub(super) view: RecordView<'k>,
}

/// The answer of a call to state.
pub type StateResult<T> = Result<T, Box<EvaluationFailure>>;

fn of_stage(failure: Failure) -> Box<EvaluationFailure> {
    super::evaluation(failure)
}

impl KeyedState<'_, '_, '_> {
    /// The value of a state; a value that was never written, or has expired, is that of its type.
    ///
    /// # Errors
    /// There is no such state, or it cannot be read.
    pub fn value(&mut self, name: &str) -> StateResult<Value> {
        let place = self.work.place(name, self.view)?;
        self.work.read(&place).map_err(of_stage)
    }

    /// Sets the value of a state.
    ///
    /// # Errors
    /// There is no such state, or it cannot be written.
    pub fn set_value(&mut self, name: &str, value: Value) -> StateResult<()> {
        let place = self.work.place(name, self.view)?;
        self.work.write(&place, value).map_err(of_stage)
    }

    /// Forgets the value of a state.
    ///
    /// # Errors
    /// There is no such state, or it cannot be written.
    pub fn clear(&mut self, name: &str) -> StateResult<()> {
        let place = self.work.place(name, self.view)?;
        self.work.clear(&place).map_err(of_stage)
    }

    /// Adds an element to a list.
    ///
    /// # Errors
    /// There is no such state, or it cannot be written.
    pub fn append(&mut self, name: &str, value: &FlowValue<'_>) -> StateResult<()> {
        let place = self.work.place(name, self.view)?;
        self.work.append(&place, value).map_err(of_stage)
    }

    /// The entry of a map; none where there is none.
    ///
    /// # Errors
    /// There is no such state, or it cannot be read.
    pub fn entry(&mut self, name: &str, key: &MapKey<'_>) -> StateResult<Option<Value>> {
        let place = self.work.place(name, self.view)?;
        self.work.entry(&place, key).map_err(of_stage)
    }

    /// Sets an entry of a map.
    ///
    /// # Errors
    /// There is no such state, or it cannot be written.
    pub fn put(&mut self, name: &str, key: &MapKey<'_>, value: &FlowValue<'_>) -> StateResult<()> {
        let place = self.work.place(name, self.view)?;
        self.work.put(&place, key, value).map_err(of_stage)
    }

    /// Removes an entry of a map.
    ///
    /// # Errors
    /// There is no such state, or it cannot be written.
    pub fn remove(&mut self, name: &str, key: &MapKey<'_>) -> StateResult<()> {
        let place = self.work.place(name, self.view)?;
        self.work.remove(&place, key).map_err(of_stage)
    }

    /// Reduces what a state holds and a new value to one, and gives it.
    ///
    /// The reducer gets none for the first value of a key.
    ///
    /// # Errors
    /// There is no such state, it cannot be written, or the reducer failed.
    pub fn reduce(
        &mut self,
        name: &str,
        reducer: impl FnOnce(Option<Value>) -> StateResult<Value>,
    ) -> StateResult<Value> {
        let place = self.work.place(name, self.view)?;
        let is_there = self.work.head(&place).map_err(of_stage)?.is_some();
        let before = self.work.read(&place).map_err(of_stage)?;
        let value = reducer(is_there.then_some(before))?;
        self.work.write(&place, value.clone()).map_err(of_stage)?;
        Ok(value)
    }
}
