//! The way of a record through the steps.

use std::cell::RefCell;
use std::sync::Arc;

use tidegate_core::Failure;
use tidegate_core::books::Place;
use tidegate_flow::apply::{Apply, RecordView, RouteChoice, StepRefusal, StepResult, project};
use tidegate_flow::plan::{
    AssignPlan, FailureKind, OnFailurePlan, OnSuccessPlan, OperatorPlan, PlanExpression,
    SourcePlan, TransformPlan,
};
use tidegate_flow::value::paths::{key_of, topic_key_of};
use tidegate_flow::value::{FlowValue, JsonRecord};

use super::host::ChainHost;
use super::keyed_state::StateWork;
use super::moving::{Moving, Stepped, ms};
use super::{Run, damaged};
use crate::state::backend::text_hash;
use crate::task_state::codec::{Reader, Writer, from_ordered, key_bytes, ordered};
use crate::timers::{Timer, TimerKind};

impl Run<'_> {
    /// Does the work of a step without memory; a failure keeps the record as it came.
    pub(super) fn apply<T>(
        &mut self,
        moving: &Moving,
        work: impl FnOnce(&Apply<'_>, RecordView<'_>) -> StepResult<T>,
    ) -> Stepped<T> {
        let fixed = self.fixed;
        let host = ChainHost {
            work: RefCell::new(StateWork {
                fixed,
                journal: &mut self.journal,
                numbers: &mut self.progress.numbers,
                now: self.now,
            }),
            functions: &fixed.options.functions,
            epoch_start: self.epoch_start,
        };
        let apply = Apply {
            plan: &fixed.plan,
            process: &fixed.process,
            host: &host,
        };
        work(&apply, moving.view()).map_err(|refusal| moving.refuses(refusal))
    }

    pub(super) fn value(
        &mut self,
        of: &PlanExpression,
        moving: &Moving,
    ) -> Stepped<FlowValue<'static>> {
        self.apply(moving, |apply, view| apply.value(of, view))
    }

    fn is_true(&mut self, condition: &PlanExpression, moving: &Moving) -> Stepped<bool> {
        self.apply(moving, |apply, view| apply.is_true(condition, view))
    }

    fn assign(&mut self, assignments: &[AssignPlan], moving: &mut Moving) -> Stepped {
        let mut record = moving.record.clone();
        self.apply(moving, |apply, view| {
            apply.assign(assignments, &mut record, view.metadata, view.time)
        })?;
        moving.record = record;
        Ok(())
    }

    /// The records that a transform makes of one.
    pub(super) fn transform(
        &mut self,
        transform: &TransformPlan,
        moving: &Moving,
    ) -> Stepped<Vec<Moving>> {
        let records = self.apply(moving, |apply, view| apply.transform(transform, view))?;
        let results = records.into_iter().map(|record| moving.with(record));
        Ok(results.collect())
    }

    /// Fills in the record of some bytes; false where the filter of the input does not want it.
    pub(super) fn decode(
        &mut self,
        source: &SourcePlan,
        value: &[u8],
        moving: &mut Moving,
    ) -> Stepped<bool> {
        let (record, time) = self.apply(moving, |apply, _| apply.decode(source, value))?;
        moving.record = record;
        moving.time = time.unwrap_or(moving.time);
        let partition_by = &self.fixed.process.partition_by;
        if !partition_by.is_empty() {
            let key = topic_key_of(&moving.record, partition_by);
            Arc::make_mut(&mut moving.metadata).key = Some(key);
        }
        let filter = source.filter.as_ref();
        let is_wanted = filter.map_or(Ok(true), |filter| self.is_true(filter, moving))?;
        project(source, &mut moving.record);
        Ok(is_wanted)
    }

    /// Moves a record that came through a topic of the stage's own on, from the step that it was for.
    pub(super) fn arrive(&mut self, at: usize, stream: &str, moving: Moving) -> Stepped {
        self.step(at, stream, moving, true)
    }

    /// Moves a record of a stream through the steps from `start` on.
    pub(super) fn flow(&mut self, stream: &str, start: usize, moving: Moving) -> Stepped {
        let steps = &self.fixed.process.steps;
        let takes = |at: &usize| steps[*at].inputs.iter().any(|input| input == stream);
        let Some(at) = (start..steps.len()).find(takes) else {
            self.results.settle(&moving.events, &Place::Delivered);
            return Ok(());
        };
        self.step(at, stream, moving, false)
    }

    fn step(&mut self, at: usize, stream: &str, mut moving: Moving, has_arrived: bool) -> Stepped {
        let fixed = self.fixed;
        let step = &fixed.process.steps[at];
        if !has_arrived && let Some(topic) = fixed.repartition_of(at, stream) {
            let key = topic_key_of(&moving.record, fixed.step_key(at, stream));
            let state = step.state.as_deref().unwrap_or_default();
            let value = repartitioned(state, stream, &moving);
            self.repartition(topic, key, value, &moving);
            return Ok(());
        }
        match &step.operator {
            OperatorPlan::Filter { condition } => {
                if !self.is_true(condition, &moving)? {
                    self.results.settle(&moving.events, &Place::Delivered);
                    return Ok(());
                }
            }
            OperatorPlan::Validate { checks } => {
                let kind = FailureKind::Rule;
                self.apply(&moving, |apply, view| apply.require(checks, kind, view))?;
            }
            OperatorPlan::Enrich { lookup, on, select } => {
                let key = topic_key_of(&moving.record, on);
                let mut record = moving.record.clone();
                self.apply(&moving, |apply, _| {
                    apply.enrich(lookup, &key, select, &mut record)
                })?;
                moving.record = record;
            }
            OperatorPlan::Transform {
                transform,
                on_success,
                on_failure,
            } => {
                return self.transformed(at, transform, on_success, on_failure.as_ref(), &moving);
            }
            OperatorPlan::Assign { assignments } => self.assign(assignments, &mut moving)?,
            OperatorPlan::Deduplicate {
                by,
                window_ms,
                on_duplicate,
            } => {
                if self.is_duplicate(at, by, ms(*window_ms), &moving)? {
                    let Some(leave) = on_duplicate else {
                        self.results.settle(&moving.events, &Place::Delivered);
                        return Ok(());
                    };
                    let message = "the record is a duplicate";
                    let refusal = StepRefusal::new(FailureKind::Rule, "record.duplicate", message);
                    return self.leave(leave, &moving, &refusal, "deduplicate");
                }
            }
            OperatorPlan::Window { .. } => return self.window(at, &moving),
            OperatorPlan::Aggregate { using } => {
                let results = self.transform(using, &moving)?;
                return self.flow_all(at, results);
            }
            OperatorPlan::Join { .. } => return self.join(at, stream, moving),
            OperatorPlan::Await { .. } => return self.await_trigger(at, stream, moving),
            OperatorPlan::Hold { .. } => return self.hold(at, stream, moving),
            OperatorPlan::Merge => {}
            OperatorPlan::Route {
                selector,
                arms,
                otherwise,
            } => {
                let route = (selector, arms.as_slice(), otherwise);
                match self.apply(&moving, |apply, view| apply.choose(route, view))? {
                    RouteChoice::Continue => {}
                    RouteChoice::Skip => {
                        self.skipped(&moving);
                        return Ok(());
                    }
                    RouteChoice::To(streams) => {
                        return streams.iter().try_for_each(|to| self.write(to, &moving));
                    }
                }
            }
            OperatorPlan::Emit { stream } => self.emit(stream, &moving)?,
        }
        self.flow(&step.output, at + 1, moving)
    }

    /// Moves the results of a step on.
    pub(super) fn flow_all(&mut self, at: usize, results: Vec<Moving>) -> Stepped {
        let output = &self.fixed.process.steps[at].output;
        let mut results = results.into_iter();
        results.try_for_each(|result| self.flow(output, at + 1, result))
    }

    fn transformed(
        &mut self,
        at: usize,
        transform: &TransformPlan,
        on_success: &[OnSuccessPlan],
        on_failure: Option<&OnFailurePlan>,
        moving: &Moving,
    ) -> Stepped {
        let applied = self.apply(moving, |apply, view| Ok(apply.transform(transform, view)))?;
        let records: Vec<JsonRecord> = match (applied, on_failure) {
            (Ok(records), _) => records,
            (Err(refusal), None) => return Err(moving.refuses(refusal)),
            (Err(refusal), Some(handler)) => {
                super::stops(&refusal)?;
                let mut moving = moving.clone();
                self.assign(&handler.assignments, &mut moving)?;
                return match &handler.leave {
                    Some(leave) => self.leave(leave, &moving, &refusal, &transform.name),
                    None => self.flow_all(at, vec![moving]),
                };
            }
        };
        if records.is_empty() {
            self.results.settle(&moving.events, &Place::Delivered);
        }
        let mut results: Vec<Moving> = Vec::with_capacity(records.len());
        for record in records {
            let mut result = moving.with(record);
            for also in on_success {
                match also {
                    OnSuccessPlan::Emit(stream) => self.write(stream, &result)?,
                    OnSuccessPlan::Assign(assignments) => self.assign(assignments, &mut result)?,
                }
            }
            results.push(result);
        }
        self.flow_all(at, results)
    }

    /// Whether the key of a record was seen within the window; a first one is remembered.
    ///
    /// The window counts from the first record that was kept. A key is remembered for a second window, so that
    /// records that come late, or waited in a step before, still find it.
    fn is_duplicate(
        &mut self,
        at: usize,
        by: &[String],
        window: i64,
        moving: &Moving,
    ) -> Result<bool, Failure> {
        let table = self.fixed.step_tables(at).main;
        let row = key_bytes(&key_of(&moving.record, by));
        let mut newest = moving.time;
        if let Some(bytes) = self.journal.get(table, &row) {
            let seen = from_ordered(&bytes).ok_or_else(|| damaged(table))?;
            if moving.time.abs_diff(seen) < window.unsigned_abs() {
                return Ok(true);
            }
            newest = newest.max(seen);
        }
        self.journal.put(table, &row, ordered(newest).to_vec());
        let kept = window.saturating_mul(2);
        let due = newest.saturating_add(kept);
        self.set_timer(at, TimerKind::Forget, due, &row);
        Ok(false)
    }

    /// Forgets a key, unless it was seen again.
    pub(super) fn forget(&mut self, timer: &Timer, due: i64, window: i64) -> Result<(), Failure> {
        let table = self.fixed.step_tables(timer.step).main;
        let Some(bytes) = self.journal.get(table, &timer.row) else {
            return Ok(());
        };
        let seen = from_ordered(&bytes).ok_or_else(|| damaged(table))?;
        if seen.saturating_add(window.saturating_mul(2)) <= due {
            self.journal.take(table, &timer.row);
        }
        Ok(())
    }

    /// Sets a timer for the entry under a row of a step.
    pub(super) fn set_timer(&mut self, at: usize, kind: TimerKind, due: i64, row: &[u8]) {
        let table = self.fixed.step_tables(at).main;
        self.timers.set(at, kind, due, text_hash(table, row));
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.progress.numbers += 1;
        self.progress.numbers
    }
}

/// The value of a repartition topic's record: the step by its state, the stream, and the record.
pub(super) fn repartitioned(state: &str, stream: &str, moving: &Moving) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.byte(super::REPARTITION_VERSION);
    writer.bytes(state.as_bytes()).bytes(stream.as_bytes());
    moving.write(&mut writer);
    writer.0
}

/// The step's state, the stream and the record of a repartition topic's value.
pub(super) fn read_repartitioned(value: &[u8]) -> Option<(String, String, Moving)> {
    let mut reader = Reader(value);
    if reader.byte()? != super::REPARTITION_VERSION {
        return None;
    }
    let state = reader.text()?.to_owned();
    let stream = reader.text()?.to_owned();
    Some((state, stream, Moving::read(&mut reader)?))
}
