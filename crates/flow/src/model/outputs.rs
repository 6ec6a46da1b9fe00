//! Results of a record, their ids, dead letters, and the books.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use tidegate_core::books::{LossReason, Place};
use tidegate_core::dead_letter::{LastFailure, Reason, RecordOrigin, StageContext};
use tidegate_core::{DeadLetter, EventId, FailureClass, Offset, Partition, TierIndex, Topic};

use super::memory::ModelRecord;
use super::script::ScriptedFailure;
use super::{FlowModel, Moving, StepFailure, Stepped, timestamp};
use crate::apply::{StepRefusal, completion_part};
use crate::expression::RecordMetadata;
use crate::plan::{CompletionPlan, FailureKind, LeavePlan};
use crate::value::paths::{last_name, raw_at, topic_key_of};
use crate::value::{FlowValue, JsonRecord};

/// A record that the process wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOutput {
    /// The stream.
    pub stream: String,
    /// The key.
    pub key: Option<String>,
    /// The event id.
    pub id: EventId,
    /// The value.
    pub value: String,
    /// When it was written.
    pub at: Timestamp,
}

/// A record that the process gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDeadLetter {
    /// The dead letter stream.
    pub stream: String,
    /// The code of the failure.
    pub code: String,
    /// The failure in words.
    pub message: String,
    /// Attempts in all.
    pub attempts: u32,
    /// The value as it came.
    pub value: String,
}

/// The stream, the record, and why the stream refused it.
type Told = (String, Moving, Option<String>);

/// The results of one record or timer; they become visible together.
#[derive(Debug, Clone, Default)]
pub(super) struct Results {
    /// Whether the id of an output depends on their number, and the output.
    outputs: Vec<(bool, ModelOutput)>,
    dead_letters: Vec<ModelDeadLetter>,
    fates: BTreeMap<EventId, Place>,
    metrics: Vec<(String, String)>,
    /// The records that were written by `emit`.
    emitted: Vec<Told>,
    /// The record that a sink refused.
    refused: Option<Told>,
}

impl Results {
    pub(super) fn clear(&mut self) {
        let refused = self.refused.take();
        *self = Self {
            refused,
            ..Self::default()
        };
    }

    /// Decides the place of inputs. A record with several results is delivered if one of them is.
    pub(super) fn settle(&mut self, ids: &[EventId], place: Place) {
        for id in ids {
            let is_stronger = match self.fates.get(id) {
                None | Some(Place::Lost(_)) => true,
                Some(_) => place == Place::Parked || place == Place::DeadLettered,
            };
            if is_stronger {
                self.fates.insert(*id, place.clone());
            }
        }
    }
}

/// A record as it came: what a dead letter keeps.
pub(super) struct Came<'a> {
    pub(super) metadata: &'a RecordMetadata,
    pub(super) value: &'a [u8],
    pub(super) ids: &'a [EventId],
}

impl<'a> Came<'a> {
    /// The record as it was sent.
    pub(super) fn as_sent(sent: &'a ModelRecord) -> Self {
        Self {
            metadata: &sent.metadata,
            value: &sent.value,
            ids: std::slice::from_ref(&sent.id),
        }
    }

    /// The record at a later place, with its text.
    pub(super) fn of(moving: &'a Moving, text: &'a str) -> Self {
        Self {
            metadata: &moving.metadata,
            value: text.as_bytes(),
            ids: &moving.ids,
        }
    }
}

