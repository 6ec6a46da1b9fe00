//! Windows and their aggregates.
//!
//! A window is one row under its key and start. It has the aggregates so far, never its records; only `collect` and
//! a transform over all records keep those, each in a row of its own.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::books::Place;
use tidegate_core::{Code, EventId, Failure, FailureClass};
use tidegate_flow::apply::StepRefusal;
use tidegate_flow::expression::{EvaluationFailure, add, average};
use tidegate_flow::plan::{AggregatePlan, FailureKind, OperatorPlan, WindowShape};
use tidegate_flow::value::paths::{key_of, key_record, topic_key};
use tidegate_flow::value::{FlowValue, JsonRecord};

use super::moving::{Moving, Stepped, ms, timestamp};
use super::results::RecordAsCame;
use super::{Run, damaged};
use crate::task_state::TableId;
use crate::task_state::codec::{
    Reader, Writer, from_ordered, key_bytes, numbered, ordered, split_key,
};
use crate::timers::{Timer, TimerKind};

type Value = FlowValue<'static>;

/// A window of one key.
#[derive(Debug, Clone)]
struct OpenWindow {
    entry: u64,
    start: i64,
    end: i64,
    /// Whether it gave a result for this end.
    has_fired: bool,
    /// The next revision; zero before the window fired.
    revision: u64,
    /// Records that it has seen.
    count: u64,
    aggregates: Vec<Accumulator>,
    /// The numbers under which its records are kept, in the order of their sessions.
    runs: Vec<u64>,
    /// The key fields, and the metadata of the newest record.
    base: Moving,
}

/// An aggregate so far. A failure comes to light when the window gives its result.
#[derive(Debug, Clone, Default)]
struct Accumulator {
    /// Values that are not null.
    present: u64,
    value: Option<Value>,
    failure: Option<(String, String)>,
}

impl Accumulator {
    fn absorb(&mut self, function: &str, value: &Value) {
        let is_present = !matches!(value, FlowValue::Null);
        self.present += u64::from(is_present);
        match function {
            "first" => {
                self.value.get_or_insert_with(|| value.clone());
            }
            "last" => self.value = Some(value.clone()),
            "sum" | "avg" | "min" | "max" if is_present => self.combine(function, value),
            _ => {}
        }
    }

    fn combine(&mut self, function: &str, value: &Value) {
        if self.failure.is_some() {
            return;
        }
        let Some(before) = &self.value else {
            self.value = Some(value.clone());
            return;
        };
        let is_better = |wanted: fn(Ordering) -> bool| {
            let order = value.order(before);
            let order = order.map_err(Box::<EvaluationFailure>::from)?;
            Ok(order.is_some_and(wanted).then(|| value.clone()))
        };
        let next = match function {
            "min" => is_better(Ordering::is_lt),
            "max" => is_better(Ordering::is_gt),
            _ => add(before, value).map(Some),
        };
        match next {
            Ok(Some(next)) => self.value = Some(next),
            Ok(None) => {}
            Err(failure) => self.failure = Some((failure.code.to_string(), failure.message)),
        }
    }

    /// The aggregate of two sessions that became one; `later` came after this one.
    fn merge(&mut self, function: &str, later: Self) {
        self.present += later.present;
        if self.failure.is_none() {
            self.failure = later.failure;
        }
        let Some(value) = later.value else {
            return;
        };
        match function {
            "first" => {
                self.value.get_or_insert(value);
            }
            "last" => self.value = Some(value),
            _ => self.combine(function, &value),
        }
    }

    fn finish(self, function: &str, count: u64) -> Result<Value, Box<EvaluationFailure>> {
        if let Some((code, message)) = self.failure {
            return Err(Box::new(EvaluationFailure {
                class: FailureClass::Permanent,
                code: Code::new(code).unwrap_or(Code::from_static("expr.type")),
                message,
            }));
        }
        let value = self.value.unwrap_or(FlowValue::Null);
        match function {
            "count" => Ok(FlowValue::Integer(ms(count))),
            "avg" if self.present > 0 => {
                average(&value, usize::try_from(self.present).unwrap_or(usize::MAX))
            }
            _ => Ok(value),
        }
    }

