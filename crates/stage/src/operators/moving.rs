//! A record on its way through the steps, and its bytes where it waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_core::{EventId, Failure, FailureClass};
use tidegate_flow::apply::{RecordView, StepRefusal};
use tidegate_flow::expression::{EvaluationFailure, RecordMetadata};
use tidegate_flow::plan::FailureKind;
use tidegate_flow::value::JsonRecord;

use crate::task_state::codec::{Reader, Writer};

/// An event of an input, whose books it counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputEvent {
    pub(super) input: u16,
    pub(super) id: EventId,
}

/// A record on its way through the steps.
#[derive(Debug, Clone)]
pub(super) struct Moving {
    pub(super) record: JsonRecord,
    pub(super) metadata: Arc<RecordMetadata>,
    /// Its event time, or the time when it came.
    pub(super) time: i64,
    pub(super) id: EventId,
    /// The events that it stands for in the books.
    pub(super) events: Vec<InputEvent>,
}

/// Why a step did not do its work.
#[derive(Debug)]
pub(super) enum StepFailure {
    /// It failed on a record, which stands here as it came to the step.
    Record {
        refusal: StepRefusal,
        moving: Box<Moving>,
    },
    /// The stage cannot go on.
    Stage(Failure),
}

impl From<Failure> for StepFailure {
    fn from(failure: Failure) -> Self {
        Self::Stage(failure)
    }
}

/// The end of a step.
pub(super) type Stepped<T = ()> = Result<T, StepFailure>;

pub(super) fn timestamp(ms: i64) -> Timestamp {
    let bound = if ms < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::from_millisecond(ms).unwrap_or(bound)
}

/// A duration of the plan as time is counted.
pub(super) fn ms(duration: u64) -> i64 {
    i64::try_from(duration).unwrap_or(i64::MAX)
}

impl Moving {
    pub(super) fn with(&self, record: JsonRecord) -> Self {
        Self {
            record,
            ..self.clone()
        }
    }

    pub(super) fn view(&self) -> RecordView<'_> {
        RecordView {
            record: &self.record,
            metadata: &self.metadata,
            time: self.time,
        }
    }

    pub(super) fn refuses(&self, refusal: StepRefusal) -> StepFailure {
        if refusal.failure.class == FailureClass::System {
            return StepFailure::Stage(Failure::from(*refusal.failure));
        }
        StepFailure::Record {
            refusal,
            moving: Box::new(self.clone()),
        }
    }

    pub(super) fn fails(&self, kind: FailureKind, failure: Box<EvaluationFailure>) -> StepFailure {
        self.refuses(StepRefusal::of(kind, failure))
    }

    pub(super) fn refused(
        &self,
        kind: FailureKind,
        code: &'static str,
        message: &str,
    ) -> StepFailure {
        self.refuses(StepRefusal::new(kind, code, message))
    }

    pub(super) fn key(&self) -> &str {
        self.metadata.key.as_deref().unwrap_or_default()
    }

    /// Appends its bytes; the record stands last, so nothing may follow.
    pub(super) fn write(&self, writer: &mut Writer) {
        let metadata = &self.metadata;
        writer.signed(self.time).id(self.id.as_u128());
        match &metadata.key {
            None => writer.byte(0),
            Some(key) => writer.byte(1).bytes(key.as_bytes()),
        };
        writer.bytes(metadata.topic.as_bytes());
        writer.signed(metadata.partition).signed(metadata.offset);
        writer.signed(metadata.timestamp.as_millisecond());
        writer.number(metadata.headers.len() as u64);
        for (name, value) in &metadata.headers {
            writer.bytes(name.as_bytes()).bytes(value.as_bytes());
        }
        writer.number(self.events.len() as u64);
        for event in &self.events {
            writer.number(u64::from(event.input)).id(event.id.as_u128());
        }
        let mut text = String::new();
        self.record.write(&mut text);
        writer.0.extend_from_slice(text.as_bytes());
    }

    /// The record of these bytes; none where they are not what was written.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (time, id) = (reader.signed()?, EventId::from_u128(reader.id()?));
        let key = match reader.byte()? {
            0 => None,
            _ => Some(reader.text()?.to_owned()),
        };
        let mut metadata = RecordMetadata {
            key,
            id: id.to_string(),
            topic: reader.text()?.to_owned(),
            partition: reader.signed()?,
            offset: reader.signed()?,
            timestamp: timestamp(reader.signed()?),
            headers: BTreeMap::new(),
        };
        for _ in 0..reader.number()? {
            let name = reader.text()?.to_owned();
            metadata.headers.insert(name, reader.text()?.to_owned());
        }
        let mut events = Vec::new();
        for _ in 0..reader.number()? {
            let input = u16::try_from(reader.number()?).ok()?;
            let id = EventId::from_u128(reader.id()?);
            events.push(InputEvent { input, id });
        }
        let record = JsonRecord::parse(reader.take(reader.0.len())?).ok()?;
        Some(Self {
            record,
            metadata: Arc::new(metadata),
            time,
            id,
            events,
        })
    }
}