impl FlowModel<'_> {
    /// Writes a record to a stream.
    pub(super) fn write(&mut self, stream: &str, moving: &Moving) -> Stepped {
        let sink = self.process.sinks.iter().find(|sink| sink.stream == stream);
        let mut record = moving.record.clone();
        let kind = FailureKind::Transform;
        self.apply(moving, |apply, _| {
            let conforms = apply.conform(&mut record, sink.and_then(|sink| sink.schema.as_ref()));
            conforms.map_err(|error| StepRefusal::new(kind, "schema.invalid", error))
        })?;
        let mut script = self.script.borrow_mut();
        let sink_failure = script.sinks.get_mut(stream);
        let failure = sink_failure.and_then(ScriptedFailure::happen);
        drop(script);
        if let Some(failure) = failure {
            let told = (stream.to_owned(), moving.clone(), Some(failure.to_string()));
            self.results.refused = Some(told);
            return Err(moving.fails(kind, failure));
        }
        let key = match sink.map(|sink| sink.key.as_slice()) {
            Some(paths @ [_, ..]) => Some(topic_key_of(&record, paths)),
            Some([]) | None => moving.metadata.key.clone(),
        };
        self.observe(stream, moving);
        self.output(stream, key, moving.id, record.to_string(), true);
        self.delivered(moving)
    }

    /// A record leaves by `emit`.
    pub(super) fn emit(&mut self, stream: &str, moving: &Moving) -> Stepped {
        self.write(stream, moving)?;
        if !self.process.completions.is_empty() {
            let told = (stream.to_owned(), moving.clone(), None);
            self.results.emitted.push(told);
        }
        Ok(())
    }

    pub(super) fn delivered(&mut self, moving: &Moving) -> Stepped {
        self.results.settle(&moving.ids, Place::Delivered);
        Ok(())
    }

    pub(super) fn skipped(&mut self, moving: &Moving) -> Stepped {
        let place = Place::Lost(LossReason::from_static("skipped"));
        self.results.settle(&moving.ids, place);
        Ok(())
    }

    /// Metrics see every record that leaves by `emit` or `route`.
    fn observe(&mut self, stream: &str, moving: &Moving) {
        for metric in &self.process.metrics {
            let Some(expression) = &metric.expression else {
                continue;
            };
            // A metric never fails a record.
            let value = self.apply(moving, |apply, view| {
                let value = apply.evaluate(expression, view, Some(stream));
                Ok(value.unwrap_or(FlowValue::Boolean(false)))
            });
            let value = value.unwrap_or(FlowValue::Boolean(false));
            if value != FlowValue::Boolean(false) {
                let shown = value.to_json().unwrap_or_default();
                self.results.metrics.push((metric.name.clone(), shown));
            }
        }
    }

    /// A record leaves by a handler, a timeout or a duplicate.
    pub(super) fn leave(
        &mut self,
        leave: &LeavePlan,
        moving: &Moving,
        failure: &StepFailure,
        by: &str,
    ) -> Stepped {
        match leave {
            LeavePlan::Emit(stream) => self.write(stream, moving),
            LeavePlan::DeadLetter(stream) => {
                let value = moving.record.to_string();
                self.bury(stream, failure, by, &Came::of(moving, &value));
                Ok(())
            }
            LeavePlan::Skip => self.skipped(moving),
        }
    }

    /// Takes the way that the handler of a failure names.
    pub(super) fn handle(&mut self, failure: &StepFailure, came: &Came<'_>) {
        let process = self.process;
        let by = failure.kind.word();
        let default = format!("{}_dlq", self.name);
        let mut handlers = process.handlers.iter();
        let handler = handlers.find(|handler| handler.failure == failure.kind);
        let leave = match handler.map(|handler| &handler.leave) {
            None => return self.bury(&default, failure, by, came),
            Some(LeavePlan::DeadLetter(stream)) => return self.bury(stream, failure, by, came),
            Some(leave) => leave,
        };
        let moving = Moving {
            record: failure.moving.record.clone(),
            metadata: came.metadata.clone(),
            time: self.now(),
            id: came.ids.first().copied().unwrap_or(EventId::from_u128(0)),
            ids: came.ids.to_vec(),
        };
        if let Err(second) = self.leave(leave, &moving, failure, by) {
            // The way out is closed, too: the record is kept where it can be replayed.
            self.bury(&default, &second, by, came);
        }
    }

    /// Writes a dead letter.
    pub(super) fn bury(&mut self, stream: &str, failed: &StepFailure, by: &str, came: &Came<'_>) {
        let (failure, metadata) = (&failed.failure, came.metadata);
        self.results.dead_letters.push(ModelDeadLetter {
            stream: stream.to_owned(),
            code: failure.code.to_string(),
            message: failure.message.clone(),
            attempts: failed.attempts,
            value: String::from_utf8_lossy(came.value).into_owned(),
        });
        let now = u64::try_from(self.now()).unwrap_or(0);
        let id = came.ids.first().copied();
        let id = id.or_else(|| metadata.id.parse().ok());
        let id = id.unwrap_or(EventId::from_u128(0));
        let reason = match failure.class {
            FailureClass::Transient => Reason::RetriesExhausted,
            FailureClass::Permanent | FailureClass::System if by == "decode" => {
                Reason::DeserializationFailure
            }
            FailureClass::Permanent | FailureClass::System => Reason::NonRetryable,
        };
        self.results.settle(came.ids, Place::DeadLettered);
        let Ok(topic) = Topic::new(metadata.topic.clone()) else {
            return;
        };
        let letter = DeadLetter {
            event_id: id,
            origin: RecordOrigin {
                topic,
                partition: Partition(0),
                offset: Offset(metadata.offset),
                timestamp_ms: metadata.timestamp.as_millisecond(),
            },
            key: metadata.key.clone().map(Bytes::from),
            value: Some(Bytes::copy_from_slice(came.value)),
            headers: Vec::new(),
            group: None,
            reason,
            dead_at_ms: now,
            attempts: failed.attempts,
            first_failure_ms: now,
            failure: LastFailure {
                code: failure.code.clone(),
                message: failure.message.clone(),
                stack: String::new(),
            },
            tier: TierIndex(0),
            trail: Vec::new(),
            replays: 0,
            stage: Some(StageContext {
                stage_name: self.name.clone(),
                stage_instance: "model".to_owned(),
                operator_name: by.to_owned(),
                failure_kind: Some(format!("{}_failure", failed.kind.word())),
            }),
        };
        let value = letter.to_envelope();
        self.output(stream, metadata.key.clone(), id, value, false);
    }

    fn output(
        &mut self,
        stream: &str,
        key: Option<String>,
        id: EventId,
        value: String,
        is_free: bool,
    ) {
        let output = ModelOutput {
            stream: stream.to_owned(),
            key,
            id,
            value,
            at: timestamp(self.now()),
        };
        self.results.outputs.push((is_free, output));
    }

    /// Everything of one record or timer becomes visible, and the books are written.
    pub(super) fn commit(&mut self) {
        self.complete();
        let results = std::mem::take(&mut self.results);
        let mut counts: BTreeMap<EventId, usize> = BTreeMap::new();
        for (is_free, output) in &results.outputs {
            *counts.entry(output.id).or_default() += usize::from(*is_free);
        }
        let mut index: BTreeMap<EventId, usize> = BTreeMap::new();
        for (is_free, mut output) in results.outputs {
            if is_free && counts.get(&output.id) != Some(&1) {
                let at = index.entry(output.id).or_default();
                let (source, number) = (output.id.to_string(), at.to_string());
                *at += 1;
                output.id = EventId::derived(&[&source, &output.stream, &number]);
            }
            self.outputs.push(output);
        }
        self.dead_letters.extend(results.dead_letters);
        for (name, value) in results.metrics {
            self.metrics.entry(name).or_default().push(value);
        }
        for (id, place) in results.fates {
            let from = self.places.insert(id, place.clone());
            if from.as_ref() != Some(&place) {
                self.books.move_one(id, from, Some(place));
            }
        }
    }

    /// Adds the records that tell about the commit, or about a sink that refused.
    fn complete(&mut self) {
        let mut told = std::mem::take(&mut self.results.emitted);
        told.extend(self.results.refused.take());
        for (number, (stream, moving, error)) in told.into_iter().enumerate() {
            let tells = |plan: &&CompletionPlan| plan.on_failure == error.is_some();
            for plan in self.process.completions.iter().filter(tells) {
                let id = moving.id.to_string();
                let status = match plan.on_failure {
                    true => "FAILED",
                    false => "COMMITTED",
                };
                let target = moving.metadata.key.as_deref().unwrap_or(&id);
                let raw = |path: &str| raw_at(&moving.record, path).unwrap_or("null").to_owned();
                let mut record = JsonRecord::default();
                record.set_raw("correlation_id", raw(&plan.correlation));
                for (name, value) in [
                    ("transaction_id", FlowValue::text(&id)),
                    ("status", FlowValue::text(status)),
                    ("target_system", FlowValue::text(&stream)),
                    ("target_id", FlowValue::text(target)),
                    ("timestamp", FlowValue::Timestamp(timestamp(self.now()))),
                ] {
                    record.set_raw(name, value.to_json().unwrap_or_default());
                }
                for path in &plan.include {
                    record.set_raw(last_name(path), raw(path));
                }
                let details = error.as_deref().map_or(FlowValue::Null, FlowValue::text);
                record.set_raw("error_details", details.to_json().unwrap_or_default());
                let id = EventId::derived(&[&id, &plan.stream, &completion_part(number)]);
                let key = topic_key_of(&moving.record, std::slice::from_ref(&plan.correlation));
                self.output(&plan.stream, Some(key), id, record.to_string(), false);
            }
        }
    }
}
