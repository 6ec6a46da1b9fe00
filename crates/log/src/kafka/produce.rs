//! Appends: idempotent producers, and who waits for what they deliver.
//!
//! Sending never blocks, so it is done where the caller is; a thread per producer hears what was
//! delivered. Records on their way are bounded by bytes. They keep their share of the bound until the
//! broker has answered, whether or not somebody still waits. So a broker that is away costs no more
//! than that.

mod delivery;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tidegate_core::Mutex;
use tidegate_core::env::{Clock, Spawn};
use tokio::sync::{Semaphore, oneshot};

use crate::error::LogError;
use crate::port::{Append, RecordPosition};
use crate::record::{Record, TopicPartition};

use super::{KafkaConfig, KafkaInner, convert, failure, settings, telemetry};

pub(super) use delivery::{Deliveries, DeliveryHandle, FailedDelivery, PendingDeliveries};

/// Bytes that one permit of the bound stands for.
const GRAIN: usize = 1_024;
/// Records that are sent before others get the thread.
const BURST: usize = 1_000;

/// A record whose place is known.
#[derive(Debug, Clone)]
pub(super) struct RoutedRecord {
    pub(super) at: TopicPartition,
    pub(super) record: Record,
}

/// Records that may be sent: known topics, known partitions, no record too large.
#[derive(Debug)]
pub(super) struct ProduceBatch {
    pub(super) records: Vec<RoutedRecord>,
    /// Bytes of all records.
    pub(super) size: u64,
    /// The batch size that suits all topics.
    pub(super) batch_size: u64,
}

/// Records that the client has, up to the first one that it did not take.
struct HandedOver {
    producer: Arc<BaseProducer<Deliveries>>,
    waiting: Arc<PendingDeliveries>,
    done: oneshot::Receiver<()>,
    not_sent: Option<(usize, KafkaError)>,
}

/// The producers of a log: mostly one. A topic that takes only small batches gets one of its own,
/// because the client would otherwise build batches that the broker refuses.
pub(super) struct Producers {
    config: KafkaConfig,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    room: Arc<Semaphore>,
    room_permits: usize,
    by_batch_size: Mutex<BTreeMap<u64, Arc<BaseProducer<Deliveries>>>>,
    /// Counts appends without a key, which go to the partitions round-robin.
    unkeyed: AtomicU32,
}

impl Producers {
    pub(super) fn new(config: &KafkaConfig, clock: Arc<dyn Clock>, spawn: Arc<dyn Spawn>) -> Self {
        let room_permits = (config.max_in_flight / GRAIN).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            config: config.clone(),
            clock,
            spawn,
            room: Arc::new(Semaphore::new(room_permits)),
            room_permits,
            by_batch_size: Mutex::default(),
            unkeyed: AtomicU32::new(0),
        }
    }

    fn producer(&self, batch_size: u64) -> Result<Arc<BaseProducer<Deliveries>>, LogError> {
        let mut producers = self.by_batch_size.lock();
        match producers.get(&batch_size) {
            // After such an error a client takes nothing more, for ever.
            Some(producer) if producer.client().fatal_error().is_none() => {
                return Ok(Arc::clone(producer));
            }
            Some(_) | None => {}
        }
        let config = settings::producer(&self.config, batch_size);
        let producer = BaseProducer::from_config_and_context(&config, Deliveries::default());
        let producer = Arc::new(producer.map_err(|error| failure::of_settings(&error))?);
        let listened = Arc::downgrade(&producer);
        let task = Box::pin(async move { poll_events(&listened) });
        drop(self.spawn.spawn_thread("kafka-deliveries", task));
        let broken = producers.insert(batch_size, Arc::clone(&producer));
        drop(producers);
        if let Some(broken) = broken {
            tracing::warn!("a Kafka producer has failed for good and is replaced");
            // On a thread of its own: the end of a client may take its time.
            let task = Box::pin(async move { drop(broken) });
            drop(self.spawn.spawn_thread("kafka-part", task));
        }
        Ok(producer)
    }
}

/// Hears what was delivered for as long as the producer is there.
fn poll_events(producer: &Weak<BaseProducer<Deliveries>>) {
    while let Some(producer) = producer.upgrade() {
        producer.poll(Duration::from_millis(100));
    }
}

/// Gives a record to a producer; `false` when the client's queue is full.
pub(super) fn send(
    producer: &BaseProducer<Deliveries>,
    routed: &RoutedRecord,
    ticket: Box<DeliveryHandle>,
) -> Result<Option<Box<DeliveryHandle>>, KafkaError> {
    let record = &routed.record;
    let sent = producer.send(BaseRecord::<[u8], [u8], Box<DeliveryHandle>> {
        topic: routed.at.topic.as_str(),
        partition: Some(routed.at.partition.0),
        payload: record.value.as_deref(),
        key: record.key.as_deref(),
        timestamp: Some(convert::timestamp(record)),
        headers: convert::headers(record),
        delivery_opaque: ticket,
    });
    match sent {
        Ok(()) => Ok(None),
        Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), record)) => {
            Ok(Some(record.delivery_opaque))
        }
        Err((error, record)) => {
            record.delivery_opaque.withdraw(code_of(&error));
            Err(error)
        }
    }
}

