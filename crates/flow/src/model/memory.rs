//! Everything that is kept between records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Moving;
use super::window::OpenWindow;
use crate::plan::{StateKind, StatePlan, TtlPlan};
use crate::value::FlowValue;

/// Something that happens later: the step by its index, the key, and which entry of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ModelTimer {
    /// A record has waited long enough for its trigger.
    Await {
        step: usize,
        key: String,
        entry: u64,
    },
    /// An entry was held long enough.
    Hold {
        step: usize,
        key: String,
        entry: u64,
    },
    /// A record finds no more partners.
    Join {
        step: usize,
        key: String,
        entry: u64,
    },
    /// A window ends.
    WindowEnd {
        step: usize,
        key: String,
        entry: u64,
    },
    /// A window takes no more corrections.
    WindowGone {
        step: usize,
        key: String,
        entry: u64,
    },
}

/// The progress of an input.
#[derive(Debug, Clone, Default)]
pub(super) struct InputProgress {
    /// The newest event time.
    pub(super) newest: Option<i64>,
    /// When its last record came.
    pub(super) last_seen: i64,
}

/// A record that waits, with its entry number and when it began to wait.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) entry: u64,
    pub(super) moving: Moving,
}

/// Records of one key that are held together.
#[derive(Debug, Clone)]
pub(super) struct HeldEntry {
    pub(super) entry: u64,
    /// The input and the record, in their order of arrival.
    pub(super) records: Vec<(String, Moving)>,
}

/// A record that may still find a pair.
#[derive(Debug, Clone)]
pub(super) struct JoinSide {
    pub(super) entry: u64,
    pub(super) is_left: bool,
    pub(super) is_paired: bool,
    pub(super) moving: Moving,
}

type ByKey<T> = BTreeMap<(usize, String), T>;

/// Everything that a process remembers.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) inputs: BTreeMap<String, InputProgress>,
    pub(super) state: StateValues,
    /// When the first record of a key was seen.
    pub(super) seen: ByKey<i64>,
    pub(super) waiting: ByKey<VecDeque<Waiting>>,
    pub(super) held: ByKey<HeldEntry>,
    pub(super) joins: ByKey<Vec<JoinSide>>,
    pub(super) windows: ByKey<Vec<OpenWindow>>,
    timers: BTreeSet<(i64, u64, ModelTimer)>,
    numbers: u64,
}

impl Memory {
    /// A number that no other entry has.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn set_timer(&mut self, due: i64, timer: ModelTimer) {
        let number = self.number();
        self.timers.insert((due, number, timer));
    }

    pub(super) fn next_due(&self) -> Option<i64> {
        self.timers.first().map(|(due, _, _)| *due)
    }

    pub(super) fn pop_due(&mut self, until: i64) -> Option<(i64, ModelTimer)> {
        self.next_due().filter(|due| *due <= until)?;
        let (due, _, timer) = self.timers.pop_first()?;
        Some((due, timer))
    }

    /// A record of an input came.
    pub(super) fn see(&mut self, alias: &str, time: i64, now: i64) {
        let input = self.inputs.entry(alias.to_owned()).or_default();
        input.newest = Some(input.newest.map_or(time, |newest| newest.max(time)));
        input.last_seen = now;
    }

    /// The newest time that all inputs have reached. A silent one stops holding back the others.
    pub(super) fn newest(&self, now: i64, idle: i64) -> i64 {
        let is_active = |input: &&InputProgress| now - input.last_seen < idle;
        let active = self.inputs.values().filter(is_active);
        let slowest = active.map(|input| input.newest.unwrap_or(i64::MIN)).min();
        let fastest = || self.inputs.values().filter_map(|input| input.newest).max();
        slowest.or_else(fastest).unwrap_or(i64::MIN)
    }

    pub(super) fn pending(&self) -> usize {
        let waiting: usize = self.waiting.values().map(VecDeque::len).sum();
        let held: usize = self.held.values().map(|entry| entry.records.len()).sum();
        waiting + held
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

fn is_expired(value: &StateValue, ttl: Option<&TtlPlan>, time: i64) -> bool {
    ttl.is_some_and(|ttl| {
        let since = match ttl.since.as_str() {
            "creation" => value.created,
            "access" => value.touched,
            _ => value.written,
        };
        let after = i64::try_from(ttl.after_ms).unwrap_or(i64::MAX);
        time >= since.saturating_add(after)
    })
}

/// The value of a state before it was ever written.
fn unset(plan: &StatePlan) -> FlowValue<'static> {
    match &plan.kind {
        StateKind::Local(kind) => match kind.as_str() {
            "counter" => FlowValue::Integer(0),
            "map" => FlowValue::map(Vec::<(&str, FlowValue<'static>)>::new()),
            "list" => FlowValue::list(Vec::new()),
            _ => FlowValue::Null,
        },
        StateKind::Uses
        | StateKind::Await
        | StateKind::Hold(_)
        | StateKind::Join
        | StateKind::Window
        | StateKind::Deduplicate => FlowValue::Null,
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
        match self.0.get_mut(&place) {
            Some(value) if !is_expired(value, plan.ttl.as_ref(), time) => {
                value.touched = time;
                value.value.clone()
            }
            Some(_) | None => {
                self.0.remove(&place);
                unset(plan)
            }
        }
    }

    pub(super) fn write(
        &mut self,
        plan: &StatePlan,
        key: &str,
        time: i64,
        value: FlowValue<'static>,
    ) {
        // An expired value is created anew.
        self.0.retain(|(id, other), stored| {
            *id != plan.id || other != key || !is_expired(stored, plan.ttl.as_ref(), time)
        });
        let place = (plan.id.clone(), key.to_owned());
        let created = self.0.get(&place).map_or(time, |stored| stored.created);
        self.0.insert(
            place,
            StateValue {
                value,
                created,
                written: time,
                touched: time,
            },
        );
    }

    pub(super) fn shown(
        &self,
        plan: &StatePlan,
        now: i64,
        event_time: i64,
    ) -> BTreeMap<String, String> {
        let time = state_time(plan, now, event_time);
        let live = self.0.iter().filter(|((id, _), value)| {
            *id == plan.id && !is_expired(value, plan.ttl.as_ref(), time)
        });
        live.map(|((_, key), value)| (key.clone(), value.value.to_json().unwrap_or_default()))
            .collect()
    }
}
