//! Results of a record, their ids, dead letters, and the books.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use tidegate_core::books::{LossReason, Place};
use tidegate_core::dead_letter::{LastFailure, Reason, RecordOrigin, StageContext};
use tidegate_core::{DeadLetter, EventId, FailureClass, Offset, Partition, TierIndex, Topic};

use super::fields::{conform, key_of, raw_at};
use super::{FlowModel, Moving, StepFailure};
use crate::expression::{EvaluationFailure, RecordMetadata};
use crate::plan::{FailureKind, LeavePlan};
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

/// An output that is not committed yet.
#[derive(Debug, Clone)]
struct PendingOutput {
    stream: String,
    key: Option<String>,
    source: EventId,
    value: String,
    /// An id of its own, which the number of outputs does not change.
    id: Option<EventId>,
}

/// The results of one record or timer; they become visible together.
#[derive(Debug, Clone, Default)]
pub(super) struct Results {
    outputs: Vec<PendingOutput>,
    dead_letters: Vec<ModelDeadLetter>,
    fates: BTreeMap<EventId, Place>,
    metrics: Vec<(String, String)>,
    /// The last record that was written by `emit`, and its stream.
    emitted: Option<(String, Moving)>,
    /// The sink that refused.
    refused: Option<(String, Moving, String)>,
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

impl FlowModel<'_> {
    /// Writes a record to a stream.
    pub(super) fn write(&mut self, stream: &str, moving: &Moving) -> Result<(), StepFailure> {
        let sink = self.process.sinks.iter().find(|sink| sink.stream == stream);
        let mut record = moving.record.clone();
        let refuse = |failure: EvaluationFailure| {
            StepFailure::of(FailureKind::Transform, failure, &moving.record)
        };
        if let Some(schema) = sink.and_then(|sink| sink.schema.as_ref()) {
            let schema = self.plan.schemas.get(schema);
            let fields = schema.map_or(&[][..], |schema| &schema.fields);
            if let Err(error) = conform(&mut record, fields) {
                return Err(refuse(*EvaluationFailure::new("schema.invalid", error)));
            }
        }
        if let Some(failure) = self.script.sinks.get(stream) {
            let failure = failure.to_failure();
            self.results.refused = Some((stream.to_owned(), moving.clone(), failure.to_string()));
            return Err(refuse(failure));
        }
        let key = match sink.map(|sink| sink.key.as_slice()) {
            Some(paths @ [_, ..]) => Some(key_of(&record, paths)),
            Some([]) | None => moving.metadata.key.clone(),
        };
        self.observe(stream, moving);
        self.results.outputs.push(PendingOutput {
            stream: stream.to_owned(),
            key,
            source: moving.id,
            value: record.to_string(),
            id: None,
        });
        self.results.settle(&moving.ids, Place::Delivered);
        Ok(())
    }

    /// A record leaves by `emit`.
    pub(super) fn emit(&mut self, stream: &str, moving: &Moving) -> Result<(), StepFailure> {
        self.write(stream, moving)?;
        self.results.emitted = Some((stream.to_owned(), moving.clone()));
        Ok(())
    }

