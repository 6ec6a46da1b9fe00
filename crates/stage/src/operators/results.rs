//! RecordResults of a record, their ids, dead letters, and the books.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::books::{LossReason, Place};
use tidegate_core::dead_letter::{Header, LastFailure, Reason, RecordOrigin, StageContext};
use tidegate_core::{
    DeadLetter, EventId, Failure, FailureClass, Offset, Partition, TierIndex, Topic,
};
use tidegate_flow::apply::{StepRefusal, completion_part};
use tidegate_flow::expression::RecordMetadata;
use tidegate_flow::plan::{CompletionPlan, FailureKind, LeavePlan};
use tidegate_flow::value::paths::{last_name, raw_at, topic_key_of};
use tidegate_flow::value::{FlowValue, JsonRecord};
use tidegate_log::Headers;

use super::moving::{InputEvent, Moving, StepFailure, Stepped, timestamp};
use super::{CHAIN, Run, damaged};
use crate::chain::{ChainOutput, OutputPartition, StageMove, StageOutput};
use crate::task_state::codec::{Reader, Writer};

/// The stream, the record, and why the stream refused it.
type Told = (String, Moving, Option<String>);

/// The results of one record or timer; they become visible together.
#[derive(Debug, Default)]
pub(super) struct RecordResults {
    /// Whether the id of an output depends on their number, and the output.
    outputs: Vec<(bool, StageOutput)>,
    fates: BTreeMap<InputEvent, Place>,
    /// By how many an event waits in more places than before.
    copies: BTreeMap<InputEvent, i64>,
    metrics: Vec<(usize, String)>,
    /// The records that were written by `emit`.
    emitted: Vec<Told>,
    /// The record that a stream refused.
    refused: Option<Told>,
}

impl RecordResults {
    pub(super) fn clear(&mut self) {
        let refused = self.refused.take();
        *self = Self {
            refused,
            ..Self::default()
        };
    }

    /// Decides the place of events. One with several results is delivered if one of them is.
    pub(super) fn settle(&mut self, events: &[InputEvent], place: &Place) {
        for event in events {
            let is_stronger = match self.fates.get(event) {
                None | Some(Place::Lost(_)) => true,
                Some(_) => matches!(place, Place::Parked | Place::DeadLettered),
            };
            if is_stronger {
                self.fates.insert(*event, place.clone());
            }
        }
    }

    /// The events wait in one more place, or in one less.
    pub(super) fn wait(&mut self, events: &[InputEvent], more: i64) {
        for event in events {
            *self.copies.entry(*event).or_default() += more;
        }
    }

    /// The events that left with an entry, which a timer took out.
    pub(super) fn left(&self) -> BTreeMap<InputEvent, i64> {
        self.copies.clone()
    }

    pub(super) fn restore(&mut self, copies: BTreeMap<InputEvent, i64>) {
        self.copies = copies;
    }
}

/// The record in hand: where it is, as long as no step decided on it.
#[derive(Debug, Clone)]
pub(super) struct InHand {
    pub(super) event: InputEvent,
    pub(super) place: Place,
    pub(super) copies: i64,
}

/// A record as it came: what a dead letter keeps.
#[derive(Debug)]
pub(super) struct RecordAsCame<'a> {
    pub(super) metadata: &'a RecordMetadata,
    /// The key as it lay in the log; that of the metadata without it.
    pub(super) key: Option<&'a Bytes>,
    pub(super) value: Option<Bytes>,
    pub(super) headers: Option<&'a Headers>,
    pub(super) events: &'a [InputEvent],
}

impl<'a> RecordAsCame<'a> {
    /// The record at a later place.
    pub(super) fn of(moving: &'a Moving) -> Self {
        Self {
            metadata: &moving.metadata,
            key: None,
            value: Some(Bytes::from(moving.record.to_string())),
            headers: None,
            events: &moving.events,
        }
    }
}

