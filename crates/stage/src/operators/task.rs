//! The chain as the loop of a task calls it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::books::Place;
use tidegate_core::{Code, Failure, FailureClass};
use tidegate_flow::apply::state_plan;
use tidegate_flow::plan::{ModePlan, OperatorPlan, StatePlan};

use super::arrival::metadata_of;
use super::combine::Kept;
use super::firing::rejection;
use super::moving::{InputEvent, ms};
use super::results::{InHand, RecordAsCame};
use super::{CHAIN, FIRED_AT_ONCE, TaskChain, damaged, keyed_state};
use crate::chain::{
    ChainInput, ChainOutput, InputRecord, PendingRecord, RejectedContent, TaskOperators, TaskTime,
};
use crate::task_state::TaskState;
use crate::task_state::codec::{Reader, split_key};
use crate::task_state::journal::{rows, rows_behind};

impl TaskOperators for TaskChain {
    fn inputs(&self) -> &[ChainInput] {
        &self.fixed.inputs
    }

    /// Timers that are due fire before the record.
    fn record(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        record: InputRecord<'_>,
        out: &mut ChainOutput,
    ) -> Result<(), Failure> {
        while self.is_due(time) && self.fire_until(state, (time, None), FIRED_AT_ONCE, out)? {}
        let now = self.ready(state, time)?;
        self.progress.clock = Some(now);
        let times = (now, time.epoch_start_ms);
        let mut run = Self::run(
            &self.fixed,
            (&mut self.progress, &mut self.timers),
            state,
            times,
        );
        let fixed = run.fixed;
        let Some(input) = fixed.inputs.get(record.input) else {
            let message = format!("the task has no input {}", record.input);
            let code = Code::from_static("stage.input.unknown");
            return Err(Failure::new(FailureClass::System, code, message));
        };
        let event = InputEvent {
            input: u16::try_from(record.input).unwrap_or(u16::MAX),
            id: record.id,
        };
        run.in_hand = Some(InHand {
            event,
            place: Place::Queued,
            copies: 0,
        });
        let metadata = Arc::new(metadata_of(record));
        if input.is_repartition {
            let topics = fixed.inputs.iter().filter(|input| input.is_repartition);
            let mut topics = topics.take_while(|topic| topic.stream != input.stream);
            let at = fixed.process.sources.len() + topics.by_ref().count();
            run.arrived(at, record, (event, &metadata))?;
            run.commit(out)?;
        } else {
            for (at, source) in fixed.process.sources.iter().enumerate() {
                if *source.stream == *input.stream {
                    run.take(at, record, (event, &metadata), self.is_slow)?;
                    run.commit(out)?;
                }
            }
        }
        self.move_watermark(now);
        self.tidy(state, now)?;
        self.save(state);
        Ok(())
    }

    fn reject(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        record: InputRecord<'_>,
        (failure, keep): (&Failure, RejectedContent),
        out: &mut ChainOutput,
    ) -> Result<(), Failure> {
        let now = self.ready(state, time)?;
        self.progress.clock = Some(now);
        let times = (now, time.epoch_start_ms);
        let mut run = Self::run(
            &self.fixed,
            (&mut self.progress, &mut self.timers),
            state,
            times,
        );
        let event = InputEvent {
            input: u16::try_from(record.input).unwrap_or(u16::MAX),
            id: record.id,
        };
        run.in_hand = Some(InHand {
            event,
            place: Place::Queued,
            copies: 0,
        });
        let metadata = metadata_of(record);
        let of_log = &record.record.record;
        let whole = RecordAsCame {
            metadata: &metadata,
            key: of_log.key.as_ref(),
            value: of_log.value.clone(),
            headers: Some(&of_log.headers),
            events: &[event],
        };
        let refusal = rejection(failure, keep);
        run.bury_rejected(refusal, keep, "commit", &whole);
        run.commit(out)?;
        self.save(state);
        Ok(())
    }

    fn reject_timer(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        (failure, keep): (&Failure, RejectedContent),
        out: &mut ChainOutput,
    ) -> Result<(), Failure> {
        self.rejecting = Some((rejection(failure, keep), keep));
        while self.rejecting.is_some() && self.fire_until(state, (time, None), 1, out)? {}
        // Nothing is due any more, so nothing is refused.
        self.rejecting = None;
        Ok(())
    }

