//! Records that meet other records: `join`, `await` and `hold`.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "no other step keeps records or has a timer"
)]

use std::sync::Arc;

use tidegate_core::books::Place;
use tidegate_core::{EventId, Failure};
use tidegate_flow::apply::StepRefusal;
use tidegate_flow::plan::{
    CompletePlan, FailureKind, JoinKind, LeavePlan, OperatorPlan, StateKind, StepPlan,
};
use tidegate_flow::value::paths::{by_priority, key_of, key_record, topic_key};
use tidegate_flow::value::{FlowValue, JsonRecord};

use super::moving::{Moving, Stepped, ms};
use super::{Run, damaged};
use crate::planted_bugs::{PlantedStageBug, is};
use crate::task_state::TableId;
use crate::task_state::codec::{Reader, Writer, key_bytes, numbered, split_key};
use crate::timers::{Timer, TimerKind};

/// A record that waits, and the input that it came by.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) row: Vec<u8>,
    pub(super) input: String,
    pub(super) moving: Moving,
}

impl Kept {
    pub(super) fn read(table: TableId, row: Vec<u8>, bytes: &[u8]) -> Result<Self, Failure> {
        let mut reader = Reader(bytes);
        let mut read = || {
            let input = reader.text()?.to_owned();
            Some((input, Moving::read(&mut reader)?))
        };
        let (input, moving) = read().ok_or_else(|| damaged(table))?;
        Ok(Self { row, input, moving })
    }
}

fn kept_bytes(input: &str, moving: &Moving) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.bytes(input.as_bytes());
    moving.write(&mut writer);
    writer.0
}

/// An entry of a hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldHead {
    pub(super) entry: u64,
    pub(super) count: u64,
    /// When its first record came.
    pub(super) since: i64,
}

impl HoldHead {
    fn read(table: TableId, bytes: &[u8]) -> Result<Self, Failure> {
        let mut reader = Reader(bytes);
        let mut read = || {
            Some(Self {
                entry: reader.number()?,
                count: reader.number()?,
                since: reader.signed()?,
            })
        };
        read().ok_or_else(|| damaged(table))
    }
}

