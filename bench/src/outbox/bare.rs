//! The least that could be done: rows by id, produced by the bare client with the settings of the port.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tidegate_core::Topic;
use tidegate_store::sqlx::{self, PgConnection, Row as _};

use super::{BATCH, told};
use crate::program::Why;
use crate::server::{session, shown};

const WAIT: Duration = Duration::from_secs(60);

/// Where the loop ends with a batch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ends {
    /// It is in the topic.
    Produced,
    /// Its rows are marked, too.
    Settled,
}

/// Produces all rows of the table, batch by batch. The client keeps the order of a partition, and so of a key.
pub(super) async fn run(url: &str, servers: &str, topic: &Topic, ends: Ends) -> Result<(), Why> {
    let mut session = session(url).await?;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("compression.type", "lz4")
        .create()
        .map_err(told)?;
    let mut after = 0;
    loop {
        let ids = produce(&mut session, &producer, topic, after).await?;
        let Some(last) = ids.last() else {
            return Ok(());
        };
        after = *last;
        producer.flush(WAIT).map_err(told)?;
        match ends {
            Ends::Produced => {}
            Ends::Settled => {
                let sql = "UPDATE outbox_event SET sent = true, status = 'SENT', sent_at = now()
                    WHERE id = ANY ($1)";
                let marked = sqlx::query(sql).bind(ids).execute(&mut session).await;
                marked.map_err(|error| shown(&error))?;
            }
        }
    }
}

async fn produce(
    session: &mut PgConnection,
    producer: &BaseProducer,
    topic: &Topic,
    after: i64,
) -> Result<Vec<i64>, Why> {
    let sql = "SELECT id, aggregate_id, payload FROM outbox_event
        WHERE id > $1 AND status = 'PENDING' ORDER BY id LIMIT $2";
    let rows = sqlx::query(sql)
        .bind(after)
        .bind(i64::from(BATCH))
        .fetch_all(session)
        .await
        .map_err(|error| shown(&error))?;
    let mut ids = Vec::with_capacity(rows.len());
    for row in &rows {
        let (key, payload): (&str, &str) = (
            row.try_get(1).map_err(|error| shown(&error))?,
            row.try_get(2).map_err(|error| shown(&error))?,
        );
        loop {
            let record = BaseRecord::to(topic.as_str()).key(key).payload(payload);
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    producer.poll(Duration::from_millis(1));
                }
                Err((error, _)) => return Err(told(error)),
            }
        }
        ids.push(row.try_get(0).map_err(|error| shown(&error))?);
    }
    Ok(ids)
}