    fn fire(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure> {
        let has_more = self.fire_until(state, (time, None), limit, out)?;
        self.tidy(state, time.now_ms)?;
        Ok(has_more)
    }

    fn next_due(&self, _state: &dyn TaskState) -> Option<i64> {
        let first = self.timers.first_due()?;
        if self.fixed.process.time.is_none() {
            return Some(first);
        }
        if first <= self.progress.watermark {
            return self.progress.clock;
        }
        // Only an input that falls silent moves the watermark by itself.
        let now = self.progress.clock?;
        let inputs = self.progress.inputs.iter();
        let silent_at = inputs.map(|input| input.last_seen.saturating_add(input.idle_timeout));
        silent_at.filter(|at| *at > now).min()
    }

    fn reload(&mut self, state: &dyn TaskState, time: TaskTime) {
        let _: TaskTime = time;
        self.read_memory(state);
        if self.refused.is_none()
            && let Err(failure) = self.fixed.set_timers(state, &mut self.timers)
        {
            self.refused = Some(failure.message);
        }
    }

    fn aborted(&mut self, state: &dyn TaskState) {
        self.read_memory(state);
        self.timers.aborted();
    }

    fn sealed(&mut self) {
        self.timers.sealed();
    }

    fn committed(&mut self) {
        self.timers.committed();
    }

    fn finish(
        &mut self,
        state: &mut dyn TaskState,
        time: TaskTime,
        limit: usize,
        out: &mut ChainOutput,
    ) -> Result<bool, Failure> {
        let is_batch = self.fixed.process.mode == ModePlan::Batch;
        let has_more = self.fire_until(state, (time, None), limit, out)?
            || is_batch && self.fire_until(state, (time, Some(i64::MAX)), limit, out)?;
        Ok(has_more)
    }

    fn clean(&mut self, state: &mut dyn TaskState, time: TaskTime) -> Result<bool, Failure> {
        let now = self.ready(state, time)?;
        self.clean_batch(state, now, "on_checkpoint")
    }

    fn pending(&self, state: &dyn TaskState, visit: &mut dyn FnMut(PendingRecord)) {
        for (at, step) in self.fixed.process.steps.iter().enumerate() {
            let tables = self.fixed.step_tables(at);
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "only these two let records wait"
            )]
            let (table, timeout) = match &step.operator {
                OperatorPlan::Await { timeout_ms, .. } => (tables.main, *timeout_ms),
                OperatorPlan::Hold { timeout_ms, .. } => (tables.elements, *timeout_ms),
                _ => continue,
            };
            // The records of one entry follow each other; its time counts from the first.
            let mut entry: Option<(Vec<u8>, i64)> = None;
            for (row, bytes) in rows_behind(state, table, None, usize::MAX) {
                let entry_row = row[..row.len().saturating_sub(8)].to_vec();
                let Ok(kept) = Kept::read(table, row, &bytes) else {
                    continue;
                };
                let since = kept.moving.time;
                let is_hold = table == tables.elements;
                let first = match &entry {
                    Some((row, first)) if is_hold && *row == entry_row => *first,
                    Some(_) | None => since,
                };
                let key = split_key(&kept.row).map_or_else(String::new, |(key, _)| key);
                entry = Some((entry_row, first));
                for event in &kept.moving.events {
                    visit(PendingRecord {
                        input: usize::from(event.input),
                        id: event.id,
                        step: step.state.clone().unwrap_or_default(),
                        key: key.clone(),
                        since_ms: since,
                        due_ms: first.saturating_add(ms(timeout)),
                    });
                }
            }
        }
    }

    fn values(
        &self,
        state: &dyn TaskState,
        name: &str,
        time: TaskTime,
    ) -> BTreeMap<String, String> {
        let plan = state_plan(&self.fixed.process, name);
        let found = plan.and_then(|plan| Some((plan, *self.fixed.tables.get(&plan.id)?)));
        found.map_or_else(BTreeMap::new, |(plan, tables)| {
            let is_event_time = plan.ttl.as_ref().is_some_and(|ttl| ttl.is_event_time);
            let is_event_time = is_event_time && self.fixed.process.time.is_some();
            let at = match is_event_time {
                true => self.progress.watermark,
                false => time.now_ms,
            };
            keyed_state::shown(state, (plan, tables), at)
        })
    }
}

impl TaskChain {
    /// Reads what the chain keeps in its own table.
    fn read_memory(&mut self, state: &dyn TaskState) {
        self.refused = None;
        self.cleaned_to.clear();
        self.tidied_at = None;
        self.progress = self.fixed.begin();
        self.stored.clear();
        let mut stored = BTreeMap::new();
        for (key, value) in rows(state, CHAIN, b"d", usize::MAX) {
            match read_name(&key, &value) {
                Some((id, named)) => drop(stored.insert(id, named)),
                None => self.refused = Some(damaged(CHAIN).message),
            }
        }
        self.name_tables(&stored);
        self.refused = self.refused.take().or_else(|| self.refusal(state, &stored));
        if let Some(bytes) = state.get(CHAIN, b"p") {
            if self.progress.read(&bytes).is_none() {
                self.refused = Some(damaged(CHAIN).message);
            }
            self.stored = bytes.to_vec();
        }
    }
}

fn read_name(key: &[u8], value: &[u8]) -> Option<(String, (u16, StatePlan))> {
    let id = String::from_utf8(key.get(1..)?.to_vec()).ok()?;
    let mut reader = Reader(value);
    let table = u16::try_from(reader.number()?).ok()?;
    Some((id, (table, serde_json::from_slice(reader.0).ok()?)))
}
