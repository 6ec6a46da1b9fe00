//! Records that meet other records: `join`, `await` and `hold`, and their timers.

use tidegate_core::EventId;
use tidegate_core::books::Place;

use super::fields::{key_of, key_record, raw_at};
use super::memory::{HeldEntry, JoinSide, ModelTimer, Waiting};
use super::{FlowModel, Moving, StepFailure};
use crate::expression::RecordMetadata;
use crate::plan::{
    CompletePlan, FailureKind, JoinKind, LeavePlan, OperatorPlan, StateKind, StepPlan,
};
use crate::value::{FlowValue, JsonRecord};

/// A failure of a timer, with the metadata and the inputs of the record that it was about.
pub(super) type FiredFailure = Box<(StepFailure, RecordMetadata, Vec<EventId>)>;

fn ms(duration: u64) -> i64 {
    i64::try_from(duration).unwrap_or(i64::MAX)
}

/// A record that was made from others.
fn combined(record: JsonRecord, parts: &[&Moving], key: &str) -> Moving {
    let ids: Vec<EventId> = parts
        .iter()
        .flat_map(|part| part.ids.iter().copied())
        .collect();
    let names: Vec<String> = parts.iter().map(|part| part.id.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let id = EventId::derived(&names);
    let mut metadata = parts
        .last()
        .map_or_else(RecordMetadata::default, |part| part.metadata.clone());
    metadata.key = Some(key.to_owned());
    metadata.id = id.to_string();
    let time = parts.iter().map(|part| part.time).max().unwrap_or(0);
    Moving {
        record,
        metadata,
        time,
        id,
        ids,
    }
}

impl FlowModel<'_> {
    pub(super) fn join(
        &mut self,
        at: usize,
        stream: &str,
        moving: Moving,
    ) -> Result<(), StepFailure> {
        let step = &self.process.steps[at];
        let OperatorPlan::Join { on, within_ms, .. } = &step.operator else {
            return Ok(());
        };
        let (key, within) = (key_of(&moving.record, on), ms(*within_ms));
        let is_left = step.inputs.first().is_some_and(|left| left == stream);
        let sides = self.memory.joins.entry((at, key.clone())).or_default();
        let mut pairs = Vec::new();
        for side in sides.iter_mut().filter(|side| side.is_left != is_left) {
            if (side.moving.time - moving.time).abs() <= within {
                side.is_paired = true;
                pairs.push(side.moving.clone());
            }
        }
        let entry = self.memory.number();
        let side = JoinSide {
            entry,
            is_left,
            is_paired: !pairs.is_empty(),
            moving: moving.clone(),
        };
        self.memory
            .joins
            .entry((at, key.clone()))
            .or_default()
            .push(side);
        // A partner at exactly the distance still counts, so the timer fires after it.
        let due = moving.time.saturating_add(within).saturating_add(1);
        self.memory.set_timer(
            due,
            ModelTimer::Join {
                step: at,
                key: key.clone(),
                entry,
            },
        );
        self.results.settle(&moving.ids, Place::Delivered);
        for other in pairs {
            let (left, right) = if is_left {
                (&moving, &other)
            } else {
                (&other, &moving)
            };
            let mut pair = self.pair(step, on, Some(left), Some(right), &key);
            // The record that waited is delivered already; only the newcomer stands for the pair.
            pair.ids.clone_from(&moving.ids);
            self.flow(&step.output, at + 1, pair)?;
        }
        Ok(())
    }

    /// Key fields at the top, each side under its alias.
    fn pair(
        &self,
        step: &StepPlan,
        on: &[String],
        left: Option<&Moving>,
        right: Option<&Moving>,
        key: &str,
    ) -> Moving {
        let parts: Vec<&Moving> = left.into_iter().chain(right).collect();
        let keyed = parts
            .first()
            .map_or_else(JsonRecord::default, |part| key_record(&part.record, on));
        let mut record = keyed;
        for (alias, side) in step.inputs.iter().zip([left, right]) {
            let text = side.map_or_else(|| "null".to_owned(), |side| side.record.to_string());
            record.set_raw(alias, text);
        }
        combined(record, &parts, key)
    }

    pub(super) fn correlate(
        &mut self,
        at: usize,
        stream: &str,
        moving: Moving,
    ) -> Result<(), StepFailure> {
        let step = &self.process.steps[at];
        let OperatorPlan::Await { on, timeout_ms, .. } = &step.operator else {
            return Ok(());
        };
        let key = key_of(&moving.record, on);
        let is_waiting = step.inputs.first().is_some_and(|first| first == stream);
        let queue = self.memory.waiting.entry((at, key.clone())).or_default();
        if is_waiting {
            let due = moving.time.saturating_add(ms(*timeout_ms));
            let ids = moving.ids.clone();
            let entry = self.memory.number();
            let queue = self.memory.waiting.entry((at, key.clone())).or_default();
            queue.push_back(Waiting { entry, moving });
            self.memory.set_timer(
                due,
                ModelTimer::Await {
                    step: at,
                    key,
                    entry,
                },
            );
            self.results.settle(&ids, Place::Parked);
            return Ok(());
        }
        let Some(first) = queue.pop_front() else {
            let message = format!("no record waits for `{key}`");
            return Err(StepFailure::new(
                FailureKind::Correlation,
                "correlation.unmatched",
                message,
                &moving.record,
            ));
        };
        let mut pair = self.pair(step, on, Some(&first.moving), Some(&moving), &key);
        let latency = moving.time - first.moving.time;
        pair.record
            .set_raw("correlation_latency", latency.to_string());
        self.flow(&step.output, at + 1, pair)
    }

    pub(super) fn hold(
        &mut self,
        at: usize,
        stream: &str,
        moving: Moving,
    ) -> Result<(), StepFailure> {
        let step = &self.process.steps[at];
        let OperatorPlan::Hold {
            key: paths,
            complete,
            timeout_ms,
            ..
        } = &step.operator
        else {
            return Ok(());
        };
        let source = self
            .process
            .sources
            .iter()
            .find(|source| source.alias == stream);
        let input = source.and_then(|source| source.hold.as_ref());
        let is_marker = input.is_some_and(|input| input.is_marker);
        let own = input
            .map(|input| input.key.as_slice())
            .filter(|key| !key.is_empty());
        let key = key_of(&moving.record, own.unwrap_or(paths));
        let due = moving.time.saturating_add(ms(*timeout_ms));
        let ids = moving.ids.clone();
        let place = (at, key.clone());
        if !self.memory.held.contains_key(&place) {
            let entry = self.memory.number();
            self.memory.held.insert(
                place.clone(),
                HeldEntry {
                    entry,
                    records: Vec::new(),
                },
            );
            self.memory.set_timer(
                due,
                ModelTimer::Hold {
                    step: at,
                    key: key.clone(),
                    entry,
                },
            );
        }
        let Some(entry) = self.memory.held.get_mut(&place) else {
            return Ok(());
        };
        entry.records.push((stream.to_owned(), moving));
        let entry = entry.clone();
        let whole = self.whole(at, &entry, &key);
        let is_complete = match complete {
            CompletePlan::Count(count) => entry.records.len() as u64 >= *count,
            CompletePlan::Marker => is_marker,
            CompletePlan::Rule(rule) => self.rule(rule, &whole, None)? == FlowValue::Boolean(true),
            CompletePlan::Timeout | CompletePlan::Never => false,
        };
        if !is_complete {
            self.results.settle(&ids, Place::Parked);
            return Ok(());
        }
        self.memory.held.remove(&place);
        self.flow(&step.output, at + 1, whole)
    }

    /// Key fields, each input as a list, and the count.
    fn whole(&self, at: usize, entry: &HeldEntry, key: &str) -> Moving {
        let step = &self.process.steps[at];
        let OperatorPlan::Hold { key: paths, .. } = &step.operator else {
            return combined(JsonRecord::default(), &[], key);
        };
        let state = self
            .process
            .state
            .iter()
            .find(|state| Some(&state.id) == step.state.as_ref());
        let order = match state.map(|state| &state.kind) {
            Some(StateKind::Hold(Some(order))) => order.as_str(),
            Some(_) | None => "fifo",
        };
        let parts: Vec<&Moving> = entry.records.iter().map(|(_, moving)| moving).collect();
        let mut record = parts
            .first()
            .map_or_else(JsonRecord::default, |part| key_record(&part.record, paths));
        for alias in &step.inputs {
            let mut held: Vec<&JsonRecord> = entry
                .records
                .iter()
                .filter(|(from, _)| from == alias)
                .map(|(_, moving)| &moving.record)
                .collect();
            match order.split_once(" by ") {
                Some((_, path)) => held.sort_by(|a, b| by_path(a, b, path)),
                None if order == "lifo" => held.reverse(),
                None => {}
            }
            let texts: Vec<String> = held.iter().map(|record| record.to_string()).collect();
            record.set_raw(alias, format!("[{}]", texts.join(",")));
        }
        record.set_raw("count", entry.records.len().to_string());
        combined(record, &parts, key)
    }

    /// A timer fires.
    pub(super) fn fired(&mut self, timer: &ModelTimer) -> Result<(), FiredFailure> {
        match timer {
            ModelTimer::Await {
                step: at,
                key,
                entry,
            } => {
                let Some(queue) = self.memory.waiting.get_mut(&(*at, key.clone())) else {
                    return Ok(());
                };
                let Some(position) = queue.iter().position(|waiting| waiting.entry == *entry)
                else {
                    return Ok(());
                };
                let Some(waiting) = queue.remove(position) else {
                    return Ok(());
                };
                let step = &self.process.steps[*at];
                let OperatorPlan::Await {
                    on,
                    timeout_ms,
                    on_timeout,
                } = &step.operator
                else {
                    return Ok(());
                };
                let mut record = key_record(&waiting.moving.record, on);
                if let Some(alias) = step.inputs.first() {
                    record.set_raw(alias, waiting.moving.record.to_string());
                }
                record.set_raw("reason", "\"timeout\"");
                record.set_raw("waited_duration", timeout_ms.to_string());
                let moving = Moving {
                    record,
                    ..waiting.moving
                };
                self.time_out(on_timeout, "await", &moving)
            }
            ModelTimer::Hold {
                step: at,
                key,
                entry,
            } => {
                let place = (*at, key.clone());
                if self
                    .memory
                    .held
                    .get(&place)
                    .is_none_or(|held| held.entry != *entry)
                {
                    return Ok(());
                }
                let Some(held) = self.memory.held.remove(&place) else {
                    return Ok(());
                };
                let mut whole = self.whole(*at, &held, key);
                whole.record.set_raw("reason", "\"timeout\"");
                let step = &self.process.steps[*at];
                let OperatorPlan::Hold { on_timeout, .. } = &step.operator else {
                    return Ok(());
                };
                match on_timeout {
                    Some(leave) => self.time_out(leave, "hold", &whole),
                    None => {
                        let (metadata, ids) = (whole.metadata.clone(), whole.ids.clone());
                        let flowed = self.flow(&step.output, at + 1, whole);
                        flowed.map_err(|failure| Box::new((failure, metadata, ids)))
                    }
                }
            }
            ModelTimer::Join {
                step: at,
                key,
                entry,
            } => {
                let Some(sides) = self.memory.joins.get_mut(&(*at, key.clone())) else {
                    return Ok(());
                };
                let Some(position) = sides.iter().position(|side| side.entry == *entry) else {
                    return Ok(());
                };
                let side = sides.remove(position);
                let step = &self.process.steps[*at];
                let OperatorPlan::Join { on, join, .. } = &step.operator else {
                    return Ok(());
                };
                let may_be_alone = match join {
                    JoinKind::Inner => false,
                    JoinKind::Left => side.is_left,
                    JoinKind::Right => !side.is_left,
                    JoinKind::Outer => true,
                };
                if side.is_paired || !may_be_alone {
                    return Ok(());
                }
                let (left, right) = if side.is_left {
                    (Some(&side.moving), None)
                } else {
                    (None, Some(&side.moving))
                };
                let mut lone = self.pair(step, on, left, right, key);
                lone.ids.clear();
                let metadata = lone.metadata.clone();
                let flowed = self.flow(&step.output, at + 1, lone);
                flowed.map_err(|failure| Box::new((failure, metadata, Vec::new())))
            }
            ModelTimer::WindowEnd { step, key, entry } => self.window_ends(*step, key, *entry),
            ModelTimer::WindowGone { step, key, entry } => {
                if let Some(windows) = self.memory.windows.get_mut(&(*step, key.clone())) {
                    windows.retain(|window| window.entry != *entry);
                }
                Ok(())
            }
        }
    }

    fn time_out(
        &mut self,
        leave: &LeavePlan,
        by: &str,
        moving: &Moving,
    ) -> Result<(), FiredFailure> {
        let failure = StepFailure::new(
            FailureKind::Correlation,
            "correlation.timeout",
            "nothing came in time",
            &moving.record,
        );
        let left = self.leave(leave, moving, &failure, by);
        left.map_err(|failure| Box::new((failure, moving.metadata.clone(), moving.ids.clone())))
    }
}

/// The higher priority first; records without one come last.
fn by_path(a: &JsonRecord, b: &JsonRecord, path: &str) -> std::cmp::Ordering {
    let value = |record: &JsonRecord| {
        let raw = raw_at(record, path)?.to_owned();
        FlowValue::parse_json(&raw, &crate::value::FlowType::Dynamic)
            .ok()
            .map(FlowValue::into_owned)
    };
    match (value(a), value(b)) {
        (Some(a), Some(b)) => b
            .order(&a)
            .ok()
            .flatten()
            .unwrap_or(std::cmp::Ordering::Equal),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => std::cmp::Ordering::Equal,
    }
}
