//! Reads outside of any group: a few consumers that are assigned what is asked for.
//!
//! A consumer that was cut off by the size of a batch stays where it is. So a caller that reads a
//! partition to its end pays for the way in once.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidegate_core::env::Clock;
use tidegate_core::{Mutex, Offset};

use crate::error::LogError;
use crate::port::{Batch, Read};
use crate::record::TopicPartition;

use super::catalog::{BrokerQuery, watermarks};
use super::client_context::KafkaClientContext;
use super::convert::{RecordConverter, UnreadableRecord};
use super::{KafkaConfig, KafkaInner, convert, failure, settings};

/// Consumers that are kept for the next read.
const IDLE: usize = 4;

/// Consumers that read partitions outside of groups.
pub(super) struct KafkaReaders {
    config: KafkaConfig,
    clock: Arc<dyn Clock>,
    idle: Mutex<Vec<Reader>>,
}

struct Reader {
    consumer: BaseConsumer<KafkaClientContext>,
    /// The read that it is in the middle of.
    place: Option<Place>,
}

/// Where a consumer goes on.
struct Place {
    at: TopicPartition,
    next: Offset,
    /// The end of the partition when it was looked up last.
    end: Offset,
}

impl KafkaReaders {
    pub(super) fn new(config: KafkaConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            config,
            clock,
            idle: Mutex::default(),
        }
    }

    /// Reads; blocks. After an error the consumer is not used again.
    pub(super) fn read(&self, read: &Read) -> Result<Batch, LogError> {
        let mut reader = self.take(read)?;
        let batch = self.read_with(&mut reader, read)?;
        let mut idle = self.idle.lock();
        if idle.len() < IDLE {
            idle.push(reader);
        }
        Ok(batch)
    }

    /// A consumer that is there already, or one without a place, or a new one.
    fn take(&self, read: &Read) -> Result<Reader, LogError> {
        let mut idle = self.idle.lock();
        let is_there = |reader: &Reader| {
            let place = reader.place.as_ref();
            place.is_some_and(|place| place.at == read.at && place.next == read.from)
        };
        let found = idle.iter().position(is_there);
        let found = found.or_else(|| idle.iter().position(|reader| reader.place.is_none()));
        // With every consumer in the middle of something, the one that waited longest is taken.
        let found = found.or((idle.len() >= IDLE).then_some(0));
        if let Some(index) = found {
            return Ok(idle.remove(index));
        }
        drop(idle);
        let config = settings::reader(&self.config);
        let consumer =
            BaseConsumer::from_config_and_context(&config, KafkaClientContext::default());
        Ok(Reader {
            consumer: consumer.map_err(|error| failure::of_settings(&error))?,
            place: None,
        })
    }

    fn failed(&self, read: &Read, error: &KafkaError) -> LogError {
        self.config.failed("a read", Some(&read.at.topic), error)
    }

    fn range(&self, reader: &Reader, read: &Read) -> Result<(Offset, Offset), LogError> {
        let query = BrokerQuery::new(&self.clock, &self.config, self.config.request_timeout);
        watermarks(&reader.consumer, &query, &read.at)
    }

    fn read_with(&self, reader: &mut Reader, read: &Read) -> Result<Batch, LogError> {
        let goes_on = reader
            .place
            .take()
            .filter(|place| place.at == read.at && place.next == read.from);
        let end = match goes_on {
            Some(place) if place.next < place.end => place.end,
            Some(_) | None => {
                let (start, end) = self.range(reader, read)?;
                if read.from < start || read.from > end {
                    return Err(LogError::OutOfRange {
                        at: read.at.clone(),
                        asked: read.from,
                        start,
                        end,
                    });
                }
                if read.from == end && read.wait.is_zero() {
                    self.let_go(reader, read)?;
                    return Ok(empty(read));
                }
                self.assign(reader, read)?;
                end
            }
        };
        let batch = self.collect(reader, read, end)?;
        if batch.next < end {
            reader.place = Some(Place {
                at: read.at.clone(),
                next: batch.next,
                end,
            });
        } else {
            self.let_go(reader, read)?;
        }
        Ok(batch)
    }

    fn assign(&self, reader: &Reader, read: &Read) -> Result<(), LogError> {
        convert::places([(&read.at, read.from)])
            .and_then(|place| reader.consumer.assign(&place))
            .map_err(|error| self.failed(read, &error))
    }

    /// Nothing is fetched for a consumer that has no place.
    fn let_go(&self, reader: &Reader, read: &Read) -> Result<(), LogError> {
        reader
            .consumer
            .unassign()
            .map_err(|error| self.failed(read, &error))
    }

    /// Collects a batch from where the consumer is, which is at `read.from`.
    fn collect(&self, reader: &Reader, read: &Read, end: Offset) -> Result<Batch, LogError> {
        let mut batch = empty(read);
        let (mut bytes, mut converter) = (0, RecordConverter::default());
        let begin = self.clock.elapsed();
        let (waits_until, until) = (
            begin + read.wait,
            begin + read.wait + self.config.request_timeout,
        );
        loop {
            let now = self.clock.elapsed();
            match reader.consumer.poll(Duration::from_millis(50)) {
                Some(Ok(message)) => match converter.out(&message) {
                    // Before the place that was asked for lies only what was handed out before.
                    Ok(stored) if stored.offset < batch.next => {}
                    Ok(stored) => {
                        batch.next = Offset(stored.offset.0 + 1);
                        bytes += stored.record.size();
                        batch.records.push(stored);
                        let full = batch.records.len() >= read.max_records.max(1)
                            || bytes >= read.max_bytes;
                        if full || batch.next >= end {
                            return Ok(batch);
                        }
                    }
                    Err(UnreadableRecord { offset }) if batch.records.is_empty() => {
                        return Err(LogError::Damaged {
                            at: read.at.clone(),
                            from: offset,
                            to: Offset(offset.0 + 1),
                        });
                    }
                    Err(UnreadableRecord { .. }) => return Ok(batch),
                },
                // Everything up to the end that was looked up before has been seen, also holes.
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    batch.next = batch.next.max(end);
                    if !batch.records.is_empty() || now >= waits_until {
                        return Ok(batch);
                    }
                }
                Some(Err(error)) => self.check(reader, read, &error)?,
                None => {}
            }
            if batch.records.is_empty() && batch.next >= end && now >= waits_until {
                return Ok(batch);
            }
            if now >= until {
                let why = reader.consumer.context().last();
                return Err(self.config.away(why.unwrap_or_else(|| self.config.late())));
            }
        }
    }

    /// Tells errors that end a read from those that pass.
    fn check(&self, reader: &Reader, read: &Read, error: &KafkaError) -> Result<(), LogError> {
        let Some(code) = failure::code_of(error) else {
            return Err(self.failed(read, error));
        };
        if code == RDKafkaErrorCode::AutoOffsetReset || code == RDKafkaErrorCode::OffsetOutOfRange {
            let (start, end) = self.range(reader, read)?;
            return Err(LogError::OutOfRange {
                at: read.at.clone(),
                asked: read.from,
                start,
                end,
            });
        }
        // The reader is in no group, so it needs no right to one.
        let is_about_group = code == RDKafkaErrorCode::GroupAuthorizationFailed;
        match failure::meaning(code) {
            failure::Meaning::Refusal if !is_about_group => Err(self.failed(read, error)),
            failure::Meaning::NoTopic => Err(self.failed(read, error)),
            failure::Meaning::Refusal
            | failure::Meaning::NoAnswer
            | failure::Meaning::Stale
            | failure::Meaning::TooLarge => Ok(()),
        }
    }
}

fn empty(read: &Read) -> Batch {
    Batch {
        at: read.at.clone(),
        records: Vec::new(),
        next: read.from,
    }
}

impl KafkaInner {
    pub(super) async fn read(&self, read: Read) -> Result<Batch, LogError> {
        self.check_partition(&read.at).await?;
        let readers = Arc::clone(&self.readers);
        let longer = read.wait;
        self.ask_within("kafka-read", longer, move || readers.read(&read))
            .await
    }
}