    fn write(&self, writer: &mut Writer) {
        writer.number(self.present);
        match (&self.failure, &self.value) {
            (Some((code, message)), _) => {
                writer.byte(2).bytes(code.as_bytes());
                writer.bytes(message.as_bytes());
            }
            (None, Some(value)) => {
                writer.byte(1).value(value);
            }
            (None, None) => {
                writer.byte(0);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut read = Self {
            present: reader.number()?,
            ..Self::default()
        };
        match reader.byte()? {
            0 => {}
            1 => read.value = Some(reader.value()?),
            2 => read.failure = Some((reader.text()?.to_owned(), reader.text()?.to_owned())),
            _ => return None,
        }
        Some(read)
    }
}

impl OpenWindow {
    fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.number(self.entry).signed(self.end);
        writer.byte(u8::from(self.has_fired));
        writer.number(self.revision).number(self.count);
        writer.number(self.aggregates.len() as u64);
        for aggregate in &self.aggregates {
            aggregate.write(&mut writer);
        }
        writer.number(self.runs.len() as u64);
        for run in &self.runs {
            writer.number(*run);
        }
        self.base.write(&mut writer);
        writer.0
    }

    fn read(table: TableId, row: &[u8], bytes: &[u8]) -> Result<Self, Failure> {
        let read = || {
            let mut reader = Reader(bytes);
            let start = from_ordered(row.get(row.len().checked_sub(8)?..)?)?;
            let (entry, end) = (reader.number()?, reader.signed()?);
            let has_fired = reader.byte()? == 1;
            let (revision, count) = (reader.number()?, reader.number()?);
            let mut aggregates = Vec::new();
            for _ in 0..reader.number()? {
                aggregates.push(Accumulator::read(&mut reader)?);
            }
            let mut runs = Vec::new();
            for _ in 0..reader.number()? {
                runs.push(reader.number()?);
            }
            Some(Self {
                entry,
                start,
                end,
                has_fired,
                revision,
                count,
                aggregates,
                runs,
                base: Moving::read(&mut reader)?,
            })
        };
        read().ok_or_else(|| damaged(table))
    }
}

fn window_row(key: &str, start: i64) -> Vec<u8> {
    let mut row = key_bytes(key);
    row.extend_from_slice(&ordered(start));
    row
}

/// The windows that a time belongs to, as start and end.
fn spans(shape: WindowShape, time: i64) -> Vec<(i64, i64)> {
    let (size, every) = match shape {
        WindowShape::Tumbling { size_ms } => (ms(size_ms), ms(size_ms)),
        WindowShape::Sliding { size_ms, every_ms } => (ms(size_ms), ms(every_ms)),
        WindowShape::Session { gap_ms } => return vec![(time, time.saturating_add(ms(gap_ms)))],
    };
    let mut start = time.div_euclid(every).saturating_mul(every);
    let mut spans = Vec::new();
    while start.saturating_add(size) > time {
        spans.push((start, start.saturating_add(size)));
        let Some(before) = start.checked_sub(every) else {
            break;
        };
        start = before;
    }
    spans.reverse();
    spans
}

/// Whether the records of a window are kept beside its aggregates.
fn keeps_records(aggregates: &[AggregatePlan], has_transform: bool) -> bool {
    has_transform || aggregates.iter().any(|one| one.function == "collect")
}

impl Run<'_> {
    pub(super) fn window(&mut self, at: usize, moving: &Moving) -> Stepped {
        let fixed = self.fixed;
        let OperatorPlan::Window {
            shape,
            key: paths,
            lateness_ms,
            late,
            aggregates,
            using,
        } = &fixed.process.steps[at].operator
        else {
            return Ok(());
        };
        let (key, lateness) = (key_of(&moving.record, paths), ms(*lateness_ms));
        let tables = fixed.step_tables(at);
        let progress = self.reached();
        let mut open = spans(*shape, moving.time);
        let is_open = |end: i64| end.saturating_add(lateness) > progress;
        let is_session = matches!(shape, WindowShape::Session { .. });
        // A session that takes the record may be open for longer than the record alone would be.
        let mut is_taken = false;
        if is_session && !open.iter().any(|(_, end)| is_open(*end)) {
            for (row, bytes) in self.journal.rows(tables.main, &key_bytes(&key), usize::MAX) {
                let session = OpenWindow::read(tables.main, &row, &bytes)?;
                let touches =
                    |(start, end): &(i64, i64)| session.start <= *end && *start <= session.end;
                is_taken |= is_open(session.end) && open.iter().any(touches);
            }
        }
        open.retain(|(_, end)| is_taken || is_open(*end));
        if open.is_empty() {
            if let Some(stream) = late {
                return self.write(stream, moving);
            }
            let refusal = StepRefusal::new(FailureKind::Transform, "late", "the window is closed");
            self.bury(
                &fixed.dead_letters,
                &refusal,
                "window",
                &RecordAsCame::of(moving),
            );
            return Ok(());
        }
        let mut values = Vec::with_capacity(aggregates.len());
        for aggregate in aggregates {
            let of = aggregate.of.as_ref();
            let value = of.map(|of| self.value(of, moving)).transpose()?;
            values.push(value.unwrap_or(FlowValue::Null));
        }
        self.results.settle(&moving.events, &Place::Delivered);
        let keeps = keeps_records(aggregates, using.is_some());
        for (start, end) in open {
            let mut base = moving.with(key_record(&moving.record, paths));
            Arc::make_mut(&mut base.metadata).key = Some(topic_key(&key).into_owned());
            // Whom it stands for is counted already.
            base.events.clear();
            let new = self.next_number();
            let fresh = OpenWindow {
                entry: new,
                start,
                end,
                has_fired: false,
                revision: 0,
                count: 0,
                aggregates: vec![Accumulator::default(); aggregates.len()],
                runs: Vec::new(),
                base,
            };
            let mut window = self.merge_into(tables.main, &key, fresh, (aggregates, is_session))?;
            window.count += 1;
            for ((accumulator, plan), value) in
                window.aggregates.iter_mut().zip(aggregates).zip(&values)
            {
                accumulator.absorb(&plan.function, value);
            }
            if keeps {
                let number = self.next_number();
                if window.runs.is_empty() {
                    window.runs.push(number);
                }
                let run = window.runs.last().copied().unwrap_or(number);
                let row = numbered(numbered(key_bytes(&key), run), number);
                let bytes = record_bytes(&moving.record, aggregates, &values, using.is_some());
                self.journal.put(tables.elements, &row, bytes);
            }
            let row = window_row(&key, window.start);
            self.journal.put(tables.main, &row, window.to_bytes());
            let (entry, end) = (window.entry, window.end);
            let has_fired = end <= progress;
            for (kind, due) in [
                (TimerKind::Due, end),
                (TimerKind::Gone, end.saturating_add(lateness)),
            ] {
                if entry == new && (kind == TimerKind::Gone || !has_fired) {
                    self.set_timer(at, kind, due, &row);
                }
            }
            if has_fired {
                // The window is past its end: the record corrects it at once.
                self.window_ends(at, &row, entry)?;
            }
        }
        Ok(())
    }