impl KafkaInner {
    /// Finds out where records go, and refuses what cannot be sent before anything is.
    pub(super) async fn route(&self, appends: Vec<Append>) -> Result<ProduceBatch, LogError> {
        let mut batch = ProduceBatch {
            records: Vec::with_capacity(appends.len()),
            size: 0,
            batch_size: settings::BATCH_SIZE,
        };
        let count = self.producers.unkeyed.fetch_add(1, Ordering::Relaxed);
        let mut last: Option<(tidegate_core::Topic, super::catalog::KnownTopic)> = None;
        for append in appends {
            let known = match &last {
                Some((topic, known)) if *topic == append.topic => *known,
                Some(_) | None => {
                    let known = self.known(&append.topic).await?;
                    last = Some((append.topic.clone(), known));
                    known
                }
            };
            let size = append.record.size() as u64;
            if size > known.max_record_size {
                return Err(LogError::RecordTooLarge {
                    topic: append.topic,
                    size,
                    limit: known.max_record_size,
                });
            }
            // One partition per call, so that its records share batches.
            let partition = append.choose_partition(known.partitions, || count)?;
            let at = TopicPartition {
                topic: append.topic,
                partition,
            };
            batch.size += size;
            let batch_size = settings::batch_size(known.max_message_bytes);
            batch.batch_size = batch.batch_size.min(batch_size);
            batch.records.push(RoutedRecord {
                at,
                record: append.record,
            });
        }
        let limit = self.config.max_commit_size;
        telemetry::commit_size(batch.size);
        if batch.size > limit {
            return Err(LogError::CommitTooLarge {
                size: batch.size,
                limit,
            });
        }
        Ok(batch)
    }

    pub(super) async fn append(
        &self,
        records: Vec<Append>,
    ) -> Result<Vec<RecordPosition>, LogError> {
        let batch = self.route(records).await?;
        if batch.records.is_empty() {
            return Ok(Vec::new());
        }
        let producers = &self.producers;
        let until = producers.clock.elapsed() + self.config.request_timeout;
        let handed = self.hand_over(&batch, until, false).await?;
        if let Some((index, error)) = &handed.not_sent {
            return Err(self.not_sent(*index, &batch.records, error));
        }
        let left = until.saturating_sub(producers.clock.elapsed());
        let Some(Ok(())) = producers.clock.within(left, handed.done).await else {
            let why = handed.producer.context().context.last();
            return Err(unknown(&why.unwrap_or_else(|| self.late())));
        };
        self.delivered(&handed.waiting, batch.records)
    }

    /// Adds records, and waits until the client has told the outcome of each. The client never gives up on a
    /// record by itself. So nothing of the call is left in its queue afterwards.
    pub(super) async fn deliver(
        &self,
        records: Vec<Append>,
    ) -> Result<Vec<Result<(), LogError>>, LogError> {
        let batch = self.route(records).await?;
        if batch.records.is_empty() {
            return Ok(Vec::new());
        }
        let until = self.producers.clock.elapsed() + self.config.request_timeout;
        let handed = self.hand_over(&batch, until, true).await?;
        handed.done.await.ok();
        let mut outcomes: Vec<Result<(), LogError>> = Vec::new();
        outcomes.resize_with(batch.records.len(), || Ok(()));
        for FailedDelivery { index, code } in handed.waiting.all_failed() {
            if let (Some(outcome), Some(routed)) =
                (outcomes.get_mut(index), batch.records.get(index))
            {
                *outcome = Err(self.undelivered(routed, code));
            }
        }
        Ok(outcomes)
    }

