//! The way of a record through the steps.

use tidegate_core::books::Place;

use super::{FlowModel, Moving, Stepped, ms};
use crate::apply::{RouteChoice, project};
use crate::plan::{
    ArmPlan, FailureKind, OnFailurePlan, OnSuccessPlan, OperatorPlan, OtherwisePlan, SelectorPlan,
    SourcePlan, TransformPlan,
};
use crate::value::paths::{key_of, topic_key_of};

impl FlowModel<'_> {
    /// Fills in the record of some bytes.
    pub(super) fn decode(
        &mut self,
        source: &SourcePlan,
        value: &[u8],
        moving: &mut Moving,
    ) -> Stepped {
        let (record, time) = self.apply(moving, |apply, _| apply.decode(source, value))?;
        moving.record = record;
        moving.time = time.unwrap_or(moving.time);
        if !self.process.partition_by.is_empty() {
            moving.metadata.key = Some(topic_key_of(&moving.record, &self.process.partition_by));
        }
        Ok(())
    }

    /// A record that was decoded: the filter of its input, then the steps.
    pub(super) fn enter(&mut self, source: &SourcePlan, mut moving: Moving) -> Stepped {
        if let Some(filter) = &source.filter
            && !self.is_true(filter, &moving)?
        {
            return self.delivered(&moving);
        }
        project(source, &mut moving.record);
        self.flow(&source.alias, 0, moving)
    }

    /// Moves a record of a stream through the steps from `start` on.
    pub(super) fn flow(&mut self, stream: &str, start: usize, mut moving: Moving) -> Stepped {
        let process = self.process;
        let (mut stream, mut start) = (stream, start);
        loop {
            let takes = |at: &usize| {
                process.steps[*at]
                    .inputs
                    .iter()
                    .any(|input| input == stream)
            };
            let Some(at) = (start..process.steps.len()).find(takes) else {
                return self.delivered(&moving);
            };
            if !self.step(at, stream, &mut moving)? {
                return Ok(());
            }
            (stream, start) = (process.steps[at].output.as_str(), at + 1);
        }
    }

    /// One step; true where the record itself goes on behind it.
    fn step(&mut self, at: usize, stream: &str, moving: &mut Moving) -> Stepped<bool> {
        let step = &self.process.steps[at];
        match &step.operator {
            OperatorPlan::Filter { condition } => {
                if !self.is_true(condition, moving)? {
                    self.delivered(moving)?;
                    return Ok(false);
                }
            }
            OperatorPlan::Validate { checks } => {
                let kind = FailureKind::Rule;
                self.apply(moving, |apply, view| apply.require(checks, kind, view))?;
            }
            OperatorPlan::Enrich { lookup, on, select } => {
                let key = topic_key_of(&moving.record, on);
                let mut record = moving.record.clone();
                self.apply(moving, |apply, _| {
                    apply.enrich(lookup, &key, select, &mut record)
                })?;
                moving.record = record;
            }
            OperatorPlan::Transform {
                transform,
                on_success,
                on_failure,
            } => {
                self.transformed(at, transform, on_success, on_failure.as_ref(), moving)?;
                return Ok(false);
            }
            OperatorPlan::Assign { assignments } => self.assign(assignments, moving)?,
            OperatorPlan::Deduplicate {
                by,
                window_ms,
                on_duplicate,
            } => {
                let key = (at, key_of(&moving.record, by));
                let seen = self.memory.seen.get(&key);
                if seen.is_some_and(|seen| (moving.time - seen).abs() < ms(*window_ms)) {
                    let Some(leave) = on_duplicate else {
                        self.delivered(moving)?;
                        return Ok(false);
                    };
                    let message = "the record is a duplicate";
                    let failure = moving.refused(FailureKind::Rule, "record.duplicate", message);
                    self.leave(leave, moving, &failure, "deduplicate")?;
                    return Ok(false);
                }
                // A record that came late does not shorten how long a later one is remembered.
                let seen = self.memory.seen.entry(key).or_insert(moving.time);
                *seen = moving.time.max(*seen);
            }
            OperatorPlan::Window { .. } => {
                self.window(at, moving)?;
                return Ok(false);
            }
            OperatorPlan::Aggregate { using } => {
                let results = self.transform(using, moving)?;
                self.flow_all(at, results)?;
                return Ok(false);
            }
            OperatorPlan::Join { .. } | OperatorPlan::Await { .. } | OperatorPlan::Hold { .. } => {
                self.meet(at, stream, moving.clone())?;
                return Ok(false);
            }
            OperatorPlan::Merge => {}
            OperatorPlan::Route {
                selector,
                arms,
                otherwise,
            } => {
                return self.route(selector, arms, otherwise, moving);
            }
            OperatorPlan::Emit { stream } => self.emit(stream, moving)?,
        }
        Ok(true)
    }

    /// Moves the results of a step on.
    pub(super) fn flow_all(&mut self, at: usize, results: Vec<Moving>) -> Stepped {
        let output = &self.process.steps[at].output;
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
        let mut results = match (self.transform(transform, moving), on_failure) {
            (Ok(results), _) => results,
            (Err(failure), None) => return Err(failure),
            (Err(failure), Some(handler)) => {
                let mut moving = moving.clone();
                self.assign(&handler.assignments, &mut moving)?;
                return match &handler.leave {
                    Some(leave) => self.leave(leave, &moving, &failure, &transform.name),
                    None => self.flow_all(at, vec![moving]),
                };
            }
        };
        if results.is_empty() {
            self.results.settle(&moving.ids, Place::Delivered);
        }
        for result in &mut results {
            for also in on_success {
                match also {
                    OnSuccessPlan::Emit(stream) => self.write(stream, result)?,
                    OnSuccessPlan::Assign(assignments) => self.assign(assignments, result)?,
                }
            }
        }
        self.flow_all(at, results)
    }

    /// Sends a record to its streams; true where it goes on.
    fn route(
        &mut self,
        selector: &SelectorPlan,
        arms: &[ArmPlan],
        otherwise: &OtherwisePlan,
        moving: &Moving,
    ) -> Stepped<bool> {
        let route = (selector, arms, otherwise);
        match self.apply(moving, |apply, view| apply.choose(route, view))? {
            RouteChoice::Continue => return Ok(true),
            RouteChoice::Skip => self.skipped(moving)?,
            RouteChoice::To(streams) => {
                for stream in &streams {
                    self.write(stream, moving)?;
                }
            }
        }
        Ok(false)
    }
}