/// Key fields at the top, each input of the step as `of_input` has it, and the parts that it stands for.
fn combined(
    step: &StepPlan,
    (paths, key): (&[String], &str),
    parts: &[&Moving],
    of_input: impl Fn(usize, &str) -> String,
) -> Moving {
    let names: Vec<String> = parts.iter().map(|part| part.id.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let id = EventId::derived(&names);
    let mut record = key_record(&parts[0].record, paths);
    for (at, alias) in step.inputs.iter().enumerate() {
        record.set_raw(alias, of_input(at, alias));
    }
    let mut metadata = (*parts[parts.len() - 1].metadata).clone();
    metadata.key = Some(topic_key(key).into_owned());
    metadata.id = id.to_string();
    Moving {
        record,
        metadata: Arc::new(metadata),
        time: parts.iter().map(|part| part.time).max().unwrap_or(0),
        id,
        events: parts.iter().flat_map(|part| part.events.clone()).collect(),
    }
}

/// Two sides under their aliases, one of which may be missing.
fn pair(step: &StepPlan, key: (&[String], &str), sides: [Option<&Moving>; 2]) -> Moving {
    let parts: Vec<&Moving> = sides.into_iter().flatten().collect();
    combined(step, key, &parts, |at, _| {
        let side = sides.get(at).copied().flatten();
        side.map_or_else(|| "null".to_owned(), |side| side.record.to_string())
    })
}

impl Run<'_> {
    /// Keeps a record of a step under its key and a new number until its timer is due.
    fn keep(&mut self, at: usize, key: &str, due: i64, input: &str, moving: &Moving) -> u64 {
        let table = self.fixed.step_tables(at).main;
        let entry = self.next_number();
        let row = numbered(key_bytes(key), entry);
        self.set_timer(at, TimerKind::Due, due, &row);
        self.journal.put(table, &row, kept_bytes(input, moving));
        entry
    }

    pub(super) fn await_trigger(&mut self, at: usize, stream: &str, moving: Moving) -> Stepped {
        let fixed = self.fixed;
        let step = &fixed.process.steps[at];
        let OperatorPlan::Await { on, timeout_ms, .. } = &step.operator else {
            return Ok(());
        };
        let table = fixed.step_tables(at).main;
        let key = key_of(&moving.record, on);
        if step.inputs.first().is_some_and(|first| first == stream) {
            let due = moving.time.saturating_add(ms(*timeout_ms));
            self.keep(at, &key, due, stream, &moving);
            self.results.settle(&moving.events, &Place::Parked);
            self.results.wait(&moving.events, 1);
            return Ok(());
        }
        let oldest = self.journal.rows(table, &key_bytes(&key), 1).pop();
        let Some((row, bytes)) = oldest else {
            let message = format!("no record waits for `{key}`");
            let kind = FailureKind::Correlation;
            return Err(moving.refused(kind, "correlation.unmatched", &message));
        };
        self.journal.take(table, &row);
        let first = Kept::read(table, row, &bytes)?.moving;
        self.results.wait(&first.events, -1);
        let mut both = pair(step, (on, &key), [Some(&first), Some(&moving)]);
        let latency = (moving.time - first.time).to_string();
        both.record.set_raw("correlation_latency", latency);
        self.flow(&step.output, at + 1, both)
    }

    pub(super) fn join(&mut self, at: usize, stream: &str, moving: Moving) -> Stepped {
        let fixed = self.fixed;
        let step = &fixed.process.steps[at];
        let OperatorPlan::Join {
            on,
            within_ms,
            join,
        } = &step.operator
        else {
            return Ok(());
        };
        let (tables, within) = (fixed.step_tables(at), ms(*within_ms));
        let key = key_of(&moving.record, on);
        let mut others = Vec::new();
        for (row, bytes) in self.journal.rows(tables.main, &key_bytes(&key), usize::MAX) {
            let other = Kept::read(tables.main, row, &bytes)?;
            let distance = other.moving.time.abs_diff(moving.time);
            if other.input != stream && distance <= within.unsigned_abs() {
                others.push(other);
            }
        }
        // A mark of its own says that a record has met another one, so that its bytes are written once.
        let is_left = step.inputs.first().is_some_and(|first| first == stream);
        for other in others.iter().filter(|_| may_be_alone(*join, !is_left)) {
            self.journal.put(tables.elements, &other.row, Vec::new());
        }
        // A partner at exactly the distance still counts, so the timer fires after it.
        let due = moving.time.saturating_add(within).saturating_add(1);
        let entry = self.keep(at, &key, due, stream, &moving);
        if !others.is_empty() && may_be_alone(*join, is_left) {
            let row = numbered(key_bytes(&key), entry);
            self.journal.put(tables.elements, &row, Vec::new());
        }
        self.results.settle(&moving.events, &Place::Delivered);
        for other in others {
            let mut sides = [Some(&moving), Some(&other.moving)];
            if !is_left {
                sides.reverse();
            }
            let mut both = pair(step, (on, &key), sides);
            // The record that waited is delivered already; only the newcomer stands for the pair.
            both.events.clone_from(&moving.events);
            self.flow(&step.output, at + 1, both)?;
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, at: usize, stream: &str, moving: Moving) -> Stepped {
        let fixed = self.fixed;
        let step = &fixed.process.steps[at];
        let OperatorPlan::Hold {
            key: paths,
            complete,
            timeout_ms,
            ..
        } = &step.operator
        else {
            return Ok(());
        };
        let tables = fixed.step_tables(at);
        let key = key_of(&moving.record, fixed.step_key(at, stream));
        let row = key_bytes(&key);
        let mut head = match self.journal.get(tables.main, &row) {
            Some(bytes) => HoldHead::read(tables.main, &bytes)?,
            None => {
                let entry = self.next_number();
                let since = moving.time;
                self.set_timer(
                    at,
                    TimerKind::Due,
                    since.saturating_add(ms(*timeout_ms)),
                    &row,
                );
                let count = 0;
                HoldHead {
                    entry,
                    count,
                    since,
                }
            }
        };
        head.count += 1;
        let number = self.next_number();
        let element = numbered(numbered(row.clone(), head.entry), number);
        self.journal
            .put(tables.elements, &element, kept_bytes(stream, &moving));
        let mut writer = Writer::default();
        writer.number(head.entry).number(head.count);
        writer.signed(head.since);
        self.journal.put(tables.main, &row, writer.0);
        let mut sources = fixed.process.sources.iter();
        let source = sources.find(|source| source.alias == stream);
        let input = source.and_then(|source| source.hold.as_ref());
        let whole = match complete {
            CompletePlan::Count(count) if head.count >= *count => {
                let held = self.held(tables.elements, &row, head)?;
                Some(self.whole(step, (paths, &key), &held))
            }
            CompletePlan::Marker if input.is_some_and(|input| input.is_marker) => {
                let held = self.held(tables.elements, &row, head)?;
                Some(self.whole(step, (paths, &key), &held))
            }
            CompletePlan::Rule(rule) => {
                let held = self.held(tables.elements, &row, head)?;
                let whole = self.whole(step, (paths, &key), &held);
                let answer = self.apply(&whole, |apply, view| apply.rule(rule, view, None))?;
                (answer == FlowValue::Boolean(true)).then_some(whole)
            }
            CompletePlan::Count(_)
            | CompletePlan::Marker
            | CompletePlan::Timeout
            | CompletePlan::Never => None,
        };
        self.results.wait(&moving.events, 1);
        let Some(whole) = whole else {
            self.results.settle(&moving.events, &Place::Parked);
            return Ok(());
        };
        self.release(tables.main, tables.elements, &row, head);
        self.results.wait(&whole.events, -1);
        self.flow(&step.output, at + 1, whole)
    }

    /// The records of an entry, in the order of their arrival.
    fn held(&self, table: TableId, row: &[u8], head: HoldHead) -> Result<Vec<Kept>, Failure> {
        let prefix = numbered(row.to_vec(), head.entry);
        let found = self.journal.rows(table, &prefix, usize::MAX).into_iter();
        found
            .map(|(row, bytes)| Kept::read(table, row, &bytes))
            .collect()
    }

    fn release(&mut self, main: TableId, elements: TableId, row: &[u8], head: HoldHead) {
        self.journal.take(main, row);
        let prefix = numbered(row.to_vec(), head.entry);
        for (row, _) in self.journal.rows(elements, &prefix, usize::MAX) {
            self.journal.take(elements, &row);
        }
    }

    /// Key fields, each input as a list in the order of the buffer, and the count.
    fn whole(&self, step: &StepPlan, key: (&[String], &str), held: &[Kept]) -> Moving {
        let mut states = self.fixed.process.state.iter();
        let state = states.find(|state| Some(&state.id) == step.state.as_ref());
        let order = match state.map(|state| &state.kind) {
            Some(StateKind::Hold(Some(order))) => order.as_str(),
            _ => "fifo",
        };
        let parts: Vec<&Moving> = held.iter().map(|kept| &kept.moving).collect();
        let mut whole = combined(step, key, &parts, |_, alias| {
            let of_input = held.iter().filter(|kept| kept.input == alias);
            let mut records: Vec<_> = of_input.map(|kept| &kept.moving.record).collect();
            match order.split_once(" by ") {
                Some((_, path)) => by_priority(&mut records, path),
                None if order == "lifo" => records.reverse(),
                None => {}
            }
            let texts: Vec<String> = records.into_iter().map(JsonRecord::to_string).collect();
            format!("[{}]", texts.join(","))
        });
        whole.record.set_raw("count", held.len().to_string());
        whole
    }

    /// A timer fires: its entry leaves, goes on or is forgotten.
    pub(super) fn fired(&mut self, due: i64, timer: &Timer) -> Stepped {
        let (fixed, at) = (self.fixed, timer.step);
        let step = &fixed.process.steps[at];
        let tables = fixed.step_tables(at);
        match &step.operator {
            OperatorPlan::Deduplicate { window_ms, .. } => {
                Ok(self.forget(timer, due, ms(*window_ms))?)
            }
            OperatorPlan::Window { .. } => self.window_timer(at, timer),
            OperatorPlan::Await {
                on,
                timeout_ms,
                on_timeout,
            } => {
                let found = match is(PlantedStageBug::TimerFiredTwice) {
                    true => self.journal.get(tables.main, &timer.row),
                    false => self.journal.take(tables.main, &timer.row),
                };
                let Some(bytes) = found else {
                    return Ok(());
                };
                let first = Kept::read(tables.main, timer.row.clone(), &bytes)?;
                let moving = &first.moving;
                self.results.wait(&moving.events, -1);
                self.taken_out();
                self.may_leave(moving)?;
                let mut record = key_record(&moving.record, on);
                record.set_raw(&first.input, moving.record.to_string());
                record.set_raw("reason", "\"timeout\"");
                record.set_raw("waited_duration", timeout_ms.to_string());
                self.time_out(on_timeout, "await", &moving.with(record))
            }
            OperatorPlan::Hold {
                key, on_timeout, ..
            } => {
                let Some(bytes) = self.journal.get(tables.main, &timer.row) else {
                    return Ok(());
                };
                let head = HoldHead::read(tables.main, &bytes)?;
                if head.entry != timer.entry {
                    return Ok(());
                }
                let held = self.held(tables.elements, &timer.row, head)?;
                let (text, _) = split_key(&timer.row).ok_or_else(|| damaged(tables.main))?;
                let mut whole = self.whole(step, (key, &text), &held);
                self.release(tables.main, tables.elements, &timer.row, head);
                self.results.wait(&whole.events, -1);
                self.taken_out();
                self.may_leave(&whole)?;
                whole.record.set_raw("reason", "\"timeout\"");
                match on_timeout {
                    Some(leave) => self.time_out(leave, "hold", &whole),
                    None => self.flow(&step.output, at + 1, whole),
                }
            }
            OperatorPlan::Join { on, join, .. } => {
                let Some(bytes) = self.journal.take(tables.main, &timer.row) else {
                    return Ok(());
                };
                let is_paired = self.journal.take(tables.elements, &timer.row).is_some();
                let lone = Kept::read(tables.main, timer.row.clone(), &bytes)?;
                let is_left = step.inputs.first() == Some(&lone.input);
                if is_paired || !may_be_alone(*join, is_left) {
                    return Ok(());
                }
                self.taken_out();
                let mut sides = [Some(&lone.moving), None];
                if !is_left {
                    sides.reverse();
                }
                let (text, _) = split_key(&timer.row).ok_or_else(|| damaged(tables.main))?;
                let mut lone = pair(step, (on, &text), sides);
                lone.events.clear();
                self.may_leave(&lone)?;
                self.flow(&step.output, at + 1, lone)
            }
            _ => Ok(()),
        }
    }

    fn time_out(&mut self, leave: &LeavePlan, by: &str, moving: &Moving) -> Stepped {
        let message = "nothing came in time";
        let refusal = StepRefusal::new(FailureKind::Correlation, "correlation.timeout", message);
        self.leave(leave, moving, &refusal, by)
    }
}

const fn may_be_alone(join: JoinKind, is_left: bool) -> bool {
    match join {
        JoinKind::Inner => false,
        JoinKind::Left => is_left,
        JoinKind::Right => !is_left,
        JoinKind::Outer => true,
    }
}
