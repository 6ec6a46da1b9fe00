//! Everything that is kept between records.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tidegate_core::EventId;

use super::window::OpenWindow;
use super::{Moving, ms};
use crate::apply::unset;
use crate::expression::RecordMetadata;
use crate::plan::StatePlan;
use crate::value::FlowValue;
use crate::value::paths::topic_key;

/// Something that happens later to an entry of a step.
#[derive(Debug, Clone)]
pub(super) struct ModelTimer {
    /// The step by its index.
    pub(super) step: usize,
    pub(super) key: String,
    pub(super) entry: u64,
    /// Whether a window takes no more corrections; its timer before that is the one of its end.
    pub(super) is_gone: bool,
}

/// A record of an input.
#[derive(Debug, Clone)]
pub(super) struct ModelRecord {
    /// The input by its index.
    pub(super) source: usize,
    pub(super) value: Vec<u8>,
    pub(super) metadata: RecordMetadata,
    pub(super) id: EventId,
}

/// Something that is done again as a whole if it fails for a while.
#[derive(Debug, Clone)]
pub(super) enum ModelWork {
    Record(ModelRecord),
    Timer(ModelTimer),
}

/// The progress of an input.
#[derive(Debug, Clone, Default)]
pub(super) struct InputProgress {
    /// The newest event time.
    pub(super) newest: Option<i64>,
    /// When its last record came.
    pub(super) last_seen: i64,
}

/// A record that waits in a join, an await or a hold.
#[derive(Debug, Clone)]
pub(super) struct KeptRecord {
    /// Records of one hold have one entry.
    pub(super) entry: u64,
    /// The stream that it came by.
    pub(super) input: String,
    pub(super) is_paired: bool,
    pub(super) moving: Moving,
}

/// Entries by step and key.
type ByKey<T> = BTreeMap<(usize, String), T>;

/// Everything that a process remembers.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    inputs: BTreeMap<String, InputProgress>,
    /// The event time that all inputs have passed.
    pub(super) watermark: i64,
    pub(super) state: RefCell<StateValues>,
    /// When the first record of a key was seen.
    pub(super) seen: ByKey<i64>,
    pub(super) kept: ByKey<Vec<KeptRecord>>,
    pub(super) windows: ByKey<Vec<OpenWindow>>,
    timers: BTreeMap<(i64, u64), ModelTimer>,
    /// Work that waits for another attempt, by its due time on the clock, with the attempts that failed.
    retries: BTreeMap<(i64, u64), (u32, ModelWork)>,
    numbers: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            inputs: BTreeMap::new(),
            watermark: i64::MIN,
            state: RefCell::default(),
            seen: BTreeMap::new(),
            kept: BTreeMap::new(),
            windows: BTreeMap::new(),
            timers: BTreeMap::new(),
            retries: BTreeMap::new(),
            numbers: 0,
        }
    }
}

