//! The least that could be done: rows by id, produced by the bare client with the settings of the port.
//!
//! One session selects, and a batch is selected while the ones before it are on their way. Another session marks
//! each batch once all of it is delivered. A thread hears deliveries, as the port has one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use tidegate_core::Topic;
use tidegate_store::sqlx::{self, PgConnection, Row as _};
use tokio::sync::{Notify, mpsc};

use super::{BATCH, LIMIT, PARTITIONS, told};
use crate::program::Why;
use crate::server::{session, shown};

const WAIT: Duration = Duration::from_secs(10);
/// Batches on their way at once, as many as a relay has.
const AT_ONCE: usize = 4;

/// Where the loop ends with a batch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ends {
    /// It is in the topic.
    Produced,
    /// Its rows are marked, too.
    Settled,
}

/// A batch on its way.
struct SentBatch {
    ids: Vec<i64>,
    left: AtomicUsize,
    has_failed: AtomicBool,
    done: Notify,
}

struct Heard;

impl ClientContext for Heard {}

impl ProducerContext for Heard {
    type DeliveryOpaque = Arc<SentBatch>;

    fn delivery(&self, result: &DeliveryResult<'_>, batch: Arc<SentBatch>) {
        if result.is_err() {
            batch.has_failed.store(true, Ordering::Relaxed);
        }
        if batch.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            batch.done.notify_one();
        }
    }
}

/// Produces all rows of the table. The client keeps the order of a partition, and so of a key.
pub(super) async fn run(url: &str, servers: &str, topic: &Topic, ends: Ends) -> Result<(), Why> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("compression.type", "lz4");
    let producer = BaseProducer::from_config_and_context(&config, Heard).map_err(told)?;
    let producer: Arc<BaseProducer<Heard>> = Arc::new(producer);
    // Records for a partition that the client does not know yet would fail.
    while !knows(&producer, topic)? {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let listened = Arc::downgrade(&producer);
    let listener = std::thread::spawn(move || {
        while let Some(producer) = listened.upgrade() {
            producer.poll(Duration::from_millis(10));
        }
    });
    // A client that is dropped gives up what is still on its way.
    let until_all_is_delivered = Arc::clone(&producer);
    let (mut selecting, mut marking) = (session(url).await?, session(url).await?);
    let (sent, mut on_their_way) = mpsc::channel::<Arc<SentBatch>>(AT_ONCE);
    let produced = async move {
        let mut after = 0;
        loop {
            let batch = produce(&mut selecting, &producer, topic, after).await?;
            match batch.ids.last() {
                Some(last) => after = *last,
                None => return Ok::<_, Why>(()),
            }
            if sent.send(batch).await.is_err() {
                return Ok(());
            }
        }
    };
    let ended = async move {
        while let Some(batch) = on_their_way.recv().await {
            while batch.left.load(Ordering::Acquire) > 0 {
                batch.done.notified().await;
            }
            if batch.has_failed.load(Ordering::Relaxed) {
                return Err("a record was not delivered".to_owned());
            }
            if let Ends::Settled = ends {
                let sql = "UPDATE outbox_event SET sent = true, status = 'SENT', sent_at = now()
                    WHERE id = ANY ($1)";
                let marked = sqlx::query(sql).bind(&batch.ids).execute(&mut marking);
                marked.await.map_err(|error| shown(&error))?;
            }
        }
        Ok(())
    };
    let both = async { tokio::try_join!(produced, ended).map(drop) };
    let done = tokio::time::timeout(LIMIT, both).await;
    let done = done.unwrap_or_else(|_| Err(format!("the loop takes longer than {LIMIT:?}")));
    drop(until_all_is_delivered);
    listener
        .join()
        .map_err(|_| "the listener panicked".to_owned())?;
    done
}

/// Whether the client knows a leader of every partition.
fn knows(producer: &BaseProducer<Heard>, topic: &Topic) -> Result<bool, Why> {
    let metadata = producer.client().fetch_metadata(Some(topic.as_str()), WAIT);
    let metadata = metadata.map_err(told)?;
    let partitions = metadata
        .topics()
        .first()
        .map_or(&[][..], |found| found.partitions());
    let led = partitions.iter().filter(|one| one.leader() >= 0).count();
    Ok(led == PARTITIONS as usize)
}

async fn produce(
    session: &mut PgConnection,
    producer: &BaseProducer<Heard>,
    topic: &Topic,
    after: i64,
) -> Result<Arc<SentBatch>, Why> {
    let sql = "SELECT id, aggregate_id, payload FROM outbox_event
        WHERE id > $1 AND status = 'PENDING' ORDER BY id LIMIT $2";
    let rows = sqlx::query(sql)
        .bind(after)
        .bind(i64::from(BATCH))
        .fetch_all(session)
        .await
        .map_err(|error| shown(&error))?;
    let ids = rows.iter().map(|row| row.try_get(0));
    let batch = Arc::new(SentBatch {
        ids: ids
            .collect::<Result<_, _>>()
            .map_err(|error| shown(&error))?,
        left: AtomicUsize::new(rows.len()),
        has_failed: AtomicBool::new(false),
        done: Notify::new(),
    });
    for row in &rows {
        let (key, payload): (&str, &str) = (
            row.try_get(1).map_err(|error| shown(&error))?,
            row.try_get(2).map_err(|error| shown(&error))?,
        );
        loop {
            let record = BaseRecord::with_opaque_to(topic.as_str(), Arc::clone(&batch));
            match producer.send(record.key(key).payload(payload)) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err((error, _)) => return Err(told(error)),
            }
        }
    }
    Ok(batch)
}
