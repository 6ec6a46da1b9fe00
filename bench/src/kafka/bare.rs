//! The bare client, with the settings that the port gives it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Header, Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::{
    COMMITS, Outcome, PARTITIONS, PER_COMMIT, Place, RECORDS, micros, rate_since, told, value,
};

const WAIT: Duration = Duration::from_secs(60);

/// Counts what was delivered.
#[derive(Default)]
struct Delivered(AtomicUsize);

impl ClientContext for Delivered {}

impl ProducerContext for Delivered {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn producer(place: &Place) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &place.servers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("compression.type", "lz4")
        .set("queue.buffering.max.messages", "1000000");
    config
}

fn partition(number: usize) -> i32 {
    i32::try_from(number % PARTITIONS as usize).unwrap_or(0)
}

/// Sends a record, waiting for room in the client's queue.
fn send<C: ProducerContext<DeliveryOpaque = ()>>(
    producer: &BaseProducer<C>,
    place: &Place,
    at: i32,
    value: &[u8],
) -> Outcome<()> {
    loop {
        let record = BaseRecord::<(), [u8]>::to(place.topic.as_str());
        match producer.send(record.partition(at).payload(value)) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                producer.poll(Duration::from_millis(1));
            }
            Err((error, _)) => return Err(told(error)),
        }
    }
}

/// A record, copied out as anybody must who hands records on: what the port hands out, and no more.
/// Dropped with its batch, unread, as the port's are.
#[expect(dead_code, reason = "it stands for what a consumer hands on")]
struct Copied {
    partition: i32,
    offset: i64,
    timestamp: Option<i64>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Copied {
    fn new(message: &BorrowedMessage<'_>) -> Self {
        let owned = |header: Header<'_, &[u8]>| {
            let value = header.value.map(<[u8]>::to_vec);
            (header.key.to_owned(), value)
        };
        let headers = message.headers();
        Self {
            partition: message.partition(),
            offset: message.offset(),
            timestamp: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.map_or_else(Vec::new, |all| all.iter().map(owned).collect()),
        }
    }
}

pub(super) fn produce(place: &Place) -> Outcome<()> {
    let producer: BaseProducer<Delivered> =
        BaseProducer::from_config_and_context(&producer(place), Delivered::default())
            .map_err(told)?;
    std::thread::scope(|scope| {
        // Deliveries are heard beside the sending, as the port does.
        let heard = scope.spawn(|| {
            let begin = Instant::now();
            let context = producer.context();
            while context.0.load(Ordering::Relaxed) < RECORDS {
                producer.poll(Duration::from_millis(10));
                if begin.elapsed() > WAIT {
                    return Err("deliveries are missing".to_owned());
                }
            }
            Ok(())
        });
        for number in 0..RECORDS {
            send(&producer, place, partition(number), &value(number))?;
        }
        heard
            .join()
            .map_err(|_| "the listener panicked".to_owned())?
    })
}

fn consumer(place: &Place) -> Outcome<BaseConsumer> {
    ClientConfig::new()
        .set("bootstrap.servers", &place.servers)
        .set("group.id", place.group.as_str())
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("check.crcs", "true")
        .set("queued.max.messages.kbytes", "8192")
        .set("fetch.wait.max.ms", "100")
        .set("fetch.queue.backoff.ms", "10")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .create()
        .map_err(told)
}

/// Reads everything, timed from the first record.
pub(super) fn consume(place: &Place) -> Outcome<f64> {
    let consumer = consumer(place)?;
    consumer.subscribe(&[place.topic.as_str()]).map_err(told)?;
    let (waiting, mut begin) = (Instant::now(), None);
    let mut batch: Vec<Copied> = Vec::new();
    let mut left = RECORDS;
    while left > 0 {
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            let message = message.map_err(told)?;
            begin.get_or_insert_with(Instant::now);
            batch.push(Copied::new(&message));
            if batch.len() == 5_000 {
                batch = Vec::new();
            }
            left -= 1;
        }
        if waiting.elapsed() > WAIT {
            return Err("records are missing".to_owned());
        }
    }
    Ok(rate_since(begin))
}

pub(super) fn commits(place: &Place) -> Outcome<Vec<u32>> {
    let mut config = producer(place);
    config.set("transactional.id", place.group.as_str());
    let producer: BaseProducer<Delivered> =
        BaseProducer::from_config_and_context(&config, Delivered::default()).map_err(told)?;
    producer.init_transactions(WAIT).map_err(told)?;
    let consumer = consumer(place)?;
    consumer.subscribe(&[place.topic.as_str()]).map_err(told)?;
    let begin = Instant::now();
    while consumer.assignment().map_err(told)?.count() == 0 {
        drop(consumer.poll(Duration::from_millis(20)));
        if begin.elapsed() > WAIT {
            return Err("nothing was assigned".to_owned());
        }
    }
    let mut samples = Vec::new();
    for commit in 1..=COMMITS {
        let values: Vec<Vec<u8>> = (0..PER_COMMIT)
            .map(|number| value(number * 4 + 1))
            .collect();
        drop(consumer.poll(Duration::ZERO));
        let begin = Instant::now();
        producer.begin_transaction().map_err(told)?;
        for value in &values {
            send(&producer, place, 1, value)?;
        }
        while producer.in_flight_count() > 0 {
            producer.poll(Duration::from_millis(1));
        }
        let mut offsets = TopicPartitionList::new();
        let next = Offset::Offset(i64::try_from(commit * PER_COMMIT).unwrap_or(i64::MAX));
        offsets
            .add_partition_offset(place.topic.as_str(), 0, next)
            .map_err(told)?;
        let group = consumer.group_metadata().ok_or("no group")?;
        producer
            .send_offsets_to_transaction(&offsets, &group, WAIT)
            .map_err(told)?;
        producer.commit_transaction(WAIT).map_err(told)?;
        samples.push(micros(begin));
    }
    Ok(samples)
}
