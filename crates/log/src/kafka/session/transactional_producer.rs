//! Transactions: records and offsets, all or none.
//!
//! ```text
//! announce ─▶ begin ─▶ deliver every record ─▶ offsets, under the group's generation ─▶ commit
//! ```
//!
//! Records are delivered before the offsets are added: the client otherwise waits for them within that
//! call, a tenth of a second at a time. [`transaction_step::next`] decides what follows an error.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer};
use tidegate_core::Mutex;
use tidegate_core::env::{Clock, Spawn};

use crate::error::LogError;
use crate::kafka::failure::{self, Meaning};
use crate::kafka::produce::{self, Deliveries, DeliveryHandle, PendingDeliveries, ProduceBatch};
use crate::kafka::{KafkaConfig, settings};
use crate::port::Join;

use super::member::GroupMember;
use super::transaction_step::{self, Next, StepAnswer, TransactionStep};

/// The pause between two looks for deliveries: the floor of a transaction. The client itself waits in whole
/// milliseconds, and burns a processor for what is less.
const PAUSE: Duration = Duration::from_micros(200);
/// How short one try of a call may be.
const SHORTEST_TRY: Duration = Duration::from_millis(1);
/// How long one try of a call may take before it is asked again.
const TRY: Duration = Duration::from_secs(5);

/// Why a transaction was not committed.
#[derive(Debug)]
pub(super) enum TransactionFailure {
    /// Nothing was changed, and it may succeed when it is done again.
    Redo,
    /// Nothing was changed.
    Undone(LogError),
    /// The outcome is unknown.
    Unknown(String),
}

/// Takes the deliveries that are there, and pauses where there were none.
fn serve(producer: &BaseProducer<Deliveries>) {
    let waiting = producer.in_flight_count();
    producer.poll(Duration::ZERO);
    if producer.in_flight_count() == waiting {
        std::thread::sleep(PAUSE);
    }
}

/// The producer of a session, which two threads share: that of its commits, and the one that looks up where
/// to begin and announces it first.
pub(super) type SharedProducer = Arc<Mutex<TransactionalProducer>>;

/// The transactional producer of a session.
pub(super) struct TransactionalProducer {
    config: KafkaConfig,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    id: String,
    /// The name of the member, if it has one.
    name: Option<String>,
    session: Duration,
    producer: Option<(u64, BaseProducer<Deliveries>)>,
    /// A producer was dropped in the middle of something. Until the next one has announced itself,
    /// readers of the partitions it wrote to wait.
    left_open: bool,
    /// An earlier process of this name may have left something open.
    is_new: bool,
    /// The records of the last transaction.
    last: Option<Arc<PendingDeliveries>>,
}

impl TransactionalProducer {
    pub(super) fn new(
        config: &KafkaConfig,
        (clock, spawn): (Arc<dyn Clock>, Arc<dyn Spawn>),
        id: String,
        join: &Join,
    ) -> Self {
        Self {
            config: config.clone(),
            clock,
            spawn,
            id,
            name: join.name.clone(),
            session: join.session_timeout,
            producer: None,
            left_open: false,
            is_new: join.instance.is_some(),
            last: None,
        }
    }

    /// The outcome of the records of the last transaction.
    pub(super) fn last(&self) -> Option<Arc<PendingDeliveries>> {
        self.last.clone()
    }

    /// Ends what an earlier producer left open, if any did. Returns whether nothing is open.
    pub(super) fn clean_up(&mut self, until: Duration) -> bool {
        if self.left_open && self.init_transactions(settings::BATCH_SIZE, until).is_err() {
            return false;
        }
        !self.left_open
    }

    /// Ends what an earlier process of this name left open: until then nobody hears what its group has
    /// committed. A member without a name of its own has no predecessor.
    ///
    /// # Errors
    /// The broker does not answer. One that refuses may still be read from, and says so to the first
    /// transaction.
    pub(super) fn announce(&mut self, until: Duration) -> Result<(), LogError> {
        if !self.is_new {
            return Ok(());
        }
        match self.init_transactions(settings::BATCH_SIZE, until) {
            Ok(()) => {}
            Err(TransactionFailure::Undone(error @ LogError::Unavailable { .. })) => {
                return Err(error);
            }
            Err(TransactionFailure::Undone(error)) => {
                tracing::debug!("a producer cannot be announced: {error}");
            }
            Err(TransactionFailure::Redo | TransactionFailure::Unknown(_)) => {
                return Err(self.config.away("a producer is not announced yet"));
            }
        }
        self.is_new = false;
        Ok(())
    }