impl Run<'_> {
    /// Writes a record to a stream.
    pub(super) fn write(&mut self, stream: &str, moving: &Moving) -> Stepped {
        let fixed = self.fixed;
        let sink = fixed
            .process
            .sinks
            .iter()
            .find(|sink| sink.stream == stream);
        let schema = sink.and_then(|sink| sink.schema.as_ref());
        let kind = FailureKind::Transform;
        let conformed = match schema {
            None => None,
            Some(schema) => {
                let mut record = moving.record.clone();
                self.apply(moving, |apply, _| {
                    let conforms = apply.conform(&mut record, Some(schema));
                    conforms.map_err(|error| StepRefusal::new(kind, "schema.invalid", error))
                })?;
                Some(record)
            }
        };
        let record = conformed.as_ref().unwrap_or(&moving.record);
        let key = match sink.map(|sink| sink.key.as_slice()) {
            Some(paths @ [_, ..]) => Some(topic_key_of(record, paths)),
            Some([]) | None => moving.metadata.key.clone(),
        };
        let mut value = String::new();
        record.write(&mut value);
        let headers = headers_of(&moving.metadata);
        let limit = fixed.options.record_limit(stream);
        let size = value.len() + key.as_ref().map_or(0, String::len) + headers.as_bytes().len();
        if size > limit {
            let message =
                format!("the record for `{stream}` has {size} bytes, the limit is {limit}");
            let failure = moving.refused(kind, "output.too_large", &message);
            self.results.refused = Some((stream.to_owned(), moving.clone(), Some(message)));
            return Err(failure);
        }
        self.observe(stream, moving);
        let to = match sink.and_then(|sink| sink.fanout.as_deref()) {
            Some("broadcast") => OutputPartition::Broadcast,
            Some("round_robin") => OutputPartition::RoundRobin,
            Some(_) | None => OutputPartition::ByKey,
        };
        let output = StageOutput {
            to,
            headers,
            ..self.output(stream, key.map(Bytes::from), moving.id, Bytes::from(value))
        };
        self.results.outputs.push((true, output));
        self.results.settle(&moving.events, &Place::Delivered);
        Ok(())
    }

    /// A record leaves by `emit`.
    pub(super) fn emit(&mut self, stream: &str, moving: &Moving) -> Stepped {
        self.write(stream, moving)?;
        if !self.fixed.process.completions.is_empty() {
            let told = (stream.to_owned(), moving.clone(), None);
            self.results.emitted.push(told);
        }
        Ok(())
    }

    /// Sends a record through a topic of the stage's own, where it gets another key.
    pub(super) fn repartition(
        &mut self,
        topic: &str,
        key: String,
        value: Vec<u8>,
        moving: &Moving,
    ) {
        let output = self.output(topic, Some(Bytes::from(key)), moving.id, Bytes::from(value));
        self.results.outputs.push((true, output));
        self.results.settle(&moving.events, &Place::Delivered);
    }

    pub(super) fn skipped(&mut self, moving: &Moving) {
        let place = Place::Lost(LossReason::from_static("skipped"));
        self.results.settle(&moving.events, &place);
    }

    /// Metrics see every record that leaves by `emit` or `route`.
    fn observe(&mut self, stream: &str, moving: &Moving) {
        let fixed = self.fixed;
        for (at, metric) in fixed.process.metrics.iter().enumerate() {
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
                self.results.metrics.push((at, shown));
            }
        }
    }

    /// A record leaves by a handler, a timeout or a duplicate.
    pub(super) fn leave(
        &mut self,
        leave: &LeavePlan,
        moving: &Moving,
        refusal: &StepRefusal,
        by: &str,
    ) -> Stepped {
        match leave {
            LeavePlan::Emit(stream) => self.write(stream, moving)?,
            LeavePlan::DeadLetter(stream) => {
                self.bury(stream, refusal, by, &RecordAsCame::of(moving))
            }
            LeavePlan::Skip => self.skipped(moving),
        }
        Ok(())
    }

    /// Takes the way that the handler of a failure names.
    pub(super) fn handle(
        &mut self,
        failure: StepFailure,
        came: &RecordAsCame<'_>,
    ) -> Result<(), Failure> {
        let (refusal, failed) = match failure {
            StepFailure::Stage(failure) => return Err(failure),
            StepFailure::Record { refusal, moving } => (refusal, moving),
        };
        let fixed = self.fixed;
        let by = refusal.kind.word();
        let mut handlers = fixed.process.handlers.iter();
        let handler = handlers.find(|handler| handler.failure == refusal.kind);
        let leave = match handler.map(|handler| &handler.leave) {
            None => {
                self.bury(&fixed.dead_letters, &refusal, by, came);
                return Ok(());
            }
            Some(LeavePlan::DeadLetter(stream)) => {
                self.bury(stream, &refusal, by, came);
                return Ok(());
            }
            Some(leave) => leave,
        };
        let none = EventId::from_u128(0);
        let moving = Moving {
            record: failed.record,
            metadata: Arc::new(came.metadata.clone()),
            time: self.now,
            id: came.events.first().map_or(none, |event| event.id),
            events: came.events.to_vec(),
        };
        match self.leave(leave, &moving, &refusal, by) {
            Ok(()) => Ok(()),
            Err(StepFailure::Stage(failure)) => Err(failure),
            Err(StepFailure::Record { refusal, .. }) => {
                // The way out is closed, too: the record is kept where it can be replayed.
                self.bury(&fixed.dead_letters, &refusal, by, came);
                Ok(())
            }
        }
    }

    /// Writes a dead letter.
    pub(super) fn bury(
        &mut self,
        stream: &str,
        refusal: &StepRefusal,
        by: &str,
        came: &RecordAsCame<'_>,
    ) {
        let (failure, metadata) = (&refusal.failure, came.metadata);
        let now = u64::try_from(self.now).unwrap_or(0);
        let id = came.events.first().map(|event| event.id);
        let id = id.or_else(|| metadata.id.parse().ok());
        let id = id.unwrap_or(EventId::from_u128(0));
        let reason = match failure.class {
            FailureClass::Transient => Reason::RetriesExhausted,
            FailureClass::Permanent | FailureClass::System if by == "decode" => {
                Reason::DeserializationFailure
            }
            FailureClass::Permanent | FailureClass::System => Reason::NonRetryable,
        };
        self.results.settle(came.events, &Place::DeadLettered);
        // The topic of a record is a name that the log took.
        let topic = Topic::new(metadata.topic.clone());
        let Ok(topic) = topic.or_else(|_| Topic::new("unknown")) else {
            return;
        };
        let key = came.key.cloned();
        let key = key.or_else(|| metadata.key.clone().map(Bytes::from));
        let headers = came.headers.map(|headers| {
            let others = headers.iter().filter(|(name, _)| is_foreign(name));
            let header = |(name, value): (&str, Option<&[u8]>)| Header {
                name: name.to_owned(),
                value: value.map(Bytes::copy_from_slice),
            };
            others.map(header).collect()
        });
        let letter = DeadLetter {
            event_id: id,
            origin: RecordOrigin {
                topic,
                partition: Partition(i32::try_from(metadata.partition).unwrap_or(0)),
                offset: Offset(metadata.offset),
                timestamp_ms: metadata.timestamp.as_millisecond(),
            },
            key: key.clone(),
            value: came.value.clone(),
            headers: headers.unwrap_or_default(),
            group: None,
            reason,
            dead_at_ms: now,
            attempts: refusal.attempts,
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
                stage_name: self.fixed.name.clone(),
                stage_instance: self.fixed.options.instance.clone(),
                operator_name: by.to_owned(),
                failure_kind: Some(format!("{}_failure", refusal.kind.word())),
            }),
        };
        let value = Bytes::from(letter.to_envelope());
        let input = came
            .events
            .first()
            .map_or(0, |event| usize::from(event.input));
        let others = came.events.iter().skip(1);
        let output = StageOutput {
            dead_letter_of: Some(input),
            stands_for: others
                .map(|event| (usize::from(event.input), event.id))
                .collect(),
            ..self.output(stream, key, id, value)
        };
        self.results.outputs.push((false, output));
    }

    fn output(&self, stream: &str, key: Option<Bytes>, id: EventId, value: Bytes) -> StageOutput {
        StageOutput {
            stream: self.fixed.stream(stream),
            to: OutputPartition::ByKey,
            key,
            value: Some(value),
            headers: Headers::default(),
            id,
            timestamp_ms: u64::try_from(self.now).unwrap_or(0),
            dead_letter_of: None,
            stands_for: Vec::new(),
        }
    }

    /// Everything of one record or timer becomes visible, and the books are written.
    pub(super) fn commit(&mut self, out: &mut ChainOutput) -> Result<(), Failure> {
        self.complete();
        let results = std::mem::take(&mut self.results);
        if let [(_, _)] = results.outputs.as_slice() {
            out.outputs
                .extend(results.outputs.into_iter().map(|(_, one)| one));
        } else {
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
                out.outputs.push(output);
            }
        }
        out.metrics.extend(results.metrics);
        for (event, to) in results.fates {
            let more = results.copies.get(&event).copied().unwrap_or(0);
            let from = self.move_event(event, &to, more)?;
            if from != to {
                let input = usize::from(event.input);
                let id = event.id;
                out.moves.push(StageMove {
                    input,
                    id,
                    from,
                    to,
                });
            }
        }
        Ok(())
    }

    /// Writes down where an event is now, and says where it was.
    ///
    /// An event that waits in one place is parked, and needs no row. One that waits in several places, or is
    /// counted elsewhere while a part of it still waits, has one.
    fn move_event(&mut self, event: InputEvent, to: &Place, more: i64) -> Result<Place, Failure> {
        let mut key = vec![b'c'];
        key.extend_from_slice(&event.input.to_be_bytes());
        key.extend_from_slice(&event.id.as_u128().to_be_bytes());
        let in_hand = self.in_hand.as_mut().filter(|held| held.event == event);
        let (from, before) = if let Some(held) = in_hand {
            let was = (held.place.clone(), held.copies);
            held.place = to.clone();
            held.copies += more;
            was
        } else {
            match self.journal.get(CHAIN, &key) {
                None => (Place::Parked, 1),
                Some(bytes) => read_copies(&bytes).ok_or_else(|| damaged(CHAIN))?,
            }
        };
        let copies = before + more;
        if copies > 1 || (copies == 1 && *to != Place::Parked) {
            let mut writer = Writer::default();
            writer.signed(copies).0.extend(to.to_string().as_bytes());
            self.journal.put(CHAIN, &key, writer.0);
        } else if before > 1 || from != Place::Parked {
            self.journal.take(CHAIN, &key);
        }
        Ok(from)
    }

    /// Adds the records that tell about the commit, or about a stream that refused.
    fn complete(&mut self) {
        let mut told = std::mem::take(&mut self.results.emitted);
        told.extend(self.results.refused.take());
        for (number, (stream, moving, error)) in told.into_iter().enumerate() {
            let fixed = self.fixed;
            let tells = |plan: &&CompletionPlan| plan.on_failure == error.is_some();
            for plan in fixed.process.completions.iter().filter(tells) {
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
                    ("timestamp", FlowValue::Timestamp(timestamp(self.now))),
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
                let value = Bytes::from(record.to_string());
                let output = self.output(&plan.stream, Some(Bytes::from(key)), id, value);
                self.results.outputs.push((false, output));
            }
        }
    }
}

fn read_copies(bytes: &[u8]) -> Option<(Place, i64)> {
    let mut reader = Reader(bytes);
    let copies = reader.signed()?;
    let place = std::str::from_utf8(reader.0).ok()?;
    Some((place.parse().ok()?, copies))
}

/// Whether a header is the application's and not ours.
pub(super) fn is_foreign(name: &str) -> bool {
    !name.starts_with("x-tidegate-")
}

/// The headers that a record takes along.
fn headers_of(metadata: &RecordMetadata) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in &metadata.headers {
        headers.push(name, Some(value.as_bytes()));
    }
    headers
}