    /// The window that a record belongs to, without the record; sessions that touch become one.
    fn merge_into(
        &mut self,
        table: TableId,
        key: &str,
        mut fresh: OpenWindow,
        (aggregates, is_session): (&[AggregatePlan], bool),
    ) -> Result<OpenWindow, Failure> {
        if !is_session {
            let row = window_row(key, fresh.start);
            if let Some(bytes) = self.journal.get(table, &row) {
                let window = OpenWindow::read(table, &row, &bytes)?;
                return Ok(OpenWindow {
                    base: fresh.base,
                    ..window
                });
            }
            return Ok(fresh);
        }
        let (start, end) = (fresh.start, fresh.end);
        let mut touching = Vec::new();
        for (row, bytes) in self.journal.rows(table, &key_bytes(key), usize::MAX) {
            let window = OpenWindow::read(table, &row, &bytes)?;
            if window.start <= end && start <= window.end {
                self.journal.take(table, &row);
                touching.push(window);
            }
        }
        // The order in which they last grew. A session that grew has a new end, so its old timers are void.
        touching.sort_by_key(|window| window.entry);
        for window in touching {
            fresh.start = fresh.start.min(window.start);
            fresh.end = fresh.end.max(window.end);
            fresh.revision = fresh.revision.max(window.revision);
            fresh.count += window.count;
            fresh.runs.extend(window.runs);
            let pairs = fresh.aggregates.iter_mut().zip(aggregates);
            for ((accumulator, plan), later) in pairs.zip(window.aggregates) {
                accumulator.merge(&plan.function, later);
            }
        }
        Ok(fresh)
    }

    /// A timer of a window fires: it gives its result, or is forgotten.
    pub(super) fn window_timer(&mut self, at: usize, timer: &Timer) -> Stepped {
        if timer.kind == TimerKind::Due {
            return self.window_ends(at, &timer.row, timer.entry);
        }
        let tables = self.fixed.step_tables(at);
        let Some(window) = self.open_window(tables.main, &timer.row, timer.entry)? else {
            return Ok(());
        };
        self.journal.take(tables.main, &timer.row);
        for (row, _) in self.kept_records(tables.elements, &timer.row, &window)? {
            self.journal.take(tables.elements, &row);
        }
        Ok(())
    }