    /// Metrics see every record that leaves by `emit` or `route`.
    fn observe(&mut self, stream: &str, moving: &Moving) {
        for metric in &self.process.metrics {
            let Some(expression) = &metric.expression else {
                continue;
            };
            let value = self.evaluate_for(expression, moving, Some(stream));
            // A metric never fails a record.
            let Ok(value) = value else { continue };
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
    ) -> Result<(), StepFailure> {
        match leave {
            LeavePlan::Emit(stream) => self.write(stream, moving)?,
            LeavePlan::DeadLetter(stream) => {
                let value = moving.record.to_string().into_bytes();
                self.bury(stream, failure, by, &moving.metadata, &value, &moving.ids);
            }
            LeavePlan::Skip => {
                self.results
                    .settle(&moving.ids, Place::Lost(LossReason::from_static("skipped")));
            }
        }
        Ok(())
    }

    /// Takes the way that the handler of a failure names.
    pub(super) fn handle(
        &mut self,
        failure: &StepFailure,
        metadata: &RecordMetadata,
        value: &[u8],
        ids: &[EventId],
    ) {
        let kind = FailureKind::ALL
            .iter()
            .find(|(kind, _)| *kind == failure.kind);
        let by = kind.map_or("", |(_, word)| word);
        let handler = self
            .process
            .handlers
            .iter()
            .find(|handler| handler.failure == failure.kind);
        let fallback = LeavePlan::DeadLetter(format!("{}_dlq", self.name));
        let leave = handler.map_or(&fallback, |handler| &handler.leave).clone();
        match &leave {
            LeavePlan::DeadLetter(stream) => self.bury(stream, failure, by, metadata, value, ids),
            LeavePlan::Emit(_) | LeavePlan::Skip => {
                let moving = Moving {
                    record: failure.record.clone(),
                    metadata: metadata.clone(),
                    time: self.now(),
                    id: ids.first().copied().unwrap_or(EventId::from_u128(0)),
                    ids: ids.to_vec(),
                };
                if let Err(second) = self.leave(&leave, &moving, failure, by) {
                    // The way out is closed, too: the record is kept where it can be replayed.
                    let stream = format!("{}_dlq", self.name);
                    self.bury(&stream, &second, by, metadata, value, ids);
                }
            }
        }
    }

    /// Writes a dead letter.
    pub(super) fn bury(
        &mut self,
        stream: &str,
        failure: &StepFailure,
        by: &str,
        metadata: &RecordMetadata,
        value: &[u8],
        ids: &[EventId],
    ) {
        let text = String::from_utf8_lossy(value).into_owned();
        self.results.dead_letters.push(ModelDeadLetter {
            stream: stream.to_owned(),
            code: failure.code.to_string(),
            message: failure.message.clone(),
            attempts: failure.attempts,
            value: text,
        });
        let now = u64::try_from(self.now()).unwrap_or(0);
        let id = ids.first().copied().or_else(|| metadata.id.parse().ok());
        let id = id.unwrap_or(EventId::from_u128(0));
        let reason = match failure.class {
            FailureClass::Transient => Reason::RetriesExhausted,
            FailureClass::Permanent | FailureClass::System if by == "decode" => {
                Reason::DeserializationFailure
            }
            FailureClass::Permanent | FailureClass::System => Reason::NonRetryable,
        };
        if let Ok(topic) = Topic::new(metadata.topic.clone()) {
            let letter = DeadLetter {
                event_id: id,
                origin: RecordOrigin {
                    topic,
                    partition: Partition(0),
                    offset: Offset(metadata.offset),
                    timestamp_ms: metadata.timestamp.as_millisecond(),
                },
                key: metadata
                    .key
                    .clone()
                    .map(|key| Bytes::from(key.into_bytes())),
                value: Some(Bytes::copy_from_slice(value)),
                headers: Vec::new(),
                group: None,
                reason,
                dead_at_ms: now,
                attempts: failure.attempts,
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
                }),
            };
            self.results.outputs.push(PendingOutput {
                stream: stream.to_owned(),
                key: metadata.key.clone(),
                source: id,
                value: letter.to_envelope(),
                id: Some(id),
            });
        }
        self.results.settle(ids, Place::DeadLettered);
    }

    /// Everything of one record or timer becomes visible, and the books are written.
    pub(super) fn commit(&mut self) {
        self.complete();
        let results = std::mem::take(&mut self.results);
        let free = results.outputs.iter().filter(|output| output.id.is_none());
        let mut counts: BTreeMap<EventId, usize> = BTreeMap::new();
        for output in free {
            *counts.entry(output.source).or_default() += 1;
        }
        let mut index: BTreeMap<EventId, usize> = BTreeMap::new();
        for output in results.outputs {
            let id = output.id.unwrap_or_else(|| {
                if counts.get(&output.source) == Some(&1) {
                    return output.source;
                }
                let at = index.entry(output.source).or_default();
                *at += 1;
                EventId::derived(&[
                    &output.source.to_string(),
                    &output.stream,
                    &(*at - 1).to_string(),
                ])
            });
            self.outputs.push(ModelOutput {
                stream: output.stream,
                key: output.key,
                id,
                value: output.value,
                at: Self::timestamp(self.now()),
            });
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

    /// Adds the records that tell about the commit.
    fn complete(&mut self) {
        let emitted = self
            .results
            .emitted
            .take()
            .map(|(stream, moving)| (false, stream, moving, None));
        let refused = self.results.refused.take();
        let refused = refused.map(|(stream, moving, error)| (true, stream, moving, Some(error)));
        for (is_failure, stream, moving, error) in emitted.into_iter().chain(refused) {
            for plan in self
                .process
                .completions
                .iter()
                .filter(|plan| plan.on_failure == is_failure)
            {
                let raw = |path: &str| raw_at(&moving.record, path).unwrap_or("null").to_owned();
                let mut record = JsonRecord::default();
                let id = moving.id.to_string();
                record.set_raw("correlation_id", raw(&plan.correlation));
                let texts = [
                    ("transaction_id", id.as_str()),
                    ("status", if is_failure { "FAILED" } else { "COMMITTED" }),
                    ("target_system", &stream),
                    ("target_id", moving.metadata.key.as_deref().unwrap_or(&id)),
                ];
                let mut fields: Vec<(&str, FlowValue<'_>)> = Vec::new();
                fields.extend(texts.map(|(name, text)| (name, FlowValue::text(text))));
                fields.push((
                    "timestamp",
                    FlowValue::Timestamp(Self::timestamp(self.now())),
                ));
                for (name, value) in fields {
                    record.set_raw(name, value.to_json().unwrap_or_default());
                }
                for path in &plan.include {
                    record.set_raw(super::fields::last_name(path), raw(path));
                }
                let details = error.as_deref().map_or(FlowValue::Null, FlowValue::text);
                record.set_raw("error_details", details.to_json().unwrap_or_default());
                let id = EventId::derived(&[&id, &plan.stream, "completion"]);
                self.results.outputs.push(PendingOutput {
                    stream: plan.stream.clone(),
                    key: Some(key_of(
                        &moving.record,
                        std::slice::from_ref(&plan.correlation),
                    )),
                    source: id,
                    value: record.to_string(),
                    id: Some(id),
                });
            }
        }
    }
}
