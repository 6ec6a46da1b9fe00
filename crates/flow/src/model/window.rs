//! Windows and their aggregates.

use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::combine::list_of;
use super::memory::ModelTimer;
use super::outputs::Came;
use super::{FlowModel, Moving, Stepped, ms, timestamp};
use crate::expression::{EvaluationFailure, add, average};
use crate::plan::{FailureKind, OperatorPlan, WindowShape};
use crate::value::paths::{key_of, key_record, topic_key};
use crate::value::{FlowValue, JsonRecord};

/// A window of one key.
#[derive(Debug, Clone)]
pub(super) struct OpenWindow {
    pub(super) entry: u64,
    start: i64,
    end: i64,
    /// The next revision; zero before the window fired.
    revision: u64,
    /// The key fields, and the metadata of the newest record.
    base: Moving,
    /// The record and the values of its aggregates, in the order of arrival.
    records: Vec<(JsonRecord, Vec<FlowValue<'static>>)>,
}

/// The windows that a time belongs to, as start and end.
fn spans(shape: WindowShape, time: i64) -> Vec<(i64, i64)> {
    let (size, every) = match shape {
        WindowShape::Tumbling { size_ms } => (ms(size_ms), ms(size_ms)),
        WindowShape::Sliding { size_ms, every_ms } => (ms(size_ms), ms(every_ms)),
        WindowShape::Session { gap_ms } => return vec![(time, time + ms(gap_ms))],
    };
    let last = time.div_euclid(every) * every;
    let starts = (0..).map(|n| last - n * every);
    let mut spans: Vec<(i64, i64)> = starts
        .take_while(|start| start + size > time)
        .map(|start| (start, start + size))
        .collect();
    spans.reverse();
    spans
}

impl FlowModel<'_> {
    pub(super) fn window(&mut self, at: usize, moving: &Moving) -> Stepped {
        let process = self.process;
        let OperatorPlan::Window {
            shape,
            key: paths,
            lateness_ms,
            late,
            aggregates,
            ..
        } = &process.steps[at].operator
        else {
            return Ok(());
        };
        let (key, lateness) = (key_of(&moving.record, paths), ms(*lateness_ms));
        let progress = self.progress();
        let mut open = spans(*shape, moving.time);
        let is_session = matches!(shape, WindowShape::Session { .. });
        let is_open = |end: i64| end.saturating_add(lateness) > progress;
        let before = self.memory.windows.get(&(at, key.clone()));
        // A session that takes the record may be open for longer than the record alone would be.
        open.retain(|(start, end)| {
            let mut sessions = before.into_iter().flatten().filter(|_| is_session);
            is_open(*end) || sessions.any(|s| s.start <= *end && *start <= s.end && is_open(s.end))
        });
        if open.is_empty() {
            if let Some(stream) = late {
                return self.write(stream, moving);
            }
            let failure = moving.refused(FailureKind::Transform, "late", "the window is closed");
            let (stream, value) = (format!("{}_dlq", self.name), moving.record.to_string());
            self.bury(&stream, &failure, "window", &Came::of(moving, &value));
            return Ok(());
        }
        let mut values = Vec::new();
        for aggregate in aggregates {
            let of = aggregate.of.as_ref();
            let value = of.map(|of| self.evaluate(of, moving)).transpose()?;
            values.push(value.unwrap_or(FlowValue::Null));
        }
        self.results.settle(&moving.ids, Place::Delivered);
        for (start, end) in open {
            let mut base = moving.with(key_record(&moving.record, paths));
            base.metadata.key = Some(topic_key(&key).into_owned());
            let fresh = OpenWindow {
                entry: self.memory.number(),
                start,
                end,
                revision: 0,
                base,
                records: vec![(moving.record.clone(), values.clone())],
            };
            let new = fresh.entry;
            let (entry, end) = self.merge_into((at, key.clone()), fresh, is_session);
            let has_fired = end <= progress;
            // At one due time the result comes first: the order of the timers is that of their making.
            for (is_gone, due) in [(false, end), (true, end.saturating_add(lateness))] {
                if entry == new && (is_gone || !has_fired) {
                    let timer = ModelTimer {
                        step: at,
                        key: key.clone(),
                        entry,
                        is_gone,
                    };
                    self.memory.set_timer(due, timer);
                }
            }
            if has_fired {
                // The window is past its end: the record corrects it at once.
                self.window_ends(at, &key, entry)?;
            }
        }
        Ok(())
    }