    fn open_window(
        &self,
        table: TableId,
        row: &[u8],
        entry: u64,
    ) -> Result<Option<OpenWindow>, Failure> {
        let Some(bytes) = self.journal.get(table, row) else {
            return Ok(None);
        };
        let window = OpenWindow::read(table, row, &bytes)?;
        Ok(Some(window).filter(|window| window.entry == entry))
    }

    /// The rows of the records of a window, in the order of their arrival.
    fn kept_records(
        &self,
        table: TableId,
        row: &[u8],
        window: &OpenWindow,
    ) -> Result<Vec<(Vec<u8>, Bytes)>, Failure> {
        let (key, _) = split_key(row).ok_or_else(|| damaged(table))?;
        let mut records = Vec::new();
        for run in &window.runs {
            let prefix = numbered(key_bytes(&key), *run);
            records.extend(self.journal.rows(table, &prefix, usize::MAX));
        }
        Ok(records)
    }

    /// A window gives its result.
    fn window_ends(&mut self, at: usize, row: &[u8], entry: u64) -> Stepped {
        let fixed = self.fixed;
        let OperatorPlan::Window {
            aggregates, using, ..
        } = &fixed.process.steps[at].operator
        else {
            return Ok(());
        };
        let tables = fixed.step_tables(at);
        let Some(mut window) = self.open_window(tables.main, row, entry)? else {
            return Ok(());
        };
        let revision = window.revision.to_string();
        window.revision += 1;
        window.has_fired = true;
        self.journal.put(tables.main, row, window.to_bytes());
        self.taken_out();
        let mut collected: Vec<Vec<Value>> = vec![Vec::new(); aggregates.len()];
        let mut texts = Vec::new();
        if keeps_records(aggregates, using.is_some()) {
            for (_, bytes) in self.kept_records(tables.elements, row, &window)? {
                let read = read_record(&bytes, aggregates, &mut collected, &mut texts);
                read.ok_or_else(|| damaged(tables.elements))?;
            }
        }
        let (key, _) = split_key(row).ok_or_else(|| damaged(tables.main))?;
        let mut moving = window.base;
        moving.id = EventId::derived(&[&fixed.name, &key, &window.start.to_string(), &revision]);
        Arc::make_mut(&mut moving.metadata).id = moving.id.to_string();
        moving.time = window.end;
        let columns = aggregates.iter().zip(window.aggregates).zip(collected);
        for ((plan, accumulator), values) in columns {
            let value = match plan.function.as_str() {
                "collect" => Ok(FlowValue::list(values)),
                function => accumulator.finish(function, window.count),
            };
            let text = value.and_then(|value| Ok(value.to_json()?));
            let text = text.map_err(|failure| moving.fails(FailureKind::Transform, failure))?;
            moving.record.set_raw(&plan.name, text);
        }
        if using.is_some() {
            moving
                .record
                .set_raw("records", format!("[{}]", texts.join(",")));
        }
        for (name, time) in [("window_start", window.start), ("window_end", window.end)] {
            let text = format!("\"{}\"", timestamp(time));
            moving.record.set_raw(name, text);
        }
        moving.record.set_raw("revision", revision);
        self.may_leave(&moving)?;
        let results = match using {
            Some(using) => self.transform(using, &moving)?,
            None => vec![moving],
        };
        self.flow_all(at, results)
    }
}

/// The values of `collect` and the text of a record that a window keeps.
fn record_bytes(
    record: &JsonRecord,
    aggregates: &[AggregatePlan],
    values: &[Value],
    has_transform: bool,
) -> Vec<u8> {
    let mut writer = Writer::default();
    for (aggregate, value) in aggregates.iter().zip(values) {
        if aggregate.function == "collect" {
            writer.value(value);
        }
    }
    if has_transform {
        writer.0.extend_from_slice(record.to_string().as_bytes());
    }
    writer.0
}

fn read_record(
    bytes: &[u8],
    aggregates: &[AggregatePlan],
    collected: &mut [Vec<Value>],
    texts: &mut Vec<String>,
) -> Option<()> {
    let mut reader = Reader(bytes);
    for (aggregate, values) in aggregates.iter().zip(collected) {
        if aggregate.function == "collect" {
            values.push(reader.value()?);
        }
    }
    texts.push(std::str::from_utf8(reader.0).ok()?.to_owned());
    Some(())
}