    /// Writes records and offsets. `is_ours` says whether what is committed is still ours; it is asked
    /// once the generation that the broker will check is known.
    pub(super) fn write(
        &mut self,
        member: &GroupMember,
        batch: &ProduceBatch,
        offsets: &TopicPartitionList,
        until: Duration,
        is_ours: impl Fn() -> bool,
    ) -> Result<Arc<PendingDeliveries>, TransactionFailure> {
        self.last = None;
        self.init_transactions(batch.batch_size, until)?;
        self.step(TransactionStep::InitTransactions, until, |producer, _| {
            producer.begin_transaction()
        })?;
        let waiting = self.deliver(batch, until)?;
        self.last = Some(Arc::clone(&waiting));
        if offsets.count() > 0 {
            self.step(TransactionStep::Offsets, until, |producer, limit| {
                // Fresh each time: the generation changes without any partition being let go.
                let group = member.consumer.group_metadata();
                // In this order: the client moves on only after we let go. So if a generation is read
                // while the partitions are ours, they are ours under that generation.
                if !is_ours() || member.consumer.assignment_lost() {
                    return Err(stale());
                }
                match group {
                    Some(group) => producer.send_offsets_to_transaction(offsets, &group, limit),
                    None => Err(stale()),
                }
            })?;
        }
        self.step(TransactionStep::Commit, until, |producer, limit| {
            producer.commit_transaction(limit)
        })?;
        Ok(waiting)
    }

    /// A producer that has announced itself, with batches no larger than this.
    fn init_transactions(
        &mut self,
        batch_size: u64,
        until: Duration,
    ) -> Result<(), TransactionFailure> {
        let suits = |(size, _): &(u64, BaseProducer<Deliveries>)| *size <= batch_size;
        if self.producer.as_ref().is_some_and(suits) && !self.left_open {
            return Ok(());
        }
        self.part();
        let config = settings::transactional(
            &self.config,
            batch_size,
            (&self.id, self.name.as_deref()),
            self.session,
        );
        let producer = BaseProducer::from_config_and_context(&config, Deliveries::default());
        let producer = producer.map_err(|error| TransactionFailure::Undone(self.no(&error)))?;
        self.producer = Some((batch_size, producer));
        self.step(
            TransactionStep::InitTransactions,
            until,
            |producer, limit| producer.init_transactions(limit),
        )?;
        self.left_open = false;
        self.is_new = false;
        Ok(())
    }

    /// Delivers every record of the transaction.
    fn deliver(
        &mut self,
        batch: &ProduceBatch,
        until: Duration,
    ) -> Result<Arc<PendingDeliveries>, TransactionFailure> {
        let (waiting, _done) = PendingDeliveries::new(batch.records.len(), None);
        let sent = self.send(batch, &waiting, until);
        let error = match sent {
            Ok(()) => return Ok(waiting),
            Err(error) => error,
        };
        let is_late = self.clock.elapsed() >= until;
        Err(self.after(TransactionStep::Deliver, &error, is_late))
    }

    fn send(
        &self,
        batch: &ProduceBatch,
        waiting: &Arc<PendingDeliveries>,
        until: Duration,
    ) -> Result<(), KafkaError> {
        let Some((_, producer)) = &self.producer else {
            return Err(KafkaError::Canceled);
        };
        let late = || KafkaError::MessageProduction(RDKafkaErrorCode::OperationTimedOut);
        for (index, routed) in batch.records.iter().enumerate() {
            let mut ticket = Some(DeliveryHandle::new(waiting, index));
            while let Some(offered) = ticket.take() {
                if let Some(back) = produce::send(producer, routed, offered)? {
                    if self.clock.elapsed() >= until {
                        back.withdraw(RDKafkaErrorCode::QueueFull);
                        return Err(late());
                    }
                    serve(producer);
                    ticket = Some(back);
                }
            }
        }
        while waiting.left() > 0 {
            serve(producer);
            if let Some(failed) = waiting.failed() {
                return Err(KafkaError::MessageProduction(failed.code));
            }
            if self.clock.elapsed() >= until {
                return Err(late());
            }
        }
        match waiting.failed() {
            Some(failed) => Err(KafkaError::MessageProduction(failed.code)),
            None => Ok(()),
        }
    }