    /// Adds a record to its window; sessions that touch become one. The answer is the entry and its end.
    fn merge_into(
        &mut self,
        place: (usize, String),
        mut fresh: OpenWindow,
        is_session: bool,
    ) -> (u64, i64) {
        let windows = self.memory.windows.entry(place).or_default();
        let (start, end) = (fresh.start, fresh.end);
        let touches = |window: &mut OpenWindow| match is_session {
            true => window.start <= end && start <= window.end,
            false => window.start == start,
        };
        let touching: Vec<OpenWindow> = windows.extract_if(.., touches).collect();
        let newest = std::mem::take(&mut fresh.records);
        for window in touching {
            // A session that grew has a new end, so the timers of its old entry are void.
            if !is_session {
                fresh.entry = window.entry;
            }
            fresh.start = fresh.start.min(window.start);
            fresh.end = fresh.end.max(window.end);
            fresh.revision = fresh.revision.max(window.revision);
            fresh.records.extend(window.records);
        }
        fresh.records.extend(newest);
        let place = (fresh.entry, fresh.end);
        windows.push(fresh);
        place
    }

    /// A window gives its result.
    pub(super) fn window_ends(&mut self, at: usize, key: &str, entry: u64) -> Stepped {
        let process = self.process;
        let OperatorPlan::Window {
            aggregates, using, ..
        } = &process.steps[at].operator
        else {
            return Ok(());
        };
        let windows = self.memory.windows.entry((at, key.to_owned()));
        let mut windows = windows.or_default().iter_mut();
        let Some(window) = windows.find(|window| window.entry == entry) else {
            return Ok(());
        };
        let revision = window.revision.to_string();
        window.revision += 1;
        let window = window.clone();
        self.taken_out = Some(self.memory.clone());
        let mut moving = window.base;
        moving.id = EventId::derived(&[&self.name, key, &window.start.to_string(), &revision]);
        moving.metadata.id = moving.id.to_string();
        moving.time = window.end;
        moving.ids.clear();
        for (column, aggregate) in aggregates.iter().enumerate() {
            let values = window.records.iter();
            let values = values.filter_map(|(_, values)| values.get(column));
            let value = aggregated(&aggregate.function, &values.collect::<Vec<_>>());
            let text = value.and_then(|value| Ok(value.to_json()?));
            let text = text.map_err(|failure| moving.fails(FailureKind::Transform, failure))?;
            moving.record.set_raw(&aggregate.name, text);
        }
        if using.is_some() {
            let records = list_of(window.records.iter().map(|(record, _)| record));
            moving.record.set_raw("records", records);
        }
        for (name, time) in [("window_start", window.start), ("window_end", window.end)] {
            let text = format!("\"{}\"", timestamp(time));
            moving.record.set_raw(name, text);
        }
        moving.record.set_raw("revision", revision);
        let results = match using {
            Some(using) => self.transform(using, &moving)?,
            None => vec![moving],
        };
        self.flow_all(at, results)
    }
}

/// The result of an aggregate; nulls are no values.
fn aggregated(
    function: &str,
    values: &[&FlowValue<'static>],
) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
    let mut present = values.to_vec();
    present.retain(|value| !matches!(value, FlowValue::Null));
    let value =
        |value: Option<&&FlowValue<'static>>| value.map_or(FlowValue::Null, |v| (*v).clone());
    let sum = || {
        let mut rest = present.iter().skip(1);
        rest.try_fold(value(present.first()), |sum, value| add(&sum, value))
    };
    let extreme = |wanted: fn(std::cmp::Ordering) -> bool| -> Result<_, Box<EvaluationFailure>> {
        let mut best = present.first();
        for value in &present {
            let order = best.map(|best| value.order(best)).transpose()?.flatten();
            if order.is_some_and(wanted) {
                best = Some(value);
            }
        }
        Ok(value(best))
    };
    match function {
        "count" => Ok(FlowValue::Integer(ms(values.len() as u64))),
        "sum" => sum(),
        "avg" if present.is_empty() => Ok(FlowValue::Null),
        "avg" => average(&sum()?, present.len()),
        "min" => extreme(std::cmp::Ordering::is_lt),
        "max" => extreme(std::cmp::Ordering::is_gt),
        "first" => Ok(value(values.first())),
        "last" => Ok(value(values.last())),
        _ => Ok(FlowValue::list(
            values.iter().map(|v| (*v).clone()).collect(),
        )),
    }
}
