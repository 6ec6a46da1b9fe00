//! The outcome of each record of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::ProducerContext;
use tidegate_core::{Mutex, Offset};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::kafka::client_context::KafkaClientContext;

/// Takes the delivery reports of a producer, and notifies the waiting caller.
#[derive(Debug, Default)]
pub(in crate::kafka) struct Deliveries {
    pub(in crate::kafka) context: KafkaClientContext,
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.context.line(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.failure(&error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<DeliveryHandle>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<DeliveryHandle>) {
        match result {
            Ok(message) => ticket.waiting.tell(ticket.index, Ok(message.offset())),
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                ticket.waiting.tell(ticket.index, Err(code));
            }
        }
    }
}

/// The handle that the client keeps beside a record on its way.
#[derive(Debug)]
pub(in crate::kafka) struct DeliveryHandle {
    waiting: Arc<PendingDeliveries>,
    index: usize,
}

impl DeliveryHandle {
    pub(in crate::kafka) fn new(waiting: &Arc<PendingDeliveries>, index: usize) -> Box<Self> {
        Box::new(Self {
            waiting: Arc::clone(waiting),
            index,
        })
    }

    /// Takes back a record that was not sent, for this reason.
    pub(in crate::kafka) fn withdraw(&self, code: RDKafkaErrorCode) {
        self.waiting.tell(self.index, Err(code));
    }
}

/// A record of a call that was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kafka) struct FailedDelivery {
    pub(in crate::kafka) index: usize,
    pub(in crate::kafka) code: RDKafkaErrorCode,
}

/// The records of one call that are on their way.
#[derive(Debug)]
pub(in crate::kafka) struct PendingDeliveries {
    left: AtomicUsize,
    offsets: Vec<AtomicI64>,
    failed: Mutex<Vec<FailedDelivery>>,
    done: Mutex<Option<oneshot::Sender<()>>>,
    /// The call's share of what may be on its way, given back with the last record.
    _room: Option<OwnedSemaphorePermit>,
}

/// The offset of a record that was not delivered, or whose place is not known.
const NOWHERE: i64 = -1;

impl PendingDeliveries {
    /// For so many records; the receiver hears when each was told.
    pub(in crate::kafka) fn new(
        records: usize,
        room: Option<OwnedSemaphorePermit>,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (tell, done) = oneshot::channel();
        let waiting = Self {
            left: AtomicUsize::new(records),
            offsets: (0..records).map(|_| AtomicI64::new(NOWHERE)).collect(),
            failed: Mutex::default(),
            done: Mutex::new(Some(tell)),
            _room: room,
        };
        (Arc::new(waiting), done)
    }

    fn tell(&self, index: usize, result: Result<i64, RDKafkaErrorCode>) {
        match result {
            Ok(offset) => {
                if let Some(slot) = self.offsets.get(index) {
                    slot.store(offset, Ordering::Relaxed);
                }
            }
            Err(code) => {
                self.failed.lock().push(FailedDelivery { index, code });
            }
        }
        // Release and acquire, so that whoever hears of the last one sees the offsets of all.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let tell = self.done.lock().take();
            if let Some(tell) = tell {
                // The caller may have stopped waiting.
                tell.send(()).ok();
            }
        }
    }

    /// How many were not told yet.
    pub(in crate::kafka) fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// The failure that was told first.
    pub(in crate::kafka) fn failed(&self) -> Option<FailedDelivery> {
        self.failed.lock().first().copied()
    }

    pub(in crate::kafka) fn all_failed(&self) -> Vec<FailedDelivery> {
        self.failed.lock().clone()
    }

    pub(in crate::kafka) fn offset(&self, index: usize) -> Option<Offset> {
        let offset = self.offsets.get(index)?.load(Ordering::Relaxed);
        (offset >= 0).then_some(Offset(offset))
    }
}