    /// Makes a call until it succeeds or something else is to be done.
    fn step(
        &mut self,
        step: TransactionStep,
        until: Duration,
        call: impl Fn(&BaseProducer<Deliveries>, Duration) -> Result<(), KafkaError>,
    ) -> Result<(), TransactionFailure> {
        loop {
            let Some((_, producer)) = &self.producer else {
                return Err(TransactionFailure::Redo);
            };
            // Purged records wait in the client's queue, and an abort waits for them.
            producer.poll(Duration::ZERO);
            let left = until.saturating_sub(self.clock.elapsed());
            let error = match call(producer, left.clamp(SHORTEST_TRY, TRY)) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let is_late = self.clock.elapsed() >= until;
            let answer = self.answer(step, &error, is_late);
            if transaction_step::next(step, answer) != Next::Again {
                return Err(self.after(step, &error, is_late));
            }
            if let Some((_, producer)) = &self.producer {
                serve(producer);
            }
        }
    }

    fn answer(&self, step: TransactionStep, error: &KafkaError, is_late: bool) -> StepAnswer {
        let code = failure::code_of(error);
        let meaning = code.map(failure::meaning);
        let said = if let KafkaError::Transaction(error) = error {
            StepAnswer {
                is_fatal: error.is_fatal(),
                is_retriable: error.is_retriable(),
                requires_abort: error.txn_requires_abort(),
                ..StepAnswer::default()
            }
        } else {
            // A record that was not delivered spoils its transaction.
            StepAnswer {
                requires_abort: step == TransactionStep::Deliver,
                ..StepAnswer::default()
            }
        };
        let producer = self.producer.as_ref();
        let is_broken =
            producer.is_none_or(|(_, producer)| producer.client().fatal_error().is_some());
        StepAnswer {
            is_fatal: said.is_fatal || is_broken,
            is_stale: meaning == Some(Meaning::Stale),
            is_refusal: meaning == Some(Meaning::Refusal),
            is_late,
            ..said
        }
    }

    /// Carries out what is decided after an error.
    fn after(
        &mut self,
        step: TransactionStep,
        error: &KafkaError,
        is_late: bool,
    ) -> TransactionFailure {
        let answer = self.answer(step, error, is_late);
        match transaction_step::next(step, answer) {
            // Only steps that can be asked again come to this, and they do so themselves.
            Next::Again | Next::AbortAndRedo => self.abort(TransactionFailure::Redo),
            Next::AbortAndFail => {
                let no = self.no(error);
                self.abort(TransactionFailure::Undone(no))
            }
            Next::DropAndFail => {
                let no = self.no(error);
                self.drop_producer(step);
                TransactionFailure::Undone(no)
            }
            Next::DropAndSettle => {
                self.drop_producer(step);
                TransactionFailure::Unknown(error.to_string())
            }
        }
    }

    /// Aborts. If that does not succeed the producer is dropped, and the next one does it.
    fn abort(&mut self, then: TransactionFailure) -> TransactionFailure {
        let until = self.clock.elapsed() + self.config.request_timeout / 4;
        // A failure of the abort has dropped the producer already; what was to be told stays.
        match self.step(TransactionStep::Abort, until, |producer, limit| {
            producer.abort_transaction(limit.min(Duration::from_millis(500)))
        }) {
            Ok(()) | Err(_) => then,
        }
    }

    /// Drops the producer on a thread of its own: the end of a client may take its time, or hang.
    fn part(&mut self) {
        if let Some(producer) = self.producer.take() {
            let task = Box::pin(async move { drop(producer) });
            drop(self.spawn.spawn_thread("kafka-part", task));
        }
    }

    fn drop_producer(&mut self, step: TransactionStep) {
        self.part();
        // Before it has announced itself a producer leaves nothing open.
        self.left_open |= step != TransactionStep::InitTransactions;
    }

    fn no(&self, error: &KafkaError) -> LogError {
        self.config.failed("a transaction", None, error)
    }
}

fn stale() -> KafkaError {
    KafkaError::ConsumerCommit(RDKafkaErrorCode::AssignmentLost)
}
