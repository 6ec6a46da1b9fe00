//! Windows and their aggregates.

use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::combine::FiredFailure;
use super::fields::{key_of, key_record};
use super::memory::ModelTimer;
use super::{FlowModel, Moving, StepFailure};
use crate::expression::{EvaluationFailure, RecordMetadata, add, average};
use crate::plan::{AggregatePlan, FailureKind, OperatorPlan, WindowShape};
use crate::value::{FlowValue, JsonRecord};

/// A window of one key.
#[derive(Debug, Clone)]
pub(super) struct OpenWindow {
    pub(super) entry: u64,
    start: i64,
    end: i64,
    /// The next revision; zero before the window fired.
    revision: u64,
    keys: JsonRecord,
    metadata: RecordMetadata,
    /// The record and the values of its aggregates, in the order of arrival.
    records: Vec<(JsonRecord, Vec<FlowValue<'static>>)>,
}

fn ms(duration: u64) -> i64 {
    i64::try_from(duration).unwrap_or(i64::MAX)
}

/// The windows that a time belongs to, as start and end.
fn spans(shape: WindowShape, time: i64) -> Vec<(i64, i64)> {
    match shape {
        WindowShape::Tumbling { size_ms } => {
            let start = time.div_euclid(ms(size_ms)) * ms(size_ms);
            vec![(start, start + ms(size_ms))]
        }
        WindowShape::Sliding { size_ms, every_ms } => {
            let (size, every) = (ms(size_ms), ms(every_ms));
            let last = time.div_euclid(every) * every;
            let mut starts: Vec<i64> = (0..)
                .map(|n| last - n * every)
                .take_while(|start| start + size > time)
                .collect();
            starts.reverse();
            starts
                .into_iter()
                .map(|start| (start, start + size))
                .collect()
        }
        WindowShape::Session { gap_ms } => vec![(time, time + ms(gap_ms))],
    }
}

impl FlowModel<'_> {
    pub(super) fn window(&mut self, at: usize, moving: &Moving) -> Result<(), StepFailure> {
        let OperatorPlan::Window {
            shape,
            key: paths,
            lateness_ms,
            late,
            aggregates,
            ..
        } = &self.process.steps[at].operator
        else {
            return Ok(());
        };
        let (key, lateness) = (key_of(&moving.record, paths), ms(*lateness_ms));
        let progress = self.progress();
        let is_open = |end: i64| end.saturating_add(lateness) > progress;
        let open: Vec<(i64, i64)> = spans(*shape, moving.time)
            .into_iter()
            .filter(|(_, end)| is_open(*end))
            .collect();
        if open.is_empty() {
            let failure = StepFailure::new(
                FailureKind::Transform,
                "late",
                "the window is closed",
                &moving.record,
            );
            return match late {
                Some(stream) => self.write(stream, moving),
                None => {
                    let stream = format!("{}_dlq", self.name);
                    let value = moving.record.to_string().into_bytes();
                    self.bury(
                        &stream,
                        &failure,
                        "window",
                        &moving.metadata,
                        &value,
                        &moving.ids,
                    );
                    Ok(())
                }
            };
        }
        let mut values = Vec::new();
        for aggregate in aggregates {
            values.push(match &aggregate.of {
                Some(of) => self.evaluate(of, moving)?,
                None => FlowValue::Null,
            });
        }
        self.results.settle(&moving.ids, Place::Delivered);
        for (start, end) in open {
            let (entry, end, is_new) = self.merge_into(
                at,
                &key,
                (start, end),
                paths,
                (moving, values.clone()),
                *shape,
            );
            let has_fired = end <= progress;
            if is_new {
                // At one due time the result comes first: the order of the timers is that of their making.
                if !has_fired {
                    self.memory.set_timer(
                        end,
                        ModelTimer::WindowEnd {
                            step: at,
                            key: key.clone(),
                            entry,
                        },
                    );
                }
                let gone = ModelTimer::WindowGone {
                    step: at,
                    key: key.clone(),
                    entry,
                };
                self.memory.set_timer(end.saturating_add(lateness), gone);
            }
            if has_fired {
                // The window is past its end: the record corrects it at once.
                let ended = self.window_ends(at, &key, entry);
                ended.map_err(|failed| failed.0)?;
            }
        }
        Ok(())
    }

