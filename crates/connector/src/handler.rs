//! Handlers: what is done with records.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tidegate_core::dead_letter::name;
use tidegate_core::env::BoxFuture;
use tidegate_core::{
    Code, EventId, Failure, ForeignIds, Mutex, Offset, Partition, TierIndex, Topic,
};
use tidegate_log::{Append, Headers, Record, StoredRecord, TopicPartition};

use crate::attempt::SingleRun;

/// A record in the hands of a handler.
#[derive(Debug)]
pub struct ConsumedRecord {
    source: Arc<RecordSource>,
    stored: StoredRecord,
    event_id: EventId,
    tier: TierIndex,
    attempt: AtomicU32,
    received_ms: u64,
    outputs: Mutex<Vec<Append>>,
}

/// Where records were taken from, and who took them.
#[derive(Debug)]
pub(crate) struct RecordSource {
    pub(crate) at: TopicPartition,
    pub(crate) consumer: Arc<ConsumerName>,
    ids: ForeignIds,
}

impl RecordSource {
    pub(crate) fn new(at: TopicPartition, consumer: Arc<ConsumerName>, cluster: &str) -> Self {
        let ids = ForeignIds::new(cluster, &at.topic, at.partition);
        Self { at, consumer, ids }
    }

    /// The id of the event in a record: the one it carries, or the one that follows from where it lies.
    pub(crate) fn event_id(&self, stored: &StoredRecord) -> EventId {
        let carried = stored.record.headers.event_id();
        carried.unwrap_or_else(|| self.ids.at(stored.offset))
    }
}

/// Who took a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConsumerName {
    pub(crate) binding: String,
    /// The name of its consumers in the program's log.
    pub(crate) container: String,
    pub(crate) group: String,
    /// The host and the number of the consumer.
    pub(crate) instance: String,
}

impl ConsumedRecord {
    pub(crate) fn new(
        source: Arc<RecordSource>,
        stored: StoredRecord,
        event_id: EventId,
        tier: TierIndex,
        received_ms: u64,
    ) -> Self {
        Self {
            source,
            stored,
            event_id,
            tier,
            attempt: AtomicU32::new(0),
            received_ms,
            outputs: Mutex::default(),
        }
    }

    /// Another record of the main topic takes this one's place.
    pub(crate) fn become_next(
        &mut self,
        source: &Arc<RecordSource>,
        stored: StoredRecord,
        event_id: EventId,
        received_ms: u64,
    ) {
        if !Arc::ptr_eq(&self.source, source) {
            self.source = Arc::clone(source);
        }
        (self.stored, self.event_id, self.received_ms) = (stored, event_id, received_ms);
        self.tier = TierIndex(0);
        self.attempt = AtomicU32::new(0);
        self.outputs.get_mut().clear();
    }