impl Memory {
    /// A number that no other entry has.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn set_timer(&mut self, due: i64, timer: ModelTimer) {
        let number = self.number();
        self.timers.insert((due, number), timer);
    }

    /// Keeps a record of a key until its timer is due. Without an entry it has one of its own.
    pub(super) fn keep(&mut self, step: usize, key: &str, due: i64, mut kept: KeptRecord) {
        let key = key.to_owned();
        if kept.entry == 0 {
            kept.entry = self.number();
            let timer = ModelTimer {
                step,
                key: key.clone(),
                entry: kept.entry,
                is_gone: false,
            };
            self.set_timer(due, timer);
        }
        self.kept.entry((step, key)).or_default().push(kept);
    }

    /// Forgets everything since, but not how far the inputs are.
    pub(super) fn go_back(&mut self, before: Self) {
        let inputs = std::mem::take(&mut self.inputs);
        *self = Self { inputs, ..before };
    }

    /// Does something again at a time of the clock.
    pub(super) fn retry_at(&mut self, due: i64, failed: u32, work: ModelWork) {
        let number = self.number();
        self.retries.insert((due, number), (failed, work));
    }

    pub(super) fn next_retry(&self) -> Option<i64> {
        self.retries.keys().next().map(|(due, _)| *due)
    }

    pub(super) fn pop_retry(&mut self, now: i64) -> Option<(u32, ModelWork)> {
        self.next_retry().filter(|due| *due <= now)?;
        self.retries.pop_first().map(|(_, retry)| retry)
    }

    pub(super) fn next_due(&self) -> Option<i64> {
        self.timers.keys().next().map(|(due, _)| *due)
    }

    pub(super) fn pop_due(&mut self, until: i64) -> Option<ModelTimer> {
        self.next_due().filter(|due| *due <= until)?;
        self.timers.pop_first().map(|(_, timer)| timer)
    }

    pub(super) fn input(&mut self, alias: &str) -> &mut InputProgress {
        self.inputs.entry(alias.to_owned()).or_default()
    }

    /// The newest time that all inputs have reached. A silent one stops holding back the others.
    pub(super) fn newest(&self, now: i64, idle: i64) -> i64 {
        let is_active = |input: &&InputProgress| now - input.last_seen < idle;
        let active = self.inputs.values().filter(is_active);
        let slowest = active.map(|input| input.newest.unwrap_or(i64::MIN)).min();
        let fastest = || self.inputs.values().filter_map(|input| input.newest).max();
        slowest.or_else(fastest).unwrap_or(i64::MIN)
    }
}

/// A value of a declared state.
#[derive(Debug, Clone)]
struct StateValue {
    value: FlowValue<'static>,
    created: i64,
    written: i64,
    touched: i64,
}

/// The values of all declared states, by id and key.
#[derive(Debug, Clone, Default)]
pub(super) struct StateValues(BTreeMap<(String, String), StateValue>);

impl StateValue {
    fn is_expired(&self, plan: &StatePlan, time: i64) -> bool {
        plan.ttl.as_ref().is_some_and(|ttl| {
            let since = match ttl.since.as_str() {
                "creation" => self.created,
                "access" => self.touched,
                _ => self.written,
            };
            time >= since.saturating_add(ms(ttl.after_ms))
        })
    }
}

/// The time that a state lives by.
pub(super) fn state_time(plan: &StatePlan, now: i64, event_time: i64) -> i64 {
    let is_event_time = plan.ttl.as_ref().is_some_and(|ttl| ttl.is_event_time);
    if is_event_time { event_time } else { now }
}

impl StateValues {
    /// Reads a value; an expired one is gone.
    pub(super) fn read(&mut self, plan: &StatePlan, key: &str, time: i64) -> FlowValue<'static> {
        let place = (plan.id.clone(), key.to_owned());
        let stored = self.0.get_mut(&place);
        let Some(stored) = stored.filter(|stored| !stored.is_expired(plan, time)) else {
            self.0.remove(&place);
            return unset(plan);
        };
        stored.touched = time.max(stored.touched);
        stored.value.clone()
    }

    /// Writes a value; an expired one is created anew.
    pub(super) fn write(
        &mut self,
        plan: &StatePlan,
        key: &str,
        time: i64,
        value: FlowValue<'static>,
    ) {
        let place = (plan.id.clone(), key.to_owned());
        let stored = self.0.get(&place);
        let stored = stored.filter(|stored| !stored.is_expired(plan, time));
        let written = StateValue {
            value,
            created: stored.map_or(time, |stored| stored.created),
            written: stored.map_or(time, |stored| time.max(stored.written)),
            touched: stored.map_or(time, |stored| time.max(stored.touched)),
        };
        self.0.insert(place, written);
    }

    /// The values that have not expired, as JSON by key.
    pub(super) fn shown(&self, plan: &StatePlan, time: i64) -> BTreeMap<String, String> {
        let of_plan = self.0.iter().filter(|((id, _), _)| *id == plan.id);
        let live = of_plan.filter(|(_, stored)| !stored.is_expired(plan, time));
        let json = |stored: &StateValue| stored.value.to_json().unwrap_or_default();
        live.map(|((_, key), stored)| (topic_key(key).into_owned(), json(stored)))
            .collect()
    }
}