    /// Adds a record to its window; sessions that touch become one. The answer is the entry, its end, and whether it is new.
    fn merge_into(
        &mut self,
        at: usize,
        key: &str,
        (start, end): (i64, i64),
        paths: &[String],
        (moving, values): (&Moving, Vec<FlowValue<'static>>),
        shape: WindowShape,
    ) -> (u64, i64, bool) {
        let entry = self.memory.number();
        let windows = self.memory.windows.entry((at, key.to_owned())).or_default();
        let is_session = matches!(shape, WindowShape::Session { .. });
        let touches = |window: &OpenWindow| {
            if is_session {
                window.start <= end && start <= window.end
            } else {
                window.start == start
            }
        };
        let (touching, mut rest): (Vec<OpenWindow>, Vec<OpenWindow>) =
            std::mem::take(windows).into_iter().partition(touches);
        let mut merged = OpenWindow {
            // A session that grew has a new end, so the timers of its old entry are void.
            entry: if is_session {
                entry
            } else {
                touching.first().map_or(entry, |window| window.entry)
            },
            start,
            end,
            revision: 0,
            keys: key_record(&moving.record, paths),
            metadata: moving.metadata.clone(),
            records: Vec::new(),
        };
        merged.metadata.key = Some(key.to_owned());
        for window in touching {
            merged.start = merged.start.min(window.start);
            merged.end = merged.end.max(window.end);
            merged.revision = merged.revision.max(window.revision);
            merged.records.extend(window.records);
        }
        merged.records.push((moving.record.clone(), values));
        let place = (merged.entry, merged.end, merged.entry == entry);
        rest.push(merged);
        *windows = rest;
        place
    }

    /// A window gives its result.
    pub(super) fn window_ends(
        &mut self,
        at: usize,
        key: &str,
        entry: u64,
    ) -> Result<(), FiredFailure> {
        let step = &self.process.steps[at];
        let OperatorPlan::Window {
            aggregates, using, ..
        } = &step.operator
        else {
            return Ok(());
        };
        let windows = self.memory.windows.get_mut(&(at, key.to_owned()));
        let Some(window) =
            windows.and_then(|windows| windows.iter_mut().find(|window| window.entry == entry))
        else {
            return Ok(());
        };
        let revision = window.revision;
        window.revision += 1;
        let window = window.clone();
        let id = EventId::derived(&[
            &self.name,
            key,
            &window.start.to_string(),
            &revision.to_string(),
        ]);
        let mut metadata = window.metadata.clone();
        metadata.id = id.to_string();
        let failed = |failure: StepFailure| Box::new((failure, metadata.clone(), Vec::new()));
        let mut record = window.keys.clone();
        for (column, aggregate) in aggregates.iter().enumerate() {
            let values = window
                .records
                .iter()
                .filter_map(|(_, values)| values.get(column));
            let value = aggregated(aggregate, &values.collect::<Vec<_>>());
            let text = value.and_then(|value| Ok(value.to_json()?));
            let text = text.map_err(|failure| {
                failed(StepFailure::of(FailureKind::Transform, *failure, &record))
            })?;
            record.set_raw(&aggregate.name, text);
        }
        if using.is_some() {
            let texts: Vec<String> = window
                .records
                .iter()
                .map(|(record, _)| record.to_string())
                .collect();
            record.set_raw("records", format!("[{}]", texts.join(",")));
        }
        for (name, time) in [("window_start", window.start), ("window_end", window.end)] {
            record.set_raw(name, format!("\"{}\"", Self::timestamp(time)));
        }
        record.set_raw("revision", revision.to_string());
        let moving = Moving {
            record,
            metadata: metadata.clone(),
            time: window.end,
            id,
            ids: Vec::new(),
        };
        let results = match using {
            Some(using) => self.transform(using, &moving).map_err(failed)?,
            None => vec![moving],
        };
        for result in results {
            self.flow(&step.output, at + 1, result).map_err(failed)?;
        }
        Ok(())
    }
}

/// The result of an aggregate; nulls are no values.
fn aggregated(
    aggregate: &AggregatePlan,
    values: &[&FlowValue<'static>],
) -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
    let present: Vec<&FlowValue<'static>> = values
        .iter()
        .copied()
        .filter(|value| !matches!(value, FlowValue::Null))
        .collect();
    let sum = || -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        let mut sum: Option<FlowValue<'static>> = None;
        for value in &present {
            sum = Some(match sum {
                None => (*value).clone(),
                Some(sum) => add(&sum, value)?,
            });
        }
        Ok(sum.unwrap_or(FlowValue::Null))
    };
    let extreme = |is_greater: bool| -> Result<FlowValue<'static>, Box<EvaluationFailure>> {
        let mut best: Option<&FlowValue<'static>> = None;
        for value in &present {
            let order = best.map(|best| value.order(best)).transpose()?.flatten();
            let is_better = match order {
                None => best.is_none(),
                Some(order) => {
                    if is_greater {
                        order.is_gt()
                    } else {
                        order.is_lt()
                    }
                }
            };
            if is_better {
                best = Some(value);
            }
        }
        Ok(best.cloned().unwrap_or(FlowValue::Null))
    };
    Ok(match aggregate.function.as_str() {
        "count" => FlowValue::Integer(i64::try_from(values.len()).unwrap_or(i64::MAX)),
        "sum" => sum()?,
        "avg" if present.is_empty() => FlowValue::Null,
        "avg" => average(&sum()?, present.len())?,
        "min" => extreme(false)?,
        "max" => extreme(true)?,
        "first" => values
            .first()
            .map_or(FlowValue::Null, |value| (*value).clone()),
        "last" => values
            .last()
            .map_or(FlowValue::Null, |value| (*value).clone()),
        _ => FlowValue::list(values.iter().map(|value| (*value).clone()).collect()),
    })
}