    /// The topic it lies in; in a tier that is the topic of the tier.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        &self.source.at.topic
    }

    /// The partition it lies in.
    #[must_use]
    pub fn partition(&self) -> Partition {
        self.source.at.partition
    }

    /// Its offset there.
    #[must_use]
    pub fn offset(&self) -> Offset {
        self.stored.offset
    }

    /// The id of its event, the same at every delivery in every topic. It is what to deduplicate by.
    #[must_use]
    pub fn event_id(&self) -> EventId {
        self.event_id
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Option<&Bytes> {
        self.stored.record.key.as_ref()
    }

    /// Its value; none is a tombstone, which differs from an empty one.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        self.stored.record.value.as_ref()
    }

    /// Its headers, as they lie in the topic.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.stored.record.headers
    }

    /// When it was made, in milliseconds since 1970.
    #[must_use]
    pub fn timestamp_ms(&self) -> u64 {
        self.stored.record.timestamp_ms
    }

    /// The tier it is in; 0 is the main topic.
    #[must_use]
    pub fn tier(&self) -> TierIndex {
        self.tier
    }

    /// The number of this attempt within this delivery, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt.load(Ordering::Relaxed)
    }

    /// The binding it was taken by.
    #[must_use]
    pub fn binding(&self) -> &str {
        &self.source.consumer.binding
    }

    /// When the binding received it, in milliseconds since 1970.
    #[must_use]
    pub fn received_ms(&self) -> u64 {
        self.received_ms
    }

    /// The headers that the binding adds for its handler.
    #[must_use]
    pub fn inbound_headers(&self) -> [(&'static str, String); 3] {
        [
            (name::BINDING_NAME, self.source.consumer.binding.clone()),
            (name::RECEIVED_TIMESTAMP, self.received_ms.to_string()),
            (
                name::CONSUMER_INSTANCE,
                self.source.consumer.instance.clone(),
            ),
        ]
    }

    /// Writes a record in one commit with the offset of this one, once the handler has succeeded. A failed
    /// attempt writes nothing. The binding must be `transactional`, or hand off at least once.
    pub fn send(&self, output: Append) {
        self.outputs.lock().push(output);
    }

    pub(crate) fn consumer(&self) -> &ConsumerName {
        &self.source.consumer
    }

    pub(crate) fn stored(&self) -> &StoredRecord {
        &self.stored
    }

    pub(crate) fn record(&self) -> &Record {
        &self.stored.record
    }

    pub(crate) fn begin_attempt(self: &mut Arc<Self>, attempt: u32) {
        // The handler of an earlier attempt may have kept it.
        match Arc::get_mut(self) {
            Some(alone) => {
                alone.attempt = AtomicU32::new(attempt);
                alone.outputs.get_mut().clear();
            }
            None => {
                self.attempt.store(attempt, Ordering::Relaxed);
                self.outputs.lock().clear();
            }
        }
    }

    pub(crate) fn take_outputs(self: &mut Arc<Self>) -> Vec<Append> {
        match Arc::get_mut(self) {
            Some(alone) => std::mem::take(alone.outputs.get_mut()),
            None => std::mem::take(&mut *self.outputs.lock()),
        }
    }
}

/// A record that was not handled.
///
/// ```
/// use std::time::Duration;
/// use tidegate_connector::HandlerFailure;
/// use tidegate_core::{Code, Failure};
/// let failure = Failure::transient(Code::from_static("service.unavailable"), "try later");
/// let failure = HandlerFailure::from(failure).retry_after(Duration::from_secs(2));
/// assert_eq!(failure.to_string(), "service.unavailable: try later");
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{failure}")]
pub struct HandlerFailure {
    pub(crate) failure: Failure,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) is_undecodable: bool,
}

impl HandlerFailure {
    /// The bytes are not what the topic promises: the record goes to the dead letters at once.
    pub fn undecodable(message: impl Into<String>) -> Self {
        let code = Code::from_static("schema.invalid");
        Self {
            failure: Failure::permanent(code, message),
            retry_after: None,
            is_undecodable: true,
        }
    }

    /// The next attempt in memory comes no earlier than this.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl From<Failure> for HandlerFailure {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            retry_after: None,
            is_undecodable: false,
        }
    }
}

/// The answer of a handler: handled, or why not.
pub type HandlerAnswer = Result<(), HandlerFailure>;

/// Handles records one by one.
///
/// It may be called more than once for one record: after a failure, a crash or a rebalance. A panic or a
/// call beyond the deadline is a transient failure.
pub trait RecordHandler: Send + Sync + 'static {
    /// Handles one record.
    fn handle(&self, record: &ConsumedRecord) -> impl Future<Output = HandlerAnswer> + Send;

    /// Whether it writes a record for each one that it handles ([`ConsumedRecord::send`]). A binding that allows
    /// no outputs refuses such a handler when it is registered.
    fn sends(&self) -> bool {
        false
    }
}

/// Handles the records of a batch in one call.
pub trait BatchRecordHandler: Send + Sync + 'static {
    /// Handles the records, which are in the order of their offsets, and answers for each of them in the
    /// same order.
    fn handle_batch(
        &self,
        records: &[Arc<ConsumedRecord>],
    ) -> impl Future<Output = Vec<HandlerAnswer>> + Send;
}

