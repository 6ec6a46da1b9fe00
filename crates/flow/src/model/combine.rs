//! Records that meet other records: `join`, `await` and `hold`, and all timers.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "no other step keeps records or has a timer"
)]

use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::memory::{KeptRecord, ModelTimer};
use super::{FlowModel, Moving, Stepped, ms};
use crate::plan::{
    CompletePlan, FailureKind, JoinKind, LeavePlan, OperatorPlan, StateKind, StepPlan,
};
use crate::value::paths::{by_priority, key_of, key_record, topic_key};
use crate::value::{FlowValue, JsonRecord};

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
    let mut metadata = parts[parts.len() - 1].metadata.clone();
    metadata.key = Some(topic_key(key).into_owned());
    metadata.id = id.to_string();
    Moving {
        record,
        metadata,
        time: parts.iter().map(|part| part.time).max().unwrap_or(0),
        id,
        ids: parts.iter().flat_map(|part| part.ids.clone()).collect(),
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

impl FlowModel<'_> {
    /// A record of a join, an await or a hold.
    pub(super) fn meet(&mut self, at: usize, stream: &str, moving: Moving) -> Stepped {
        let process = self.process;
        let step = &process.steps[at];
        let is_first = step.inputs.first().is_some_and(|first| first == stream);
        let kept = KeptRecord {
            entry: 0,
            input: stream.to_owned(),
            is_paired: false,
            moving: moving.clone(),
        };
        match &step.operator {
            OperatorPlan::Join { on, within_ms, .. } => {
                let key = key_of(&moving.record, on);
                self.join(at, (on, &key), ms(*within_ms), kept)
            }
            OperatorPlan::Await { on, timeout_ms, .. } => {
                let key = key_of(&moving.record, on);
                if is_first {
                    let due = moving.time.saturating_add(ms(*timeout_ms));
                    self.memory.keep(at, &key, due, kept);
                    self.results.settle(&moving.ids, Place::Parked);
                    return Ok(());
                }
                let queue = self.memory.kept.get_mut(&(at, key.clone()));
                let Some(queue) = queue.filter(|queue| !queue.is_empty()) else {
                    let message = format!("no record waits for `{key}`");
                    let kind = FailureKind::Correlation;
                    return Err(moving.refused(kind, "correlation.unmatched", &message));
                };
                let first = queue.remove(0).moving;
                let mut both = pair(step, (on, &key), [Some(&first), Some(&moving)]);
                let latency = (moving.time - first.time).to_string();
                both.record.set_raw("correlation_latency", latency);
                self.flow(&step.output, at + 1, both)
            }
            OperatorPlan::Hold {
                key,
                complete,
                timeout_ms,
                ..
            } => self.hold(at, key, complete, ms(*timeout_ms), kept),
            _ => Ok(()),
        }
    }

    fn join(
        &mut self,
        at: usize,
        key: (&[String], &str),
        within: i64,
        mut kept: KeptRecord,
    ) -> Stepped {
        let process = self.process;
        let step = &process.steps[at];
        let moving = kept.moving.clone();
        let place = (at, key.1.to_owned());
        let mut pairs = Vec::new();
        for other in self.memory.kept.entry(place).or_default() {
            let is_near = (other.moving.time - moving.time).abs() <= within;
            if other.input != kept.input && is_near {
                other.is_paired = true;
                pairs.push(other.moving.clone());
            }
        }
        kept.is_paired = !pairs.is_empty();
        let is_left = step.inputs.first() == Some(&kept.input);
        // A partner at exactly the distance still counts, so the timer fires after it.
        let due = moving.time.saturating_add(within).saturating_add(1);
        self.memory.keep(at, key.1, due, kept);
        self.results.settle(&moving.ids, Place::Delivered);
        for other in pairs {
            let mut sides = [Some(&moving), Some(&other)];
            if !is_left {
                sides.reverse();
            }
            let mut both = pair(step, key, sides);
            // The record that waited is delivered already; only the newcomer stands for the pair.
            both.ids.clone_from(&moving.ids);
            self.flow(&step.output, at + 1, both)?;
        }
        Ok(())
    }

    fn hold(
        &mut self,
        at: usize,
        paths: &[String],
        complete: &CompletePlan,
        timeout: i64,
        mut kept: KeptRecord,
    ) -> Stepped {
        let process = self.process;
        let step = &process.steps[at];
        let mut sources = process.sources.iter();
        let source = sources.find(|source| source.alias == kept.input);
        let input = source.and_then(|source| source.hold.as_ref());
        let is_marker = input.is_some_and(|input| input.is_marker);
        let own = input.map(|input| input.key.as_slice());
        let own = own.filter(|key| !key.is_empty()).unwrap_or(paths);
        let key = key_of(&kept.moving.record, own);
        let place = (at, key.clone());
        let entry = self.memory.kept.get(&place).and_then(|held| held.first());
        kept.entry = entry.map_or(0, |held| held.entry);
        let ids = kept.moving.ids.clone();
        let due = kept.moving.time.saturating_add(timeout);
        self.memory.keep(at, &key, due, kept);
        let held = self.memory.kept.get(&place).cloned().unwrap_or_default();
        let whole = self.whole(step, (paths, &key), &held);
        let is_complete = match complete {
            CompletePlan::Count(count) => held.len() as u64 >= *count,
            CompletePlan::Marker => is_marker,
            CompletePlan::Rule(rule) => self.rule(rule, &whole)? == FlowValue::Boolean(true),
            CompletePlan::Timeout | CompletePlan::Never => false,
        };
        if !is_complete {
            self.results.settle(&ids, Place::Parked);
            return Ok(());
        }
        self.memory.kept.remove(&place);
        self.flow(&step.output, at + 1, whole)
    }

    /// Key fields, each input as a list in the order of the buffer, and the count.
    fn whole(&self, step: &StepPlan, key: (&[String], &str), held: &[KeptRecord]) -> Moving {
        let mut states = self.process.state.iter();
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
            list_of(records.into_iter())
        });
        whole.record.set_raw("count", held.len().to_string());
        whole
    }

    /// A timer fires: its entry leaves, goes on or is forgotten.
    pub(super) fn fired(&mut self, timer: &ModelTimer) -> Stepped {
        let process = self.process;
        let step = &process.steps[timer.step];
        let place = (timer.step, timer.key.clone());
        if timer.is_gone {
            let windows = self.memory.windows.entry(place).or_default();
            windows.retain(|window| window.entry != timer.entry);
            return Ok(());
        }
        if let OperatorPlan::Window { .. } = step.operator {
            return self.window_ends(timer.step, &timer.key, timer.entry);
        }
        let kept = self.memory.kept.entry(place).or_default();
        let due = kept.extract_if(.., |kept| kept.entry == timer.entry);
        let due: Vec<KeptRecord> = due.collect();
        let Some(first) = due.first() else {
            return Ok(());
        };
        self.taken_out = Some(self.memory.clone());
        let moving = &first.moving;
        match &step.operator {
            OperatorPlan::Await {
                on,
                timeout_ms,
                on_timeout,
            } => {
                let mut record = key_record(&moving.record, on);
                record.set_raw(&first.input, moving.record.to_string());
                record.set_raw("reason", "\"timeout\"");
                record.set_raw("waited_duration", timeout_ms.to_string());
                self.time_out(on_timeout, "await", &moving.with(record))
            }
            OperatorPlan::Hold {
                key, on_timeout, ..
            } => {
                let mut whole = self.whole(step, (key, &timer.key), &due);
                whole.record.set_raw("reason", "\"timeout\"");
                match on_timeout {
                    Some(leave) => self.time_out(leave, "hold", &whole),
                    None => self.flow(&step.output, timer.step + 1, whole),
                }
            }
            OperatorPlan::Join { on, join, .. } => {
                let is_left = step.inputs.first() == Some(&first.input);
                let may_be_alone = match join {
                    JoinKind::Inner => false,
                    JoinKind::Left => is_left,
                    JoinKind::Right => !is_left,
                    JoinKind::Outer => true,
                };
                if first.is_paired || !may_be_alone {
                    return Ok(());
                }
                let mut sides = [Some(moving), None];
                if !is_left {
                    sides.reverse();
                }
                let mut lone = pair(step, (on, &timer.key), sides);
                lone.ids.clear();
                self.flow(&step.output, timer.step + 1, lone)
            }
            _ => Ok(()),
        }
    }

    fn time_out(&mut self, leave: &LeavePlan, by: &str, moving: &Moving) -> Stepped {
        let message = "nothing came in time";
        let failure = moving.refused(FailureKind::Correlation, "correlation.timeout", message);
        self.leave(leave, moving, &failure, by)
    }
}

/// Records as a JSON list.
pub(super) fn list_of<'r>(records: impl Iterator<Item = &'r JsonRecord>) -> String {
    let texts: Vec<String> = records.map(JsonRecord::to_string).collect();
    format!("[{}]", texts.join(","))
}