    /// Gives records to the client, once there is room for them. A caller who `is_patient` waits for a full queue
    /// of the client, too.
    async fn hand_over(
        &self,
        batch: &ProduceBatch,
        until: Duration,
        is_patient: bool,
    ) -> Result<HandedOver, LogError> {
        let producers = &self.producers;
        let producer = producers.producer(batch.batch_size)?;
        let left = || until.saturating_sub(producers.clock.elapsed());
        let bytes = usize::try_from(batch.size).unwrap_or(usize::MAX);
        let permits = (bytes / GRAIN + 1).min(producers.room_permits);
        let room = Arc::clone(&producers.room)
            .acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX));
        let Some(Ok(room)) = producers.clock.within(left(), room).await else {
            let key = self.config.key("max-in-flight");
            return Err(self.away(format!("earlier appends wait for an answer (`{key}`)")));
        };
        let free = producers.room.available_permits();
        telemetry::in_flight((producers.room_permits - free) * GRAIN);
        let (waiting, done) = PendingDeliveries::new(batch.records.len(), Some(room));
        let mut not_sent: Option<(usize, KafkaError)> = None;
        for (index, routed) in batch.records.iter().enumerate() {
            let ticket = DeliveryHandle::new(&waiting, index);
            if let Some((refused, error)) = &not_sent {
                // The rest stays behind the record that was not taken. Other topics have no part in its refusal.
                let is_same = batch.records[*refused].at.topic == routed.at.topic;
                ticket.withdraw(code_behind(code_of(error), is_same));
                continue;
            }
            let mut ticket = Some(ticket);
            while let Some(offered) = ticket.take() {
                match send(&producer, routed, offered) {
                    Ok(None) => {}
                    Ok(Some(back)) if !is_patient && left().is_zero() => {
                        let full = RDKafkaErrorCode::QueueFull;
                        back.withdraw(full);
                        not_sent = Some((index, KafkaError::MessageProduction(full)));
                    }
                    Ok(Some(back)) => {
                        producers.clock.sleep(Duration::from_millis(1)).await;
                        ticket = Some(back);
                    }
                    Err(error) => not_sent = Some((index, error)),
                }
            }
            if index % BURST == BURST - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(HandedOver {
            producer,
            waiting,
            done,
            not_sent,
        })
    }

    /// The error of a record that the client did not take.
    fn not_sent(&self, index: usize, records: &[RoutedRecord], error: &KafkaError) -> LogError {
        let known = failure::code_of(error).map(failure::meaning);
        let (0, Some(routed)) = (index, records.first()) else {
            return unknown(&error.to_string());
        };
        if known == Some(failure::Meaning::TooLarge) {
            self.catalog.forget(&routed.at.topic);
        }
        let topic = Some(&routed.at.topic);
        self.config.failed("an append", topic, error)
    }

    /// Why a record was not added, or is not known to be.
    fn undelivered(&self, routed: &RoutedRecord, code: RDKafkaErrorCode) -> LogError {
        let topic = routed.at.topic.clone();
        // The known facts about the topic were not true any more.
        let known = self.catalog.forget(&topic);
        match failure::meaning(code) {
            failure::Meaning::Refusal if code == RDKafkaErrorCode::TopicAuthorizationFailed => {
                LogError::Forbidden {
                    topic,
                    doing: "an append",
                    why: failure::refusal(code),
                }
            }
            failure::Meaning::Refusal => LogError::Refused {
                doing: "an append",
                why: failure::refusal(code),
            },
            failure::Meaning::NoTopic => LogError::UnknownTopic { topic },
            failure::Meaning::TooLarge => LogError::RecordTooLarge {
                topic,
                size: routed.record.size() as u64,
                limit: known.map_or(0, |known| known.max_record_size),
            },
            failure::Meaning::NoAnswer if failure::is_about_record(code) => {
                LogError::RecordRefused {
                    topic,
                    why: code.to_string(),
                }
            }
            failure::Meaning::NoAnswer | failure::Meaning::Stale => unknown(&code.to_string()),
        }
    }

    /// Where the records lie, or why some do not.
    pub(super) fn delivered(
        &self,
        waiting: &PendingDeliveries,
        records: Vec<RoutedRecord>,
    ) -> Result<Vec<RecordPosition>, LogError> {
        if let Some(FailedDelivery { index, code }) = waiting.failed() {
            let error = match records.get(index) {
                Some(routed) => self.undelivered(routed, code),
                None => unknown(&code.to_string()),
            };
            // Other errors say that nothing was added, which is known only of a single record.
            let is_known = records.len() == 1
                || matches!(error, LogError::Refused { .. } | LogError::Forbidden { .. });
            return Err(match is_known {
                true => error,
                false => unknown(&code.to_string()),
            });
        }
        records
            .into_iter()
            .enumerate()
            .map(|(index, routed)| match waiting.offset(index) {
                Some(offset) => Ok(RecordPosition {
                    at: routed.at,
                    offset,
                }),
                None => Err(unknown("the broker has the records and does not say where")),
            })
            .collect()
    }
}

fn code_of(error: &KafkaError) -> RDKafkaErrorCode {
    failure::code_of(error).unwrap_or(RDKafkaErrorCode::Fail)
}

/// The outcome of a record that was not tried, because an earlier one of its call got `code`.
fn code_behind(code: RDKafkaErrorCode, is_same_topic: bool) -> RDKafkaErrorCode {
    let is_about_topic = match failure::meaning(code) {
        failure::Meaning::NoTopic | failure::Meaning::Refusal => true,
        failure::Meaning::NoAnswer | failure::Meaning::Stale | failure::Meaning::TooLarge => false,
    };
    match is_about_topic && !is_same_topic {
        true => RDKafkaErrorCode::PurgeQueue,
        false => code,
    }
}

fn unknown(why: &str) -> LogError {
    LogError::OutcomeUnknown {
        doing: "an append",
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_one_topic_says_nothing_about_records_of_others() {
        use RDKafkaErrorCode as Code;
        for code in [Code::UnknownTopic, Code::TopicAuthorizationFailed] {
            assert_eq!(code_behind(code, true), code);
            let other = code_behind(code, false);
            assert_eq!(failure::meaning(other), failure::Meaning::NoAnswer);
            assert!(!failure::is_about_record(other));
        }
        // Each of them may be the one that is too large.
        assert_eq!(
            code_behind(Code::MessageSizeTooLarge, false),
            Code::MessageSizeTooLarge
        );
    }
}