/// A handler of single records, as runs are driven by it: one future for a run, not one for each record.
pub(crate) trait DriveRun: Send + Sync {
    fn drive<'a>(&'a self, run: &'a mut SingleRun<'_>) -> BoxFuture<'a>;
}

/// A closure that handles a record.
struct ActOn<F>(F);

impl<F, R> DriveRun for ActOn<F>
where
    F: Fn(Arc<ConsumedRecord>) -> R + Send + Sync,
    R: Future<Output = HandlerAnswer> + Send + 'static,
{
    fn drive<'a>(&'a self, run: &'a mut SingleRun<'_>) -> BoxFuture<'a> {
        Box::pin(run.call_each(&self.0))
    }
}

pub(crate) type BatchFn =
    dyn Fn(Vec<Arc<ConsumedRecord>>) -> BoxFuture<'static, Vec<HandlerAnswer>> + Send + Sync;

/// Any handler, as a binding takes it.
///
/// ```
/// use tidegate_connector::BoundHandler;
/// let handler = BoundHandler::from_fn(|record| async move {
///     println!("{:?}", record.value());
///     Ok(())
/// });
/// # drop(handler);
/// ```
#[derive(Clone)]
pub struct BoundHandler {
    pub(crate) kind: HandlerKind,
    /// Whether it writes a record for each one that it handles.
    pub(crate) sends: bool,
}

#[derive(Clone)]
pub(crate) enum HandlerKind {
    Single(Arc<dyn DriveRun>),
    Batch(Arc<BatchFn>),
}

impl BoundHandler {
    /// A handler of single records.
    pub fn new(handler: impl RecordHandler) -> Self {
        let (sends, handler) = (handler.sends(), Arc::new(handler));
        let act = move |record: Arc<ConsumedRecord>| {
            let handler = Arc::clone(&handler);
            async move { handler.handle(&record).await }
        };
        Self {
            sends,
            ..Self::from_fn(act)
        }
    }

    /// A closure as the handler of single records.
    pub fn from_fn<R>(act: impl Fn(Arc<ConsumedRecord>) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = HandlerAnswer> + Send + 'static,
    {
        Self {
            kind: HandlerKind::Single(Arc::new(ActOn(act))),
            sends: false,
        }
    }

    /// A closure that gets the value as a type, read from JSON; none is a tombstone. A value that is not
    /// that goes to the dead letters at once.
    pub fn typed<T, R>(
        act: impl Fn(Option<T>, Arc<ConsumedRecord>) -> R + Send + Sync + 'static,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        R: Future<Output = HandlerAnswer> + Send + 'static,
    {
        let act = Arc::new(act);
        Self::from_fn(move |record| {
            let act = Arc::clone(&act);
            async move {
                let value = match record.value() {
                    Some(value) => Some(serde_json::from_slice::<T>(value).map_err(|error| {
                        HandlerFailure::undecodable(format!("the value is not readable: {error}"))
                    })?),
                    None => None,
                };
                act(value, record).await
            }
        })
    }

    /// A handler of whole batches, for a binding with the listener type BATCH.
    pub fn batch(handler: impl BatchRecordHandler) -> Self {
        let handler = Arc::new(handler);
        let act =
            move |records: Vec<Arc<ConsumedRecord>>| -> BoxFuture<'static, Vec<HandlerAnswer>> {
                let handler = Arc::clone(&handler);
                Box::pin(async move { handler.handle_batch(&records).await })
            };
        Self {
            kind: HandlerKind::Batch(Arc::new(act)),
            sends: false,
        }
    }

    /// Whether it takes whole batches.
    pub(crate) fn is_batch(&self) -> bool {
        match self.kind {
            HandlerKind::Batch(_) => true,
            HandlerKind::Single(_) => false,
        }
    }
}

impl fmt::Debug for BoundHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_batch() {
            "BoundHandler(batch)"
        } else {
            "BoundHandler(single)"
        })
    }
}
