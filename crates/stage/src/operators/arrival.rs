//! Records as they come: from a source, or from a topic of the stage's own.

use std::sync::Arc;

use tidegate_core::Failure;
use tidegate_core::books::Place;
use tidegate_flow::apply::{StepRefusal, slow_loss};
use tidegate_flow::expression::RecordMetadata;
use tidegate_flow::plan::FailureKind;
use tidegate_flow::value::JsonRecord;

use super::moving::{InputEvent, Moving, StepFailure, timestamp};
use super::results::{RecordAsCame, is_foreign};
use super::{Run, steps};
use crate::chain::InputRecord;

impl Run<'_> {
    /// One record of one source, from its bytes to its last place.
    pub(super) fn take(
        &mut self,
        at: usize,
        input: InputRecord<'_>,
        (event, metadata): (InputEvent, &Arc<RecordMetadata>),
        is_slow: bool,
    ) -> Result<(), Failure> {
        let fixed = self.fixed;
        let (source, record) = (&fixed.process.sources[at], &input.record.record);
        let events = [event];
        if let Some(reason) = slow_loss(&fixed.process.slow, event.id).filter(|_| is_slow) {
            self.results.settle(&events, &Place::Lost(reason));
            return Ok(());
        }
        let mark = self.journal.mark();
        let mut moving = Moving {
            record: JsonRecord::default(),
            metadata: Arc::clone(metadata),
            time: self.now,
            id: event.id,
            events: events.to_vec(),
        };
        let came = RecordAsCame {
            metadata,
            key: record.key.as_ref(),
            value: record.value.clone(),
            headers: Some(&record.headers),
            events: &events,
        };
        let value = record.value.as_deref().unwrap_or_default();
        match self.decode(source, value, &mut moving) {
            Ok(true) => {}
            Ok(false) => {
                self.results.settle(&events, &Place::Delivered);
                return Ok(());
            }
            Err(StepFailure::Stage(failure)) => return Err(failure),
            Err(StepFailure::Record { refusal, .. }) => {
                self.journal.undo_to(mark);
                self.results.clear();
                self.bury(&fixed.dead_letters, &refusal, "decode", &came);
                return Ok(());
            }
        }
        let time = moving.time;
        let topic = source.repartition.as_ref();
        let flowed = match topic.filter(|_| fixed.options.is_repartitioned) {
            Some(topic) => {
                let key = moving.key().to_owned();
                let value = steps::repartitioned("", &source.alias, &moving);
                self.repartition(topic, key, value, &moving);
                Ok(())
            }
            None => self.flow(&source.alias, 0, moving),
        };
        if let Err(failure) = flowed {
            self.journal.undo_to(mark);
            self.results.clear();
            self.handle(failure, &came)?;
        }
        self.seen(at, time);
        Ok(())
    }

    /// One record of a topic of the stage's own, which goes on where it was sent from.
    pub(super) fn arrived(
        &mut self,
        at: usize,
        input: InputRecord<'_>,
        (event, metadata): (InputEvent, &Arc<RecordMetadata>),
    ) -> Result<(), Failure> {
        let (fixed, record) = (self.fixed, &input.record.record);
        let (events, mark) = ([event], self.journal.mark());
        let value = record.value.as_deref().unwrap_or_default();
        let read = steps::read_repartitioned(value);
        let found = read.and_then(|(state, stream, moving)| {
            let mut steps = fixed.process.steps.iter();
            let step = steps.position(|step| step.state.as_ref() == Some(&state));
            (state.is_empty() || step.is_some()).then_some((step, stream, moving))
        });
        let Some((step, stream, mut moving)) = found else {
            let message = "the record is for a step that this plan does not have";
            let refusal = StepRefusal::new(FailureKind::Transform, "schema.invalid", message);
            let came = RecordAsCame {
                metadata,
                key: record.key.as_ref(),
                value: record.value.clone(),
                headers: Some(&record.headers),
                events: &events,
            };
            self.bury(&fixed.dead_letters, &refusal, "decode", &came);
            return Ok(());
        };
        moving.id = event.id;
        Arc::make_mut(&mut moving.metadata)
            .id
            .clone_from(&metadata.id);
        moving.events = events.to_vec();
        let (time, before) = (moving.time, moving.clone());
        let flowed = match step {
            Some(step) => self.arrive(step, &stream, moving),
            None => self.flow(&stream, 0, moving),
        };
        if let Err(failure) = flowed {
            self.journal.undo_to(mark);
            self.results.clear();
            self.handle(failure, &RecordAsCame::of(&before))?;
        }
        self.seen(at, time);
        Ok(())
    }

    /// An input has come as far as this event time.
    fn seen(&mut self, at: usize, time: i64) {
        if let Some(input) = self.progress.inputs.get_mut(at) {
            input.newest = input.newest.max(Some(time));
            input.last_seen = self.now;
        }
    }
}

pub(super) fn metadata_of(input: InputRecord<'_>) -> RecordMetadata {
    let record = &input.record.record;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = record.headers.iter().filter(|(name, _)| is_foreign(name));
    let headers = headers.filter_map(|(name, value)| {
        let value = std::str::from_utf8(value?).ok()?;
        Some((name.to_owned(), value.to_owned()))
    });
    RecordMetadata {
        key: record.key.as_deref().map(text),
        id: input.id.to_string(),
        topic: input.topic.to_owned(),
        partition: i64::from(input.partition),
        offset: input.record.offset.0,
        timestamp: timestamp(i64::try_from(record.timestamp_ms).unwrap_or(i64::MAX)),
        headers: headers.collect(),
    }
}
